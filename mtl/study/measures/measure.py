"""Measurements on the heads of a finished run, with the settings of a study's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import polars as pl

from mtl.analysis.ablation.run import every_ablation, measure_ablation
from mtl.analysis.curves.curve import measure_curve
from mtl.analysis.curves.methods import methods_of, ranking_of
from mtl.analysis.curves.start import Start
from mtl.analysis.measuring import make, settings_of
from mtl.analysis.probing.run import probe_run
from mtl.analysis.trained import TrainedRun, open_trained
from mtl.config.instances import Instance, kinds_in
from mtl.config.keys import hints_of
from mtl.config.schema import CorpusConfig
from mtl.config.typed import configuration_from
from mtl.corpora.sources import corpus_at
from mtl.models.inputs import InputCache
from mtl.probes.measures.groups import GROUPS
from mtl.runs.folder.run import Run

PROBES = ("target", "split", "centroids", "final_special", "tasks", "source", "out", "instances")
"""Keys of a job's settings that are arguments of probing; a `corpus` replaces the `source`."""
CHOOSING = "dev"
"""The split for measures that choose heads: importance, relevance and orders of curves."""


def measure(name: str, settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame | None:
    """Make a measurement with a job's settings, and write it into heads.parquet or its own files.

    Returns the table of probing, and `None` for other measurements.
    """
    group = GROUPS[name]
    if group.study:
        heads: pl.DataFrame | None = resolve_name(group.study)(settings, inputs)
        return heads
    options = settings.get("options", {}).get(name, {})
    own = {key: settings[key] for key in group.settings if key in hints_of(settings_of(group.code))}
    source = settings[group.corpus] if group.corpus else None
    split = settings["split"] if "split" in group.settings else CHOOSING
    for line in make(name, _opened(settings, inputs, split, source), {**own, **options}).notes:
        print(line)
    return None


def ablated(settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Measure ablation of heads, one by one or by layer."""
    trained = _opened(settings, inputs, settings["split"])
    measure_ablation(trained, every_ablation(trained, settings["close"]))


def curve(settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Measure pruning curves."""
    start = Start.of(_opened(settings, inputs, settings["split"]))
    ranking = ranking_of(start, CHOOSING, settings.get("sentences"))
    measure_curve(start, methods_of(start, settings["orders"], ranking, draws=settings["draws"]))


def carried_over(settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Measure importance on a split of the run's corpus and of another one, in two tables."""
    for place, source in (("own", None), ("other", settings["other"])):
        table = Path(settings["target"]) / f"importance-{place}.parquet"
        make("importance", _opened(settings, inputs, settings["split"], source, table), {})


def probed(settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame:
    """Measure what heads attend to and encode; returns the table."""
    arguments = {key: settings[key] for key in PROBES if key in settings}
    if "source" in arguments:
        arguments["source"] = configuration_from(CorpusConfig, arguments["source"], "corpus")
    if "instances" in arguments:
        made = arguments["instances"].items()
        arguments["instances"] = {name: configuration_from(Instance, values) for name, values in made}
    if settings.get("corpus") is not None:
        arguments["source"] = CorpusConfig(settings["corpus"])
    result = probe_run(**arguments, material=inputs)
    for reason in result.left_out:
        print(f"not probed: {reason}")
    for note in result.notes:
        print(f"note: {note}")
    print(f"wrote {result.path}")
    return result.heads


def _opened(
    settings: Mapping[str, Any],
    inputs: InputCache,
    split: str,
    source: str | None = None,
    out: Path | None = None,
) -> TrainedRun:
    run, sentences = Path(settings["target"]), settings.get("sentences")
    corpus = None if source is None else corpus_at(source, kinds_in(Run.open(run).config()))
    trained = open_trained(run, corpus, split, sentences=sentences, inputs=inputs, out=out)
    for reason in trained.left_out:
        print(f"not measured: {reason}")
    return trained
