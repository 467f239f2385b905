"""Reject runs whose encoder cannot be loaded or whose tasks have nothing to learn from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from pathlib import Path

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.corpora.checks import Look, refuse
from mtl.corpora.load import require_first_sentence, require_layers
from mtl.corpora.sources import is_on_disk, refuse_shared
from mtl.corpora.splits import SPLITS
from mtl.models.inputs import InputCache
from mtl.models.known_encoders import check_encoder


def check_inputs(
    configs: Iterable[TrainConfig], inputs: InputCache | None, to_come: Collection[str] = ()
) -> None:
    """Raise `InputError` for the first encoder, corpus or mask file that cannot be used.

    Mask files in `to_come` are not read: the study has yet to write them.

    With `inputs`, every sentence is read into that cache. Without it, as in a dry run, a split is read only
    up to the first sentence that is annotated for the task, so faults behind that sentence are not found. The
    same holds for training sentences in a store on disk, which the first run checks when it makes the store.
    """
    seen: set[str] = set()
    for config in configs:
        if config.encoder.name not in seen:
            seen.add(config.encoder.name)
            check_encoder(config.encoder.name)
        if config.pruning == "fixed" and config.gates.masks not in to_come:
            from mtl.models.mask_file import check_masks, check_shape

            path = Path(str(config.gates.masks))
            masks = check_masks(path, config.gates.scope, tuple(config.chosen()))
            if config.seq2seq.architecture is None and config.init_from is None:
                check_shape(path, masks, config.encoder.name)
        corpus = plain(dataclasses.asdict(config.corpus))
        for name, task in config.chosen().items():
            if not task.layers and len(config.tasks) > 1:
                continue  # it is trained on the sentences of the other tasks
            key = json.dumps([name, corpus, plain(dataclasses.asdict(task))])
            if key in seen:
                continue
            seen.add(key)
            refuse_shared(config.corpus, {name: task})
            splits = {}
            for split in SPLITS:
                annotated = split != "test"  # test may be without gold annotation
                if inputs is None or (split == "train" and is_on_disk(config.corpus, {name: task})):
                    require_first_sentence(config.corpus, name, task, split, annotated)
                    continue
                splits[split] = inputs.split(config.corpus, {name: task}, split)
                if annotated:
                    require_layers(splits[split], {name: task}, split)
            refuse(Look(splits, {name: task}))
