"""How many labels do worse in joint training, by their best heads."""

from __future__ import annotations

import polars as pl
from scipy.stats import binomtest

COMPARISONS = (("joint", "stl"), ("joint", "static"), ("pair", "stl"))


def label_tests(labels: pl.DataFrame) -> pl.DataFrame:
    """Sign tests over labels (as `label_values` gives them): is the best head worse in joint training?

    `share` is that of the labels, `p` the one-sided chance of as many if worse and better were as likely;
    equal ones do not enter it, nor do labels that a regime lacks.
    """
    rows = []
    for regime, than in COMPARISONS:
        if regime not in labels.columns or than not in labels.columns:
            continue
        change = labels.drop_nulls([regime, than]).select(pl.col(regime) - pl.col(than)).to_series()
        # Means of the same numbers in another order differ by rounding.
        worse, better = int((change < -1e-12).sum()), int((change > 1e-12).sum())
        rows.append(
            {
                "comparison": f"{regime} worse than {than}",
                "labels": len(change),
                "worse": worse,
                "better": better,
                "equal": len(change) - worse - better,
                "share": worse / len(change) if len(change) else None,
                "p": binomtest(worse, worse + better, alternative="greater").pvalue
                if worse + better
                else None,
            }
        )
    counts = ("labels", "worse", "better", "equal")
    schema = (
        {"comparison": pl.String}
        | dict.fromkeys(counts, pl.Int64)
        | dict.fromkeys(("share", "p"), pl.Float64)
    )
    return pl.DataFrame(rows, schema=schema)
