"""Models whose heads can be observed, scaled and cut: encoders, and what may take their place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from mtl.errors import InputError
from mtl.files import write_json
from mtl.heads.attentions import records_of_heads
from mtl.heads.family_table import Family
from mtl.heads.gates import TaskScale
from mtl.heads.load import save_model
from mtl.heads.tap import HeadTap, eager_attention
from mtl.models.annotator import Annotator, Decoded
from mtl.models.batches import Batch
from mtl.models.pretrained import quiet
from mtl.probes.measures.attention import AttentionMatrix
from mtl.tasks.decoders.decoder import at_least_float32
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task


class TappedModel(nn.Module, ABC):
    """A transformer with a tap on every attention head. Callers ask what it can do, not which model it is.

    Args:
        transformer: the model.
        family: the stacks of attention that are tapped.
    """

    tokenizer: Any
    """Makes pieces of sentences, and batches of them."""
    causal = False
    """Whether no position sees a later one."""

    def __init__(self, transformer: PreTrainedModel, family: Family) -> None:
        super().__init__()
        self.transformer, self.family = transformer, family
        self._tap, self._heads = HeadTap(transformer, family), records_of_heads(transformer.config)
        _require_even(self._tap)

    @property
    def tap(self) -> HeadTap:
        """A tap on the heads that the transformer has now; a new one after heads were cut."""
        heads = records_of_heads(self.transformer.config)
        if heads != self._heads:
            self._tap, self._heads = HeadTap(self.transformer, self.family), heads
        return self._tap

    @property
    def layers(self) -> int:
        """The number of sites."""
        return len(self.tap.sites)

    @property
    def heads(self) -> int:
        """How many head numbers a site has, cut heads included."""
        return self.tap.heads

    @property
    def head_dim(self) -> int:
        """The size of a head's output vector."""
        return self.tap.sizes[0]

    def last_layer(self) -> nn.Module:
        """The last layer: the parameters nearest to what decoders are given."""
        return self.layer_modules()[-1]

    def layer_modules(self) -> nn.ModuleList:
        """The layers of the last stack; fewer than `layers` where layers share a module."""
        path = self.family.stacks[-1].attention.partition(".{}")[0]
        layers = self.transformer.base_model.get_submodule(path)
        assert isinstance(layers, nn.ModuleList)
        return layers

    def before_layers(self) -> list[nn.Module]:
        """The parts of the transformer before the one with the layers of the last stack: embeddings."""
        first = self.family.stacks[-1].attention.partition(".{}")[0].partition(".")[0]
        names = [name for name, _ in self.transformer.base_model.named_children()]
        return [getattr(self.transformer.base_model, name) for name in names[: names.index(first)]]


def _require_even(tap: HeadTap) -> None:
    """Raise `InputError` for kinds of attention with different numbers of heads: masks have one for all."""
    by_kind = {site.attention: heads for site, heads in zip(tap.sites, tap.whole, strict=True)}
    if len(set(by_kind.values())) > 1:
        listed = ", ".join(f"{kind} {number}" for kind, number in by_kind.items())
        raise InputError(
            f"the model's kinds of attention have different numbers of heads ({listed}), and gates and masks "
            "have one number for all: use a model whose kinds have equally many"
        )


class SharedEncoder(TappedModel):
    """A tapped model that a joint model can hold: an encoder, or a model that takes its place."""

    kind: ClassVar[str] = ""
    """The kind of model that takes the place of an encoder (`ModelKind` of `mtl.features`, by name); empty:
    an encoder, which gives vectors of words."""
    does: ClassVar[str] = ""
    """What it does instead of labelling words, in messages; empty: it labels words."""
    instead: ClassVar[str] = ""
    """What to do with such a model instead of annotating text, in messages."""
    hidden: int
    """How many numbers a decoder is given for each word, or for each piece."""
    settings_file: ClassVar[str]
    """The file that `save` writes `settings` to; it marks a folder that `save` wrote."""

    def serve(self, tasks: Mapping[str, Task]) -> None:
        """Learn of the tasks whose decoders it is given to."""
        return

    def of_task(self, name: str, words: Float[Tensor, "batch _ _"]) -> Float[Tensor, "batch _ _"]:
        """The vectors that a task's decoder reads, from those that a pass has given."""
        return words

    def decoded(
        self, model: Annotator, batch: Batch, head_scale: TaskScale | None, given: bool
    ) -> dict[str, Decoded] | None:
        """Predictions of the joint model with it, if a search makes them; `None`: its decoders do."""
        return None

    @property
    @abstractmethod
    def note(self) -> str | None:
        """What is printed about the model at the start of training; `None`: nothing."""

    @abstractmethod
    def word_reader(self) -> WordReader:
        """What reads annotated words with these heads."""

    def attention_in_writing(
        self,
        model: Annotator,
        site: int,
        head: int,
        sentences: Sequence[Sentence],
        texts: Sequence[str] | None,
        head_scale: Float[Tensor, "site head"] | None,
    ) -> list[AttentionMatrix]:
        """The attention of a head that takes part in writing alone (`WordReader.without`).

        `texts` is what the joint model with this encoder writes for the sentences; `None`: what it chooses.
        Raises `TypeError` for a model that writes nothing: its reader reads all of its heads on words.
        """
        raise TypeError(f"{type(self).__name__} writes nothing")

    def freeze_decoder(self) -> None:
        """Freeze the transformer's own decoder and set it to evaluation mode, if it has one."""
        return

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the files of the transformer and the tokenizer do not state."""

    def save(self, folder: Path, masks: Float[Tensor, "mask site head"] | None = None) -> None:
        """Write config.json, model.safetensors, tokenizer files, and `settings`.

        `masks` are those that it was trained with; plain transformers will mention them (`save_model`).
        """
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            save_model(self.transformer, folder, masks)
            self.tokenizer.tokenizer.save_pretrained(folder)
        write_json(folder / self.settings_file, self.settings())


@dataclass(frozen=True, slots=True)
class Observation:
    """What a forward pass computed; layers (sites) and heads are numbered as in the uncut model."""

    words: Float[Tensor, "batch word hidden"]
    attentions: list[Float[Tensor, "row head subword subword"]]
    """Per layer the attention probabilities."""
    outputs: list[Float[Tensor, "row subword head head_dim"]]
    """Per layer what each head hands to the output projection, scaled if a scale was given."""
    inputs: list[Float[Tensor, "row subword width"]]
    """Per layer what its attention reads (`HeadTap.observe_inputs`)."""


class WordReader(TappedModel):
    """A tapped model that reads annotated words, so that its heads can be probed."""

    without: tuple[str, ...] = ()
    """The kinds of attention that take no part in reading, and are not observed."""

    def covers(self, sentences: Sequence[Sentence]) -> list[bool]:
        """Per sentence, whether each word has a piece; heads can be measured only on such sentences."""
        return [True] * len(sentences)

    def observe(self, subwords: Any, head_scale: Tensor | None = None) -> Observation:
        """A forward pass in eager attention: probabilities, inputs and outputs of the heads.

        `head_scale` multiplies each head's output; it has a row for every site of the whole model.
        """
        with (
            eager_attention(self.transformer),
            self.scaled(subwords, head_scale),
            self.tap.observe() as outputs,
            self.tap.observe_inputs() as inputs,
        ):
            output = self.read(subwords, output_attentions=True)
        probabilities = self.tap.with_cut_heads(output.attentions, output.last_hidden_state)
        return Observation(
            self.words(output, subwords),
            [*map(at_least_float32, probabilities)],
            [*map(at_least_float32, outputs)],
            [*map(at_least_float32, inputs)],
        )

    @abstractmethod
    def read(self, subwords: Any, **options: Any) -> ModelOutput:
        """The transformer's output for these subwords."""

    @abstractmethod
    def words(self, output: ModelOutput, subwords: Any) -> Float[Tensor, "batch word hidden"]:
        """The vector of each word, from the transformer's output."""

    @abstractmethod
    def scaled(self, subwords: Any, head_scale: Tensor | None) -> AbstractContextManager[None]:
        """Inside the block, the scale applies to passes over these subwords."""
