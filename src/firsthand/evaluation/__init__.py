"""Fixed references, the metrics of table 1, and the oracle."""

from .evaluate import Evaluation as Evaluation
from .evaluate import can_go_back as can_go_back
from .evaluate import evaluate as evaluate
from .metrics import TrackingMetrics as TrackingMetrics
from .metrics import tracking_errors as tracking_errors
from .metrics import tracking_metrics as tracking_metrics
