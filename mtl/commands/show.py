"""`mtl show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtl.commands.common import Accelerator, print_table, refuse_unused
from mtl.config.arguments import OutFile
from mtl.config.schema import Split
from mtl.errors import InputError, as_input_error
from mtl.tasks.in_words import counted
from mtl.tasks.task import Share, Some

if TYPE_CHECKING:
    from mtl.analysis.show import Known, TitledSentences
    from mtl.probes.figures.attention import ShownAttention
    from mtl.probes.measures.attention import AttentionMatrix


_WIDE = 10_000
"""The width of a terminal, in columns, on which a matrix of any sentence fits."""
_TABLES: tuple[Literal["csv", "parquet"], ...] = ("csv", "parquet")
_RELATIONS = 5
"""The number of a head's best relations that are printed."""


def show(
    target: str,
    head: str,
    *,
    sentence: str | None = None,
    translation: str | None = None,
    language: str = "en",
    corpus: Path | None = None,
    split: Split = "test",
    sentences: Some = 500,
    task: str | None = None,
    relation: str | None = None,
    id: str | None = None,
    examples: Some = 3,
    matrix: bool = False,
    least: Share = 0.1,
    output: OutFile | None = None,
    masks: bool = True,
    final_special: bool = False,
    accelerator: Accelerator = "auto",
    revision: str | None = None,
) -> None:
    """Show what one attention head does, on a sentence or on examples of its best relation.

    Attention is from word to word, as probes measure it. Without --sentence, the head is measured on a
    corpus: its best relations with their chance levels, and the sentences with the arcs that it hits and
    misses most surely.

    A decoder's heads and those of cross attention are shown on --sentence and its translation, from subword
    to subword: a row is the subword that is predicted.

    Args:
        target: The folder of a run or of a saved model, an encoder ('minilm' or a folder), or the name of a
            model or encoder on the hub.
        head: The head by its name, such as L2H0 or "cross L2H0".
        sentence: Running text to show the head on, instead of a corpus.
        translation: Translation of the sentence, for a decoder's heads and those of cross attention; default:
            the model's own.
        language: Language of that text, as in mtl predict.
        corpus: Folder with .jsonl files; default: the run's own corpus.
        split: Split of the corpus.
        sentences: The largest number of sentences to read, spread evenly over the split.
        task: The task whose arcs and mask are used; default: that of the best relation.
        relation: The label of the arcs, such as nsubj; default: the one that is furthest above chance.
        id: Show this sentence of the corpus, by its id, instead of examples.
        examples: The largest number of hits to show, and of misses.
        matrix: Show all weights as a table, and not only the most attended word.
        least: Attention below this share is drawn without an arc.
        output: File for a picture (.png, .svg or .pdf), or for all weights (.csv or .parquet).
        masks: Whether a run's head masks are applied.
        final_special: Whether the final special token can be the most attended word.
        accelerator: Device; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model or an encoder on the hub.
    """
    from mtl.analysis.show import OpenHead, TitledSentences, arc_examples, sentence_of
    from mtl.commands.common import corpus_in_folder, sentence_progress

    if sentence is None:
        refuse_unused(show, "is that of --sentence: add it", translation=translation, language=language)
    else:
        refuse_unused(
            show, "is for sentences of a corpus: leave it out, or --sentence", corpus=corpus, split=split,
            sentences=sentences, relation=relation, id=id, examples=examples, final_special=final_special,
        )  # fmt: skip
        if not masks:
            refuse_unused(show, "chooses a mask: leave it out, or --masks=false", task=task)
    if id is not None:
        refuse_unused(show, "has no effect with --id: leave out one of them", examples=examples)
    kind = None if output is None else _kind(output)
    if matrix or kind in (None, *_TABLES):
        refuse_unused(
            show, "is for pictures of arcs (--output=FILE.svg, no --matrix): leave it out", least=least
        )
    console = Console(markup=False, emoji=False)
    opened = OpenHead(target, head, accelerator, revision)
    if opened.writes:
        refuse_unused(
            show, f"has no effect on {head}, which is drawn without arcs: leave it out", least=least
        )
    if sentence is not None:
        parts = [TitledSentences("", opened.on_text(sentence, language, task, masks, translation))]
    else:
        known = opened.on_corpus(
            corpus_in_folder(corpus), split, sentences=sentences, task=task, relation=relation, masks=masks,
            final_special=final_special, progress=sentence_progress,
        )  # fmt: skip
        _print_relations(known, console)
        if id is None:
            parts = arc_examples(known, examples)
        else:
            parts = [TitledSentences("", [sentence_of(known, id, sentences)])]
    for part in parts:
        for each in part.shown:
            _print(part, each, matrix, console)
    if output is not None:
        _write([each for part in parts for each in part.shown], output, matrix, least, console)


def _print_relations(known: Known, console: Console) -> None:
    """Print the relation that the head is known for, and its best relations."""
    from mtl.probes.tables.heads_table import per_cent

    head, relation = known
    relations = head.relations()
    size = counted(len(head.corpus.sentences), "sentence")
    shown = Table(title=f"{head.head.name} on {size}: arcs that it connects, in %")
    for title in ("task", "relation"):
        shown.add_column(title)
    for title in ("count", "hit", "chance", "from dependent", "from head"):
        shown.add_column(title, justify="right")
    for each in dict.fromkeys([relation, *relations[:_RELATIONS]]):
        shares = map(per_cent, (each.value, each.chance, each.to_head, each.to_dependent))
        shown.add_row(each.task, each.label + ("" if each.counted else " *"), f"{each.count:,}", *shares)
    print_table(shown, console)
    if not all(each.counted for each in (relation, *relations[:_RELATIONS])):
        console.print("* root, or fewer than 30 items: little can be said", highlight=False, soft_wrap=True)
    below = "" if relation.value > relation.chance else ", in which the head is not above chance"
    console.print(f"shown: {relation.label} ({relation.task}){below}\n", highlight=False, soft_wrap=True)


def _kind(output: Path) -> str:
    """The file's suffix without its dot; raises `InputError` unless a picture or a table ends in it."""
    from mtl.probes.figures.style import FORMATS

    kind = output.suffix.lower().removeprefix(".")
    if kind not in (*FORMATS, *_TABLES):
        raise InputError(f"{output}: use a file that ends in .{', .'.join((*FORMATS, *_TABLES))}")
    return kind


def _print(
    part: TitledSentences, each: ShownAttention | AttentionMatrix, matrix: bool, console: Console
) -> None:
    from mtl.probes.measures.attention import AttentionMatrix

    if isinstance(each, AttentionMatrix):
        table = _matrix_of_texts(each) if matrix else _attended_texts(each)
    else:
        title = ", ".join(filter(None, (each.head, part.title, each.sentence.id)))
        table = _matrix(each, title) if matrix else _attended(each, title)
    table.title_justify = "left"
    if matrix:
        console.print(table, width=_WIDE, crop=False)
    else:
        print_table(table, console)


def _attended(each: ShownAttention, title: str) -> Table:
    """A row per word: the word that it attends to most, and its arcs of the relation."""
    shown = Table(title=Text(title))
    specials = [(column, name) for column, name in ((0, each.special[0]), (-1, each.special[1])) if name]
    for name in ("word", "attends most to"):
        shown.add_column(name)
    for name in ("%", *(f"{name} %" for _, name in specials)):
        shown.add_column(Text(name), justify="right")
    if each.gold:
        shown.add_column("arcs")
    for query in range(0 if each.special[0] else 1, len(each.sentence) + 1):
        most = each.most(query)
        row = [_text(each.columns[query]), _text(each.columns[most]), _per_cent(each.weights[query, most])]
        row += [_per_cent(each.weights[query, column]) for column, _ in specials]
        if each.gold:
            row.append(_text(each.said_of_gold(query - 1) if query else ""))
        shown.add_row(*row)
    return shown


def _matrix(each: ShownAttention, title: str) -> Table:
    """All weights in per cent: rows attend to columns, which are named by the numbers of words."""
    shown = Table(title=Text(f"{title}, in %"), box=None, padding=(0, 1, 0, 0))
    shown.add_column("")
    there = [column for column, name in enumerate(each.columns) if name]
    for column in there:
        special = column in (0, len(each.columns) - 1)
        shown.add_column(_text(each.columns[column]) if special else str(column), justify="right")
    for query in (column for column in there if column < len(each.columns) - 1):
        name = Text.assemble(f"{query} " if query else "", _text(each.columns[query]))
        shown.add_row(name, *(_per_cent(each.weights[query, to]) for to in there))
    return shown


def _attended_texts(each: AttentionMatrix) -> Table:
    """A row per subword: the one that it attends to most."""
    shown = Table(title=Text(each.title))
    for name in ("predicts", "attends most to"):
        shown.add_column(name)
    shown.add_column("%", justify="right")
    for row, weights in zip(each.rows, each.weights, strict=True):
        most = int(weights.argmax())
        shown.add_row(_text(row), _text(each.columns[most]), _per_cent(weights[most]))
    return shown


def _matrix_of_texts(each: AttentionMatrix) -> Table:
    """All weights in per cent: rows attend to columns."""
    shown = Table(title=Text(f"{each.title}, in %"), box=None, padding=(0, 1, 0, 0))
    shown.add_column("")
    for text in each.columns:
        shown.add_column(_text(text), justify="right")
    for row, weights in zip(each.rows, each.weights, strict=True):
        shown.add_row(_text(row), *map(_per_cent, weights))
    return shown


def _per_cent(weight: float) -> Text:
    return Text(f"{100 * weight:.0f}")


def _text(text: str) -> Text:
    """A word for a terminal, without control characters, which a terminal would obey."""
    from mtl.corpora.annotated_text import visible

    return Text(visible(text))


def _write(
    shown: Sequence[ShownAttention | AttentionMatrix],
    output: Path,
    matrix: bool,
    least: float,
    console: Console,
) -> None:
    """Write a picture, or a table of all weights, by the file's suffix."""
    from mtl.files import whole_file
    from mtl.probes.figures.attention import attention_figure
    from mtl.probes.measures.attention import AttentionMatrix, attention_table
    from mtl.probes.tables.table_files import write_table_file
    from mtl.runs.figures.drawn import FigureWithTables, save

    kind = next((each for each in _TABLES if each == _kind(output)), None)
    if kind is not None:
        matrices = [each if isinstance(each, AttentionMatrix) else each.matrix() for each in shown]
        with whole_file(output) as path:
            write_table_file(attention_table(matrices), path, kind)
    else:
        with as_input_error():
            figure = attention_figure(shown, "matrix" if matrix else "arcs", least)
            save(FigureWithTables(figure), output, tables=False)
    console.print(f"wrote {output}", highlight=False, soft_wrap=True)
