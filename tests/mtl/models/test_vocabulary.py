"""Vocabularies that two languages share."""

from __future__ import annotations

from mtl.models.vocabulary import END, PAD, UNKNOWN_PIECE, train_vocabulary

TEXTS = [
    "Two young, White males are outside.", "Zwei junge weiße Männer sind im Freien.",
    "Several men in hard hats",
    "Mehrere Männer mit Schutzhelmen", "A little girl climbing", "Ein kleines Mädchen klettert",
] * 3  # fmt: skip


def test_a_vocabulary_spells_all_texts_and_is_the_same_each_time():
    tokenizer = train_vocabulary(TEXTS, 320, 64)
    assert len(tokenizer) <= 320
    assert tokenizer.convert_tokens_to_ids([PAD, END, UNKNOWN_PIECE]) == [0, 1, 2]
    strange = "ein Schloß – 名前, it's (1.5)!"
    ids = tokenizer([*TEXTS[:2], strange])["input_ids"]
    assert all(row[-1] == 1 for row in ids)
    assert [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)] == [
        *TEXTS[:2],
        strange,
    ]
    again = train_vocabulary(TEXTS, 320, 64)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
