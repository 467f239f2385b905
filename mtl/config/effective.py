"""Which keys make two runs different: those a run uses, that change its result and are not neutral.

A key that is added to the configuration must repeat no finished run and refuse no run folder, as long as its
default does what the program did before. Therefore only values that are not neutral count, in the
fingerprints of a study's jobs as well as between a run's folder and the configuration that resumes it. The
neutral value of a key is its default, or the one in `CHANGED_DEFAULTS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from mtl.config.schema import (
    TASK_NAMES,
    BalancerConfig,
    BatchConfig,
    ClonesConfig,
    CorpusConfig,
    Files,
    GatesConfig,
    PruningRegime,
    TrainConfig,
)
from tasks.twins import tasks_of

CHANGED_DEFAULTS: dict[str, Any] = {
    "gates.penalty": 0.01,
}
"""Defaults that were changed: dotted key -> the value that the program had before, as a plain value.

Whoever changes the default of a key adds it here, with the default of before, and never takes it out again
(a second change leaves the entry as it is). A key that is added with a default that does *not* do what the
program did before belongs here, too, with the value that does. Then

- runs made with the old default keep their fingerprint, and runs with the new one get another, also after
  the default changes again;
- a configuration file of a run that lacks the key is read as having the old value.

A default that computes the same for everything that could be trained before does not belong here:
`encoder.pooling` and `encoder.word_dropout` are `null`, which is `mean` and 0.2 for all encoders but
decoder-only models, of which there were none.
"""

_VOLATILE = ("overwrite", "runs", "trainer.threads", "trainer.checkpoint_minutes", "wandb")
"""Keys that do not change what a run computes: a run may be resumed with others."""

_ALWAYS = ("tasks",)
"""Keys that count though they have their default: a run is what its tasks make of it."""

ROWS_PER_TASK = ("rows", "routed", "shuffled")
"""The kinds of `clones` under which a sentence is a row for each task."""

_OF_BALANCERS = {
    "fixed": ("weights",),
    "moving_average": ("window",),
    "gradnorm": ("alpha", "lr"),
    "uncertainty": ("lr",),
}
"""The settings that each balancer has."""


def only_used(config: TrainConfig) -> TrainConfig:
    """The configuration with the settings that this run does not use at values that count for nothing.

    What a study's runs have in common holds for the runs that it concerns: POS alone has no decoder for DEP,
    a run without masks no penalty, and gradients of tasks are compared where one mask has several.
    """
    default = reference()
    used = tasks_of(config.tasks)
    others = [name for name in TASK_NAMES if name not in used]
    one_row = config.clones.kind not in ROWS_PER_TASK
    under_one_mask = len(config.tasks) > 1 and config.gates.scope == "shared" and one_row
    return dataclasses.replace(
        config,
        **{name: getattr(default, name) for name in others},
        corpus=_corpus(config.corpus, used),
        batch=_batch(config.batch, default.batch),
        balancer=_balancer(config.balancer, default.balancer, (*config.tasks, *used)),
        gates=_gates(config.gates, default.gates, len(config.tasks), config.pruning),
        clones=_clones(config.clones, default.clones) if len(config.tasks) > 1 else default.clones,
        gradient_conflict_every=config.gradient_conflict_every if under_one_mask else 0,
        importance_sentences=(config if config.importance_every else default).importance_sentences,
    )


def _corpus(corpus: CorpusConfig, tasks: tuple[str, ...]) -> CorpusConfig:
    others = {name: None for name in TASK_NAMES if name not in tasks}
    shared = any(getattr(corpus, name) is None for name in tasks)
    path, files = (corpus.path, corpus.files) if shared else (None, None)
    return dataclasses.replace(corpus, **others, path=path, files=files)


def _batch(batch: BatchConfig, default: BatchConfig) -> BatchConfig:
    if batch.mode == "aligned":
        batch = dataclasses.replace(batch, sampling=default.sampling)
    if batch.mode == "aligned" or batch.sampling != "tempered":
        batch = dataclasses.replace(batch, temperature=default.temperature)
    return batch


def _balancer(balancer: BalancerConfig, default: BalancerConfig, tasks: tuple[str, ...]) -> BalancerConfig:
    used = {key: getattr(balancer, key) for key in _OF_BALANCERS.get(balancer.name, ())}
    if "weights" in used:
        used["weights"] = {task: weight for task, weight in balancer.weights.items() if task in tasks}
    return dataclasses.replace(default, name=balancer.name, **used)


def _gates(gates: GatesConfig, default: GatesConfig, tasks: int, regime: PruningRegime) -> GatesConfig:
    if regime == "none":
        return default
    if regime == "fixed":
        return dataclasses.replace(default, scope=gates.scope, masks=gates.masks)
    gates = dataclasses.replace(gates, masks=default.masks)
    if gates.scope == "shared" or tasks < 2:
        gates = dataclasses.replace(gates, overlap_penalty=default.overlap_penalty, at_most=default.at_most)
    if gates.target_open is not None and not isinstance(gates.penalty, Mapping):
        gates = dataclasses.replace(gates, penalty=default.penalty, penalty_warmup=default.penalty_warmup)
    return gates


def _clones(clones: ClonesConfig, default: ClonesConfig) -> ClonesConfig:
    if clones.kind in ("none", "rows"):
        return dataclasses.replace(default, kind=clones.kind)
    one_pass = clones.kind not in ROWS_PER_TASK
    drawn = one_pass or clones.heads == "uncontested"
    return dataclasses.replace(
        clones,
        claims=None if clones.heads == "all" else clones.claims,
        seed=clones.seed if drawn else default.seed,
        noise=clones.noise if one_pass else default.noise,
    )


def reference() -> TrainConfig:
    """The configuration whose settings count for nothing: all defaults, the changed ones as they were."""
    config = TrainConfig()
    for key, value in CHANGED_DEFAULTS.items():
        config = _with(config, key, value)
    return config


def _with(config: Any, key: str, value: Any) -> Any:
    """The configuration with another value at a dotted key; without that key, the configuration itself."""
    first, _, rest = key.partition(".")
    if first not in {field.name for field in dataclasses.fields(config)}:
        return config
    inner = getattr(config, first)
    if rest:
        value = _with(inner, rest, value)
    elif isinstance(inner, tuple):
        value = tuple(value)
    return dataclasses.replace(config, **{first: value})


def different_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two configurations would compute different things.

    A key that one of them lacks (it was made before there was such a key) has its neutral value there. What
    gates cost is no difference between runs without masks.
    """
    neutral = neutral_values()
    unmasked = all(config.get("pruning") == "none" for config in (old, new))
    first, second = dict(_leaves(old, neutral)), dict(_leaves(new, neutral))
    return [
        key
        for key in dict.fromkeys([*first, *second])
        if not _is_volatile(key)
        and not (unmasked and key.startswith("gates."))
        and first.get(key, neutral.get(key)) != second.get(key, neutral.get(key))
    ]


def counting_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys of a run that make it what it is, with their values.

    These are the keys whose value is not neutral; those of gates count in runs with masks only. Places of the
    corpus and of the run that training starts from are left out: what lies there is fingerprinted by itself.
    """
    neutral = neutral_values()
    unmasked = config.get("pruning") == "none"
    return {
        key: value
        for key, value in _leaves(config, neutral)
        if not (_is_volatile(key) or _is_place(key) or (unmasked and key.startswith("gates.")))
        and (key in _ALWAYS or key not in neutral or value != neutral[key])
    }


def with_older_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of an older run, with the old defaults of the keys that it lacks."""
    values = dict(config)
    known = dict(_leaves(dataclasses.asdict(TrainConfig()), {}))
    for key, value in CHANGED_DEFAULTS.items():
        if key not in known:
            continue
        inner: Any = values
        *above, last = key.split(".")
        for part in above:
            inner[part] = dict(inner.get(part) or {})
            inner = inner[part]
        inner.setdefault(last, value)
    return values


def plain(value: Any) -> Any:
    """Convert tuples to lists, recursively, as YAML and JSON give them back."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def neutral_values() -> dict[str, Any]:
    """The values that count for nothing, by dotted key; with those of keys that exist no more."""
    files = dataclasses.asdict(Files())
    slots = ("files", *TASK_NAMES)
    in_files = {f"corpus.{slot}.{key}": value for slot in slots for key, value in files.items()}
    return {**CHANGED_DEFAULTS, **in_files, **dict(_leaves(dataclasses.asdict(reference()), {}))}


def _leaves(
    config: Mapping[str, Any], neutral: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; a mapping is one value where the neutral value is a mapping, too."""
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and not isinstance(neutral.get(dotted), Mapping):
            yield from _leaves(value, neutral, f"{dotted}.")
        else:
            yield dotted, plain(value)


def _is_volatile(key: str) -> bool:
    return any(key == volatile or key.startswith(f"{volatile}.") for volatile in _VOLATILE)


def _is_place(key: str) -> bool:
    """Whether a key's value is a path."""
    in_corpus = key == "corpus.path" or (
        key.startswith("corpus.") and key.rpartition(".")[2] in ("train", "dev", "test")
    )
    return in_corpus or key in ("init_from", "gates.masks", "clones.claims")
