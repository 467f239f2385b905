"""EWT-5 and EWT-10: hand-made layers on the English Web Treebank, joined from three open repositories.

Text, words, lemmas, tags, features and dependencies come from UD_English-EWT, entities from UNER_English-EWT,
trees and frames with senses from the PropBank release (whose words are masked). The three pair by document
name, sentence order and word order.

All come from pinned commits of these repositories, verified by git blob ids.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mtl.config.schema import SPLITS
from mtl.corpora.folder import sentence_stats, write_splits
from mtl.corpora.formats.conll2003 import read_conll2003
from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.formats.own_layers import DEPS
from mtl.corpora.formats.phrase_structure import (
    read_conll2012,
    rooted,
    with_words,
    without_functions,
    without_traces,
)
from mtl.errors import InputError
from mtl.files import check_folder_place, fingerprint, sha256
from mtl.tasks.sentence import FEATS, LEMMAS, Sentence
from mtl.workers.collector import without_collector

ENTITY_LABELS = frozenset({"PER", "ORG", "LOC"})
_SKELETONS, _SUFFIX = Path("propbank-release/data/google/ewt"), ".xml.gold_skel"


class JoinedSplit(NamedTuple):
    """A split: its sentences, the ids of unpaired ones by layer and reason, and dropped entities by label."""

    sentences: list[Sentence]
    unpaired: dict[str, dict[str, list[str]]]
    dropped_entities: dict[str, int]


class UpstreamCorpus(NamedTuple):
    """A corpus that is built from the upstream files."""

    name: str
    left_out: frozenset[str] = frozenset()
    """Layers of CoNLL-U that it does not have."""
    texts: bool = True
    """Whether every sentence has its text."""


CORPORA = {
    "ewt5": UpstreamCorpus("EWT-5", frozenset({LEMMAS, FEATS, DEPS}), texts=False),
    "ewt10": UpstreamCorpus("EWT-10"),
}


@without_collector()
def build_ewt(source: Path, out: Path, name: str = "ewt5", small: bool = False) -> dict[str, Any]:
    """Write `train|dev|test.jsonl` and `provenance.json` into `out`; returns the latter's content.

    `name` is a key of `CORPORA`. `source` holds the folders UD_English-EWT, UNER_English-EWT and
    propbank-release. The splits are UD's; with `small`, those of the small subset, from UD's dev and test.
    """
    corpus = CORPORA[name]
    universal = {split: source / "UD_English-EWT" / f"en_ewt-ud-{split}.conllu" for split in SPLITS}
    names = {split: source / "UNER_English-EWT" / f"en_ewt-ud-{split}.iob2" for split in SPLITS}
    skeletons = _skeletons(source)
    for path in [*universal.values(), *names.values()]:
        if not path.is_file():
            raise InputError(f"{path}: no such file; lay the source out as the repositories are")

    joined = {
        split: join_editions(_universal(universal[split], corpus), _entities(names[split]), skeletons)
        for split in SPLITS
    }
    sentences = {split: joined[split].sentences for split in SPLITS}
    if small:
        sentences = small_subset(sentences)
    inputs = _identified([*universal.values(), *names.values(), *skeletons.values()], source)
    pinned = {file.path: file.blob for file in manifest()}
    counts = {split: sentence_stats(sentences[split]) for split in SPLITS}

    def provenance(outputs: Sequence[Path]) -> dict[str, Any]:
        return {
            "corpus": f"{corpus.name}, the small subset" if small else corpus.name,
            "licence": LICENCE,
            "fingerprint": fingerprint(outputs),
            "upstream": UPSTREAM,
            "counts": counts,
            "unpaired_counts": {split: _counted(joined[split].unpaired) for split in SPLITS},
            "unpaired": {split: joined[split].unpaired for split in SPLITS},
            "dropped_entities": {split: joined[split].dropped_entities for split in SPLITS},
            "outputs": {path.name: {"sha256": sha256(path)} for path in outputs},
            "inputs_not_as_pinned": [
                name for name, ids in inputs.items() if pinned.get(name) != ids["git_blob"]
            ],
            "pinned_inputs_missing": [
                name for name in pinned if name not in inputs and "LICENSE" not in name
            ],
            "inputs": inputs,
        }

    outputs = write_splits(out, sentences, provenance)
    return provenance(outputs)


def small_subset(splits: Mapping[str, Sequence[Sentence]]) -> dict[str, list[Sentence]]:
    """The splits of the small subset; `small_subset.txt` lists its sentences by id."""
    by_id = {sentence.id: sentence for sentences in splits.values() for sentence in sentences}
    text = resources.files("mtl.corpora.ewt5").joinpath("small_subset.txt").read_text(encoding="utf-8")
    chosen: dict[str, list[Sentence]] = {split: [] for split in SPLITS}
    for split, name in map(str.split, text.splitlines()):
        if name not in by_id:
            raise InputError(
                f"UD_English-EWT has no sentence '{name}' of the small subset: take the pinned files"
            )
        chosen[split].append(by_id[name])
    return chosen


def join_editions(
    universal: Sequence[Sentence], named: Sequence[Sentence], skeletons: dict[str, Path]
) -> JoinedSplit:
    """UD's sentences, with the layers of the other editions for those whose words pair."""
    unpaired: dict[str, dict[str, list[str]]] = {"entities": {}, "tree and frames": {}}
    dropped: Counter[str] = Counter()
    named_documents = _documents(named)
    sentences: list[Sentence] = []
    for document, ud_sentences in _documents(universal).items():
        ner_sentences = named_documents.get(document, [])
        skeleton_sentences = read_conll2012(skeletons[document]) if document in skeletons else []
        by_words = [sentence.words for sentence in ud_sentences]
        by_tags = [sentence.tags or () for sentence in ud_sentences]
        name_pairs = pair_sentences(by_words, [sentence.words for sentence in ner_sentences])
        skeleton_pairs = pair_sentences(by_tags, [sentence.tags or () for sentence in skeleton_sentences])
        for index, sentence in enumerate(replace(each, document=document) for each in ud_sentences):
            named_as, skeleton = name_pairs[index], skeleton_pairs[index]
            if named_as is not None:
                sentence = _with_entities(sentence, ner_sentences[named_as], dropped)
            else:
                reason = _reason(by_words, [other.words for other in ner_sentences], index)
                unpaired["entities"].setdefault(reason, []).append(sentence.id)
            if skeleton is not None:
                sentence = _with_skeleton(sentence, skeleton_sentences[skeleton])
            else:
                reason = _reason(by_tags, [other.tags or () for other in skeleton_sentences], index)
                unpaired["tree and frames"].setdefault(reason, []).append(sentence.id)
            sentences.append(sentence)
    return JoinedSplit(sentences, unpaired, dict(sorted(dropped.items())))


def _with_entities(sentence: Sentence, named: Sentence, dropped: Counter[str]) -> Sentence:
    entities = named.entities or ()
    dropped.update(entity.label for entity in entities if entity.label not in ENTITY_LABELS)
    kept = tuple([entity for entity in entities if entity.label in ENTITY_LABELS])
    return sentence.with_layers({"entities": kept})


def _with_skeleton(sentence: Sentence, skeleton: Sentence) -> Sentence:
    bare = None if skeleton.tree is None else without_traces(without_functions(skeleton.tree))
    tree = None if bare is None else rooted(with_words(bare, sentence.words))
    return sentence.with_layers({"tree": tree, "frames": skeleton.frames})


def _reason(left: Sequence[Keys], right: Sequence[Keys], index: int) -> str:
    if not right:
        return "document absent"
    if len(left) != len(right):
        return "sentences split or merged"
    if len(left[index]) != len(right[index]):
        return "different number of words"
    return "words shifted" if not corresponds(left[index], right[index]) else "sentences split or merged"


def _counted(unpaired: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, int]]:
    return {
        layer: {reason: len(ids) for reason, ids in reasons.items()} for layer, reasons in unpaired.items()
    }


def _identified(paths: list[Path], source: Path) -> dict[str, dict[str, str]]:
    return {
        path.relative_to(source).as_posix(): {"git_blob": git_blob_id(path), "sha256": sha256(path)}
        for path in sorted(paths)
    }


def _documents(sentences: Sequence[Sentence]) -> dict[str, list[Sentence]]:
    """Sentences by document: UD's ids of sentences are the document's name, a dash and a number."""
    documents: dict[str, list[Sentence]] = defaultdict(list)
    for sentence in sentences:
        documents[sentence.id.rpartition("-")[0]].append(sentence)
    return documents


def _universal(path: Path, corpus: UpstreamCorpus) -> list[Sentence]:
    sentences = read_conllu(path, left_out=corpus.left_out)
    if not corpus.texts:
        return sentences
    return [replace(sentence, text=sentence.text or " ".join(sentence.words)) for sentence in sentences]


def _entities(path: Path) -> list[Sentence]:
    """UNER's columns are word number, word, IOB2 tag, and two about the annotator."""
    return read_conll2003(path, scheme="IOB2", columns={"word": 2, "entity": 3})


def _skeletons(source: Path) -> dict[str, Path]:
    """PropBank's files by UD's name of the document: `answers-X` for `answers/00/X.xml.gold_skel`."""
    folder = source / _SKELETONS
    files = sorted(folder.rglob(f"*{_SUFFIX}"))
    if not files:
        raise InputError(f"{folder}: no *{_SUFFIX} files; put the PropBank release there")
    return {f"{path.relative_to(folder).parts[0]}-{path.name.removesuffix(_SUFFIX)}": path for path in files}


Keys = Sequence[str]


def pair_sentences(left: Sequence[Keys], right: Sequence[Keys]) -> list[int | None]:
    """For each sentence on the left, the index of the one on the right that has the same words, or `None`.

    Keys are the words, or their tags if an edition masks the words. Of all monotone pairings of sentences
    that `corresponds` accepts, the result is the one with the most agreeing keys: where an edition has split
    or merged sentences or words, only these stay unpaired. Two sentences pair only if at least half of their
    keys agree, or if they have the same index in documents with equally many sentences.
    """
    if len(left) == len(right) and all(map(corresponds, left, right)):
        return list(range(len(left)))
    # best[i][j]: agreeing keys (and half a point per pair) of the best pairing of left[i:] and right[j:].
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    even = len(left) == len(right)
    gain = [[_gain(a, b, even and i == j) for j, b in enumerate(right)] for i, a in enumerate(left)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1])
            if gain[i][j]:
                best[i][j] = max(best[i][j], gain[i][j] + best[i + 1][j + 1])
    pairs: list[int | None] = [None] * len(left)
    i = j = 0
    while i < len(left) and j < len(right):
        if gain[i][j] and best[i][j] == gain[i][j] + best[i + 1][j + 1]:
            pairs[i] = j
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def corresponds(left: Keys, right: Keys) -> bool:
    """Whether the words pair one to one: equally many, and not shifted within the sentence.

    Words are shifted (one is split and another joined) if insertions and deletions explain the differing keys
    with at least two edits fewer than changes of keys alone.
    """
    if len(left) != len(right):
        return False
    changed = sum(a != b for a, b in zip(left, right, strict=True))
    return changed < 4 or edit_distance(left, right) > changed - 2


def edit_distance(left: Keys, right: Keys) -> int:
    """The smallest number of insertions, deletions and changes that turn one sequence into the other."""
    above = list(range(len(right) + 1))
    for row, a in enumerate(left, start=1):
        here = [row]
        for column, b in enumerate(right, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (a != b)))
        above = here
    return above[-1]


def _gain(left: Keys, right: Keys, same_place: bool) -> float:
    """What a pair of sentences adds; unless both have the same place, half of their keys must agree."""
    if not corresponds(left, right):
        return 0.0
    agreeing = sum(map(str.__eq__, left, right))
    return agreeing + 0.5 if same_place or 2 * agreeing >= len(left) else 0.0


GITHUB = "https://raw.githubusercontent.com/{repository}/{commit}/{path}"


def download_ewt5(
    folder: Path,
    url: str = GITHUB,
    files: Sequence[UpstreamFile] | None = None,
    retries: int = 3,
    workers: int = 8,
    console: Console | None = None,
) -> Path:
    """Download every file of the manifest that `folder` lacks, and verify all of them; returns `folder`.

    Verified files are kept, so that an interrupted download resumes. A file gets its name only when it is
    complete and verified. `url` is a template of {repository}, {commit} and {path}. Raises `InputError` for a
    file that cannot be fetched or is not the pinned one.
    """
    check_folder_place(folder)
    wanted = manifest() if files is None else list(files)
    missing = [file for file in wanted if not _verified(folder, file)]
    columns = TextColumn("EWT-5 {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it would print two lines for each of a thousand files
    try:
        with Progress(*columns, console=console) as progress, ThreadPoolExecutor(workers) as pool:
            bar = progress.add_task("download", total=len(wanted), completed=len(wanted) - len(missing))
            fetches = {pool.submit(_fetch, folder, url, file, retries): file for file in missing}
            try:
                for fetch in as_completed(fetches):
                    fetch.result()
                    progress.advance(bar)
            except (ValueError, OSError) as error:  # requests' errors are OSErrors
                pool.shutdown(wait=True, cancel_futures=True)
                raise InputError(
                    f"{fetches[fetch].path}: {error}; verified files stay in {folder}: "
                    "run again to resume, or name the files with --source"
                ) from error
    finally:
        logger.setLevel(level)
    return folder


def _verified(folder: Path, file: UpstreamFile) -> bool:
    """Whether the pinned file is there; a file with other content is deleted."""
    path = folder / file.path
    if path.is_file() and git_blob_id(path) != file.blob:
        path.unlink()
    return path.is_file()


def _fetch(folder: Path, url: str, file: UpstreamFile, retries: int) -> None:
    address = url.format(repository=file.repository, commit=file.commit, path=file.path.partition("/")[2])
    # The downloader verifies, since git's ids are not hashes of the content alone.
    registry = {file.path: None}
    store = pooch.create(
        path=folder, base_url="", registry=registry, urls={file.path: address}, retry_if_failed=retries
    )
    store.fetch(file.path, downloader=_VerifiedDownload(file.blob))


class _VerifiedDownload:
    """A pooch downloader that accepts only the content with one git blob id."""

    def __init__(self, blob: str) -> None:
        self.blob = blob

    def __call__(self, url: str, output_file: str, pooch_: pooch.Pooch) -> None:
        try:
            # pooch's own HTTPDownloader leaves the connection open when the download fails
            with requests.get(url, stream=True, timeout=30) as response, Path(output_file).open("wb") as file:
                response.raise_for_status()
                file.writelines(response.iter_content(1 << 16))
        except requests.RequestException as error:
            raise requests.RequestException(f"{url} failed ({type(error).__name__}: {error})") from error
        blob = git_blob_id(Path(output_file))
        if blob != self.blob:
            raise ValueError(f"{url} gave the git blob {blob}, where {self.blob} is pinned")


LICENCE = "CC BY-SA 4.0"

UPSTREAM = {
    "UD_English-EWT": {
        "repository": "UniversalDependencies/UD_English-EWT",
        "commit": "15d613d8447b3478787d4c278730a1e48a945efb",
    },
    "UNER_English-EWT": {
        "repository": "UniversalNER/UNER_English-EWT",
        "commit": "8ed072de2fd24022cc62458997fe96a8fe191ea4",
        # The release drops typed O and OTH spans; this earlier train file, built on here, still has them.
        "commit of en_ewt-ud-train.iob2": "0c7ce0debb13a7d304da656f16309397e8ff36ef",
    },
    "propbank-release": {
        "repository": "propbank/propbank-release",
        "commit": "4abade0b53ce4a181e1d98b3518101c1a44d395a",
    },
}


class UpstreamFile(NamedTuple):
    """An upstream file: its path (the repository's folder, then the path within it) and its git blob id."""

    path: str
    blob: str

    @property
    def repository(self) -> str:
        return UPSTREAM[self.path.partition("/")[0]]["repository"]

    @property
    def commit(self) -> str:
        folder, _, path = self.path.partition("/")
        return UPSTREAM[folder].get(f"commit of {path}", UPSTREAM[folder]["commit"])


def manifest() -> list[UpstreamFile]:
    """All files that the build reads, and their licences."""
    text = resources.files("mtl.corpora.ewt5").joinpath("ewt5_manifest.txt").read_text(encoding="utf-8")
    return [UpstreamFile(path, blob) for blob, _, path in (line.partition(" ") for line in text.splitlines())]


def git_blob_id(path: Path) -> str:
    """The id under which git stores a file's content: sha1 over `blob LENGTH`, a zero byte, the content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
