"""The commands that make, score and cut one model: `mtl train`, `mtl evaluate` and `mtl prune`.

Training also runs under an agent of W&B, which starts it for each trial of a sweep.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mtl.commands.common import (
    Accelerator,
    Precision,
    check_new_folder,
    dev_examples,
    heads_given,
    print_left_out,
    print_scores,
    refuse_unused,
)
from mtl.config.parse import read_configuration
from mtl.config.schema import BatchConfig, Split, TrainConfig
from mtl.errors import InputError
from mtl.models.found import find_model, is_hub_name, is_model_folder, loader_of
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.workers.collector import importing
from mtl.workers.launch import ProcessPlace, clean_environment
from mtl.workers.queue import interrupted_by_signals

if TYPE_CHECKING:
    from torch import Tensor

    from mtl.models.joint import JointModel
    from mtl.models.tapped import SharedEncoder, TappedModel
    from mtl.tasks.sentence import Sentence
    from mtl.tasks.task import Task


def train_command(config: TrainConfig, given: Mapping[str, Any]) -> int:
    """Train the chosen tasks on a shared encoder, or resume where the run stopped."""
    with (
        clean_environment(config.trainer.devices, config.trainer.num_nodes) as place,
        interrupted_by_signals(),
    ):
        try:
            return _train(config, given, place)
        except KeyboardInterrupt:
            # The process that started this one reports it, and must not take it for a failure.
            if place.started_by == "mtl":
                return 0
            raise


def _train(config: TrainConfig, given: Mapping[str, Any], place: ProcessPlace) -> int:
    with importing():
        from rich.console import Console

        from mtl.analysis.observers import default_observers
        from mtl.training.initial_model import refuse_given
        from mtl.training.train import train

    refuse_given(config, given)
    config = under_agent(config, os.environ)
    console = Console(markup=False, emoji=False, quiet=not place.is_first)
    run = train(config, console=console, observers=default_observers(config, console))
    if place.is_first:
        print_run(run)
    return 0


def print_run(run: Run) -> None:
    """Print a finished run's scores, or how to get them if their file is gone."""
    if (run.folder / "metrics.json").exists():
        from mtl.config.instances import kinds_in
        from mtl.runs.compare.scores import learned_nothing

        metrics, kinds = run.metrics(), kinds_in(run.config())
        print_scores(metrics, str(run.folder))
        for line in learned_nothing(metrics, {name: kind.score for name, kind in kinds.items()}).values():
            print(f"note: {line}")
    else:
        print(f"{run.folder} has no metrics.json: 'mtl evaluate {run.folder}' scores its model again")


def under_agent(config: TrainConfig, environment: Mapping[str, str]) -> TrainConfig:
    """The configuration; if an agent started this process, with a folder of its own and W&B switched on.

    The agent's commands differ only in the sweep's parameters, so that all runs would have the same folder.
    Therefore the folder's name contains the id of the run, which the agent puts into the environment.
    """
    sweep, run = environment.get("WANDB_SWEEP_ID"), environment.get("WANDB_RUN_ID")
    if not sweep or not run:
        return config
    if config.wandb.id is not None:
        raise InputError("wandb.id is the id of a single W&B run, and a sweep has several: leave it out")
    mode = config.wandb.mode
    if mode in (None, "disabled"):
        from mtl.runs.folder.wandb_view import mode_of_environment

        mode = mode_of_environment(environment)
    runs, name = Path(config.runs), config.run_name()
    return dataclasses.replace(
        config,
        # A resumed trial gets what it logged, with the folder and name that it was given here.
        runs=config.runs if runs.name == f"sweep-{sweep}" else str(runs / f"sweep-{sweep}"),
        name=name if name.endswith(f"-{run}") else f"{name}-{run}",
        wandb=dataclasses.replace(config.wandb, mode=mode),
    )


def words_of_agent(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The arguments; if an agent started this process, without those that W&B adds.

    For a trial that is resumed, the agent passes all that the run logged as its configuration: the keys of
    `mtl train`, W&B's own `_wandb`, and `git`.
    """
    if not environment.get("WANDB_SWEEP_ID") or not environment.get("WANDB_RUN_ID"):
        return list(words)
    return [word for word in words if not word.startswith(("--_wandb=", "--git="))]


def evaluate(
    run: str,
    split: Split = "test",
    corpus: Path | None = None,
    export: Path | None = None,
    json_out: Path | None = None,
    tasks: tuple[str, ...] | None = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    revision: str | None = None,
) -> None:
    """Score a run's model in the tasks for which the sentences are annotated.

    Args:
        run: A run's folder, that of a model saved in any form, or a model on the hub (OWNER/NAME).
        split: Split of the corpus.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for a task of two files; default: the run's own.
            A model without its run needs one.
        export: Folder for gold and prediction in the formats of the official scorers.
        json_out: File for the scores.
        tasks: Only these tasks, for instance --tasks=[pos,ner]; default: all.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the weights: faster if the hardware supports bfloat16, and scores may
            differ in the last digits.
        revision: A branch, tag or commit of a model on the hub.
    """
    import mtl.models.evaluate
    from mtl.corpora.checks import CorpusCheck, notes_on
    from mtl.corpora.load import corpus_at, kinds_of, load_split
    from mtl.corpora.scorers import export_for_scorers
    from mtl.files import write_json
    from mtl.models.annotator import chosen_tasks
    from mtl.models.batches import count_unknown, examples, require_limit
    from mtl.models.opened import annotator_at
    from mtl.runs.compare.scores import learned_nothing
    from mtl.runs.folder import run_tables

    if corpus is None and (is_hub_name(run) or is_model_folder(Path(run)) or loader_of(Path(run))):
        raise InputError(f"{run} is a model without its run, which would name a corpus: use --corpus=FOLDER")
    found = find_model(run, revision)
    model = annotator_at(found.model, accelerator, precision)
    chosen = chosen_tasks(model.tasks, tasks)
    config = None if found.run is None else read_configuration(TrainConfig, found.run.folder / "config.yaml")
    max_words = BatchConfig.max_words if config is None else config.batch.max_words
    if corpus is not None:
        source = corpus_at(corpus, kinds_of(chosen))
    else:
        assert config is not None
        source = config.corpus
    gold = load_split(source, chosen, split)
    annotated = {name: task for name, task in chosen.items() if any(map(task.annotated, gold))}
    if not annotated:
        raise InputError(
            f"no {split} sentence of {len(gold)} is annotated for {', '.join(chosen)}: use another "
            "--corpus or --split"
        )
    print_left_out(
        "scored",
        [f"{name}: no {split} sentence is annotated for it" for name in chosen if name not in annotated],
    )
    for line in notes_on(CorpusCheck({split: gold}, annotated, model.labels)):
        print(line)
    if corpus is not None or split != "train":
        for line in _in_train(config, chosen, split, gold):
            print(line)
    require_limit(gold, max_words, split)
    corpus_examples = examples(gold, model.tokenizer, chosen, model.labels)
    if message := count_unknown(corpus_examples, getattr(model.tokenizer, "unknown", -1)).described():
        print(f"{split}: {message}")
    scores, counts = mtl.models.evaluate.evaluate_sentences(model, corpus_examples)
    whole = corpus is None and len(chosen) == len(model.tasks)
    if found.run is not None and whole and precision == "32-true":
        run_tables.write_counts(found.run, split, counts)
    print_scores({split: scores}, run)
    for line in learned_nothing(
        {split: scores}, {name: task.score for name, task in chosen.items()}
    ).values():
        print(f"note: {line}")
    signatures = mtl.models.evaluate.signatures_of(chosen)
    for of_task in signatures.values():
        for of_scores in of_task.values():
            for signature in of_scores.values():
                print(signature)
    if json_out is not None:
        write_json(json_out, {split: scores, **signatures})
    if export is not None:
        without_gold = {task.layer: None for task in chosen.values() if task.layers}
        bare = [sentence.with_layers(without_gold) for sentence in gold]
        predicted = model.annotate(bare, max_words, tasks=list(chosen))
        exported = export_for_scorers(gold, predicted, export, chosen.values())
        for path in exported.paths:
            print(f"wrote {path}")
        for items, count in exported.left_out.items():
            print(f"left out of these files: {items}: {count:,}")


def _in_train(
    config: TrainConfig | None, tasks: Mapping[str, Task], split: str, gold: Sequence[Sentence]
) -> Iterator[str]:
    """A line with the number of sentences that are in train, if any; also a line if that is not known."""
    from mtl.corpora.checks import shared_sentences, texts_of
    from mtl.corpora.load import load_split

    if config is None:
        yield f"{split}: whether its sentences are in train is not known: the model has no run"
        return
    try:
        train = load_split(config.corpus, tasks, "train")
    except (InputError, OSError) as error:
        yield f"{split}: whether its sentences are in train is not known: {error}"
        return
    yield from shared_sentences("train", texts_of(train), split, gold)


def prune(
    model: str,
    *,
    out: Path,
    heads: str | None = None,
    task: tuple[str, ...] = (),
    mask: Path | None = None,
    keep_shape: bool = False,
    accelerator: Accelerator = "auto",
    revision: str | None = None,
) -> None:
    """Cut closed heads out of a model; a run's model is scored with masks and after the cut.

    Args:
        model: A run's folder, a saved model's, or a model on the hub (OWNER/NAME); with --heads or --mask
            also an encoder ('minilm', a folder, a name on the hub).
        out: Folder of the new run, which can be used like any other (predict, evaluate, --from), of the new
            model, or of the new encoder (for mtl train --encoder.name).
        heads: Heads to cut in addition to those that the run's masks close, separated by commas; L2H9 is head
            9 of layer 2, both from 0, and L5 is a whole layer (L0H3,L2H11,L5; also 0.3,2.11,5); if there are
            several kinds of attention, the kind goes first (cross L0H3), and its name alone is all of its
            heads.
        task: Tasks whose decoders the new model keeps, for instance --task=[pos,ner]; default: all. If each
            task has a mask of its own, name one: the cut is made by its mask.
        mask: A gates.parquet to cut by, instead of the run's own masks.
        keep_shape: Only close the heads, by zeros in weights of unchanged shape, which plain transformers
            and other tools can load.
        accelerator: Device on which a run's model is scored; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model or an encoder on the hub.
    """
    from mtl.errors import InputError

    check_new_folder(out)
    if heads is not None and mask is not None:
        raise InputError("--heads and --mask both say what to cut: use one of them")
    from mtl.models.opened import open_target

    cut = _Cut(model, out, heads, task, mask, keep_shape)
    opened = open_target(model, revision)
    if opened.model is not None:
        _prune_model(opened.model, opened.run, cut, accelerator)
        return
    if heads is None and mask is None:
        raise InputError(
            f"{model} is an encoder, so it has no masks: use a run's folder or a joint model, or say what "
            "to cut (--heads=L0H3,L2H11 or --mask=FILE)"
        )
    if mask is None or len(task) > 1:
        refuse_unused(
            prune, "of an encoder chooses a mask of --mask=FILE: name one task, or leave it out", task=task
        )
    _prune_encoder(opened.encoder, cut)


@dataclass(frozen=True)
class _Cut:
    """What is cut out of which model, and where the result goes: arguments of `prune`."""

    model: str
    out: Path
    heads: str | None
    task: tuple[str, ...]
    mask: Path | None
    keep_shape: bool

    @property
    def owner(self) -> str | None:
        """The task whose mask is taken from the file; `None`: any, since all are to be equal."""
        return self.task[0] if len(self.task) == 1 else None

    def gates_from_file(
        self, encoder: SharedEncoder, tasks: Iterable[str], console: Console
    ) -> Tensor | None:
        """The gates of the file, if one is to be cut by; says whose they are."""
        from mtl.models.derived import gates_from_file, mask_in_words

        if self.mask is None:
            return None
        gates = gates_from_file(self.mask, self.owner, (encoder.layers, encoder.heads))
        done = "closed" if self.keep_shape else "cut"
        console.print(
            f"heads are {done} by {mask_in_words(self.mask, self.owner, tasks)}",
            highlight=False,
            soft_wrap=True,
        )
        return gates


def _prune_model(model: JointModel, source: Run | None, cut: _Cut, accelerator: Accelerator) -> None:
    import torch

    from mtl.heads.gates import OPEN
    from mtl.models.derived import apply_masks, gates_for, write_cut_run, write_derived
    from mtl.models.evaluate import batches, evaluate_model, with_same_answers
    from mtl.models.opened import prepare

    prepare(model, accelerator)
    encoder = model.encoder
    console = Console(markup=False, emoji=False)
    given = cut.gates_from_file(encoder, model.tasks, console)
    if given is None and cut.heads is not None and model.gates is None:
        given = torch.ones(encoder.layers, encoder.heads)
    gates, tasks = gates_for(model, cut.task, given)
    if cut.heads is not None:
        gates = gates.clone()
        for site, numbers in heads_given(cut.heads, encoder.tap.sites, encoder.heads).items():
            gates[site, numbers] = 0
    corpus = None if source is None else dev_examples(source, model, tasks)
    before = _Size.of(encoder)
    opened = sum(
        bool(gates[site, head] > OPEN) for site, there in enumerate(encoder.tap.remaining) for head in there
    )
    if not opened:
        console.print("warning: all heads of all layers are closed: the encoder attends to nothing")
    scores = {} if corpus is None else {"dev, masked": evaluate_model(model, batches(corpus, model), gates)}
    smaller = apply_masks(model, gates, tasks, keep_shape=cut.keep_shape)
    if source is None or corpus is None:
        write_derived(smaller, cut.out, model.origin, "cut")
        console.print(f"{cut.model} -> {cut.out}: not scored, since no run names its corpus", soft_wrap=True)
    else:
        after = evaluate_model(smaller, batches(corpus, smaller))
        scores["dev, closed" if cut.keep_shape else "dev, cut"] = after
        write_cut_run(source, cut.out, smaller, {"dev": with_same_answers(after, smaller, corpus)}, opened)
        print_scores(scores, f"{cut.model} -> {cut.out}", console)
    before.compare(smaller.encoder, opened, cut.keep_shape, console)


def _prune_encoder(encoder: SharedEncoder, cut: _Cut) -> None:
    from mtl.errors import InputError
    from mtl.files import new_folder
    from mtl.heads.prune import prune_heads
    from mtl.models.head_scales import closed_heads

    if encoder.does:
        raise InputError(f"{cut.model} {encoder.does}: use the folder of the run that it was trained in")
    before, remaining = _Size.of(encoder), encoder.tap.remaining
    console = Console(markup=False, emoji=False)
    gates = cut.gates_from_file(encoder, (), console)
    if gates is None:
        closed = heads_given(cut.heads or "", encoder.tap.sites, encoder.heads)
    else:
        closed = closed_heads(gates)
    prune_heads(encoder.transformer, closed, gates, keep_shape=cut.keep_shape)
    with new_folder(cut.out) as folder:
        encoder.save(folder)
    opened = sum(head not in closed.get(site, ()) for site, there in enumerate(remaining) for head in there)
    console.print(f"{cut.model} -> {cut.out}", highlight=False, soft_wrap=True)
    before.compare(encoder, opened, cut.keep_shape, console)


@dataclass(frozen=True)
class _Size:
    """How large an encoder is."""

    heads: int
    parameters: int
    """The number of parameters; shared ones count once."""
    groups: int
    """The number of groups of heads that share keys and values."""

    @classmethod
    def of(cls, encoder: TappedModel) -> _Size:
        """The size of an encoder as it is now."""
        from mtl.heads.attentions import key_groups

        parameters = sum(parameter.numel() for parameter in encoder.parameters())
        return cls(sum(map(len, encoder.tap.remaining)), parameters, key_groups(encoder.transformer))

    def compare(self, smaller: TappedModel, opened: int, keep_shape: bool, console: Console) -> None:
        """Print this size, before the cut, and that of the `smaller` encoder."""
        from mtl.heads.families import heads_per_group

        if keep_shape:
            console.print(
                f"{opened} of {counted(self.heads, 'head')} open, the others closed in weights of the same "
                f"shape: {counted(self.parameters, 'encoder parameter')}"
            )
            return
        after = _Size.of(smaller)
        console.print(
            f"{opened} of {counted(self.heads, 'head')} kept; encoder parameters "
            f"{self.parameters:,} -> {after.parameters:,}"
        )
        if heads_per_group(smaller.transformer) > 1:
            console.print(f"keys and values: {self.groups:,} -> {after.groups:,}")
