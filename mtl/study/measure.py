"""The measurements on a finished run's heads, as a study's file asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mtl.analysis.ablation_run import every_ablation, measure_ablation
from mtl.analysis.importance_run import measure_importance
from mtl.analysis.probe_run import probe_run
from mtl.analysis.trained import open_trained
from mtl.config.parse import configuration_from
from mtl.config.schema import CorpusConfig
from mtl.models.inputs import InputCache

PROBES = ("target", "split", "centroids", "final_special", "tasks", "source", "out")
"""What probing takes of a job's settings."""
IMPORTANCE_SPLIT = "dev"
"""Importance is what heads are chosen by, so that test sentences must not have part in it."""


def measure(settings: Mapping[str, Any], inputs: InputCache) -> pl.DataFrame | None:
    """Measure what a job's settings name, and write it into heads.parquet; returns what probing gives, if it
    is asked for."""
    probed = None
    measures = settings.get("measures", ["probes"])
    if "probes" in measures:
        arguments = {key: settings[key] for key in PROBES if key in settings}
        if "source" in arguments:
            arguments["source"] = configuration_from(CorpusConfig, arguments["source"], "corpus")
            arguments["out"] = Path(arguments["out"])
        result = probe_run(**arguments, material=inputs)
        for reason in result.left_out:
            print(f"not probed: {reason}")
        print(f"wrote {result.path}")
        probed = result.heads
    run, sentences = Path(settings["target"]), settings.get("sentences")
    if "importance" in measures:
        trained = open_trained(run, None, IMPORTANCE_SPLIT, sentences=sentences, inputs=inputs)
        measure_importance(trained)
        print(f"importance: wrote {trained.table}")
    if "ablation" in measures:
        trained = open_trained(run, None, settings["split"], sentences=sentences, inputs=inputs)
        measure_ablation(trained, every_ablation(trained, ("head",)))
        print(f"ablation: wrote {trained.table}")
    if "relevance" in measures:
        from mtl.analysis.relevance_run import relevance_run

        explained = relevance_run(str(run), split=settings["split"], sentences=sentences, cache=inputs)
        print(f"relevance: wrote {explained.path}")
    return probed
