"""Arguments of the public functions, checked and made ours before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.blocks import is_held
from mtl.heads.families import Attention, family_of, is_whole
from mtl.heads.family_table import Family
from mtl.heads.projections import is_plain
from mtl.heads.select import head_parts
from mtl.probes.head_names import head_name, layer_name
from mtl.probes.sites import Site, several_kinds
from mtl.tasks.in_words import counted

MOST_SEED = 2**48
"""The largest seed: torch takes 64 bits, and the noise of each layer has a seed made of this one."""
MOST_NUMBER = 2**31 - 1
"""The largest of all other whole numbers."""

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
        listed = " or ".join(f".{path} ({type(part).__name__})" for path, part in list(found.items())[:3])
        raise InputError(
            f"{function}: {kind} holds {counted(len(found), 'transformers model')}: use {listed}"
        )
    return next(iter(found.values()))


def changeable(model: Any, function: str, family: Family | str | None) -> tuple[PreTrainedModel, Family]:
    """As `transformer_of`, for functions that change a model's heads; and its row, if not the given one.

    Raises `InputError` also for other modules around it, which may know the old heads, as prefix tuning
    (PEFT) does, and for parts of encoder-decoder models without the encoder, whose sites have other numbers
    than in the whole model.
    """
    transformer = transformer_of(model, function)
    compiled_or_adapted = hasattr(model, "_orig_mod") or hasattr(model, "get_base_model")
    if transformer is not model and not compiled_or_adapted:
        path = next(iter(_outermost(model)))
        raise InputError(
            f"{function} takes a transformers model, and got a {type(model).__name__} around one: use its "
            f".{path} ({type(transformer).__name__})"
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
                f"{function} takes a transformers model, and got a {type(model).__name__} with prefixes, "
                "which are keys and values of the heads that it has: change the heads first, and tune "
                "prefixes then (model.get_base_model() has none)"
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
    """Raise `InputError` unless all heads, by the number of their site, are `there`; `verb`: cut, copied."""
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


def require_plain(model: PreTrainedModel, family: Family, found: Iterable[Attention], verb: str) -> None:
    """Raise `InputError` unless rows and columns of all projections of the attention can be selected.

    `verb` says in the message what the heads cannot be: `cut out`, `copied`.
    """
    places = list(found)
    sites = [attention.site for attention in places]
    for attention in places:
        if not attention.remaining:
            continue
        names = {family.query} if family.fused else {family.query, family.key, family.value}
        inside = [
            (name, module)
            for name, module in attention.module.named_modules()
            if name in names | set(family.other_head_rows)
        ]
        # What stands around an attention answers for it, and keeps a second one.
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


def _require_row(family: Family, attention: Attention, sites: Sequence[Site]) -> None:
    """Raise `InputError` unless the heads' rows are all rows that the row of the table finds."""
    module, heads, wrong = attention.module, len(attention.remaining), ""
    try:
        for part in head_parts(family, attention, torch.arange(heads), heads):
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


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter that has numbers; `meta` if none has, and nothing loads them."""
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


def require_finite(found: Iterable[Attention], function: str) -> None:
    """Raise `InputError` for weights of the attention that are not finite: no singular values are."""
    places = list(found)
    for attention in places:
        for path, weight in attention.module.named_parameters():
            if not bool(weight.isfinite().all()):
                name = layer_name(attention.site, [place.site for place in places])
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


def heads_by_layer(heads: Any, what: str = "heads") -> dict[int, list[int]]:
    """Layers and heads as plain integers, ascending in each layer.

    Layers may be integers of Python, numpy or torch, or strings as JSON has them; heads any iterable of
    integers, such as lists, sets, arrays and tensors. Raises `InputError` for everything else.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, numbers in _layers(heads, what, "{0: [1, 2]}"):
        if isinstance(numbers, str | bytes | Mapping) or not is_iterable(numbers):
            raise InputError(f"{what}[{layer}]={shown(numbers)}: use a list of heads, such as [1, 2]")
        by_layer[layer] = sorted({whole_number(head, f"a head of {what}[{layer}]") for head in numbers})
    return by_layer


def heads_to_heads(heads: Any, what: str = "heads") -> dict[int, dict[int, int]]:
    """As `heads_by_layer`, for a mapping of heads to heads in each layer."""
    by_layer: dict[int, dict[int, int]] = {}
    for layer, places in _layers(heads, what, "{0: {1: 2}}"):
        if not isinstance(places, Mapping):
            raise InputError(f"{what}[{layer}]={shown(places)}: use a mapping of heads, such as {{1: 2}}")
        name = f"a head of {what}[{layer}]"
        by_layer[layer] = {_number_of_key(key, name): whole_number(to, name) for key, to in places.items()}
    return by_layer


def _layers(heads: Any, what: str, example: str) -> Iterable[tuple[int, Any]]:
    if not isinstance(heads, Mapping):
        raise InputError(f"{what}={shown(heads)}: use a mapping from layers to heads, such as {example}")
    seen: set[int] = set()
    for key, value in heads.items():
        layer = _number_of_key(key, f"a layer of {what}")
        if layer in seen:
            raise InputError(f"{what} has the key {layer} twice")
        seen.add(layer)
        yield layer, value


def _number_of_key(key: Any, what: str) -> int:
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10:
        return int(key)
    return whole_number(key, what)


def seed_of(value: Any) -> int:
    """A seed from 0 to `MOST_SEED`; raises `InputError` for others."""
    return whole_number(value, "seed", 0, MOST_SEED)


def whole_number(value: Any, what: str, least: int | None = None, most: int = MOST_NUMBER) -> int:
    """An integer of Python, numpy or torch; raises `InputError` for others, also for booleans and 1.0."""
    number = value
    if isinstance(number, Tensor | np.ndarray) and number.ndim == 0 and not is_masked(number):
        number = number.item()
    if isinstance(number, bool | np.bool_) or not isinstance(number, Integral):
        raise InputError(f"{what}={shown(value)}: use a whole number")
    if least is not None and int(number) < least:
        raise InputError(f"{what}={shown(number)}: use a whole number of at least {least}")
    if abs(int(number)) > most:
        raise InputError(f"{what}={shown(number)}: use a whole number of at most {most}")
    return int(number)


def share_of(value: Any, what: str) -> float:
    """A number from 0 to 1; raises `InputError` for others."""
    number = value.item() if isinstance(value, Tensor | np.generic) and value.ndim == 0 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        raise InputError(f"{what}={shown(value)}: use a number")
    if not 0 <= number <= 1:
        raise InputError(f"{what}={shown(number)}: use a number from 0 to 1")
    return float(number)


def yes_or_no(value: Any, what: str) -> bool:
    """A boolean; raises `InputError` for others."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{what}={shown(value)}: use True or False")
    return bool(value)


def one_of(value: Any, what: str, choices: Iterable[str]) -> Any:
    """The value, if it is among the choices; raises `InputError` if not."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{what}={shown(value)}: use one of {', '.join(known)}")
    return value


def function_of(value: Any, what: str) -> Any:
    """The value, if it can be called; raises `InputError` if not."""
    if not callable(value):
        raise InputError(f"{what}={shown(value)}: use a function")
    return value


def tensor_of(value: Any) -> Tensor | None:
    """A tensor, or an array, a series or lists of numbers or tensors as one; `None` for anything else."""
    try:
        if isinstance(value, list | tuple) and _has_tensors(value):
            parts: Any = [tensor_of(part) for part in value]
            return torch.stack(parts)
        # A copy: what others' data are read from may not be written to, or run backwards.
        return value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except Exception:
        return None


def is_dense(value: Tensor) -> bool:
    """Whether a tensor is a plain one of real numbers."""
    odd = value.is_complex() or value.is_quantized or value.is_meta or value.is_nested
    return value.layout == torch.strided and not odd


def _has_tensors(values: Sequence[Any]) -> bool:
    parts = (part for part in values if isinstance(part, Tensor | list | tuple))
    return any(isinstance(part, Tensor) or _has_tensors(part) for part in parts)


def is_masked(value: Any) -> bool:
    """Whether an array, a tensor or an entry of nested lists has values that are masked out.

    A plain copy would have them as if they were not.
    """
    if isinstance(value, list | tuple):
        return any(is_masked(part) for part in value)
    return isinstance(value, MaskedTensor) or (
        isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))
    )


def scale_of(scale: Any, what: str, dtype: torch.dtype) -> Tensor:
    """A head scale as a tensor of numbers that are finite in the model's type, too.

    Raises `InputError` for what is none.
    """
    if is_masked(scale):
        raise InputError(f"{what} has values that are masked out: say what they are, as filled(1) does")
    made = tensor_of(scale)
    if made is None:
        raise InputError(f"{what}={shown(scale)}: use a table of numbers")
    if not is_dense(made):
        raise InputError(
            f"{what} is sparse, nested, quantised, complex or without numbers: use a plain tensor"
        )
    if not bool(torch.isfinite(made.detach().to(dtype)).all()):
        raise InputError(f"{what} has values that are not finite numbers in {dtype}")
    return made if made.is_floating_point() else made.float()


def folder_of(folder: Any, what: str = "folder") -> Path:
    """A path, or a name on the hub; raises `InputError` for what is neither text nor a path."""
    if not isinstance(folder, str | PathLike) or isinstance(fspath(folder), bytes):
        raise InputError(f"{what}={shown(folder)}: use a folder's name or path")
    return Path(folder)


def revision_of(revision: Any) -> str | None:
    """A revision of a repository on the hub; raises `InputError` for what is none."""
    if revision is not None and not isinstance(revision, str):
        raise InputError(f"revision={shown(revision)}: use the name of a branch or tag, or a commit")
    return revision


def refuse_revision(folder: Path, revision: str | None) -> None:
    """Raise `InputError` for what is no revision, or one of a folder in place of a repository on the hub."""
    if revision_of(revision) is not None and folder.is_dir():
        raise InputError(
            f"revision={shown(revision)}: {folder} is a folder; revisions are of repositories on the hub"
        )


def dtype_of(dtype: Any) -> torch.dtype | Literal["auto"]:
    """A type of numbers with a point, also by its name, or `auto`; raises `InputError` for others."""
    if isinstance(dtype, str) and dtype == "auto":
        return "auto"
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    raise InputError(f"dtype={shown(dtype)}: use auto, torch.float32 or another floating point type of torch")


def batches_of(batches: Any) -> Iterable[Any]:
    """The batches, if one can go through them; raises `InputError` for one batch in place of several."""
    one = isinstance(batches, str | bytes | bytearray | Mapping) or hasattr(batches, "__array__")
    if one or not is_iterable(batches):
        raise InputError(
            f"batches is a {type(batches).__name__}: use a list of batches or a DataLoader; one batch is "
            "[batch]"
        )
    iterable: Iterable[Any] = batches
    return iterable


def is_iterable(value: Any) -> bool:
    """Whether one can go through the value."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def shown(value: Any) -> str:
    """The value in a message: on one line, and short; its type where it cannot be written.

    Python refuses to write numbers of more than 4,300 digits, and others' objects may fail at it.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
