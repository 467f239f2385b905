"""How well running text is split into sentences and words, against treebanks, scored by udtools.

python -m benchmarks.segmentation GOLD.conllu [GOLD.conllu …]

The text of a treebank is put together from its words and paragraphs, as UD does. It is split as `mtl predict`
splits English, one paragraph at a time, and compared with the sentences and words of the treebank by the
evaluator of UD's shared tasks. Words are UD's words; multiword tokens are not compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import udtools.udeval as udeval
from rich.console import Console
from rich.table import Table

from mtl.corpora.raw_text import sentences_of


def main() -> None:
    """Score each file and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("gold", nargs="+", type=Path, help="treebank as CoNLL-U")
    table = Table("treebank", "words in gold", "words F1", "sentences F1")
    for file in parser.parse_args().gold:
        scores = score(file)
        words, sentences = scores["Words"], scores["Sentences"]
        table.add_row(file.stem, str(words.gold_total), f"{100 * words.f1:.2f}", f"{100 * sentences.f1:.2f}")
    Console(width=100).print(table)


def score(gold: Path) -> dict[str, udeval.Score]:
    """The evaluator's scores by name."""
    found = [sentence.words for paragraph in paragraphs(gold) for sentence in sentences_of(paragraph)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "split.conllu"
        path.write_text(as_conllu(found), encoding="utf-8")
        files = (udeval.load_conllu_file(str(each), {}) for each in (gold, path))
        scores: dict[str, udeval.Score] = udeval.evaluate(*files)
        return scores


def paragraphs(gold: Path) -> Iterator[str]:
    """The text of each paragraph of a treebank, with blanks between words that are not joined."""
    text, inside = "", 0
    for line in gold.read_text(encoding="utf-8").splitlines():
        if line.startswith(("# newpar", "# newdoc")) and text.strip():
            yield text.strip()
            text = ""
        if not line or line.startswith("#"):
            continue
        number, form, *rest = line.split("\t")
        first, _, last = number.partition("-")
        if last:
            inside = int(last)
        elif "." in number or int(first) <= inside:
            inside = 0 if number == str(inside) else inside
            continue
        text += form + ("" if "SpaceAfter=No" in rest[-1].split("|") else " ")
    if text.strip():
        yield text.strip()


def as_conllu(sentences: Iterable[Sequence[str]]) -> str:
    """Sentences of words as CoNLL-U; every word but the first depends on the one before it."""
    blocks = []
    for words in sentences:
        rows = []
        for number, word in enumerate(words, start=1):
            head = f"{number - 1}\t{'dep' if number > 1 else 'root'}"
            rows.append(f"{number}\t{word.replace(' ', chr(160))}\t_\t_\t_\t_\t{head}\t_\t_\n")
        blocks.append("".join(rows) + "\n")
    return "".join(blocks)


if __name__ == "__main__":
    main()
