"""Train a subword vocabulary, which two languages share, on the texts of a run."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN_PIECE = "<pad>", "</s>", "<unk>"
"""Special pieces; decoders start with the padding piece, as in Marian."""


def train_vocabulary(texts: Iterable[str], size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer with at most `size` pieces, special ones included; the same for the same texts.

    Byte pair encoding (Sennrich et al. 2016) of bytes (Radford et al. 2019): every text can be encoded, and
    decodes to itself except for white space around it. The unigram model is not offered: its training in the
    library is not deterministic, and a resumed run trains its vocabulary again.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [PAD, END, UNKNOWN_PIECE]
    pieces = Tokenizer(models.BPE(unk_token=UNKNOWN_PIECE))
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    pieces.decoder = decoders.ByteLevel()
    pieces.train_from_iterator(texts, trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, pieces.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN_PIECE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
