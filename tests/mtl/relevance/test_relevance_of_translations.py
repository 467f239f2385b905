"""The relevance of heads of encoder-decoder models: conservation, an oracle by hand, planted heads, masks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor

from mtl.analysis.probe import probe_run
from mtl.commands.main import main
from mtl.config.schema import CorpusConfig
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.gates import HeadGates, Mask
from mtl.heads.prune import prune_heads
from mtl.heads.tap import eager_attention
from mtl.models.batches import collate, examples
from mtl.models.joint import JointModel
from mtl.models.passes import frozen
from mtl.probes.tables import heads_table
from mtl.relevance.propagation import (
    BatchRelevance,
    Explainer,
    Output,
    RelevanceItem,
    head_relevance,
)
from mtl.relevance.rules import RelevanceRules, Rules, relevance_by_rule, single_activations
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN, Labels
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.pieces import train_vocabulary
from mtl.translation.seq2seq import Seq2Seq, from_scratch
from mtl.translation.task import Translate
from tests.mtl import tiny
from tests.mtl.translation.digits import pair
from tests.mtl.translation.test_probe_of_translations import saved_run

BOTH: tuple[Rules, Rules] = ("paper", "attnlrp")
EVERY = Mask("", ("translate",), None)
ITEM = RelevanceItem("translate", "")
HEADS, SIZE = 2, 8
PAIRS = [pair(digits) for digits in ("12", "7", "3041", "99", "580")]
SENTENCES = [Sentence(tuple(source.split()), translate=target) for source, target in PAIRS]


def model(architecture: str = "marian", layers: int = 2, components: int | None = None) -> JointModel:
    """A random model of 2 heads of 8 dimensions, in double precision."""
    tokenizer = train_vocabulary([text for both in PAIRS for text in both], 300, 64)
    torch.manual_seed(1)
    config = Seq2SeqConfig(architecture, layers, None, HEADS, HEADS * SIZE, 24, 0.1, 300, components)
    transformer = from_scratch(config, tokenizer)
    tiny.shake(transformer)
    encoder = Seq2Seq(transformer.double(), tokenizer, "digits", "names")
    return JointModel(encoder, {"translate": Translate()}, {"translate": Labels(())}).eval()


def explained(explainer: Explainer) -> list[BatchRelevance]:
    return [result for batch in range(len(explainer.batches)) for result in explainer.relevance(batch)]


def summed(explainer: Explainer) -> Tensor:
    return torch.cat([result.heads for result in explained(explainer)]).sum(0)


def softmax_in_float32(name: str, rules: Rules) -> bool:
    """T5 computes attention in float32, which only matters to what passes its softmax."""
    return name in ("t5", "mt5") and rules == "attnlrp"


@pytest.mark.parametrize(
    ("name", "rules", "dtype"),
    tiny.with_options(tiny.TRANSLATORS, ("attnlrp", "paper"), (torch.float64, torch.float32)),
)
def test_every_family_conserves_the_score_of_its_pieces(name: str, rules: Rules, dtype: torch.dtype) -> None:
    """What ends at embeddings, those that the decoder reads included, and at constants is the score."""
    translator = tiny.translator(name, dtype=dtype)
    ids, mask = tiny.batch(9)
    targets, target_mask = tiny.batch(7)
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": targets, "use_cache": False}
    under = RelevanceRules(rules, name, account=True)
    with frozen(translator), single_activations(translator), eager_attention(translator), under:
        logits = translator(**given).logits
        pieces = logits.gather(2, targets[:, :, None]).squeeze(2)
        score = pieces.masked_fill(target_mask == 0, 0.0).sum()
    ended = relevance_by_rule(under.sources, score)
    exact = dtype == torch.float64 and not softmax_in_float32(name, rules)
    assert sum(ended.values()) == pytest.approx(score.item(), rel=1e-9 if exact else 1e-4)
    assert (ended["ATTENTION"] != 0) == (rules == "attnlrp")
    with torch.no_grad(), eager_attention(translator):
        torch.testing.assert_close(logits, translator(**given).logits)
    # Source and target share their embeddings, and both are read.
    lookups = [source for source in under.sources if source.rule == "EMBEDDING"]
    gradients = torch.autograd.grad(score, [source.leaf for source in lookups], allow_unused=True)
    widths = {
        source.leaf.shape[1]
        for source, gradient in zip(lookups, gradients, strict=True)
        if source.leaf.dim() == 3 and source.relevance(gradient)
    }
    assert widths >= {9, 7}


@pytest.mark.parametrize("architecture", ["marian", "t5"])
@pytest.mark.parametrize("output", ["gold", "predicted"])
@pytest.mark.parametrize("rules", BOTH)
def test_the_score_is_of_the_reference_or_of_what_is_preferred_under_it(
    architecture: str, output: Output, rules: Rules
) -> None:
    built = model(architecture)
    explainer = Explainer(built, SENTENCES, [ITEM], rules=rules, output=output)
    error = max(explainer.conservation(batch).error for batch in range(len(explainer.batches)))
    assert error < (1e-4 if softmax_in_float32(architecture, rules) else 1e-9)
    corpus = examples(SENTENCES, built.encoder.tokenizer, built.tasks, built.labels)
    batch = collate(corpus, built.encoder.tokenizer, built.tasks)
    pieces = batch.subwords.pieces
    with torch.no_grad():
        logits = built(batch)["translate"].scores
    chosen = logits.gather(2, pieces.clamp_min(0)[..., None])[..., 0] if output == "gold" else logits.amax(2)
    expected = (chosen * (pieces != UNKNOWN)).sum(1)
    if output == "predicted":
        assert not torch.equal(logits.argmax(2)[pieces != UNKNOWN], pieces[pieces != UNKNOWN])
    scores = torch.cat([result.score for result in explained(explainer)])
    order = [index for batch in explainer.batches for index in batch]
    torch.testing.assert_close(scores, expected[order])


def by_hand(built: JointModel, sentence: Sentence) -> Tensor:
    """The heads' parts of the score in a model of one layer each, norms before, without feed-forward layers.

    With attention and what norms divide by as constants the rest is linear: a head of the decoder or across
    adds a vector to what the last norm reads, and one of the encoder does so through the values that the
    decoder reads.
    """
    encoder = built.encoder
    transformer, base = encoder.transformer, encoder.transformer.base_model
    corpus = examples([sentence], encoder.tokenizer, built.tasks, built.labels)
    batch = collate(corpus, encoder.tokenizer, built.tasks)
    streams: list[Tensor] = []
    norms = (base.encoder.layer_norm, base.decoder.layer_norm)
    hooks = [norm.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0])) for norm in norms]
    pieces = batch.subwords.pieces
    with torch.no_grad(), eager_attention(transformer), encoder.tap.observe() as heads:
        attention = transformer(
            input_ids=batch.subwords.input_ids,
            attention_mask=batch.subwords.attention_mask,
            decoder_input_ids=transformer.prepare_decoder_input_ids_from_labels(pieces),
            output_attentions=True,
        ).cross_attentions[0]  # [1, head, piece, subword]
    for hook in hooks:
        hook.remove()

    def normed(part: Tensor, which: int) -> Tensor:
        """The part of a vector in what a norm gives."""
        spread = (streams[which].var(-1, correction=0, keepdim=True) + norms[which].eps).sqrt()
        return norms[which].weight * (part - part.mean(-1, keepdim=True)) / spread

    def in_score(part: Tensor) -> Tensor:
        return (normed(part, 1) * transformer.lm_head.weight[pieces]).sum()

    across = base.decoder.layers[0].encoder_attn
    found = torch.zeros(3, HEADS, dtype=torch.float64)
    for site, attending in enumerate(attentions(transformer, family_of(transformer))):
        for head in range(HEADS):
            columns = slice(head * SIZE, (head + 1) * SIZE)
            part = heads[site][:, :, head] @ attending.output.weight[:, columns].T
            if site == 0:
                values = (normed(part, 0) @ across.v_proj.weight.T).unflatten(-1, (HEADS, SIZE))
                read = torch.einsum("bhpq,bqhd->bphd", attention, values).flatten(-2)
                part = read @ across.out_proj.weight.T
            found[site, head] = in_score(part).detach()
    return found


def test_heads_of_all_kinds_have_what_they_have_by_hand() -> None:
    built = model("mbart", layers=1)
    for layer in (
        *built.encoder.transformer.model.encoder.layers,
        *built.encoder.transformer.model.decoder.layers,
    ):
        torch.nn.init.zeros_(layer.fc2.weight)
        torch.nn.init.zeros_(layer.fc2.bias)
    for sentence in SENTENCES:
        ours = summed(Explainer(built, [sentence], [ITEM]))
        torch.testing.assert_close(ours, by_hand(built, sentence))
        assert (ours != 0).all()


@pytest.mark.parametrize("rules", BOTH)
def test_only_planted_heads_are_relevant_and_the_table_names_their_kind(rules: Rules) -> None:
    """A model that reads one head of each kind: the others' columns of the output projections are 0."""
    built = model()
    planted = {("encoder", 1, 0), ("decoder", 0, 1), ("cross", 1, 1)}
    for attention in attentions(built.encoder.transformer, family_of(built.encoder.transformer)):
        for head in range(HEADS):
            if (*attention.site, head) not in planted:
                attention.output.weight.data[:, head * SIZE : (head + 1) * SIZE] = 0
    heads, conservation = head_relevance(built, SENTENCES, EVERY, rules=rules)
    assert conservation.error < 1e-9
    of_task = heads.filter(measure="relevance", task="translate")
    assert of_task.height == 12
    relevant = {
        (row["attention"], row["layer"], row["head"]): row["value"]
        for row in of_task.iter_rows(named=True)
        if row["value"]
    }
    assert relevant == pytest.approx(dict.fromkeys(planted, 1.0))
    assert set(of_task["count"]) == {len(SENTENCES)}


def test_shares_sum_to_one_at_every_site_and_batches_change_nothing() -> None:
    built = model()
    heads, _ = head_relevance(built, SENTENCES, EVERY)
    sums = heads.filter(measure="relevance").group_by("attention", "layer").agg(pl.sum("value"))
    assert sums["value"].to_list() == pytest.approx([1.0] * 6)
    together = summed(Explainer(built, SENTENCES, [ITEM]))
    torch.testing.assert_close(summed(Explainer(built, SENTENCES, [ITEM], batch_tokens=1)), together)


def test_under_a_mask_as_with_scaled_columns_and_as_cut() -> None:
    built, changed, cut = model(), model(), model()
    scale = torch.ones(6, HEADS, dtype=torch.float64)
    for site in range(6):
        scale[site, site % HEADS] = 0
    masked = summed(Explainer(built, SENTENCES, [ITEM], scale))
    for attention, factors in zip(
        attentions(changed.encoder.transformer, family_of(changed.encoder.transformer)), scale, strict=True
    ):
        attention.output.weight.data *= factors.repeat_interleave(SIZE)
    torch.testing.assert_close(masked, summed(Explainer(changed, SENTENCES, [ITEM])))
    assert (masked[scale == 0] == 0).all()
    prune_heads(cut.encoder.transformer, {site: [site % HEADS] for site in range(6)})
    torch.testing.assert_close(masked, summed(Explainer(cut, SENTENCES, [ITEM])))


@pytest.mark.parametrize("rules", BOTH)
def test_heads_that_share_components_conserve_relevance(rules: Rules) -> None:
    built = model(components=10)
    explainer = Explainer(built, SENTENCES, [ITEM], rules=rules)
    assert max(explainer.conservation(batch).error for batch in range(len(explainer.batches))) < 1e-9
    assert (summed(explainer) != 0).all()


@pytest.mark.parametrize("output", ["gold", "predicted"])
def test_what_has_no_reference_is_left_out(output: Output) -> None:
    built = model()
    mixed = [*SENTENCES, Sentence(("1", "2"))]
    heads, _ = head_relevance(built, mixed, EVERY, output=output)
    alone, _ = head_relevance(built, SENTENCES, EVERY, output=output)
    assert heads.equals(alone)


def test_the_table_has_the_heads_that_probing_and_importance_have(tmp_path: Path) -> None:
    gates = HeadGates(3, 3, masks=("shared",), init_mean=4.0)
    gates.log_alpha.data[0, 0, 1] = -4.0
    run = saved_run(tmp_path, gates)
    for words in (["probe", f"--corpus={tmp_path / 'parsed'}"], ["importance"], ["relevance"]):
        assert main([words[0], str(run), *words[1:]]) == 0
    heads, _ = heads_table.read_heads_table(run / "heads.parquet")
    rows = {name: heads.filter(measure=name) for name in ("relevance", "relevance_signed", "importance")}
    places = [table.select("attention", "layer", "head") for table in rows.values()]
    assert all(each.height == 9 and each.equals(places[0]) for each in places)
    probed = heads.filter(measure="clustering", task="pos", label="DIGIT")
    of_encoder = places[0].filter(attention="encoder")
    assert probed.select("attention", "layer", "head").equals(of_encoder)


@pytest.mark.slow
def test_it_predicts_what_ablation_costs_beside_roles(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    probe_run(str(run), CorpusConfig(str(tmp_path / "parsed")))
    for command in ("relevance", "ablate"):
        assert main([command, str(run)]) == 0
    out = tmp_path / "prediction.png"
    assert main(["figure", "prediction", str(run), f"--out={out}"]) == 0
    table = pl.read_parquet(out.with_suffix(".parquet"))
    of_encoder = dict.fromkeys(("confidence", "positional", "syntactic"), 3)
    assert dict(table.select("measure", "heads").iter_rows()) == {"relevance": 9, **of_encoder}


def test_the_command_explains_what_a_model_translates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved_run(tmp_path)
    assert main(["relevance", str(run), "--output=predicted"]) == 0
    assert "cross L0H" in capsys.readouterr().out
    heads, _ = heads_table.read_heads_table(run / "heads.parquet")
    for measure in ("relevance", "relevance_signed"):
        kinds = heads.filter(measure=measure, task="translate")["attention"]
        assert kinds.value_counts().sort("attention").rows() == [("cross", 3), ("decoder", 3), ("encoder", 3)]
