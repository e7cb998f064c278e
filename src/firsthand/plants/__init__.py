"""Simulated robots, and probes whose best controller is known."""

from .base import AbstractPlant as AbstractPlant
from .check import PlantCheckError as PlantCheckError
from .check import PlantReport as PlantReport
from .check import check_plant as check_plant
from .probes import DelayedDoubleIntegrator as DelayedDoubleIntegrator
from .probes import ScalarPlant as ScalarPlant
from .soft_arm import SoftArm as SoftArm
