"""Balancers: from the losses of a step (and how the tasks' gradients agree) to the weights of the tasks."""

from mtl.balancers.balancer import Balancer
from mtl.balancers.fixed import Fixed
from mtl.balancers.gradnorm import GradNorm
from mtl.balancers.moving_average import MovingAverage
from mtl.balancers.pcgrad import PCGrad
from mtl.balancers.uncertainty import Uncertainty
from mtl.balancers.uniform import Uniform

__all__ = ["Balancer", "Fixed", "GradNorm", "MovingAverage", "PCGrad", "Uncertainty", "Uniform"]
