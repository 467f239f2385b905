"""Attention patterns and outputs of all heads as tensors, for any `transformers` model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedTokenizerBase

from mtl.errors import InputError
from mtl.heads.arguments import short_text
from mtl.heads.attentions import attentions
from mtl.heads.blocks import WithBlock
from mtl.heads.families import row_given
from mtl.heads.family_table import Family
from mtl.heads.given_models import model_device
from mtl.heads.tap import HeadTap, eager_attention, tapped
from mtl.models.joint import JointModel
from mtl.models.passes import in_evaluation_mode
from mtl.probes.sites import Site, layer_name, read_head
from mtl.tasks.in_words import counted, first_line

if TYPE_CHECKING:
    from mtl.patterns.figures import PatternsPage


@dataclass(frozen=True, eq=False)
class ObservedHeads:
    """What the heads of a model did in one pass; heads that were cut out have zeros.

    Lists have an entry for each site (a layer of one kind of attention), and `None` for sites that took no
    part.
    """

    sites: tuple[Site, ...]
    """The kind of attention and the layer of each site."""
    patterns: list[Tensor | None]
    """The attention probabilities, by row, head, attending and attended position. They sum up to 1, or to
    less in models with learned sinks."""
    outputs: list[Tensor | None]
    """What each head hands to the output projection, by row, position, head and dimension: its pattern times
    its values."""
    remaining: tuple[tuple[int, ...], ...]
    """Per site, the heads that were not cut out."""
    tokens: list[list[str]] | None
    """The pieces of each row, with padding; `None` without a tokenizer."""
    decoder_tokens: list[list[str]] | None
    """The same of a decoder's input in an encoder-decoder model, if it was given."""
    inputs: Mapping[str, Any]
    """The arguments of the pass."""
    output: Any
    """What the model returned."""

    def pattern(self, head: str) -> Float[Tensor, "row query key"]:
        """The probabilities of the head with this name (`L2H9`); raises `InputError` if there are none."""
        site, number = self.place(head)
        return self._of(self.patterns, site)[:, number]

    def head_output(self, head: str) -> Float[Tensor, "row query head_dim"]:
        """What the head with this name hands on; raises `InputError` if there is nothing."""
        site, number = self.place(head)
        return self._of(self.outputs, site)[:, :, number]

    def view(self, of: str | None = None, *, row: int = 0) -> PatternsPage:
        """A page for a notebook: all heads, or those of a layer (`L2`); what is pointed at says what it is.

        It can be saved, and loads nothing from elsewhere. `row` is the text or image. Raises `InputError` if
        there is no such row, layer or head, or it took no part in the pass.
        """
        from mtl.patterns.figures import patterns_page

        return patterns_page(self, of, row=row)

    def place(self, head: str) -> tuple[int, int]:
        """The number of the site and of the head with this name; raises `InputError` if there is none."""
        site, number = site_and_head(head, self.sites, self.remaining)
        if number is None:
            raise InputError(f"head={short_text(head)}: this is a whole layer: name a head, such as {head}H0")
        return site, number

    def _of(self, parts: Sequence[Tensor | None], site: int) -> Tensor:
        found = parts[site]
        if found is None:
            raise InputError(f"{layer_name(self.sites[site], self.sites)} took no part in the pass")
        return found


def site_and_head(
    name: Any, sites: Sequence[Site], remaining: Sequence[Sequence[int]], what: str = "head"
) -> tuple[int, int | None]:
    """The number of the site and the head that a name stands for; `None` for a whole layer."""
    if not isinstance(name, str):
        raise InputError(f"{what}={short_text(name)}: use a name, such as 'L2H0' or 'L2'")
    try:
        site, head = read_head(name, sites, 1 + max(max(heads, default=0) for heads in remaining))
    except ValueError as error:
        raise InputError(f"{what}={short_text(name)}: {error}") from error
    if head is not None and head not in remaining[site]:
        there = ", ".join(map(str, remaining[site])) or "all gone"
        raise InputError(f"{what}={short_text(name)}: the heads of this layer are {there}")
    return site, head


def observe_heads(
    model: nn.Module,
    inputs: str | Sequence[str] | Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    family: Family | str | None = None,
) -> ObservedHeads:
    """Attention patterns and outputs of all heads of a `transformers` model, as tensors.

    Any family in the table of families works, trained here or not. The model runs once, in evaluation mode
    and without gradients, in eager attention, which has probabilities. Inside `head_scale`, heads are scaled.

    Args:
        model: The model, with or without a head on top, or a module around it; it is not changed, except that
            transformers keeps hooks of its own on it, with which it cannot be pickled.
        inputs: A text, several texts, or named arguments of the model, such as a tokenizer returns.
        tokenizer: The model's tokenizer, for texts and for the names of pieces.
        family: The model's row, if the table has none (`Family`), or the name of a row that fits.

    Returns:
        The tensors of each layer, and those of a head by its name.

    Raises:
        InputError: the model is not in the table, has masks of its own, or does not take these inputs; a text
            without a tokenizer; or an attention that does not hand out its probabilities.
    """
    transformer, row, tap = tapped(model, "observe_heads", row_given(family))
    if isinstance(model, JointModel) and model.gates is not None:
        raise InputError(
            "observe_heads runs a transformers model, and this JointModel has masks over its heads: give the "
            "transformer of its encoder, inside head_scale if a mask is to apply"
        )
    given = _inputs_of(inputs, tokenizer, model_device(transformer))
    found = attentions(transformer, row)
    served: dict[nn.Module, list[int]] = {}
    for site, attention in enumerate(found):
        served.setdefault(attention.module, []).append(site)
    seen: dict[int, list[Tensor]] = {site: [] for site in range(len(found))}
    calls = dict.fromkeys(served, 0)

    def keep(module: nn.Module, arguments: object, output: object) -> None:
        # Layers that share a module call it one after the other.
        site = served[module][calls[module] % len(served[module])]
        calls[module] += 1
        # T5 returns its bias by position before the probabilities.
        returned = output if isinstance(output, tuple | list) else ()
        parts = [part for part in returned if isinstance(part, Tensor) and part.dim() == 4]
        if not parts or parts[-1].shape[1] != len(tap.remaining[site]):
            raise InputError(
                f"{type(module).__name__} of {layer_name(tap.sites[site], tap.sites)} does not hand out its "
                "probabilities: the heads of this model can be scaled and measured, but not shown"
            )
        seen[site].append(parts[-1])

    block = WithBlock()
    with (
        torch.no_grad(),
        in_evaluation_mode(model),
        eager_attention(transformer),
        tap.observe() as outputs,
        block.hooks(after=dict.fromkeys(served, keep)),
    ):
        try:
            output = transformer(**given, output_attentions=True)
        except InputError:
            raise
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise InputError(f"inputs: the model does not take them ({first_line(error)})") from error
    several = [site for site, passes in seen.items() if len(passes) > 1]
    if several:
        name = layer_name(tap.sites[several[0]], tap.sites)
        raise InputError(f"{name} ran {len(seen[several[0]])} times: give inputs of a single pass")
    return ObservedHeads(
        tap.sites,
        [_with_cut(passes[0], tap, site) if passes else None for site, passes in seen.items()],
        [
            passes[0][..., :heads, :] if passes else None
            for passes, heads in zip(outputs.passes, tap.whole, strict=True)
        ],
        tuple(tap.remaining),
        _tokens(given.get("input_ids"), tokenizer),
        _tokens(given.get("decoder_input_ids"), tokenizer),
        given,
        output,
    )


def _with_cut(
    pattern: Shaped[Tensor, "row left query key"], tap: HeadTap, site: int
) -> Shaped[Tensor, "row head query key"]:
    """A site's probabilities, with zeros for heads that were cut out."""
    heads = tap.remaining[site]
    if len(heads) == tap.whole[site]:
        return pattern
    row, _, query, key = pattern.shape
    whole = pattern.new_zeros(row, tap.whole[site], query, key)
    whole[:, list(heads)] = pattern
    return whole


def _inputs_of(inputs: Any, tokenizer: Any, device: torch.device) -> dict[str, Any]:
    """The arguments of the pass, on the model's device."""
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(f"tokenizer={short_text(tokenizer)}: use the model's tokenizer of transformers")
    if isinstance(inputs, Mapping | BatchEncoding):
        named = {str(key): value for key, value in inputs.items()}
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        if not tensors:
            raise InputError("inputs: no tensor of torch is among them")
        return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in named.items()}
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"inputs={short_text(inputs)}: use a text, several texts, or the model's named arguments"
        )
    if tokenizer is None:
        raise InputError("inputs: a text needs tokenizer=, that of the model")
    if len(texts) > 1 and tokenizer.pad_token is None:
        raise InputError(
            f"inputs: {counted(len(texts), 'text')} are padded, and the tokenizer has no padding: give one "
            "at a time"
        )
    made = tokenizer(list(texts), return_tensors="pt", padding=len(texts) > 1)
    if not made["input_ids"].shape[1]:
        raise InputError("inputs: the texts have no pieces")
    return {key: value.to(device) for key, value in made.items()}


def _tokens(ids: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[list[str]] | None:
    if tokenizer is None or not isinstance(ids, Tensor) or ids.dim() != 2:
        return None
    return [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
