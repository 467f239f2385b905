"""Models that the public functions accept, and what must be true of them before heads are changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.attentions import Attention, is_whole, keys_of_heads
from mtl.heads.blocks import is_held
from mtl.heads.cut_attention import head_parts
from mtl.heads.families import family_of, is_plain
from mtl.heads.family_table import FAMILIES, Family
from mtl.probes.sites import Site, head_name, layer_name, several_kinds
from mtl.tasks.in_words import counted

_PREFIXES = ("PREFIX_TUNING", "CARTRIDGE")
"""What PEFT calls adapters that are keys and values of every head."""


def transformer_of(model: Any, function: str) -> PreTrainedModel:
    """The `transformers` model that a module is or holds: compiled, with adapters, or inside another module.

    Raises `InputError` for anything else, and for `nn.DataParallel`, which runs copies in threads.
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{function} takes a transformers model, and got a {kind}: load it first "
            "(AutoModel.from_pretrained)"
        )
    if any(isinstance(module, nn.DataParallel) for module in model.modules()):
        raise InputError(
            f"{function} takes a transformers model, and got one in an nn.DataParallel, whose copies run in "
            "threads of their own: use the model inside (its .module)"
        )
    if isinstance(model, PreTrainedModel):
        return model
    if inside := getattr(model, "_orig_mod", None):  # torch.compile(model)
        return transformer_of(inside, function)
    found = _outermost(model)
    if not found:
        raise InputError(
            f"{function} takes a transformers model, and got a {kind}, which holds none: use the whole "
            "model, as AutoModel.from_pretrained returns it"
        )
    if len(found) > 1:
        listed = " or ".join(
            f"{_as_written(path)} ({type(part).__name__})" for path, part in list(found.items())[:3]
        )
        raise InputError(
            f"{function}: {kind} holds {counted(len(found), 'transformers model')}: use {listed}"
        )
    return next(iter(found.values()))


def _as_written(path: str) -> str:
    """The path of a module as Python spells it: items of a list have their number in brackets."""
    return "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in path.split("."))


def changeable(model: Any, function: str, family: Family | str | None) -> tuple[PreTrainedModel, Family]:
    """As `transformer_of`, for functions that change a model's heads; and the model's row, or the given one.

    Also raises `InputError` for other modules around the model, which may know the old heads, as prefix
    tuning (PEFT) does, and for parts of encoder-decoder models without the encoder, whose sites have other
    numbers than in the whole model.
    """
    transformer = transformer_of(model, function)
    compiled_or_adapted = hasattr(model, "_orig_mod") or hasattr(model, "get_base_model")
    if transformer is not model and not compiled_or_adapted:
        path = next(iter(_outermost(model)))
        raise InputError(
            f"{function} takes a transformers model, and got a {type(model).__name__} around one: use its "
            f"{_as_written(path)} ({type(transformer).__name__})"
        )
    _refuse_prefixes(model, function)
    if any(map(is_held, model.modules())):
        raise InputError(
            f"{function}: the model is being scaled, observed or measured: change heads before that block"
        )
    require_ordinary_tensors(transformer, function)
    for path in sorted(_offloaded(transformer)):
        raise InputError(
            f"{function}: {path} is offloaded by accelerate, which keeps its numbers elsewhere: load the "
            "model without device_map, or onto devices that hold all of it"
        )
    row = family_of(transformer, family)
    if not is_whole(transformer, row):
        raise InputError(
            f"{function}: {type(transformer).__name__} is a part of an encoder-decoder model: "
            "use the whole model, whose config.json records what is changed"
        )
    return transformer, row


def _refuse_prefixes(model: Any, function: str) -> None:
    """Raise `InputError` for adapters (PEFT) that hand keys and values of every head to the model."""
    for config in getattr(getattr(model, "_orig_mod", model), "peft_config", {}).values():
        if config.peft_type in _PREFIXES:
            raise InputError(
                f"{function} takes a transformers model, and got a {type(model).__name__} with prefixes: "
                "keys and values, equally many in every layer. Change model.get_base_model() and tune "
                "prefixes afterwards: they fit if heads were only closed (prune_heads with keep_shape=True), "
                "or if every group of grouped queries has kept a head"
            )


def _outermost(module: nn.Module, path: str = "") -> dict[str, PreTrainedModel]:
    found: dict[str, PreTrainedModel] = {}
    for name, child in module.named_children():
        here = f"{path}.{name}" if path else name
        if isinstance(child, PreTrainedModel):
            if all(child is not other for other in found.values()):
                found[here] = child
        else:
            found |= _outermost(child, here)
    return found


def require_heads(
    heads: Mapping[int, Iterable[int]], sites: Sequence[Site], there: Sequence[Iterable[int]], verb: str
) -> None:
    """Raise `InputError` unless all heads, by the number of their site, are `there`; `verb`: cut, shared."""
    names = [layer_name(site, sites) for site in sites]
    for place, numbers in heads.items():
        if not 0 <= place < len(sites):
            if several_kinds(sites):
                missing, ends = f"site {place}", [f"{names[end]} ({end})" for end in (0, len(sites) - 1)]
            else:
                missing, ends = layer_name(Site(sites[0].attention, place)), [names[0], names[-1]]
            raise InputError(f"{missing} cannot be {verb}: the model has {ends[0]} to {ends[1]}")
        present = list(there[place])
        for head in numbers:
            if head not in present:
                raise InputError(
                    f"{head_name(sites[place], head, sites)} cannot be {verb}: the heads of {names[place]} "
                    f"are {', '.join(map(str, present)) or 'all gone'}"
                )


def require_plain(model: PreTrainedModel, family: Family, found: Sequence[Attention], verb: str) -> None:
    """Raise `InputError` unless rows and columns of all projections of the attention can be selected.

    `verb` says in the message what the heads cannot be: `cut out`, `closed`.
    """
    sites = [attention.site for attention in found]
    for attention in found:
        if not attention.remaining:
            continue
        names = {family.query} if family.fused else {family.query, family.key, family.value}
        inside = [
            (name, module)
            for name, module in attention.module.named_modules()
            if name in names | set(family.other_head_rows)
        ]
        # A wrapper around an attention passes its attributes on, and may keep a second attention.
        whole = all(name in dict(inside) or not hasattr(attention.module, name) for name in names)
        around = [] if whole else [("the attention", attention.module)]
        for name, module in [*around, *inside, ("the output projection", attention.output)]:
            if is_plain(module):
                continue
            origin = type(module).__module__.partition(".")[0]
            advice = (
                "merge the adapters first (model = model.merge_and_unload())"
                if hasattr(module, "get_base_layer") or origin == "peft"
                else "unwrap it"
                if around
                else "use the model as it was before it was quantised or reparametrised"
            )
            where = f"{name} of {layer_name(attention.site, sites)}"
            raise InputError(
                f"no heads of {type(model).__name__} can be {verb}: {where} is a {module._get_name()} of "
                f"{origin}, and not {'its own' if around else 'a plain linear layer'}: {advice}"
            )
        _require_row(family, attention, sites)
        if verb != "closed" and family is not FAMILIES.get(model.config.model_type):
            _require_nothing_else(family, attention, sites, verb)


def _require_nothing_else(family: Family, attention: Attention, sites: Sequence[Site], verb: str) -> None:
    """Raise `InputError` if the attention counts its heads where a caller's row does not say so.

    Such are parameters with rows of heads (gates, sinks or second projections of other families) and numbers
    of heads. They are looked for before any head is cut; a norm over all heads is known to be whole.
    """
    module, heads, size = attention.module, attention.heads, attention.size
    if heads == 1 or family.norms_over_heads or len(attention.remaining) != heads:
        return
    counts = {heads, len(set(keys_of_heads(module, heads)))} - {1}
    parts = head_parts(family, attention, torch.arange(heads))
    known = {id(part.parameter) for part in parts} | set(map(id, attention.output.parameters()))
    of_heads = {count * size for count in counts} | (counts - {size})
    where = f"no heads of {layer_name(attention.site, sites)} can be {verb}: the row given as family"
    instead = "or only close heads (prune_heads with keep_shape=True, head_scale)"
    for name, parameter in module.named_parameters():
        if id(parameter) not in known and of_heads & set(parameter.shape):
            raise InputError(
                f"{where} does not name {name}, of shape {tuple(parameter.shape)} with "
                f"{counted(heads, 'head')} of size {size}: name it in the mtl.Family (other_head_rows, "
                f"norms_by_head, bias_by_head), {instead}"
            )
    for name, value in vars(module).items():
        named = name in (*family.head_counts, *family.pair_counts) or "dim" in name or "size" in name
        if "head" in name and not named and isinstance(value, int) and value in counts:
            raise InputError(
                f"{where} does not name {name}={value}, a number of heads: name it in the mtl.Family "
                f"(head_counts, pair_counts), {instead}"
            )


def _require_row(family: Family, attention: Attention, sites: Sequence[Site]) -> None:
    """Raise `InputError` unless the heads' rows are all rows that the row of the table finds."""
    module, heads, wrong = attention.module, len(attention.remaining), ""
    try:
        for part in head_parts(family, attention, torch.arange(heads)):
            there = part.parameter.shape[part.dim]
            if not torch.equal(part.rows.sort().values, torch.arange(there)):
                where = f"{part.module._get_name()}.{part.name}"
                wrong = f"{there} rows or columns in {where}, and not {len(part.rows)}"
    except AttributeError as error:
        wrong = str(error)
    if wrong:
        children = ", ".join(child for child, _ in module.named_children()) or "nothing"
        raise InputError(
            f"{layer_name(attention.site, sites)} does not fit its row of the table of families (or the one "
            f"given as family): {wrong}; it holds {children}: correct query, key, value and fused"
        )


def require_ordinary_tensors(model: nn.Module, function: str) -> None:
    """Raise `InputError` under `torch.inference_mode()`, and for a model that was made under it.

    Its tensors can be neither trained nor changed afterwards.
    """
    if torch.is_inference_mode_enabled():
        raise InputError(
            f"{function} cannot be called under torch.inference_mode(), whose tensors have no gradients: "
            "call it outside of that block"
        )
    for path, parameter in model.named_parameters():
        if parameter.is_inference():
            raise InputError(
                f"{function}: {path} was made under torch.inference_mode(), and can be neither changed nor "
                "differentiated: load the model outside of that block"
            )


def model_device(model: nn.Module) -> torch.device:
    """The device of the first parameter that has numbers; `meta` if none has any and none is loaded later."""
    devices = [parameter.device for parameter in model.parameters() if not parameter.is_meta]
    return devices[0] if devices else torch.device("cpu" if _offloaded(model) else "meta")


def _offloaded(model: nn.Module) -> set[str]:
    """The paths of parameters that accelerate (`device_map`) loads only for the pass through their module."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_meta and hasattr(module, "_hf_hook")
    }


def require_weights(model: nn.Module, function: str) -> None:
    """Raise `InputError` for a model that has no weights yet (on torch's device `meta`)."""
    empty = [path for path, parameter in model.named_parameters() if parameter.is_meta]
    loaded_later = _offloaded(model) if empty else set()
    for path in empty:
        if path not in loaded_later:
            raise InputError(
                f"{function}: {path} is on the device meta, which has no numbers: load the weights first"
            )


def require_finite_weights(found: Sequence[Attention], function: str) -> None:
    """Raise `InputError` for weights of the attention that are not finite, and so have no singular values."""
    for attention in found:
        for path, weight in attention.module.named_parameters():
            if not bool(weight.isfinite().all()):
                name = layer_name(attention.site, [place.site for place in found])
                raise InputError(f"{function}: {path} of {name} has values that are not finite")


def require_gradients(model: nn.Module, function: str) -> None:
    """Raise `InputError` for a model that torch cannot differentiate."""
    require_ordinary_tensors(model, function)
    for path, module in model.named_modules():
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")):
            raise InputError(
                f"{function}: {path} is a quantised {type(module).__name__}, which has no gradients: use the "
                "model as it was before quantize_dynamic (ablate_heads works on this one, too)"
            )
