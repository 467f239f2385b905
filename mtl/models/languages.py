"""Check that a checkpoint translates between the languages that a run asks for."""

from __future__ import annotations

from typing import Any

from mtl.errors import InputError
from mtl.tasks.in_words import counted


def require_languages(name: str, config: Any, tokenizer: Any, source: str, target: str) -> None:
    """Raise `InputError` if a checkpoint states other languages, or the same in the other direction."""
    stated = [
        next((value for holder in (config, tokenizer) if (value := getattr(holder, key, None))), None)
        for key in ("source_lang", "target_lang")
    ]
    pair = getattr(config, "langs", None) or stated
    if len(pair) != 2 or not all(pair) or not (source or target):
        return
    given = (source or pair[0], target or pair[1])
    if given == tuple(pair):
        return
    fix = f"use translate.source={pair[0]} and translate.target={pair[1]}, or another checkpoint"
    if given == tuple(reversed(pair)):
        raise InputError(f"{name} translates from {pair[0]} to {pair[1]}, the other way round: {fix}")
    raise InputError(
        f"{name} translates from {pair[0]} to {pair[1]}, not from {given[0]} to {given[1]}: {fix}"
    )


def require_language_codes(name: str, tokenizer: Any, source: str, target: str) -> None:
    """Raise `InputError` unless a tokenizer of many languages is given two of them, by its own codes."""
    if not hasattr(tokenizer, "src_lang"):
        return
    codes = _language_codes(tokenizer)
    for key, language in (("source", source), ("target", target)):
        if language in codes:
            continue
        # A code begins with its language: en_XX, eng_Latn.
        near = [code for code in codes if language and code.startswith(language[:2])][:5] or codes[:3]
        where = f"translate.{key}={language}" if language else f"translate.{key} is not set"
        raise InputError(
            f"{where}: {name} knows {counted(len(codes), 'language')} by its own codes; use one of them, "
            f"such as {', '.join(near)}"
        )


def _language_codes(tokenizer: Any) -> list[str]:
    """The codes of the languages that a tokenizer tells apart, sorted."""
    known = getattr(tokenizer, "lang_code_to_id", None)  # mBART, mBART-50, M2M100
    if known is None:  # NLLB has them only as special tokens
        named = set(tokenizer.special_tokens_map.values())
        known = [token for token in tokenizer.all_special_tokens if token not in named]
    return sorted(known)
