"""The training loop and its parts: recorder, supervisor, control, callbacks; configuration and presets."""

from .config import TrainingConfig as TrainingConfig
from .loop import Trainer as Trainer
from .loop import TrainingStopped as TrainingStopped
from .parts import Callback as Callback
from .parts import EpisodeSummary as EpisodeSummary
from .parts import KeptPolicy as KeptPolicy
from .presets import PRESETS as PRESETS
from .presets import preset as preset
from .recorder import FolderRecorder as FolderRecorder
from .recorder import MemoryRecorder as MemoryRecorder
