"""What a saved model says about itself: what it was made from, its scores, its masks, and how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from mtl.errors import InputError
from mtl.files import known_fields
from mtl.models.found import MODEL_FILE
from mtl.models.routes import Place
from mtl.probes.head_names import head_name
from mtl.probes.sites import Site
from mtl.runs.folder.run import Run

_PUBLISHED = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""The hub repositories of the embedded encoders."""


@dataclass(frozen=True)
class Origin:
    """What a model was made from, and how it scored when it was trained."""

    encoder: str = ""
    """The encoder's name, without the folders that a local one lies in; empty: not known."""
    published: str = ""
    """The encoder's repository on the hub; empty: none, or not known."""
    corpus: str = ""
    """The corpus's name; empty: not known."""
    derivation: str = ""
    """What was done to the trained model (`Run.derivation`)."""
    scores: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """By split, task and name, in per cent."""
    note: str = ""
    """Why nothing is known; empty if something is."""


def origin_of(folder: Path) -> Origin:
    """What is known of the model in a folder, from the run around it or from what was saved with it."""
    run = Run.of_model(folder)
    if run is not None:
        try:
            return _of_run(Run.open(run.folder))
        except InputError as error:
            return Origin(note=str(error))
    saved = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8")).get("origin", {})
    return Origin(**known_fields(Origin, saved))


def _of_run(run: Run) -> Origin:
    config, status = run.config(), run.status()
    name = (config.get("encoder") or {}).get("name") or ""
    architecture = (config.get("seq2seq") or {}).get("architecture")
    if architecture is not None:
        encoder, published = f"{architecture}, trained from scratch", ""
    elif "encoder_fingerprint" in status:
        encoder, published = Path(name).name, ""
    else:
        encoder, published = name, _PUBLISHED.get(name, name)
    scores = run.metrics() if (run.folder / "metrics.json").is_file() else {}
    return Origin(encoder, published, _corpus(config), run.derivation(), scores)


def _corpus(config: Mapping[str, Any]) -> str:
    """The names of the corpora's files and folders, without the folders that they lie in."""
    corpus = config.get("corpus") or {}
    if corpus.get("path"):
        return Path(corpus["path"]).resolve().name
    own = {**corpus, **(corpus.get("instances") or {})}
    files = {task: (own.get(task) or {}).get("train") for task in config["tasks"]}
    names = {
        task: ":".join(Path(part).name for part in str(place).split(":"))
        for task, place in files.items()
        if place
    }
    return ", ".join(f"{task}: {name}" for task, name in names.items())


@dataclass(frozen=True)
class HeadsOfTask:
    """The heads that are open for one task, out of the encoder's."""

    open: Sequence[Place]
    of: int
    """How many heads the encoder has."""
    masked: bool

    def words(self, sites: Sequence[Site]) -> str:
        """How many heads are open, and which, if there is a mask."""
        if not self.masked:
            return f"all {self.of}; no mask"
        names = [head_name(sites[site], head, sites) for site, head in self.open]
        return f"{len(names)} of {self.of}: {' '.join(names) or 'none'}"


def card(
    name: str, origin: Origin, heads: Mapping[str, HeadsOfTask], sites: Sequence[Site], changed: bool
) -> str:
    """The text of README.md.

    Args:
        name: the repository or the folder that the model is saved as.
        origin: what it was made from.
        heads: by task, the heads that are open.
        sites: the sites of the encoder.
        changed: whether the model was changed after it had the scores of `origin`.
    """
    tasks = list(heads)
    header = ModelCardData(
        library_name="mtl", base_model=origin.published or None, tags=["mtl", "multi-task-learning", *tasks]
    )
    unknown = origin.note or "not known"
    encoder = f"{origin.encoder} ({origin.derivation})" if origin.derivation else origin.encoder
    translates = any(site.attention == "cross" for site in sites)
    rows = [f"| {task} | {of.words(sites)} |" for task, of in heads.items()]
    parts = [
        f"---\n{header.to_yaml()}\n---",
        f"# {name.rpartition('/')[2]}",
        f"A model of [mtl](https://pypi.org/project/mtl-heads/) for {', '.join(tasks)}: "
        + ("an encoder-decoder model." if translates else "one encoder, and a decoder for each task."),
        f"- Encoder: {encoder or unknown}\n- Corpus: {origin.corpus or unknown}",
        "## Load",
        "```python\nfrom mtl import JointModel  # pip install mtl-heads\n\n"
        f'model = JointModel.from_pretrained("{name}")\n'
        '[sentence] = model.annotate([["We", "ate", "in", "Paris", "."]])\n```',
        "Plain `transformers` loads the encoder alone, without decoders and masks"
        + (", and so gives other results." if any(of.masked for of in heads.values()) else "."),
        "## Scores",
        _scores(origin, tasks, changed),
        "## Attention heads",
        "\n".join(["| task | open heads |", "|---|---|", *rows]),
        "## Licence",
        "None is stated yet. It depends on the licences of the encoder and the corpus: add `license:` to the "
        "first lines of this file.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _scores(origin: Origin, tasks: Sequence[str], changed: bool) -> str:
    if changed:
        return "None: the model was changed after it was loaded. Score it again with `mtl evaluate`."
    if not origin.scores:
        return f"None: {origin.note or 'the model was saved without any'}."
    splits = list(origin.scores)
    rows = []
    for task in tasks:
        scores = dict.fromkeys(
            score for split in splits for score in origin.scores[split].get(task, {}) if "/" not in score
        )
        for score in scores:
            values = [origin.scores[split].get(task, {}).get(score) for split in splits]
            shown = ["" if value is None else f"{value:.2f}" for value in values]
            rows.append(f"| {task} | {score} | {' | '.join(shown)} |")
    head = f"| task | score | {' | '.join(splits)} |"
    return "\n".join([head, "|---|---|" + "---:|" * len(splits), *rows])
