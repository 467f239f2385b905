"""The row of the table of families that a model has, numbers of its configuration, its linear maps."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mtl.errors import InputError
from mtl.heads.blocks import own_forward
from mtl.heads.family_table import FAMILIES, UNFIT, Family, Stack
from mtl.tasks.in_words import counted


def row_given(given: Any) -> Family | None:
    """The row that a caller gives, itself or by its name, or `None`; raises `InputError` for others."""
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
            raise InputError(
                f"family: {field.name} is {str(value)[:60]!r}: see mtl.Family for what it can be"
            )
    return _checked(given)


def _checked(family: Family) -> Family:
    """The row, if its stacks can be read; raises `InputError` otherwise."""
    stacks, places = family.stacks, 2 if family.layer_groups else 1
    if not isinstance(stacks, tuple) or not stacks or not all(isinstance(stack, Stack) for stack in stacks):
        raise InputError("family: its stacks are a tuple of at least one mtl.Stack, as in (mtl.Stack(…),)")
    for stack in stacks:
        if not all(isinstance(part, str) for part in stack) or not stack.kind.isalpha():
            raise InputError("family: all columns of an mtl.Stack are text, and its kind is of letters")
        if stack.attention.count("{}") != places:
            raise InputError(
                f"family: {stack.attention[:60]!r} is no path of attention modules: use one with {{}} for "
                "the layer's number, such as layers.{}.attention"
            )
    if len({stack.kind for stack in stacks}) < len(stacks):
        raise InputError("family: two of its stacks have one name: use a name for each kind of attention")
    return family


def family_of(model: PreTrainedModel, given: Family | str | None = None) -> Family:
    """The model's row of the table, or the one that is `given` in its place, itself or by its name.

    Raises `InputError` if there is none. The message names the parts of the model that have a row, or else
    the missing row and the modules that are probably output projections.
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


def stack_config(config: PretrainedConfig, stack: Stack) -> Any:
    """The part of a model's configuration that describes a stack; `None` where the model has no such part."""
    return getattr(config, stack.config, None) if stack.config else config


def layer_numbers(config: PretrainedConfig, family: Family, stack: Stack, name: str) -> list[tuple[int, ...]]:
    """What fills the `{}` of a path, per layer: its number, or its group and its place in the group."""
    if not family.layer_groups:
        return [(layer,) for layer in range(number_at(config, stack, "layers", name))]
    if not hasattr(config, "num_hidden_groups"):
        raise InputError(f"{name} has no groups of layers: its row says layer_groups=True")
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [
        (int(turn / per_group), inner)
        for turn in range(config.num_hidden_layers)
        for inner in range(config.inner_group_num)
    ]


def number_at(config: PretrainedConfig, stack: Stack, column: str, name: str) -> int:
    """The number at the key of the configuration that a column of the stack names."""
    key = getattr(stack, column)
    value = getattr(stack_config(config, stack), key, None)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        where = f"{stack.config}.{key}" if stack.config else key
        raise InputError(
            f"the configuration of {name} has no number at {where}, where its row of the table of families "
            f"has the {column} of the attention {stack.kind!r}: correct {column!r} of its mtl.Stack"
        )
    return value


def heads_by_kind(config: PretrainedConfig) -> dict[str, tuple[int, int]]:
    """By kind of attention, the uncut model's numbers of layers and of heads in each."""
    family = FAMILIES.get(config.model_type)
    if family is None or len(family.stacks) == 1:
        return {"self": (int(config.num_hidden_layers), int(config.num_attention_heads))}
    return {
        stack.kind: (int(getattr(config, stack.layers)), int(getattr(config, stack.heads)))
        for stack in family.stacks
    }


def heads_per_group(model: PreTrainedModel) -> int:
    """How many query heads of the uncut model share keys and values; 1 where each has its own.

    Raises `InputError` if the groups do not divide the heads.
    """
    return group_size(model.config, type(model).__name__, family_of(model).stacks[0])


def group_size(config: PretrainedConfig, name: str, stack: Stack) -> int:
    """As `heads_per_group`, from the configuration of the model of this name, for the heads of a stack."""
    heads = number_at(config, stack, "heads", name)
    groups = getattr(stack_config(config, stack), "num_key_value_heads", None) or heads
    if heads % groups:
        raise InputError(
            f"{name}: {counted(groups, 'group')} of keys and values do not divide {counted(heads, 'head')}: "
            "correct num_key_value_heads in its config.json"
        )
    return int(heads // groups)


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


def input_dim(projection: nn.Linear | Conv1D) -> int:
    """The dimension of the weight that runs over inputs; the other one runs over outputs."""
    return 0 if isinstance(projection, Conv1D) else 1


def in_features(projection: nn.Linear | Conv1D) -> int:
    """The size of its input."""
    return projection.weight.shape[input_dim(projection)]


def width_read_by(projection: nn.Module) -> int | None:
    """The size of its input, also if it has an adapter (PEFT) or is quantised; `None` if it is not linear."""
    while (inside := getattr(projection, "get_base_layer", None)) is not None:
        projection = inside()
    if is_plain(projection):
        return in_features(projection)
    width = getattr(projection, "in_features", None)
    return width if isinstance(width, int) else None


def is_plain(projection: nn.Module) -> bool:
    """Whether rows and columns of its weight can be selected: a matrix of numbers that the module holds."""
    weight = projection._parameters.get("weight")
    return (
        isinstance(projection, nn.Linear | Conv1D)
        and weight is not None
        and weight.dim() == 2
        and weight.is_floating_point()
    )


def out_features(projection: nn.Linear | Conv1D) -> int:
    """The size of its output."""
    return projection.weight.shape[1 - input_dim(projection)]


@torch.no_grad()
def scale_inputs(projection: nn.Linear | Conv1D, factor: Float[Tensor, " input"]) -> None:
    """Multiply the weights of each input by a factor, in place."""
    factor = factor.to(projection.weight)
    projection.weight.mul_(factor[:, None] if input_dim(projection) == 0 else factor)


def without_hooks(
    projection: nn.Module, inputs: Float[Tensor, "*rows input"]
) -> Float[Tensor, "*rows output"]:
    """The projection's output for `inputs`, without its hooks and what blocks do to it."""
    outputs: Tensor = own_forward(projection)(inputs)
    return outputs


def note_shape(projection: nn.Module) -> None:
    """Set the sizes in the module's attributes to those of its weight."""
    if isinstance(projection, nn.Linear):
        projection.out_features, projection.in_features = projection.weight.shape
    elif isinstance(projection, Conv1D):
        projection.nx, projection.nf = projection.weight.shape


def without_inputs(projection: nn.Linear | Conv1D) -> nn.Linear:
    """The projection with no inputs, whose output is the bias alone.

    It is an `nn.Linear` for both classes, since a `Conv1D` fails without inputs.
    """
    weight = projection.weight
    # With one input, since torch warns about none, and on `meta`, so that nothing is drawn for its weights.
    empty = nn.Linear(1, out_features(projection), bias=projection.bias is not None, device="meta")
    empty.weight = nn.Parameter(
        weight.new_zeros(out_features(projection), 0), requires_grad=weight.requires_grad
    )
    empty.in_features = 0
    empty.bias = projection.bias
    empty.train(projection.training)
    return empty
