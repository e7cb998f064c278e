"""The training loop, configuration and presets, callbacks."""

from .callbacks import Callback as Callback
from .callbacks import EpisodeSummary as EpisodeSummary
from .callbacks import PayloadSchedule as PayloadSchedule
from .config import TrainingConfig as TrainingConfig
from .loop import Trainer as Trainer
from .loop import TrainingStopped as TrainingStopped
from .presets import PRESETS as PRESETS
from .presets import preset as preset
