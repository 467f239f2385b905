"""What heads of the decoder and the cross attention attend to, on sentences and their translations."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from mtl.models.joint import JointModel
from mtl.probes.attention_matrix import AttentionMatrix
from mtl.probes.sites import head_name
from mtl.tasks.sentence import Sentence
from mtl.translation.pieces import ParallelTokenizer
from mtl.translation.seq2seq import Seq2Seq, decoder_inputs
from mtl.translation.task import translation_in
from mtl.translation.two_files import source_words


def attention_matrices(
    model: JointModel,
    encoder: Seq2Seq,
    site: int,
    head: int,
    sentences: Sequence[Sentence],
    texts: Sequence[str] | None,
    head_scale: Float[Tensor, "site head"] | None,
) -> list[AttentionMatrix]:
    """The attention of a head for each sentence and its translation; without `texts`, the model translates.

    Sources are read as in training, with spaces between words as they were written. A row is the subword that
    the decoder predicts at a position. Columns are those that it attends to: of the source in cross
    attention, else those that the decoder has read, which begin with its start token.

    Raises `InputError` for a text with more subwords than the model reads.
    """
    task = translation_in(model.tasks)
    assert task is not None
    tokenizer, device = encoder.tokenizer, model.device
    if head_scale is not None:
        head_scale = head_scale.to(device)
    name, kind = (
        head_name(encoder.tap.sites[site], head, encoder.tap.sites),
        encoder.tap.sites[site].attention,
    )
    found = []
    for number, sentence in enumerate(sentences):
        source = Sentence(source_words(sentence.text or " ".join(sentence.words)), place=sentence.place)
        pair = source if texts is None else source.with_layers({task.layer: texts[number]})
        subwords = tokenizer.collate(tokenizer.encode_sentences([pair])).to(device)
        if texts is None:
            written = encoder.search(
                subwords, head_scale, beam=task.beam, length_penalty=task.length_penalty,
                beam_spread=task.beam_spread,
            )  # fmt: skip
            read, predicted = written[:, :-1], written[:, 1:]
        else:
            assert subwords.pieces is not None
            read, predicted = decoder_inputs(encoder.transformer, subwords.pieces), subwords.pieces
        weights = encoder.attention(subwords, read, site, head, head_scale)[0]
        columns = read if kind == "decoder" else subwords.input_ids
        found.append(
            AttentionMatrix(
                ", ".join(filter(None, (name, sentence.id))),
                subword_texts(tokenizer, predicted[0]),
                subword_texts(tokenizer, columns[0]),
                weights.cpu().numpy(),
            )
        )
    return found


def subword_texts(tokenizer: ParallelTokenizer, ids: Int[Tensor, " position"]) -> tuple[str, ...]:
    """The text of each subword, after `▁` if a word begins with it; special tokens by their names."""
    fast = tokenizer.tokenizer
    special = set(fast.all_special_ids)
    texts = []
    for number, name in zip(ids.tolist(), fast.convert_ids_to_tokens(ids.tolist()), strict=True):
        begins = "▁" if name[:1] in ("▁", "Ġ") else ""
        texts.append(name if number in special else begins + fast.decode([number]).strip())
    return tuple(texts)
