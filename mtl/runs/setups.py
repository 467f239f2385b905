"""Which runs are one setup: those whose configurations differ only in seed and in what does not matter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtl.config.effective import neutral_values
from probes.report.data import Setup

_VALUES_IN_WORDS = {
    ("max_epochs", "1"): "1 epoch",
    ("gates.scope", "per_task"): "a mask per task",
    ("gates.scope", "shared"): "one mask",
    ("gates.target_open", "None"): "no target",
    ("gates.penalty", "None"): "no penalty",
}
_KEYS_IN_WORDS = {
    "max_epochs": "{} epochs",
    "gates.penalty": "penalty {}",
    "gates.target_open": "target {}",
    "gates.masks": "masks {}",
    "batch.sentences": "{} sentences a batch",
    "optimizer.encoder_lr": "encoder rate {}",
    "optimizer.decoder_lr": "decoder rate {}",
}
_BY_KIND_IN_WORDS = {"gates.penalty": "{} penalty {}", "gates.target_open": "{} target {}"}
"""Keys that may have a value for each kind of attention."""
_PLAIN_COPIES = {"seed": None, "noise": 0.01}
"""Default settings of copies of heads; a setup's name has other values only."""
_OF_ONE_RUN = ("name", "seed", "runs", "overwrite", "init_from", "tasks", "pruning", "trainer", "wandb")
"""Keys in which the runs of a setup may differ, or that its name contains anyway."""


def setups_of(configs: Sequence[Mapping[str, Any]]) -> list[Setup]:
    """The setup of each run.

    `STL` is all single-task runs, `MTL-n` those of n tasks, with their names where there are several sets of
    n. After commas follow pruning and, in words, every key whose values differ between runs of the same
    tasks.
    """
    tasks = [tuple(config["tasks"]) for config in configs]
    sets = {len(names): {other for other in tasks if len(other) == len(names)} for names in tasks}
    neutral = neutral_values()
    prunings = [str(config.get("pruning", "none")) for config in configs]
    flat = [_completed(_flat(_used(config)), config, neutral) for config in configs]
    varying = {size: _varying(flat, configs, tasks, size) for size in sets}
    bases, variants = [], []
    for trained, pruning, values in zip(tasks, prunings, flat, strict=True):
        names = f" {'+'.join(trained)}" if len(sets[len(trained)]) > 1 else ""
        bases.append("STL" if len(trained) == 1 else f"MTL-{len(trained)}{names}")
        keys = [in_words(key, values[key]) for key in varying[len(trained)] if key in values]
        variants.append(tuple([pruning] * (pruning != "none") + keys))
    settings = [{**values, "pruning": pruning} for values, pruning in zip(flat, prunings, strict=True)]
    single = {
        variant: {key: values.get(key) for key in ("pruning", *varying[1])}
        for base, variant, values in zip(bases, variants, settings, strict=True)
        if base == "STL"
    }
    return [
        Setup(
            ", ".join([base, *variant]),
            _baseline(base, variant, values, single),
            base == "STL",
            len(trained),
            pruning,
        )
        for base, variant, values, trained, pruning in zip(
            bases, variants, settings, tasks, prunings, strict=True
        )
    ]


def in_words(key: str, value: str) -> str:
    """A setting as legends and tables print it; two settings never have the same words (9.0 is 9)."""
    if (key, value) in _VALUES_IN_WORDS:
        return _VALUES_IN_WORDS[key, value]
    value = re.sub(r"^(-?\d+)\.0$", r"\1", value)
    if key in _KEYS_IN_WORDS:
        return _KEYS_IN_WORDS[key].format(value)
    above, _, kind = key.rpartition(".")
    if above in _BY_KIND_IN_WORDS:
        return _BY_KIND_IN_WORDS[above].format(kind, value)
    words = re.sub(r"[._]", " ", key)
    return {"True": words, "False": f"without {words}", "None": f"no {words}"}.get(value, f"{words} {value}")


def _baseline(
    base: str,
    variant: tuple[str, ...],
    values: Mapping[str, str],
    single: Mapping[tuple[str, ...], Mapping[str, str | None]],
) -> str | None:
    """The single-task setup to compare with: for a joint setup the most similar one, else the plainest.

    `single` has the values in which single-task setups differ. `None` for the plainest one itself, and if
    there is no single-task setup.
    """
    if not single:
        return None
    plainest = min(single, key=_plainness)
    if base == "STL":
        return None if variant == plainest else ", ".join(["STL", *plainest])

    def unlike(words: tuple[str, ...]) -> int:
        return sum(values.get(key) != value for key, value in single[words].items())

    alike = min(single, key=lambda words: (unlike(words), _plainness(words)))
    return ", ".join(["STL", *alike])


def _plainness(words: tuple[str, ...]) -> tuple[int, list[list[str | int]]]:
    """Sorts fewer words first, and numbers in them by size."""
    parts = [re.split(r"(\d+)", word) for word in words]
    return len(words), [[int(part) if part.isdigit() else part for part in word] for word in parts]


def _varying(
    flat: Sequence[Mapping[str, str]],
    configs: Sequence[Mapping[str, Any]],
    tasks: Sequence[tuple[str, ...]],
    size: int,
) -> list[str]:
    """Keys that take several values among runs of the same tasks and pruning, of this many tasks."""
    groups: dict[tuple[object, ...], list[Mapping[str, str]]] = {}
    for values, config, trained in zip(flat, configs, tasks, strict=True):
        if len(trained) == size:
            groups.setdefault((trained, config.get("pruning", "none")), []).append(values)
    keys = dict.fromkeys(key for values in flat for key in values)
    return [
        key
        for key in keys
        if any(len({values.get(key) for values in group}) > 1 for group in groups.values())
    ]


def _unused(config: Mapping[str, Any]) -> set[str]:
    """Groups of keys that are not compared key by key: copies, and gates of a run without masks."""
    return {"clones"} | ({"gates"} if config.get("pruning", "none") == "none" else set())


def _used(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration without the groups in `_unused`, and with copies of heads as one text."""
    unused = _unused(config)
    used = {key: value for key, value in config.items() if key not in unused}
    clones = dict(config.get("clones") or {})
    kind = clones.pop("kind", "none")
    if kind == "none":
        return used
    words = [kind] + ([] if kind == "rows" else [clones.get("heads", "contested")])
    words += [
        f"{key} {clones[key]}" for key, value in _PLAIN_COPIES.items() if clones.get(key, value) != value
    ]
    return {**used, "clones": " ".join(words)}


def _completed(
    values: Mapping[str, str], config: Mapping[str, Any], neutral: Mapping[str, Any]
) -> dict[str, str]:
    """The values, and neutral ones for keys that the run lacks because it is older than these keys.

    A run does not lack a key that it has for each kind of attention.
    """
    left_out = {*_OF_ONE_RUN, *_unused(config)}
    added = {
        key: str(value)
        for key, value in neutral.items()
        if key.partition(".")[0] not in left_out
        and not isinstance(value, Mapping)
        and not any(given.startswith(f"{key}.") for given in values)
    }
    return {**added, **values}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys and their values as text."""
    values: dict[str, str] = {}
    for key, value in config.items():
        if not prefix and key in _OF_ONE_RUN:
            continue
        if isinstance(value, Mapping):
            values |= _flat(value, f"{prefix}{key}.")
        elif prefix + key == "gates.masks" and value is not None:
            values[prefix + key] = mask_set(str(value))[0]
        else:
            values[prefix + key] = str(value)
    return values


def mask_set(path: str) -> tuple[str, int | None]:
    """The name of a mask file without folder, suffix and draw, and the number of its draw, if it has one.

    Files that differ only in their draw, `NAME-draw1.parquet` and `NAME-draw2.parquet`, are of one setup.
    """
    stem = Path(path).stem
    name, _, number = stem.rpartition("-draw")
    return (name, int(number)) if name and number.isdecimal() else (stem, None)
