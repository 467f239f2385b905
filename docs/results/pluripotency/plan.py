"""Masks, encoders and the study file of ../pluripotency.md; that page says what they are for.

python docs/results/pluripotency/plan.py archive    # archive: what ../contest/study.tar.xz holds
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl

TASKS = ("pos", "ner", "dep", "con", "srl")
LAYERS, HEADS, SEEDS = 6, 12, range(1, 7)
OURS = Path(__file__).parent
STUDY = OURS / "study.yaml"
ARMS = {
    "dep": ("own", "unclaimed", "other", "exchanged"),
    "pos": ("own", "unclaimed"),
    "srl": ("own", "unclaimed"),
}
HEADER = """\
# Can any head be trained to what a task needs? docs/results/pluripotency.md says what was fixed before.
# 14 of 72 heads are open: those that the task claims, as many in each layer that no task claims, those of
# another task, or the claimed places with each other's weights. Each seed has masks of its own. plan.py wrote
# this file, the masks and the encoders. 24 runs for DEP, some 4 minutes each; then 24 for POS and SRL.
"""


def main() -> None:
    """Write the masks, the encoders with exchanged heads, and the study file."""
    masks = claimed(Path(sys.argv[1]) / "contest/runs")
    blocks = []
    for task, setups in ARMS.items():
        for setup in setups:
            for seed in SEEDS:
                random = np.random.default_rng([20261129, TASKS.index(task), seed])
                own = masks[task][seed - 1]
                mask = {
                    "own": own, "exchanged": own, "other": masks["ner"][seed - 1],
                    "unclaimed": unclaimed(own, masks, random),
                }[setup]  # fmt: skip
                file = OURS / f"{task}-{setup}-{seed}.parquet"
                if setup != "exchanged":
                    written(mask, task, file)
                changed = f"gates.masks: docs/results/pluripotency/{file.name.replace('exchanged', 'own')}"
                if setup == "exchanged":
                    encoder = f"data/exchanged-{seed}"
                    exchanged(mask, random, Path(encoder))
                    changed += f", encoder.name: {encoder}"
                blocks.append(
                    f"  - {{setups: [{task}], masks: [fixed], label: {setup}, seeds: [{seed}], "
                    f"set: {{{changed}}}}}\n"
                )
    STUDY.write_text(
        HEADER + "grid:\n" + "".join(blocks) + "seeds: [1, 2, 3, 4, 5, 6]\n"
        "train:\n"
        "  corpus: {path: data/small}  # mtl data ewt5 --subset=small --out data/small\n"
        "  encoder: {name: minilm}\n"
        "  max_epochs: 5\n"
        "  trainer: {precision: 32-true}\n"
        "  optimizer: {encoder_lr: 3.0e-4, decoder_lr: 2.0e-3}\n"
        "probes: {masks: []}\n"
    )


def claimed(runs: Path) -> dict[str, np.ndarray]:
    """Six masks of 14 heads by task (mask, head): seeds 11 to 13 of the contest, 1 to 3 of nine tasks."""
    nine = pl.read_csv(OURS.parent / "nine-tasks/masks.csv").filter(pl.col("regime") == "alone")
    masks = {}
    for task in TASKS:
        opened = np.zeros((6, LAYERS * HEADS), bool)
        for place, seed in enumerate((11, 12, 13)):
            gates = pl.read_parquet(runs / f"{task}-dynamic-k14-seed{seed}/gates.parquet")
            gates = gates.filter(pl.col("step") == pl.col("step").max()).sort("layer", "head")
            opened[place] = gates["open"].to_numpy()
        of_task = nine.filter(pl.col("task") == ("xpos" if task == "pos" else task))
        for seed, layer, head in of_task.select("seed", "layer", "head").iter_rows():
            opened[2 + seed, layer * HEADS + head] = True
        masks[task] = opened
    return masks


def unclaimed(own: np.ndarray, masks: dict[str, np.ndarray], random: np.random.Generator) -> np.ndarray:
    """As many heads in each layer as `own`, of those that no task keeps in four of six masks."""
    free = ~np.any([of_task.sum(0) >= 4 for of_task in masks.values()], axis=0) & ~own
    drawn = np.zeros_like(own)
    for layer in range(LAYERS):
        inside = slice(layer * HEADS, (layer + 1) * HEADS)
        heads = layer * HEADS + np.flatnonzero(free[inside])
        drawn[random.choice(heads, own[inside].sum(), replace=False)] = True
    return drawn


def written(mask: np.ndarray, task: str, file: Path) -> None:
    """A mask as `gates.masks` reads it."""
    from mtl.heads.gates import gate_table

    layer, head = np.divmod(np.arange(LAYERS * HEADS), HEADS)
    rows = [
        {
            "task": task, "step": 0, "attention": "self", "layer": int(each), "head": int(its),
            "gate": float(kept), "open": bool(kept), "unit": "head",
        }
        for each, its, kept in zip(layer, head, mask, strict=True)
    ]  # fmt: skip
    gate_table(rows).write_parquet(file)


def exchanged(mask: np.ndarray, random: np.random.Generator, folder: Path) -> None:
    """MiniLM whose kept heads have each other's weights, each those of a head of another layer."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from mtl.models.found import embedded_minilm

    places = np.flatnonzero(mask)
    order = random.permutation(places)
    while np.any(order // HEADS == places // HEADS):
        order = random.permutation(places)
    model = AutoModel.from_pretrained(embedded_minilm())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    width = model.config.hidden_size // HEADS
    with torch.no_grad():
        for place, source in zip(places.tolist(), order.tolist(), strict=True):
            here, there = (
                slice(head % HEADS * width, (head % HEADS + 1) * width) for head in (place, source)
            )
            attention = model.encoder.layer[place // HEADS].attention
            old = f"encoder.layer.{source // HEADS}.attention"
            for part in ("query", "key", "value"):
                linear = getattr(attention.self, part)
                linear.weight[here] = before[f"{old}.self.{part}.weight"][there]
                linear.bias[here] = before[f"{old}.self.{part}.bias"][there]
            attention.output.dense.weight[:, here] = before[f"{old}.output.dense.weight"][:, there]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(embedded_minilm()).save_pretrained(folder)


if __name__ == "__main__":
    main()
