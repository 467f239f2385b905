"""Rules for predictions: dictionaries of words with the annotations that they must, or must not, get.

Decoders keep them while they decode (`Decoder.constrained`): scores of what a rule excludes are masked, and
everything else is predicted as it would be, given that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mtl.tasks.in_words import as_json, counted
from mtl.tasks.sentence import Arcs
from mtl.tasks.task import Labels

RuleKind = Literal["tags", "spans", "arcs"]
"""What a decoder's rules are about: labels of words, labelled spans, arcs with relations."""
UNKEPT = "rule not kept, since another rule or the task's structure excludes it"
"""How a sentence's note on a rule begins."""
_BELOW = " < "
"""Between a dependent and its head."""


class Rule(NamedTuple):
    """What words must be annotated with (`force`), or must not be."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    """Tags to force, one for each word; else labels of which any one is meant. Empty: whatever the label."""
    force: bool
    head: str | None = None
    """The word that must be the head of the only one in `words`, or must not be."""

    def __str__(self) -> str:
        words = " ".join(self.words) + (f"{_BELOW}{self.head}" if self.head is not None else "")
        labels = f": {' '.join(self.labels)}" if self.labels else ""
        return f"{'force' if self.force else 'forbid'} {words}{labels}"


class Match(NamedTuple):
    """A rule at the words from `start` to `end` (exclusive) of a sentence."""

    start: int
    end: int
    rule: Rule
    heads: tuple[int, ...] = ()
    """The places of the rule's head, from 1."""

    def is_kept(self, annotation: Any) -> bool:
        """Whether an annotation, of the decoder that the rule is for, is as the rule says."""
        labels, force = self.rule.labels, self.rule.force
        if isinstance(annotation, Arcs):
            of_head = not self.heads or annotation.heads[self.start] in self.heads
            of_relation = not labels or annotation.relations[self.start] in labels
            return (of_head and of_relation) == force
        if annotation and isinstance(annotation[0], str):
            found = annotation[self.start : self.end]
            return found == labels if force else not {*found} & {*labels}
        here = [label for start, end, label in annotation if (start, end) == (self.start, self.end)]
        return any(not labels or label in labels for label in here) == force


class TaskRules:
    """The rules of one task, found by their words."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_word: dict[str, list[Rule]] = defaultdict(list)
        for rule in rules:
            self._by_word[rule.words[0]].append(rule)
        for of_word in self._by_word.values():
            of_word.sort(key=lambda rule: -len(rule.words))

    def matches(self, words: Sequence[str]) -> list[Match]:
        """Where the rules apply; of those that force something, the first and longest, without overlaps."""
        found: list[Match] = []
        free = 0
        for start, word in enumerate(words):
            for rule in self._by_word.get(word, ()):
                end = start + len(rule.words)
                if tuple(words[start:end]) != rule.words:
                    continue
                heads = tuple(place for place, head in enumerate(words, start=1) if head == rule.head)
                if rule.head is not None and not {*heads} - {start + 1}:
                    continue
                if rule.force:
                    if start < free:
                        continue
                    free = end
                found.append(Match(start, end, rule, heads))
        return found


def rules_from(given: Any, kind: RuleKind, labels: Labels) -> TaskRules:
    """The rules of a task, given as `{force: {WORDS: LABEL}, forbid: {WORDS: [LABEL, …]}}`.

    Raises `ValueError` for anything else, for labels that the task does not have, and for words that are both
    forced and forbidden to have the same label.
    """
    if not isinstance(given, Mapping) or not given or not given.keys() <= {"force", "forbid"}:
        raise ValueError(f"{as_json(given)} has not the keys 'force' and 'forbid' only")
    rules: dict[tuple[tuple[str, ...], str | None, bool], Rule] = {}
    for key in ("force", "forbid"):
        for text, value in _pairs(given.get(key), key):
            rule = _rule(text, value, key == "force", kind)
            for label in rule.labels:
                if labels.index(label) < 0:
                    known = ", ".join(labels.names[:12]) + (", …" if len(labels) > 12 else "")
                    raise ValueError(f"{key}: {text}: the model has no label '{label}' ({known})")
            other = rules.get((rule.words, rule.head, not rule.force))
            if other is not None and (
                not rule.labels or not other.labels or {*rule.labels} & {*other.labels}
            ):
                raise ValueError(f"'{text}' is both forced and forbidden: keep one")
            if rules.setdefault((rule.words, rule.head, rule.force), rule) != rule:
                raise ValueError(f"{key}: '{text}' is there twice, with different labels: keep one")
    return TaskRules(rules.values())


def _pairs(given: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The words and labels of a mapping, or words without labels of a list."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, list | tuple | set | frozenset) or given is None:
        pairs = [(text, None) for text in given or ()]
    else:
        raise ValueError(f"{key}: {as_json(given)} is no mapping from words to labels, and no list of words")
    for text, value in pairs:
        words = " ".join(text) if isinstance(text, tuple) else text
        if not isinstance(words, str) or not words.strip():
            raise ValueError(f"{key}: {as_json(text)} are no words: write them as a text in quotes")
        yield words, value


def _rule(text: str, value: Any, force: bool, kind: RuleKind) -> Rule:
    key = "force" if force else "forbid"
    dependent, below, head = text.partition(_BELOW) if kind == "arcs" else (text, "", "")
    words = tuple(dependent.split())
    given = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(given, list | tuple) or not all(isinstance(label, str) for label in given):
        raise ValueError(f"{key}: {text}: {as_json(value)} is no label and no list of labels")
    labels = tuple(given)
    if kind == "arcs" and (len(words) != 1 or (below and len(head.split()) != 1)):
        raise ValueError(f"{key}: '{text}': write one word, or DEPENDENT < HEAD")
    if kind == "arcs" and below and labels and not force:
        raise ValueError(f"{key}: '{text}': an arc is forbidden whatever its relation: write it without one")
    if kind == "tags" and force and len(labels) != len(words):
        raise ValueError(f"{key}: '{text}': give a list of {counted(len(words), 'label')}, one a word")
    if kind == "tags" and not labels:
        raise ValueError(f"{key}: '{text}': say which labels: words always get one")
    if kind == "arcs" and not labels and not below:
        raise ValueError(f"{key}: '{text}': say which relations, or write DEPENDENT < HEAD")
    if kind == "spans" and force and len(labels) != 1:
        raise ValueError(f"{key}: '{text}': give it one label")
    return Rule(words, labels, force, head.strip() if below else None)
