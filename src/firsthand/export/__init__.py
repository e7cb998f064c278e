"""Taking a policy away: C99, ONNX, safetensors, and the robot's log as MCAP."""

from .card import ModelCard as ModelCard
from .write import FORMATS as FORMATS
from .write import write_export as write_export
