"""Learned simulators: record a robot, fit a network to its log, judge it, keep it in a folder."""

from .accuracy import Accuracy as Accuracy
from .accuracy import open_loop as open_loop
from .arx import fit_linear as fit_linear
from .fit import FitSettings as FitSettings
from .fit import fit as fit
from .record import record as record
