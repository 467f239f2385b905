"""Print the labelled scores (LAS; F1 of graphs) of our decoders less those of supar's parsers, over seeds.

tar xf docs/results/small-subset/against-supar.tar.xz
python docs/results/small-subset/against_supar.py runs docs/results/small-subset/supar.jsonl
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from mtl.probes.statistics.compared_runs import difference

runs, lines = map(Path, sys.argv[1:])
of_supar: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
for line in map(json.loads, lines.read_text().splitlines()):
    of_supar[line["parser"]][line["seed"]] = line
for parser, by_seed in of_supar.items():
    graphs = parser == "graph-vi"
    # Of ours and of supar, with labels and without.
    task, labelled, bare = ("deps", "f1", "unlabelled_f1") if graphs else ("dep", "las_subtypes", "uas")
    of_theirs, bare_of_theirs = ("f1", "unlabelled_f1") if graphs else ("las", "uas")
    ours = {
        seed: json.loads((runs / f"{parser}-{seed}/metrics.json").read_text())["test"][task]
        for seed in by_seed
    }
    scores = {
        "ours": {seed: run[labelled] for seed, run in ours.items()},
        # No seed has one meaning in both.
        "supar": {-seed: line[of_theirs] for seed, line in by_seed.items()},
    }
    found = difference(scores, {"ours": 1, "supar": -1})
    each = (f"{name} {' '.join(f'{score:.2f}' for score in of.values())}" for name, of in scores.items())
    print(
        f"{parser}: {'; '.join(each)}; difference {found.value:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
    )
    print(
        "  without labels",
        *(f"{run[bare]:.2f}" for run in ours.values()),
        *(f"{line[bare_of_theirs]:.2f}" for line in by_seed.values()),
    )
