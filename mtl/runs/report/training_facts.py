"""What a run was trained on and for how long, as the report shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtl.config.schema import default_rates

COLUMNS = ("data", "sentences", "epochs", "batch", "rates")
"""The places of its corpora; the sentences of train, dev and test; the most passes over train; the sentences
of a batch; the learning rates of the encoder and the decoders. Empty if the run does not record it."""


def training_facts(config: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of `COLUMNS`, from a run's config.yaml and status.json; older runs lack some."""
    sizes = status.get("sentences")
    batch = config.get("batch", {}).get("sentences")
    return (
        ", ".join(dict.fromkeys(_places(config))),
        " + ".join(str(size) for size in sizes.values()) if isinstance(sizes, Mapping) else "",
        str(config.get("max_epochs", "")),
        "" if batch is None else str(batch),
        _rates(config),
    )


def _places(config: Mapping[str, Any]) -> Iterator[str]:
    corpus = config.get("corpus", {})
    for task in config["tasks"]:
        own = corpus.get(task) or corpus.get("instances", {}).get(task) or corpus.get("files")
        place = own.get("train") if own else corpus.get("path")
        if place:
            yield str(place)


def _rates(config: Mapping[str, Any]) -> str:
    given = config.get("optimizer")
    if not given:
        return ""
    architecture = config.get("seq2seq", {}).get("architecture")
    rates = default_rates(config["encoder"]["name"], architecture)
    known = [given[name] if given.get(name) is not None else rate for name, rate in rates.items()]
    return ", ".join(f"{rate:.2g}" for rate in known)
