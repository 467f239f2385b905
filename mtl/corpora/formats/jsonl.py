"""Our own format, JSON lines: one sentence per line, `null` for a layer that is not annotated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtl.corpora.formats.columns import cell
from mtl.corpora.formats.lines import (
    NO_HEAD,
    fault,
    is_blank,
    iterate_lines,
    label_fault,
    malformed,
    second_fault,
)
from mtl.corpora.formats.phrase_structure import (
    DEEPEST,
    IN_BRACKETS,
    label_from_brackets,
    parse_tree,
    to_brackets,
    with_words,
)
from mtl.errors import did_you_mean
from mtl.files import write_text
from mtl.tasks.catalogue import SENTENCE_TASKS, TASKS
from mtl.tasks.in_words import as_json, counted
from mtl.tasks.rules import UNKEPT
from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, MadeUpId, Sentence, Span, is_label
from mtl.tasks.tree import Tree
from mtl.workers.collector import without_collector

if TYPE_CHECKING:  # it imports torch
    from mtl.tasks.decoders.decoder import Item

_MADE_UP = "id_made_up"
"""The key that says, by `true`, that the program made the id (`MadeUpId`)."""
_SKIPPED = "skipped"
"""The key with the reason why `mtl predict` did not annotate a line; the record may be without words."""
_OFFSETS, _PROBABILITIES = "offsets", "probabilities"
_UNKEPT = "unkept"
"""The key of the rules that an annotation could not keep."""
_ADDED = (_OFFSETS, _PROBABILITIES, _SKIPPED, _UNKEPT)
"""The keys of annotated sentences that are no part of a sentence."""
SKIPPED = "sentence that 'mtl predict' skipped"
"""The note of a sentence that was written without annotation."""
_C1_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that terminals obey, but `json` does not escape."""


def write_jsonl(path: Path, sentences: Iterable[Sentence]) -> None:
    """Write sentences, one per line; the file appears whole or not at all."""
    write_text(path, "".join(f"{to_line(sentence)}\n" for sentence in sentences))


def read_jsonl(path: Path) -> list[Sentence]:
    """Read sentences; raises `InputError` with the line and what is wrong. A missing layer counts as `null`.

    Records without words, which `mtl predict` writes for lines without a sentence, are left out.
    """
    with without_collector():
        return list(iterate_jsonl(path))


def iterate_jsonl(path: Path) -> Iterator[Sentence]:
    """The sentences of `read_jsonl`, each read and parsed only when it is asked for."""
    for number, line in enumerate(iterate_lines(path), start=1):
        if not is_blank(line):
            try:
                record = parsed_json(line)
                if isinstance(record, dict) and record.get(_SKIPPED) and record.get("words") == []:
                    continue
                sentence = from_json(record, f"{path}:{number}")
            except json.JSONDecodeError as error:
                how = "" if path.suffix.startswith(".json") else "if the file has another format, name it; "
                what = f"not JSON ({error.msg} at column {error.colno}); {how}write one object per line"
                raise malformed(path, number, what) from error
            except RecursionError as error:
                raise malformed(
                    path, number, "brackets nested too deeply; write one object per line"
                ) from error
            except (ValueError, TypeError, KeyError) as error:
                raise malformed(path, number, str(error)) from error
            yield sentence


def parsed_json(text: str | bytes) -> Any:
    """The value of a line of JSON; raises `ValueError`, `json.JSONDecodeError` and `RecursionError`.

    Refuses what `json` accepts in silence: a key that occurs twice in an object.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (json.JSONDecodeError, UnicodeDecodeError, _Twice):
        raise
    except ValueError as error:  # the only other one is Python's limit, whose message is for programmers
        digits = counted(sys.get_int_max_str_digits(), "digit")
        raise ValueError(f"a number of more than {digits}; fix it") from error


def to_line(
    sentence: Sentence, skipped: str | None = None, offsets: Sequence[tuple[int, int]] | None = None
) -> str:
    """A sentence as its line, without the line's end; `skipped` says why it was not annotated."""
    record = to_json(sentence, offsets) | ({} if skipped is None else {_SKIPPED: skipped})
    return json.dumps(record, ensure_ascii=False).translate(_C1_CONTROLS)


def to_json(
    sentence: Sentence,
    offsets: Sequence[tuple[int, int]] | None = None,
    items: Mapping[str, Sequence[Item]] | None = None,
) -> dict[str, Any]:
    """A sentence as the object of its line.

    If they are given, it has the `offsets` of its words in a longer text, and `probabilities`: by task, the
    most probable values as a list of `{kind, start, end, best}`, with `predicate` if an item has one. Rules
    that the annotation does not keep are in `unkept`.
    """
    others = {name: value for name, value in sorted(sentence.layers.items()) if name not in OWN_KEYS}
    labels = {name: value for name, value in others.items() if is_label(value)}
    layers = {name: layer_to_json(value) for name, value in others.items() if name not in labels}
    unkept = [note for note in sentence.notes if note.startswith(UNKEPT)]
    return {
        "id": sentence.id,
        # Only if it is known, as for text that this program has split into words.
        **({} if not sentence.text else {"text": sentence.text}),
        "words": sentence.words,
        **{layer: layer_to_json(sentence.layer(layer)) for layer in OWN_KEYS},
        **({"labels": labels} if labels else {}),
        **({"layers": layers} if layers else {}),
        **({} if sentence.second is None else {"second": sentence.second}),
        **({"document": sentence.document} if sentence.document else {}),
        **({_MADE_UP: True} if isinstance(sentence.id, MadeUpId) else {}),
        **({} if offsets is None else {_OFFSETS: offsets}),
        **({} if items is None else {_PROBABILITIES: _of_items(items)}),
        **({_UNKEPT: unkept} if unkept else {}),
    }


def _of_items(items: Mapping[str, Sequence[Item]]) -> dict[str, Any]:
    return {
        task: [{key: value for key, value in item._asdict().items() if value is not None} for item in of_task]
        for task, of_task in items.items()
    }


def layer_to_json(value: Any) -> Any:
    """A layer as JSON; the shape of the value tells the type of the layer."""
    if isinstance(value, Arcs):
        return {"heads": value.heads, "relations": value.relations}
    if isinstance(value, Graph):
        return {"arcs": value.arcs}
    if isinstance(value, Tree):
        return to_brackets(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Frame):
        return [
            {"predicate": frame.predicate, "sense": frame.sense, "arguments": frame.arguments}
            for frame in value
        ]
    return value


def layer_from_json(value: Any, words: tuple[str, ...], name: str) -> Any:
    """The layer that `layer_to_json` wrote as `value`; raises `ValueError` if it does not fit the words."""
    if isinstance(value, str):
        return tree_from(value, words, name)
    if isinstance(value, dict):
        return _graph(value, words, name) if value.keys() == {"arcs"} else _arcs(value, words, name)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return _strings(value, words, name)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return frames_from(value, words, name)
    return _spans(value, words, name)


def from_json(record: Any, place: str = "") -> Sentence:
    """The sentence of one line's object; raises `ValueError` saying which key is wrong and how.

    What `to_json` adds to a sentence (offsets and probabilities) is left out.
    """
    if not isinstance(record, dict):
        raise ValueError("not an object; write one sentence per line as {...}")
    if not record.keys() <= {*_KEYS, *_ADDED}:
        unknown = next(key for key in record if key not in (*_KEYS, *_ADDED))
        raise ValueError(f"unknown key {unknown!r}; the keys are {', '.join(_KEYS)}")
    words = _strings(record.get("words") or [], None, "words")
    labels = _by_name(record, "labels", _label, words)
    if not words and not any(isinstance(labels[name], str) for name in labels.keys() - SENTENCE_TASKS.keys()):
        raise ValueError("'words' is missing or empty")
    name, document = record.get("id", ""), record.get("document", "")
    if not isinstance(name, str) or not isinstance(document, str):
        raise ValueError(f"'{'document' if isinstance(name, str) else 'id'}' must be a string")
    if type(made_up := record.get(_MADE_UP, False)) is not bool:
        raise ValueError(f"'{_MADE_UP}' must be true or false")
    text = record.get("text", "")
    if not isinstance(text, str) or (text and letters(text) != letters("".join(words))):
        raise ValueError("'text' must be a string that 'words' spell, apart from white space")
    own = {
        key: read(record[key], words, key) for key, read in OWN_KEYS.items() if record.get(key) is not None
    }
    layers = _by_name(record, "layers", _layer, words)
    both = next(iter(labels.keys() & layers.keys()), None)
    if both is not None:
        raise ValueError(f"'layers' has '{both}', which 'labels' also has; rename one")
    second = record.get("second")
    if message := second_fault(second, len(words)):
        raise ValueError(message)
    headless = sum(
        value.heads.count(None) for value in (*own.values(), *layers.values()) if isinstance(value, Arcs)
    )
    sentence = Sentence(
        words,
        {**own, **labels, **layers},
        second=second,
        id=MadeUpId(name) if made_up else name,
        text=text,
        place=place,
        document=document,
        notes=((SKIPPED,) if _SKIPPED in record else ()) + _misspelt(labels) + (NO_HEAD,) * headless,
    )
    problem = fault(sentence)
    if problem is not None:
        raise ValueError(problem.what)
    return sentence


def letters(text: str) -> str:
    """A text without its white space."""
    return "".join(text.split())


class _Twice(ValueError):
    """A key occurs twice in an object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises `_Twice` if a key occurs twice, where `json` would take the last value."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Twice(f"the key {twice!r} occurs twice in one object; write it once")
    return record


def _strings(values: Any, words: tuple[str, ...] | None, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"'{name}' must be a list of strings")
    if words is not None and len(values) != len(words):
        raise ValueError(
            f"'{name}' has {counted(len(values), 'entry', 'entries')} for {counted(len(words), 'word')}"
        )
    return tuple(values)


def _spans(values: Any, words: tuple[str, ...], name: str) -> tuple[Span, ...]:
    if not isinstance(values, list):
        raise ValueError(f"'{name}' must be a list of [start, end, label]")
    spans = []
    for value in values:
        if not isinstance(value, list) or len(value) != 3 or type(value[2]) is not str:
            raise ValueError(f"'{name}' holds {as_json(value)}; a span is [start, end, label]")
        start, end, label = value
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(words):
            raise ValueError(
                f"'{name}' holds {as_json(value)}; start and end must satisfy "
                f"0 <= start < end <= {len(words)}"
            )
        spans.append(Span(start, end, label))
    return tuple(spans)


def _arcs(value: Any, words: tuple[str, ...], name: str) -> Arcs:
    if not isinstance(value, dict) or value.keys() != {"heads", "relations"}:
        raise ValueError(f"'{name}' must be an object with 'heads' and 'relations'")
    heads, relations = value["heads"], _strings(value["relations"], words, "relations")
    if not isinstance(heads, list) or len(heads) != len(words):
        raise ValueError(f"'{name}' must have a head and a relation for each word: {len(words)} of both")
    if not all(head is None or (type(head) is int and 0 <= head <= len(words)) for head in heads):
        raise ValueError(f"'{name}' has a head that is not 0 (the root) to {len(words)}, or null")
    return Arcs(tuple(heads), relations)


def _graph(value: dict[str, Any], words: tuple[str, ...], name: str) -> Graph:
    if not isinstance(value["arcs"], list):
        raise ValueError(f"'{name}': the 'arcs' of a graph must be a list of [dependent, head, label]")
    arcs = []
    for arc in value["arcs"]:
        if not isinstance(arc, list) or list(map(type, arc)) != [int, int, str]:
            raise ValueError(f"'{name}' holds {as_json(arc)}; an arc is [dependent, head, label]")
        if not 0 < arc[0] <= len(words) or not 0 <= arc[1] <= len(words):
            raise ValueError(f"'{name}' holds {as_json(arc)}; words are 1 to {len(words)}, and the root is 0")
        arcs.append(Arc(*arc))
    return Graph(tuple(arcs))


def tree_from(value: Any, words: tuple[str, ...], name: str = "tree") -> Tree:
    """The tree that `to_brackets` wrote, over the words of its sentence; raises `ValueError` for others."""
    if not isinstance(value, str):
        raise ValueError(f"'{name}' must be a string in bracket notation")
    try:
        # A decoder's tree may have a level per word, and several constituents over the same words.
        tree = parse_tree(value, DEEPEST + 8 * len(words))
        if "%" in value:
            tree = tree.fold(
                lambda node, children: Tree(
                    label_from_brackets(node.label), node.children if node.is_preterminal else tuple(children)
                )
            )
        leaves = [leaf.children for leaf in tree.leaves() if isinstance(leaf.children, str)]
        if tuple(leaves) == words:
            return tree
        # A word with white space or brackets is written differently in bracket notation.
        tree = with_words(tree, words)
    except ValueError as error:
        raise ValueError(f"'{name}': {error}") from error
    for leaf, word in zip(leaves, words, strict=True):
        if _escaped(leaf) != _escaped(word):
            raise ValueError(f"'{name}' has the word {leaf!r} where the sentence has {word!r}")
    return tree


def frames_from(values: Any, words: tuple[str, ...], name: str = "frames") -> tuple[Frame, ...]:
    """The frames that `to_json` wrote; raises `ValueError` if they are not frames of these words."""
    if not isinstance(values, list):
        raise ValueError(f"'{name}' must be a list of objects")
    frames = []
    for value in values:
        if not isinstance(value, dict) or value.keys() != {"predicate", "sense", "arguments"}:
            raise ValueError(f"each of '{name}' must be an object with 'predicate', 'sense' and 'arguments'")
        predicate, sense = value["predicate"], value["sense"]
        if type(predicate) is not int or not 0 <= predicate < len(words):
            raise ValueError(
                f"'{name}' has the predicate {as_json(predicate)}; it must be 0 to {len(words) - 1}"
            )
        if sense is not None and not isinstance(sense, str):
            raise ValueError(f"'{name}' has the sense {as_json(sense)}; it must be a string or null")
        frames.append(Frame(predicate, sense, _spans(value["arguments"], words, "arguments")))
    return tuple(frames)


def _by_name(record: dict[str, Any], key: str, read: _Reader, words: tuple[str, ...]) -> dict[str, Any]:
    """Labels, or layers, under names of their own."""
    values = record.get(key)
    if values is None:
        return {}
    if not isinstance(values, dict) or (key == "labels" and not values):
        raise ValueError(f"'{key}' must be an object, with a value per name")
    for name in values:
        if not name:
            raise ValueError(f"'{key}' has a value without a name; give it one")
        if name in OWN_KEYS:
            raise ValueError(f"'{key}' has '{name}', which is a key of its own; use another name")
    return {name: read(value, words, name) for name, value in values.items()}


def _layer(value: Any, words: tuple[str, ...], name: str) -> Any:
    return None if value is None else layer_from_json(value, words, name)


def _label(value: Any, words: tuple[str, ...], name: str) -> str | float:
    wrong = label_fault(name, value)
    if wrong is not None:
        raise ValueError(f"the label of {name}: {wrong}")
    label: str | float = value
    return label


def _misspelt(labels: Iterable[str]) -> tuple[str, ...]:
    """A note on each label whose name is nearly that of a task that comes with the program."""
    meant = {name: did_you_mean(name, SENTENCE_TASKS, "") for name in sorted(labels) if name not in TASKS}
    return tuple(f"sentence with a label of '{name}'{hint}" for name, hint in meant.items() if hint)


def _escaped(word: str) -> str:
    """A word as bracket notation writes it, without the `_` for white space at its ends."""
    return cell(word).translate(IN_BRACKETS).strip("_")


_Reader = Callable[[Any, tuple[str, ...], str], Any]
OWN_KEYS: Mapping[str, _Reader] = {
    "upos": _strings, "tags": _strings, "entities": _spans, "arcs": _arcs, "tree": tree_from,
    "frames": frames_from,
}  # fmt: skip
"""The layers that are keys of a record, each with the function that reads its value."""
_KEYS = ("id", "text", "words", *OWN_KEYS, "labels", "layers", "second", "document", _MADE_UP)
