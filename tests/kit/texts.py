"""Running text for hypothesis: white space, punctuation and characters that a splitter may trip over."""

from __future__ import annotations

from hypothesis import strategies as st

PARTS = st.sampled_from(
    ["We ate.", "Dear Bob,", "can't", "He left", "!!", "?!", "Yahoo!'s", "http://a.b/?x!y", "...", '"', "(",
     ")", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", "\n \n", "\u2028", "\u2029", "\x85", "\u00a0",
     "\u3000", "\u200b", "\u200d", "\u2060", "\u00ad", "e\u0301", "\u0301", "👩\u200d👩\u200d👧", "🇫🇷", "𝔘𝔫",
     "שלום", "\u202eabc", "عربى.", "我们吃饭。", "İ", "\x00", "\x07", "\x1b[1m", "\x1f", "\x7f", "a\ufeffb",
     "\ufeff", "\n\ufeff\ufeff"]
)  # fmt: skip
TEXT = st.one_of(
    st.lists(PARTS, max_size=14).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=25),
)
