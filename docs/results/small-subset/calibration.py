"""How far the probability of a word's most probable head is from how often it is right.

    python docs/results/small-subset/calibration.py RUN…

Reads the test split of `data/small`; prints for each run UAS of the most probable heads, their mean
probability, the expected calibration error in ten bins of equal width (Naeini et al. 2015), and the Brier
score (the mean squared difference between the probability and 1 or 0).
"""

import json
import sys
from pathlib import Path

import numpy as np

from mtl.models.joint import JointModel

rows = [json.loads(line) for line in Path("data/small/test.jsonl").read_text().splitlines()]
gold = [head for row in rows for head in row["arcs"]["heads"]]
for run in sys.argv[1:]:
    annotated = JointModel.from_pretrained(run).annotate([row["words"] for row in rows], probabilities=1)
    best = [item.best[0] for _, items in annotated for item in items["dep"] if item.kind == "head"]
    probability = np.array([share for _, share in best])
    right = np.array([int(head) == known for (head, _), known in zip(best, gold, strict=True)])
    place = np.minimum((10 * probability).astype(int), 9)
    gaps = [abs((probability - right)[place == i].sum()) for i in range(10)]
    print(
        f"{run}  {len(gold)} words  right {right.mean():.4f}  mean probability {probability.mean():.4f}  "
        f"ECE {sum(gaps) / len(gold):.4f}  Brier {np.mean((probability - right) ** 2):.4f}"
    )
