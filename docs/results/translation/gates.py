"""BLEU against heads kept: closed by importance, and by learned gates.

python docs/results/translation/gates.py    # beside gates.csv and curve.csv, for gates.png
"""

from pathlib import Path

import polars as pl

from mtl.probes.curves.figures import pruning_curves
from mtl.probes.figures.style import render

HERE = Path(__file__).parent


def main() -> None:
    """Draw gates.png."""
    by_importance = pl.read_csv(HERE / "curve.csv").select(
        "task", "by", "trained_epochs", share=pl.col("percent") / 100, score="score"
    )
    runs = pl.read_csv(HERE / "gates.csv").group_by("run", maintain_order=True)
    by_gates = runs.agg(share=pl.col("open").mean(), score=pl.col("bleu_test_2016").first()).select(
        task=pl.lit("translate"), by=pl.lit("gates"), trained_epochs=pl.lit(0, pl.Int64), share="share",
        score="score",
    )  # fmt: skip
    figure = pruning_curves(pl.concat([by_importance, by_gates]), {"translate": "BLEU"})
    (HERE / "gates.png").write_bytes(render(figure, "png"))


if __name__ == "__main__":
    main()
