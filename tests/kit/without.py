"""A copy of the repository without features: `python -m tests.kit.without FOLDER [NAME …]`.

Without names, it has none. A feature's files are its folders, named after it, and the pages with its name;
`_ALSO` names the others. A test of two features goes with either.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mtl.features import features

ROOT = Path(__file__).parents[2]
_ALSO = {
    "collaborative": ("configs/study/components.yaml",),
    "curves": ("configs/study/translation.yaml",),
    "demo": ("configs/sample.yaml",),
    "relevance": ("benchmarks/relevance.py", "configs/study/translation.yaml"),
    "serving": ("benchmarks/exported.py",),
    "study": ("benchmarks/study.py",),
    "stem_cell": ("docs/contest.md", "configs/study/contest.yaml"),
    "translation": (
        "configs/translation.yaml",
        "configs/study/translation.yaml",
        "configs/study/components.yaml",
        "benchmarks/translation.py",
        "tests/mtl/collaborative/test_shared_components.py",
        "tests/mtl/relevance/test_contributions.py",
        "tests/mtl/relevance/test_relevance_of_translations.py",
    ),
}


def copy_without(names: Sequence[str], folder: Path) -> None:
    """Copy what git knows, and new files, into an empty folder, but nothing of these features."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    gone = tuple(path for name in names for path in files_of(name))
    of_other = re.compile(rf"tests/mtl/({'|'.join(features())})/.*\.py$")
    about = re.compile(rf"(?m)^ *(from|import) (tests\.)?mtl\.(probes\.)?({'|'.join(names)})\b")
    for path in filter(None, paths):
        source, copy = ROOT / path, folder / path
        if path.startswith(gone) or not (source.exists() or source.is_symlink()):
            continue
        if of_other.match(path) and about.search(source.read_text(encoding="utf-8")):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)


def files_of(name: str) -> tuple[str, ...]:
    """What a feature consists of: folders, which end in `/`, and files."""
    page = name.replace("_", "-")
    return (
        f"mtl/{name}/", f"probes/{name}/", f"tests/mtl/{name}/", f"tests/probes/{name}/", f"configs/{name}/",
        f"docs/{page}.md", f"docs/reference/{page}.md", *_ALSO.get(name, ()),
    )  # fmt: skip


if __name__ == "__main__":
    copy_without(sys.argv[2:] or list(features()), Path(sys.argv[1]))
