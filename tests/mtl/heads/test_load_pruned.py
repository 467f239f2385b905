"""What was cut, copied or shared is loaded again, for every family and every class of transformers."""

from __future__ import annotations

import copy
import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import mtl
from mtl import head_scale, load_pruned, prune_heads
from mtl.errors import InputError
from mtl.heads.attentions import attentions, needs_rebuild, recorded_cuts
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.load import load_model
from mtl.models.encoder import Encoder
from tests.kit.absent import may_be_absent
from tests.mtl import tiny

HEADS = {0: [1, 2], 1: [0, 1, 2, 3], 2: [3]}
FAST = (
    ("bert", "BertForSequenceClassification"), ("bert", "BertForPreTraining"), ("deberta", "DebertaModel"),
    ("gpt2", "GPT2LMHeadModel"), ("gpt_neox", "GPTNeoXForCausalLM"), ("llama", "LlamaForCausalLM"),
    ("marian", "MarianMTModel"), ("mpnet", "MPNetForMaskedLM"), ("nomic_bert", "NomicBertModel"),
    ("olmo2", "Olmo2ForCausalLM"), ("phi3", "Phi3ForCausalLM"), ("t5", "T5ForConditionalGeneration"),
    ("bart", "BartForSequenceClassification"),
)  # fmt: skip
"""One for each way in which models are laid out, named or tied."""


def classes(name: str) -> list[str]:
    """The classes of a family that some auto class of transformers returns."""
    of_models = re.compile(r"MODEL.*_MAPPING_NAMES")
    tables = [value for key, value in vars(modeling_auto).items() if of_models.fullmatch(key)]
    found = {table[name] for table in tables if name in table}
    kinds = {kind for entry in found for kind in ([entry] if isinstance(entry, str) else entry)}
    return sorted(kind for kind in kinds if getattr(transformers, kind).config_class is CONFIG_MAPPING[name])


def is_odd(name: str, kind: str) -> bool:
    """Whether a class calls the model inside by another name than the family's other classes do."""
    base = getattr(transformers, modeling_auto.MODEL_MAPPING_NAMES[name])
    return getattr(transformers, kind).base_model_prefix != base.base_model_prefix


BASES = [(name, modeling_auto.MODEL_MAPPING_NAMES[name]) for name in tiny.OF_WORDS]
MATRIX = [
    (name, kind)
    for name in tiny.OF_WORDS
    for kind in classes(name)
    if name in tiny.STRUCTURES or (name, kind) in (*BASES, *FAST) or is_odd(name, kind)
]
"""The class without a head on top of every family, and every class of some."""
HALVES = ("ForCausalLM", "EncoderModel", "T5ForTokenClassification")
"""Ends of the names of classes that have only the encoder or the decoder of a translator."""


def cases(chosen: list[tuple[str, str]]) -> pytest.MarkDecorator:
    marked = [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in chosen]
    return pytest.mark.parametrize(("name", "kind"), marked)


def build(name: str, kind: str, **changes: Any) -> PreTrainedModel:
    """A random model of a family as one of its classes, in float32."""
    of = tiny.translator_config if name in tiny.TRANSLATORS else tiny.config
    torch.manual_seed(0)
    model = getattr(transformers, kind)._from_config(of(name, **changes)).eval()
    tiny.shake(model)
    return model


def outputs(model: PreTrainedModel) -> list[Tensor]:
    """All tensors that the model gives for a batch."""
    ids, mask = tiny.batch(7, 3)
    ids[:, 1] = 5  # a question's token in Splinter
    batch: dict[str, Tensor] = {"input_ids": ids, "attention_mask": mask}
    if type(model).__name__.endswith("MultipleChoice"):
        batch = {key: value[:, None].expand(-1, 2, -1).contiguous() for key, value in batch.items()}
    if model.config.is_encoder_decoder:
        # Classifiers of pairs read where the sentence ends.
        batch["input_ids"] = torch.cat([ids[:, :-1].clamp(min=5), torch.full((3, 1), 3)], 1)
        if not type(model).__name__.endswith(("Classification", "Answering")):
            batch["decoder_input_ids"] = ids.clamp(min=5)
    with torch.no_grad():
        return list(tensors(model(**batch, use_cache=False) if takes_cache(model) else model(**batch)))


def takes_cache(model: PreTrainedModel) -> bool:
    return "use_cache" in inspect.signature(model.forward).parameters


def tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, dict):
        for value in given.values():
            yield from tensors(value)
    elif isinstance(given, (tuple, list)):
        for value in given:
            yield from tensors(value)


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether outputs are equal up to the order of sums, which depends on where weights lie in memory."""
    return len(first) == len(second) and all(
        torch.allclose(one, other, rtol=0, atol=1e-5) for one, other in zip(first, second, strict=True)
    )


def same_weights(first: PreTrainedModel, second: PreTrainedModel) -> bool:
    weights = second.state_dict()
    return first.state_dict().keys() == weights.keys() and all(
        torch.equal(weight, weights[name]) for name, weight in first.state_dict().items()
    )


def change(model: PreTrainedModel) -> str:
    """Cut and share what the family allows; returns what was done."""
    family, done = family_of(model), ""
    if not family.not_prunable_because:
        prune_heads(model, HEADS, torch.linspace(0.5, 1.5, 4).expand(len(attentions(model, family)), 4))
        done += "cut "
    if not family.not_shareable_because and not may_be_absent(["collaborate"]):
        mtl.collaborate(model, 12, starts=1, steps=1)
        done += "shared"
    return done


@cases(MATRIX)
def test_every_family_is_read_again_and_every_class_of_some(name: str, kind: str, tmp_path: Path) -> None:
    model = build(name, kind)
    stacks = FAMILIES[name].stacks
    if len(stacks) > 1 and kind.endswith(HALVES):
        with pytest.raises(InputError):  # half of a translator
            prune_heads(model, HEADS)
        return
    assert change(model)
    expected, base = outputs(model), outputs(model.base_model)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is getattr(transformers, kind)
    assert not loaded.training
    assert same(outputs(loaded), expected)
    assert same_weights(loaded, model)
    if len(stacks) > 1:
        config = AutoConfig.from_pretrained(tmp_path)
        half = load_model(tmp_path, type(AutoModel.from_config(config)), config)
        assert same(outputs(half.model)[-1:], expected[-1:])  # what the encoder gives
        return
    tiny.tokenizer(name).save_pretrained(tmp_path)
    encoder = Encoder.from_pretrained(str(tmp_path)).eval()
    pooler = getattr(encoder.transformer, "pooler", None)
    assert pooler is None or not any(parameter.requires_grad for parameter in pooler.parameters())
    assert same(outputs(encoder.transformer)[:1], base[:1])
    encoder.save(tmp_path / "encoder")
    again = Encoder.load(tmp_path / "encoder").eval()
    assert same_weights(again.transformer, encoder.transformer)
    assert same(outputs(again.transformer)[:1], base[:1])


@cases(BASES + [case for case in FAST if case not in BASES])
def test_every_class_loads_in_plain_transformers_with_its_heads_closed(
    name: str, kind: str, tmp_path: Path
) -> None:
    model = build(name, kind)
    sites = attentions(model, family_of(model))
    shared = len({attention.module for attention in sites}) < len(sites)
    heads = {site: [1, 2] for site in range(len(sites))} if shared else HEADS
    closed = torch.ones(len(sites), 4)
    for site, numbers in heads.items():
        closed[site, numbers] = 0
    plain = outputs(model)
    with head_scale(model, closed):
        expected = outputs(model)
    assert not same(plain, expected)
    prune_heads(model, heads, keep_shape=True)
    assert recorded_cuts(model.config) == {}
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, kind).from_pretrained(tmp_path).eval()
    assert same(outputs(loaded), expected)
    assert not needs_rebuild(loaded.config)


OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def old_names(folder: Path) -> None:
    """Give the norms in a folder's weights the names that they have in bert-base-uncased."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for new, old in OLD.items():
        weights = {name.replace(new, old): tensor.contiguous() for name, tensor in weights.items()}
    assert any("LayerNorm.gamma" in name for name in weights)
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_norms_with_old_names_are_read_before_and_after_a_cut(kind: str, tmp_path: Path) -> None:
    build("bert", "BertForPreTraining").save_pretrained(tmp_path / "old")
    old_names(tmp_path / "old")
    model = getattr(transformers, kind).from_pretrained(tmp_path / "old").eval()
    change(model)
    expected = outputs(model)
    for original in (True, False):
        model.save_pretrained(tmp_path / "new", save_original_format=original)
        assert same(outputs(load_pruned(tmp_path / "new")), expected)
    old_names(tmp_path / "new")
    assert same(outputs(load_pruned(tmp_path / "new")), expected)


@pytest.mark.parametrize("options", [{"max_shard_size": "20KB"}, {"variant": "fp16"}])
@pytest.mark.parametrize("both", [False, True])
def test_shards_and_variants(options: dict[str, Any], both: bool, tmp_path: Path) -> None:
    model = build("llama", "LlamaForCausalLM")
    prune_heads(model, HEADS)
    model.save_pretrained(tmp_path, **options)
    if both:
        model.save_pretrained(tmp_path, **{"max_shard_size": "20KB", "variant": "fp16"} | options)
    assert same(outputs(load_pruned(tmp_path)), outputs(model))
    if "variant" in options:
        other = copy.deepcopy(model)
        tiny.shake(other)
        other.save_pretrained(tmp_path)
        assert same(outputs(load_pruned(tmp_path)), outputs(other))
        assert same(outputs(load_pruned(tmp_path, variant="fp16")), outputs(model))


def test_another_type_rounds_weights_and_not_frequencies(tmp_path: Path) -> None:
    model = build("llama", "LlamaForCausalLM")
    prune_heads(model, HEADS)
    model.save_pretrained(tmp_path / "full")
    half = load_pruned(tmp_path / "full", torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(half.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    half.save_pretrained(tmp_path / "half")
    assert load_pruned(tmp_path / "half").dtype == torch.bfloat16
    assert same(outputs(load_pruned(tmp_path / "half")), outputs(half))


def test_a_cut_model_is_read_by_its_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the cache after a download."""
    model = build("bert", "BertForSequenceClassification")
    prune_heads(model, HEADS)
    stored = tmp_path / "models--someone--cut"
    model.save_pretrained(stored / "snapshots" / ("0" * 40), max_shard_size="20KB")
    tiny.tokenizer("bert").save_pretrained(stored / "snapshots" / ("0" * 40))
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(outputs(load_pruned("someone/cut")), outputs(model))
    encoder = Encoder.from_pretrained("someone/cut").eval()
    assert same(outputs(encoder.transformer)[:1], outputs(model.base_model)[:1])
    with pytest.raises(InputError, match=r"cannot load someone/other \("):
        load_pruned("someone/other")


def test_no_second_model_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("bert", "BertForMaskedLM")
    prune_heads(model, HEADS)
    model.save_pretrained(tmp_path)
    made: list[str] = []
    begin = torch.nn.Linear.__init__

    def watched(self: torch.nn.Linear, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        made.append(self.weight.device.type)

    monkeypatch.setattr(torch.nn.Linear, "__init__", watched)
    load_pruned(tmp_path)
    assert set(made) == {"meta"}


@pytest.mark.parametrize("damage", ["other heads", "no weights", "no class", "no folder", "torn"])
def test_what_cannot_be_read_is_one_line(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    model = build("bert", "BertForMaskedLM")
    prune_heads(model, HEADS)
    if damage == "other heads":
        model.config.pruned_heads = {0: [1]}
    model.save_pretrained(folder)
    config = (folder / "config.json").read_text()
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "no class":
        (folder / "config.json").write_text(config.replace("BertForMaskedLM", "MyBert"))
    elif damage == "no folder":
        shutil.rmtree(folder)
    elif damage == "torn":
        (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError) as raised:
        load_pruned(folder)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


CHANGED: dict[str, tuple[Any, ...]] = {
    "pruned_heads": (
        [1],
        [[1]],
        "hello",
        {"a": [0]},
        {"0": "x"},
        {"0": 1},
        {"0": None},
        {"7": [0]},
        {"-1": [0]},
        {"0": [9]},
        {"0": [-1]},
        {"0": [1.5]},
    ),
    "keys_of_heads": ([1], {"0": "x"}, {"0": [0, "x"]}, {"0": [-1]}, {"x": [0]}),
    **(
        {}
        if may_be_absent(["collaborate"])
        else {"collaborative_components": ([8], {"0": "x"}, {"0": 9999}, {"0": -1}, {"9": 8})}
    ),
    "num_attention_heads": (0, -4, 5, "four", None),
    "architectures": (None, [], ["BertConfig"], ["AutoConfig"], ["GPT2Model"], ["pipeline"], "Bert", [3]),
    "model_type": ("gpt2", "nothing", None),
}
"""Values that somebody may have put into config.json, by key."""
RECORDS = tuple(key for key in CHANGED if "heads" in key or "components" in key)[:-1]
"""The keys that say what was done to heads."""


@pytest.mark.parametrize("key", CHANGED)
def test_a_config_that_was_changed_is_one_line(key: str, tmp_path: Path) -> None:
    model = tiny.model("bert", dtype=torch.float32)
    prune_heads(model, HEADS)
    model.save_pretrained(tmp_path)
    tiny.tokenizer("bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for value in CHANGED[key]:
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        readers = [load_pruned]
        if key != "architectures":  # which encoders are loaded without
            readers.append(lambda folder: Encoder.from_pretrained(str(folder)))
        for read in readers:
            with pytest.raises(InputError) as raised:
                read(tmp_path)
            assert str(tmp_path) in str(raised.value), value
            assert "\n" not in str(raised.value)
            if key in RECORDS:
                assert key in str(raised.value), value
                assert not re.search("object|invalid literal", str(raised.value))


def test_the_old_name_of_dtype_is_not_ignored(tmp_path: Path) -> None:
    tiny.model("bert", dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="calls torch_dtype dtype"):
        load_pruned(tmp_path, torch_dtype=torch.float16)
    assert load_pruned(tmp_path, dtype=torch.float16).dtype == torch.float16
