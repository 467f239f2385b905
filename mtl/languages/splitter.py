"""Sentences and words of running text in languages other than English, by spaCy.

No model is downloaded: sentences end at the language's punctuation marks, and words are found by spaCy's
rules and exceptions, or in Chinese by jieba's dictionary. Some languages need further packages, which spaCy
names.
"""

from __future__ import annotations

import pkgutil
from typing import Any

from mtl.corpora.running_text import Splitter
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import first_line
from mtl.tasks.sentence import Sentence

_NO_LIMIT = 1 << 40
"""Maximum number of characters of a text: spaCy's own limit is for its parser, and rules need none."""


def splitter_of(language: str) -> Splitter:
    """The splitter for text in a language, given by spaCy's code (`de`, `zh`; `xx`: any).

    Raises `InputError` for a language that spaCy does not have, and if a package is missing.
    """
    try:
        import spacy
        import spacy.lang
    except ImportError as error:
        raise InputError(
            f"language={language}: words of other languages than English are found by spaCy, which is not "
            "installed: pip install 'mtl-heads[languages]', or split the words yourself (--input=tokens)"
        ) from error
    known = sorted(module.name for module in pkgutil.iter_modules(spacy.lang.__path__) if module.ispkg)
    if language not in known:
        raise InputError(
            f"language={language}: no such language{did_you_mean(language, known, '')} "
            f"(spaCy's are {', '.join(known)})"
        )
    try:
        rules = spacy.blank(language, config=_settings(language))
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"language={language}: {reason[:300]} Or split the words yourself (--input=tokens)"
        ) from error
    rules.add_pipe("sentencizer")
    rules.max_length = _NO_LIMIT

    def split(text: str) -> list[Sentence]:
        try:
            document = rules(text)
        except Exception as error:  # tokenizers of some languages have limits of their own
            raise ValueError(f"spaCy cannot split it ({first_line(error)})") from error
        found = [
            Sentence(
                # A word of several syllables or numbers holds the white space between them.
                tuple(" ".join(token.text.split()) for token in sentence if not token.is_space),
                text=" ".join(sentence.text.split()),
            )
            for sentence in document.sents
        ]
        return [sentence for sentence in found if sentence.words]

    return split


def _settings(language: str) -> dict[str, Any]:
    if language != "zh":
        return {}
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)  # otherwise it reports that it loads its dictionary
    return {"nlp": {"tokenizer": {"segmenter": "jieba"}}}
