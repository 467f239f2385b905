"""Scores against the number of shared components: right after compression, and after an epoch of training on.

python docs/results/collaboration/ranks.py CONFIG SEED [KEY=VALUE …]    # from a folder for runs/

The run CONFIG is trained, then trained on for an epoch as it is (the control). For each D its heads are made
to share D components, and the result is trained on for an epoch by the same settings. Keys and values go to
every `mtl train`. Scores are written to ranks.csv: run, seed, dim (0: heads share nothing), trained (epochs
after compression), task, split, metric, score. The same command goes on where it stopped.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

DIMS = (384, 256, 192, 128, 64)
METRICS = {"accuracy", "matthews", "las", "f1"}
COLUMNS = ("run", "seed", "dim", "trained", "task", "split", "metric", "score")


def mtl(*arguments: str) -> None:
    """Run a command of mtl; a failed one ends the script."""
    subprocess.run([sys.executable, "-m", "mtl", *arguments], check=True)


def train(config: str, name: str, *settings: str) -> None:
    """Train a run unless it is finished; a stopped one goes on."""
    status = Path("runs", name, "status.json")
    if not (status.is_file() and json.loads(status.read_text())["state"] == "finished"):
        mtl("train", config, f"--name={name}", *settings)


def scores(name: str, seed: int, dim: int, trained: int) -> list[tuple[str | int | float, ...]]:
    """Rows of the table: every task's main metric on dev and test."""
    folder = Path("runs", name)
    rows: list[tuple[str | int | float, ...]] = []
    for split in ("dev", "test"):
        path = folder / f"{split}-scores.json"
        if not path.is_file():
            mtl("evaluate", str(folder), f"--split={split}", f"--json_out={path}")
        for task, values in json.loads(path.read_text())[split].items():
            metric = next(metric for metric in values if metric in METRICS)
            rows.append((name.split("-seed")[0], seed, dim, trained, task, split, metric, values[metric]))
    return rows


def main(config: str, seed: int, *settings: str) -> None:
    """Train, compress, train on, and write the scores beside those of other runs."""
    name = f"{Path(config).stem}-seed{seed}"
    given = [f"--seed={seed}", *(f"--{setting}" for setting in settings)]
    after = [option for option in given if not option.startswith("--max_epochs=")] + ["--max_epochs=1"]
    train(config, name, *given)
    train(config, f"{name}-control", f"--from=runs/{name}", *after)
    rows = scores(name, seed, 0, 0) + scores(f"{name}-control", seed, 0, 1)
    for dim in DIMS:
        shared = f"{name}-{dim}"
        if not Path("runs", shared, "model").is_dir():
            mtl("collaborate", f"runs/{name}", f"--dim={dim}", f"--out=runs/{shared}", "--lengths=16")
        rows += scores(shared, seed, dim, 0)
        train(config, f"{shared}-trained", f"--from=runs/{shared}", *after)
        rows += scores(f"{shared}-trained", seed, dim, 1)
    table = Path("ranks.csv")
    others = []
    if table.is_file():
        with table.open(encoding="utf-8") as file:
            read = list(csv.reader(file))[1:]
        others = [row for row in read if row[:2] != [rows[0][0], str(seed)]]
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *others, *rows])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
