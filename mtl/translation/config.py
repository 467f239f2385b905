"""The keys of a model from scratch, `seq2seq`, and their rules. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mtl.config.instances import Slot
from mtl.config.keys import Forbidden, Used
from mtl.errors import InputError, as_input_error
from mtl.features import added
from mtl.tasks.in_words import as_text
from mtl.tasks.task import Dropout, Range, Size

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig
    from mtl.translation.task import Translate

Depth = Annotated[int, Range(1, 1_000)]
ByKind = int | dict[Literal["encoder", "decoder", "cross"], int]
"""A number for all kinds of attention, or one for each of some."""
_FROM_SCRATCH = Used(lambda run: run.seq2seq.architecture is not None)
_SHARED_COMPONENTS = Used(
    lambda run: run.seq2seq.architecture is not None and run.seq2seq.components is not None
)


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder-decoder model from scratch, for a translation."""

    architecture: Literal["marian", "bart", "mbart", "m2m_100", "pegasus", "t5", "mt5"] | None = None
    """Architecture of the layers; `null`: the checkpoint `encoder.name` instead of a model from scratch."""
    layers: Annotated[Depth, _FROM_SCRATCH] = 4
    """Layers of the encoder."""
    decoder_layers: Annotated[Depth | None, _FROM_SCRATCH] = None
    """Layers of the decoder; `null`: as many as the encoder has."""
    heads: Annotated[Size, _FROM_SCRATCH] = 4
    """Heads of each kind of attention in a layer."""
    width: Annotated[Size, _FROM_SCRATCH] = 128
    """Size of the vectors between layers."""
    feed_forward: Annotated[Size, _FROM_SCRATCH] = 256
    """Size of the feed-forward layers' inner vectors."""
    dropout: Annotated[Dropout, _FROM_SCRATCH] = 0.1
    """Share of features dropped in training."""
    vocabulary: Annotated[int, Range(300, 1_000_000), _FROM_SCRATCH] = 8000
    """Maximum number of subwords; both languages share them."""
    components: Annotated[ByKind | None, Range(1, 65_536), _FROM_SCRATCH] = None
    """Query and key components that the heads of each layer share (collaborative attention), up to `width`,
    or a number for each kind of attention whose heads share (KIND: NUMBER); `null`: each head has its
    own."""
    mixing: Annotated[Literal["learned", "blocks", "ones", "normal"], _SHARED_COMPONENTS] = "learned"
    """Which components each head uses: it learns a weight for each, from a part of its own (`learned`), from
    ones (`ones`) or from random numbers (`normal`: mean 0, standard deviation 0.2); or it keeps the part that
    it starts with, so that heads are concatenated (`blocks`)."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: (
                run.seq2seq.mixing != "learned" and run.seq2seq.components is None and run.init_from is None
            ),
            "seq2seq.mixing={run.seq2seq.mixing} is for heads that share components: use "
            "seq2seq.components, or leave it out",
        ),
        Forbidden(
            lambda run: run.seq2seq.architecture is not None and not _translates(run),
            "seq2seq.architecture={run.seq2seq.architecture} is for translations, and tasks is "
            "{tasks}: use encoder.name",
        ),
        Forbidden(
            lambda run: None if _translates(run) else _given(run.seq2seq),
            "seq2seq.components={found} is for translations, and tasks is {tasks}: "
            "'mtl collaborate' makes encoders whose heads share components",
        ),
        Forbidden(
            lambda run: (
                _given(run.seq2seq) if _shares_components(run) and run.seq2seq.architecture is None else None
            ),
            "seq2seq.components={found} is for a model from scratch: use "
            "seq2seq.architecture, or leave it out (a checkpoint's heads are what they are)",
        ),
        Forbidden(
            lambda run: (
                run.seq2seq.architecture is not None
                and run.init_from is None
                and run.seq2seq.width % run.seq2seq.heads
            ),
            "seq2seq.width={run.seq2seq.width} is no multiple of seq2seq.heads={run.seq2seq.heads}: change "
            "one of them",
        ),
        Forbidden(
            lambda run: (
                run.seq2seq.architecture is not None
                and run.init_from is None
                and run.pruning == "dynamic"
                and run.gates.unit == "group"
            ),
            "gates.unit=group is for heads that share keys and values, and those of "
            "seq2seq.architecture={run.seq2seq.architecture} do not: use gates.unit=head",
        ),
        Forbidden(
            lambda run: _shares_components(run) and run.seq2seq.components == {},
            "seq2seq.components is empty: use one number, or one for each of some kinds of attention "
            "(encoder, decoder, cross), or null",
        ),
        Forbidden(
            lambda run: _shares_components(run) and _too_many(run.seq2seq),
            "{found}: use 1 to {run.seq2seq.width} components (seq2seq.width), as many as heads apart have",
        ),
        Forbidden(
            lambda run: (
                _translates(run)
                and run.seq2seq.architecture is None
                and run.init_from is None
                and run.encoder.name == "minilm"
            ),
            "encoder.name=minilm has no decoder, and cannot translate: use seq2seq.architecture (for "
            "instance mbart) for a model from scratch, or an encoder-decoder checkpoint as encoder.name",
        ),
    )


def _translates(run: Any) -> bool:
    """Whether the run's tasks are translations."""
    return bool(run.own_model() == "seq2seq")


def _shares_components(run: Any) -> bool:
    """Whether the heads of a model from scratch are to share components."""
    return run.seq2seq.components is not None and run.init_from is None


def _given(size: Seq2SeqConfig) -> str | None:
    """The numbers of components as messages name them; `None`: none are given."""
    return None if size.components is None else as_text(size.components)


def _too_many(size: Seq2SeqConfig) -> str | None:
    """The dotted key and value of a number of components above that of heads apart."""
    given = size.components
    values = given if isinstance(given, Mapping) else {"": given}
    places = ((f".{kind}" if kind else "", number) for kind, number in values.items())
    return next((f"seq2seq.components{at}={n}" for at, n in places if n is not None and n > size.width), None)


SLOT = Slot(
    Seq2SeqConfig,
    field(default_factory=Seq2SeqConfig),
    "An encoder-decoder model from scratch, for a translation.",
    after="encoder",
)


def size_of(config: TrainConfig) -> Seq2SeqConfig:
    """The size of a model from scratch."""
    size: Seq2SeqConfig = vars(config)["seq2seq"]
    return size


def heads(config: TrainConfig) -> Mapping[str, tuple[int, int]]:
    """The numbers of layers and of heads in each of a model from scratch, by kind of attention."""
    size = size_of(config)
    in_decoder = (size.decoder_layers or size.layers, size.heads)
    return {"encoder": (size.layers, size.heads), "decoder": in_decoder, "cross": in_decoder}


def check_translation(config: TrainConfig) -> None:
    """Raise `InputError` for a model from scratch whose heads cannot share components, for a tokeniser that
    sacreBLEU does not have or that needs a package or a download, and for a spread of a single hypothesis."""
    from mtl.translation.task import translation_in

    task: Translate | None = translation_in(config.chosen())
    if task is None:
        return
    from mtl.heads.family_table import FAMILIES
    from mtl.translation.bleu import require_tokenizer
    from mtl.translation.lines import require_several

    settings, settings_of = size_of(config), f"tasks.{task.name}" if task.standard else task.name
    require_several(task.beam, f"{settings_of}.", beam_spread=task.beam_spread)
    if settings.components is not None and settings.architecture is not None and config.init_from is None:
        if not added(lambda feature: feature.head_records):
            raise InputError(
                f"seq2seq.components={_given(settings)}: no feature is installed that lets heads share "
                "components: leave it out"
            )
        reason = FAMILIES[settings.architecture].not_shareable_because
        if reason:
            raise InputError(
                f"seq2seq.components={_given(settings)}: the heads of {settings.architecture} cannot "
                f"share query and key components: {reason}; use mbart or another architecture"
            )
    given = f"{settings_of}.tokenize={task.tokenize}"
    key = f"{given} with {settings_of}.target={task.target}" if task.tokenize == "auto" else given
    with as_input_error():
        require_tokenizer(task.tokenizer(), key)
