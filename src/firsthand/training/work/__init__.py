"""Learning while a machine works: a stream of work instead of episodes."""

from .chunks import ChunkStore as ChunkStore
from .learner import WorkLearner as WorkLearner
from .learner import WorkReport as WorkReport
from .learner import WorkSettings as WorkSettings
