"""`mtl probe`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import polars as pl
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mtl.errors import InputError

if TYPE_CHECKING:
    from mtl.config import CorpusConfig
    from mtl.encoder import Encoder
    from mtl.model import JointModel


def probe(
    target: str,
    corpus: Path | None = None,
    split: Literal["train", "dev", "test"] = "test",
    out: Path | None = None,
    masks: bool = True,
    centroids: Literal["self", "train"] = "self",
    final_special: bool = False,
    markdown: Path | None = None,
) -> None:
    """Measure what each attention head is good at, and write heads.parquet.

    Args:
        target: A run's folder, or an encoder: 'minilm', a folder or a name on the hub.
        corpus: Folder with .jsonl files; default: the run's own corpus.
        split: Which split of the corpus.
        out: Folder for heads.parquet; default: the run's folder.
        masks: Whether a run's head masks are applied; a task with a mask of its own is probed under that.
        centroids: Where centroids of clusters (and word frequencies) come from: the split that is scored, as
            in the paper, which flatters rare labels, or the training split.
        final_special: Whether the final special token competes for the most attended word.
        markdown: File for the printed summary as Markdown.
    """
    import torch

    from mtl.corpora.fingerprint import fingerprint
    from mtl.data import load_split
    from mtl.files import write_text
    from mtl.probing import Mask, Probed, masks_of
    from mtl.probing import probe as measure
    from mtl.run import git_revision, versions
    from probes import table

    model, encoder, source, folder = _opened(target, corpus, out)
    tasks = _tasks_with_files(source)
    sentences = load_split(source, tasks, split)
    fitted = load_split(source, tasks, "train") if centroids == "train" and split != "train" else None
    probed = Probed.index(sentences, fitted, "self" if centroids == "self" else "train")
    annotated = tuple(probed.items)
    chosen = masks_of(model, annotated) if model is not None and masks else [Mask("", annotated, None)]
    if not chosen:
        raise InputError(f"{split} has no annotation for the tasks of the run's masks; give another --corpus")
    under = {name for mask in chosen for name in mask.tasks}
    console = Console()
    for name in [name for name in tasks if name not in under]:
        reason = (
            "no mask of its own" if name in annotated else f"no {split} sentence with an annotation of it"
        )
        console.print(f"not probed: {name}: {reason}", highlight=False, soft_wrap=True)

    encoder.to("cuda" if torch.cuda.is_available() else "cpu")
    with Progress(console=Console(stderr=True)) as progress:
        total = len(chosen) * (len(sentences) + len(fitted or ()))
        bar = progress.add_task("sentences", total=total)
        measured = [
            measure(
                encoder,
                probed,
                mask,
                final_special=final_special,
                advance=lambda done: progress.advance(bar, done),
            )
            for mask in chosen
        ]
    settings = {
        "target": target,
        "split": split,
        "sentences": str(len(sentences)),
        "corpus": fingerprint(files_of(source, tasks, (split,) if fitted is None else (split, "train"))),
        "masks": str(masks and model is not None and model.gates is not None).lower(),
        "centroids": centroids,
        "final_special": str(final_special).lower(),
        "versions": json.dumps(versions()),
        "git": git_revision() or "",
    }
    _write(folder / "heads.parquet", measured, settings)
    best = table.best_heads(pl.concat(measured))
    means = table.weighted_means(best)
    _show(best, means, console)
    _show_roles(pl.concat(measured), console)
    console.print(f"wrote {folder / 'heads.parquet'}", highlight=False, soft_wrap=True)
    if markdown is not None:
        write_text(markdown, table.markdown(best, means))
        console.print(f"wrote {markdown}", highlight=False, soft_wrap=True)


def _opened(
    target: str, corpus: Path | None, out: Path | None
) -> tuple[JointModel | None, Encoder, CorpusConfig, Path]:
    """A run's or an encoder's model, its corpus and the folder to write to."""
    from mtl.arguments import read_configuration
    from mtl.config import CorpusConfig, TrainConfig
    from mtl.encoder import Encoder
    from mtl.model import JointModel
    from mtl.run import Run

    given = None if corpus is None else CorpusConfig(str(corpus))
    folder = Path(target)
    if (folder / "config.yaml").is_file():
        run = Run.open(folder)
        model = JointModel.from_pretrained(run.model)
        source = given or read_configuration(TrainConfig, run.folder / "config.yaml").corpus
        return model, model.encoder, source, out or run.folder
    if given is None or out is None:
        missing = "--corpus=FOLDER" if given is None else "--out=FOLDER"
        raise InputError(f"{target} is not a run (no config.yaml); for an encoder give {missing}")
    if (folder / "model.json").is_file():
        # A run's model without the run: its gates must not be lost.
        model = JointModel.from_pretrained(folder)
        return model, model.encoder, given, out
    if (folder / "encoder.json").is_file():
        return None, Encoder.load(folder).eval(), given, out
    return None, Encoder.from_pretrained(target).eval(), given, out


def files_of(source: CorpusConfig, tasks: Sequence[str], splits: Sequence[str]) -> list[Path]:
    """The files that the tasks' sentences of some splits come from."""
    from mtl.data import sources

    paths = [getattr(each.files, split) for each in sources(source, tasks) for split in splits]
    return [Path(path) for path in paths if path is not None]


def _tasks_with_files(source: CorpusConfig) -> tuple[str, ...]:
    """The tasks that a corpus may have annotations for."""
    from mtl.probing import TASKS

    return tuple(name for name in TASKS if source.path is not None or getattr(source, name) is not None)


def _write(path: Path, measured: list[pl.DataFrame], provenance: dict[str, str]) -> None:
    """Write the table; rows of measures that are not made here stay (gradient conflicts, from training)."""
    from mtl.files import whole_file
    from mtl.probing import MEASURES
    from probes import table

    rows = pl.concat(measured)
    if path.exists():
        try:
            before, known = table.read(path)
        except ValueError as error:
            raise InputError(str(error)) from error
        rows = pl.concat([before.filter(~pl.col("measure").is_in(MEASURES)), rows])
        provenance = {**known, **provenance}
    with whole_file(path) as temporary:
        table.write(temporary, rows, provenance)


def _show(best: pl.DataFrame, means: pl.DataFrame, console: Console) -> None:
    """Print the best head of every label beside chance, in per cent; layers and heads from 0."""
    from probes.table import per_cent

    for mean in means.iter_rows(named=True):
        clustering = mean["measure"] == "clustering"
        shown = Table(title=f"{mean['task']}: {mean['measure']} ({mean['choice']})")
        shown.add_column("label")
        for title in ("count", "best head", "layer", "head", "shuffled" if clustering else "best offset"):
            shown.add_column(title, justify="right")
        for row in best.iter_rows(named=True):
            if row["task"] == mean["task"]:
                figures = (
                    per_cent(row["value"]),
                    str(row["layer"]),
                    str(row["head"]),
                    per_cent(row["chance"]),
                )
                shown.add_row(row["label"], f"{row['count']:,}", *figures)
        shown.add_section()
        weighted = (per_cent(mean["value"]), "", "", per_cent(mean["chance"]))
        shown.add_row("weighted mean", f"{mean['items']:,}", *weighted)
        if clustering:
            shown.add_row("most frequent label", "", per_cent(mean["majority"]), "", "", "")
        console.print(shown)


def _show_roles(heads: pl.DataFrame, console: Console) -> None:
    """Print the roles that some head has, with the number of heads and the best one."""
    from probes.roles import roles
    from probes.table import per_cent

    shown = Table(title="roles (Voita et al. 2019)")
    for title in ("role", "task", "label"):
        shown.add_column(title)
    for title in ("heads", "best head", "layer", "head", "best offset"):
        shown.add_column(title, justify="right")
    of = ["measure", "task", "label"]
    best = roles(heads).group_by(of, maintain_order=True).agg(pl.len(), pl.exclude(of).first())
    for row in best.iter_rows(named=True):
        figures = (per_cent(row["value"]), str(row["layer"]), str(row["head"]), per_cent(row["chance"]))
        shown.add_row(*(row[each] for each in of), str(row["len"]), *figures)
    console.print(shown if best.height else "no head has a positional or syntactic role")
