"""The training loop and its parts: recorder, supervisor, control, callbacks; configuration and presets."""

from .callbacks import Callback as Callback
from .callbacks import EpisodeSummary as EpisodeSummary
from .config import TrainingConfig as TrainingConfig
from .kept import KeptPolicy as KeptPolicy
from .loop import Trainer as Trainer
from .loop import TrainingStopped as TrainingStopped
from .presets import PRESETS as PRESETS
from .presets import preset as preset
from .recorder import FolderRecorder as FolderRecorder
from .recorder import MemoryRecorder as MemoryRecorder
