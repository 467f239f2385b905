"""Probing a run or an encoder from its folder, and heads.parquet, where the figures stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from mtl.analysis.heads_file import write_measures
from mtl.analysis.probe import Mask, index_corpus, masks_of, open_masks, probe
from mtl.config.parse import read_configuration
from mtl.config.schema import CorpusConfig, TrainConfig
from mtl.corpora.load import corpus_fingerprint
from mtl.errors import InputError
from mtl.models.device import Accelerator, Precision, prepare
from mtl.models.encoder import Encoder
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel, word_encoder
from mtl.runs.run import Run, git_revision, versions
from probes.measures.items import PROBE_TARGETS
from probes.measures.table import MADE_BY_PROBING
from tasks.catalogue import TASKS
from tasks.sentence import Sentence
from tasks.twins import task_of

Split = Literal["train", "dev", "test"]
Centroids = Literal["self", "train"]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class ProbeResult:
    """What was measured, and where it was written."""

    heads: pl.DataFrame
    path: Path
    left_out: tuple[str, ...]
    """Tasks that were not probed, and why."""


def probe_run(
    target: str,
    source: CorpusConfig | None = None,
    out: Path | None = None,
    *,
    tasks: Sequence[str] | None = None,
    split: Split = "test",
    masks: bool = True,
    centroids: Centroids = "self",
    final_special: bool = False,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    material: InputCache | None = None,
    progress: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda done: None),
) -> ProbeResult:
    """Measure the heads of a run, or of an encoder by name or folder, and write heads.parquet.

    `source` and `out` default to the run's own corpus and folder, `tasks` to all that the corpus may have
    annotations for. `progress` receives the number of sentences to observe, and gives a function that
    receives how many more are done.
    """
    material = material or InputCache()
    model, encoder, source, folder = _opened(target, source, out, material)
    without_target = [
        name for name in (model.tasks if model is not None else ()) if task_of(name) not in PROBE_TARGETS
    ]
    tasks = [name for name in _tasks_with_files(source) if tasks is None or name in tasks]
    sentences = _single(material.split(source, tasks, split))
    fitted = None
    if centroids == "train" and split != "train":
        fitted = _single(material.split(source, tasks, "train"))
    corpus = index_corpus(sentences, fitted, centroids)
    annotated = tuple(corpus.items)
    if model is None:
        chosen = [Mask("", annotated, None)]
    else:
        chosen = masks_of(model, annotated) if masks else open_masks(model, annotated)
    if not chosen:
        raise InputError(f"{split} has no annotation for the tasks of the run's masks; give another --corpus")
    masked = {name for mask in chosen for name in mask.tasks}
    left_out = [
        f"{name}: {'no mask of its own' if name in annotated else f'no {split} sentence is annotated for it'}"
        for name in tasks
        if name not in masked
    ]
    left_out += [
        f"{name}: it labels no words, which is what heads are probed for"
        if TASKS[task_of(name)].layers
        else f"{name}: its labels are random: no head is probed for them"
        for name in without_target
    ]
    prepare(encoder, accelerator, precision)
    with progress(len(chosen) * (len(sentences) + len(fitted or ()))) as advance:
        measured = [
            probe(encoder, corpus, mask, final_special=final_special, advance=advance) for mask in chosen
        ]
    heads = pl.concat(measured)
    settings = {
        "target": target,
        "split": split,
        "sentences": str(len(sentences)),
        "corpus": corpus_fingerprint(source, tasks, (split,) if fitted is None else (split, "train")),
        "masks": str(masks and model is not None and model.gates is not None).lower(),
        "centroids": centroids,
        "final_special": str(final_special).lower(),
        "versions": json.dumps(versions()),
        "git": git_revision() or "",
        # Only where it is not the default: tables from before it could be chosen are compared with others.
        "precision": None if precision == "32-true" else precision,
    }
    path = folder / "heads.parquet"
    write_measures(path, heads, MADE_BY_PROBING, settings)
    return ProbeResult(heads, path, tuple(left_out))


def _opened(
    target: str, source: CorpusConfig | None, out: Path | None, material: InputCache
) -> tuple[JointModel | None, Encoder, CorpusConfig, Path]:
    """A run's or an encoder's model, its corpus and the folder to write to."""
    folder = Path(target)
    if (folder / "config.yaml").is_file():
        run = Run.open(folder)
        model = JointModel.from_pretrained(run.model)
        given = source or read_configuration(TrainConfig, run.folder / "config.yaml").corpus
        return model, word_encoder(model, "mtl probe"), given, out or run.folder
    if source is None or out is None:
        missing = "--corpus=FOLDER" if source is None else "--out=FOLDER"
        raise InputError(f"{target} is not a run (no config.yaml); for an encoder give {missing}")
    if (folder / "model.json").is_file():
        # A run's model without the run: its gates must not be lost.
        model = JointModel.from_pretrained(folder)
        return model, word_encoder(model, "mtl probe"), source, out
    if (folder / "encoder.json").is_file():
        return None, Encoder.load(folder).eval(), source, out
    return None, Encoder.from_pretrained(target).eval(), source, out


def _tasks_with_files(source: CorpusConfig) -> tuple[str, ...]:
    """The tasks that a corpus may have annotations for."""
    return tuple(
        name for name in PROBE_TARGETS if source.path is not None or getattr(source, name) is not None
    )


def _single(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences without the pairs, which have no labels of words to probe for."""
    return [sentence for sentence in sentences if sentence.second is None]
