"""Checks on measured signals, shared by the learner, the readers of logs, the robots and the onboard program.

`samples` looks at single samples (range, spikes, stuck sensors, leaps), `live` at one measurement after the other while
a machine moves, `units` at whole signals (wrapped angles, wrong units), `periods` at the times of rows. Every
threshold is a field of a class in `settings`. Numpy only.
"""

from .live import SensorMemory as SensorMemory
from .live import SensorWatch as SensorWatch
from .live import Verdict as Verdict
from .periods import compare_period as compare_period
from .periods import find_joined_rows as find_joined_rows
from .samples import IMPLAUSIBLE as IMPLAUSIBLE
from .samples import NOT_FINITE as NOT_FINITE
from .samples import OUT_OF_RANGE as OUT_OF_RANGE
from .samples import SPIKE as SPIKE
from .samples import STUCK as STUCK
from .samples import find_leaps as find_leaps
from .samples import find_row_faults as find_row_faults
from .samples import find_spikes as find_spikes
from .samples import find_stuck_sensors as find_stuck_sensors
from .samples import is_plausible as is_plausible
from .samples import mark_memory as mark_memory
from .settings import PeriodSettings as PeriodSettings
from .settings import SignalSettings as SignalSettings
from .settings import UnitSettings as UnitSettings
from .units import describe_unit_error as describe_unit_error
from .units import travel_factor as travel_factor
