"""`mtl data` and `mtl init`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from mtl.commands.common import print_table, refuse_unused
from mtl.config.arguments import OutFile, OutFolder
from mtl.config.schema import SPLITS, BatchConfig
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.task import Count, Seed

if TYPE_CHECKING:
    from mtl.corpora.at_hand import CorpusFiles, Learner
    from mtl.corpora.folder import Numbers


_NO_FILES: list[str] = []
_NO_IDS: list[Path] = []


def _builder(name: str, what: str) -> Callable[..., None]:
    def build(
        *,
        out: OutFolder,
        source: Path | None = None,
        subset: Literal["small"] | None = None,
        cache: Path = Path(".cache/ewt5"),
        overwrite: bool = False,
    ) -> None:
        from mtl.corpora.ewt5.build import build_ewt, download_ewt5
        from mtl.corpora.folder import refuse_existing

        if source is not None:
            refuse_unused(build, "is for downloads, and --source is read instead: leave it out", cache=cache)
        refuse_existing(out, overwrite)
        source = source or download_ewt5(cache)
        print(f"reading {source}", file=sys.stderr)
        provenance = build_ewt(source, out, name, subset == "small")
        _print_stats(provenance["counts"], out)
        for line in _left_out(provenance, ("dev", "test") if subset else SPLITS):
            print(line)

    build.__doc__ = f"""{what}

    Args:
        out: Folder for train.jsonl, dev.jsonl, test.jsonl and provenance.json.
        source: Folder that holds UD_English-EWT, UNER_English-EWT and propbank-release; by default they are
            downloaded at pinned commits.
        subset: `small`: 2,000 training, 300 dev and 300 test sentences, all from UD's dev and test
            documents. `mtl data select` draws fewer from a corpus.
        cache: Folder for downloads; verified files in it are not downloaded again.
        overwrite: Replace the corpus that the folder holds.
    """
    return build


ewt5 = _builder("ewt5", "Build EWT in five layers from its three upstream repositories.")
ewt10 = _builder(
    "ewt10", "Build EWT in ten layers: those of ewt5, lemmas, features, enhanced dependencies and the text."
)


def _left_out(provenance: Mapping[str, Any], splits: Sequence[str]) -> list[str]:
    """A line for each kind of annotation or input that did not pair, was dropped or is missing."""
    lines = [
        f"UD's {split}: {layer}: {counted(count, 'sentence')} not annotated: {reason}"
        for split in splits
        for layer, reasons in provenance["unpaired_counts"][split].items()
        for reason, count in reasons.items()
    ]
    lines += [
        f"UD's {split}: entities: {count:,} labelled {label} left out"
        for split in splits
        for label, count in provenance["dropped_entities"][split].items()
    ]
    for kind in ("inputs_not_as_pinned", "pinned_inputs_missing"):
        if provenance[kind]:
            lines.append(
                f"{kind.replace('_', ' ')}: {len(provenance[kind])}, the first {provenance[kind][0]}"
            )
    return lines


def toy(
    *,
    out: OutFolder,
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
    from mtl.corpora.folder import corpus_stats
    from mtl.corpora.toy.corpus import write_toy

    write_toy(out, train, dev, test, seed, overwrite)
    _print_stats(corpus_stats(out), out)


def convert(
    *,
    out: OutFolder,
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
    from mtl.corpora.folder import convert_corpus, corpus_stats

    splits = {"train": train, "dev": dev, "test": test}
    converted = convert_corpus(splits, out, format, overwrite)
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
    out: OutFolder,
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
        train: Number of training sentences to draw; default: none. `mtl train` needs train, dev and test:
            draw from all.
        dev: Number of development sentences to draw; default: none.
        test: Number of test sentences to draw; default: none.
        seed: The same seed draws the same sentences.
        overwrite: Replace the corpus that the folder holds, with all of its splits.
    """
    from mtl.corpora.folder import draw_sentences, select_sentences

    given = {"train": train, "dev": dev, "test": test}
    numbers = {split: number for split, number in given.items() if number is not None}
    if bool(ids) == bool(numbers):
        raise InputError("name the sentences by --ids, or say how many to draw: --train=300 --dev=60")
    chosen = (
        draw_sentences(corpus, numbers, out, seed, overwrite)
        if numbers
        else select_sentences(corpus, ids, out, overwrite)
    )
    for name, count in chosen.items():
        print(f"{out / name}.jsonl: {counted(count, 'sentence')}")
    if "train" in chosen and (missing := [split for split in SPLITS if split not in chosen]):
        files = " and ".join(f"{split}.jsonl" for split in missing)
        options = " and ".join(f"--{split}" for split in missing)
        print(f"{out}: no {files}, which 'mtl train' needs in a folder ({options})")


def stats(corpus: Path, json: bool = False) -> None:
    """Count a corpus's sentences, words, and per task the annotated sentences and items.

    Args:
        corpus: Folder with .jsonl files.
        json: Print JSON instead of a table.
    """
    from mtl.corpora.folder import corpus_stats

    numbers = corpus_stats(corpus)
    if json:
        print(dumps(numbers, indent=2))
    else:
        _print_stats(numbers, corpus)


def _print_stats(numbers: dict[str, Numbers], folder: Path) -> None:
    from mtl.corpora.folder import stats_table

    print_table(stats_table(numbers, str(folder)), Console(markup=False, emoji=False))


_REST = """\
encoder: {name: minilm}  # or a folder, or a name on the hub such as bert-base-cased
max_epochs: 30
seed: 1
# pruning: dynamic       # learn which attention heads each task needs
"""


def init(files: list[Path], *, out: OutFile = Path("config.yaml")) -> None:
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


def _configuration(groups: list[CorpusFiles]) -> tuple[str, list[str]]:
    """The text of a configuration for the corpora, and notes on what was found."""
    from mtl.corpora.at_hand import in_several, layers_of, learners
    from mtl.corpora.checks import CorpusCheck, notes_on

    folder = next((group for group in groups if group.is_folder), None)
    shared = None if folder else next((group for group in groups if layers_of(group.format)), None)
    place = None if folder is None else str(Path(folder.paths["train"]).parent)
    corpus = {"path": place} | ({} if shared is None else {"files": _files(shared)})
    tasks: list[str] = []
    notes: list[str] = []
    taken: set[str] = set()
    several = in_several(groups)
    for group in groups:
        found = list(learners(group, taken, several))
        tasks += _comments([_sizes(group)], "  ")
        notes += [*group.notes, *(f"{group.name}: {line}" for line in found if isinstance(line, str))]
        chosen = [learner for learner in found if not isinstance(learner, str)]
        notes += notes_on(CorpusCheck(group.sentences, {learner.name: learner.task for learner in chosen}))
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


def _files(group: CorpusFiles) -> dict[str, Any]:
    """The files of a group, with the keys of `Files`."""
    name, _, options = group.format.partition(":")
    values: dict[str, Any] = {**group.paths, "format": "glue" if name.startswith("glue-") else name}
    pairs = dict(option.split("=") for option in options.split(",") if option)
    if "comment" in pairs:
        values["format"] += f":comment={pairs.pop('comment')}"
    if "roots" in pairs:
        return values | pairs
    return values | ({"columns": {role: int(column) for role, column in pairs.items()}} if pairs else {})


def _task(learner: Learner, group: CorpusFiles | None) -> dict[str, Any]:
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


def _sizes(group: CorpusFiles) -> str:
    sizes = (
        f"{split} {counted(len(part), 'sentence')}, {counted(sum(map(len, part)), 'word')}"
        for split, part in group.sentences.items()
    )
    return f"{group.format}: {'; '.join(sizes)}"


def _annotated(learner: Learner, group: CorpusFiles) -> str:
    train = [sentence for sentence in group.sentences["train"] if learner.task.annotated(sentence)]
    labels = {label for sentence in train for label in learner.task.labels_in(sentence)}
    of_labels = f", {counted(len(labels), 'label')}" if labels else ""
    return f"{learner.layer}: {counted(len(train), 'sentence')} of train{of_labels}"
