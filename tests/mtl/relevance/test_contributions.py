"""What source and translation contribute to each piece: against lookups, blind decoders, numbers by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from polars.testing import assert_frame_equal
from torch import Tensor

from mtl.commands.main import main
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.gates import Mask
from mtl.heads.tap import eager_attention
from mtl.models.batches import collate, examples
from mtl.models.joint import JointModel
from mtl.models.passes import frozen
from mtl.probes.tables.table_files import read_metadata, write_parquet
from mtl.relevance.contributions import (
    CONTRIBUTIONS,
    contribution_lines,
    contribution_table,
    in_words,
    means_by_position,
    read_contributions,
    token_shares,
)
from mtl.relevance.propagation import Contributions, Explainer
from mtl.relevance.rules import RelevanceRules, Rules, relevance_by_rule, single_activations
from tests.mtl.relevance.test_relevance_of_translations import EVERY, ITEM, PAIRS, SENTENCES, model
from tests.probes.test_figures_fit import faults


def explained(explainer: Explainer) -> list[Contributions]:
    found = [each for batch in range(len(explainer.batches)) for each in explainer.contributions(batch)]
    return sorted(found, key=lambda each: each.sentence)


@pytest.mark.parametrize(("architecture", "rules"), [("marian", "attnlrp"), ("t5", "paper")])
def test_they_are_the_relevance_of_what_was_looked_up(architecture: str, rules: Rules) -> None:
    """Of one sentence by itself: of its pieces and, in Marian, of their positions, which are added constants.

    There is no norm between these and the first layer. T5 has no further constants.
    """
    built = model(architecture)
    transformer = built.encoder.transformer
    sentences = SENTENCES[1:3]
    ours = explained(Explainer(built, sentences, [ITEM], rules=rules))
    assert [each.sentence for each in ours] == [0, 1]
    for sentence, found in zip(sentences, ours, strict=True):
        corpus = examples([sentence], built.encoder.tokenizer, built.tasks, built.labels)
        batch = collate(corpus, built.encoder.tokenizer, built.tasks)
        pieces = batch.subwords.pieces
        with torch.no_grad():
            logits = built(batch)["translate"].scores
        assert found.pieces == tuple(pieces[0].tolist())
        torch.testing.assert_close(found.score, logits.gather(2, pieces[..., None])[0, :, 0])
        under = RelevanceRules(rules, architecture, account=True)
        with frozen(built), single_activations(transformer), eager_attention(transformer), under:
            scores = built(batch)["translate"].scores.gather(2, pieces[..., None])[0, :, 0]
        width = transformer.config.d_model
        wide = [each.leaf for each in under.sources if each.leaf.dim() > 1 and each.leaf.shape[-1] == width]
        used = torch.autograd.grad(scores.sum(), wide, retain_graph=True, allow_unused=True)
        vectors = [leaf for leaf, gradient in zip(wide, used, strict=True) if gradient is not None]
        assert len(vectors) == (4 if architecture == "marian" else 2)
        for position, score in enumerate(scores):
            gradients = torch.autograd.grad(score, vectors, retain_graph=True)
            parts = [
                (leaf.detach() * gradient).sum(-1).reshape(-1, leaf.shape[-2]).sum(0)
                for leaf, gradient in zip(vectors, gradients, strict=True)
            ]
            half = len(parts) // 2  # the encoder comes first
            source, target = torch.stack(parts[:half]).sum(0), torch.stack(parts[half:]).sum(0)
            torch.testing.assert_close(found.source[position], source)
            torch.testing.assert_close(found.target[position], target)
            ended = relevance_by_rule(under.sources, score)
            assert sum(ended.values()) == pytest.approx(score.item(), rel=1e-9)
            if architecture == "t5":
                assert float(source.sum() + target.sum()) == pytest.approx(score.item(), rel=1e-9)
        assert (found.target.triu(1) == 0).all()
        assert (found.source != 0).all()
        torch.testing.assert_close(torch.cat(token_shares(found), 1).sum(1), torch.ones_like(found.score))


def close_cross_attention(built: JointModel, way: str) -> Tensor | None:
    if way == "masked":
        sites = built.encoder.tap.sites
        open_heads = [[float(site.attention != "cross")] * 2 for site in sites]
        return torch.tensor(open_heads, dtype=torch.float64)
    for attention in attentions(built.encoder.transformer, family_of(built.encoder.transformer)):
        if attention.site.attention == "cross":
            torch.nn.init.zeros_(attention.output.weight)
            torch.nn.init.zeros_(attention.output.bias)
    return None


@pytest.mark.parametrize("way", ["zeroed", "masked"])
def test_a_decoder_that_cannot_see_the_source_has_no_share_of_it(way: str) -> None:
    built = model("bart")
    seeing = contribution_table(built, SENTENCES, EVERY)
    assert seeing["source_share"].is_between(0, 1, closed="none").all()
    scale = close_cross_attention(built, way)
    blind = contribution_table(built, SENTENCES, Mask("", ("translate",), scale))
    assert blind.select("sentence", "position", "token").equals(
        seeing.select("sentence", "position", "token")
    )
    assert (blind["source_share"] == 0).all()
    assert (blind["source_relevance"] == 0).all()
    assert blind["source_entropy"].null_count() == blind.height
    for each in explained(Explainer(built, SENTENCES, [ITEM], scale)):
        _, target = token_shares(each)
        start = torch.zeros(len(each.pieces), dtype=torch.float64)
        start[0] = 1
        torch.testing.assert_close(target[0], start)
    for table in (seeing, blind):
        first = table.filter(position=0)
        assert first.height == len(SENTENCES)
        assert (first["target_entropy"] == 0).all()
    assert (blind.filter(pl.col("position") > 0)["target_entropy"] > 0).all()


def test_shares_are_of_absolute_values_and_means_are_by_position() -> None:
    source = torch.tensor([[1.0, -1.0], [0.0, -3.0]])
    target = torch.tensor([[2.0, 0.0], [-0.5, 0.5]])
    shares = token_shares(Contributions(0, (5, 6), torch.zeros(2), source, target))
    assert shares[0].tolist() == [[0.25, 0.25], [0.0, 0.75]]
    assert shares[1].tolist() == [[0.5, 0.0], [0.125, 0.125]]
    rows = [
        ("translate", str(length), position, "x", position / 16, 1.0, 0.0, 1.0, 1.0, 2.0)
        for length in (2, 16)
        for position in range(length)
    ]
    table = pl.DataFrame(rows, CONTRIBUTIONS, orient="row")
    means = means_by_position(table)
    assert means["position"].to_list() == [*range(16)]
    assert means["sentences"].to_list() == [2, 2, *[1] * 14]
    assert means["source_share"].to_list() == [position / 16 for position in range(16)]
    lines = [line.split() for line in in_words(table)][2:]
    assert [line[0] for line in lines] == [*map(str, range(10)), "10-19", "all"]
    assert lines[10][1:] == ["6", "78.1", "1.000", "0.000"]  # positions 10 to 15: 12.5 / 16
    figure = contribution_lines(means.select(pl.lit("a run").alias("run"), pl.all()))
    assert faults(figure) == []
    assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [16] * 3


def saved_run(folder: Path) -> Path:
    """A run of a random model, with five sentences."""
    model().float().save(folder / "run" / "model")
    for name, lines in zip(("digits", "names"), zip(*PAIRS, strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = f"{folder / 'digits'}:{folder / 'names'}"
    parallel = {"format": "parallel", **dict.fromkeys(("train", "dev", "test"), files)}
    config = {
        "tasks": ["translate"], "name": "run", "seed": 1, "seq2seq": {"architecture": "marian"},
        "corpus": {"path": None, "translate": parallel}, "encoder": {"name": "none"},
    }  # fmt: skip
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "run"


def test_the_command_writes_prints_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved_run(tmp_path)
    drawn = ["figure", "contributions", str(run), f"--out={tmp_path / 'drawn.png'}"]
    assert main(drawn) == 2
    assert "measure them with 'mtl relevance RUN --contributions'" in capsys.readouterr().err
    assert main(["relevance", str(run), "--contributions", "--output=predicted"]) == 0
    said = capsys.readouterr().out
    assert "means by position" in said
    assert f"wrote {run / 'contributions.parquet'}" in said
    table = read_contributions(run / "contributions.parquet")
    expected = contribution_table(model().float(), SENTENCES, EVERY, output="predicted")
    assert_frame_equal(table.drop("sentence"), expected.drop("sentence"), rel_tol=1e-3)
    assert table["sentence"].n_unique() == len(SENTENCES)
    made_of = read_metadata(run / "contributions.parquet")
    assert made_of["output"] == "predicted"
    assert made_of["run"] == str(run.resolve())
    assert main(drawn) == 0
    assert pl.read_parquet(tmp_path / "drawn.parquet")["sentences"][0] == len(SENTENCES)
    other = ["relevance", str(run), "--contributions", f"--out={tmp_path / 'dev.parquet'}"]
    assert main(other) == 0
    beside = tmp_path / "dev-contributions.parquet"
    assert not read_contributions(beside).equals(table)
    write_parquet(pl.DataFrame({"mine": [1]}), beside)
    assert main(other) == 2
    assert "no column 'task'" in capsys.readouterr().err
