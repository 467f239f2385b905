"""Show what a head of a run or an encoder does: on a sentence, or on examples from a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mtl.analysis.measuring import Progress, silent
from mtl.analysis.probing.attention import Head, HeadOnCorpus, Relation, attention_of, head_of, no_arcs
from mtl.analysis.probing.probe import index_corpus
from mtl.analysis.probing.run import probed_tasks, readable_sources, single_sentences, tasks_with_files
from mtl.analysis.trained import evenly_spread
from mtl.config.parse import read_configuration
from mtl.config.schema import CorpusConfig, Split, TrainConfig
from mtl.corpora.load import corpus_read
from mtl.corpora.running_text import split as split_text
from mtl.errors import InputError, as_input_error
from mtl.heads.arguments import one_of, path_or_hub_name, short_text
from mtl.models.annotator import checked_sentences
from mtl.models.encoder import Encoder
from mtl.models.head_scales import Mask
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.models.opened import Accelerator, Opened, open_target, prepare
from mtl.models.tapped import SharedEncoder, WordReader
from mtl.probes.attention_matrix import AttentionMatrix
from mtl.probes.figures.attention import LEAST, ShownAttention, View, attention_figure, draw_attention
from mtl.probes.figures.style import figure_of
from mtl.probes.measures.corpus import PROBE_TARGETS, ProbeCorpus
from mtl.probes.sites import kind_in
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
