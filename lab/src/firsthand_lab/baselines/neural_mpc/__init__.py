"""`neural-mpc`: our learned model in a predictive controller, one Gauss–Newton step per control period.

No policy is learned: the commands over the preview are optimised on the robot, at every step. `iteration` is that step,
`controller` runs it for robots, `learner` is the procedure. Model, observer, their training and the cost are those of
our fast preset. Checked in tests/baselines/test_neural_mpc.py on a linear plant, against the Riccati recursion.
"""

from .learner import NeuralLearner as NeuralLearner
