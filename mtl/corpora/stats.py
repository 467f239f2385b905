"""The size of a corpus: sentences, words, and for each task the annotated sentences and their items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from mtl.corpora.readers import read
from mtl.corpora.splits import SPLITS, split_files
from mtl.tasks.catalogue import STRUCTURED, TASKS, named_in
from mtl.tasks.sentence import Sentence

Numbers = dict[str, int | dict[str, int]]


def corpus_stats(folder: Path) -> dict[str, Numbers]:
    """The numbers of each split (`*.jsonl` of the folder): sentences, words, and by task a dict of counts.

    A task's dict has `sentences` (annotated ones) and its items: tags; entities; arcs; constituents (all
    nodes above the tags except the root TOP); frames and arguments; labels of whole sentences. Raises
    `InputError` for a folder without `*.jsonl`.
    """
    paths = {path.stem: path for path in split_files(folder)}
    order = [*(split for split in SPLITS if split in paths), *(name for name in paths if name not in SPLITS)]
    return {name: sentence_stats(read(paths[name], "jsonl")) for name in order}


def sentence_stats(sentences: Sequence[Sentence]) -> Numbers:
    """The numbers of one split; `sentences` of a task are those annotated for it.

    Tasks other than the five on words are left out if no sentence is annotated for them.
    """
    numbers: Numbers = {"sentences": len(sentences), "words": sum(map(len, sentences))}
    for name, kind in (TASKS | named_in(sentences)).items():
        if not kind.layers:
            continue  # it reads only words
        task = kind()
        annotated = [sentence for sentence in sentences if task.annotated(sentence)]
        if not annotated and kind not in STRUCTURED:
            continue
        items = Counter(dict.fromkeys(task.items(Sentence(())), 0))
        for sentence in annotated:
            items.update(task.items(sentence))
        numbers[f"layer {name}" if name in numbers else name] = {"sentences": len(annotated), **items}
    return numbers


def stats_table(stats: dict[str, Numbers], title: str) -> Table:
    """The numbers as a table, with a row per split, task and item."""
    table = Table("split", "task", title=title)
    for column in ("sentences", "items"):
        table.add_column(column, justify="right")
    table.add_column("of")
    for split, numbers in stats.items():
        table.add_section()
        table.add_row(split, "", f"{numbers['sentences']:,}", f"{numbers['words']:,}", "words")
        for task, counts in numbers.items():
            if isinstance(counts, dict):
                for item in (item for item in counts if item != "sentences"):
                    table.add_row("", task, f"{counts['sentences']:,}", f"{counts[item]:,}", item)
    return table
