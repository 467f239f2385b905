"""What sweeps add to the core."""

from __future__ import annotations

from mtl.features import Command, Feature

FEATURE = Feature(
    commands={
        "sweep": Command(
            "mtl.sweep.command:sweep",
            "search for good configurations, with W&B or without a server",
            file="SWEEP.yaml",
            first=(
                "local", "jobs", "trials", "status", "dry_run", "join", "wandb", "name", "sweeps",
                "corpus.path",
            ),
            resumes=True,
            after="ablate",
        ),
    },
    sources=dict.fromkeys(("sweep.json", "sweep.db"), "mtl.sweep.report:sweep_source"),
)  # fmt: skip
