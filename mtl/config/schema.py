"""The configuration of a training run as typed values; every field is a key and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mtl.config.part import parts
from mtl.config.task_slots import Slot, slot_per_task, with_slots
from mtl.tasks.catalogue import STRUCTURED, TASKS
from mtl.tasks.task import Task
from mtl.tasks.variants import task_of, variants_of

TASK_NAMES = tuple(TASKS)
"""The tasks, each of which has a key for its settings."""
DEFAULT_TASKS = tuple(task.name for task in STRUCTURED)
"""The tasks trained where none are named."""
_VARIANTS = {task.name: variants_of(task.name) for task in STRUCTURED}
NAMES = tuple(name for task in TASK_NAMES for name in (task, *_VARIANTS.get(task, ())))
"""What can be trained: the tasks, and the variants of those on words (`mtl.tasks.variants`), in order."""
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[NAMES]
PruningRegime = Literal["none", "dynamic", "static", "gates_only", "fixed"]
GateScope = Literal["shared", "per_task"]
Kind = Literal["self", "encoder", "decoder", "cross"]
"""A kind of attention: `self` in models of one stack, the others in models that translate."""
ByKind = float | dict[Kind, float]
"""A number for all kinds of attention together, or one for each."""
ALIASES = {"from": "init_from"}
"""Keys whose name on the command line is a keyword of Python: option -> field."""


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
    word_dropout: float | None = None
    """Share of words masked in training; `null`: 0.2, or 0 in a decoder-only model without a mask token."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """The attention implementation of transformers."""


@dataclass(frozen=True)
class Files:
    """Files of a corpus by split, instead of its folder."""

    train: str | None = None
    """Training file, folder or glob."""
    dev: str | None = None
    """Development file, folder or glob."""
    test: str | None = None
    """Test file, folder or glob."""
    format: str = "jsonl"
    """jsonl, conllu, conll2012, conll2003, uner, brackets, conll2005, glue or parallel (whose paths are
    SOURCE:TARGET), or a variant such as conllu-upos (docs/own-data.md has all)."""
    columns: dict[str, int] = field(default_factory=dict)
    """For conll2003 and its variants: the column of each role (word, entity, tag), counted from 1."""
    roots: Literal["refuse", "attach"] = "refuse"
    """For conllu: refuse sentences with several roots, or attach all but the first to it."""
    entities: str | None = None
    """For conllu: the key in MISC, or the column of CoNLL-U Plus, that entities are read from."""


@dataclass(frozen=True)
@slot_per_task(
    lambda task: Slot(Files | None, None, f"Files for {task.name.upper()} alone, instead of the folder's.")
)
class CorpusConfig:
    """Where sentences come from; each task's name is a key too, for files of its own."""

    path: str | None = "data/ewt5"
    """Folder with train.jsonl, dev.jsonl and test.jsonl; `null` if every task has files elsewhere."""
    files: Files | None = None
    """Files for all tasks whose layer their format has, instead of the folder's."""

    def files_of(self, task: str) -> Files | None:
        """A task's own files; `None`: it has none, and is read from `files` or the folder."""
        files: Files | None = getattr(self, task_of(task))
        return files


@dataclass(frozen=True)
class BatchConfig:
    """How sentences become batches."""

    mode: Literal["aligned", "separate"] = "aligned"
    """One encoder pass for all tasks annotated on a sentence, or batches of one task each."""
    tokens: int = 6400
    """Maximum number of padded subwords per batch."""
    sentences: int | None = 16
    """Maximum number of sentences per batch; `null`: as many as `batch.tokens` allows."""
    max_words: int = 512
    """Maximum number of words per sentence; longer ones are left out of training, and
    refused in dev and test."""
    sampling: Literal["in_turn", "proportional", "tempered"] = "proportional"
    """Order of the tasks' batches if `batch.mode` is `separate`."""
    temperature: float = 2.0
    """For `tempered` sampling: tasks are drawn in proportion to their batches to the power 1/temperature."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its rates."""

    encoder_lr: float | None = None
    """Peak learning rate of the encoder; `null`: 3e-4 for `minilm`, 5e-5 for other encoders."""
    decoder_lr: float | None = None
    """Peak learning rate of the decoders; `null`: 2e-3 on `minilm`, 1e-3 on other encoders."""
    weight_decay: float = 0.01
    """AdamW's decay, on matrices only."""
    warmup: float = 0.1
    """Share of the updates in which the rates rise linearly."""
    warmup_updates: int | None = None
    """Number of warm-up updates, instead of their share."""
    schedule: Literal["linear", "cosine", "constant", "inverse_sqrt"] = "linear"
    """How the rates change after the warm-up: to zero with `linear` and `cosine`; with `inverse_sqrt` as 1
    over the square root of the update."""
    beta2: float = 0.999
    """Adam's decay of squared gradients."""
    clip: float = 1.0
    """Largest norm of the gradient, gates excluded; 0: no clipping."""
    accumulate: int = 1
    """Batches per update; the update equals that of one batch with all their sentences."""


def default_rates(encoder: str, architecture: str | None) -> dict[str, float]:
    """The learning rates of `OptimizerConfig` that `null` stands for.

    MiniLM, which is small, needs higher rates than encoders of BERT's size. `architecture` is that of a model
    from scratch, which has no encoder of that name.
    """
    small = encoder == "minilm" and architecture is None
    return {"encoder_lr": 3e-4, "decoder_lr": 2e-3} if small else {"encoder_lr": 5e-5, "decoder_lr": 1e-3}


@dataclass(frozen=True)
class BalancerConfig:
    """How the tasks' losses are weighted."""

    name: Literal["uniform", "fixed", "moving_average", "uncertainty", "gradnorm", "pcgrad"] = "uniform"
    """The method that weights the tasks' losses against each other."""
    weights: dict[str, float] = field(default_factory=dict)
    """For `fixed`: a weight per task, which its variants have, too; 1 if none is given."""
    window: int = 5
    """For `moving_average`: the number of recent losses averaged per task."""
    alpha: float = 1.5
    """For `gradnorm`: how strongly slow tasks are favoured."""
    lr: float = 0.025
    """Learning rate of learned weights (`uncertainty`, `gradnorm`)."""


@dataclass(frozen=True)
class GatesConfig:
    """Head masks: their number, their cost and their initial values."""

    scope: GateScope = "shared"
    """One mask for all tasks, or one each over the same encoder."""
    kinds: tuple[Kind, ...] | None = None
    """The kinds of attention that have gates; heads of others stay open and are not counted. `null`: all."""
    unit: Literal["head", "group"] = "head"
    """A gate per query head, or one for all that share keys and values (in models with grouped queries)."""
    penalty: ByKind | None = None
    """Weight of the expected number of open heads per layer (lambda), or one for each kind of attention
    (KIND: WEIGHT); `null`: use `target_open` instead."""
    penalty_warmup: float = 0.0
    """Share of the updates in which the penalty weight rises linearly from zero."""
    overlap_penalty: float = 0.0
    """Weight of the pairwise product of tasks' gates (`per_task` only); negative: reward for sharing."""
    target_open: ByKind | None = None
    """Share of heads (at most 1) or number of heads (above 1) to keep, instead of the penalty, or one for
    each kind of attention (KIND: NUMBER); `null` without a penalty: a third."""
    at_most: int | None = None
    """Maximum number of masks that may keep the same head in the target's choice (`per_task` only): 1 makes
    masks disjoint; `null`: any number."""
    lr: float | None = None
    """Learning rate of log alpha; `null`: 10 / number of updates, so that heads have time to close."""
    temperature: float = 0.33
    """Temperature of the hard concrete distribution."""
    init_mean: float = 2.0
    """Mean of the initial log alpha; 2 starts evaluation gates at 0.96 (the paper: 0, gates at 0.5)."""
    init_std: float = 0.1
    """Standard deviation of the initial log alpha."""
    masks: str | None = None
    """For `pruning=fixed`: file with the masks, such as the gates.parquet of a run; a mask for each task of
    the run (`per_task`), or the same for all (`shared`)."""


@dataclass(frozen=True)
class Seq2SeqConfig:
    """An encoder-decoder model from scratch, for the task `translate`."""

    architecture: Literal["marian", "bart", "mbart", "m2m_100", "pegasus", "t5", "mt5"] | None = None
    """Architecture of the layers; `null`: the checkpoint `encoder.name` instead of a model from scratch."""
    layers: int = 4
    """Layers of the encoder."""
    decoder_layers: int | None = None
    """Layers of the decoder; `null`: as many as the encoder has."""
    heads: int = 4
    """Heads of each kind of attention in a layer."""
    width: int = 128
    """Size of the vectors between layers."""
    feed_forward: int = 256
    """Size of the feed-forward layers' inner vectors."""
    dropout: float = 0.1
    """Share of features dropped in training."""
    vocabulary: int = 8000
    """Maximum number of subwords; both languages share them."""
    components: int | None = None
    """Query and key components that the heads of each layer share (collaborative attention), up to `width`;
    `null`: each head has its own."""
    mixing: Literal["learned", "blocks"] = "learned"
    """What each head takes of the components: its weights are learned, or it keeps the part that it starts
    with, so that heads are concatenated."""


@dataclass(frozen=True)
class TrainerConfig:
    """The devices of a run, and how often its state is saved."""

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """The device to train on; `auto` takes a GPU if there is one."""
    devices: int = 1
    """Processes (one per GPU, or CPU processes)."""
    num_nodes: int = 1
    """Machines, started by torchrun or SLURM."""
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    """`auto`: bf16 where a GPU or CPU multiplies it in hardware (AMX, AVX512-BF16), else 32 bits."""
    threads: int | None = None
    """CPU threads of one process; `null`: as torch chooses."""
    checkpoint_minutes: float = 5.0
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
@slot_per_task(lambda task: Slot(task, field(default_factory=task), (task.__doc__ or "").split("\n")[0]))
@with_slots({part.key: part.slot for part in parts()})
class TrainConfig:
    """A training run; each task's name is a key too, for its settings, and so is each part's (`Part`)."""

    name: str | None = None
    """The run's folder below `runs`; default: its tasks and seed."""
    runs: str = "runs"
    """Folder that holds the runs."""
    overwrite: bool = False
    """Replace a run with another configuration or on a changed corpus; the same run is resumed. The old
    run is moved to `.replaced/` beside it and deleted when the new one has finished."""
    seed: int = 1
    """Seed of initialisation, batches and dropout."""
    tasks: tuple[TaskName, ...] = DEFAULT_TASKS
    """The tasks to train; default: all tasks on words. `TASK~VARIANT` is a further decoder for a task,
    trained on a part of its sentences."""
    max_epochs: int = 30
    """Passes over the training data."""
    patience: int | None = None
    """Stop training after this many evaluations without a better mean dev score; `null`: never."""
    evaluate_every: int = 1
    """Epochs between evaluations on dev."""
    keep: Literal["auto", "best", "last"] = "auto"
    """The model that the run keeps: the best on dev, or the last. `auto`: the best, but the last if masks are
    learned, since heads of earlier models are still open."""
    pruning: PruningRegime = "none"
    """When head masks are learned: never, with everything else, after training (decoders frozen), or
    on frozen encoder and decoders. `fixed`: they are read from a file (`gates.masks`) and not learned."""
    init_from: str | None = None
    """Run whose model training starts from (`--from`); `static` and `gates_only` need one."""
    importance_every: int = 0
    """Measure the importance of all heads once per this many evaluations; 0: never."""
    importance_sentences: int = 200
    """Maximum number of dev sentences per task used to measure importance."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    seq2seq: Seq2SeqConfig = field(default_factory=Seq2SeqConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    balancer: BalancerConfig = field(default_factory=BalancerConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)

    def rates(self) -> dict[str, float]:
        """The learning rates by key, with those that `null` stands for."""
        given = {"encoder_lr": self.optimizer.encoder_lr, "decoder_lr": self.optimizer.decoder_lr}
        known = {key: rate for key, rate in given.items() if rate is not None}
        return default_rates(self.encoder.name, self.seq2seq.architecture) | known

    def chosen(self) -> dict[str, Task]:
        """The chosen tasks by name, in the catalogue's order."""
        return {name: getattr(self, task_of(name)) for name in NAMES if name in self.tasks}

    def main_figures(self) -> dict[str, str]:
        """By name of everything that can be trained: the figure that stands for it (`Task.score`)."""
        return {name: getattr(self, task_of(name)).score for name in NAMES}

    def run_name(self) -> str:
        """The folder's name: as given, else tasks, regime and seed."""
        if self.name is not None:
            return self.name
        tasks = "joint" if set(self.tasks) == set(DEFAULT_TASKS) else "-".join(self.chosen())
        regime = "" if self.pruning == "none" else f"-{self.pruning}"
        return f"{tasks}{regime}-seed{self.seed}"
