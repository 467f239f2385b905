"""The files of a saved joint model, and its card: what it was made from, its scores, how to load it."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

import torch
from huggingface_hub import ModelCardData
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtl.config.instances import architecture_in, own_model_of, tasks_saved
from mtl.errors import InputError
from mtl.features import added
from mtl.files import checksum, share_as, write_json
from mtl.heads.gates import Gates, Place, gates_from
from mtl.heads.load import require_fitting, require_stored_numbers, stored_in
from mtl.models.annotator import damaged
from mtl.models.encoder import Encoder
from mtl.models.passes import not_finite
from mtl.models.pretrained import AttentionKind
from mtl.models.tapped import SharedEncoder
from mtl.probes.sites import Site, head_name
from mtl.runs.folder.run import MODEL_FILE, Run
from mtl.tasks.in_words import counted
from mtl.tasks.task import Labels, Task

DECODERS = "decoders.safetensors"
LABELS = "labels.json"
_WRITTEN = (
    "config.json", "*.safetensors", "*.safetensors.index.json", LABELS, "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json",
)  # fmt: skip
"""Patterns of the files whose checksums are in model.json."""


class Parts(NamedTuple):
    """What a joint model is made of."""

    encoder: SharedEncoder
    tasks: Mapping[str, Task]
    labels: Mapping[str, Labels]
    gates: Gates | None


def write_model(
    folder: Path,
    parts: Parts,
    state: Mapping[str, Tensor],
    masks: Float[Tensor, "mask site head"] | None,
    origin: Origin | None,
) -> None:
    """Write a model with these parts and values to `folder`: JSON, safetensors and tokenizer files.

    `masks` are the factors of heads that are not part of the encoder's weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts.encoder.save(folder, masks)
    write_json(folder / LABELS, {name: labels.names for name, labels in parts.labels.items()})
    description: dict[str, Any] = {
        **tasks_as_json(parts.tasks),
        "gates": None if parts.gates is None else parts.gates.configuration(),
    }
    weights = {
        key: value.detach().cpu().contiguous()
        for key, value in state.items()
        if not key.startswith("encoder.")
    }
    save_file(weights, folder / DECODERS)
    share_as(folder / LABELS, folder.glob("*.safetensors"))
    patterns = (*_WRITTEN, parts.encoder.settings_file)
    written = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    description["files"] = {path.name: checksum(path) for path in written}
    if origin is not None:
        description["origin"] = dataclasses.asdict(origin)
    write_json(folder / MODEL_FILE, description)


def tasks_as_json(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """The tasks as JSON, from which `tasks_saved` makes them."""
    description = {"tasks": {name: dataclasses.asdict(task) for name, task in tasks.items()}}
    instances = {
        name: {"kind": task.kind, "layer": task.layer, "half": task.half}
        for name, task in tasks.items()
        if task.standard
    }
    return description | ({"instances": instances} if instances else {})


def read_parts(
    folder: Path, attention: AttentionKind, dtype: torch.dtype | Literal["auto"]
) -> tuple[Parts, Origin, Mapping[str, str]]:
    """The parts of the model in a folder, its origin, and the checksums of its files when it was saved."""
    # Only what reads files is inside: a fault of this program does not damage a model.
    with damaged(folder):
        description = json.loads((folder / MODEL_FILE).read_bytes())
        names = json.loads((folder / LABELS).read_bytes())
        tasks = tasks_saved(description)
        labels = {name: Labels(names[name]) for name in tasks}
        gates = _gates_in(folder, description["gates"])
        encoder = _encoder_class(tasks).load(folder, attention=attention, dtype=dtype)
        require_decoders(folder, tasks, labels, encoder.hidden)
        return Parts(encoder, tasks, labels, gates), origin_of(folder), description.get("files", {})


def _encoder_class(tasks: Mapping[str, Task]) -> Any:
    """`Encoder`, or the class of the tasks' own kind of model, which loads in the same way."""
    own = own_model_of(tasks)
    return Encoder if own is None else resolve_name(added(lambda feature: feature.own_models)[own].encoder)


def _gates_in(folder: Path, description: Mapping[str, Any] | None) -> Gates | None:
    if description is None:
        return None
    numbers = description["layers"] * description["heads"] * max(1, len(description.get("masks", ())))
    require_stored_numbers(numbers, stored_in(folder, "decoders"), MODEL_FILE)
    return gates_from(description)


def require_decoders(
    folder: Path, tasks: Mapping[str, Task], labels: Mapping[str, Labels], hidden: int
) -> None:
    """Raise `InputError` if decoders would be much larger than their weights in a folder."""
    with torch.device("meta"):
        made = nn.ModuleList([task.new_decoder(hidden, labels[name]) for name, task in tasks.items()])
    require_fitting(made, stored_in(folder, "decoders"), MODEL_FILE)


def load_weights(model: nn.Module, folder: Path, files: Mapping[str, str]) -> None:
    """Load the weights that the encoder's own files do not hold.

    Raises `InputError` if they do not fit the model, if a file does not have its checksum in `files`, and for
    values that are not finite.
    """
    with damaged(folder):
        problems = model.load_state_dict(load_file(folder / DECODERS), strict=False)
    missing = [key for key in problems.missing_keys if not key.startswith("encoder.")]
    if wrong := missing + problems.unexpected_keys:
        raise InputError(
            f"{folder / DECODERS} does not fit {MODEL_FILE} (first at {wrong[0]}): restore the files, or "
            "train again"
        )
    require_files(folder, files, f"this model ({MODEL_FILE}): put it back, or train again")
    if broken := not_finite(model.named_parameters()):
        raise InputError(
            f"{folder}: {broken[0]} has values that are not finite ({counted(len(broken), 'parameter')} in "
            "all): its training diverged; train again with lower learning rates"
        )


def require_files(folder: Path, files: Mapping[str, str], advice: str) -> None:
    """Raise `InputError` if a file is missing, or does not have the checksum that it was saved with."""
    for name, saved in files.items():
        path = folder / name
        if not path.is_file() or checksum(path) != saved:
            what = "not what" if path.is_file() else "missing, and"
            raise InputError(f"{path} is {what} was saved with {advice}")


def weights_checksum(model: nn.Module) -> int:
    """A checksum of a model's weights, whatever device they are on."""
    total = 0
    for name, value in model.state_dict().items():
        numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        total = zlib.crc32(numbers, zlib.crc32(name.encode(), total))
    return total


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


RANDOM = ", with random weights at the start"
"""What an encoder's name ends with where training did not start from its pretrained weights."""


def origin_of(folder: Path) -> Origin:
    """What is known of the model in a folder, from the run around it or from what was saved with it."""
    run = Run.of_model(folder)
    if run is not None:
        try:
            return _of_run(Run.open(run.folder))
        except InputError as error:
            return Origin(note=str(error))
    saved = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8")).get("origin", {})
    try:
        return Origin(**saved)
    except TypeError as error:
        raise InputError(
            f"{folder} is of another version of mtl: train again, or save the model again"
        ) from error


def _of_run(run: Run) -> Origin:
    config, status = run.config(), run.status()
    name = (config.get("encoder") or {}).get("name") or ""
    architecture = architecture_in(config)
    if architecture is not None:
        encoder, published = f"{architecture}, trained from scratch", ""
    elif "encoder_fingerprint" in status:
        encoder, published = Path(name).name, ""
    else:
        encoder, published = name, _PUBLISHED.get(name, name)
    if architecture is None and (config.get("encoder") or {}).get("weights") == "random":
        encoder, published = f"{encoder}{RANDOM}", ""
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
    decodes = any(site.attention == "cross" for site in sites)
    rows = [f"| {task} | {of.words(sites)} |" for task, of in heads.items()]
    parts = [
        f"---\n{header.to_yaml()}\n---",
        f"# {name.rpartition('/')[2]}",
        f"A model of [mtl](https://pypi.org/project/mtl-heads/) for {', '.join(tasks)}: "
        + ("an encoder-decoder model." if decodes else "one encoder, and a decoder for each task."),
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
