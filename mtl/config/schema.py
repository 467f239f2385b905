"""The configuration of a training run as typed values; every field is a key and a flag."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from mtl.config.instances import Instance, refuse_instances, stands_for_task
from mtl.config.keys import at, unknown
from mtl.config.marks import FilePath, Forbidden, Joint, Used, Volatile, Was
from mtl.config.part import parts
from mtl.config.presets import completed
from mtl.config.task_slots import Slot, slot_per_task, with_slots
from mtl.errors import did_you_mean
from mtl.tasks.catalogue import STRUCTURED, TASKS
from mtl.tasks.order import in_order_of_catalogue
from mtl.tasks.ranges import Count, CountOrNone, Dropout, Range, Seed, Share, Size
from mtl.tasks.task import Task

TASK_NAMES = tuple(TASKS)
"""The tasks, each of which has a key for its settings."""
DEFAULT_TASKS = tuple(task.name for task in STRUCTURED)
"""The tasks trained where none are named."""
PruningRegime = Literal["none", "dynamic", "static", "gates_only", "fixed"]
GateScope = Literal["shared", "per_task"]
Kind = Literal["self", "encoder", "decoder", "cross"]
"""A kind of attention: `self` in models of one stack, the others in models that translate."""
ByKind = float | dict[Kind, float]
"""A number for all kinds of attention together, or one for each."""
Rate = Annotated[float, Range(0, 1)]
Depth = Annotated[int, Range(1, 1_000)]
ALIASES = {"from": "init_from"}
"""Keys whose name on the command line is a keyword of Python: option -> field."""
COMPARING = ("gradnorm", "pcgrad", "torchjd")
"""Balancers that compare the tasks' gradients in every step."""
LEARNING = ("dynamic", "static", "gates_only")
"""Values of `pruning` with which masks are learned."""


@dataclass(frozen=True)
class EncoderConfig:
    """The pretrained encoder, and how word vectors are taken from it."""

    name: str = "minilm"
    """A hub name, a folder, or `minilm` for the embedded encoder."""
    pooling: Literal["mean", "first", "last"] | None = None
    """How a word's vector is computed from those of its subwords; `null`: `mean`, or `last` in a decoder-only
    model."""
    layers: Literal["last", "mix"] = "last"
    """Take the last layer's vectors, or a learned mix of all layers."""
    word_dropout: Dropout | None = None
    """Share of words masked in training; `null`: 0.2, or 0 in a decoder-only model without a mask token."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """The attention implementation of transformers."""


@dataclass(frozen=True)
class Files:
    """Files of a corpus by split, instead of its folder."""

    train: FilePath | None = None
    """Training file, folder or glob."""
    dev: FilePath | None = None
    """Development file, folder or glob."""
    test: FilePath | None = None
    """Test file, folder or glob."""
    format: str = "jsonl"
    """jsonl, conllu, conll2012, conll2003, columns, uner, brackets, conll2005, glue or parallel (whose paths
    are SOURCE:TARGET), or a variant such as conllu-upos (docs/own-data.md lists all)."""
    columns: dict[str, int] = field(default_factory=dict)
    """For conll2003, its variants and columns: the column of each role (word, entity, tag; label), counted
    from 1."""
    layer: str | None = None
    """For files of one task: the layer that it learns. `null`: in JSON Lines, the one with the name of the
    task's layer; in other formats, the one that tasks of its kind read."""
    roots: Literal["refuse", "attach"] = "refuse"
    """For conllu: refuse sentences with several roots, or attach the other roots to the first."""
    entities: str | None = None
    """For conllu: the key in MISC, or the column of CoNLL-U Plus, that entities are read from."""


def _of(task: type[Task]) -> Used:
    return Used(lambda run: task.name in run.tasks)


_SHARED_FILES = Used(lambda run: any(run.corpus.files_of(task) is None for task in run.tasks))


@dataclass(frozen=True)
@slot_per_task(
    lambda task: Slot(
        Annotated[Files | None, _of(task)],
        None,
        f"Files for {task.name.upper()} alone, instead of the folder's.",
    )
)
class CorpusConfig:
    """Where sentences come from. Each task's name is also a key, for files of that task."""

    path: Annotated[FilePath | None, _SHARED_FILES] = "data/ewt5"
    """Folder with train.jsonl, dev.jsonl and test.jsonl; `null` if every task has files elsewhere."""
    files: Annotated[Files | None, _SHARED_FILES] = None
    """Files for all tasks whose layer their format has, instead of the folder's."""
    store: Annotated[Literal["auto", "memory", "disk"], Volatile()] = "auto"
    """Where training sentences are kept while a run trains: in memory, or in a store on disk; `auto`: on disk
    if their files together are larger than 256 MB."""
    instances: dict[str, Files] = field(default_factory=dict, hash=False)
    """Files of tasks with names of your own (`tasks: {NAME: {kind: KIND, files: …}}`)."""

    def files_of(self, task: str) -> Files | None:
        """A task's own files; `None`: it has none, and is read from `files` or the folder."""
        files: Files | None = getattr(self, task) if task in TASK_NAMES else self.instances.get(task)
        return files

    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: run.corpus.files is not None and run.corpus.files.layer,
            "corpus.files.layer={found} is for files of one task: use corpus.TASK.layer",
        ),
    )


@dataclass(frozen=True)
class BatchConfig:
    """How sentences become batches."""

    mode: Literal["aligned", "separate"] = "aligned"
    """One encoder pass for all tasks annotated on a sentence, or batches of one task each."""
    tokens: Annotated[int, Range(1, 100_000_000)] = 6400
    """Maximum number of padded subwords per batch."""
    sentences: Count | None = 16
    """Maximum number of sentences per batch; `null`: as many as `batch.tokens` allows."""
    max_words: Count = 512
    """Maximum number of words per sentence; longer ones are left out of training, and
    refused in dev and test."""
    sampling: Annotated[
        Literal["in_turn", "proportional", "tempered"], Used(lambda run: run.batch.mode == "separate")
    ] = "proportional"
    """Order of the tasks' batches if `batch.mode` is `separate`."""
    temperature: Annotated[
        float,
        Range(0, 1_000, open_low=True),
        Used(lambda run: run.batch.mode == "separate" and run.batch.sampling == "tempered"),
    ] = 2.0
    """For `tempered` sampling: tasks are drawn in proportion to their batches to the power 1/temperature."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its rates."""

    encoder_lr: Annotated[Rate | None, Was(5e-5)] = None
    """Peak learning rate of the encoder; `null`: 3e-4 for `minilm`, 5e-5 for other encoders."""
    decoder_lr: Annotated[Rate | None, Was(1e-3)] = None
    """Peak learning rate of the decoders; `null`: 2e-3 on `minilm`, 1e-3 on other encoders."""
    weight_decay: Share = 0.01
    """AdamW's decay, on matrices only."""
    warmup: Share = 0.1
    """Share of the updates in which the rates rise linearly."""
    warmup_updates: Count | None = None
    """Number of warm-up updates, instead of their share."""
    schedule: Literal["linear", "cosine", "constant", "inverse_sqrt"] = "linear"
    """How the rates change after the warm-up: to zero with `linear` and `cosine`; with `inverse_sqrt` as 1
    over the square root of the update."""
    beta2: Annotated[float, Range(0, 1, open_high=True)] = 0.999
    """Adam's decay of squared gradients."""
    clip: Annotated[float, Range(0, 1_000_000)] = 1.0
    """Largest norm of the gradient, gates excluded; 0: no clipping."""
    accumulate: Count = 1
    """Batches per update; the update equals that of one batch with all their sentences."""


def default_rates(encoder: str, architecture: str | None) -> dict[str, float]:
    """The learning rates of `OptimizerConfig` that `null` stands for.

    MiniLM, which is small, needs higher rates than encoders of BERT's size. `architecture` is that of a model
    from scratch, which has no encoder of that name.
    """
    small = encoder == "minilm" and architecture is None
    return {"encoder_lr": 3e-4, "decoder_lr": 2e-3} if small else {"encoder_lr": 5e-5, "decoder_lr": 1e-3}


def _by_balancer(*names: str) -> Used:
    return Used(lambda run: run.balancer.name in names)


@dataclass(frozen=True)
class BalancerConfig:
    """How the tasks' losses are weighted."""

    name: Literal["uniform", "fixed", "moving_average", "uncertainty", "gradnorm", "pcgrad", "torchjd"] = (
        "uniform"
    )
    """The method that weights the tasks' losses against each other."""
    weights: Annotated[dict[str, Annotated[float, Range(0, math.inf)]], _by_balancer("fixed")] = field(
        default_factory=dict
    )
    """For `fixed`: a weight per task (TASK: WEIGHT); 1 if none is given."""
    window: Annotated[Count, _by_balancer("moving_average")] = 5
    """For `moving_average`: the number of recent losses averaged per task."""
    alpha: Annotated[float, Range(0, 1_000), _by_balancer("gradnorm")] = 1.5
    """For `gradnorm`: how strongly slow tasks are favoured."""
    lr: Annotated[float, Range(0, 1, open_low=True), _by_balancer("uncertainty", "gradnorm")] = 0.025
    """Learning rate of learned weights (`uncertainty`, `gradnorm`)."""
    weighting: Annotated[
        Literal["AlignedMTL", "CAGrad", "DualProj", "FairGrad", "IMTLG", "MGDA", "NashMTL", "UPGrad"],
        _by_balancer("torchjd"),
    ] = "UPGrad"
    """For `torchjd`: the weighting of that library."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: next((name for name in run.balancer.weights if name not in run.tasks), None),
            "balancer.weights names {found}, which is not trained (tasks are {tasks}): leave it out; "
            "--balancer.weights={{}} leaves out all",
        ),
        Forbidden(
            lambda run: run.balancer.name in COMPARING and run.pruning == "gates_only",
            "balancer {run.balancer.name} compares the tasks' gradients in the encoder, which "
            "pruning=gates_only freezes: use uniform, moving_average or uncertainty",
        ),
        Forbidden(
            lambda run: run.balancer.name in COMPARING and run.batch.mode == "separate",
            "balancer {run.balancer.name} compares the tasks' gradients in every step, but "
            "batch.mode=separate has one task in a step: use batch.mode=aligned, or moving_average or "
            "uncertainty",
        ),
    )


_LEARNED = Used(lambda run: run.pruning in LEARNING)
_SEVERAL = Used(lambda run: run.pruning in LEARNING and _has_several_masks(run))
_PENALISED = Used(
    lambda run: (
        run.pruning in LEARNING and (run.gates.target_open is None or isinstance(run.gates.penalty, Mapping))
    )
)


def _has_several_masks(run: TrainConfig) -> bool:
    return run.gates.scope == "per_task" and len(run.tasks) > 1


def _part_of_a_head(run: TrainConfig) -> str | None:
    """The key and value of a number of heads that is no whole one."""
    given = values_of("target_open", run.gates.target_open)
    return next((f"{key}={target}" for key, target in given if target > 1 and target != int(target)), None)


def values_of(name: str, values: ByKind | None) -> Iterator[tuple[str, float]]:
    """The values of `gates.NAME`, one for all kinds of attention or one for each, with their dotted keys."""
    if isinstance(values, Mapping):
        yield from ((f"gates.{name}.{kind}", value) for kind, value in values.items())
    elif values is not None:
        yield f"gates.{name}", values


@dataclass(frozen=True)
class GatesConfig:
    """Head masks: their number, their cost and their initial values."""

    scope: Annotated[GateScope, Used(lambda run: run.pruning != "none"), Joint()] = "shared"
    """One mask for all tasks, or one for each task over the same encoder."""
    kinds: Annotated[tuple[Kind, ...] | None, _LEARNED] = None
    """The kinds of attention that have gates; heads of other kinds stay open and are not counted. `null`:
    all."""
    unit: Annotated[Literal["head", "group"], _LEARNED] = "head"
    """One gate per query head, or one for all heads that share keys and values (in models with grouped
    queries)."""
    penalty: Annotated[ByKind | None, Range(0, 1_000_000), Was(0.01), _PENALISED] = None
    """Weight of the expected number of open heads per layer (lambda), or one for each kind of attention
    (KIND: WEIGHT); `null`: use `target_open` instead."""
    penalty_warmup: Annotated[Share, _PENALISED] = 0.0
    """Share of the updates in which the penalty weight rises linearly from zero."""
    overlap_penalty: Annotated[float, Range(-1_000_000, 1_000_000), _SEVERAL, Joint()] = 0.0
    """Weight of the pairwise product of tasks' gates (`per_task` only); negative: reward for sharing."""
    target_open: Annotated[ByKind | None, Range(0, 1_000_000, open_low=True), _LEARNED] = None
    """Share of heads (at most 1) or number of heads (above 1) to keep, instead of the penalty, or one for
    each kind of attention (KIND: NUMBER); `null` without a penalty: a third."""
    at_most: Annotated[Count | None, _SEVERAL, Joint()] = None
    """Maximum number of masks that may keep the same head in the target's choice (`per_task` only): 1 makes
    masks disjoint; `null`: any number."""
    lr: Annotated[float | None, Range(0, 100, open_low=True), _LEARNED] = None
    """Learning rate of log alpha; `null`: 10 / number of updates, so that heads have time to close."""
    temperature: Annotated[float, Range(0, 1_000, open_low=True), _LEARNED] = 0.33
    """Temperature of the hard concrete distribution."""
    init_mean: Annotated[float, Range(-20, 20), _LEARNED] = 2.0
    """Mean of the initial log alpha; 2 starts evaluation gates at 0.96 (the paper: 0, gates at 0.5)."""
    init_std: Annotated[float, Range(0, 20), _LEARNED] = 0.1
    """Standard deviation of the initial log alpha."""
    masks: Annotated[FilePath | None, Used(lambda run: run.pruning == "fixed")] = None
    """For `pruning=fixed`: file with the masks, such as the gates.parquet of a run; a mask for each task of
    the run (`per_task`), or the same for all (`shared`)."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            _part_of_a_head, "{found}: use a share of the heads, at most 1, or a whole number of heads"
        ),
        Forbidden(
            lambda run: (
                run.gates.at_most is not None and run.pruning != "none" and not _has_several_masks(run)
            ),
            "gates.at_most needs gates.scope=per_task and at least two tasks",
        ),
        Forbidden(
            lambda run: (
                run.gates.at_most is not None
                and run.pruning != "none"
                and run.gates.target_open is None
                and run.gates.penalty is not None
            ),
            "gates.at_most is for a target's choice: use gates.target_open, not gates.penalty",
        ),
        Forbidden(
            lambda run: run.pruning == "fixed" and run.gates.masks is None,
            "pruning=fixed takes its masks from a file: use gates.masks=FILE",
        ),
        Forbidden(
            lambda run: run.pruning != "fixed" and run.gates.masks is not None,
            "gates.masks={run.gates.masks} is for pruning=fixed, and pruning={run.pruning}",
        ),
    )


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder-decoder model from scratch, for a translation."""

    architecture: Literal["marian", "bart", "mbart", "m2m_100", "pegasus", "t5", "mt5"] | None = None
    """Architecture of the layers; `null`: the checkpoint `encoder.name` instead of a model from scratch."""
    layers: Depth = 4
    """Layers of the encoder."""
    decoder_layers: Depth | None = None
    """Layers of the decoder; `null`: as many as the encoder has."""
    heads: Size = 4
    """Heads of each kind of attention in a layer."""
    width: Size = 128
    """Size of the vectors between layers."""
    feed_forward: Size = 256
    """Size of the feed-forward layers' inner vectors."""
    dropout: Dropout = 0.1
    """Share of features dropped in training."""
    vocabulary: Annotated[int, Range(300, 1_000_000)] = 8000
    """Maximum number of subwords; both languages share them."""
    components: Size | None = None
    """Query and key components that the heads of each layer share (collaborative attention), up to `width`;
    `null`: each head has its own."""
    mixing: Literal["learned", "blocks"] = "learned"
    """Which components each head uses: it learns a weight for each, or keeps the part that it starts with, so
    that heads are concatenated."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: (
                run.seq2seq.mixing != "learned" and run.seq2seq.components is None and run.init_from is None
            ),
            "seq2seq.mixing={run.seq2seq.mixing} is for heads that share components: use "
            "seq2seq.components, or leave it out",
        ),
        Forbidden(
            lambda run: run.seq2seq.architecture is not None and not run.translates(),
            "seq2seq.architecture={run.seq2seq.architecture} is for translations, and tasks is "
            "{tasks}: use encoder.name",
        ),
        Forbidden(
            lambda run: run.seq2seq.components is not None and not run.translates(),
            "seq2seq.components={run.seq2seq.components} is for translations, and tasks is {tasks}: "
            "'mtl collaborate' makes encoders whose heads share components",
        ),
        Forbidden(
            lambda run: run.beside_alone(),
            "{found[0]} is trained alone, because it uses a different model: leave out {found[1]}",
        ),
        Forbidden(
            lambda run: _shares_components(run) and run.seq2seq.architecture is None,
            "seq2seq.components={run.seq2seq.components} is for a model from scratch: use "
            "seq2seq.architecture, or leave it out (a checkpoint's heads are what they are)",
        ),
        Forbidden(
            lambda run: (
                run.seq2seq.architecture is not None
                and run.init_from is None
                and run.seq2seq.width % run.seq2seq.heads
            ),
            "seq2seq.width={run.seq2seq.width} is no multiple of seq2seq.heads={run.seq2seq.heads}: change "
            "one of them",
        ),
        Forbidden(
            lambda run: _shares_components(run) and run.seq2seq.components > run.seq2seq.width,
            "seq2seq.components={run.seq2seq.components}: use 1 to {run.seq2seq.width} components "
            "(seq2seq.width), as many as heads apart have",
        ),
        Forbidden(
            lambda run: (
                run.translates()
                and run.seq2seq.architecture is None
                and run.init_from is None
                and run.encoder.name == "minilm"
            ),
            "encoder.name=minilm has no decoder, and cannot translate: use seq2seq.architecture (for "
            "instance mbart) for a model from scratch, or an encoder-decoder checkpoint as encoder.name",
        ),
    )


def _shares_components(run: TrainConfig) -> bool:
    """Whether the heads of a model from scratch are to share components."""
    return run.seq2seq.components is not None and run.init_from is None


@dataclass(frozen=True)
class TrainerConfig:
    """The devices of a run, and how often its state is saved."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """The device to train on; `auto` takes a GPU if there is one."""
    devices: Size = 1
    """Processes (one per GPU, or CPU processes)."""
    num_nodes: Size = 1
    """Machines, started by torchrun or SLURM."""
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    """`auto`: bfloat16 if the hardware supports it (GPU, or CPU with AMX or AVX512-BF16), else float32."""
    threads: Annotated[Size | None, Volatile()] = None
    """CPU threads of one process; `null`: torch's default."""
    checkpoint_minutes: Annotated[float, Range(0, 1_000_000), Volatile()] = 5.0
    """Minutes between checkpoints, from which a run resumes; one is also written after every epoch."""


@dataclass(frozen=True)
class WandbConfig:
    """Weights & Biases."""

    mode: Literal["online", "offline", "disabled"] = "disabled"
    """`offline` writes a local log and makes no connection."""
    project: str = "mtl"
    """Project on the server."""
    entity: str | None = None
    """Team or user on the server."""
    group: str | None = None
    """Group of the run, for instance a study's setup."""
    job_type: str | None = None
    """Purpose of the run, for instance `train`."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""


@dataclass(frozen=True)
@slot_per_task(
    lambda task: Slot(
        Annotated[task, _of(task)], field(default_factory=task), (task.__doc__ or "").split("\n")[0]
    )
)
@with_slots({part.key: part.slot for part in parts()})
class TrainConfig:
    """A training run. The name of each task is also a key, for its settings, and so is a part's (`Part`)."""

    name: str | None = None
    """The run's folder below `runs`; default: its tasks and seed."""
    runs: Annotated[str, Volatile()] = "runs"
    """Folder that holds the runs."""
    overwrite: Annotated[bool, Volatile()] = False
    """Replace a run with another configuration or on a changed corpus; the same run is resumed. The old
    run is moved to `.replaced/` in the same folder and deleted when the new one has finished."""
    seed: Seed = 1
    """Seed of initialisation, batches and dropout."""
    tasks: tuple[str, ...] = DEFAULT_TASKS
    """The tasks to train; default: all tasks on words. `TASK~VARIANT` is a further decoder for a task,
    trained on a part of its sentences. A mapping names tasks of your own: {NAME: {kind: KIND, …}}."""
    instances: dict[str, Instance] = field(default_factory=dict)
    """Kinds and settings of tasks with names of your own, which a mapping in `tasks` also sets."""
    max_epochs: Count = 30
    """Passes over the training data."""
    patience: Count | None = None
    """Stop training after this many evaluations without a better mean dev score; `null`: never."""
    evaluate_every: Count = 1
    """Epochs between evaluations on dev."""
    keep: Literal["auto", "best", "last"] = "auto"
    """The model that the run keeps: the best on dev, or the last. `auto`: the best, but the last if masks are
    learned, since heads of earlier models are still open."""
    pruning: PruningRegime = "none"
    """When head masks are learned: never, with everything else, after training (decoders frozen), or with
    encoder and decoders frozen. `fixed`: they are read from a file (`gates.masks`) and not learned."""
    init_from: FilePath | None = None
    """The run from whose model training starts (`--from`); `static` and `gates_only` need one."""
    gradient_conflict_every: CountOrNone = 0
    """Measure the cosine between the tasks' gradients per head once per this many updates; 0: never."""
    importance_every: CountOrNone = 0
    """Measure the importance of all heads once per this many evaluations; 0: never."""
    importance_sentences: Annotated[Count, Used(lambda run: run.importance_every)] = 200
    """Maximum number of dev sentences per task used to measure importance."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    balancer: BalancerConfig = field(default_factory=BalancerConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    wandb: Annotated[WandbConfig, Volatile()] = field(default_factory=WandbConfig)
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: not run.tasks,
            f"tasks is empty: choose at least one of {', '.join(TASK_NAMES)}",
        ),
        Forbidden(
            lambda run: ",".join(run.tasks) if len(set(run.tasks)) < len(run.tasks) else None,
            "tasks={found} names a task twice: name each once",
        ),
        Forbidden(
            lambda run: run.pruning in ("static", "gates_only") and run.init_from is None,
            "pruning={run.pruning} starts from a trained model: add --from RUN",
        ),
    )

    def __post_init__(self) -> None:
        refuse_instances(self.instances)
        if any(stands_for_task(name, self.instances) for name in {*self.tasks}.difference(self.instances)):
            made = completed(asdict(self))
            instances = {name: Instance(**values) for name, values in made["instances"].items()}
            files = {name: Files(**values) for name, values in made["corpus"]["instances"].items()}
            balancer = replace(self.balancer, weights=made["balancer"]["weights"])
            corpus = replace(self.corpus, instances=files)
            vars(self).update(instances=instances, corpus=corpus, balancer=balancer)
        known = [*self.instances, *TASK_NAMES]
        for name in self.tasks:
            if name not in known:
                choose = f": choose from {', '.join(known)}"
                raise at("tasks", f": unknown '{name}'{did_you_mean(name, known, choose)}")
        for name in self.balancer.weights:
            if name not in known:
                raise unknown(f"balancer.weights.{name}", [f"balancer.weights.{each}" for each in known])

    def translates(self) -> bool:
        """Whether a model of translation is trained."""
        return any(task.alone for task in self.chosen().values())

    def beside_alone(self) -> tuple[str, str] | None:
        """A task that is trained alone, and the names of those beside it; `None`: there is no such task."""
        alone = next((name for name, task in self.chosen().items() if task.alone), None)
        others = ", ".join(name for name in self.chosen() if name != alone)
        return (alone, others) if alone is not None and others else None

    def rates(self) -> dict[str, float]:
        """The learning rates by key, with those that `null` stands for."""
        given = {"encoder_lr": self.optimizer.encoder_lr, "decoder_lr": self.optimizer.decoder_lr}
        known = {key: rate for key, rate in given.items() if rate is not None}
        return default_rates(self.encoder.name, self.seq2seq.architecture) | known

    def task(self, name: str) -> Task:
        """The task of a name, with its settings."""
        if name in self.instances:
            return self.instances[name].task(name)
        task: Task = getattr(self, name)
        return task

    def chosen(self) -> dict[str, Task]:
        """The chosen tasks by name, in the order in which everything lists them."""
        return {name: self.task(name) for name in in_order_of_catalogue(self.tasks)}

    def main_scores(self) -> dict[str, str]:
        """By name of everything that can be trained: the score that stands for it (`Task.score`)."""
        return {name: self.task(name).score for name in (*self.instances, *TASK_NAMES)}

    def run_name(self) -> str:
        """The folder's name: as given, else tasks, regime and seed."""
        if self.name is not None:
            return self.name
        tasks = "joint" if set(self.tasks) == set(DEFAULT_TASKS) else "-".join(self.chosen())
        regime = "" if self.pruning == "none" else f"-{self.pruning}"
        return f"{tasks}{regime}-seed{self.seed}"
