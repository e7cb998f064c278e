"""What is known about a robot: tracked output, cost, goals, evaluation references."""

from .base import EvaluationReference as EvaluationReference
from .base import Task as Task
from .cost import TrackingCost as TrackingCost
from .excavator import excavator_task as excavator_task
from .soft_arm import soft_arm_task as soft_arm_task
