"""The sentences of a run: read by format, per task where a task has files of its own, and put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtl.config.schema import CorpusConfig, Files
from mtl.corpora.checks import refuse_shared_files
from mtl.corpora.formats.parallel import pair_of_files
from mtl.corpora.formats.table import described, format_of
from mtl.corpora.merge import merge
from mtl.corpora.readers import files, iterate, no_sentence, read
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.tasks.catalogue import LAYERS, TASKS
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.tasks.translate import Translate
from mtl.tasks.variants import task_of, tasks_of

SPLITS = ("train", "dev", "test")


def corpus_at(place: str | Path, tasks: Sequence[str]) -> CorpusConfig:
    """The corpus that a command is given: a folder of JSON lines, or SOURCE:TARGET for translations.

    SOURCE:TARGET is all three splits: train, dev and test are the same two files.
    """
    if Translate.name not in tasks:
        return CorpusConfig(str(place))
    both = str(place)
    pair_of_files(both)
    files: Any = {Translate.name: Files(both, both, both, "parallel")}
    return replace(CorpusConfig(None), **files)


@dataclass(frozen=True)
class Source:
    """Files, the tasks that read them, and the key of the configuration that names them."""

    files: Files
    tasks: tuple[str, ...]
    key: str

    @property
    def format(self) -> str:
        """The format with its columns and options; `glue` under a task's name has that task's labels."""
        name = f"glue-{self.tasks[0]}" if self._names_its_task else self.files.format
        return described(name, self.files.columns, self.files.roots, self.files.entities)

    @property
    def _names_its_task(self) -> bool:
        return self.files.format == "glue" and self.key == f"corpus.{self.tasks[0]}"


def sources(config: CorpusConfig, tasks: Sequence[str]) -> list[Source]:
    """The files that a configuration names, for the chosen tasks; raises `InputError` if a task has none.

    A task reads its own files if it has any, else `corpus.files` if their format has its layer, else the
    folder. The list has them the other way round: folder, `corpus.files`, files of single tasks. Variants
    read what their task reads. A task that reads words alone takes the sentences of those beside
    it.
    """
    tasks = tasks_of(tasks)
    tasks = tuple(name for name in tasks if TASKS[name].layers) or tasks
    of_tasks = {name: files for name in tasks if (files := config.files_of(name)) is not None}
    rest = tuple(name for name in tasks if name not in of_tasks)
    listed = [Source(files, (name,), f"corpus.{name}") for name, files in of_tasks.items()]
    if config.files is not None:
        layers = _layers_of(Source(config.files, (), "corpus.files"), config.path is None)
        shared = tuple(name for name in rest if set(TASKS[name].layers[:1]) <= set(layers))
        rest = tuple(name for name in rest if name not in shared)
        if shared:
            listed.insert(0, Source(config.files, shared, "corpus.files"))
    if rest:
        if config.path is None:
            raise InputError(
                f"no files for {rest[0]}: use corpus.path or corpus.{rest[0]}.train, .dev and .test"
            )
        folder = Path(config.path)
        if folder.is_file():
            raise InputError(
                f"corpus.path={config.path}: a file, no folder: use the folder of its .jsonl files"
            )
        if not folder.is_dir():
            where = ";" if folder.is_absolute() else f" in {Path.cwd()}; go to the folder that has it, or"
            raise InputError(
                f"corpus.path={config.path}: no such folder{where} make one with "
                f"'mtl data ewt5 --out {config.path}' (--subset=small: 2,600 sentences of it) or "
                f"'mtl data toy --out {config.path}'"
            )
        train, dev, test = (str(folder / f"{split}.jsonl") for split in SPLITS)
        paths = Files(train, dev, test)
        listed.insert(0, Source(paths, rest, "corpus.path"))
    return listed


def _layers_of(source: Source, alone: bool) -> tuple[str, ...]:
    """The layers that files have; `alone`, without a folder beside them, also those of few files."""
    form = format_of(source.format)
    return (*form.layers, *form.sometimes) if alone else form.layers


def load_split(
    config: CorpusConfig,
    tasks: Sequence[str],
    split: str,
    reader: Callable[[Path, str], list[Sentence]] = read,
) -> list[Sentence]:
    """The sentences of one split, with the layers of the chosen tasks as their sources give them.

    `reader` takes a path and a format and gives the sentences.
    """
    parts = [
        [only(sentence, source.tasks) for sentence in reader(_path_of(source, split), source.format)]
        for source in sources(config, tasks)
    ]
    return parts[0] if len(parts) == 1 else merge(parts)


def refuse_shared(config: CorpusConfig, tasks: Sequence[str]) -> None:
    """Raise `InputError` where a folder or pattern of one split holds a file of another split."""
    for source in sources(config, tasks):
        refuse_shared_files(
            {
                split: [(path, files(path, source.format))]
                for split in SPLITS
                if (path := getattr(source.files, split)) is not None
            }
        )


def _path_of(source: Source, split: str) -> Path:
    path = getattr(source.files, split)
    if path is None:
        raise InputError(f"no {split} file for {', '.join(source.tasks)}: set {source.key}.{split}")
    return Path(path)


def corpus_fingerprint(config: CorpusConfig, tasks: Sequence[str], splits: Sequence[str] = SPLITS) -> str:
    """One hash over the content of all files of the splits; folders and globs count by what they hold."""
    return fingerprint(
        file
        for source in sources(config, tasks)
        for split in splits
        if (path := getattr(source.files, split)) is not None
        for file in files(Path(path), source.format)
    )


def corpus_fingerprints(config: CorpusConfig, tasks: Sequence[str]) -> dict[str, str]:
    """The `corpus_fingerprint` of each task's own files, whatever is trained beside it."""
    found: dict[str, str] = {}
    for source in sources(config, tasks):
        digest = corpus_fingerprint(config, source.tasks)
        found |= dict.fromkeys(source.tasks, digest)
    return found


def only(sentence: Sentence, tasks: Sequence[str]) -> Sentence:
    """The sentence with only the layers that `tasks` read."""
    read = {layer for name in tasks_of(tasks) for layer in TASKS[name].layers}
    return sentence.with_layers({layer: None for layer in LAYERS if layer not in read})


def require_layers(sentences: Sequence[Sentence], tasks: Mapping[str, Task], split: str) -> None:
    """Raise `InputError` if a task has nothing to learn from or to be scored on."""
    for name, task in tasks.items():
        if not any(task.annotated(sentence) for sentence in sentences):
            raise _not_annotated(name, split, len(sentences))


def require_first_sentence(
    config: CorpusConfig, name: str, task: Task, split: str, annotated: bool = True
) -> None:
    """Raise `InputError` if a split has no sentence for a task; with `annotated`, no annotated one.

    In JSONL nothing behind that sentence is read, so that faults there are not found.
    """
    [source] = sources(config, (name,))
    path, count = _path_of(source, split), 0
    for sentence in iterate(path, source.format):
        if not annotated or task.annotated(only(sentence, (name,))):
            return
        count += 1
    raise _not_annotated(name, split, count) if count else no_sentence(path, source.format)


def _not_annotated(name: str, split: str, sentences: int) -> InputError:
    return InputError(
        f"no {split} sentence of {sentences} is annotated for {name}: "
        f"leave {name} out of tasks, or give it files of its own (corpus.{task_of(name)})"
    )
