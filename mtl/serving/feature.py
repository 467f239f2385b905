"""What serving adds to the core: two commands, and the folders that `mtl export` writes, as models."""

from __future__ import annotations

from mtl.features import Command, Feature

FEATURE = Feature(
    commands={
        "export": Command(
            "mtl.serving.command:export", "write a model as ONNX, also with 8-bit weights", after="prune"
        ),
        "serve": Command(
            "mtl.serving.command:serve", "annotate over HTTP, with requests of many clients in one batch",
            after="predict",
        ),
    },
    models={"exported.json": "mtl.serving.onnx:opened"},
)  # fmt: skip
