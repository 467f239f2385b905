"""Worth by ablation: what a task's score loses when a head is closed, as rows of heads.parquet.

Layers below the closed head are computed once per batch. Several ablations share a pass, as copies of the
batch's rows under head scales of their own (`AblatedCopies`).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.analysis.importance import of_tasks
from mtl.analysis.measuring import Progress, silent
from mtl.analysis.trained import KeyedTable, TrainedRun, model_fingerprint, opened_by
from mtl.errors import InputError
from mtl.features import added
from mtl.heads.gates import Mask
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap
from mtl.models.batches import BATCH_PAIRS, Batch
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.passes import in_evaluation_mode
from mtl.probes.measures.groups import BY_NAME
from mtl.probes.statistics.compared_runs import DRAWS, ScoreLosses, Units, score_losses, units_of
from mtl.probes.tables import heads_table
from mtl.tasks.decoders.decoder import copied, in_step, steps_of
from mtl.tasks.sentence import Sentence

Kind = Literal["head", "all_but_one", "layer"]
By = Literal["zero", "mean"]
KINDS: tuple[Kind, ...] = ("head", "all_but_one", "layer")


@dataclass(frozen=True)
class Ablation:
    """Heads closed together; sites and heads are numbered as in the uncut model."""

    kind: Kind | Literal["chosen"]
    """`head`, `all_but_one` and `layer` as in `ablations`; `chosen`: heads that were chosen by hand."""
    closed: frozenset[tuple[int, int]]
    """Pairs of site and head."""
    site: int | None = None
    """The site that is measured; `None` for chosen heads."""
    head: int | None = None
    """The head that is measured: the closed one, or the only one left open; `None` for other kinds."""

    @property
    def sites(self) -> frozenset[int]:
        """The sites with a closed head."""
        return frozenset(site for site, _ in self.closed)

    def scale(self, sites: int, heads: int) -> Float[Tensor, "site head"]:
        """1 at open heads and 0 at closed ones."""
        scale = torch.ones(sites, heads)
        for site, head in self.closed:
            scale[site, head] = 0.0
        return scale


def ablations(kind: Kind, remaining: Sequence[Sequence[int]]) -> list[Ablation]:
    """Every ablation of one kind, given the heads that the model has (`HeadTap.remaining`).

    `head` closes one head; `all_but_one` all heads of a site except one; `layer` all heads of a site.
    Raises `InputError` for another kind.
    """
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: use one of {', '.join(KINDS)}")
    made = []
    for site, heads in enumerate(remaining):
        everything = frozenset((site, head) for head in heads)
        if kind == "layer":
            made += [Ablation(kind, everything, site)] if heads else []
        elif kind == "head":
            made += [Ablation(kind, frozenset({(site, head)}), site, head) for head in heads]
        elif kind == "all_but_one" and len(heads) > 1:
            made += [Ablation(kind, everything - {(site, head)}, site, head) for head in heads]
    return made


@dataclass(frozen=True)
class SentenceCounts:
    """The counts from which a task's score follows (`TaskMetric.score`), without and with each ablation."""

    unchanged: Float[np.ndarray, "sentence count"] | Int[np.ndarray, "sentence count"]
    ablated: Float[np.ndarray, "ablation sentence count"] | Int[np.ndarray, "ablation sentence count"]


Counts = dict[str, SentenceCounts]
"""By task."""


class Ablator:
    """Decodes batches under many ablations.

    Args:
        model: Encoder and decoders.
        chosen: The ablations. Masks stay applied.
        means: By mask, the outputs that replace those of closed heads (`mean_outputs`); `None`: zeros.
        masks: The masks to apply; `None`: the model's own.
        passes: Maximum number of padded subwords per pass; `None`: as `AblatedCopies.tokens` says.
    """

    def __init__(
        self,
        model: JointModel,
        chosen: Sequence[Ablation],
        *,
        means: Mapping[str, Float[Tensor, "site head head_dim"]] | None = None,
        masks: Sequence[Mask] | None = None,
        passes: int | None = None,
    ) -> None:
        self.model, self.chosen = model, tuple(chosen)
        encoder = model.encoder
        self.masks = model.scales.masks(tuple(model.tasks)) if masks is None else list(masks)
        self.device = next(model.parameters()).device
        self._on_device = {
            mask.name: (
                None if mask.head_scale is None else mask.head_scale.to(self.device),
                None if means is None else means[mask.name].to(self.device),
            )
            for mask in self.masks
        }
        own = added(lambda feature: feature.own_models).get(encoder.kind)
        self._copies: AblatedCopies = (AnnotatedCopies if own is None else resolve_name(own.copies))(model)
        self.budget = passes or self._copies.tokens
        self._scales = [ablation.scale(len(encoder.tap.sites), encoder.tap.heads) for ablation in self.chosen]

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Counts:
        """The counts of one batch in all tasks that it is annotated in.

        Its rows are copied, so batches should be small (a few hundred subwords on a CPU).
        """
        counts: Counts = {}
        batch = batch.to(self.device)
        with in_evaluation_mode(self.model):
            for mask in self.masks:
                tasks = [name for name in mask.tasks if name in batch.rows]
                if tasks:
                    counts |= self._under(mask, of_tasks(batch, tasks))
        return counts

    def _under(self, mask: Mask, batch: Batch) -> Counts:
        scale, fill = self._on_device[mask.name]
        unchanged = self._copies.unchanged(batch, scale)
        # An ablation changes nothing if the mask closes all of its heads already.
        closing = [
            index
            for index, ablation in enumerate(self.chosen)
            if mask.head_scale is None or any(mask.head_scale[place] != 0 for place in ablation.closed)
        ]
        results = [unchanged] * len(self.chosen)
        for group in self._passes(closing, batch):
            ablations = torch.stack([self._scales[index] for index in group])
            decoded = self._copies.ablated(batch, scale, ablations, fill)
            for index, counts in zip(group, decoded, strict=True):
                results[index] = counts
        return {
            name: SentenceCounts(
                unchanged[name],
                np.array([counts[name] for counts in results]).reshape(-1, *unchanged[name].shape),
            )
            for name in batch.rows
        }

    def _passes(self, closing: Sequence[int], batch: Batch) -> Iterator[list[int]]:
        """The ablations, grouped into passes that fit the budget.

        On a CPU those of a pass have the same start. Elsewhere the number of passes counts for more than what
        they compute.
        """
        rows, width = batch.subwords.input_ids.shape
        pairs = batch.mask.shape[0] * batch.mask.shape[1] ** 2
        copies = max(1, min(self.budget // max(rows * width, 1), BATCH_PAIRS // max(pairs, 1)))

        def start(index: int) -> int:
            return self._copies.start(self.chosen[index].sites)

        alike = start if self.device.type == "cpu" else lambda index: 0
        for _, group in groupby(sorted(closing, key=start), key=alike):
            together = list(group)
            # Equal shares, since eleven copies take less time as six and five than as ten and one.
            for share in np.array_split(together, -(-len(together) // copies)):
                yield share.tolist()


def joined_counts(parts: Sequence[Counts]) -> Counts:
    """The counts of several batches, concatenated."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: SentenceCounts(
            np.concatenate([part[name].unchanged for part in parts if name in part]),
            np.concatenate([part[name].ablated for part in parts if name in part], axis=1),
        )
        for name in names
    }


def mean_outputs(
    model: JointModel, batches: Iterable[Batch], masks: Sequence[Mask] | None = None
) -> dict[str, Float[Tensor, "site head head_dim"]]:
    """By mask, the mean output of every head over all positions of a corpus that are not padding.

    `masks` is as in `Ablator`.
    """
    device = next(model.parameters()).device
    chosen = model.scales.masks(tuple(model.tasks)) if masks is None else masks
    sums: dict[str, Tensor] = {}
    positions = torch.zeros(len(model.encoder.tap.sites), 1, 1)
    with torch.inference_mode(), in_evaluation_mode(model):
        for batch in batches:
            subwords = batch.subwords.to(device)
            here = [subwords.positions(site.attention) for site in model.encoder.tap.sites]
            positions += torch.stack([mask.sum() for mask in here]).cpu()[:, None, None]
            for mask in chosen:
                scale = None if mask.head_scale is None else mask.head_scale.to(device)
                with model.encoder.tap.observe() as outputs:
                    model.encoder(subwords, scale)
                total = torch.stack(
                    [
                        (output * mask[..., None, None]).double().sum((0, 1))
                        for output, mask in zip(outputs, here, strict=True)
                    ]
                ).cpu()
                sums[mask.name] = sums.get(mask.name, 0.0) + total
    return {name: (total / positions.clamp_min(1)).float() for name, total in sums.items()}


BATCH_TOKENS = {"cpu": 256, "cuda": 2048}
"""By device, the padded subwords in a batch whose rows are copied; chosen by measurements on MiniLM."""
SAVED_EVERY = 30.0
"""Seconds between two saves of the counts so far."""
COUNTS: Mapping[str, Any] = {
    "batch": pl.Int32,
    "task": pl.String,
    "sentences": pl.Int32,
    "type": pl.String,
    "unchanged": pl.List(pl.Float64),
    "ablated": pl.List(pl.Float64),
}
"""The table of the counts so far: a row per batch and task, with the arrays of `SentenceCounts` flattened."""
MEASURE_OF_KIND = {"head": "ablation", "all_but_one": "ablation_all_but_one", "layer": "ablation_layer"}


@dataclass(frozen=True)
class AblationResult:
    """What every task's score loses under every ablation, in percentage points."""

    chosen: tuple[Ablation, ...]
    losses: dict[str, ScoreLosses]
    """By task, in the order of `chosen`."""
    units: dict[str, Units]
    """By task, what resamples draw: documents or sentences."""
    heads: pl.DataFrame
    """Rows of heads.parquet; chosen heads have none."""


def measure_ablation(
    trained: TrainedRun,
    chosen: Sequence[Ablation],
    *,
    by: By = "zero",
    masks: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = silent,
) -> AblationResult:
    """Ablate, test the differences, and write the rows of heads into the run's heads.parquet.

    The next call for the same ablations, model and sentences resumes a process that was killed.

    Args:
        trained: The run, its model and sentences.
        chosen: The ablations.
        by: What replaces the output of closed heads: zeros, or the head's mean output on these sentences.
        masks: Whether the run's masks stay applied.
        draws: Resamples for intervals and p (`score_losses`).
        seed: Seed of the resamples.
        progress: As in `mtl.analysis.measuring`.
    """
    model = trained.model
    batches = list(trained.batches(BATCH_TOKENS[next(model.parameters()).device.type]))
    applied = None if masks else model.scales.masks(tuple(model.tasks), gated=False)
    means = mean_outputs(model, batches, applied) if by == "mean" else None
    ablate = Ablator(model, chosen, means=means, masks=applied)
    partial, key = _partial_table(trained), _key(trained, chosen, by, masks, len(batches))
    parts = _from_rows(partial.read({}, key), len(chosen))
    with progress(len(trained.corpus)) as advance:
        advance(sum(len(batch.sentences) for batch in batches[: len(parts)]))
        saved = time.monotonic()
        for batch in batches[len(parts) :]:
            parts.append(ablate(batch))
            advance(len(batch.sentences))
            if time.monotonic() - saved > SAVED_EVERY:
                partial.put({}, key, _as_rows(parts))
                saved = time.monotonic()
    units = {
        name: units_of([sentence.document for batch in batches for sentence in _of_task(batch, name)])
        for name in trained.tasks
    }
    losses = {
        name: score_losses(
            units[name].sums(counts.unchanged),
            units[name].sums(counts.ablated),
            model.tasks[name].metric().score,
            families=[ablation.kind for ablation in chosen],
            effective=units[name].effective,
            draws=draws,
            seed=seed,
        )
        for name, counts in joined_counts(parts).items()
    }
    heads = _table(trained, chosen, losses, by)
    kinds = dict.fromkeys(ablation.kind for ablation in chosen if ablation.site is not None)
    if kinds:
        replaced = [name for kind in kinds for name in BY_NAME[MEASURE_OF_KIND[kind]].names]
        drawn = json.dumps({name: of_task.name for name, of_task in units.items()})
        trained.write(heads, "ablation", replaced, by=by, masks=masks, draws=draws, seed=seed, units=drawn)
    partial.path.unlink(missing_ok=True)
    return AblationResult(tuple(chosen), losses, units, heads)


def every_ablation(trained: TrainedRun, kinds: Sequence[Kind] = KINDS) -> list[Ablation]:
    """The ablations of these kinds, for all heads that the model has."""
    remaining = trained.model.encoder.tap.remaining
    return [ablation for kind in kinds for ablation in ablations(kind, remaining)]


def ablated(settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Measure ablation of heads, one by one or by layer, by settings alone (`MeasureGroup.by_settings`)."""
    trained = opened_by(settings, inputs, settings["split"])
    measure_ablation(trained, every_ablation(trained, settings["close"]))


Scale = Float[Tensor, "site head"]
Ablations = Float[Tensor, "copy site head"]
Fill = Float[Tensor, "site head head_dim"]
CountsByTask = dict[str, np.ndarray]
"""By task, the metric's counts per sentence, of shape (sentence, count)."""


class AblatedCopies(ABC):
    """Decodes a batch without ablation, and then under ablations that reuse what that pass computed."""

    tokens: int
    """Padded subwords in a pass."""

    @abstractmethod
    def start(self, sites: Iterable[int]) -> int:
        """The first site that a pass computes anew if heads of these sites are closed."""

    @abstractmethod
    def unchanged(self, batch: Batch, scale: Scale | None) -> CountsByTask:
        """The counts without ablation, under the mask `scale` (`None`: no mask)."""

    @abstractmethod
    def ablated(
        self, batch: Batch, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> list[CountsByTask]:
        """The counts under each ablation, for the batch and mask of the last call of `unchanged`.

        `ablations` are on the CPU. They are 0 at closed heads, whose output is replaced by `fill` (`None`:
        zeros). The pass starts at the first `start` of them.
        """


class AnnotatedCopies(AblatedCopies):
    """Annotations: nothing below the first closed head is computed again."""

    def __init__(self, model: JointModel) -> None:
        encoder = model.encoder
        self.model, self.encoder, self.tokens = model, encoder, model.evaluation_tokens()
        self._replay = LayerReplay(encoder.transformer, encoder.family)
        self._metrics = {name: task.metric() for name, task in model.tasks.items()}
        self._unchanged: dict[str, tuple[Sequence[Any], np.ndarray]] = {}
        self._compared = False

    def start(self, sites: Iterable[int]) -> int:
        """The first site with a closed head; everything before it is as without ablation."""
        return self._replay.first(sites)

    def unchanged(self, batch: Batch, scale: Scale | None) -> CountsByTask:
        """See `AblatedCopies`; also records the outputs of layers and heads, and the annotations."""
        self._unchanged, self._compared = {}, False
        with self._replay.record():
            [counts] = self._counts(batch, 1, scale, None, None)
        return counts

    def ablated(
        self, batch: Batch, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> list[CountsByTask]:
        """See `AblatedCopies`."""
        start = self.start(closed_sites(ablations))
        [there] = copied([ablations], batch.mask.device)
        # All passes take rows of one batch: the first is compared with the recorded one, others would wait.
        with self._replay.start_at(start, len(ablations), compare=not self._compared):
            self._compared = True
            return self._counts(batch, len(ablations), scale, there, fill)

    def _counts(
        self, batch: Batch, copies: int, scale: Scale | None, ablations: Ablations | None, fill: Fill | None
    ) -> list[CountsByTask]:
        model, sentences, subwords = self.model, len(batch.sentences), batch.subwords
        if copies > 1:
            subwords = subwords.take(torch.arange(sentences, device=batch.mask.device).repeat(copies))
        of_row = None if ablations is None else ablations.repeat_interleave(sentences, 0)[subwords.sentence]
        with under_scales(self.encoder.tap, scale, of_row, fill):
            first = model.reads_first(batch.rows)
            words = self.encoder(subwords, first=first)
        words = words.view(copies, sentences, *words.shape[1:])
        decoding = []
        for name, row in batch.rows.items():
            decoder = model.decoder(name)
            vectors = model.encoder.of_task(name, words[:, row].flatten(0, 1))
            mask = batch.mask[row].repeat(copies, 1)
            if first:
                vectors, mask = decoder.as_read(vectors, mask)
            decoding.append(steps_of(decoder.decode, decoder(vectors, mask), mask))
        results: list[CountsByTask] = [{} for _ in range(copies)]
        for name, decoded in zip(batch.rows, in_step(decoding, batch.mask.device), strict=True):
            gold = batch.of_task(name)
            for copy, counts in enumerate(results):
                of_copy = decoded[copy * len(gold) : (copy + 1) * len(gold)]
                counts[name] = self._counted(name, of_copy, gold)
        return results

    def _counted(self, name: str, decoded: Sequence[Any], gold: Sequence[Sentence]) -> np.ndarray:
        """The counts of a task's sentences; only annotations that the ablation changed are counted anew."""
        metric = self._metrics[name]
        if name not in self._unchanged:
            self._unchanged[name] = decoded, metric.sentence_counts(decoded, gold)
        before, known = self._unchanged[name]
        changed = [place for place, annotation in enumerate(decoded) if annotation != before[place]]
        counts = known.copy()
        counts[changed] = metric.sentence_counts(
            [decoded[place] for place in changed], [gold[place] for place in changed]
        )
        return counts


def closed_sites(ablations: Float[Tensor, "*copy site head"]) -> list[int]:
    """The sites with a head that some ablation closes."""
    return (ablations != 1).any(-1).reshape(-1, ablations.shape[-2]).any(0).nonzero().flatten().tolist()


@contextmanager
def under_scales(
    tap: HeadTap,
    scale: Scale | None,
    ablations: Float[Tensor, "row site head"] | None,
    fill: Fill | None,
    neighbours: int = 1,
) -> Iterator[None]:
    """Inside the block, heads are under the mask `scale`, and each row is under its own ablation.

    The output of heads that an ablation closes is replaced by `fill` (`None`: zeros). In a beam search,
    `neighbours` adjacent rows share an ablation.
    """
    with ExitStack() as scaled:
        if scale is not None:
            scaled.enter_context(tap.scale(scale))
        if ablations is not None:
            scaled.enter_context(tap.scale(ablations, fill, neighbours))
        yield


def _of_task(batch: Batch, name: str) -> list[Sentence]:
    """The sentences of a batch that are annotated in a task."""
    return batch.of_task(name) if name in batch.places else []


def _table(
    trained: TrainedRun, chosen: Sequence[Ablation], losses: dict[str, ScoreLosses], by: By
) -> pl.DataFrame:
    rows = []
    for name, lost in losses.items():
        sentences = sum(name in example.targets for example in trained.corpus)
        for index, ablation in enumerate(chosen):
            if ablation.site is None:
                continue
            numbers = {"": lost.loss, "_low": lost.low, "_high": lost.high, "_p": lost.p, "_q": lost.q}
            rows += [
                {
                    "measure": MEASURE_OF_KIND[ablation.kind] + end,
                    "task": name,
                    "label": "",
                    "attention": "self",
                    "layer": ablation.site,
                    "head": ablation.head,
                    "value": float(values[index]),
                    "count": sentences,
                    "choice": by,
                }
                for end, values in numbers.items()
                if math.isfinite(values[index])  # few units have no interval
            ]
    table = pl.DataFrame(rows, schema=heads_table.SCHEMA)
    return heads_table.at_sites(table, trained.model.encoder.tap.sites)


def _partial_table(trained: TrainedRun) -> KeyedTable:
    """The counts of finished batches, in a file beside the run's table."""
    table = trained.table.resolve()
    own = table.parent == trained.run.folder.resolve()
    name = ".ablation.parquet" if own else f".{table.stem}.ablation.parquet"
    return KeyedTable(table.with_name(name), COUNTS, "mtl ablate", scratch=True)


def _key(trained: TrainedRun, chosen: Sequence[Ablation], by: By, masks: bool, batches: int) -> str:
    """A hash of everything that the counts depend on; counts with another key are not used."""
    made_of = [
        model_fingerprint(trained.run), trained.fingerprint(), trained.split, len(trained.corpus), batches,
        list(trained.tasks), by, masks, [sorted(ablation.closed) for ablation in chosen],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def _as_rows(parts: Sequence[Counts]) -> pl.DataFrame:
    rows = [
        {
            "batch": batch, "task": task, "sentences": len(counts.unchanged),
            "type": counts.ablated.dtype.str, "unchanged": counts.unchanged.ravel(),
            "ablated": counts.ablated.ravel(),
        }
        for batch, part in enumerate(parts)
        for task, counts in part.items()
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=COUNTS)


def _from_rows(rows: pl.DataFrame, ablations: int) -> list[Counts]:
    parts: list[Counts] = [{} for _ in range(1 + int(rows["batch"].to_numpy().max(initial=-1)))]
    for batch, task, sentences, kind, unchanged, ablated in rows.iter_rows():
        parts[batch][task] = SentenceCounts(
            np.array(unchanged, kind).reshape(sentences, -1),
            np.array(ablated, kind).reshape(ablations, sentences, -1),
        )
    return parts
