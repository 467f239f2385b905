"""`mtl init`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtl.config.schema import BatchConfig
from mtl.errors import InputError
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    from mtl.corpora.at_hand import Group, Learner

_REST = """\
encoder: {name: minilm}  # or a folder, or a name on the hub such as bert-base-cased
max_epochs: 30
seed: 1
# pruning: dynamic       # learn which attention heads each task needs
"""


def init(files: list[Path], *, out: Path = Path("config.yaml")) -> None:
    """Read the files of a corpus, and write a configuration for `mtl train`, with comments.

    Args:
        files: Files with train, dev or test in their names, or folders of such files.
        out: File for the configuration; it must not exist yet.
    """
    from mtl.corpora.at_hand import groups_at
    from mtl.files import write_text

    if out.exists():
        raise InputError(f"{out} exists: use another --out")
    text, notes = _configuration(groups_at(files))
    given = " ".join(map(str, files))
    head = [f"Written by mtl init {given}. Train with: mtl train {out}", "All keys: mtl train --help=all"]
    write_text(out, "".join(_comments([*head, *(f"Note: {note}" for note in notes)])) + text)
    for note in notes:
        print(note)
    print(f"wrote {out}; train with: mtl train {out}")


def _comments(lines: list[str], indent: str = "") -> Iterator[str]:
    """Lines as comments of YAML, with blanks for characters in names that do not print."""
    for line in lines:
        shown = "".join(letter if letter.isprintable() else " " for letter in line)
        yield f"{indent}# {shown}\n"


def _configuration(groups: list[Group]) -> tuple[str, list[str]]:
    """The text of a configuration for the corpora, and notes on what was found."""
    from mtl.corpora.at_hand import layers_of, learners
    from mtl.corpora.checks import Look, notes_on

    folder = next((group for group in groups if group.is_folder), None)
    shared = None if folder else next((group for group in groups if layers_of(group.format)), None)
    place = None if folder is None else str(Path(folder.paths["train"]).parent)
    corpus = {"path": place} | ({} if shared is None else {"files": _files(shared)})
    tasks: list[str] = []
    notes: list[str] = []
    taken: set[str] = set()
    for group in groups:
        found = list(learners(group, taken))
        tasks += _comments([_sizes(group)], "  ")
        notes += [*group.notes, *(f"{group.name}: {line}" for line in found if isinstance(line, str))]
        chosen = [learner for learner in found if not isinstance(learner, str)]
        notes += notes_on(Look(group.sentences, {learner.name: learner.task for learner in chosen}))
        for learner in chosen:
            inside = group is folder or (group is shared and learner.layer in layers_of(group.format))
            tasks += _comments([_annotated(learner, group)], "  ")
            tasks.append(f"  {_inline({learner.name: _task(learner, None if inside else group)})}\n")
            taken.add(learner.name)
    if not taken:
        raise InputError(f"no layer that a task can learn: {'; '.join(notes)}")
    parts = [part for group in groups for part in group.sentences.values()]
    longest = max(len(sentence) for part in parts for sentence in part)
    batch = f"batch: {{max_words: {longest}}}  # the longest sentence\n"
    words = batch if longest > BatchConfig.max_words else ""
    return f"corpus: {{{_inline(corpus)}}}\ntasks:\n{''.join(tasks)}{words}{_REST}", notes


def _files(group: Group) -> dict[str, Any]:
    """The files of a group, with the keys of `Files`."""
    name, _, options = group.format.partition(":")
    values: dict[str, Any] = {**group.paths, "format": "glue" if name.startswith("glue-") else name}
    pairs = dict(option.split("=") for option in options.split(",") if option)
    if "roots" in pairs:
        return values | pairs
    return values | ({"columns": {role: int(column) for role, column in pairs.items()}} if pairs else {})


def _task(learner: Learner, group: Group | None) -> dict[str, Any]:
    """A task as a value of `tasks`; `group` has the files that only this task reads."""
    from mtl.tasks.catalogue import KINDS

    values: dict[str, Any] = {} if learner.kind is None else {"kind": learner.kind}
    if learner.kind is not None:
        by_name = group is None or group.format == "jsonl"
        if learner.layer != (learner.name if by_name else KINDS[learner.kind].layers[0]):
            values["layer"] = learner.layer
    return values | ({} if group is None else {"files": _files(group)})


def _inline(values: dict[str, Any]) -> str:
    """A mapping as YAML on one line, without its braces."""
    import yaml

    text = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 30)
    return text.strip().removeprefix("{").removesuffix("}")


def _sizes(group: Group) -> str:
    sizes = (
        f"{split} {counted(len(part), 'sentence')}, {counted(sum(map(len, part)), 'word')}"
        for split, part in group.sentences.items()
    )
    return f"{group.format}: {'; '.join(sizes)}"


def _annotated(learner: Learner, group: Group) -> str:
    train = [sentence for sentence in group.sentences["train"] if learner.task.annotated(sentence)]
    labels = {label for sentence in train for label in learner.task.labels_in(sentence)}
    of_labels = f", {counted(len(labels), 'label')}" if labels else ""
    return f"{learner.layer}: {counted(len(train), 'sentence')} of train{of_labels}"
