"""The simulated Menzi Muck M545 arm, in three fidelities."""

from firsthand.plants.excavator.cabin import ExcavatorCabin as ExcavatorCabin
from firsthand.plants.excavator.effects import Effects as Effects
from firsthand.plants.excavator.flow import ExcavatorFlow as ExcavatorFlow
from firsthand.plants.excavator.flow import FlowState as FlowState
from firsthand.plants.excavator.grading import ExcavatorGrading as ExcavatorGrading
from firsthand.plants.excavator.parameters import PAYLOADS as PAYLOADS
from firsthand.plants.excavator.parameters import ExcavatorParameters as ExcavatorParameters
from firsthand.plants.excavator.pressure import ExcavatorPressure as ExcavatorPressure
from firsthand.plants.excavator.pressure import PressureState as PressureState
from firsthand.plants.excavator.realistic import ExcavatorRealistic as ExcavatorRealistic
from firsthand.plants.excavator.realistic import RealisticState as RealisticState
