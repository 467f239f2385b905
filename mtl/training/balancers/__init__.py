"""Balancers: from an update's losses, and the agreement of the tasks' gradients, to weights of the tasks."""

from mtl.training.balancers.balancer import Balancer
from mtl.training.balancers.fixed import Fixed
from mtl.training.balancers.gradnorm import GradNorm
from mtl.training.balancers.moving_average import MovingAverage
from mtl.training.balancers.pcgrad import PCGrad
from mtl.training.balancers.torchjd import TorchJD
from mtl.training.balancers.uncertainty import Uncertainty
from mtl.training.balancers.uniform import Uniform

__all__ = ["Balancer", "Fixed", "GradNorm", "MovingAverage", "PCGrad", "TorchJD", "Uncertainty", "Uniform"]
