"""What studies add to the core."""

from __future__ import annotations

from mtl.features import Command, Feature, MeasureGroup

FEATURE = Feature(
    commands={
        "study": Command(
            "mtl.study.command:study",
            "train a grid of runs, probe them and write the report",
            file="STUDY.yaml",
            first=(
                "jobs", "status", "dry_run", "again", "engine", "name", "seeds", "train.corpus.path",
                "train.encoder.name", "train.max_epochs",
            ),
            resumes=True,
            after="ablate",
        ),
    },
    measures={
        "carry_over": MeasureGroup(
            "mtl.analysis.measuring:measure_importance",
            made_by="mtl study FILE",
            settings=("split", "sentences", "other"),
            corpus="other",
            file="importance-other.parquet",
            by_settings="mtl.study.perform:carried_over",
        ),
    },
    sources={"study.yaml": "mtl.study.report:study_source"},
)  # fmt: skip
