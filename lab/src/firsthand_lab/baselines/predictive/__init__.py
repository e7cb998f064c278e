"""Predictive control from data: `deepc` and `koopman`, for any robot that can be run.

What both have in common, and what an engineer who sets one up does:

1. `recording`: five minutes of random excitation inside the robot's limits, which count as robot time.
2. `input_map`: dead band, curvature and unequal slopes of each command are removed by a static map (Hammerstein).
3. `deepc` or `koopman`: a linear prediction of the outputs over the horizon. `design` chooses its settings on held-out
   data, from the excitation and then from the controller's own episodes besides (`learner`).
4. `controller`: at every step a quadratic program (`program`, solved by OSQP) with limits on commands, on their change
   and, softly, on positions. The reference of the positions follows that of the tip (`joint_reference`).

Nothing is told about the robot but its specification. Checked in tests/baselines/test_predictive.py on linear plants:
commands against the optimum of the true model, predictions against the Kalman filter's.
"""

from .learner import PredictiveLearner as PredictiveLearner
from .program import require as require
