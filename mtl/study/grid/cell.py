"""A cell of the grid, and the configurations of its runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from mtl.config.effective import only_used, plain
from mtl.config.parse import changed
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.study.config import KINDS, OF_THE_GRID, Block, Masks, ProbesConfig, StudyConfig
from mtl.study.extensions import MasksToMake
from mtl.study.grid.task_sets import NAMED, measurable, probed_for
from mtl.study.jobs.job import Job
from mtl.study.measures.check_measures import check_measures


def settings(train: TrainConfig, block: Block) -> TrainConfig:
    """The settings that the runs of a block share; raises `InputError` for keys that a block cannot set."""
    if not block.set:
        return train
    made = changed(TrainConfig, plain(dataclasses.asdict(train)), block.set, "a block's set")
    for key, instead in OF_THE_GRID.items():
        value_of = attrgetter(key)  # a group such as `gates` may contain the key
        if key in block.set or value_of(made) != value_of(train):
            raise InputError(f"{key} cannot be in a block's set: {instead}")
    return made


def probes_of(study: StudyConfig, block: Block) -> ProbesConfig:
    """The measurements on the heads of a block's runs; raises `InputError` for impossible ones."""
    probes = study.probes
    if block.probes:
        values = plain(dataclasses.asdict(probes))
        probes = changed(ProbesConfig, values, block.probes, "a block's probes")
    check_measures(probes)
    return probes


@dataclass(frozen=True)
class Cell:
    """The runs of a setup with one set of tasks and one seed, which differ in their masks."""

    study: StudyConfig
    folder: Path
    setup: str
    tasks: tuple[str, ...]
    seed: int
    probes: ProbesConfig
    draws: Mapping[str, int]
    """The draws of random labels by task, if the block names them."""

    def made(self, masks: Masks, train: TrainConfig, label: str, makes: MasksToMake) -> Job:
        """The run with masks that the study makes; the seed is the number of the draw."""
        path = self.folder / "masks" / f"{'+'.join(self.tasks)}-{label}-draw{self.seed}.parquet"
        gates = dataclasses.replace(train.gates, masks=str(path))
        run = self.run(masks, dataclasses.replace(train, gates=gates), label, None)
        return dataclasses.replace(run, makes=makes)

    def run(self, masks: Masks, train: TrainConfig, label: str | None, needs: str | None) -> Job:
        """The run with these masks; it starts from the run `needs`, or has its masks."""
        everything = self.tasks == tuple(self.study.train.chosen()) and len(self.tasks) > 1
        base = self.setup if self.setup in self.study.sets else "all" if everything else "+".join(self.tasks)
        kind = [self.setup if self.setup in NAMED else base]
        kind += [part for part in (masks, label) if part not in ("none", None)]
        # Names do not contain the study's own draws, so that adding draws repeats no run.
        train = dataclasses.replace(train, tasks=self.tasks)
        own = all(draw == vars(train.task(task))["draw"] for task, draw in self.draws.items())
        draws = [] if own else ["draw" + "_".join(map(str, self.draws.values()))]
        own_draws = {} if own else {f"instances.{task}.draw": draw for task, draw in self.draws.items()}
        train = settings(train, Block(set=own_draws))
        name = "-".join([base, *kind[1:], *draws, f"seed{self.seed}"])
        regime = KINDS[masks].regime
        config = dataclasses.replace(
            train,
            name=name,
            runs=str(self.folder / "runs"),
            seed=self.seed,
            pruning=regime,
            init_from=str(self.folder / "runs" / str(needs)) if regime == "static" else None,
            gates=dataclasses.replace(train.gates, scope=KINDS[masks].scope),
            wandb=dataclasses.replace(
                train.wandb,
                group=f"{self.folder.name} {' '.join(kind)}",
                job_type="train",
                tags=(self.folder.name, f"setup:{kind[0]}", f"masks:{masks}", *self.tasks),
            ),
        )
        others = probed_for(dataclasses.replace(train, tasks=tuple(self.study.train.chosen())))
        measures = measurable(others or config, self.probes) if masks in self.probes.masks else ()
        probes = dataclasses.replace(self.probes, masks=(), measures=measures) if measures else None
        others = others if "probes" in measures else None
        return Job(name, " ".join(kind), only_used(config), needs, probes, label, probed_for=others)
