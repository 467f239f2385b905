"""A measurement on a finished run's heads, as a study's file asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mtl.analysis.ablation.run import every_ablation, measure_ablation
from mtl.analysis.curves.curve import measure_curve
from mtl.analysis.curves.methods import methods_of, ranking_of
from mtl.analysis.curves.start import Start
from mtl.analysis.importance.run import measure_importance
from mtl.analysis.probing.run import probe_run
from mtl.analysis.relevance.run import measure_relevance
from mtl.analysis.trained import TrainedRun, open_trained
from mtl.config.parse import configuration_from
from mtl.config.schema import CorpusConfig
from mtl.corpora.load import corpus_at
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.study.config import MeasureGroup

PROBES = ("target", "split", "centroids", "final_special", "tasks", "source", "out")
"""Keys of a job's settings that probing takes; a `corpus` takes the place of its source."""
CHOOSING = "dev"
"""The split for importance, relevance and orders of curves, which choose heads; others judge the choice."""


def measure(name: MeasureGroup, settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame | None:
    """Make a measurement by a job's settings, and write it into heads.parquet or into files of its own.

    Returns the table of probing, `None` for other measurements.
    """
    run, sentences = Path(settings["target"]), settings.get("sentences")
    if name == "probes":
        return _probed(settings, inputs)
    if name == "importance":
        measure_importance(_opened(run, CHOOSING, sentences, inputs))
    elif name == "relevance":
        measure_relevance(_opened(run, CHOOSING, sentences, inputs))
    elif name == "ablation":
        trained = _opened(run, settings["split"], sentences, inputs)
        measure_ablation(trained, every_ablation(trained, settings["close"]))
    elif name == "curve":
        _curve(_opened(run, settings["split"], sentences, inputs), settings)
    else:
        _carry_over(run, settings, inputs)
    return None


def _curve(scoring: TrainedRun, settings: Mapping[str, Any]) -> None:
    start = Start.of(scoring)
    ranking = ranking_of(start, CHOOSING, settings.get("sentences"))
    measure_curve(start, methods_of(start, settings["orders"], ranking, draws=settings["draws"]))


def _carry_over(run: Path, settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Importance on a split of the run's corpus and of another one, in a table each."""
    tasks = Run.open(run).config()["tasks"]
    for place, source in (("own", None), ("other", corpus_at(settings["other"], tasks))):
        table = run / f"importance-{place}.parquet"
        measure_importance(
            _opened(run, settings["split"], settings.get("sentences"), inputs, source=source, out=table)
        )


def _probed(settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame:
    arguments = {key: settings[key] for key in PROBES if key in settings}
    if "source" in arguments:
        arguments["source"] = configuration_from(CorpusConfig, arguments["source"], "corpus")
        arguments["out"] = Path(arguments["out"])
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
    run: Path,
    split: str,
    sentences: int | None,
    inputs: InputCache,
    *,
    source: CorpusConfig | None = None,
    out: Path | None = None,
) -> TrainedRun:
    trained = open_trained(run, source, split, sentences=sentences, inputs=inputs, out=out)
    for reason in trained.left_out:
        print(f"not measured: {reason}")
    return trained
