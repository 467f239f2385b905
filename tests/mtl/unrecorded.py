"""Runs as they were before a run recorded what its files are, so that a test can change one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def forget_files(run: Path) -> Path:
    """Remove the checksums from a run's folder, or from one with a model alone."""
    for record in (run / "status.json", run / "model" / "model.json"):
        if record.exists():
            values = json.loads(record.read_text())
            record.write_text(json.dumps({key: value for key, value in values.items() if key != "files"}))
    shutil.rmtree(run / "sentence_counts", ignore_errors=True)  # they record their model
    return run
