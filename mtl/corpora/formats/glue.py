"""GLUE's tab-separated files (Wang et al. 2019), and other files of the same form.

Fields are not quoted: MRPC and QNLI hold lone double quotes. Columns are found by the header, which only
CoLA's files (`glue-cola`) lack.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mtl.corpora.formats.lines import controls_in, fault, malformed, name_of, read_lines
from mtl.errors import InputError
from mtl.tasks.catalogue import SENTENCE_TASKS
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import CONTROL, MadeUpId, Sentence

_PAIRS = (
    ("sentence1", "sentence2"),
    ("#1 String", "#2 String"),
    ("question", "sentence"),
    ("question1", "question2"),
)
_SINGLES = ("sentence", "text", "x")
_LABELS = ("gold_label", "label", "Quality", "score", "y", "is_duplicate")
_NO_LABEL = "-"
"""What MNLI and SNLI write if the annotators disagreed."""
NO_LABEL = f"sentence without a label ('{_NO_LABEL}')"


class Columns(NamedTuple):
    """The columns of the sentences and of the label, the number of all columns, and that of header lines."""

    texts: tuple[int, ...]
    label: int
    fields: int
    header: int


def read_glue(path: Path, task: str) -> list[Sentence]:
    """The sentences or pairs of a file, labelled in `task`; words are separated by white space.

    A sentence whose label is `-` (the annotators disagreed) is not annotated and has a note. Control
    characters in the text are left out. Raises `InputError` for a missing column, a sentence without words,
    an unknown label, and a number outside the task's scale.
    """
    lines = read_lines(path)
    if not any(line.strip(" ") for line in lines):
        return []
    columns = _columns(path, lines[0].split("\t"), task)
    sentences = []
    for number, line in enumerate(lines[columns.header :], start=columns.header + 1):
        if not line.strip(" "):
            continue
        fields = line.split("\t")
        if len(fields) != columns.fields:
            raise malformed(
                path,
                number,
                f"{counted(len(fields), 'field')} separated by tabs, where the first line has "
                f"{columns.fields}; write one sentence per line (quotes have no meaning here)",
            )
        parts = [CONTROL.sub("", fields[column]).split() for column in columns.texts]
        if not all(parts):
            raise malformed(path, number, "a sentence without words; take the line out")
        value = _value(path, number, fields[columns.label].strip(), task)
        sentence = Sentence(
            words=tuple(word for part in parts for word in part),
            layers={task: value},
            second=len(parts[0]) if len(parts) == 2 else None,
            id=MadeUpId(f"{task}-{name_of(path)}-{number:06d}"),
            place=f"{path}:{number}",
            notes=((NO_LABEL,) if value is None else ()) + controls_in(*(fields[c] for c in columns.texts)),
        )
        problem = fault(sentence)
        if problem is not None:
            raise malformed(path, number, problem.what)
        sentences.append(sentence)
    return sentences


def _columns(path: Path, header: list[str], task: str) -> Columns:
    """The columns, from the header; raises `InputError` if it lacks what the task reads."""
    names = [name.strip() for name in header]
    sizes = SENTENCE_TASKS[task].sentences
    if (
        task == "cola"
        and len(names) == 4
        and (names[1] in ("0", "1") or not {*_SINGLES, *_LABELS} & {*names})
    ):
        return Columns((3,), 1, 4, 0)  # CoLA: source, label, the author's mark, sentence
    texts: tuple[str, ...] | None = None
    if 2 in sizes:
        texts = next((pair for pair in _PAIRS if set(pair) <= set(names)), None)
    if texts is None and 1 in sizes:
        texts = next(((name,) for name in _SINGLES if name in names), None)
    label = next((name for name in _LABELS if name in names), None)
    if texts is None:
        wanted = [" or ".join(map(" and ".join, _PAIRS))] if 2 in sizes else []
        wanted += [" or ".join(_SINGLES)] if 1 in sizes else []
        what = f"no column of sentences for {task}; name them {', or '.join(wanted)} in the first line, "
        how = " (CoLA's own files have no such line: use glue-cola)" if len(names) == 4 else ""
        raise malformed(path, 1, f"{what}separated by tabs{how}")
    if label is None:
        what = f"no column of labels for {task} ({', '.join(_LABELS)}); GLUE's own test files have none: "
        raise malformed(path, 1, f"{what}use a file with labels")
    for name in (*texts, label):
        if names.count(name) > 1:
            what = f"{names.count(name)} columns are called '{name}'; rename all but one"
            raise malformed(path, 1, what)
    return Columns(tuple(names.index(name) for name in texts), names.index(label), len(names), 1)


def _value(path: Path, line: int, text: str, task: str) -> str | float | None:
    """The label of a line as the task represents it; `None` without one."""
    if text == _NO_LABEL:
        return None
    kind = SENTENCE_TASKS[task]
    value = kind.value_of(text)
    what = kind.fault(value) if text else "it is empty"
    if what is None and isinstance(value, float) and kind.scale is not None:
        low, high = kind.scale
        if not low <= value <= high:
            what = f"{text} is outside {low:g} to {high:g} (use regress for another scale)"
    if what is not None:
        raise malformed(path, line, f"the label of {task}: {what}; fix it, or write - for none")
    return value


def unnamed_task(path: Path) -> list[Sentence]:
    """Raise `InputError` for files of format `glue` without a task."""
    raise InputError(
        f"{path}: format glue does not say which task the labels are of: name the files under corpus.TASK, "
        f"or give the format as glue-TASK ({', '.join(f'glue-{name}' for name in SENTENCE_TASKS)})"
    )
