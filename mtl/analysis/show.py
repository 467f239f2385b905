"""Show what a head of a run or an encoder does: on a sentence, or on examples from a corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mtl.analysis.measuring import Progress, silent
from mtl.analysis.probe import (
    ObservedCorpus,
    index_corpus,
    probed_tasks,
    readable_sources,
    single_sentences,
    tasks_with_files,
)
from mtl.analysis.trained import evenly_spread
from mtl.config.parse import read_configuration
from mtl.config.schema import CorpusConfig, Split, TrainConfig
from mtl.corpora.load import corpus_read
from mtl.corpora.running_text import split as split_text
from mtl.errors import InputError, as_input_error
from mtl.heads.arguments import one_of, path_or_hub_name, short_text
from mtl.heads.gates import Mask
from mtl.models.annotator import checked_sentences
from mtl.models.encoder import Encoder
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, Opened, open_target, prepare
from mtl.models.tapped import SharedEncoder, TappedModel, WordReader
from mtl.probes.figures.attention import (
    LEAST,
    GoldArc,
    ShownAttention,
    View,
    attention_figure,
    draw_attention,
)
from mtl.probes.figures.style import figure_of
from mtl.probes.measures import attention
from mtl.probes.measures.attention import AttentionMatrix, hits
from mtl.probes.measures.corpus import PROBE_TARGETS, Items, ProbeCorpus
from mtl.probes.measures.probe import FINAL, NOTHING, ROOT, HeadRecords
from mtl.probes.sites import Site, head_name, kind_in, read_head
from mtl.probes.tables.heads_table import arcs_count
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

_WHICH: tuple[Literal["hits", "misses"], ...] = ("hits", "misses")


class TitledSentences(NamedTuple):
    """Sentences under a title."""

    title: str
    shown: Sequence[ShownAttention | AttentionMatrix]


class Known(NamedTuple):
    """A head on a corpus, and the relation that is shown."""

    head: HeadOnCorpus
    relation: Relation


class OpenHead:
    """A head of a run, a saved model or an encoder, ready to be shown.

    Raises `InputError` for a target that does not exist, and for a head that the target lacks.
    """

    def __init__(
        self, target: str, head: str, accelerator: Accelerator = "auto", revision: str | None = None
    ) -> None:
        self.opened: Opened = open_target(target, revision)
        self.encoder: WordReader = self.opened.encoder.word_reader()
        prepare(self.encoder, accelerator)
        if self.opened.model is not None:
            prepare(self.opened.model, accelerator)
        self.target, self.name = target, head
        self.head = _head(self.opened.encoder, self.encoder, head)

    @property
    def writes(self) -> bool:
        """Whether the head takes part only as the model writes a text."""
        return kind_in(self.name) in self.encoder.without

    def on_text(
        self, text: str, language: str, task: str | None, masks: bool, translation: str | None = None
    ) -> Sequence[ShownAttention | AttentionMatrix]:
        """The attention on running text, for heads that write as the model writes `translation`, or what it
        chooses; raises `InputError` for text without words, and for a translation that cannot be used."""
        mask, sentences = _mask(self.opened.model, task, masks), sentences_in(text, language)
        return _attention(
            self.opened.encoder, self.opened.model, self.encoder, sentences, self.head, mask,
            self.writes, translation, "--",
        )  # fmt: skip

    def on_corpus(
        self,
        source: CorpusConfig | None,
        split: Split,
        *,
        sentences: int,
        task: str | None = None,
        relation: str | None = None,
        masks: bool = True,
        final_special: bool = False,
        progress: Progress = silent,
    ) -> Known:
        """The head on at most `sentences` sentences of a split, and the relation that it is known for.

        `source`, `split`, `masks` and `final_special` are as in `probe_run`.

        Raises:
            InputError: there is no corpus, its sentences have no arcs, or none is of the task and the
            relation.
        """
        if self.writes:
            raise InputError(f"{self.name} is shown on a text: use --sentence")
        corpus = self._corpus(source, split, sentences)
        if not any(
            task in (None, name) and (relation is None or relation in items.names)
            for name, items in corpus.items.items()
        ):
            raise no_arcs(corpus, task, relation)
        model = self.opened.model
        every = tuple(corpus.items)
        chosen = [Mask("", every, None)] if model is None else model.scales.masks(every, gated=masks)
        chosen = [mask for mask in chosen if task is None or task in mask.tasks]
        if not chosen:
            raise InputError(f"the run's masks are for none of {', '.join(every)}: use --masks=false")
        found = []
        with progress(len(chosen) * len(corpus.sentences)) as advance:
            for mask in chosen:
                on_corpus = HeadOnCorpus(
                    self.encoder, corpus, self.head, mask, final=final_special, advance=advance
                )
                found.append(Known(on_corpus, on_corpus.relation(task, relation)))
        return max(found, key=lambda each: each.relation.rank)

    def _corpus(self, source: CorpusConfig | None, split: str, most: int) -> ProbeCorpus:
        """The sentences of a split with what is probed by attention."""
        model, run = self.opened.model, self.opened.run
        if source is None:
            if run is None:
                raise InputError(
                    f"{self.target} is not a run, and has no corpus of its own: use --sentence or --corpus"
                )
            if does := self.opened.encoder.does:
                raise InputError(f"{self.target} {does}, and its corpus has no arcs: use --corpus")
            source = corpus_read(read_configuration(TrainConfig, run.folder / "config.yaml"))
        named, targets = probed_tasks({} if model is None else model.tasks)
        targets = {name: target for name, target in targets.items() if target.by == "attention"}
        read_for = {name: task for name, task in tasks_with_files(source, named).items() if name in targets}
        if not read_for:
            raise InputError(
                f"{self.target}: its corpus has no arcs to show a head on: use --sentence, or "
                f"--corpus=FOLDER of sentences with them ({', '.join(targets)})"
            )
        found = single_sentences(InputCache().split(source, read_for, split))
        if self.encoder.without:
            found = readable_sources(self.encoder, found, split).sentences
        return index_corpus(evenly_spread(found, most), targets=targets)


def _head(encoder: SharedEncoder, reader: WordReader, name: str) -> Head:
    """The head of this name, of the whole model if it does not take part in reading (`without`)."""
    whole = kind_in(name) in reader.without
    return head_of(encoder, name) if whole else head_of(reader, name, reader.without)


def _attention(
    encoder: SharedEncoder | None,
    model: JointModel | None,
    reader: WordReader,
    sentences: Sequence[Sentence],
    head: Head,
    mask: Mask | None,
    writes: bool,
    translation: str | None,
    dashes: str,
) -> Sequence[ShownAttention | AttentionMatrix]:
    """The attention of a head on sentences; `dashes` come before the names of arguments in errors."""
    if not writes:
        if translation is not None:
            raise InputError(
                f"{dashes}translation is for heads of a decoder or of cross attention, and {head.name} reads "
                "the sentence alone: leave it out"
            )
        return attention_of(reader, sentences, head, mask)
    assert encoder is not None
    assert model is not None
    if translation is not None and len(sentences) > 1:
        raise InputError(
            f"{dashes}translation is that of one sentence, and these are {len(sentences):,}: give one"
        )
    texts = None if translation is None else [translation]
    scale = None if mask is None else mask.head_scale
    return encoder.attention_in_writing(model, head.site, head.number, sentences, texts, scale)


def sentences_in(text: str, language: str) -> list[Sentence]:
    """The sentences of running text; raises `InputError` for text without words."""
    with as_input_error("--sentence"):
        sentences = split_text(text, language)
    if not sentences:
        raise InputError("--sentence has no words")
    return sentences


def _mask(model: JointModel | None, task: str | None, masks: bool) -> Mask | None:
    """The mask under which a sentence is shown; `None`: all heads are open.

    Raises `InputError` for a task that the model lacks, and if no task is given though each has its own mask.
    """
    if model is None:
        if task is not None:
            raise InputError(f"--task={task}: an encoder has no tasks")
        return None
    if task is not None:
        one_of(task, "task", model.tasks)
    chosen = model.scales.masks(tuple(model.tasks), gated=masks)
    if task is not None:
        return next((mask for mask in chosen if task in mask.tasks), chosen[0])
    if len(chosen) > 1:
        raise InputError(
            f"every task has heads of its own: choose one with --task ({', '.join(model.tasks)})"
        )
    return chosen[0]


def arc_examples(known: Known, count: int) -> list[TitledSentences]:
    """The sentences with the arcs that a head hits most surely, and those that it misses most surely."""
    head, relation = known
    found = []
    for which in _WHICH:
        numbers = head.examples(relation, which, count)
        if numbers:
            found.append(TitledSentences(f"surest {which}", head.shown(numbers, relation)))
    return found


def sentence_of(known: Known, name: str, most: int) -> ShownAttention:
    """A sentence of the corpus by its id; raises `InputError` if none of those that were read has it.

    At most `most` sentences were read.
    """
    head, relation = known
    for number, sentence in enumerate(head.corpus.sentences):
        if sentence.id == name:
            return head.shown([number], relation)[0]
    read = counted(len(head.corpus.sentences), "sentence")
    if len(head.corpus.sentences) < most:
        raise InputError(f"--id={name}: none of the {read} of the split has this id: use one of theirs")
    raise InputError(f"--id={name}: none of the {read} that were read has this id: raise --sentences")


def plot_attention(
    model: JointModel | WordReader | PreTrainedModel | str | Path,
    sentence: str | Sequence[str] | Sentence,
    head: str,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
    view: View | None = None,
    relation: str | None = None,
    translation: str | None = None,
    task: str | None = None,
    least: float = LEAST,
    ax: Axes | None = None,
) -> tuple[Figure, Axes]:
    """Draw what a head attends to on a sentence.

    Args:
        model: a joint model, an encoder, a model of transformers, the folder or name of one, or
            a run's folder.
        sentence: text of one sentence, its words, or an annotated sentence.
        head: the head's name, such as `L2H0`.
        tokenizer: the fast tokenizer of a model of transformers.
        view: arcs over the words, or a matrix; `None`: arcs, but a matrix for heads that write a translation.
        relation: a relation of words to their heads (`nsubj`), whose gold arcs are drawn as hit or missed;
            `None`: none.
        translation: for heads of a decoder or of cross attention, the translation of the sentence; `None`:
            the model's own.
        task: the task whose mask is applied, in models with a mask per task.
        least: attention below this share is drawn without an arc.
        ax: where to draw; `None`: a new figure.

    Returns:
        The figure and its axes, to change and to save.

    Raises:
        InputError: an argument is wrong; the head does not exist; the sentence has no arc of the relation; or
            it is too long to be drawn.
    """
    if view is not None:
        one_of(view, "view", ("arcs", "matrix"))
    if not isinstance(head, str):
        raise InputError(f"head={short_text(head)}: use a head's name, such as 'L2H0'")
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
        raise InputError(f"least={short_text(least)}: use a number from 0 to 1")
    if relation is not None and not isinstance(relation, str):
        raise InputError(f"relation={short_text(relation)}: use the name of a relation, such as 'nsubj'")
    if translation is not None and not isinstance(translation, str):
        raise InputError(f"translation={short_text(translation)}: use a text")
    if ax is not None and not isinstance(ax, Axes):
        raise InputError(f"ax={short_text(ax)}: use axes of matplotlib")
    joint: JointModel | None = None
    whole: SharedEncoder | None = None
    if tokenizer is not None and not isinstance(model, PreTrainedModel):
        raise InputError(f"tokenizer={short_text(tokenizer)}: this model has its own: leave it out")
    if isinstance(model, JointModel):
        joint, whole = model, model.encoder
    elif isinstance(model, PreTrainedModel):
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InputError(f"tokenizer={short_text(tokenizer)}: use the fast tokenizer of the model")
        whole = Encoder(model.base_model, tokenizer)
    elif not isinstance(model, WordReader):
        opened = open_target(str(path_or_hub_name(model, "model")))
        joint, whole = opened.model, opened.encoder
    encoder = model if whole is None else whole.word_reader()
    assert isinstance(encoder, WordReader)
    given = sentences_in(sentence, "en") if isinstance(sentence, str) else checked_sentences([sentence])
    if len(given) != 1:
        raise InputError(
            f"sentence={short_text(sentence)}: these are {counted(len(given), 'sentence')}: "
            "draw one at a time"
        )
    writes = joint is not None and kind_in(head) in encoder.without
    if writes and (relation is not None or view == "arcs"):
        wrong = f"relation={relation}" if relation is not None else "view=arcs"
        raise InputError(f"{wrong}: {head} does not attend from word to word of the sentence: leave it out")
    found = head_of(encoder, head, encoder.without) if whole is None else _head(whole, encoder, head)
    mask, view = _mask(joint, task, True), view or "arcs"
    seen: ShownAttention | AttentionMatrix
    if relation is None:
        [seen] = _attention(whole, joint, encoder, given, found, mask, writes, translation, "")
    else:
        corpus = index_corpus(given, targets={"dep": PROBE_TARGETS["dep"]})
        scale = None if mask is None else mask.head_scale
        on_corpus = HeadOnCorpus(encoder, corpus, found, Mask("", ("dep",), scale))
        [seen] = on_corpus.shown([0], on_corpus.relation("dep", relation))
    with as_input_error():
        if ax is None:
            figure = attention_figure([seen], view, least)
            return figure, figure.axes[0]
        draw_attention(seen, ax, view, least)
    return figure_of(ax), ax


class Head(NamedTuple):
    """A head of a model: the number of its site, its number in the site, and its name."""

    site: int
    number: int
    name: str


def head_of(model: TappedModel, name: str, others: Sequence[str] = ()) -> Head:
    """The head of this name (`L2H0`); `others` are kinds of attention that the model has besides its sites.

    Raises `InputError` if there is none, for a whole layer, and for a head that was cut out.
    """
    tap = model.tap
    kind, kinds = kind_in(name), [*dict.fromkeys(site.attention for site in tap.sites), *others]
    if kind is not None and kind not in kinds:
        raise InputError(f"{name}: the model has no attention of kind {kind}: it has {', '.join(kinds)}")
    if kind in others:
        raise InputError(f"{name}: this part of the model has no {kind} attention: give the whole model")
    with as_input_error(name):
        site, number = read_head(name, tap.sites, tap.heads)
    if number is None:
        raise InputError(f"{name} is a whole layer: choose one of its heads, such as {name}H0")
    if number not in tap.remaining[site]:
        raise InputError(f"{name} was cut out of this model, and attends to nothing")
    every = (*tap.sites, *(Site(other, 0) for other in others))
    return Head(site, number, head_name(tap.sites[site], number, every))


def attention_of(
    encoder: WordReader, sentences: Sequence[Sentence], head: Head, mask: Mask | None = None
) -> list[ShownAttention]:
    """The attention of a head on sentences, from word to word.

    Raises `InputError` for a sentence without words and, in encoder-decoder models, for one whose words
    share a piece.
    """
    if encoder.without and not all(encoder.covers(sentences)):
        raise InputError("a subword of this model covers several words of the sentence: use another one")
    corpus = ObservedCorpus(encoder, sentences, _scale(encoder, mask))
    special = _special(encoder)
    found: dict[int, ShownAttention] = {}
    for batch, numbers in enumerate(corpus.batches):
        observation, positions = corpus.observed(batch)
        one = observation.attentions[head.site][:, head.number : head.number + 1]
        queries = positions.attention(one)[:, 0].cpu().numpy()
        rows, base = positions.row.cpu().numpy(), positions.base.cpu().numpy()
        first_of_row, begin = queries[len(rows) :], 0
        for number in numbers:
            words = len(sentences[number])
            weights = np.zeros((words + 1, words + 2))
            for word, row in enumerate(rows[begin : begin + words], 1):
                known = min(positions.width, words - base[row])
                own = slice(1 + base[row], 1 + base[row] + known)
                attended = queries[begin + word - 1]
                weights[word, [0, -1]] = attended[[0, -1]]
                weights[word, own] = attended[1 : 1 + known]
                # The first special token attends from the window that owns its word.
                if own.start <= word < own.stop:
                    weights[0, word] = first_of_row[row, word - base[row]]
            weights[0, [0, -1]] = first_of_row[rows[begin]][[0, -1]]
            if special[0] is None:
                weights[0] = 0
            begin += words
            found[number] = ShownAttention(sentences[number], head.name, special, weights)
    return [found[number] for number in range(len(sentences))]


def _special(encoder: WordReader) -> tuple[str | None, str | None]:
    """The first and the final special token as the tokenizer writes them; `None` if there is none."""
    tokenizer = encoder.tokenizer
    names = tokenizer.tokenizer.convert_ids_to_tokens
    return (
        names(int(tokenizer.prefix[0])) if len(tokenizer.prefix) else None,
        names(int(tokenizer.suffix[-1])) if len(tokenizer.suffix) else None,
    )


def _scale(encoder: WordReader, mask: Mask | None) -> Float[Tensor, "site head"] | None:
    if mask is None or mask.head_scale is None:
        return None
    return mask.head_scale.to(next(encoder.parameters()).device)


@dataclass(frozen=True)
class Relation:
    """How well a head connects the two ends of a task's arcs with one label."""

    task: str
    label: str
    value: float
    """The share of the arcs that it hits in either direction (the measure `attention`)."""
    chance: float
    """The best share, on the same arcs, of a head that always looks at one offset."""
    count: int
    to_head: float
    """The share of the arcs whose dependent attends most to its head (of arguments: to their predicate)."""
    to_dependent: float
    """The share of the arcs whose head attends most to the dependent."""

    @property
    def counted(self) -> bool:
        """Whether the label counts in statements about a head."""
        return arcs_count(self.label, self.count)

    @property
    def rank(self) -> tuple[bool, float]:
        """How well a head is known for it: labels that count come first, then larger values above chance."""
        return self.counted, self.value - self.chance


@dataclass(frozen=True)
class SeenItems:
    """Which items of a task a head connects with their anchors, and how surely."""

    items: Items
    from_anchor: Bool[np.ndarray, " item"]
    from_item: Bool[np.ndarray, " item"]
    anchor_weight: Float[np.ndarray, " item"]
    """The attention of the anchor to the word that it attends to most."""
    item_weight: Float[np.ndarray, " item"]
    """The same for the item's words: the largest of their values."""

    @property
    def hit(self) -> Bool[np.ndarray, " item"]:
        """Whether an item is hit in either direction."""
        return self.from_anchor | self.from_item


def no_arcs(corpus: ProbeCorpus, task: str | None, label: str | None) -> InputError:
    """The error that a corpus has no arc of a task, or none with a label."""
    named = " ".join(filter(None, (task, label)))
    known = ", ".join(f"{task} ({' '.join(items.names)})" for task, items in corpus.items.items())
    return InputError(f"no arc of the corpus is {named}: it has {known}")


class HeadOnCorpus:
    """One head on an annotated corpus: relations, and the sentences behind their numbers.

    Args:
        encoder: the model.
        corpus: the sentences and the items of the tasks that are probed by attention.
        head: the head.
        mask: a mask over the heads, with the tasks that are probed under it; `None`: all heads, all tasks.
        final: whether the final special token competes for the most attended word.
        advance: receives the number of sentences of each finished batch.
    """

    def __init__(
        self,
        encoder: WordReader,
        corpus: ProbeCorpus,
        head: Head,
        mask: Mask | None = None,
        *,
        final: bool = False,
        advance: Callable[[int], None] = lambda sentences: None,
    ) -> None:
        self.encoder, self.corpus, self.head, self.mask = encoder, corpus, head, mask
        probed = tuple(corpus.items) if mask is None else mask.tasks
        tasks = corpus.probed_by("attention", probed)
        parts: dict[str, list[tuple[Tensor, ...]]] = {task: [] for task in tasks}
        observed = ObservedCorpus(encoder, corpus.sentences, _scale(encoder, mask))
        for batch in range(len(observed)):
            records = _of_head(observed[batch], head)
            for task in tasks:
                root = corpus.targets[task].root
                parts[task].append(_seen(records, corpus.items[task], root=root, final=final))
            advance(len(records.sentences))
        self.seen: dict[str, SeenItems] = {}
        for task in tasks:
            number, *columns = (torch.cat(column) for column in zip(*parts[task], strict=True))
            order = number.argsort()
            self.seen[task] = SeenItems(corpus.items[task], *(column[order].numpy() for column in columns))

    def relations(self) -> list[Relation]:
        """All relations by `Relation.rank`, so that those that the head is known for come first."""
        found = []
        for task, seen in self.seen.items():
            items = seen.items
            counts = items.per_label()
            shares = [
                np.bincount(items.label.numpy(), hit, len(counts)) / np.maximum(counts, 1)
                for hit in (seen.hit, seen.from_item, seen.from_anchor)
            ]
            offsets, _ = attention.best_offset(items, self.encoder.causal)
            for number, label in enumerate(items.names):
                value, to_head, to_dependent = (float(share[number]) for share in shares)
                level, count = float(offsets[number]), int(counts[number])
                found.append(Relation(task, label, value, level, count, to_head, to_dependent))
        return sorted(found, key=lambda each: each.rank, reverse=True)

    def relation(self, task: str | None = None, label: str | None = None) -> Relation:
        """The relation that the head is known for; only of this task and with this label, if they are given.

        Raises `InputError` if there is none.
        """
        for relation in self.relations():
            if task in (None, relation.task) and label in (None, relation.label):
                return relation
        raise no_arcs(self.corpus, task, label)

    def shown(self, sentences: Sequence[int], relation: Relation) -> list[ShownAttention]:
        """The attention on these sentences of the corpus, with the relation's arcs, hit and missed."""
        chosen = [self.corpus.sentences[number] for number in sentences]
        attention = attention_of(self.encoder, chosen, self.head, self.mask)
        return [
            replace(each, gold=self._gold(number, relation), root=self.corpus.targets[relation.task].root)
            for number, each in zip(sentences, attention, strict=True)
        ]

    def _gold(self, sentence: int, relation: Relation) -> tuple[GoldArc, ...]:
        seen = self.seen[relation.task]
        items = seen.items
        begin = int(items.counts[:sentence].sum())
        return tuple(
            GoldArc(
                int(items.start[item]), int(items.end[item]), int(items.anchor[item]), relation.label,
                bool(seen.hit[item]),
            )
            for item in range(begin, begin + int(items.counts[sentence]))
            if items.names[int(items.label[item])] == relation.label
        )  # fmt: skip

    def examples(self, relation: Relation, which: Literal["hits", "misses"], count: int) -> list[int]:
        """The numbers of at most `count` sentences with the arcs that the head hits or misses most surely.

        How sure it is: its attention to the most attended word, in the direction in which it hits more arcs.
        """
        seen = self.seen[relation.task]
        items = seen.items
        turned = relation.to_head < relation.to_dependent
        weight = seen.anchor_weight if turned else seen.item_weight
        hit = seen.from_anchor if turned else seen.from_item
        of_label = items.label.numpy() == items.names.index(relation.label)
        chosen = np.flatnonzero(of_label & (hit if which == "hits" else ~seen.hit))
        sentence = np.repeat(np.arange(len(items.counts)), items.counts.numpy())
        ranked = sentence[chosen[np.argsort(-weight[chosen], kind="stable")]].tolist()
        return list(dict.fromkeys(ranked))[:count]


def _of_head(records: HeadRecords, head: Head) -> HeadRecords:
    """The records of one head, on the CPU; its outputs are left out."""
    one = np.index_exp[:, head.site : head.site + 1, head.number : head.number + 1]
    return HeadRecords(
        records.sentences, records.lengths, records.row, records.word[one].cpu(),
        records.peak[one].cpu(), records.root[one].cpu(), records.final[one].cpu(),
        records.outputs[one][..., :0].cpu(), records.projected[:, :1, :0, :0].cpu(),
    )  # fmt: skip


def _seen(records: HeadRecords, items: Items, *, root: bool, final: bool) -> tuple[Tensor, ...]:
    """The numbers of a batch's items, and the columns of `SeenItems` for them."""
    placed = items.within(records)
    attended = records.attended(root=root, final=final)
    hit = hits(attended, placed)
    weight = torch.where(attended == ROOT, records.root, records.peak)
    weight = torch.where(attended == FINAL, records.final, weight)
    weight = weight.masked_fill(attended == NOTHING, 0)[:, 0, 0]
    of_item = weight.new_zeros(len(placed.length)).scatter_reduce(0, placed.item, weight[placed.word], "amax")
    return (
        placed.number, hit.from_anchor[:, 0, 0], hit.from_item[:, 0, 0], weight[placed.at_anchor], of_item,
    )  # fmt: skip
