"""The measurements on a finished run's heads, as a study's file asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mtl.analysis.ablation_run import every_ablation, measure_ablation
from mtl.analysis.importance_run import measure_importance
from mtl.analysis.probe_run import probe_run
from mtl.analysis.relevance_run import measure_relevance
from mtl.analysis.trained import TrainedRun, open_trained
from mtl.config.parse import configuration_from
from mtl.config.schema import CorpusConfig
from mtl.models.inputs import InputCache

PROBES = ("target", "split", "centroids", "final_special", "tasks", "source", "out")
"""Keys of a job's settings that probing takes; a `corpus` takes the place of its source."""
CHOOSING = "dev"
"""The split for importance and relevance, which choose heads; ablation judges the choice on another one."""


def measure(settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame | None:
    """Make the measurements that a job's settings name, and write them into heads.parquet.

    Returns the table of probing, or `None` if probing is not among them.
    """
    probed = None
    measures = settings.get("measures", ["probes"])
    if "probes" in measures:
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
        probed = result.heads
    run, sentences = Path(settings["target"]), settings.get("sentences")
    if "importance" in measures:
        measure_importance(_opened(run, CHOOSING, sentences, inputs))
    if "relevance" in measures:
        measure_relevance(_opened(run, CHOOSING, sentences, inputs))
    if "ablation" in measures:
        trained = _opened(run, settings["split"], sentences, inputs)
        measure_ablation(trained, every_ablation(trained, ("head",)))
    return probed


def _opened(run: Path, split: str, sentences: int | None, inputs: InputCache) -> TrainedRun:
    trained = open_trained(run, None, split, sentences=sentences, inputs=inputs)
    for reason in trained.left_out:
        print(f"not measured: {reason}")
    return trained
