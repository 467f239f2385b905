"""A joint model exported to ONNX: onnxruntime computes the scores, and the decoders annotate with them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from mtl.config.instances import tasks_saved
from mtl.errors import InputError
from mtl.heads import stored
from mtl.heads.arguments import path_or_hub_name
from mtl.models.annotator import Annotator, TaskScores, damaged
from mtl.models.batches import Batch
from mtl.models.head_scales import TaskScale
from mtl.models.model_files import DECODERS, LABELS, require_decoders, require_files
from mtl.models.opened import Accelerator, Precision
from mtl.models.pretrained import quiet
from mtl.models.subwords import Subwords, SubwordTokenizer
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.task import Labels, Task

EXPORTED = "exported.json"
"""The file that the folder is known by."""
GRAPH = "model.onnx"
TO_EXPORT = ("onnx", "onnxruntime", "onnxscript")
"""The packages that writing a graph needs; computing one needs only onnxruntime."""


@dataclass(frozen=True)
class Reads:
    """What the graph reads, and the sizes of its outputs."""

    max_length: int
    """Positions of a window."""
    causal: bool
    hidden: int
    """Numbers in a word's vector."""
    first: bool
    """Whether decoders are given the vector of the first special token before the vectors of words."""
    token_types: bool
    masks: int
    """Copies of each sentence in a pass: one per mask if each task has its own mask, else 1."""


def require_onnx(what: str, packages: Sequence[str]) -> None:
    """Raise `InputError` unless these packages of the extra `onnx` are installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{what} needs {' and '.join(missing)}, not installed here: pip install 'mtl-heads[onnx]'"
        )


def graph_inputs(subwords: Subwords, mask: Tensor, reads: Reads) -> dict[str, Tensor]:
    """The inputs of the graph by name; `mask` is true at words."""
    if reads.masks > 1:
        subwords = subwords.take(torch.arange(subwords.sentences).repeat(reads.masks))
    inputs = {
        "input_ids": subwords.input_ids,
        "attention_mask": subwords.attention_mask,
        "slot": subwords.slot,
        "sentence": subwords.sentence,
        "mask": mask,
    }
    if reads.token_types:
        types = subwords.token_types
        inputs["token_types"] = torch.zeros_like(subwords.input_ids) if types is None else types
    return inputs


@torch.no_grad()
def spec_of(decoder: Decoder, hidden: int) -> pytree.TreeSpec:
    """The structure of a task's scores: of the tensors that its decoder gives for one word."""
    return pytree.tree_structure(decoder(torch.zeros(1, 1, hidden), torch.ones(1, 1, dtype=torch.bool)))


def output_names(name: str, spec: pytree.TreeSpec) -> list[str]:
    """The graph's outputs with the scores of a task."""
    return [f"{name}.{number}" for number in range(spec.num_leaves)]


class ExportedModel(Annotator):
    """A joint model whose encoder and scores are an ONNX graph (`export_onnx`), on the CPU.

    Relations, labels of constituents, roles and senses are scored only at predicted places: by torch, from
    vectors that the graph gives, with the decoders' float32 weights. `annotate`, `annotate_text` and
    `annotate_stream` are those of `JointModel`.
    """

    def __init__(
        self,
        graph: Path,
        reads: Reads,
        tokenizer: SubwordTokenizer,
        tasks: Mapping[str, Task],
        labels: Mapping[str, Labels],
    ) -> None:
        super().__init__()
        self.reads, self._tokenizer, self._graph = reads, tokenizer, _Graph(graph)
        self.tasks, self.labels = dict(tasks), dict(labels)
        self.decoders = nn.ModuleDict(
            {name: task.new_decoder(reads.hidden, labels[name]) for name, task in tasks.items()}
        )
        self.eval()
        self._specs = {name: spec_of(self.decoder(name), reads.hidden) for name in tasks}

    @property
    def tokenizer(self) -> SubwordTokenizer:
        return self._tokenizer

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(self, batch: Batch, head_scale: TaskScale | None = None) -> dict[str, TaskScores]:
        """Scores per task of the batch; raises `InputError` for a scale, since the graph has the masks."""
        if head_scale is not None:
            raise InputError("an exported model has its masks in the graph: use the run for another scale")
        assert isinstance(batch.subwords, Subwords)
        inputs = graph_inputs(batch.subwords, batch.mask, self.reads)
        names = {name: output_names(name, self._specs[name]) for name in batch.rows}
        found = self._graph.run([name for each in names.values() for name in each], inputs)
        scores = {}
        for name, rows in batch.rows.items():
            whole = len(rows) == len(batch.mask)
            parts = [found[each] if whole else found[each][rows] for each in names[name]]
            mask = batch.mask if whole else batch.mask[rows]
            if self.decoder(name).reads_first:
                mask = functional.pad(mask, (1, 0), value=True)
            scores[name] = TaskScores(pytree.tree_unflatten(parts, self._specs[name]), mask)
        return scores


class _Graph:
    """A graph that is computed with as many threads as torch uses in the calling thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._threads = 0
        self._session: Any = None

    def run(self, outputs: Sequence[str], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = {name: np.ascontiguousarray(value.numpy()) for name, value in inputs.items()}
        found = self._of(torch.get_num_threads()).run(list(outputs), given)
        return dict(zip(outputs, map(torch.from_numpy, found), strict=True))

    def _of(self, threads: int) -> Any:
        """The session for this number of threads, made anew if the number has changed."""
        from onnxruntime import InferenceSession, SessionOptions

        with self._lock:
            if threads != self._threads:
                options = SessionOptions()
                options.intra_op_num_threads = threads
                options.log_severity_level = 4  # errors are raised, too
                self._session = InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
                self._threads = threads
            return self._session


@torch.random.fork_rng([])  # decoders draw weights before they are loaded
def load_exported(folder: str | Path) -> ExportedModel:
    """Load a model that `export_onnx` or `mtl export` wrote; its `annotate` is that of `JointModel`.

    Args:
        folder: The folder that was written.

    Raises:
        InputError: the folder does not exist, holds no exported model or a damaged one, or the packages of
            the extra `onnx` are missing.
    """
    folder = path_or_hub_name(folder)
    if not (folder / EXPORTED).is_file():
        raise InputError(f"{folder} holds no exported model (no {EXPORTED}): use what mtl export wrote")
    require_onnx("an exported model", ("onnxruntime",))
    with damaged(folder):
        description = json.loads((folder / EXPORTED).read_text(encoding="utf-8"))
        require_files(folder, description["files"], f"this model ({EXPORTED}): export it again")
        names = json.loads((folder / LABELS).read_text(encoding="utf-8"))
        tasks, reads = tasks_saved(description), Reads(**description["reads"])
        with quiet():
            pieces = stored.tokenizer(folder)
        tokenizer = SubwordTokenizer(pieces, reads.max_length, causal=reads.causal)
        labels = {name: Labels(names[name]) for name in tasks}
        require_decoders(folder, tasks, labels, reads.hidden)
        model = ExportedModel(folder / GRAPH, reads, tokenizer, tasks, labels)
        model.load_state_dict(load_file(folder / DECODERS))
    return model.eval()


def opened(folder: Path, accelerator: Accelerator, precision: Precision) -> ExportedModel:
    """The exported model in a folder, for a command; raises `InputError` for settings that it lacks."""
    if accelerator == "gpu" or precision != "32-true":
        raise InputError(
            f"{folder} holds a model exported to ONNX, which computes on the CPU in its own precision: leave "
            "out --accelerator and --precision"
        )
    return load_exported(folder)
