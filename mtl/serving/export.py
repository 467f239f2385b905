"""Write joint models as ONNX, for onnxruntime and programs without torch."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mtl.errors import InputError
from mtl.files import checksum, new_folder, share_as, write_json
from mtl.heads.arguments import one_of, path_or_hub_name, short_text
from mtl.heads.family_table import no_cut_because
from mtl.heads.given_models import require_weights
from mtl.models.batches import examples, unlabelled
from mtl.models.derived import apply_masks
from mtl.models.encoder import Encoder
from mtl.models.head_scales import TaskScale
from mtl.models.joint import JointModel
from mtl.models.model_files import DECODERS, LABELS, tasks_as_json
from mtl.models.passes import not_finite
from mtl.models.pretrained import quiet
from mtl.models.subwords import Subwords, SubwordTokenizer
from mtl.serving.exported import (
    EXPORTED,
    GRAPH,
    TO_EXPORT,
    ExportedModel,
    Reads,
    load_exported,
    output_names,
    require_onnx,
    spec_of,
)  # fmt: skip
from mtl.tasks.in_words import first_line
from mtl.tasks.sentence import Sentence

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
