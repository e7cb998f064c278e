"""What is known about a robot: tracked output, cost, goals, evaluation references."""

from . import goals as goals
from .base import EvaluationReference as EvaluationReference
from .base import Task as Task
from .cost import StepCost as StepCost
from .cost import tracking_cost as tracking_cost
from .excavator import excavator_task as excavator_task
from .excavator_cabin import excavator_cabin_task as excavator_cabin_task
from .excavator_grading import excavator_grading_task as excavator_grading_task
from .soft_arm import soft_arm_task as soft_arm_task
