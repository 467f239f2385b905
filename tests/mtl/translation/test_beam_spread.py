"""Beam search that drops hypotheses far below the best one, against a search written out."""

from __future__ import annotations

import pytest
import torch

import mtl
from mtl.commands.main import main
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.training.check import check_settings
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.task import Translate
from tests.mtl.translation.test_seq2seq import SENTENCES, joint, seq2seq

BEAM, LIMIT = 4, 12


def searched(transformer, source, spread):
    """The best translation by the sum of its log probabilities, and how many hypotheses were dropped."""
    end, running, ended, dropped = transformer.config.eos_token_id, [(0.0, [])], [], 0
    while running and not (ended and max(ended)[0] >= running[0][0]):
        kept = [each for each in running if each[0] >= running[0][0] - spread]
        dropped += len(running) - len(kept)
        grown = []
        for score, pieces in kept:
            if len(pieces) + 1 == LIMIT:  # where it ends at no cost
                grown.append((score, [*pieces, end]))
                continue
            read = torch.tensor([[transformer.config.decoder_start_token_id, *pieces]])
            last = transformer(input_ids=source, decoder_input_ids=read).logits[0, -1].float().log_softmax(0)
            best = last.topk(2 * BEAM)
            grown += [
                (score + cost, [*pieces, piece])
                for cost, piece in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        grown = sorted(grown, reverse=True)[: 2 * BEAM]
        ended += [each for each in grown[:BEAM] if each[1][-1] == end]
        running = [each for each in grown if each[1][-1] != end][:BEAM]
    return max(ended)[1], dropped


@pytest.mark.slow
@torch.no_grad()
def test_hypotheses_far_below_the_best_are_dropped():
    model = seq2seq()
    tokenizer, transformer = model.tokenizer.tokenizer, model.transformer
    model.tokenizer.max_length = LIMIT + 1
    transformer.get_decoder().layers[-1].final_layer_norm.weight.mul_(5)  # choices that are far apart
    transformer.final_logits_bias[0, tokenizer.eos_token_id] = -1.0  # longer translations
    subwords = model.tokenizer.collate(model.tokenizer.encode_sentences(SENTENCES))
    results, numbers = {}, {}
    for spread in (0.0, 0.1, 1.0, 100.0):
        own = model.search(subwords, beam=BEAM, length_penalty=0.0, beam_spread=spread)
        numbers[spread] = 0
        for row, tokens in zip(own.tolist(), model.tokenizer.encode_sentences(SENTENCES), strict=True):
            wanted, dropped = searched(transformer, torch.tensor(tokens.ids)[None].long(), spread)
            assert [piece for piece in row[1:] if piece != tokenizer.pad_token_id] == wanted
            numbers[spread] += dropped
        results[spread] = own.tolist()
    assert results[100.0] == model.search(subwords, beam=BEAM, length_penalty=0.0).tolist()
    assert numbers[0.0] > numbers[0.1] > numbers[1.0] > numbers[100.0] == 0
    assert results[0.0] != results[100.0]


def test_a_spread_or_penalty_of_a_single_hypothesis_is_refused():
    model = joint(seq2seq())
    for setting in ("beam_spread", "length_penalty"):
        with pytest.raises(InputError, match=f"^{setting}=2: with beam=1 there are no others to compare"):
            mtl.translate_lines(model, ["1 2"], beam=1, **{setting: 2.0})
    config = TrainConfig(
        tasks=("translate",), seq2seq=Seq2SeqConfig("mbart"), translate=Translate(beam=1, beam_spread=2.0)
    )
    with pytest.raises(InputError, match=r"translate\.beam_spread=2: with beam=1"):
        check_settings(config)


@pytest.mark.slow
def test_the_option_is_that_of_the_search(tmp_path, capsys):
    model = joint(seq2seq().float())
    model.save(tmp_path / "model")
    (tmp_path / "text").write_text("3 0 4 1\n")
    for spread in (0.0, 50.0):
        words = ["translate", str(tmp_path / "model"), str(tmp_path / "text"), f"--beam_spread={spread}"]
        assert main(words) == 0
        said = capsys.readouterr().out.removesuffix("\n")
        assert [said] == mtl.translate_lines(model, ["3 0 4 1"], beam_spread=spread)
