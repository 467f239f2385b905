"""The run and the corpus of a command that measures heads, by its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from mtl.commands.choices import Accelerator

if TYPE_CHECKING:
    from mtl.analysis.trained import TrainedRun
    from mtl.config.schema import CorpusConfig
    from mtl.models.batches import Example
    from mtl.models.joint import JointModel
    from mtl.runs.folder.run import Run


def open_measured(
    run: Path,
    task: Sequence[str],
    corpus: Path | None,
    split: str,
    sentences: int | None,
    accelerator: Accelerator,
    out: Path | None = None,
) -> TrainedRun:
    """Open a run by the options of these names; prints which tasks are not measured, and why."""
    from mtl.analysis.trained import open_trained
    from mtl.config.instances import kinds_in
    from mtl.corpora.sources import corpus_at
    from mtl.models.found import require_run
    from mtl.runs.folder.run import Run

    require_run(run, "configuration and tables, which this command reads and writes")
    trained = open_trained(
        run,
        None if corpus is None else corpus_at(corpus, kinds_in(Run.open(run).config())),
        split,
        tasks=task or None,
        sentences=sentences,
        accelerator=accelerator,
        out=out,
    )
    print_left_out("measured", trained.left_out)
    return trained


def dev_examples(run: Run, model: JointModel, tasks: Sequence[str]) -> list[Example]:
    """The sentences of a run's dev split with their targets in these tasks.

    Raises `InputError` for a task without gold, and for a sentence that is too long for the run.
    """
    from mtl.config.parse import read_configuration
    from mtl.config.schema import TrainConfig
    from mtl.corpora.load import load_split, require_layers
    from mtl.models.batches import examples
    from mtl.models.limits import require_limit

    config = read_configuration(TrainConfig, run.folder / "config.yaml")
    chosen = {name: model.tasks[name] for name in tasks}
    gold = load_split(config.corpus, chosen, "dev")
    require_layers(gold, chosen, "dev")
    require_limit(gold, config.batch.max_words, "dev")
    return examples(gold, model.encoder.tokenizer, chosen, model.labels)


def corpus_of(folder: Path | None) -> CorpusConfig | None:
    """The corpus in a folder; `None`, which stands for the run's own, if no folder is given."""
    from mtl.config.schema import CorpusConfig

    return None if folder is None else CorpusConfig(str(folder))


def print_left_out(done: str, reasons: Sequence[str]) -> None:
    """Print a line for each reason why something was not `done`."""
    console = Console(markup=False, emoji=False)
    for reason in reasons:
        console.print(f"not {done}: {reason}", highlight=False, soft_wrap=True)
