"""The configuration of a training run as typed values; every field is a key and a flag."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, get_args

from mtl.config.instances import (
    BY_TASK,
    Instance,
    Slot,
    architecture_in,
    completed,
    kind_of,
    own_model_of,
    refuse_instances,
    slot_per_task,
    stands_for_task,
    with_slots,
)
from mtl.config.keys import (
    FilePath,
    Forbidden,
    Joint,
    KeyFault,
    OutputFolder,
    Used,
    Volatile,
    at,
    known_keys_of,
    unknown,
)
from mtl.errors import did_you_mean
from mtl.features import added
from mtl.tasks.catalogue import STRUCTURED, TASKS, in_order_of_catalogue
from mtl.tasks.task import Count, CountOrNone, Dropout, Range, Seed, Share, Size, Task

TASK_NAMES = tuple(TASKS)
"""The tasks, each of which has a key for its settings."""
DEFAULT_TASKS = tuple(task.name for task in STRUCTURED)
"""The tasks trained where none are named."""
PruningRegime = Literal["none", "dynamic", "static", "gates_only", "fixed"]
GateScope = Literal["shared", "per_task"]
Split = Literal["train", "dev", "test"]
SPLITS: tuple[str, ...] = get_args(Split)
ScoredSplit = Literal["dev", "test"]
"""The splits on which models are compared."""
Kind = Literal["self", "encoder", "decoder", "cross"]
"""A kind of attention: `self` in models of one stack, the others in encoder-decoder models."""
KIND_NAMES: tuple[str, ...] = get_args(Kind)
ByTask = float | dict[str, float]
"""A number for all tasks, or one for each."""
ByPart = float | dict[Kind | str, float]
"""A number for all heads, or one for each kind of attention, or for each task that has its own mask."""
Rate = Annotated[float, Range(0, 1)]
Depth = Annotated[int, Range(1, 1_000)]
Layer = Annotated[int, Range(0, 1_000)]
Freeze = Literal["all"] | tuple[Literal["embeddings"] | Layer, ...] | None
BY_PART = ("gates.penalty", "gates.target_open")
"""Keys whose numbers may be given by kind of attention instead of by task."""
ALIASES = {"from": "init_from"}
"""Keys whose name on the command line is a keyword of Python: option -> field."""
COMPARING = ("gradnorm", "pcgrad", "torchjd")
"""Balancers that compare the tasks' gradients in every step."""
LEARNING = ("dynamic", "static", "gates_only")
"""Values of `pruning` with which masks are learned."""


_LABELS = Used(lambda run: run.own_model() is None)
_FREEZABLE = Used(lambda run: run.own_model() is None and run.pruning != "gates_only")


def encoder_is_frozen(run: TrainConfig) -> bool:
    """Whether nothing of the encoder is trained because of `encoder.freeze`."""
    return run.encoder.freeze == "all" and _FREEZABLE.when(run)


@dataclass(frozen=True)
class EncoderConfig:
    """The pretrained encoder, and how word vectors are taken from it."""

    name: str = "minilm"
    """A hub name, a folder, or `minilm` for the embedded encoder."""
    weights: Annotated[Literal["pretrained", "random"], _LABELS] = "pretrained"
    """The weights that training starts from: the pretrained ones, or as a control random ones, of the same
    architecture and drawn with the run's seed. The tokenizer is the encoder's in both cases."""
    freeze: Annotated[Freeze, _FREEZABLE] = None
    """What of the encoder is not trained, and has no dropout: `all`, or a list of layers (from 0) and
    `embeddings`. `null`: nothing."""
    pooling: Annotated[Literal["mean", "first", "last"] | None, _LABELS] = None
    """How a word's vector is computed from those of its subwords; `null`: `mean`, or `last` in a decoder-only
    model."""
    layers: Annotated[Literal["last", "mix", "mix_per_task"], _LABELS] = "last"
    """Take the last layer's vectors, or a learned mix of all layers: one for all tasks, or one for each."""
    word_dropout: Annotated[Dropout | None, _LABELS] = None
    """Share of words masked in training; `null`: 0.2, or 0 in a decoder-only model without a mask token."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """The attention implementation of transformers."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: run.encoder.freeze == (),
            "encoder.freeze is empty: name layers, or use null",
        ),
        Forbidden(
            lambda run: encoder_is_frozen(run) and run.pruning == "static",
            "pruning=static trains the encoder and its gates, and encoder.freeze=all leaves only the gates: "
            "use pruning=gates_only, without encoder.freeze",
        ),
    )


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
    """jsonl, conllu, conll2012, conll2003, columns, uner, brackets, conll2005, sdp, json-entities, glue, a
    variant such as conllu-upos, or another one of docs/own-data.md; with options after a colon, such as
    brackets:arcs=collins."""
    columns: dict[str, int] = field(default_factory=dict)
    """For conll2003, its variants and columns: the column of each role (word, entity, tag; label; sentence,
    for a class of the whole sentence), counted from 1."""
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

    encoder_lr: Rate | None = None
    """Peak learning rate of the encoder; `null`: 3e-4 for `minilm`, 5e-5 for other encoders."""
    decoder_lr: Annotated[ByTask | None, Range(0, 1)] = None
    """Peak learning rate of the decoders, or one for each task (TASK: RATE); `null`, and for tasks that are
    not named: 2e-3 on `minilm`, 1e-3 on other encoders."""
    weight_decay: Share = 0.01
    """AdamW's decay, on matrices only."""
    warmup: Annotated[Share, Used(lambda run: run.optimizer.warmup_updates is None)] = 0.1
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


def filled_rates(
    given: Mapping[str, ByTask | None], default: Mapping[str, float], tasks: Collection[str]
) -> dict[str, Any]:
    """Learning rates by key, with those that `null` stands for, also for tasks that a mapping leaves out."""
    filled: dict[str, Any] = {}
    for key, rate in given.items():
        filled[key] = default[key] if rate is None else rate
        if isinstance(rate, Mapping):
            filled[key] = {**dict.fromkeys(tasks, default[key]), **rate}
    return filled


def within_tasks(values: Mapping[str, float], tasks: Collection[str]) -> dict[str, float]:
    """The values without those of other tasks."""
    return {name: value for name, value in values.items() if name in tasks or name in KIND_NAMES}


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
    intrinsic: Annotated[bool, _by_balancer("moving_average")] = False
    """For `moving_average`: multiply a task's weight by its loss in the update over its average, so that
    batches on which it is worse than of late count more."""
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
            lambda run: run.balancer.name in COMPARING and encoder_is_frozen(run),
            "balancer {run.balancer.name} compares the tasks' gradients in the encoder, which "
            "encoder.freeze=all freezes: use uniform, moving_average or uncertainty",
        ),
        Forbidden(
            lambda run: run.balancer.name in COMPARING and run.batch.mode == "separate",
            "balancer {run.balancer.name} compares the tasks' gradients in every step, but "
            "batch.mode=separate has one task in a step: use batch.mode=aligned, or moving_average or "
            "uncertainty",
        ),
    )


_LEARNED = Used(lambda run: run.pruning in LEARNING)
_NORMAL = Used(lambda run: run.pruning in LEARNING and run.gates.init == "normal")
_PENALISED = Used(
    lambda run: (
        run.pruning in LEARNING and (run.gates.target_open is None or isinstance(run.gates.penalty, Mapping))
    )
)
_TARGETED = Used(
    lambda run: run.pruning in LEARNING and (run.gates.target_open is not None or run.gates.penalty is None)
)


def given_by(values: Any) -> Literal["", "kind", "task"]:
    """Whether values are given by kind of attention or by task; empty: neither."""
    if not isinstance(values, Mapping):
        return ""
    return "task" if any(name not in KIND_NAMES for name in values) else "kind"


def _for_one_mask(run: TrainConfig) -> str | None:
    """A key of gates with numbers by task in a run whose tasks share one mask."""
    if run.pruning not in LEARNING or run.gates.scope == "per_task" or len(run.tasks) == 1:
        return None
    given = {name: getattr(run.gates, name) for name in ("penalty", "target_open", "lr")}
    return next((f"gates.{name}" for name, values in given.items() if given_by(values) == "task"), None)


def _part_of_a_head(run: TrainConfig) -> str | None:
    """The key and value of a number of heads that is no whole one."""
    given = values_by_part("target_open", run.gates.target_open)
    return next((f"{key}={target}" for key, target in given if target > 1 and target != int(target)), None)


def values_by_part(name: str, values: ByPart | None) -> Iterator[tuple[str, float]]:
    """The values of `gates.NAME`, one for all heads or one for each kind or task, with their dotted keys."""
    if isinstance(values, Mapping):
        yield from ((f"gates.{name}.{part}", value) for part, value in values.items())
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
    penalty: Annotated[ByPart | None, Range(0, 1_000_000), _PENALISED] = None
    """Weight of the expected number of open heads per layer (lambda), or one for each kind of attention
    (KIND: WEIGHT), or for each task that has a mask of its own (TASK: WEIGHT); `null`: use `target_open`
    instead."""
    penalty_warmup: Annotated[Share, _PENALISED] = 0.0
    """Share of the updates in which the penalty weight rises linearly from zero."""
    target_open: Annotated[ByPart | None, Range(0, 1_000_000, open_low=True), _LEARNED] = None
    """Share of heads (at most 1) or number of heads (above 1) to keep, instead of the penalty, or one for
    each kind of attention (KIND: NUMBER) or task (TASK: NUMBER); `null` without a penalty: a third."""
    at_least: Annotated[CountOrNone, _TARGETED] = 0
    """Number of heads that a target keeps open in every layer, of each kind of attention."""
    lr: Annotated[ByTask | None, Range(0, 100, open_low=True), _LEARNED] = None
    """Learning rate of log alpha, or one for each task that has a mask of its own (TASK: RATE); `null`, and
    for tasks that are not named: 10 / number of updates, so that heads have time to close."""
    warmup: Annotated[Share, _LEARNED] = 0.0
    """Share of the updates in which the rate of log alpha rises linearly; it is constant afterwards."""
    temperature: Annotated[float, Range(0, 1_000, open_low=True), _LEARNED] = 0.33
    """Temperature of the hard concrete distribution."""
    init: Annotated[Literal["normal", "xavier"], _LEARNED] = "normal"
    """The initial log alpha: normally distributed, or from Xavier's uniform distribution, as He & Choi (2021)
    published it."""
    init_mean: Annotated[float, Range(-20, 20), _NORMAL] = 2.0
    """Mean of the initial log alpha; 2 starts evaluation gates at 0.96."""
    init_std: Annotated[float, Range(0, 20), _NORMAL] = 0.1
    """Standard deviation of the initial log alpha."""
    masks: Annotated[FilePath | None, Used(lambda run: run.pruning == "fixed")] = None
    """For `pruning=fixed`: file with the masks, such as the gates.parquet of a run; a mask for each task of
    the run (`per_task`), or the same for all (`shared`)."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            _part_of_a_head, "{found}: use a share of the heads, at most 1, or a whole number of heads"
        ),
        Forbidden(
            _for_one_mask,
            "{found} is given by task, and gates.scope=shared has one mask for {tasks}: use one number, or "
            "gates.scope=per_task",
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


def _takes_gradients(run: TrainConfig) -> str | None:
    """The balancer, if it takes gradients of the tasks' losses besides those of the update."""
    name = run.balancer.name
    takes = name in COMPARING or (name == "moving_average" and run.optimizer.accumulate > 1)
    return name if takes else None


@dataclass(frozen=True)
class TrainerConfig:
    """The devices of a run, and how often its state is saved."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """The device to train on; `auto` takes a GPU if there is one."""
    devices: Size = 1
    """Processes (one per GPU, or CPU processes)."""
    num_nodes: Size = 1
    """Machines, started by torchrun or SLURM."""
    precision: Literal["auto", "32-true", "tf32", "bf16-mixed", "bf16-master", "16-mixed"] = "auto"
    """float32; on a GPU, with its products in TF32; bfloat16 by autocast; or by copies of the float32
    weights; float16 by autocast, with scaled losses. `auto`: bf16-mixed if the hardware supports it (GPU, or
    CPU with AMX or AVX512-BF16), else float32."""
    cuda_graphs: Annotated[bool, _LABELS] = False
    """On a GPU, compute in training the passes of the encoder, and of decoders with their losses, as CUDA
    graphs: the host starts fewer operations."""
    threads: Annotated[Size | None, Volatile()] = None
    """CPU threads of one process; `null`: as OMP_NUM_THREADS says, otherwise torch's default."""
    checkpoint_minutes: Annotated[float, Range(0, 1_000_000), Volatile()] = 5.0
    """Minutes between checkpoints, from which a run resumes; one is also written after every epoch."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: run.trainer.precision == "16-mixed" and _takes_gradients(run),
            "trainer.precision=16-mixed scales the loss, and balancer {found} takes gradients of the tasks' "
            "losses as they are, too small for float16: use bf16-mixed, or balancer.name=uniform",
        ),
    )


LoggerName = Literal["wandb", "tensorboard", "csv"]
_NOT_IN_IDS = ":;,#?/'"


@dataclass(frozen=True)
class WandbConfig:
    """Weights & Biases."""

    mode: Literal["online", "offline", "disabled"] | None = None
    """`offline` writes a local log and makes no connection. `null`: `disabled`, or if `loggers` names wandb,
    what `WANDB_MODE` says, or `online`."""
    project: str | None = None
    """Project on the server; `null`: the one that W&B's own settings name, or `mtl`."""
    entity: str | None = None
    """Team or user on the server."""
    group: str | None = None
    """Group of the run on the server."""
    job_type: str | None = None
    """Purpose of the run, for instance `train`."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    notes: str | None = None
    """A longer description of the run."""
    id: str | None = None
    """The W&B run's id; `null`: that of `WANDB_RUN_ID`, or a new one. A resumed run keeps its own."""
    resume: Literal["allow", "must", "never"] | None = None
    """Whether the server has a run of this id when training starts: it may, it must or it must not; `null`:
    as `WANDB_RESUME` says, or it may. A run that is resumed continues its W&B run in any case."""
    log_model: bool = False
    """Log the kept model as an artifact, too."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda run: next((sign for sign in _NOT_IN_IDS if sign in (run.wandb.id or "")), None),
            "wandb.id={run.wandb.id}: W&B refuses ids with {found}",
        ),
        Forbidden(
            lambda run: run.wandb.id is not None and not 0 < len(run.wandb.id.strip()) <= 128,
            "wandb.id={run.wandb.id}: use 1 to 128 characters",
        ),
        Forbidden(
            lambda run: run.wandb.mode == "offline" and run.wandb.resume,
            "wandb.resume={found} asks the server, which wandb.mode=offline does not: leave one of them out",
        ),
    )


@dataclass(frozen=True)
@slot_per_task(
    lambda task: Slot(
        Annotated[task, _of(task)], field(default_factory=task), (task.__doc__ or "").split("\n")[0]
    )
)
@with_slots({name: resolve_name(keys.slot) for name, keys in added(lambda feature: feature.keys).items()})
class TrainConfig:
    """A training run. The name of each task is also a key, for its settings; features add keys (`Keys`)."""

    name: str | None = None
    """The run's folder below `runs`; default: its tasks and seed."""
    runs: Annotated[OutputFolder, Volatile()] = "runs"
    """Folder that holds the runs."""
    overwrite: Annotated[bool, Volatile()] = False
    """Replace a run with another configuration or on a changed corpus; the same run is resumed. The old
    run is moved to `.replaced/` in the same folder and deleted when the new one has finished."""
    seed: Seed = 1
    """Seed of initialisation, batches and dropout."""
    tasks: tuple[str, ...] = DEFAULT_TASKS
    """The tasks to train; default: all tasks on words. `TASK~VARIANT` is a further decoder for a task,
    trained on a part of its sentences. A mapping names tasks of your own: {NAME: {kind: KIND, …}}."""
    by_task: Annotated[tuple[str, ...], Volatile()] = ()
    """Keys that a study sets as suits the tasks and masks of each run, such as `max_epochs`. Reports compare
    runs of other tasks, or with other masks, in spite of them. No training reads it."""
    instances: dict[str, Instance] = field(default_factory=dict)
    """Kinds and settings of tasks with names of your own, which a mapping in `tasks` also sets."""
    max_epochs: Count = 30
    """Passes over the training data."""
    patience: Count | None = None
    """Stop training after this many evaluations without a better mean dev score; `null`: never."""
    evaluate_every: Count = 1
    """Epochs between evaluations on dev."""
    evaluate_train: CountOrNone = 0
    """Score this many training sentences, too, at each evaluation; they are always the same ones, and show
    overfitting. 0: none."""
    keep: Literal["auto", "best", "last", "average"] = "auto"
    """The model that the run keeps: the best on dev, the last, or the average of its `snapshots`. `auto`: the
    best, but the last if masks are learned, since heads of earlier models are still open."""
    snapshots: CountOrNone = 0
    """Keep the models of this many last evaluations, too, in RUN/snapshots/epoch-N; 0: none."""
    snapshot_updates: Annotated[Count | None, Used(lambda run: run.snapshots)] = None
    """Take snapshots after each this many updates and after the last one, in RUN/snapshots/update-N; `null`:
    at evaluations."""
    pruning: PruningRegime = "none"
    """When head masks are learned: never, with everything else, after training (decoders frozen), or with
    encoder and decoders frozen. `fixed`: they are read from a file (`gates.masks`) and not learned."""
    init_from: FilePath | None = None
    """The run from whose model training starts (`--from`); `static` and `gates_only` need one."""
    importance_every: CountOrNone = 0
    """Measure the importance of all heads once per this many evaluations; 0: never."""
    importance_sentences: Annotated[Count, Used(lambda run: run.importance_every)] = 200
    """Maximum number of dev sentences per task used to measure importance."""
    loggers: Annotated[tuple[LoggerName, ...], Volatile()] = ()
    """Where the run is logged besides its own files: W&B, TensorBoard (RUN/tensorboard), a table
    (RUN/csv/metrics.csv). `wandb.mode` alone switches W&B on or off, too."""
    log_every: Annotated[CountOrNone, Volatile()] = 50
    """Updates from one row of losses, rates and gradient norm in the loggers to the next; 0: evaluations
    only."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
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
        Forbidden(
            lambda run: run.keep == "average" and run.snapshots < 2,
            "keep=average is the average of the last snapshots: say of how many by snapshots (2 or more)",
        ),
        Forbidden(
            lambda run: run.keep == "average" and run.pruning in LEARNING,
            "keep=average is for models with the same masks, and pruning={run.pruning} learns them: use "
            "keep=last",
        ),
        Forbidden(
            lambda run: run.beside_alone(),
            "{found[0]} is trained alone, because it uses a different model: leave out {found[1]}",
        ),
    )

    def __post_init__(self) -> None:
        refuse_instances(self.instances)
        if any(stands_for_task(name, self.instances) for name in {*self.tasks}.difference(self.instances)):
            made = completed(asdict(self))
            instances = {name: Instance(**values) for name, values in made["instances"].items()}
            files = {name: Files(**values) for name, values in made["corpus"]["instances"].items()}
            corpus = replace(self.corpus, instances=files)
            vars(self).update(instances=instances, corpus=corpus)
            for key in BY_TASK:
                group, name = key.split(".")
                vars(self)[group] = replace(getattr(self, group), **{name: made[group][name]})
        for key in self.by_task:
            if key not in (keys := _all_keys()):
                raise KeyFault("by_task", f"by_task: {unknown(key, keys)}")
        known = [*self.instances, *TASK_NAMES]
        for name in self.tasks:
            if name not in known:
                choose = f": choose from {', '.join(known)}"
                raise at("tasks", f": unknown '{name}'{did_you_mean(name, known, choose)}")
        for key, values in self.numbers_by_task():
            parts = [*known, *(KIND_NAMES if key in BY_PART else ())]
            if odd := next((name for name in values if name not in parts), None):
                raise unknown(f"{key}.{odd}", [f"{key}.{each}" for each in parts])
            if len({name in KIND_NAMES for name in values}) > 1:
                raise at(key, " is given by kind of attention and by task: use one of the two")

    def numbers_by_task(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """The dotted keys whose numbers are given by task, or by kind of attention, with these."""
        for key in BY_TASK:
            group, name = key.split(".")
            values = getattr(getattr(self, group), name)
            if isinstance(values, Mapping):
                yield key, values

    def without_other_tasks(self) -> TrainConfig:
        """The configuration without numbers for tasks that are not trained."""
        changed: dict[str, dict[str, Any]] = {}
        for key, values in self.numbers_by_task():
            kept = within_tasks(values, self.tasks)
            if len(kept) < len(values):
                group, name = key.split(".")
                changed.setdefault(group, {})[name] = kept
        gates = {
            "penalty": self.gates.penalty,
            "target_open": self.gates.target_open,
            **changed.get("gates", {}),
        }
        if {} in gates.values() and any(gates[name] for name in ("penalty", "target_open")):
            empty = [name for name in ("penalty", "target_open") if gates[name] == {}]
            changed.setdefault("gates", {}).update(dict.fromkeys(empty))
        return replace(self, **{group: replace(getattr(self, group), **of) for group, of in changed.items()})

    def own_model(self) -> str | None:
        """The kind of model that takes the place of the encoder (`Task.own_model`); `None`: none does."""
        return own_model_of({name: kind_of(name, self.instances) for name in self.tasks})

    def architecture(self) -> str | None:
        """The architecture of a model from scratch that takes the place of the encoder; `None`: none does."""
        groups = {name: vars(getattr(self, name)) for name in added(lambda feature: feature.own_models)}
        return architecture_in(groups)

    def beside_alone(self) -> tuple[str, str] | None:
        """A task that is trained alone, and the names of those beside it; `None`: there is no such task."""
        alone = next((name for name, task in self.chosen().items() if task.own_model), None)
        others = ", ".join(name for name in self.chosen() if name != alone)
        return (alone, others) if alone is not None and others else None

    def keeps_best(self) -> bool:
        """Whether the run keeps the best model on dev; otherwise the last."""
        return self.keep == "best" or (self.keep == "auto" and self.pruning not in LEARNING)

    def rates(self) -> dict[str, Any]:
        """The learning rates by key, with those that `null` stands for."""
        given = {"encoder_lr": self.optimizer.encoder_lr, "decoder_lr": self.optimizer.decoder_lr}
        return filled_rates(given, default_rates(self.encoder.name, self.architecture()), self.tasks)

    def with_rates(self) -> TrainConfig:
        """The configuration with the learning rates that `null` stands for, as runs record it."""
        return replace(self, optimizer=replace(self.optimizer, **self.rates()))

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


@cache
def _all_keys() -> tuple[str, ...]:
    return known_keys_of(TrainConfig)
