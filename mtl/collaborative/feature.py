"""What collaborative attention adds to the core: two commands, a figure, a key, and models whose heads
share."""

from __future__ import annotations

from mtl.features import Command, Feature, FigureRow, HeadRecord, Keys

_KEYS = "mtl.collaborative.keys"
_SHARING = "mtl.collaborative.sharing"

FEATURE = Feature(
    commands={
        "energy": Command(
            "mtl.collaborative.command:energy",
            "measure how many query and key components heads need, alone and together",
            answers=True,
            after="ablate",
        ),
        "collaborate": Command(
            "mtl.collaborative.command:collaborate_command",
            "let the heads of a model share query and key components",
            after="energy",
        ),
    },
    figures={
        "energy": FigureRow(
            "variance that leading components of queries and keys capture, of tables that mtl energy wrote",
            "mtl.collaborative.energy_table:captured",
            uses=(),
        )
    },
    keys={
        "components": Keys(
            f"{_KEYS}:SLOT",
            check=f"{_KEYS}:refuse_components",
            start=f"{_KEYS}:share_before_training",
            joint=False,
        ),
    },
    head_records={
        "collaborative_components": HeadRecord(
            read=f"{_SHARING}:recorded_components",
            put=f"{_SHARING}:put_components",
            start=f"{_SHARING}:start_as_configured",
        )
    },
)
