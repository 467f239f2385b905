"""The notebooks of the documentation run from an empty folder, and hold what they state."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_the_page_lists_the_notebooks():
    page = (FOLDER / "index.md").read_text()
    assert re.findall(r"\]\(([\w-]+\.ipynb)\)", page) != []
    assert sorted(re.findall(r"\]\(([\w-]+\.ipynb)\)", page)) == [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_its_links_lead_to_pages(path: Path):
    for cell in read(path).cells:
        assert not cell.get("outputs"), cell.source
        assert cell.get("execution_count") is None, cell.source
        for link in re.findall(r"\]\(([^)]+)\)", cell.source) if cell.cell_type == "markdown" else ():
            assert (FOLDER / link).is_file(), link


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each cell, in a process of its own; cells state their results as assertions."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = read(path)
    NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell in (cell for cell in book.cells if cell.cell_type == "code"):
        printed = "".join(each.text for each in cell.outputs if each.output_type == "stream")
        # tqdm's own is about a package of widgets that nothing here needs.
        assert "Warning" not in printed.replace("TqdmWarning", ""), cell.source
        shown = {kind for each in cell.outputs for kind in each.get("data", ())}
        assert ("%matplotlib" in cell.source) == ("image/png" in shown), cell.source
