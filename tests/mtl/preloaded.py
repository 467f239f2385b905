"""What commands import, for the process that `forked.py` forks from: others then start at once."""

from __future__ import annotations

import gc
from importlib import import_module

import transformers.models.bert.modeling_bert  # noqa: F401

import mtl.analysis.observers
import mtl.commands.main
import mtl.commands.train
import mtl.runs.report.write
import mtl.training.train  # noqa: F401
from mtl.features import features

OF_FEATURES = {
    "study": ("mtl.study.perform",),
    "sweep": ("mtl.sweep.command", "mtl.sweep.trial"),
    "serving": ("mtl.serving.service",),
}
for feature in OF_FEATURES.keys() & features().keys():
    for module in OF_FEATURES[feature]:
        import_module(module)

gc.collect()
gc.freeze()  # each training ends with a search for garbage: a quarter of its time, with all this
