"""The number of the program's files of which a command calls a function.

python docs/results/house/entered.py train --tasks=[pos,dep] --corpus.path=toy --max_epochs=1 \
    --pruning=dynamic --gates.scope=per_task --gates.target_open=0.4
"""

import sys
import threading
from pathlib import Path
from types import FrameType

import mtl
from mtl.commands.main import main

ROOT = Path(mtl.__file__).resolve().parent.parent
called: set[str] = set()


def note(frame: FrameType, event: str, _: object) -> None:
    """Note the file of a call; code of a module's own level is no function."""
    if event == "call" and frame.f_code.co_name != "<module>":
        called.add(frame.f_code.co_filename)


threading.setprofile(note)
sys.setprofile(note)
code = main(sys.argv[1:])
sys.setprofile(None)
files = {
    str(Path(file).resolve().relative_to(ROOT))
    for file in called
    if Path(file).resolve().is_relative_to(ROOT)
}
print(len([file for file in files if file.startswith(("mtl/", "tasks/", "probes/"))]))
sys.exit(code)
