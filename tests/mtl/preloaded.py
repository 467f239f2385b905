"""What a training imports, for the process that `forked.py` forks from: others then start at once."""

from __future__ import annotations

import gc

import transformers.models.bert.modeling_bert  # noqa: F401

import mtl.analysis.observers
import mtl.commands.main
import mtl.commands.train
import mtl.training.train  # noqa: F401

gc.collect()
gc.freeze()  # each training ends with a search for garbage: a quarter of its time, with all this
