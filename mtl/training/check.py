"""Reject settings that are inconsistent, gates that cannot be, and inputs from which nothing can be learned.

Importing this module does not import torch, so that a dry run stays fast.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name

from mtl.config.effective import plain, without_effect
from mtl.config.keys import faults
from mtl.config.parse import out_of_range
from mtl.config.schema import KIND_NAMES, LEARNING, SPLITS, GatesConfig, TrainConfig, given_by, values_by_part
from mtl.corpora.checks import CorpusCheck, refuse_unintended
from mtl.corpora.load import is_on_disk, refuse_files_of_two_splits, require_first_sentence, require_layers
from mtl.errors import InputError, plain_name
from mtl.features import added
from mtl.heads.wanted import DEFAULT_TARGET, check_at_least, heads_wanted
from mtl.models.found import check_encoder
from mtl.models.inputs import InputCache
from mtl.tasks.in_words import first_line

_TENSORBOARD = ("tensorboard", "tensorboardX")
"""The packages of which Lightning's logger needs one."""


def check_settings(config: TrainConfig) -> None:
    """Raise `InputError` for settings that are out of range or contradict each other.

    Reads no file and no encoder, and does not import torch.
    """
    if config.name is not None:
        plain_name(config.name, "name")
    for fault in chain(out_of_range(config), faults(config)):  # rules assume values in their ranges
        raise InputError(fault)
    if config.balancer.name == "torchjd" and importlib.util.find_spec("torchjd") is None:
        raise InputError(
            "balancer.name=torchjd needs the library of that name: pip install 'mtl-heads[torchjd]'"
        )
    if "tensorboard" in config.loggers and not any(map(importlib.util.find_spec, _TENSORBOARD)):
        raise InputError(
            "loggers names tensorboard, which is not installed: install the package tensorboard, or leave it "
            "out"
        )
    check_gates(config)
    for keys in added(lambda feature: feature.keys).values():
        if keys.check is not None:
            resolve_name(keys.check)(config)


def check_gates(config: TrainConfig) -> None:
    """Raise `InputError` for settings of gates that contradict each other; reads no file and no encoder.

    Here the number of heads wanted is compared with that of a model from scratch, in `check_target` with that
    of a checkpoint.
    """
    if config.pruning not in LEARNING:
        return
    available = _kinds_of(config)
    check_kinds(config.gates.kinds, available)
    _check_by_part(config.gates, available, config.tasks)
    own = config.own_model()
    if own is not None and config.architecture() is not None:
        _check_heads(config.gates, resolve_name(added(lambda feature: feature.own_models)[own].heads)(config))


def said_of_unused(config: TrainConfig) -> list[str]:
    """Lines that name the settings with values of their own that the run does not use."""
    unused = without_effect(config)
    gates = [key for key in unused if key.startswith("gates.") and config.pruning not in LEARNING]
    others = [key for key in unused if key not in gates]
    why = f"without effect with pruning={config.pruning}, which learns no mask"
    lines = {why: gates, "without effect on this run, which does not use them": others}
    default = TrainConfig()
    if config.wandb.mode is None and "wandb" not in config.loggers:
        names = ("project", "entity", "notes", "id", "resume", "log_model")
        off = [name for name in names if getattr(config.wandb, name) != getattr(default.wandb, name)]
        lines["without effect, since neither wandb.mode nor loggers switches W&B on"] = [
            f"wandb.{name}" for name in off
        ]
        if not config.loggers and config.log_every != default.log_every:
            lines["without effect, since the run has no loggers"] = ["log_every"]
    return [f"{line}: {', '.join(keys)}" for line, keys in lines.items() if keys]


def _kinds_of(config: TrainConfig) -> tuple[str, ...]:
    """The kinds of attention of the model that is trained."""
    own = config.own_model()
    return ("self",) if own is None else added(lambda feature: feature.own_models)[own].attentions


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


def _check_by_part(gates: GatesConfig, available: Sequence[str], tasks: Sequence[str]) -> None:
    """Raise `InputError` unless targets and penalties by kind of attention, or by task, give each kind with
    gates, or each task, exactly one value.

    Settings that give one value for all pass, but not a target for all beside penalties by kind or task.
    Values for tasks that are not trained count for nothing.
    """
    by_part = {
        name: values
        for name, values in (("target_open", gates.target_open), ("penalty", gates.penalty))
        if isinstance(values, Mapping)
    }
    ways = {name: given_by(values) for name, values in by_part.items()}
    if len({*ways.values()}) > 1:
        [one, other] = (f"gates.{name} is given by {way}" for name, way in ways.items())
        raise InputError(f"{one} and {other}: give both in the same way")
    way = next(iter(ways.values()), "kind")
    wanted = tasks if way == "task" else gates.kinds or available
    given: dict[str, str] = {}
    for name, values in by_part.items():
        if not values:
            own_masks = gates.scope == "per_task" or len(tasks) == 1
            parts = tasks if own_masks and available == ("self",) else available
            raise InputError(
                f"gates.{name} is empty: use a number for each of {', '.join(parts)}, or one for all"
            )
        for part, value in values.items():
            shown = f"gates.{name}.{part}={value:g}"
            if way == "kind":
                _require_gates(shown, part, gates, available)
            if part in given:
                what = "a kind of attention" if way == "kind" else "a task"
                raise InputError(f"{given[part]} and {shown}: give {what} one of the two")
            given[part] = shown
    if "penalty" in by_part and gates.target_open is not None and "target_open" not in by_part:
        every = "all kinds of attention" if way == "kind" else "all tasks"
        raise InputError(
            f"gates.target_open={gates.target_open:g} is for {every}, but gates.penalty is given by {way}: "
            "leave one of them out"
        )
    without = [part for part in wanted if part not in given]
    if by_part and without:
        cure = f", or use gates.kinds={','.join(given)}" if way == "kind" else ", or one number for all"
        raise InputError(
            f"{' and '.join(f'gates.{name}' for name in by_part)}: nothing is given for "
            f"{', '.join(without)}: set a target or a penalty for each {way}{cure}"
        )
    if way == "task" and len(by_part) > 1 and len({task in by_part["penalty"] for task in tasks}) > 1:
        raise InputError(
            "gates.target_open and gates.penalty are for different tasks of one run: give all of its tasks a "
            "target, or all a penalty"
        )


def _require_gates(shown: str, kind: str, gates: GatesConfig, available: Sequence[str]) -> None:
    """Raise `InputError` for a value of a kind of attention that has no gates."""
    if kind not in available:
        raise InputError(f"{shown}: the model has no attention of kind {kind}: it has {', '.join(available)}")
    if gates.kinds is not None and kind not in gates.kinds:
        raise InputError(
            f"{shown}: gates.kinds={','.join(gates.kinds)} gives heads of kind {kind} no gates: "
            "leave one of them out"
        )


def check_target(config: TrainConfig) -> None:
    """Raise `InputError` for an encoder that does not exist or has fewer heads than are to stay open.

    Reads the encoder's config.json, not its weights. The model of a run to start from is checked when it is
    loaded.
    """
    from mtl.heads.families import heads_by_kind
    from mtl.heads.load import LOAD_ERRORS, configuration
    from mtl.models.found import check_encoder, embedded_minilm

    if config.init_from is not None or config.architecture() is not None:
        return
    check_encoder(config.encoder.name)
    asked = config.gates.target_open is not None or config.gates.at_least
    if not asked or config.pruning not in LEARNING:
        return
    name = config.encoder.name
    try:
        encoder = configuration(str(embedded_minilm()) if name == "minilm" else name)
        heads = heads_by_kind(encoder)
    except LOAD_ERRORS as error:
        raise InputError(
            f"the config.json of {name} cannot be used ({first_line(error)}): was it changed?"
        ) from error
    if tuple(heads) == _kinds_of(config):  # an encoder with other kinds is refused when it is loaded
        _check_heads(config.gates, heads)


def _check_heads(gates: GatesConfig, heads: Mapping[str, tuple[int, int]]) -> None:
    """Raise `InputError` if the model has too few heads for a target; `heads`: layers, and heads in each."""
    gated = {
        kind: [in_layer] * layers
        for kind, (layers, in_layer) in heads.items()
        if gates.kinds is None or kind in gates.kinds
    }
    targets = gates.target_open
    if targets is None and gates.penalty is None:
        targets = DEFAULT_TARGET
    for key, target in values_by_part("target_open", targets):
        _, _, part = key.removeprefix("gates.").partition(".")
        layers = gated[part] if part in KIND_NAMES else [*chain.from_iterable(gated.values())]
        try:
            wanted = heads_wanted(target, sum(layers))
        except InputError as error:
            raise InputError(f"{key}={target:g}: {error}") from error
        check_at_least(gates.at_least, layers, wanted, name=part)


def check_inputs(
    configs: Iterable[TrainConfig], inputs: InputCache | None, to_come: Collection[str] = ()
) -> None:
    """Raise `InputError` for the first encoder, corpus or mask file that cannot be used.

    Mask files in `to_come` are not read: another run has yet to write them.

    With `inputs`, every sentence is read into that cache. Without it, as in a dry run, a split is read only
    up to the first sentence that is annotated for the task, so faults behind that sentence are not found. The
    same holds for training sentences in a store on disk, which the first run checks when it makes the store.
    """
    seen: set[str] = set()
    for config in configs:
        if config.encoder.name not in seen:
            seen.add(config.encoder.name)
            check_encoder(config.encoder.name)
        if config.pruning == "fixed" and config.gates.masks not in to_come:
            from mtl.models.mask_file import check_masks, check_shape

            path = Path(str(config.gates.masks))
            masks = check_masks(path, config.gates.scope, tuple(config.chosen()))
            if config.architecture() is None and config.init_from is None:
                check_shape(path, masks, config.encoder.name)
        corpus = plain(dataclasses.asdict(config.corpus))
        for name, task in config.chosen().items():
            if not task.layers and len(config.tasks) > 1:
                continue  # it is trained on the sentences of the other tasks
            key = json.dumps([name, corpus, plain(dataclasses.asdict(task))])
            if key in seen:
                continue
            seen.add(key)
            refuse_files_of_two_splits(config.corpus, {name: task})
            splits = {}
            for split in SPLITS:
                annotated = split != "test"  # test may be without gold annotation
                if inputs is None or (split == "train" and is_on_disk(config.corpus, {name: task})):
                    require_first_sentence(config.corpus, name, task, split, annotated)
                    continue
                splits[split] = inputs.split(config.corpus, {name: task}, split)
                if annotated:
                    require_layers(splits[split], {name: task}, split)
            refuse_unintended(CorpusCheck(splits, {name: task}))
