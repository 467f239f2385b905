"""The average of a run's last models (`keep=average`)."""

from __future__ import annotations

from mtl.files import whole_folder
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run


def keep_average(run: Run) -> None:
    """Make the average of the weights of the run's snapshots, in float64, the model that it keeps.

    What is no number with fractions is that of the last one.
    """
    *others, last = run.snapshots()
    model = JointModel.from_pretrained(last)
    weights = model.state_dict()
    sums = {name: value.double() for name, value in weights.items() if value.is_floating_point()}
    for folder in others:
        state = JointModel.from_pretrained(folder).state_dict()
        sums = {name: total + state[name] for name, total in sums.items()}
    means = {name: (total / (1 + len(others))).to(weights[name].dtype) for name, total in sums.items()}
    model.load_state_dict({**weights, **means})
    with whole_folder(run.model) as folder:
        model.save(folder)
