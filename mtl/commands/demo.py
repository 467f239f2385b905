"""`mtl demo`."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path("data/demo")
STUDIES = Path("studies")


def demo(*, jobs: int = 0) -> int:
    """Run a small study on a generated corpus with the embedded encoder, up to the report.

    Args:
        jobs: Maximum number of runs at the same time; 0: one per core, up to two.
    """
    from mtl.commands.study import study
    from mtl.corpora.toy.corpus import write_toy
    from mtl.files import check_folder_place
    from mtl.workers.pool import cores

    check_folder_place(CORPUS)
    check_folder_place(STUDIES)
    if not (CORPUS / "test.jsonl").exists():
        write_toy(CORPUS, 200, 30, 80, seed=1, overwrite=True)
    return study(["demo", f"--jobs={jobs or min(2, cores())}"])
