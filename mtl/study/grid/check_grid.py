"""What a study's grid must be before its runs are planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mtl.config.parse import placed
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.study.config import KINDS, Block, StudyConfig
from mtl.study.grid.task_sets import task_sets


def _check_once(seeds: Sequence[int], what: str) -> None:
    """Raise `InputError` for a seed that is given twice: its runs would be the same."""
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise InputError(f"{what} name {twice} twice: name each once")


def check_draws(study: StudyConfig, block: Block) -> None:
    """Raise `InputError` for draws of random labels that no run of the block has, or that are given twice."""
    for task, draws in block.draws.items():
        sets = [tasks for setup in block.setups for tasks in task_sets(setup, study)]
        if not any(task in tasks for tasks in sets):
            raise InputError(
                f"draws.{task}: no setup of the block ({', '.join(block.setups)}) trains the task {task}: "
                f"add setup {task}"
            )
        if not dataclasses.replace(study.train, tasks=(task,)).task(task).drawn:
            raise InputError(f"draws.{task}: the labels of {task} are no random draw: leave it out")
        if not draws:
            raise InputError(f"draws.{task} is empty: add at least one, or leave the key out")
        _check_once(draws, f"draws.{task}")
        if f"instances.{task}.draw" in (placed(TrainConfig, key) for key in block.set):
            raise InputError(f"draws.{task} sets the draws: leave {task}.draw out of the block's set")


def check_claims(study: StudyConfig) -> None:
    """Raise `InputError` if `claims.seeds` is empty, or has a seed with which no run learns masks."""
    seeds = {
        seed
        for block in study.grid
        for masks in block.masks
        if KINDS[masks].learned
        for seed in (study.seeds if block.seeds is None else block.seeds)
    }
    absent = [str(seed) for seed in study.claims.seeds or () if seed not in seeds]
    if absent or study.claims.seeds == ():
        raise InputError(
            f"claims.seeds: no run of the grid learns masks with seed {', '.join(absent) or '(none given)'}"
        )
