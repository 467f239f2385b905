"""Probe a run, or an encoder by name or folder, and write the values into heads.parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import polars as pl

from mtl.analysis.measuring import Progress, silent
from mtl.analysis.probing.probe import index_corpus, probe_heads
from mtl.config.instances import Instance
from mtl.config.parse import configuration_from, read_configuration
from mtl.config.schema import CorpusConfig, Split, TrainConfig
from mtl.corpora.load import corpus_fingerprint, corpus_read, with_files
from mtl.errors import InputError
from mtl.files import check_file_place, whole_file
from mtl.heads.arguments import is_iterable, one_of, path_or_hub_name, short_text, yes_or_no
from mtl.models.head_scales import Mask
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, Precision, open_target, prepare
from mtl.models.tapped import WordReader
from mtl.probes.measures.corpus import (
    BY_KIND,
    CONSTITUENTS,
    PROBE_TARGETS,
    Constituents,
    LabelledSpan,
    ProbeTarget,
)
from mtl.probes.measures.corpus import KINDS as PROBED
from mtl.probes.measures.examples import ExampleProbe
from mtl.probes.measures.groups import MADE_BY_PROBING
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import ExampleTables
from mtl.runs.folder.content import git_revision, versions
from mtl.runs.folder.run_tables import check_place, write_measures
from mtl.tasks.catalogue import KINDS, TASKS
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task

Centroids = Literal["self", "train"]


@dataclass(frozen=True)
class ProbeResult:
    """What was measured, and where it was written."""

    heads: pl.DataFrame
    """Rows of heads.parquet."""
    path: Path
    left_out: tuple[str, ...]
    """Lines on tasks, sentences and heads that were not probed, with the reasons."""
    notes: tuple[str, ...] = ()
    """Other lines that a reader of the values should know."""


def probe_run(
    target: str | Path,
    source: CorpusConfig | None = None,
    out: str | Path | None = None,
    *,
    tasks: Sequence[str] | None = None,
    split: Split = "test",
    masks: bool = True,
    centroids: Centroids = "self",
    constituents: Constituents = "lowest",
    final_special: bool = False,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    revision: str | None = None,
    instances: Mapping[str, Instance] | None = None,
    material: InputCache | None = None,
    progress: Progress = silent,
) -> ProbeResult:
    """Measure the heads of a run, or of an encoder by name or folder, and write heads.parquet.

    What all heads do in a few sentences is written next to it (`mtl.probes.measures.examples`).

    Of an encoder-decoder model, the encoder's heads are measured, on annotated sources: its own corpus does
    not label words.

    Args:
        target: The folder of a run, a saved model or an encoder, or the name of a model or encoder on the
            hub.
        source: The corpus; `None`: the run's own. Needed for an encoder and for an encoder-decoder model.
        out: The folder of heads.parquet; `None`: the run's. Needed for an encoder.
        tasks: The tasks to probe for; `None`: all tasks that the corpus may be annotated for.
        split: Which split of the corpus.
        masks: Whether the run's masks are applied.
        centroids: The split whose centroids clustering uses: the split itself, or train.
        constituents: Which constituents are probed (`mtl.probes.measures.corpus.CONSTITUENTS`).
        final_special: As in `ProbeSettings`.
        accelerator: Device.
        precision: Precision of the transformer's computations.
        revision: A branch, tag or commit of a model or an encoder on the hub.
        instances: Tasks with names of your own (`TrainConfig.instances`); `None`: those of the run's model.
        material: Reads corpora.
        progress: As in `mtl.analysis.measuring`.

    Raises:
        InputError: an argument is wrong; the run or encoder does not exist; `source` or `out` is missing; no
            sentence is annotated; or the table cannot be written.
    """
    target, out = (
        str(path_or_hub_name(target, "target")),
        None if out is None else path_or_hub_name(out, "out"),
    )
    _check_arguments(source, tasks, instances)
    for value, what, kind in (
        (split, "split", Split), (centroids, "centroids", Centroids),
        (constituents, "constituents", Constituents),
        (accelerator, "accelerator", Accelerator), (precision, "precision", Precision),
    ):  # fmt: skip
        one_of(value, what, get_args(kind))
    masks, final_special = yes_or_no(masks, "masks"), yes_or_no(final_special, "final_special")
    material = material or InputCache()
    if out is not None or (Path(target) / "config.yaml").exists():
        check_place((out or Path(target)) / "heads.parquet")
        check_file_place((out or Path(target)) / heads_table.FILE)
    model, encoder, source, folder = _opened(target, revision, source, out)
    path = folder / "heads.parquet"
    own = {name: made.task(name) for name, made in (instances or {}).items()}
    named, targets = probed_tasks(own | ({} if model is None else model.tasks), constituents)
    for name in () if tasks is None else tasks:
        one_of(name, "tasks", targets)
    left_out: list[str] = []
    notes: list[str] = []
    if encoder.without:
        kinds = " and ".join(encoder.without)
        left_out.append(f"heads of {kinds} attention: words of the annotated source do not attend by them")
    elif model is not None:
        probed = [name in targets for name in model.tasks]
        left_out += [
            _without_target(task) for task, has in zip(model.tasks.values(), probed, strict=True) if not has
        ]
    annotated_for = tasks_with_files(source, named)
    read_for = {name: task for name, task in annotated_for.items() if tasks is None or name in tasks}
    if not read_for:
        raise InputError(
            f"{target}: its corpus annotates no words, which is what heads are probed for "
            f"({', '.join(targets)}); use --corpus=FOLDER with annotated sentences"
        )
    splits = [split, "train"] if centroids == "train" and split != "train" else [split]
    read = [single_sentences(material.split(source, read_for, name)) for name in splits]
    if encoder.without:
        sources = [readable_sources(encoder, part, name) for part, name in zip(read, splits, strict=True)]
        read = [part.sentences for part in sources]
        left_out += [line for part in sources for line in part.left_out]
        notes += [line for part in sources for line in part.notes]
    sentences, fitted = read[0], read[1] if len(read) > 1 else None
    corpus = index_corpus(sentences, fitted, centroids, targets)
    annotated = tuple(corpus.items)
    untrained = ", ".join(name for name in annotated if model is not None and name not in model.tasks)
    if untrained and not encoder.without:
        notes.append(f"the model was not trained on {untrained}: its heads learned other tasks")
    chosen = [Mask("", annotated, None)] if model is None else model.scales.masks(annotated, gated=masks)
    if not chosen:
        raise InputError(f"{split} has no annotation for the tasks of the run's masks; use another --corpus")
    masked = {name for mask in chosen for name in mask.tasks}
    left_out += [
        f"{name}: {'no mask of its own' if name in annotated else f'no {split} sentence is annotated for it'}"
        for name in read_for
        if name not in masked
    ]
    prepare(encoder, accelerator, precision)
    seen = [ExampleProbe(corpus, mask.name, final_special) for mask in chosen]
    with progress(len(chosen) * (len(sentences) + len(fitted or ()))) as advance:
        measured = [
            probe_heads(
                encoder, corpus, mask, final_special=final_special, advance=advance, watch=examples.update
            )
            for mask, examples in zip(chosen, seen, strict=True)
        ]
    heads = pl.concat(measured)
    settings = {
        "target": target,
        "split": split,
        "sentences": str(len(sentences)),
        "corpus": corpus_fingerprint(source, read_for, tuple(splits)),
        "masks": str(masks and model is not None and model.gates is not None).lower(),
        "centroids": centroids,
        # Tables of the lowest constituents are compared with those that were made without this choice.
        **({} if constituents == "lowest" else {"constituents": constituents}),
        "final_special": str(final_special).lower(),
        "versions": json.dumps(versions()),
        "git": git_revision() or "",
        "precision": precision,
    }
    write_measures(path, heads, MADE_BY_PROBING, settings)
    rows = pl.concat([examples.table(encoder.tap.sites) for examples in seen])
    with whole_file(folder / heads_table.FILE) as temporary:
        heads_table.write_examples(temporary, ExampleTables(seen[0].sentences, rows))
    return ProbeResult(heads, path, tuple(left_out), tuple(notes))


def _check_arguments(
    source: CorpusConfig | None, tasks: Sequence[str] | None, instances: Mapping[str, Instance] | None
) -> None:
    if source is not None and not isinstance(source, CorpusConfig):
        raise InputError(f"source={short_text(source)}: use CorpusConfig(FOLDER)")
    if instances is not None and not (
        isinstance(instances, Mapping)
        and all(isinstance(name, str) and isinstance(made, Instance) for name, made in instances.items())
    ):
        raise InputError(f"instances={short_text(instances)}: use {{NAME: Instance(KIND)}}")
    if tasks is not None and not is_iterable(tasks):
        raise InputError(f"tasks={short_text(tasks)}: use a list of tasks")


def probed_tasks(
    tasks: Mapping[str, Task], constituents: Constituents = "lowest"
) -> tuple[dict[str, Task], dict[str, ProbeTarget]]:
    """Those of the tasks that are probed under names of their own, and the targets of all probed tasks."""
    named = {
        name: task
        for name, task in tasks.items()
        if task.kind in BY_KIND and name not in PROBE_TARGETS and 1 in task.sentences
    }
    of_kinds = {**BY_KIND, "constituents": CONSTITUENTS[constituents]}
    own = {name: of_kinds[kind] for name, kind in PROBED.items()}
    return named, {**own, **{name: target_of(task, of_kinds[task.kind]) for name, task in named.items()}}


def target_of(task: Task, target: ProbeTarget) -> ProbeTarget:
    """What is probed in a task, read from the task's layer; `target` reads that of its kind."""
    field = KINDS[task.kind].layers[0]
    if field == task.layer:
        return target

    def items_of(sentence: Sentence) -> Iterable[LabelledSpan]:
        return target.items(sentence.with_layers({field: sentence.layer(task.layer)}))

    return target._replace(items=items_of)


def _without_target(task: Task) -> str:
    """A line on why heads cannot be probed for a task."""
    if task.drawn:
        return f"{task.name}: its labels are random: no head is probed for them"
    if task.loss_unit == "word":
        return f"{task.name}: no probe is for its labels"
    if 1 not in task.sentences:
        return f"{task.name}: it labels pairs, and heads are probed on single sentences"
    return f"{task.name}: heads are probed for labels of words and classes of sentences, and it has none"


def _opened(
    target: str, revision: str | None, source: CorpusConfig | None, out: Path | None
) -> tuple[JointModel | None, WordReader, CorpusConfig, Path]:
    """A run's or an encoder's model, its corpus and the folder to write to."""
    is_run = (Path(target) / "config.yaml").exists()
    if not is_run and (source is None or out is None):
        missing = "--corpus=FOLDER" if source is None else "--out=FOLDER"
        raise InputError(f"{target} is not a run (no config.yaml); for a model or an encoder use {missing}")
    encoder, model, run = open_target(target, revision)
    if run is None:
        assert source is not None
        assert out is not None
        return model, encoder.word_reader(), source, out
    if source is None and encoder.does:
        raise InputError(
            f"{target} {encoder.does}, and its own corpus labels no words: use --corpus=FOLDER of annotated "
            "sources, such as 'mtl predict --output=json' of a run on words makes"
        )
    given = source or corpus_read(read_configuration(TrainConfig, run.folder / "config.yaml"))
    return model, encoder.word_reader(), given, out or run.folder


class _Readable(NamedTuple):
    """Annotated sentences on which a model can be probed, and lines for `ProbeResult`."""

    sentences: list[Sentence]
    left_out: list[str]
    notes: list[str]


def readable_sources(encoder: WordReader, sentences: Sequence[Sentence], split: str) -> _Readable:
    """The sentences in which every word has pieces of its own."""
    covered = encoder.covers(sentences)
    readable = [sentence for sentence, complete in zip(sentences, covered, strict=True) if complete]
    left_out, notes = [], []
    if lost := len(sentences) - len(readable):
        left_out.append(f"{lost:,} of {len(sentences):,} {split} sentences: a subword covers several words")
    if joined := sum(not sentence.text for sentence in readable):
        notes.append(
            f"{joined:,} of {len(readable):,} {split} sentences have no text as it was written (key 'text'): "
            "the model reads blanks between all of their words"
        )
    return _Readable(readable, left_out, notes)


def tasks_with_files(source: CorpusConfig, named: Mapping[str, Task]) -> dict[str, Task]:
    """The probed tasks that a corpus may be annotated for: those of the program, and `named` ones."""
    kinds = {name: TASKS[name] for name in PROBE_TARGETS}
    found = with_files(source, kinds | {name: type(task) for name, task in named.items()})
    return {name: named.get(name) or TASKS[name]() for name in found}


def single_sentences(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The sentences that are no pairs; words of pairs have no labels to probe for."""
    return [sentence for sentence in sentences if sentence.second is None]


_SETTINGS = (
    "target",
    "split",
    "centroids",
    "constituents",
    "final_special",
    "tasks",
    "source",
    "out",
    "instances",
)
"""Keys of a job's settings that are arguments of probing; a `corpus` replaces the `source`."""


def probed(settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame:
    """Measure what heads attend to and encode, by settings alone (`MeasureGroup.by_settings`)."""
    arguments = {key: settings[key] for key in _SETTINGS if key in settings}
    if "source" in arguments:
        arguments["source"] = configuration_from(CorpusConfig, arguments["source"], "corpus")
    if "instances" in arguments:
        made = arguments["instances"].items()
        arguments["instances"] = {name: configuration_from(Instance, values) for name, values in made}
    if settings.get("corpus") is not None:
        arguments["source"] = CorpusConfig(settings["corpus"])
    result = probe_run(**arguments, material=inputs)
    for reason in result.left_out:
        print(f"not probed: {reason}")
    for note in result.notes:
        print(f"note: {note}")
    print(f"wrote {result.path}")
    return result.heads
