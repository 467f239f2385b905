"""Patterns and outputs of heads against transformers' own, and sink share and entropy against loops."""

from __future__ import annotations

import base64
import json
import math
import shutil
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
import torch
import yaml
from tokenizers import processors
from torch import Tensor

from mtl.commands.main import main
from mtl.errors import InputError
from mtl.heads.gates import Mask
from mtl.heads.prune import prune_heads
from mtl.heads.tap import eager_attention, head_scale
from mtl.patterns.measure import pattern_rows
from mtl.patterns.observed import observe_heads, plot_patterns
from mtl.probes.curves import curve_table
from mtl.probes.tables import heads_table
from mtl.tasks.sentence import Sentence
from tests.kit.absent import needs
from tests.mtl import sensory, tiny
from tests.mtl.analysis import worth

FAMILIES = [*tiny.of_structure(tiny.NAMES), "t5", "bart", "clip", "beit", "whisper"]


def model_and_inputs(name: str) -> tuple[Any, dict[str, Tensor]]:
    if name in tiny.NAMES:
        ids, mask = tiny.batch()
        return tiny.model(name), {"input_ids": ids, "attention_mask": mask}
    if name in tiny.TRANSLATORS:
        return tiny.translator(name), tiny.parallel_batch()
    return sensory.model(name), sensory.batch(name)


def reported(output: Any, kind: str) -> tuple[Tensor, ...]:
    """The probabilities of a kind of attention, as a model of transformers reports them."""
    if kind in ("text", "vision"):
        return tuple(output[f"{kind}_model_output"].attentions)
    return tuple(output["attentions" if kind == "self" else f"{kind}_attentions"])


@pytest.mark.parametrize("name", FAMILIES)
def test_patterns_are_those_that_transformers_reports(name: str) -> None:
    model, given = model_and_inputs(name)
    seen = observe_heads(model, given)
    with torch.no_grad(), eager_attention(model):
        output = model(**given, output_attentions=True)
    for kind in dict.fromkeys(site.attention for site in seen.sites):
        ours = [part for site, part in zip(seen.sites, seen.patterns, strict=True) if site.attention == kind]
        for part, expected in zip(ours, reported(output, kind), strict=True):
            assert part is not None
            # ModernBERT's padding attends to nothing.
            torch.testing.assert_close(part, expected, rtol=0, atol=0, equal_nan=True)
    for pattern, outputs in zip(seen.patterns, seen.outputs, strict=True):
        assert pattern is not None
        assert outputs is not None
        assert outputs.shape[:3] == (pattern.shape[0], pattern.shape[2], pattern.shape[1])
        assert not pattern.requires_grad
        assert not outputs.requires_grad


def test_outputs_are_patterns_times_values_and_follow_scales_and_cuts() -> None:
    model, given = model_and_inputs("bert")
    plain = observe_heads(model, given)
    values = []
    hook = model.encoder.layer[0].attention.self.value.register_forward_hook(
        lambda module, inputs, output: values.append(output.unflatten(-1, (tiny.HEADS, -1)))
    )
    model(**given)
    hook.remove()
    expected = torch.einsum("rqk,rkd->rqd", plain.pattern("L0H3"), values[0][:, :, 3])
    torch.testing.assert_close(plain.head_output("L0H3"), expected, rtol=0, atol=1e-12)
    scale = torch.ones(tiny.LAYERS, tiny.HEADS)
    scale[0, [1, 3]] = 0
    scale[1] = 0
    with head_scale(model, scale):
        masked = observe_heads(model, given)
    assert not masked.head_output("0.1").any()
    prune_heads(model, {0: [1, 3], 1: [0, 1, 2, 3]})
    cut = observe_heads(model, given)
    real = given["attention_mask"].bool()
    for site, heads in enumerate(cut.remaining):
        gone = sorted({*range(tiny.HEADS)} - {*heads})
        after, before = cut.patterns[site], masked.patterns[site]
        assert after is not None
        assert before is not None
        assert not after[:, gone].any()
        torch.testing.assert_close(
            after[:, list(heads)].transpose(1, 2)[real], before[:, list(heads)].transpose(1, 2)[real]
        )
        torch.testing.assert_close(cut.outputs[site][real], masked.outputs[site][real])
    with pytest.raises(InputError, match="the heads of this layer are 0, 2"):
        cut.pattern("L0H1")
    with pytest.raises(InputError, match=r"name a head, such as L0H0"):
        cut.pattern("L0")


def test_texts_and_pictures_of_a_model_a_layer_and_a_head() -> None:
    model, tokenizer = tiny.model("bert"), tiny.tokenizer("bert")
    seen = observe_heads(model, ["the dog saw a cat", "the cat"], tokenizer)
    assert seen.tokens[1] == ["[CLS]", "the", "cat", "[SEP]", "[PAD]", "[PAD]", "[PAD]"]
    prune_heads(model, {1: [2]})
    cut = observe_heads(model, "the cat", tokenizer)
    short = [part[1:, :, :4, :4] for part in seen.patterns if part is not None]
    figure, axes = plot_patterns(seen, row=1)
    picture = axes.images[0].get_array()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["L0", "L1", "L2"]
    # A gap of one between patterns of four pieces each.
    np.testing.assert_allclose(picture[5:9, 10:14], short[1][0, 2], atol=1e-6)
    assert picture.count() == tiny.LAYERS * tiny.HEADS * 16
    figure, axes = plot_patterns(seen, "L2", row=1)
    assert [text.get_text() for text in axes.get_yticklabels()] == seen.tokens[1][:4]
    np.testing.assert_allclose(axes.images[0].get_array()[:, -4:], short[2][0, 3], atol=1e-6)
    figure, axes = plt.subplots()
    assert plot_patterns(seen, "L2H3", row=1, ax=axes) == (figure, axes)
    np.testing.assert_allclose(axes.images[0].get_array(), short[2][0, 3], atol=1e-6)
    plt.close(figure)
    assert plot_patterns(cut)[1].images[0].get_array().count() == (tiny.LAYERS * tiny.HEADS - 1) * 16


def test_what_was_observed_is_shown_by_its_shapes() -> None:
    model, given = model_and_inputs("bart")
    shown = repr(observe_heads(model, given)).splitlines()
    assert shown[0] == "ObservedHeads"
    assert shown[5] == "cross L0: pattern (4, 4, 7, 9), output (4, 7, 4, 8)"
    assert len(shown) == 1 + 3 * 2


def test_pieces_of_bytes_are_named_by_their_text() -> None:
    seen = observe_heads(tiny.model("gpt2"), "the dog caf\u00e9\n", tiny.tokenizer("gpt2"))
    assert seen.tokens[0] == ["[CLS]", "the", "▁dog", "▁", "c", "a", "f", "Ã", "©", "\\n", "[SEP]"]


def test_a_layer_on_a_long_text_fits_a_page() -> None:
    model, tokenizer = tiny.model("bert"), tiny.tokenizer("bert")
    for words in (3, 36, 60):
        seen = observe_heads(model, " ".join(["dog"] * words), tokenizer)
        for of in ("L1", "L1H2"):
            figure, _ = plot_patterns(seen, of)
            assert max(figure.get_size_inches()) < 25
            plt.close(figure)
    with pytest.raises(InputError, match="the model does not take them"):  # more than it has positions
        observe_heads(model, " ".join(["dog"] * 100), tokenizer)


def test_a_page_has_the_patterns_and_says_what_is_pointed_at(tmp_path: Path) -> None:
    model, tokenizer = tiny.model("bert"), tiny.tokenizer("bert")
    prune_heads(model, {1: [2]})
    seen = observe_heads(model, ["the </script>", "the dog saw a cat"], tokenizer)
    page = seen.view(row=1)
    data = json.loads(page.html.partition("const data = ")[2].partition(";\n")[0])
    assert [line["name"] for line in data["lines"]] == ["L0", "L1", "L2"]
    for line, pattern in zip(data["lines"], seen.patterns, strict=True):
        pieces = [piece for piece in seen.tokens[1] if piece != "[PAD]"]
        assert line["queries"] == line["keys"] == pieces
        for head, weights in zip(line["heads"], pattern[1, :, : len(pieces), : len(pieces)], strict=True):
            levels = np.frombuffer(base64.b64decode(head["weights"]), np.uint8).reshape(head["shape"])
            np.testing.assert_allclose(levels / 255, weights, atol=0.002)
            assert head["cut"] == (head["name"] == "L1H2")
    [only] = json.loads(seen.view("L1H0").html.partition("const data = ")[2].partition(";\n")[0])["lines"]
    assert [head["name"] for head in only["heads"]] == ["L1H0"]
    assert "http" not in page.html
    assert page._repr_html_().startswith("<iframe")
    with pytest.raises(InputError, match="row=2: the pass had 2 rows"):
        seen.view(row=2)
    page.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_text() == page.html


@pytest.mark.slow
def test_pointing_at_a_head_and_at_a_cell_in_a_browser(tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    seen = observe_heads(tiny.model("bert"), "the dog saw a cat", tiny.tokenizer("bert"))
    # In a frame, as a notebook shows it.
    (tmp_path / "cell.html").write_text(seen.view()._repr_html_())
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((tmp_path / "cell.html").as_uri())
        inside = page.frame_locator("iframe")
        heads = inside.locator("td canvas")
        assert heads.count() == tiny.LAYERS * tiny.HEADS
        heads.nth(tiny.HEADS + 1).hover()
        assert inside.locator("#head").inner_text() == "L1H1"
        heads.nth(2).click()
        heads.nth(3).hover()
        assert inside.locator("#head").inner_text() == "L0H2"  # is held
        large = inside.locator("#large")
        box = large.bounding_box()
        large.hover(position={"x": box["width"] * 2.5 / 7, "y": box["height"] * 3.5 / 7})
        share = 100 * float(seen.pattern("L0H2")[0, 3, 2])
        words, _, number = inside.locator("#said").inner_text().rpartition(": ")
        assert words == "saw (3) \u2192 dog (2)"
        assert float(number.removesuffix(" %")) == pytest.approx(share, abs=0.3)
        browser.close()
    assert said == []


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip"])
def test_attention_to_patches_lies_over_the_image(name: str) -> None:
    given = sensory.batch(name)
    seen = observe_heads(sensory.model(name), given)
    head = "vision L1H2" if name == "clip" else "L1H2"
    figure, axes = plot_patterns(seen, head, row=1, patches_of=0)
    image, patches = axes.images
    pixels = given["pixel_values"][1].mean(0)
    np.testing.assert_allclose(image.get_array(), pixels, atol=1e-6)
    weights = seen.pattern(head)[1, 0]
    rows, columns = patches.get_array().shape
    assert rows * columns == len(weights) - 1  # all but the class token
    np.testing.assert_allclose(patches.get_array().ravel(), weights[1:], atol=1e-6)
    assert patches.get_extent() == image.get_extent()
    assert len(plot_patterns(seen, head[:-2], patches_of=1)[1].images) == 2 * 4
    with pytest.raises(InputError, match="also name a layer or a head, such as of='L2H0'"):
        plot_patterns(seen, patches_of=0)
    plt.close(figure)


def test_inputs_without_tensors_say_how_to_get_them() -> None:
    model, tokenizer = tiny.model("bert"), tiny.tokenizer("bert")
    with pytest.raises(InputError, match="call the tokenizer or processor with return_tensors='pt'"):
        observe_heads(model, tokenizer("the dog"))
    observe_heads(model, tokenizer("the dog", return_tensors="pt"))


def test_patches_are_those_of_an_image() -> None:
    seen = observe_heads(tiny.model("bert"), "the dog saw a cat", tiny.tokenizer("bert"))
    with pytest.raises(InputError, match="no patches of one image: leave it out"):
        plot_patterns(seen, "L1H2", patches_of=0)


def test_padding_and_sides_of_a_translation() -> None:
    model, given = model_and_inputs("bart")
    seen = observe_heads(model, given)
    assert plot_patterns(seen, "cross L0H1", row=1)[1].images[0].get_array().shape == (5, 7)


def test_masks_of_a_joint_model_are_not_left_out_silently(few: Path) -> None:
    model = worth.joint_model(few, ("pos",), masks=("pos",))
    given = {"input_ids": tiny.batch()[0]}
    with pytest.raises(InputError, match="give the transformer of its encoder, inside head_scale"):
        observe_heads(model, given)
    seen = observe_heads(model.encoder.transformer, given)
    assert seen.pattern("L0H0").shape == (4, 9, 9)


SENTENCES = [Sentence(tuple(text.split())) for text in ("the dog saw a cat", "doghouses catch", "a")]


def by_loops(encoder: Any) -> dict[tuple[str, int, int], float]:
    """The measures of each head, word by word, from a pass for each sentence."""
    found: dict[tuple[str, int, int], list[float]] = {}
    before, after = len(encoder.tokenizer.prefix), len(encoder.tokenizer.suffix)
    for tokens in encoder.tokenizer.encode_sentences(SENTENCES):
        pieces = [*encoder.tokenizer.prefix, *tokens.ids.tolist(), *encoder.tokenizer.suffix]
        with torch.no_grad(), eager_attention(encoder.transformer):
            output = encoder.transformer(input_ids=torch.tensor([pieces]), output_attentions=True)
        ends = [before + int(end) for end in np.cumsum(tokens.counts)]
        words = [[*range(end - int(size), end)] for end, size in zip(ends, tokens.counts, strict=True)]
        sinks = [*range(before), *range(len(pieces) - after, len(pieces))]
        columns = [*words, *([place] for place in sinks)]
        for layer, attention in enumerate(output.attentions):
            for head, weights in enumerate(attention[0]):
                for word in words if sinks else words[1:]:
                    row = weights[word[-1:] if encoder.causal else word].mean(0)
                    learned = 1 - float(row.sum())  # what goes to GPT-OSS's sinks
                    share = learned + sum(float(row[place]) for place in sinks or words[0])
                    values = [
                        sum(float(row[place]) for place in column) / (1 - learned) for column in columns
                    ]
                    spread = -sum(value * math.log(value) for value in values if value)
                    found.setdefault(("sink", layer, head), []).append(share)
                    found.setdefault(("entropy", layer, head), []).append(spread)
    return {key: sum(values) / len(values) for key, values in found.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_oss"])
def test_sink_share_and_entropy_are_those_of_loops_over_words(name: str) -> None:
    tokenizer = tiny.tokenizer(name)
    if name != "bert":
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    torch.manual_seed(0)
    encoder = tiny.encoder_of(tiny.config(name), tokenizer).double().eval()
    tiny.shake(encoder.transformer)
    rows = pattern_rows(encoder, SENTENCES, Mask("", ("pos",), None), lambda done: None)
    ours = {(row["measure"], row["layer"], row["head"]): row["value"] for row in rows.iter_rows(named=True)}
    expected = by_loops(encoder)
    assert set(rows["choice"]) == {"" if name == "bert" else "first word"}
    assert ours.keys() == expected.keys()
    for key, value in ours.items():
        assert value == pytest.approx(expected[key], abs=1e-6), key


@needs("curves")
def test_the_command_measures_heads_that_are_there_and_curves_go_by_them(few: Path, tmp_path: Path) -> None:
    model = worth.joint_model(few, ("pos",), dtype=torch.float32)
    prune_heads(model.encoder.transformer, {1: [2]})
    model.save(tmp_path / "model")
    config = {"tasks": ["pos"], "seed": 1, "corpus": {"path": str(few)}, "encoder": {"name": "minilm"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["patterns", str(tmp_path), "--sentences=4"]) == 0
    table, _ = heads_table.read_heads_table(tmp_path / "heads.parquet")
    sinks = table.filter(measure="sink").select("layer", "head", "value").rows()
    assert len(sinks) == tiny.LAYERS * tiny.HEADS - 1
    assert main(["curve", str(tmp_path), "--by=[-sink,entropy]", "--steps=1", "--sentences=2"]) == 0
    orders, _ = curve_table.read_curve_table(tmp_path / "curve_heads.parquet")
    gone = orders.filter(by="-sink").sort("rank", descending=True).select("layer", "head").rows()
    assert gone == [row[:2] for row in sorted(sinks, key=lambda row: -row[2])]
    assert set(orders["by"].unique()) == {"-sink", "entropy"}
    assert table.filter(pl.col("measure") == "entropy")["value"].min() > 0
