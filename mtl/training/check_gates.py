"""Reject settings of gates that contradict each other or ask for heads that the model does not have.

Importing this module does not import torch, so that a dry run stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from mtl.config.effective import reference, unused_keys
from mtl.config.schema import LEARNING, GatesConfig, TrainConfig, values_of
from mtl.errors import InputError
from mtl.heads.family_table import KINDS_OF_TRANSLATION
from mtl.heads.wanted import heads_wanted
from mtl.tasks.in_words import first_line


def check_gates(config: TrainConfig) -> None:
    """Raise `InputError` for settings of gates that contradict each other; reads no file and no encoder.

    Here the number of heads wanted is compared with that of a model from scratch, in `check_target` with that
    of a checkpoint.
    """
    if config.pruning not in LEARNING:
        return
    available = _kinds_of(config)
    check_kinds(config.gates.kinds, available)
    _check_by_kind(config.gates, available)
    size = config.seq2seq
    if size.architecture is not None:
        layers = {"encoder": size.layers}
        decoder_layers = size.decoder_layers or size.layers
        heads = {kind: layers.get(kind, decoder_layers) * size.heads for kind in available}
        _check_heads(config.gates, len(config.tasks), heads)


def unused_gates(config: TrainConfig) -> str | None:
    """A message that names the settings of gates that a run without learned masks ignores; `None`: none."""
    if config.pruning in LEARNING:
        return None
    unset = (GatesConfig(), reference().gates)  # in a study, settings that a run does not use have the latter
    given = [
        key
        for key in unused_keys(config)
        if key.startswith("gates.")
        and attrgetter(key)(config) not in [getattr(gates, key.removeprefix("gates.")) for gates in unset]
    ]
    if not given:
        return None
    return f"without effect with pruning={config.pruning}, which learns no mask: {', '.join(given)}"


def _kinds_of(config: TrainConfig) -> tuple[str, ...]:
    """The kinds of attention of the model that is trained."""
    return KINDS_OF_TRANSLATION if config.translates() else ("self",)


def check_kinds(kinds: Sequence[str] | None, available: Sequence[str]) -> None:
    """Raise `InputError` unless `gates.kinds` is `null` or names kinds of attention that the model has."""
    if kinds is None:
        return
    for kind in kinds:
        if kind not in available:
            raise InputError(
                f"gates.kinds={','.join(kinds)}: the model has no attention of kind {kind}: it has "
                f"{', '.join(available)}"
            )
    if not kinds:
        raise InputError(f"gates.kinds is empty: use at least one of {', '.join(available)}")


def _check_by_kind(gates: GatesConfig, available: Sequence[str]) -> None:
    """Raise `InputError` unless targets and penalties by kind give each kind with gates exactly one value.

    Settings that give one value for all kinds pass, but not a target for all beside penalties by kind.
    """
    by_kind = {
        name: values
        for name, values in (("target_open", gates.target_open), ("penalty", gates.penalty))
        if isinstance(values, Mapping)
    }
    given: dict[str, str] = {}
    for name, values in by_kind.items():
        if not values:
            raise InputError(
                f"gates.{name} is empty: use a number for each of {', '.join(available)}, or one for all"
            )
        for kind, value in values.items():
            shown = f"gates.{name}.{kind}={value:g}"
            if kind not in available:
                raise InputError(
                    f"{shown}: the model has no attention of kind {kind}: it has {', '.join(available)}"
                )
            if gates.kinds is not None and kind not in gates.kinds:
                raise InputError(
                    f"{shown}: gates.kinds={','.join(gates.kinds)} gives heads of kind {kind} no gates: "
                    "leave one of them out"
                )
            if kind in given:
                raise InputError(f"{given[kind]} and {shown}: give a kind of attention one of the two")
            given[kind] = shown
    if "penalty" in by_kind and gates.target_open is not None and "target_open" not in by_kind:
        raise InputError(
            f"gates.target_open={gates.target_open:g} is for all kinds of attention, but gates.penalty is "
            "given by kind: leave one of them out"
        )
    without = [kind for kind in gates.kinds or available if kind not in given]
    if by_kind and without:
        raise InputError(
            f"{' and '.join(f'gates.{name}' for name in by_kind)}: nothing is given for "
            f"{', '.join(without)}: set a target or a penalty for each kind, or use "
            f"gates.kinds={','.join(given)}"
        )


def check_target(config: TrainConfig) -> None:
    """Raise `InputError` for an encoder that does not exist or has fewer heads than are to stay open.

    Reads the encoder's config.json, not its weights. The model of a run to start from is checked when it is
    loaded.
    """
    from transformers import AutoConfig

    from mtl.heads.families import heads_by_kind
    from mtl.heads.load import LOAD_ERRORS
    from mtl.models.known_encoders import check_encoder, embedded_minilm

    if config.init_from is not None or config.seq2seq.architecture is not None:
        return
    check_encoder(config.encoder.name)
    if config.gates.target_open is None or config.pruning not in LEARNING:
        return
    name = config.encoder.name
    try:
        encoder = AutoConfig.from_pretrained(str(embedded_minilm()) if name == "minilm" else name)
        heads = heads_by_kind(encoder)
    except LOAD_ERRORS as error:
        raise InputError(
            f"the config.json of {name} cannot be used ({first_line(error)}): was it changed?"
        ) from error
    if tuple(heads) == _kinds_of(config):  # an encoder with other kinds is refused when it is loaded
        _check_heads(config.gates, len(config.tasks), heads)


def _check_heads(gates: GatesConfig, tasks: int, heads: Mapping[str, int]) -> None:
    """Raise `InputError` if `heads`, their numbers by kind, cannot meet the targets of all tasks."""
    gated = {kind: number for kind, number in heads.items() if gates.kinds is None or kind in gates.kinds}
    for key, target in values_of("target_open", gates.target_open):
        _, _, kind = key.removeprefix("gates.").partition(".")
        of_kind = gated[kind] if kind else sum(gated.values())
        try:
            wanted = heads_wanted(target, of_kind)
        except InputError as error:
            raise InputError(f"{key}={target:g}: {error}") from error
        if gates.at_most is not None:
            from mtl.heads.allotment import check_at_most  # imports torch

            check_at_most(tasks, wanted, gates.at_most, of_kind)
