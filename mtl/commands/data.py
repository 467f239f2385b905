"""`mtl data`: make corpora, and count what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.ranges import Count, Seed

if TYPE_CHECKING:
    from mtl.corpora.stats import Numbers

_NO_FILES: list[str] = []
_NO_IDS: list[Path] = []


def _builder(name: str, what: str) -> Callable[..., None]:
    def build(
        *,
        out: Path,
        source: Path | None = None,
        subset: Literal["small"] | None = None,
        cache: Path = Path(".cache/ewt5"),
        overwrite: bool = False,
    ) -> None:
        from mtl.corpora.ewt5.build import build_ewt
        from mtl.corpora.ewt5.download import download_ewt5
        from mtl.corpora.splits import refuse_existing

        refuse_existing(out, overwrite)
        provenance = build_ewt(source or download_ewt5(cache), out, name, subset == "small")
        _print_stats(provenance["counts"], out)
        for line in left_out(provenance):
            print(line)

    build.__doc__ = f"""{what}

    Args:
        out: Folder for train.jsonl, dev.jsonl, test.jsonl and provenance.json.
        source: Folder with the upstream files; by default they are downloaded at pinned commits.
        subset: `small`: 2,000 training, 300 dev and 300 test sentences, all from UD's dev and test documents.
        cache: Folder for downloads; verified files in it are not downloaded again.
        overwrite: Replace the corpus that the folder holds.
    """
    return build


ewt5 = _builder("ewt5", "Build EWT in five layers from its three upstream repositories.")
ewt10 = _builder(
    "ewt10", "Build EWT in ten layers: those of ewt5, lemmas, features, enhanced dependencies and the text."
)


def left_out(provenance: Mapping[str, Any]) -> list[str]:
    """A line for each kind of annotation or input that did not pair, was dropped or is missing."""
    lines = [
        f"UD's {split}: {layer}: {counted(count, 'sentence')} not annotated: {reason}"
        for split, layers in provenance["unpaired_counts"].items()
        for layer, reasons in layers.items()
        for reason, count in reasons.items()
    ]
    lines += [
        f"UD's {split}: entities: {count:,} labelled {label} left out"
        for split, labels in provenance["dropped_entities"].items()
        for label, count in labels.items()
    ]
    for kind in ("inputs_not_as_pinned", "pinned_inputs_missing"):
        if provenance[kind]:
            lines.append(
                f"{kind.replace('_', ' ')}: {len(provenance[kind])}, the first {provenance[kind][0]}"
            )
    return lines


def toy(
    *,
    out: Path,
    train: int = 4000,
    dev: int = 500,
    test: int = 500,
    seed: Seed = 0,
    overwrite: bool = False,
) -> None:
    """Generate a small corpus with all five layers.

    Args:
        out: Folder for train.jsonl, dev.jsonl and test.jsonl.
        train: Number of training sentences.
        dev: Number of development sentences.
        test: Number of test sentences, in which some names do not occur in train.
        seed: The same seed gives the same corpus.
        overwrite: Replace the corpus that the folder holds.
    """
    from mtl.corpora.stats import corpus_stats
    from mtl.corpora.toy.corpus import write_toy

    write_toy(out, train, dev, test, seed, overwrite)
    _print_stats(corpus_stats(out), out)


def convert(
    *,
    out: Path,
    train: list[str] = _NO_FILES,
    dev: list[str] = _NO_FILES,
    test: list[str] = _NO_FILES,
    format: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a corpus of any format as JSON lines, with the layers of several files joined.

    Args:
        out: Folder for train.jsonl, dev.jsonl and test.jsonl.
        train: FORMAT:PATH of training sentences (a file, folder or glob); again for each file that adds
            layers. Columns are named after the format, counted from 1: conll2003:word=2,entity=3:PATH.
        dev: The same for development.
        test: The same for testing.
        format: The format of paths without FORMAT:, with columns if it needs them.
        overwrite: Replace the corpus that the folder holds, with all of its splits.
    """
    from mtl.corpora.convert import convert
    from mtl.corpora.stats import corpus_stats

    splits = {"train": train, "dev": dev, "test": test}
    converted = convert(splits, out, format, overwrite)
    for split, joined in converted.joined.items():
        if len(joined.sources) > 1:
            counts = " + ".join(f"{count:,} of {path}" for path, count in joined.sources)
            print(f"{split}: {counts} make {counted(joined.sentences, 'sentence')}")
        if joined.repeated:
            print(
                f"{split}: {counted(joined.repeated, 'sentence')} with the id of an earlier one: "
                "'mtl data select' needs unique ids"
            )
    for line in converted.notes:
        print(line)
    _print_stats(corpus_stats(out), out)


def select(
    corpus: Path,
    *,
    out: Path,
    ids: list[Path] = _NO_IDS,
    train: Count | None = None,
    dev: Count | None = None,
    test: Count | None = None,
    seed: Seed = 1,
    overwrite: bool = False,
) -> None:
    """Select sentences of a corpus, by their ids or at random.

    Args:
        corpus: Folder with .jsonl files; for ids, all are searched.
        out: Folder for the selected sentences.
        ids: Files of sentence ids, one per line; X.ids becomes X.jsonl.
        train: Number of training sentences to draw.
        dev: Number of development sentences to draw.
        test: Number of test sentences to draw.
        seed: The same seed draws the same sentences.
        overwrite: Replace the corpus that the folder holds, with all of its splits.
    """
    from mtl.corpora.select import draw, select

    given = {"train": train, "dev": dev, "test": test}
    numbers = {split: number for split, number in given.items() if number is not None}
    if bool(ids) == bool(numbers):
        raise InputError("name the sentences by --ids, or say how many to draw: --train=300 --dev=60")
    chosen = draw(corpus, numbers, out, seed, overwrite) if numbers else select(corpus, ids, out, overwrite)
    for name, count in chosen.items():
        print(f"{out / name}.jsonl: {counted(count, 'sentence')}")


def stats(corpus: Path, json: bool = False) -> None:
    """Count a corpus's sentences, words, and per task the annotated sentences and items.

    Args:
        corpus: Folder with .jsonl files.
        json: Print JSON instead of a table.
    """
    from mtl.corpora.stats import corpus_stats

    numbers = corpus_stats(corpus)
    if json:
        print(dumps(numbers, indent=2))
    else:
        _print_stats(numbers, corpus)


def _print_stats(numbers: dict[str, Numbers], folder: Path) -> None:
    from mtl.corpora.stats import stats_table

    Console(markup=False, emoji=False).print(stats_table(numbers, str(folder)))
