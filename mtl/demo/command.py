"""`mtl demo`: a run on a small sample, step by step; each step prints the command that does the same."""

from __future__ import annotations

import shlex
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mtl.config.arguments import OutFolder
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import whole_folder, write_json, write_text
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    from mtl.probes.statistics.masks import Masks

FOLDER = Path("demo")
"""The folder that `configs/sample.yaml` names."""
MARK = "demo.json"
"""The file by which a demo's folder is known."""
SENTENCE = "She bought a new car in Boston last week."
CUT = "dep"
"""The task for which the model is cut."""
_SHOWN_HEADS = 3
_OURS = Path(__file__).parent


def demo(*, out: OutFolder = FOLDER) -> int:
    """Train a model of five tasks on a small sample, probe it, cut it, use it, and write a report.

    The report puts the run beside an archived study of three seeds. No network is needed.

    Args:
        out: Folder for the corpus, the runs and the report.
    """
    return Demo(out).work()


@dataclass(frozen=True)
class Demo:
    """The demo in a folder."""

    folder: Path
    options: tuple[str, ...] = ()
    """Further options of the training."""

    @property
    def run(self) -> Run:
        """The run that the demo trains."""
        return Run(self.folder / "runs" / "sample")

    @property
    def cut(self) -> Run:
        """The run that is cut out of it."""
        return Run(self.folder / "runs" / f"sample-{CUT}")

    @property
    def archive(self) -> Path:
        """The folder of the archived runs."""
        return self.folder / "archive"

    def masks(self) -> Masks:
        """The masks of the run."""
        from mtl.probes.statistics.masks import final_masks
        from mtl.runs.compare.comparable import gates_of
        from mtl.runs.compare.run_set import RunSet

        return final_masks(gates_of(RunSet.of([self.run])))[0]

    def work(self) -> int:
        """Do all steps that are not done yet, and write the report; returns the exit code."""
        console = Console(markup=False, emoji=False, highlight=False)
        self._begin()
        self._corpus(console)
        self._train(console)
        return self._probe(console) or self._cut(console) or self._annotate(console) or self._report(console)

    def _begin(self) -> None:
        """Lay out the folder; raises `InputError` if it holds something else."""
        mark = self.folder / MARK
        if not mark.is_file() and self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(f"{self.folder} holds other files: use another --out")
        write_json(mark, {"mtl": version("mtl-heads")})
        if not (self.folder / "corpus").exists():
            with whole_folder(self.folder / "corpus") as made:
                shutil.copytree(_OURS / "sample", made, dirs_exist_ok=True)
        if not self.archive.exists():
            with whole_folder(self.archive) as made, zipfile.ZipFile(_OURS / "archive" / "runs.zip") as runs:
                runs.extractall(made)

    def _corpus(self, console: Console) -> None:
        from mtl.corpora.folder import corpus_stats

        corpus = self.folder / "corpus"
        numbers: Mapping[str, Any] = corpus_stats(corpus)
        train, dev, test = (numbers[split] for split in ("train", "dev", "test"))
        words = counted(sum(each["words"] for each in (train, dev, test)), "word")
        _head(console, 1, "The corpus: English web text, annotated for five tasks (CC BY-SA 4.0)")
        _command(console, ["data", "stats", str(corpus)])
        console.print(
            f"  {train['sentences']} sentences to learn from, {dev['sentences']} to watch (dev), "
            f"{test['sentences']} to test: {words}"
        )

    def _train(self, console: Console) -> None:
        from mtl.analysis.observers import default_observers
        from mtl.training.evaluation import AfterEvaluation
        from mtl.training.train import train

        words = ["train", "sample", *self._places(), *self.options]
        config = configured("mtl train", TrainConfig, words[1:])
        scores = config.main_scores()

        def tell(row: Mapping[str, Any]) -> bool:
            reached = "  ".join(f"{task} {row[f'dev/{task}/{scores[task]}']:.0f}" for task in config.tasks)
            console.print(
                f"  epoch {row['epoch']} of {config.max_epochs}: {reached}  (dev, %)", soft_wrap=True
            )
            return False

        _head(console, 2, "Train five tasks on one encoder (MiniLM), with a mask of its heads for each task")
        _command(console, words)
        with self._log() as log:
            quiet = Console(file=log, markup=False, emoji=False)
            train(config, console=quiet, observers=[*default_observers(config, quiet), AfterEvaluation(tell)])
        test = self.run.metrics()["test"]
        reached = "  ".join(f"{task} {test[task][scores[task]]:.0f}" for task in config.tasks)
        opened = self.masks().opened[:, 0]
        console.print(
            f"  on test: {reached}  (%); every task keeps {opened[0].sum()} of {opened[0].size} heads",
            soft_wrap=True,
        )

    def _probe(self, console: Console) -> int:
        from mtl.probes.report.kept_heads import head_roles
        from mtl.probes.sites import Site, head_name
        from mtl.runs.compare.run_set import MeasuredHeads

        words = ["probe", str(self.run.folder), "--split=train"]
        _head(console, 3, "Probe: what each head is good at")
        _command(console, words)
        if not (self.run.folder / "heads.parquet").is_file() and (code := self._quietly(words)):
            return code
        heads = MeasuredHeads(self.run.folder / "heads.parquet", self.run.config()["tasks"])
        roles = head_roles(heads.rows)
        for (attention, layer, head), role in list(roles.items())[:_SHOWN_HEADS]:
            console.print(f"  {head_name(Site(attention, layer), head)} {role.words}", soft_wrap=True)
        console.print(f"  {counted(len(roles), 'head')} in all do something clearly; the report has a map")
        return 0

    def _cut(self, console: Console) -> int:
        words = ["prune", str(self.run.folder), "--task", CUT, "--out", str(self.cut.folder)]
        _head(console, 4, f"Cut: remove the heads that the mask of {CUT} closes")
        _command(console, words)
        if not self.cut.folder.exists() and (code := self._quietly(words)):
            return code
        score = TrainConfig().main_scores()[CUT]
        before, after = (run.metrics()["dev"][CUT][score] for run in (self.run, self.cut))
        sizes = (
            sum(file.stat().st_size for file in run.model.rglob("*") if file.is_file()) / 1e6
            for run in (self.run, self.cut)
        )
        kept, heads = self.cut.status()["heads_kept"], self.masks().opened[0, 0].size
        first, second = (f"{size:.0f} MB" for size in sizes)
        console.print(
            f"  {kept} of {counted(heads, 'head')} are left; {CUT} scores {before:.1f} % before, "
            f"{after:.1f} % after; {first} become {second}",
            soft_wrap=True,
        )
        return 0

    def _annotate(self, console: Console) -> int:
        from mtl.commands.main import main

        text = self.folder / "text.txt"
        write_text(text, f"{SENTENCE}\n")
        words = ["predict", str(self.run.folder), str(text)]
        _head(console, 5, "Use it on a sentence")
        _command(console, words)
        return main(words)

    def _report(self, console: Console) -> int:
        from mtl.commands.main import main

        words = ["report", str(self.folder)]
        _head(console, 6, f"Report: this run beside an archived study ({self.archive})")
        _command(console, words)
        return main(words)

    def _places(self) -> list[str]:
        """The options that name the folder, unless it is the usual one."""
        if self.folder == FOLDER:
            return []
        return [f"--corpus.path={self.folder / 'corpus'}", f"--runs={self.folder / 'runs'}"]

    def _quietly(self, words: Sequence[str]) -> int:
        """Run a command, whose output goes to the log; returns its exit code."""
        from mtl.commands.main import main

        with self._log() as log, redirect_stdout(log):
            return main(words)

    @contextmanager
    def _log(self) -> Iterator[Any]:
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            yield log


def _head(console: Console, number: int, title: str) -> None:
    console.print(f"\n{number}/6 {title}", soft_wrap=True)


def _command(console: Console, words: Sequence[str]) -> None:
    console.print(f"  $ mtl {shlex.join(words)}", soft_wrap=True)
