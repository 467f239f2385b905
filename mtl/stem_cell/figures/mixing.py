"""The figure of mixing vectors: do heads that several tasks claim share components?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.probes.statistics.masks import final_masks
from mtl.probes.stem_cell.figures.mixing import mixing_figure
from mtl.probes.stem_cell.statistics.contest_table import claims_table
from mtl.probes.stem_cell.statistics.mixing import OVERLAPS, MixingByClaims, overlap_by_claims
from mtl.runs.compare.alike import comparable
from mtl.runs.compare.comparable import with_setups
from mtl.runs.compare.encoders import check_encoders, encoder_of
from mtl.runs.compare.keys import MASKS
from mtl.runs.compare.left_out import without_repeats
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.compare.trained_masks import masks_of
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.runs.folder.content import Content
from mtl.runs.folder.run import Run
from mtl.stem_cell.mixing import SharedComponents, components_in, overlaps_in

BEFORE, JOINT, ALONE = "before", "joint", "alone"
"""Groups of collaborative models: before training, after joint training, after training on one task."""
_PAIR = ["attention", "layer", "first", "second"]
"""The columns that name a pair of heads."""


def by_claims(request: FigureRequest) -> FigureWithTables:
    """Overlap of the heads' mixing vectors, by how many of the joint runs' tasks claim the heads.

    Raises `InputError` without joint runs or claims, and for models that cannot be compared.
    """
    notes: list[str] = []
    runs = [Run.open(path) for path in request.paths if (path / "config.yaml").exists()]
    bare = [path for path in request.paths if not (path / "config.yaml").exists()]
    configs = {run: run.config() for run in runs}
    masked = [run for run in runs if _masked_alone(run, configs[run])]
    models: dict[str, list[tuple[Path, str, int]]] = {BEFORE: [], JOINT: [], ALONE: []}
    models[BEFORE] = [(path, str(path), 0) for path in bare]
    groups: dict[Run, str] = {}
    for run in runs:
        if run in masked:
            continue
        if configs[run].get("pruning", "none") != "none":
            notes.append(f"{run.folder} has masks, which some of its heads were not trained under: left out")
            continue
        groups[run] = _group(run, configs[run])
    # Two joint runs of one seed are refused (`_overlaps`): nothing says which of them is meant.
    once, copies = without_repeats([run for run, group in groups.items() if group != JOINT])
    notes += copies
    for run, group in groups.items():
        if group == JOINT or run in once:
            models[group].append((run.model, str(run.folder), int(configs[run]["seed"])))
    joint = [run for run in runs if any(str(run.folder) == name for _, name, _ in models[JOINT])]
    if not joint:
        raise InputError(
            "no collaborative joint run among these: train one with 'mtl train --encoder.name=DIR', where "
            "DIR is the folder that 'mtl collaborate' wrote"
        )
    models, masked = _alike(models, masked, configs, notes)
    joint = [run for run in joint if any(str(run.folder) == name for _, name, _ in models[JOINT])]
    tasks = _tasks_of({str(run.folder): tuple(configs[run]["tasks"]) for run in joint})
    claims = _claims(masked, [name for name in tasks if not request.tasks or name in request.tasks], notes)
    _note_encoders(masked, joint, bare, notes)
    overlaps = _overlaps(models)
    if overlaps[BEFORE].is_empty():
        notes.append("no encoder before training: add the folder that 'mtl collaborate' wrote")
    else:
        for group in (JOINT, ALONE):
            if not overlaps[group].is_empty():
                overlaps[f"{group} less {BEFORE}"] = _less(overlaps[group], overlaps[BEFORE])
    found: dict[str, MixingByClaims] = {
        group: overlap_by_claims(table, claims) for group, table in overlaps.items() if not table.is_empty()
    }
    tables = {
        "": _stacked({group: part.tests for group, part in found.items()}),
        "-layers": _stacked({group: part.layers() for group, part in found.items()}),
        "-pairs": _stacked({group: part.pairs for group, part in found.items()}),
    }
    return FigureWithTables(mixing_figure(tables[""], tables["-layers"], JOINT), tuple(notes), tables)


def _alike(
    models: dict[str, list[tuple[Path, str, int]]],
    masked: list[Run],
    configs: Mapping[Run, Mapping[str, object]],
    notes: list[str],
) -> tuple[dict[str, list[tuple[Path, str, int]]], list[Run]]:
    """Models and masked runs without those whose settings differ from those of most joint runs.

    Masks may differ. So may the encoder, since claims are on the heads of the encoder that was made
    collaborative.
    """
    compared = {name for group in (JOINT, ALONE) for _, name, _ in models[group]}
    settings = {
        str(run.folder): settings_of_run(run)
        for run in configs
        if str(run.folder) in compared or run in masked
    }
    joint = [name for _, name, _ in models[JOINT]]
    alike, left_out = comparable(settings, (*MASKS, "encoder.name"), like=joint)
    notes += left_out
    kept = {
        group: [member for member in members if member[1] not in settings or member[1] in alike]
        for group, members in models.items()
    }
    return kept, [run for run in masked if str(run.folder) in alike]


def _masked_alone(run: Run, config: Mapping[str, object]) -> bool:
    """Whether a run's masks are claims: learned, for a single task, in a run that is not derived."""
    alone = isinstance(config["tasks"], list) and len(config["tasks"]) == 1
    return alone and config.get("pruning", "none") not in ("none", "fixed") and not run.derivation()


def _group(run: Run, config: Mapping[str, object]) -> str:
    if "collaborated_from" in run.status():
        return BEFORE  # its components are those of the decomposition
    assert isinstance(config["tasks"], list)
    return JOINT if len(config["tasks"]) > 1 else ALONE


def _tasks_of(runs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The tasks of the joint runs; raises `InputError` if they differ."""
    first, *others = runs.items()
    for run, tasks in others:
        if set(tasks) != set(first[1]):
            raise InputError(
                f"joint runs of different tasks: {first[0]} of {', '.join(first[1])}, {run} of "
                f"{', '.join(tasks)}; use runs of the same tasks"
            )
    return first[1]


def _claims(masked: list[Run], tasks: list[str], notes: list[str]) -> pl.DataFrame:
    """The heads that these tasks claim in masked single-task runs; raises `InputError` for fewer than two."""
    check_encoders({str(run.folder): encoder_of(run) for run in masked})
    chosen = [run for run in with_setups(masked) if run.config["tasks"][0] in tasks]
    names = {run.setup.name for run in chosen}
    if len(names) > 1:
        raise InputError(f"claims of several setups ({'; '.join(sorted(names))}): use masked runs of one")
    masked_tasks = {run.config["tasks"][0] for run in chosen}
    notes += [
        f"no masked run of {task} alone: its claims do not count"
        for task in tasks
        if task not in masked_tasks
    ]
    gates = masks_of(chosen, notes) if len(masked_tasks) > 1 else None
    if gates is None or gates["task"].n_unique() < 2:
        raise InputError(
            f"claims are the masks of single-task runs of two or more of {', '.join(tasks)}; there are such "
            f"runs of {', '.join(sorted(masked_tasks)) or 'none'}: train them with --pruning=dynamic"
        )
    masks, left_out = final_masks(gates)
    notes += left_out
    if masks.forced().any():
        notes.append(masks.forced_in_words().removesuffix("; "))
    return claims_table(masks)


def _note_encoders(masked: list[Run], joint: list[Run], bare: list[Path], notes: list[str]) -> None:
    check_encoders({str(run.folder): encoder_of(run) for run in joint})
    claimed, trained = encoder_of(masked[0]), encoder_of(joint[0])
    if claimed.another_encoder(trained):
        notes.append(
            f"claims are on the heads of {claimed.place}, mixing vectors of {trained.place}: they belong "
            "together if the one was made from the other by 'mtl collaborate'"
        )
    notes += [
        f"{path} is taken for the model before training, but the joint runs name {trained.place}: what "
        "training changed is shown correctly only if both are the same model"
        for path in bare
        if path.resolve() != Path(trained.place).resolve() and trained.another_encoder(Content(str(path)))
    ]


def _overlaps(models: Mapping[str, list[tuple[Path, str, int]]]) -> dict[str, pl.DataFrame]:
    """The overlaps of each group; raises `InputError` for models with no components, or different ones."""
    components: dict[str, SharedComponents] = {}
    groups: dict[str, pl.DataFrame] = {}
    for group, members in models.items():
        of_seed = {seed: name for _, name, seed in reversed(members)}
        for _, name, seed in members if group == JOINT else ():
            if of_seed[seed] != name:
                raise InputError(f"{of_seed[seed]} and {name} are both joint runs of seed {seed}: use one")
        parts = [pl.DataFrame(schema=OVERLAPS)]
        for folder, name, seed in members:
            components[name] = components_in(folder)
            first, found = next(iter(components.items()))
            if not components[name].of_sites:
                raise InputError(
                    f"the heads of {name} share no components: 'mtl collaborate' makes such a model"
                )
            if components[name].family != found.family:
                raise InputError(
                    f"{first} is a model of the family {found.family}, {name} of {components[name].family}: "
                    "use models that were made from one encoder"
                )
            if components[name] != found:
                raise InputError(
                    f"{first} and {name} have different numbers of components: use models of one --dim"
                )
            parts.append(overlaps_in(folder, name, seed))
        groups[group] = pl.concat(parts)
    return groups


def _less(overlaps: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """What training changed: per pair of heads, the overlap less the mean overlap before training."""
    start = before.group_by(_PAIR).agg(start=pl.col("overlap").mean())
    joined = overlaps.join(start, on=_PAIR, how="inner", maintain_order="left")
    if joined.height < overlaps.height:
        raise InputError(
            "the models before and after training have different heads: use those of one encoder"
        )
    return joined.with_columns(overlap=pl.col("overlap") - pl.col("start")).select(OVERLAPS.names())


def _stacked(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(
        [table.select(pl.lit(group).alias("models"), *table.columns) for group, table in tables.items()]
    )
