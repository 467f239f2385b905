"""Evaluation in training: scores on dev, the model that is kept or averaged, early stopping; observers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from rich.console import Console

from mtl.config.schema import TrainConfig
from mtl.files import remove, whole_folder
from mtl.heads.gate_file import add_gates
from mtl.heads.gates import gate_rows, gate_summary, gate_table, open_heads_text
from mtl.models.batches import Batch
from mtl.models.evaluate import Scores, evaluate_model, mean_score
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.training.gate_loss import choice_warnings
from mtl.training.run_log import PLAIN
from mtl.training.step import JointTraining, require_finite_values


class Evaluation(pl.Callback):
    """Scores the model on dev, writes history, gates and a model, and stops once scores no longer improve.

    Scores are computed in float32 even if training is in bfloat16, like the final scores and those of
    `mtl evaluate`.

    Args:
        run: Where history, gates and model are written.
        batches: Makes the batches of this rank's share of dev.
        train_batches: The same for the training sentences that are scored; `None`: none are.
        every: Epochs between evaluations; the last epoch is always evaluated.
        patience: Stop after this many evaluations in a row without a better mean score; `None`: never.
        keep_best: Keep the model with the best mean score, or the last while scores do not count yet;
            otherwise always the last.
        snapshots: Keep the models of this many last evaluations besides.
        snapshot_updates: Keep those after each this many updates, and after the last, instead.
        console: Where a line per evaluation is printed.
        observers: Notified of every evaluation; each of them may end the run.
    """

    def __init__(
        self,
        *,
        run: Run,
        batches: Callable[[], Iterable[Batch]],
        every: int,
        patience: int | None,
        keep_best: bool,
        snapshots: int = 0,
        snapshot_updates: int | None = None,
        console: Console,
        observers: Sequence[Observer] = (),
        train_batches: Callable[[], Iterable[Batch]] | None = None,
    ) -> None:
        self.train_batches = train_batches
        self.run, self.batches, self.every, self.patience = run, batches, every, patience
        self.keep_best, self.console, self.observers = keep_best, console, observers
        self.snapshots, self.snapshot_updates = snapshots, snapshot_updates
        self.history: list[dict[str, Any]] = []
        self.best = float("-inf")
        self.waited = 0
        self.ended = False
        """Whether an evaluation has ended the run; if so, a resumed run trains no further."""
        self.chosen = False
        """Whether a target's final choice of heads has been recorded."""
        self._seconds = 0.0
        self._since: float | None = None

    def _time(self) -> str:
        """The time since the last evaluation, and, after the first one, in all."""
        seconds = self.seconds
        if len(self.history) == 1:
            return f"{seconds:.0f} s"
        return f"{seconds - self.history[-2]['seconds']:.0f} s, {seconds:.0f} s in all"

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation so far, over all processes that worked on the run in turn."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock; stop at once if an evaluation had ended the run before it was resumed."""
        self._since = time.monotonic()
        trainer.should_stop = trainer.should_stop or self.ended

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate if an evaluation is due after this epoch."""
        epoch = trainer.current_epoch + 1
        last = epoch == trainer.max_epochs
        if epoch % self.every and not last:
            return
        assert isinstance(pl_module, JointTraining)
        model = pl_module.model
        pl_module.require_finite(parameters=True)
        scores = evaluate_model(model, self.batches())
        mean = mean_score(scores, model.tasks)
        on_train = {} if self.train_batches is None else evaluate_model(model, self.train_batches())
        losses = pl_module.mean_losses()
        require_finite_values(
            f"evaluation after epoch {epoch}",
            {f"the {key} of {task} on dev": value for task in scores for key, value in scores[task].items()},
        )
        gate_loss = pl_module.gate_loss
        settled = gate_loss is None or gate_loss.settled
        better = settled and mean > self.best
        if settled:
            self.best = max(self.best, mean)
            self.waited = 0 if better else self.waited + 1
        gates = {} if model.gates is None else gate_summary(model.gates)
        choices = {} if gate_loss is None else gate_loss.choices
        row: dict[str, Any] = {
            "epoch": epoch,
            "update": trainer.global_step,
            "seconds": round(self.seconds, 1),
            **{f"loss/{name}": round(loss, 5) for name, loss in losses.items()},
            **{f"dev/{task}/{key}": round(of[key], 3) for task, of in scores.items() for key in of},
            "dev/mean": round(mean, 3),
            **{f"train/{task}/{key}": round(of[key], 3) for task, of in on_train.items() for key in of},
            **{f"gates/{mask}/{key}": round(of[key], 4) for mask, of in gates.items() for key in of},
            **{f"gates/{mask}/{key}": n for mask in choices for key, n in choices[mask]._asdict().items()},
        }
        self.history.append(row)
        newly_chosen, self.chosen = bool(choices) and not self.chosen, bool(choices) or self.chosen
        if trainer.is_global_zero:
            if model.gates is not None:
                at_choice = None if gate_loss is None else gate_loss.log_alpha_at_choice
                sites = model.encoder.tap.sites
                rows = gate_rows(model.gates, tuple(model.tasks), trainer.global_step, sites, at_choice)
                add_gates(self.run.folder / "gates.parquet", gate_table(rows), first=len(self.history) == 1)
            self.run.write_history(self.history)
            if better or not settled or not self.keep_best:
                with whole_folder(self.run.model) as folder:
                    model.save(folder)
                self.run.update_status({"kept_epoch": epoch, "kept_dev_mean": mean})
            if self.snapshots and self.snapshot_updates is None:
                self._keep(model, self.run.snapshot(epoch))
            main = "  ".join(f"{name} {scores[name][task.score]:.1f}" for name, task in model.tasks.items())
            self.console.print(
                f"epoch {epoch:>3}  loss {sum(losses.values()):.3f}  {main}  mean {mean:.2f}"
                f"{' *' if better else ''}{open_heads_text(gates)}  [{self._time()}]",
                **PLAIN,
            )
            if gate_loss is not None and newly_chosen:
                made = {mask: choice._asdict() for mask, choice in choices.items()}
                self.run.update_status({"choices": made})
                for line in choice_warnings(gate_loss):
                    self.console.print(line, **PLAIN)
        stop = [observer.on_evaluation(row) for observer in self.observers]
        out_of_patience = self.patience is not None and self.waited >= self.patience
        self.ended = bool(trainer.strategy.broadcast(any(stop))) or out_of_patience
        trainer.should_stop = trainer.should_stop or self.ended
        if (last or self.ended) and trainer.is_global_zero and self.snapshots and self.snapshot_updates:
            self._keep(model, self.run.snapshot(trainer.global_step, "update"))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Keep the model if a snapshot is due after this update."""
        if not (self.snapshots and self.snapshot_updates) or trainer.global_step % self.snapshot_updates:
            return
        ends = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if ends or batch_idx + 1 == trainer.num_training_batches:
            assert isinstance(pl_module, JointTraining)
            pl_module.require_finite()
            if trainer.is_global_zero:
                self._keep(pl_module.model, self.run.snapshot(trainer.global_step, "update"))

    def _keep(self, model: JointModel, place: Path) -> None:
        """Write a snapshot, and remove those that are too many."""
        with whole_folder(place) as folder:
            model.save(folder)
        for old in self.run.snapshots()[: -self.snapshots]:
            remove(old)

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs."""
        state = {name: getattr(self, name) for name in ("history", "best", "waited", "ended", "chosen")}
        return {**state, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.history, self.best = state_dict["history"], state_dict["best"]
        self.waited = state_dict["waited"]
        self.ended, self._seconds = state_dict["ended"], state_dict["seconds"]
        self.chosen = state_dict["chosen"]


class Observer(pl.Callback):
    """A Lightning callback with four more hooks; only the process that writes the run's files has observers.

    An observer must not change what the run computes; it may end the run after an evaluation.
    """

    def on_run_start(self, config: TrainConfig, run: Run) -> None:
        """Called when the run's folder is ready, before training or scoring starts or resumes."""

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Called when an evaluation has been written to the run's folder; returning true ends the run.

        `row` is the evaluation's row in the history.
        """
        return False

    def on_final_scores(self, scores: Mapping[str, Scores]) -> None:
        """Called with the scores of the kept model, before the run is finished.

        Called again if the run is killed before it is finished; the second call must complete the first.
        """

    def on_run_failure(self) -> None:
        """Called when the run has failed or was interrupted."""


class AfterEvaluation(Observer):
    """Passes each row of the history to a function, which can end the run by returning true."""

    def __init__(self, function: Callable[[Mapping[str, Any]], bool]) -> None:
        self.function = function

    def on_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Ask the function."""
        return self.function(row)


def keep_average(run: Run) -> None:
    """Make the average of the weights of the run's snapshots, in float64, the model that it keeps.

    What is no number with fractions is that of the last one.
    """
    *others, last = run.snapshots()
    model = JointModel.from_pretrained(last)
    weights = model.state_dict()
    sums = {name: value.double() for name, value in weights.items() if value.is_floating_point()}
    for folder in others:
        state = JointModel.from_pretrained(folder).state_dict()
        sums = {name: total + state[name] for name, total in sums.items()}
    means = {name: (total / (1 + len(others))).to(weights[name].dtype) for name, total in sums.items()}
    model.load_state_dict({**weights, **means})
    with whole_folder(run.model) as folder:
        model.save(folder)
