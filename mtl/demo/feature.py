"""What the demo adds to the core."""

from __future__ import annotations

from mtl.features import Command, Feature

FEATURE = Feature(
    commands={
        "demo": Command(
            "mtl.demo.command:demo",
            "train, probe, cut and use a small model; report it beside an archived study",
            resumes=True,
            after="report",
        )
    },
    sources={"demo.json": "mtl.demo.report:demo_source"},
)
