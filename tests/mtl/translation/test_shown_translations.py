"""What heads of a translation model are shown to attend to, against decoding step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mtl
from mtl.errors import InputError
from mtl.models.derived import apply_masks
from tests.mtl.translation.test_seq2seq import SENTENCES, joint, seq2seq


def by_steps(transformer, source, pieces):
    """Per layer the decoder's and the cross attention of one piece after another, with a cache."""
    encoded = transformer.get_encoder()(input_ids=source)
    past, read, found = None, [transformer.config.decoder_start_token_id, *pieces[:-1]], []
    for piece in read:
        output = transformer(
            encoder_outputs=encoded, decoder_input_ids=torch.tensor([[piece]]), past_key_values=past,
            use_cache=True, output_attentions=True,
        )  # fmt: skip
        past = output.past_key_values
        found.append((output.decoder_attentions, output.cross_attentions))
    return read, found


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["marian", "t5"])
def test_a_row_is_what_the_head_attends_to_as_it_predicts_a_subword(architecture):
    model = joint(seq2seq(architecture))
    mask = torch.ones(model.encoder.layers, model.encoder.heads, dtype=torch.float64)
    mask[2, 1] = mask[3, 0] = mask[5, 0] = (
        0  # of the decoder's first and second layer, of cross attention's second
    )
    cut = apply_masks(model, mask, ("translate",))
    transformer = cut.encoder.transformer
    transformer.set_attn_implementation("eager")
    tokenizer = cut.encoder.tokenizer.tokenizer
    source, text = " ".join(SENTENCES[2].words), SENTENCES[2].layer("translate")
    ids, pieces = tokenizer(source)["input_ids"], tokenizer(text_target=text)["input_ids"]
    read, steps = by_steps(transformer, torch.tensor([ids]), pieces)
    for kind, site, layer, head, place in (
        ("decoder", 2, 0, 0, 0), ("decoder", 3, 1, 1, 0), ("cross", 4, 0, 1, 1), ("cross", 5, 1, 1, 0)
    ):  # fmt: skip
        [shown] = cut.encoder.attention_in_writing(cut, site, head, [SENTENCES[2]], [text], None)
        assert shown.title == f"{kind} L{layer}H{head}"
        columns = read if kind == "decoder" else ids
        for names, numbers in ((shown.rows, pieces), (shown.columns, columns)):
            plain = "".join(names).replace("▁", " ").strip()
            assert plain == tokenizer.decode(numbers).strip()
        for row, (of_decoder, of_cross) in enumerate(steps):
            theirs = (of_decoder if kind == "decoder" else of_cross)[layer][0, place, 0]
            np.testing.assert_allclose(shown.weights[row, : len(theirs)], theirs, atol=1e-9)
            assert not shown.weights[row, len(theirs) :].any()


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_without_a_translation_rows_are_what_search_writes_under_the_same_mask(masked):
    model = joint(seq2seq())
    scale = torch.ones(model.encoder.layers, model.encoder.heads, dtype=torch.float64)
    scale[4:] = 0
    scale = scale if masked else None
    tokenizer, transformer = model.tokenizer.tokenizer, model.encoder.transformer
    for shown, sentence in zip(
        model.encoder.attention_in_writing(model, 2, 1, SENTENCES[:2], None, scale), SENTENCES, strict=False
    ):
        subwords = model.tokenizer.collate(model.tokenizer.encode_sentences([sentence]))
        assert len(shown.rows) == len(shown.columns)
        assert shown.columns[0] == tokenizer.convert_ids_to_tokens(transformer.config.decoder_start_token_id)
        assert shown.columns[1:] == shown.rows[:-1]
        text = "".join(row for row in shown.rows if row != "</s>").replace("▁", " ")
        [own] = model.encoder.translate(subwords, scale, beam=3)
        assert text.replace("�", "").split() == own.replace("�", "").split()


def test_a_head_of_cross_attention_is_drawn_as_a_matrix():
    model = joint(seq2seq())
    figure, axes = mtl.plot_attention(model, ["1", "2"], "cross L1H0", translation="zwei eins.")
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert "".join(labels).replace("▁", " ").strip() == "zwei eins.</s>"
    assert axes.get_title("left") == "cross L1H0"
    assert mtl.plot_attention(model, ["1", "2"], "decoder L1H0", translation="zwei", ax=axes) == (
        figure,
        axes,
    )
    for wrong in ({"view": "arcs"}, {"relation": "nsubj"}):
        with pytest.raises(InputError, match="cross L1H0 does not attend from word to word of the sentence"):
            mtl.plot_attention(model, ["1", "2"], "cross L1H0", **wrong)
    with pytest.raises(InputError, match="translation is for heads of a decoder or of cross attention"):
        mtl.plot_attention(model, ["1", "2"], "encoder L1H0", translation="zwei")
    for head in ("encoder L1H0", "L1H0"):
        _, axes = mtl.plot_attention(model, ["1", "2"], head)
        assert axes.get_title("left").startswith("encoder L1H0")
    with pytest.raises(
        InputError, match="this part of the model has no cross attention: give the whole model"
    ):
        mtl.plot_attention(model.encoder.word_reader(), ["1", "2"], "cross L1H0")
