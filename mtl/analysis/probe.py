"""Probe a run, or an encoder by name or folder, and write the values into heads.parquet.

`probe_heads` works on an encoder in memory: records of what heads do, and what each is good at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.analysis.measuring import Progress, silent
from mtl.analysis.trained import BATCH_TOKENS
from mtl.config.instances import Instance
from mtl.config.parse import configuration_from, read_configuration
from mtl.config.schema import CorpusConfig, Split, TrainConfig
from mtl.corpora.load import corpus_fingerprint, corpus_read, with_files
from mtl.errors import InputError, as_input_error
from mtl.files import check_file_place, whole_file
from mtl.heads.arguments import is_iterable, one_of, path_or_hub_name, short_text, yes_or_no
from mtl.heads.gates import Mask
from mtl.models.batches import buckets
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, Precision, open_target, prepare
from mtl.models.passes import in_evaluation_mode
from mtl.models.subwords import Subwords, Tensors, Tokens
from mtl.models.tapped import Observation, WordReader
from mtl.probes.measures import probe as probe_module
from mtl.probes.measures.attention import ExampleProbe
from mtl.probes.measures.corpus import (
    BY_KIND,
    CONSTITUENTS,
    PROBE_TARGETS,
    Constituents,
    LabelledSpan,
    ProbeCorpus,
    ProbeSettings,
    ProbeTarget,
)
from mtl.probes.measures.corpus import KINDS as PROBED
from mtl.probes.measures.groups import MADE_BY_PROBING, probes_for
from mtl.probes.measures.probe import DRAWS, NOTHING, FittedProbe, HeadRecords, random_projections
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import ExampleTables
from mtl.runs.folder.run import git_revision, versions
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

    What all heads do in a few sentences is written next to it (`mtl.probes.measures.attention`).

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
        check_place((out or Path(target)) / "heads.parquet", Path(target))
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


def index_corpus(
    sentences: Sequence[Sentence],
    fitted_sentences: Sequence[Sentence] | None = None,
    choice: str = "self",
    targets: Mapping[str, ProbeTarget] = PROBE_TARGETS,
) -> ProbeCorpus:
    """A corpus indexed for probing (`ProbeCorpus.index`); raises `InputError` if nothing can be probed."""
    with as_input_error():
        return ProbeCorpus.index(sentences, fitted_sentences, choice, targets)


def probe_heads(
    encoder: WordReader,
    corpus: ProbeCorpus,
    mask: Mask,
    *,
    final_special: bool = False,
    seed: int = 0,
    draws: int = DRAWS,
    kept: int = probe_module.KEPT,
    advance: Callable[[int], None] = lambda sentences: None,
    watch: Callable[[HeadRecords], None] = lambda records: None,
) -> pl.DataFrame:
    """The tidy table of all measures on an encoder's heads under one mask.

    `final_special`, `seed` and `draws` are those of `ProbeSettings`. At most `kept` bytes of records are kept
    between passes. `advance` receives the number of sentences of each finished batch; `watch` receives the
    records of each batch of the corpus, those of some batches twice.
    """
    probes = probes_for(
        ProbeSettings(
            corpus,
            mask.name,
            mask.tasks,
            encoder.layers,
            encoder.heads,
            encoder.head_dim,
            final_special,
            seed,
            encoder.causal,
            draws,
        )
    )
    device = next(encoder.parameters()).device
    scale = None if mask.head_scale is None else mask.head_scale.to(device)

    def observed(batches: ObservedCorpus, batch: int) -> HeadRecords:
        records = batches[batch]
        advance(len(records.sentences))
        return records

    hidden = encoder.transformer.config.hidden_size
    projections = random_projections(encoder.layers, hidden, encoder.head_dim, draws, seed)
    read = ObservedCorpus(encoder, corpus.sentences, scale, projections=projections)
    fitted_records = None
    if corpus.fitted_sentences is not None and any(isinstance(probe, FittedProbe) for probe in probes):
        fitted = ObservedCorpus(encoder, corpus.fitted_sentences, scale, projections=projections)
        fitted_records = (observed(fitted, batch) for batch in range(len(fitted)))

    def watched(batch: int) -> HeadRecords:
        records = observed(read, batch)
        watch(records)
        return records

    probe_module.run_probes(len(read), watched, probes, fitted_records, kept)
    return heads_table.at_sites(pl.concat([probe.compute() for probe in probes]), encoder.tap.sites)


class ObservedCorpus:
    """A corpus in batches of sentences of nearly equal length, observed under a mask over the heads.

    A mask scales outputs, not attention: a head whose gate is 0 still has a most attended word, but its
    output is zero.

    Args:
        encoder: The encoder.
        sentences: The corpus.
        head_scale: The mask; `None`: all heads open.
        batch_tokens: Maximum number of padded positions per batch.
        projections: Maps that are applied to the input of each layer's attention; `None`: none.

    Raises:
        InputError: a sentence without words.
    """

    def __init__(
        self,
        encoder: WordReader,
        sentences: Sequence[Sentence],
        head_scale: Float[Tensor, "site head"] | None = None,
        batch_tokens: int = BATCH_TOKENS,
        projections: Float[Tensor, "layer hidden draw head_dim"] | None = None,
    ) -> None:
        empty = [number for number, sentence in enumerate(sentences, 1) if not len(sentence)]
        if empty:
            raise InputError(f"sentence {empty[0]} has no words: leave it out")
        self.encoder, self.head_scale, self.projections = encoder, head_scale, projections
        self._corpus = encoder.tokenizer.encode_sentences(sentences)
        lengths = [encoder.tokenizer.length(tokens) for tokens in self._corpus]
        self.batches = buckets(lengths, batch_tokens, None, None)
        """The numbers of the sentences in each batch."""

    def __len__(self) -> int:
        return len(self.batches)

    @torch.inference_mode()
    def __getitem__(self, batch: int) -> HeadRecords:
        """Observe one batch; raises `IndexError` past the last one, so that iteration ends."""
        observation, positions = self.observed(batch)
        numbers, device = self.batches[batch], positions.row.device
        if self.projections is not None:
            self.projections = self.projections.to(device, non_blocking=True)
        return records(
            observation,
            positions,
            torch.tensor(numbers),
            torch.tensor([len(self._corpus[number]) for number in numbers]),
            self._cut_out().to(device, non_blocking=True),
            self.encoder.tokenizer,
            self.projections,
        )

    @torch.inference_mode()
    def observed(self, batch: int) -> tuple[Observation, WordPositions]:
        """The observation of a batch, by pieces, and where its words are in it."""
        tokens = [self._corpus[number] for number in self.batches[batch]]
        subwords = self.encoder.tokenizer.collate(tokens)
        device = next(self.encoder.parameters()).device
        with in_evaluation_mode(self.encoder):
            observation = self.encoder.observe(subwords.to(device), self.head_scale)
        return observation, word_positions(subwords, tokens, self.encoder.tokenizer).to(device)

    def _cut_out(self) -> Bool[Tensor, "layer head"]:
        tap = self.encoder.tap
        cut_out = torch.ones(len(tap.sites), tap.heads, dtype=torch.bool)
        for site, heads in enumerate(tap.remaining):
            cut_out[site, list(heads)] = False
        return cut_out


@dataclass(frozen=True, slots=True)
class WordPositions(Tensors):
    """Where the words of a batch are in its rows; the words of all sentences follow each other."""

    rows: Int[np.ndarray, " word"]
    """The row that owns the word, on the host."""
    row: Int[Tensor, " word"]
    """The same beside the other tensors."""
    first: Int[Tensor, " word"]
    """The position of its first piece in that row."""
    pieces: Int[Tensor, " word"]
    """Its number of pieces."""
    more: Int[Tensor, "3 _"]
    """Word, row and position of every piece that is not the first of its word."""
    column: Int[Tensor, "row subword"]
    """The column of attended words that each position counts for: 0 for the first special token, 1 + the
    word's place in the row for each piece (owned by the row or not), `width` + 1 for the final special token,
    `width` + 2 for all others."""
    base: Int[Tensor, " row"]
    """The number of each row's first word in its sentence."""
    width: int
    """The largest number of words in a row."""
    last: bool = False
    """Whether a word is read at its last piece only: in causal models, no other piece has seen all of it."""

    def mean(self, pieces: Float[Tensor, "row subword ..."]) -> Float[Tensor, "word ..."]:
        """The mean over each word's pieces, or the value of its last piece (`last`)."""
        if self.last:
            return pieces[self.row, self.first + self.pieces - 1]
        # Most words are one piece, so take every first piece and change only words that have more.
        words = pieces[self.row, self.first]
        word, row, position = self.more
        if len(word):
            words.index_add_(0, word, pieces[row, position])
            words /= self.pieces.to(words.dtype).view(-1, *[1] * (words.dim() - 1))
        return words

    def attention(
        self, pieces: Float[Tensor, "row head subword subword"]
    ) -> Float[Tensor, "query head column"]:
        """The attention of words, and then of each row's first special token, to the columns of `column`.

        It is summed over the pieces of an attended word, and averaged over those of an attending word.
        """
        row, head, subword, _ = pieces.shape
        member = functional.one_hot(self.column, self.width + 3)[..., : self.width + 2].to(pieces.dtype)
        to_words = (pieces.reshape(row, head * subword, subword) @ member).view(row, head, subword, -1)
        return torch.cat([self.mean(to_words.transpose(1, 2)), to_words[:, :, 0]])


def word_positions(subwords: Subwords, tokens: Sequence[Tokens], tokenizer: Any) -> WordPositions:
    """Where the words of a batch are, on the CPU."""
    slot, nowhere = subwords.slot, subwords.sentences * subwords.width
    row, position = (slot != nowhere).nonzero(as_tuple=True)
    # Rows and the words that they own both ascend, so a word's pieces are adjacent.
    _, word, pieces = slot[row, position].unique_consecutive(return_inverse=True, return_counts=True)
    begin = pieces.cumsum(0) - pieces
    further = torch.ones(len(word), dtype=torch.bool)
    further[begin] = False

    counts = [sentence.counts for sentence in tokens]
    rows, _ = tokenizer.rows(counts)
    length = torch.from_numpy(rows.length)
    word_of_piece = np.concatenate([np.repeat(np.arange(len(count)), count) for count in counts])
    in_sentence = torch.from_numpy(word_of_piece[rows.pieces])
    base = in_sentence[length.cumsum(0) - length]
    in_row = in_sentence - base.repeat_interleave(length)
    width = int(in_row.max()) + 1

    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    across = torch.arange(slot.shape[1])
    column = torch.full_like(slot, width + 2)
    column[(across >= before) & (across < before + length[:, None])] = 1 + in_row
    if before:
        column[:, 0] = 0
    if after:
        column[torch.arange(len(length)), before + length + after - 1] = width + 1
    more = torch.stack([word[further], row[further], position[further]])
    owner = row[begin]
    return WordPositions(
        owner.numpy(), owner, position[begin], pieces, more, column, base, width, last=tokenizer.causal
    )


def records(
    observation: Observation,
    positions: WordPositions,
    sentences: Int[Tensor, " batch"],
    lengths: Int[Tensor, " batch"],
    cut_out: Bool[Tensor, "layer head"],
    tokenizer: Any,
    projections: Float[Tensor, "layer hidden draw head_dim"] | None = None,
) -> HeadRecords:
    """Reduce an observation to word level, and project the inputs of attention if projections are given.

    `sentences` and `lengths` are as in `HeadRecords`; `cut_out` marks heads that were cut out of the model.
    """
    like = observation.outputs[0]
    words, width = len(positions.row), positions.width
    shape = (words + len(positions.base), *cut_out.shape)
    word = torch.empty(shape, dtype=torch.long, device=like.device)
    peak, root, final = (like.new_full(shape, -1) for _ in range(3))
    outputs = like.new_empty(words, *cut_out.shape, like.shape[-1])
    draws = 0 if projections is None else projections.shape[2]
    projected = like.new_empty(words, len(cut_out), draws, like.shape[-1])
    for layer, attention in enumerate(observation.attentions):
        queries = positions.attention(attention)
        peak[:, layer], word[:, layer] = queries[..., 1 : width + 1].max(-1)
        if tokenizer.prefix:
            root[:, layer] = queries[..., 0]
        if tokenizer.suffix:
            final[:, layer] = queries[..., width + 1]
        outputs[:, layer] = positions.mean(observation.outputs[layer])
        if projections is not None:
            read = positions.mean(observation.inputs[layer])
            projected[:, layer] = torch.einsum("wi,ijd->wjd", read, projections[layer].to(read))
    word += torch.cat([positions.base[positions.row], positions.base])[:, None, None]
    word.masked_fill_(cut_out, NOTHING)
    if not tokenizer.prefix:
        word[words:] = NOTHING
    row = torch.from_numpy(positions.rows)
    return HeadRecords(sentences, lengths, row, word, peak, root, final, outputs, projected)
