"""A joint model as ONNX: written as a graph, for onnxruntime and programs without torch, and opened again.

In a model that is opened, onnxruntime computes the scores, and the decoders annotate with them.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from mtl.config.instances import tasks_saved
from mtl.errors import InputError
from mtl.files import checksum, new_folder, share_as, write_json
from mtl.heads import load
from mtl.heads.arguments import one_of, path_or_hub_name, short_text
from mtl.heads.family_table import no_cut_because
from mtl.heads.gates import TaskScale
from mtl.heads.given_models import require_weights
from mtl.models.annotator import Annotator, TaskScores, damaged
from mtl.models.batches import Batch, examples, unlabelled
from mtl.models.derived import apply_masks
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.models.model_files import DECODERS, LABELS, require_decoders, require_files, tasks_as_json
from mtl.models.opened import Accelerator, Precision
from mtl.models.passes import not_finite
from mtl.models.pretrained import quiet
from mtl.models.subwords import Subwords, SubwordTokenizer
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.in_words import first_line
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels, Task

EXPORTED = "exported.json"
"""The file that the folder is known by."""
GRAPH = "model.onnx"
TO_EXPORT = ("onnx", "onnxruntime", "onnxscript")
"""The packages that writing a graph needs; computing one needs only onnxruntime."""
Weights = Literal["float32", "int8"]
_WORDS = "words"
"""The output with the vectors of words."""
_APART = 1e-3
"""How far the graph's scores may be from the model's, absolute and relative, in float32."""
_LENGTHS = ((1,), (3, 1), (40, 7, 2))
"""Numbers of words of the sentences in each batch that a graph is checked on."""
_TEXT = ("The", "dog", "saw", "a", "cat", "in", "Paris", ",", "and", "she", "was", "unbelievable", ".") * 4
_WINDOW = 32
"""Positions of a window in the check, so that a long sentence has several windows."""


@torch.random.fork_rng([])  # the exporter draws numbers
def export_onnx(model: JointModel, out: str | Path, *, weights: Weights = "float32") -> None:
    """Write a model's encoder and scores as an ONNX graph, with everything that annotating needs.

    Masks are applied. The heads that one mask for all tasks closes are cut out of the weights, as `mtl prune`
    does, if the family allows it. With a mask per task, each sentence is a row of the graph for every task.
    The model stays as it is. The graph's scores on a few sentences are compared with the model's.
    `load_exported` and `mtl predict` load the folder.

    Args:
        model: the model; its weights are written in float32.
        out: a folder that does not exist or is empty.
        weights: `int8` rounds the matrices of linear layers and embeddings to 8 bits; inputs of linear layers
            are rounded at run time. Scores then differ.

    Raises:
        InputError: the model does not label words, its family or a decoder cannot be exported, the graph
            gives other scores, the folder is not empty, or the packages of the extra `onnx` are missing.
    """
    if not isinstance(model, JointModel):
        raise InputError(
            f"model={short_text(model)}: use a JointModel, as JointModel.from_pretrained loads it"
        )
    one_of(weights, "weights", get_args(Weights))
    out = path_or_hub_name(out, "out")
    if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
        raise InputError(f"{out} exists, and is no empty folder: use another one")
    if model.does:
        raise InputError(f"a model that {model.does} is not exported: its search needs a pass per piece")
    assert isinstance(model.encoder, Encoder)
    if model.encoder.reading_layers == "mix_per_task":
        raise InputError(
            "encoder.layers=mix_per_task gives each task other vectors, and a graph has one vector per word: "
            "export a model with encoder.layers=mix or last"
        )
    require_weights(model, "export_onnx")
    require_onnx("the export", TO_EXPORT)
    if broken := not_finite(model.named_parameters()):
        raise InputError(f"{broken[0]} has values that are not finite: the model cannot be exported")
    scores = _to_export(model)
    with new_folder(out) as folder:
        _write_graph(scores, folder / GRAPH)
        _write_rest(scores, folder)
        _require_equal(scores, load_exported(folder))
        if weights == "int8":
            _round(folder / GRAPH)
            _describe(scores, folder)


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
            pieces = load.tokenizer(folder)
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


class _Scores(nn.Module):
    """From the tensors of a batch to the vectors of its words and the scores of all tasks, in one tuple."""

    def __init__(self, model: JointModel, reads: Reads, scale: TaskScale | None) -> None:
        super().__init__()
        self.model, self.reads, self.scale = model, reads, scale

    def forward(
        self,
        input_ids: Int[Tensor, "row subword"],
        attention_mask: Int[Tensor, "row subword"],
        slot: Int[Tensor, "row subword"],
        sentence: Int[Tensor, " row"],
        mask: Bool[Tensor, "batch word"],
        token_types: Int[Tensor, "row subword"] | None = None,
    ) -> tuple[Tensor, ...]:
        model, copies = self.model, self.reads.masks
        batch, width = mask.shape
        subwords = Subwords(input_ids, attention_mask, slot, sentence, batch * copies, width, token_types)
        scale = self.scale
        if scale is not None and scale.dim() == 3:
            scale = scale[:, None].expand(-1, batch, -1, -1).flatten(0, 1)
        words = model.encoder(subwords, scale, self.reads.first)
        outputs = [words[:, 1:] if self.reads.first else words]
        for number, name in enumerate(model.tasks):
            decoder, vectors, there = model.decoder(name), words, mask
            if copies > 1:
                vectors = words.unflatten(0, (copies, batch))[number]
            if self.reads.first:
                vectors, there = decoder.as_read(vectors, mask)
            outputs += pytree.tree_leaves(decoder(vectors, there))
        return tuple(outputs)


def _to_export(model: JointModel) -> _Scores:
    """A copy of the model in float32 on the CPU, with a mask for all tasks in its weights."""
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    scale = model.scales.in_pass()
    scale = None if scale is None else scale.detach()
    if scale is not None and scale.dim() == 3 and len(scale) == 1:
        scale = scale[0]
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    cuttable = not no_cut_because(encoder.family, encoder.transformer.config.to_dict())
    if scale is not None and scale.dim() == 2 and cuttable:
        model, scale = apply_masks(model, scale, tuple(model.tasks)), None
    pairs = any(task.fits(Sentence(("a", "b"), second=1)) for task in model.tasks.values())
    reads = Reads(
        max_length=encoder.tokenizer.max_length,
        causal=encoder.causal,
        hidden=encoder.hidden,
        first=model.reads_first(model.tasks),
        token_types=pairs and encoder.reads_token_types,
        masks=1 if scale is None or scale.dim() == 2 else len(scale),
    )
    return _Scores(model, reads, scale).eval()


def _write_graph(scores: _Scores, path: Path) -> None:
    inputs, sizes = _example(scores.reads)
    names = [_WORDS]
    for name in scores.model.tasks:
        names += output_names(name, spec_of(scores.model.decoder(name), scores.reads.hidden))
    with _silent(), torch.no_grad():
        try:
            program = torch.onnx.export(
                scores, kwargs=inputs, dynamic_shapes=sizes, output_names=names, dynamo=True, verbose=False
            )
        except Exception as error:
            reason = first_line(error.__cause__ or error)
            raise InputError(f"torch's exporter cannot write {_named(scores.model)}: {reason}") from error
        assert program is not None
        program.save(path)


def _example(reads: Reads) -> tuple[dict[str, Tensor], dict[str, dict[int, str]]]:
    """A batch of three sentences in five rows for the exporter, and names of its axes of variable size."""
    rows, length, batch, words = 5, min(7, reads.max_length), 3, 4
    row = torch.arange(rows * reads.masks)
    ids = torch.ones(len(row), length, dtype=torch.long)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "slot": torch.arange(ids.numel()).view_as(ids) % (batch * reads.masks * words),
        "sentence": (row * batch * reads.masks) // len(row),
        "mask": torch.ones(batch, words, dtype=torch.bool),
    }
    if reads.token_types:
        inputs["token_types"] = torch.zeros_like(ids)
    sizes = {name: {0: "row", 1: "subword"} for name in inputs}
    return inputs, {**sizes, "sentence": {0: "row"}, "mask": {0: "batch", 1: "word"}}


def _write_rest(scores: _Scores, folder: Path) -> None:
    model = scores.model
    encoder = model.encoder
    with quiet():
        encoder.tokenizer.tokenizer.save_pretrained(folder)
        encoder.transformer.config.save_pretrained(folder)
    write_json(folder / LABELS, {name: labels.names for name, labels in model.labels.items()})
    state = {f"decoders.{key}": value.contiguous() for key, value in model.decoders.state_dict().items()}
    save_file(state, folder / DECODERS)
    share_as(folder / LABELS, [folder / DECODERS])
    _describe(scores, folder)


def _describe(scores: _Scores, folder: Path) -> None:
    files = {path.name: checksum(path) for path in sorted(folder.iterdir()) if path.name != EXPORTED}
    write_json(
        folder / EXPORTED,
        {**tasks_as_json(scores.model.tasks), "reads": asdict(scores.reads), "files": files},
    )


def _require_equal(graph: _Scores, exported: ExportedModel) -> None:
    """Raise `InputError` if the graph's scores are not the model's, for sentences in several windows, too."""
    reads, model = graph.reads, graph.model
    tokenizer = SubwordTokenizer(
        model.tokenizer.tokenizer, min(_WINDOW, reads.max_length), causal=reads.causal
    )
    for lengths in _LENGTHS:
        sentences = [Sentence(_TEXT[:length]) for length in lengths]
        pairs = [Sentence(_TEXT[: min(length, 8) + 1], second=1) for length in lengths]
        for these in (sentences, pairs):
            if not any(task.fits(these[0]) for task in model.tasks.values()):
                continue
            batch = unlabelled(examples(these, tokenizer, {}, {}), tokenizer, model.tasks)
            with torch.inference_mode():
                expected = model(batch)
            try:
                found = exported(batch)
            except Exception as error:
                raise InputError(
                    f"onnxruntime cannot compute {_named(model)}: {first_line(error)}"
                ) from error
            for name, of_task in expected.items():
                parts = (pytree.tree_leaves(scores) for scores in (of_task.scores, found[name].scores))
                if not all(
                    torch.allclose(one, other, rtol=_APART, atol=_APART)
                    for one, other in zip(*parts, strict=True)
                ):
                    raise InputError(f"the graph of {_named(model)} gives other scores for {name}")


def _round(path: Path) -> None:
    """Round the matrices that inputs are multiplied with, and embeddings, to 8 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    large = path.with_name(f"{path.name}.data").exists()
    with TemporaryDirectory(dir=path.parent) as folder:
        prepared = Path(folder) / path.name
        quant_pre_process(
            path, prepared, skip_optimization=True, skip_symbolic_shape=True, save_as_external_data=large
        )
        quantize_dynamic(
            prepared,
            path,
            op_types_to_quantize=["Gather", "Gemm", "MatMul"],
            weight_type=QuantType.QInt8,
            per_channel=True,
            use_external_data_format=large,
        )


def _named(model: JointModel) -> str:
    return f"this model ({type(model.encoder.transformer).__name__}, {', '.join(model.tasks)})"


@contextmanager
def _silent() -> Iterator[None]:
    """Silence the exporter's notes on what it does, and on what other models would need."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):  # failed traces are printed there
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
