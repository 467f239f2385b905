"""Word dropout of translations: what is replaced in training, by what, and how often."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from mtl.config.effective import unused_keys
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.models.batches import collate, examples
from mtl.models.joint import JointModel
from mtl.tasks.task import UNKNOWN, Labels
from mtl.translation.pieces import WordDropout
from mtl.translation.task import Translate
from tests.mtl.translation.test_seq2seq import SENTENCES, seq2seq


def read_by(model, batch, training):
    """The subwords that encoder and decoder are given in a pass, and the loss."""
    seen = {}
    stacks = {
        "source": model.encoder.transformer.get_encoder(),
        "target": model.encoder.transformer.get_decoder(),
    }
    hooks = [
        stack.register_forward_pre_hook(
            lambda module, given, options, name=name: seen.update({name: options["input_ids"]}),
            with_kwargs=True,
        )
        for name, stack in stacks.items()
    ]
    model.train(training)
    model.encoder.transformer.eval()  # which has dropout of its own
    loss = model.losses(batch, model(batch))["translate"]
    for hook in hooks:
        hook.remove()
    return seen, loss


@pytest.mark.parametrize("replaced_by", ["unknown", "random"])
def test_subwords_are_replaced_in_training_alone_and_the_loss_is_about_the_whole_translation(replaced_by):
    task = Translate(
        source_word_dropout=0.3, target_word_dropout=0.6, replaced_by=replaced_by, label_smoothing=0.0
    )
    model = JointModel(seq2seq(), {"translate": task}, {"translate": Labels(())})
    tokenizer = model.encoder.tokenizer.tokenizer
    batch = collate(
        examples(SENTENCES * 60, model.encoder.tokenizer, model.tasks, model.labels),
        model.encoder.tokenizer, model.tasks,
    )  # fmt: skip
    with torch.no_grad():
        whole, _ = read_by(model, batch, training=False)
        torch.manual_seed(5)
        dropped, loss = read_by(model, batch, training=True)
    assert torch.equal(whole["source"], batch.subwords.input_ids)
    pieces = batch.subwords.pieces
    assert torch.equal(
        whole["target"][:, 1:], pieces[:, :-1].where(pieces[:, :-1] != UNKNOWN, tokenizer.pad_token_id)
    )
    put = []
    for side, share in (("source", 0.3), ("target", 0.6)):
        changed = dropped[side] != whole[side]
        ordinary = whole[side] > 2  # after <pad>, </s> and <unk>
        assert not changed[~ordinary].any()
        number = int(ordinary.sum())
        assert abs(int(changed.sum()) / number - share) < 5 * (share * (1 - share) / number) ** 0.5
        put.append(dropped[side][changed])
    put = torch.cat(put)
    if replaced_by == "unknown":
        assert put.unique().tolist() == [tokenizer.unk_token_id]
    else:
        times = torch.bincount(put, minlength=len(tokenizer))
        assert times[:3].sum() == 0
        expected = times.sum() / (len(tokenizer) - 3)
        chi_square = float(((times[3:] - expected) ** 2 / expected).sum())
        assert chi_square < len(tokenizer) + 5 * (2 * len(tokenizer)) ** 0.5
    # The loss is that of transformers on what was read, about the whole translation.
    with torch.no_grad():
        theirs = model.encoder.transformer(
            input_ids=dropped["source"], attention_mask=batch.subwords.attention_mask,
            decoder_input_ids=dropped["target"], labels=pieces,
        ).loss  # fmt: skip
    assert_close(loss, theirs)


def test_a_tokenizer_without_an_unknown_token_takes_random_subwords_alone():
    without = seq2seq().tokenizer
    without.tokenizer.unk_token = None
    WordDropout(Translate(), without)
    with pytest.raises(
        InputError, match=r"translate\.replaced_by=unknown: .* use translate\.replaced_by=random"
    ):
        WordDropout(Translate(target_word_dropout=0.1), without)
    WordDropout(Translate(target_word_dropout=0.1, replaced_by="random"), without)


def test_what_replaces_subwords_is_used_where_some_are_replaced():
    def unused(**settings):
        config = TrainConfig(tasks=("translate",), translate=Translate(**settings))
        return "translate.replaced_by" in unused_keys(config)

    assert unused()
    assert not unused(source_word_dropout=0.1)
    assert not unused(target_word_dropout=0.1)
