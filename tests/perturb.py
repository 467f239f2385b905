"""Predictions made from gold by random mistakes of every kind that scorers treat in their own way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.tree import Tree

_LABELS = ("NP", "VP", "PP", "ADVP", "PRT", "S", "SBAR", "ADJP", "X", "PRN", "NP-TMP", "SQ=1")
_ROLES = (
    "ARG0",
    "ARG1",
    "ARG2",
    "ARGM-TMP",
    "C-ARG0",
    "C-ARG1",
    "C-ARGM-TMP",
    "R-ARG0",
    "R-ARG1",
    "C-R-ARG1",
)
_RELATIONS = ("nsubj", "nsubj:pass", "obj", "obl", "nmod", "nmod:poss", "punct", "advcl", "acl:relcl", "dep")


@dataclass(frozen=True)
class Perturbation:
    """Makes mistakes at `rate`."""

    rng: random.Random
    rate: float

    def __call__(self, sentence: Sentence) -> Sentence:
        """A prediction for every layer that the sentence has."""
        tags, entities, arcs = sentence.tags, sentence.entities, sentence.arcs
        tree, frames = sentence.tree, sentence.frames
        return replace(
            sentence,
            tags=tags and tuple(self._pick(("NN", "VB", ".", ",")) if self._wrong() else tag for tag in tags),
            entities=entities and self.spans(entities, len(sentence), ("PER", "ORG", "LOC")),
            arcs=arcs and self.arcs(arcs),
            tree=tree and self.tree(tree),
            frames=frames if frames is None else self.frames(frames, len(sentence)),
        )

    def spans(self, spans: Sequence[Span], length: int, labels: Sequence[str]) -> tuple[Span, ...]:
        """Spans dropped, relabelled, moved, split in two and added, without overlaps."""
        rng, changed = self.rng, []
        for start, end, label in spans:
            if not self._wrong():
                changed.append(Span(start, end, label))
                continue
            draw = rng.randrange(5)
            if draw == 1:
                changed.append(Span(start, end, self._pick(labels)))
            elif draw == 2:
                changed.append(Span(max(start - 1, 0), min(end + rng.randrange(2), length), label))
            elif draw == 3 and end - start > 1:
                middle = rng.randrange(start + 1, end)
                changed += [
                    Span(start, middle, label),
                    Span(middle, end, f"C-{label}" if len(labels) > 3 else label),
                ]
            elif draw == 4:
                changed.append(Span(start, end, label))
                first = rng.randrange(length)
                changed.append(Span(first, min(first + rng.randint(1, 4), length), self._pick(labels)))
        free: list[Span] = []
        for span in changed:
            if all(span.end <= other.start or other.end <= span.start for other in free):
                free.append(span)
        return tuple(sorted(free))

    def arcs(self, arcs: Arcs) -> Arcs:
        """Words hung elsewhere, the tree still one with a single root."""
        heads = list(arcs.heads)
        for word in range(1, len(heads) + 1):
            if heads[word - 1] and self._wrong():
                new = self.rng.randint(1, len(heads))
                above = new
                while above not in (0, word):
                    above = heads[above - 1]
                if above == 0:
                    heads[word - 1] = new
        relations = (self._pick(_RELATIONS) if self._wrong() else relation for relation in arcs.relations)
        return Arcs(tuple(heads), tuple(relations))

    def tree(self, tree: Tree) -> Tree:
        """Constituents dissolved, doubled, grouped and relabelled, and wrong preterminals."""
        return Tree(tree.label, tuple(part for child in tree.children for part in self._parts(child)))

    def _parts(self, tree: Tree) -> list[Tree]:
        if isinstance(tree.children, str):
            leaf = Tree(self._pick(("NN", ".", "VB")), tree.children) if self._wrong() else tree
            return [Tree(self._pick(_LABELS), (leaf,))] if self._wrong() else [leaf]
        children = [part for child in tree.children for part in self._parts(child)]
        if not self._wrong():
            return [Tree(tree.label, tuple(children))]
        draw = self.rng.randrange(5)
        if draw == 0:
            return children
        if draw == 1:
            return [Tree(tree.label, (Tree(tree.label, tuple(children)),))]
        if draw == 2 and len(children) > 2:
            return [Tree(tree.label, (Tree(self._pick(_LABELS), tuple(children[:2])), *children[2:]))]
        return [Tree(self._pick(_LABELS), tuple(children))]

    def frames(self, frames: Sequence[Frame], length: int) -> tuple[Frame, ...]:
        """Predicates dropped and invented, with wrong arguments, pieces without a beginning among them."""
        kept = [frame for frame in frames if not self._wrong()]
        taken = {frame.predicate for frame in frames}
        changed = [replace(frame, arguments=self.spans(frame.arguments, length, _ROLES)) for frame in kept]
        for predicate in range(length):
            if predicate not in taken and self.rng.random() < self.rate / 8:
                first = self.rng.randrange(length)
                invented = Span(first, min(first + 3, length), self._pick(_ROLES))
                changed.append(Frame(predicate, None, self.spans([invented], length, _ROLES)))
        return tuple(changed)

    def given(self, frames: Sequence[Frame], length: int) -> tuple[Frame, ...]:
        """Wrong arguments for the right predicates."""
        return tuple(
            replace(frame, arguments=self.spans(frame.arguments, length, _ROLES)) for frame in frames
        )

    def _wrong(self) -> bool:
        return self.rng.random() < self.rate

    def _pick(self, choices: Sequence[str]) -> str:
        return self.rng.choice(choices)
