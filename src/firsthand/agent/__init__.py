"""Algorithm 1 as pure functions on pytrees. Knows no plant, no file, no network."""

from ..optim.rollout import Rollout as Rollout
from .buffer import Buffer as Buffer
from .buffer import append as append
from .buffer import append_rows as append_rows
from .ground import Imagined as Imagined
from .hyperparameters import Hyperparameters as Hyperparameters
from .improvement import Improvement as Improvement
from .state import LearnerState as LearnerState
from .update import update_model as update_model
from .update import update_policy as update_policy
