"""Where a model keeps the parts of its attention, by its family and by what was cut out or copied."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, get_args, get_type_hints

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mtl.errors import InputError
from mtl.heads.family_table import FAMILIES, UNFIT, Family, Stack
from mtl.heads.projections import out_features, width_read_by
from mtl.heads.shared_keys import keys_of_heads
from mtl.probes.head_names import layer_name
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
    heads: int
    """How many heads it has in the uncut model."""
    size: int
    """The numbers in a head's output."""


def row_given(given: Any) -> Family | None:
    """The row that a caller gives, itself or by its name in the table, or none; `InputError` for others."""
    if given is None or (isinstance(given, str) and given in FAMILIES):
        return None if given is None else FAMILIES[given]
    if not isinstance(given, Family):
        what = f"={given[:60]!r}" if isinstance(given, str) else f" is a {type(given).__name__}"
        raise InputError(
            f"family{what}: use a row (mtl.Family) or the name of one in the table "
            "(mtl/heads/family_table.py), such as vit or llama"
        )
    for field in fields(Family):
        kind, choices = type(field.default), get_args(get_type_hints(Family)[field.name])
        value = getattr(given, field.name)
        wrong = value not in choices if kind is str and choices else not isinstance(value, kind)
        if field.name != "stacks" and wrong:
            raise InputError(f"family: {field.name} is {str(value)[:60]!r}: mtl.Family says what it can be")
    return _checked(given)


def _checked(family: Family) -> Family:
    """The row, if its stacks can be read; raises `InputError` for others."""
    stacks, places = family.stacks, 2 if family.layer_groups else 1
    if not isinstance(stacks, tuple) or not stacks or not all(isinstance(stack, Stack) for stack in stacks):
        raise InputError("family: its stacks are a tuple of at least one mtl.Stack, as in (mtl.Stack(…),)")
    for stack in stacks:
        if not all(isinstance(part, str) for part in stack) or not stack.kind.isalpha():
            raise InputError("family: a mtl.Stack has text in all of its columns, and letters in its kind")
        if stack.attention.count("{}") != places:
            raise InputError(
                f"family: {stack.attention[:60]!r} is no path of attention modules: use one with {{}} for "
                "the layer's number, such as layers.{}.attention"
            )
    if len({stack.kind for stack in stacks}) < len(stacks):
        raise InputError("family: two of its stacks have one name: use a name for each kind of attention")
    return family


def family_of(model: PreTrainedModel, given: Family | str | None = None) -> Family:
    """The model's row of the table, or the one that is `given` in its place, itself or by its name there.

    Raises `InputError` without one; it names the parts of the model that have a row, or else the missing row
    and the likely output projections.
    """
    kind = model.config.model_type
    if (row := row_given(given)) is not None:
        return row
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
    if kind in UNFIT:
        raise InputError(
            f"{type(model).__name__} ({kind}) has no row in the table of families: {UNFIT[kind]}"
        )
    likely = ", ".join(_likely_outputs(model)) or "none found"
    raise InputError(
        f"no row {kind!r} in the table of families (mtl/heads/family_table.py, FAMILIES): give one "
        "(family=mtl.Family(…), or the name of a row with the same modules); modules that look like "
        f"attention output projections: {likely}"
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


def head_numbers(found: Iterable[Attention]) -> int:
    """How many head numbers a site has: those of the uncut model, then those of copies."""
    return max(max(attention.heads, 1 + max(attention.remaining, default=0)) for attention in found)


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


def record_keys(model: PreTrainedModel, family: Family, keys: Mapping[int, Sequence[int]]) -> None:
    """Record which keys and values the heads of some sites use, in models with grouped queries."""
    stack = family.stacks[0]
    group, name = group_size(model.config, type(model).__name__, stack), type(model).__name__
    if group == 1:
        return
    records = recorded_keys(model.config) | {site: tuple(numbers) for site, numbers in keys.items()}
    uncut = tuple(head // group for head in range(_number(model.config, stack, "heads", name)))
    kept = {site: list(numbers) for site, numbers in sorted(records.items()) if numbers and numbers != uncut}
    model.config.keys_of_heads, model.config.heads_sharing_keys = kept, {}


def recorded_components(config: PretrainedConfig) -> dict[int, int]:
    """The number of components that heads share, by collaborative site (`collaborate`)."""
    recorded = getattr(config, "collaborative_components", None) or {}
    return {int(site): int(number) for site, number in recorded.items()}


def needs_rebuild(config: PretrainedConfig) -> bool:
    """Whether a saved model's heads were cut, copied or made to share: transformers alone cannot load it."""
    return any(any(records_of_heads(part)) for part in parts_of(config).values())


def parts_of(config: PretrainedConfig) -> dict[str, PretrainedConfig]:
    """A configuration (under no name) and those of the models that its model is made of, by their keys."""
    inside = {key: getattr(config, key, None) for key in config.sub_configs}
    return {"": config} | {key: part for key, part in inside.items() if isinstance(part, PretrainedConfig)}


def records_of_heads(config: PretrainedConfig) -> tuple[dict[int, Any], ...]:
    """What was done to a model's heads: which were cut and copied, and which share keys or components."""
    records = (recorded_cuts, recorded_copies, recorded_keys, recorded_components)
    return tuple(record(config) for record in records)


def attentions(model: PreTrainedModel, family: Family) -> list[Attention]:
    """The attention at every site, by stack and layer; a module that layers share is listed for each of them.

    Raises `InputError` for a model that does not fit its row.
    """
    config, gone, copies = model.config, pruned_heads(model), cloned_heads(model)
    group_size(config, type(model).__name__, family.stacks[0])  # only for its error
    found, first = [], 0
    there = _paths_of_stacks(model, family)
    for stack in family.stacks:
        layers = _module_numbers(model, family, stack)
        heads, size = _shape(model, stack)
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
                    f"{type(model).__name__} does not fit its row of the table of families "
                    f"({config.model_type!r}, or the one given as family): {error}"
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
                    f"row of the table of families ({config.model_type!r}, or the one given as family)"
                )
            site = Site(stack.kind, layer)
            found.append(Attention(site, block, module, output, inside, left, heads, size))
        first += len(layers)
    return found


def require_read(ran: Iterable[Attention], read: Container[nn.Module]) -> None:
    """Raise `InputError` for an attention that ran and did not call its output projection."""
    for attention in ran:
        if attention.output not in read:
            raise InputError(
                f"{type(attention.module).__name__} of {layer_name(attention.site)} does not call the output "
                "projection of its row: its row of the table of families (or the one given as family) names "
                "another module, or a function reads the weights, which has the heads to itself"
            )


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
        return {kind: path for kind, path in chosen.items() if has_module(base, path.format(0))}

    if whole := have(paths):
        return whole
    alone = have({kind: path.partition(".")[2] for kind, path in paths.items()})
    # Modules of the encoder and of the decoder have the same paths inside; only the decoder's attends across.
    return {kind: path for kind, path in alone.items() if (kind != "encoder") == ("cross" in alone)} or paths


def has_module(base: nn.Module, path: str) -> bool:
    """Whether there is a module at a path below another."""
    try:
        base.get_submodule(path)
    except AttributeError:
        return False
    return True


def is_whole(model: PreTrainedModel, family: Family) -> bool:
    """Whether the model has all stacks of its family where the table has them, or its encoder's there."""
    there = _paths_of_stacks(model, family)
    as_stated = all(there[stack.kind] == stack.attention for stack in family.stacks if stack.kind in there)
    return as_stated and family.stacks[0].kind in there


def _module_numbers(model: PreTrainedModel, family: Family, stack: Stack) -> list[tuple[int, ...]]:
    """What fills the `{}` of a path, per layer: its number, or its group and its place in it."""
    config = model.config
    if not family.layer_groups:
        return [(layer,) for layer in range(_number(config, stack, "layers", type(model).__name__))]
    if not hasattr(config, "num_hidden_groups"):
        raise InputError(f"{type(model).__name__} has no groups of layers: its row says layer_groups=True")
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [
        (int(turn / per_group), inner)
        for turn in range(config.num_hidden_layers)
        for inner in range(config.inner_group_num)
    ]


def _shape(model: PreTrainedModel, stack: Stack) -> tuple[int, int]:
    """The number of heads in each layer of a stack of the uncut model, and the numbers in a head's output."""
    config, name = model.config, type(model).__name__
    heads = _number(config, stack, "heads", name)
    size = getattr(_part(config, stack), "head_dim", None)
    return heads, size or _number(config, stack, "width", name) // heads


def _part(config: PretrainedConfig, stack: Stack) -> Any:
    return getattr(config, stack.config, None) if stack.config else config


def _number(config: PretrainedConfig, stack: Stack, column: str, name: str) -> int:
    """The number at the key of the configuration that a column of the stack names."""
    key = getattr(stack, column)
    value = getattr(_part(config, stack), key, None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        where = f"{stack.config}.{key}" if stack.config else key
        raise InputError(
            f"the configuration of {name} has no number at {where}, where its row of the table of families "
            f"has the {column} of the attention {stack.kind!r}: correct {column!r} of its mtl.Stack"
        )
    return value


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
    return group_size(model.config, type(model).__name__, family_of(model).stacks[0])


def group_size(config: PretrainedConfig, name: str, stack: Stack) -> int:
    """As `heads_per_group`, from the configuration of the model of this name, for the heads of a stack."""
    heads = _number(config, stack, "heads", name)
    groups = getattr(_part(config, stack), "num_key_value_heads", None) or heads
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
