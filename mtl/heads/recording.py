"""Hand attention probabilities to the outputs of a model, from modules that are not of its own classes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.utils import output_capturing


def record_probabilities(output: str, probabilities: Float[Tensor, "row head subword source"]) -> None:
    """Append to the model output of this name, in a forward pass that was asked for it.

    transformers collects probabilities by hooks on its own attention classes. A hook of that kind on another
    module, from `install_output_capuring_hook`, is a local function, with which no model can be pickled.
    """
    if torch.compiler.is_compiling():  # the list of outputs cannot be traced
        return
    collected = output_capturing._active_collector.get()
    if collected is not None and output in collected:
        collected[output].append(probabilities)
