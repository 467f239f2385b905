"""Where a model keeps the parts of its attention, by its family and by what was cut out or copied."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mtl.errors import InputError
from mtl.heads.family_table import FAMILIES, Family, Stack
from mtl.heads.projections import out_features, width_read_by
from mtl.heads.shared_keys import keys_of_heads
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted


class Attention(NamedTuple):
    """The attention at one site of a model: its module, its output projection, and the heads still in it."""

    site: Site
    layer: nn.Module
    """The transformer layer that it belongs to."""
    module: nn.Module
    output: Any
    """An `nn.Linear` or `Conv1D`, maybe with an adapter around it or quantised (`require_plain`)."""
    output_inside: bool
    """Whether the projection is a submodule of `module`."""
    remaining: tuple[int, ...]
    """The numbers of the heads still in it, ascending."""


def family_of(model: PreTrainedModel) -> Family:
    """The model's row of the table.

    Raises `InputError` without one; it names the parts of the model that have a row, or else the missing row
    and the likely output projections.
    """
    kind = model.config.model_type
    if kind in FAMILIES:
        return FAMILIES[kind]
    parts = [
        f".{path} ({type(part).__name__})"
        for path, part in model.named_modules()
        if path and isinstance(part, PreTrainedModel) and part.config.model_type in FAMILIES
    ]
    if parts:
        raise InputError(
            f"{type(model).__name__} is made of several models, each with heads of its own: use one of its "
            f"parts, such as {' or '.join(parts[:2])}"
        )
    likely = ", ".join(_likely_outputs(model)) or "none found"
    raise InputError(
        f"no row {kind!r} in the table of encoder families (mtl/heads/family_table.py, FAMILIES); "
        f"add one; modules that look like attention output projections: {likely}"
    )


def pruned_heads(model: PreTrainedModel) -> dict[int, list[int]]:
    """The heads that have been cut out of each site, in the numbering of the uncut model."""
    return recorded_cuts(model.config)


def recorded_cuts(config: PretrainedConfig) -> dict[int, list[int]]:
    """As `pruned_heads`, from a configuration (one that was saved has strings as keys)."""
    recorded = getattr(config, "pruned_heads", None) or {}
    return {int(site): sorted(heads) for site, heads in recorded.items()}


def cloned_heads(model: PreTrainedModel) -> dict[int, dict[int, int]]:
    """The copies at each site: the number of each, and the head of the uncut model that it copies."""
    return recorded_copies(model.config)


def recorded_copies(config: PretrainedConfig) -> dict[int, dict[int, int]]:
    """As `cloned_heads`, from a configuration (one that was saved has strings as keys)."""
    recorded = getattr(config, "cloned_heads", None) or {}
    return {
        int(site): {int(copy): head for copy, head in heads.items()}
        for site, heads in recorded.items()
        if heads
    }


def head_numbers(model: PreTrainedModel) -> int:
    """How many head numbers a site has: those of the uncut model, then those of copies."""
    copies = [copy for heads in cloned_heads(model).values() for copy in heads]
    return max([heads_per_site(model), *(copy + 1 for copy in copies)])


def recorded_keys(config: PretrainedConfig) -> dict[int, tuple[int, ...]]:
    """At the sites of grouped queries that were cut or copied, the number of each head's key and value."""
    recorded = getattr(config, "keys_of_heads", None) or {}
    found = {int(site): tuple(map(int, keys)) for site, keys in recorded.items()}
    # Older folders say how many neighbours share a key, and hold copies where groups were of unequal sizes.
    gone, copies = recorded_cuts(config), recorded_copies(config)
    for site, neighbours in (getattr(config, "heads_sharing_keys", None) or {}).items():
        heads = config.num_attention_heads - len(gone.get(int(site), ())) + len(copies.get(int(site), ()))
        found.setdefault(int(site), tuple(head // int(neighbours) for head in range(heads)))
    return found


def record_keys(model: PreTrainedModel, keys: Mapping[int, Sequence[int]]) -> None:
    """Record which keys and values the heads of some sites use, in models with grouped queries."""
    group = heads_per_group(model)
    if group == 1:
        return
    records = recorded_keys(model.config) | {site: tuple(numbers) for site, numbers in keys.items()}
    uncut = tuple(head // group for head in range(heads_per_site(model)))
    kept = {site: list(numbers) for site, numbers in sorted(records.items()) if numbers and numbers != uncut}
    model.config.keys_of_heads, model.config.heads_sharing_keys = kept, {}


def recorded_components(config: PretrainedConfig) -> dict[int, int]:
    """The number of components that heads share, by collaborative site (`collaborate`)."""
    recorded = getattr(config, "collaborative_components", None) or {}
    return {int(site): int(number) for site, number in recorded.items()}


def needs_rebuild(config: PretrainedConfig) -> bool:
    """Whether a saved model's heads were cut, copied or made to share: transformers alone cannot load it."""
    return any(records_of_heads(config))


def records_of_heads(config: PretrainedConfig) -> tuple[dict[int, Any], ...]:
    """What was done to a model's heads: which were cut and copied, and which share keys or components."""
    records = (recorded_cuts, recorded_copies, recorded_keys, recorded_components)
    return tuple(record(config) for record in records)


def attentions(model: PreTrainedModel, family: Family) -> list[Attention]:
    """The attention at every site, by stack and layer; a module that layers share is listed for each of them.

    Raises `InputError` for a model that does not fit its row, or whose numbers of heads do not fit together.
    """
    config, gone, copies = model.config, pruned_heads(model), cloned_heads(model)
    heads, size = heads_per_site(model), head_dim(model)
    heads_per_group(model)  # only for its error
    found, first = [], 0
    there = _paths_of_stacks(model, family)
    for stack in family.stacks:
        layers = _module_numbers(model, stack)
        if stack.kind not in there:
            first += len(layers)
            continue
        path_of = there[stack.kind]
        for layer, numbers in enumerate(layers):
            path = path_of.format(*numbers)
            parent = path.rpartition(".")[0]
            inside = not stack.output.startswith("^")
            of_layer = path_of[: path_of.rindex("{}") + 2].format(*numbers)
            of_output = f"{path}.{stack.output}" if inside else stack.output.replace("^", parent)
            try:
                block, module, output = map(model.base_model.get_submodule, (of_layer, path, of_output))
            except AttributeError as error:
                _refuse_wrapper(model, (of_layer, path, of_output))
                raise InputError(
                    f"{type(model).__name__} does not fit row {config.model_type!r} of "
                    f"mtl/heads/family_table.py: {error}"
                ) from None
            uncut = set(range(heads)) - set(gone.get(first + layer, ()))
            left = tuple(sorted(uncut | set(copies.get(first + layer, ()))))
            width = width_read_by(output)
            if width is None:
                raise InputError(
                    f"{of_output} of {type(model).__name__} is a {type(output).__name__}, which is no linear "
                    "layer: unwrap the model, or merge its adapters, first"
                )
            if width != len(left) * size:
                if width % size == 0:
                    raise InputError(
                        f"{path} of {type(model).__name__} has {counted(width // size, 'head')}, "
                        f"and its configuration "
                        f"records {len(left)}: load what was cut or copied by mtl.load_pruned, and give "
                        "every model a configuration of its own (copy.deepcopy)"
                    )
                raise InputError(
                    f"{path}: its output projection is no linear layer over "
                    f"{counted(len(left), 'head')}; correct its "
                    f"row {config.model_type!r} in mtl/heads/family_table.py"
                )
            found.append(Attention(Site(stack.kind, layer), block, module, output, inside, left))
        first += len(layers)
    return found


def _refuse_wrapper(model: PreTrainedModel, paths: Iterable[str]) -> None:
    """Raise `InputError` if what ends one of the paths in a model is a module of another program."""
    for path in paths:
        module, parts = model.base_model, path.split(".")
        for number, part in enumerate(parts):
            if (inner := getattr(module, part, None)) is None:
                origin = type(module).__module__.partition(".")[0]
                if origin in ("transformers", "torch", "mtl"):
                    break
                raise InputError(
                    f"{'.'.join(parts[:number])} of {type(model).__name__} is a {type(module).__name__} of "
                    f"{origin}, which hides its {part}: unwrap the model, or merge its adapters, first"
                )
            module = inner


def _paths_of_stacks(model: PreTrainedModel, family: Family) -> dict[str, str]:
    """By kind of attention the path of its module below the base model, for the stacks that the model has.

    Parts of encoder-decoder models have some of them (`T5EncoderModel`, `BartForCausalLM`); in a stack by
    itself (`model.get_encoder()`) paths begin at the stack.
    """
    paths = {stack.kind: stack.attention for stack in family.stacks}
    base = model.base_model
    if len({path.partition(".")[0] for path in paths.values()}) == 1:
        return paths

    def have(chosen: dict[str, str]) -> dict[str, str]:
        return {kind: path for kind, path in chosen.items() if _has(base, path.format(0))}

    if whole := have(paths):
        return whole
    alone = have({kind: path.partition(".")[2] for kind, path in paths.items()})
    # Modules of the encoder and of the decoder have the same paths inside; only the decoder's attends across.
    return {kind: path for kind, path in alone.items() if (kind != "encoder") == ("cross" in alone)} or paths


def _has(base: nn.Module, path: str) -> bool:
    try:
        base.get_submodule(path)
    except AttributeError:
        return False
    return True


def is_whole(model: PreTrainedModel) -> bool:
    """Whether the model has all stacks of its family where the table has them, or its encoder's there."""
    family = family_of(model)
    there = _paths_of_stacks(model, family)
    as_stated = all(there[stack.kind] == stack.attention for stack in family.stacks if stack.kind in there)
    return as_stated and family.stacks[0].kind in there


def _module_numbers(model: PreTrainedModel, stack: Stack) -> list[tuple[int, ...]]:
    """What fills the `{}` of a path, per layer: its number, or its group and its place in it."""
    config = model.config
    if not family_of(model).layer_groups:
        return [(layer,) for layer in range(getattr(config, stack.layers))]
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [
        (int(turn / per_group), inner)
        for turn in range(config.num_hidden_layers)
        for inner in range(config.inner_group_num)
    ]


def heads_per_site(model: PreTrainedModel) -> int:
    """The number of heads at every site of the uncut model; raises `InputError` if stacks differ in it."""
    numbers = {stack.kind: int(getattr(model.config, stack.heads)) for stack in family_of(model).stacks}
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{kind} {number}" for kind, number in numbers.items())
        raise InputError(
            f"{type(model).__name__} has another number of heads per kind of attention ({listed}), and "
            "scales and masks have one for all: use a model with as many heads in all of them"
        )
    return next(iter(numbers.values()))


def heads_by_kind(config: PretrainedConfig) -> dict[str, int]:
    """By kind of attention, the number of heads in all layers of the uncut model, from its configuration."""
    family = FAMILIES.get(config.model_type)
    if family is None or len(family.stacks) == 1:
        return {"self": int(config.num_hidden_layers * config.num_attention_heads)}
    return {
        stack.kind: int(getattr(config, stack.layers) * getattr(config, stack.heads))
        for stack in family.stacks
    }


def heads_per_group(model: PreTrainedModel) -> int:
    """How many query heads of the uncut model share keys and values; 1 where each has its own.

    Raises `InputError` if the groups do not divide the heads.
    """
    return group_size(model.config, type(model).__name__)


def group_size(config: PretrainedConfig, name: str) -> int:
    """As `heads_per_group`, from the configuration of the model of this name."""
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    if heads % groups:
        raise InputError(
            f"{name}: {counted(groups, 'group')} of keys and values do not divide {counted(heads, 'head')}: "
            "correct num_key_value_heads in its config.json"
        )
    return int(heads // groups)


def key_groups(model: PreTrainedModel) -> int:
    """The keys and values that a model has at all sites, one for each group of heads that share it."""
    found = attentions(model, family_of(model))
    keys = [keys_of_heads(attention.module, len(attention.remaining)) for attention in found]
    return sum(max(numbers, default=-1) + 1 for numbers in keys)


def looks_back_only(model: PreTrainedModel) -> bool:
    """Whether no position of the model sees a later one."""
    family = family_of(model)
    return family.causal and not (family.two_sided_if and getattr(model.config, family.two_sided_if, False))


def head_dim(model: PreTrainedModel) -> int:
    """The number of dimensions of a head's output."""
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _likely_outputs(model: PreTrainedModel) -> list[str]:
    hidden = getattr(model.config, "hidden_size", None)
    names = {
        re.sub(r"\.\d+\.", ".{}.", name)
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and out_features(module) == hidden
        and re.search(r"att", name, re.IGNORECASE)
        and re.search(r"(out|dense|proj|\bo|w_?o)\w*$", name, re.IGNORECASE)
        and not re.search(r"(^|[._])([qkv]|query|key|value)\w*$", name, re.IGNORECASE)
    }
    return sorted(names)
