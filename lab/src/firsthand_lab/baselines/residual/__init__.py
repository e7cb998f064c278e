"""`residual`: a policy on top of a PI controller, learned by backpropagation through time in a learned model.

The way of EfficientTrack: collect with the base, learn a model, let gradients flow through roll-outs of the model and
the base, run the result, and repeat. Base, model, data and cost are those that our learner has on `--base pi`. What is
missing is ours: measured trajectories in the gradient, the preconditioned and judged step, the trust region, the
refinement. Checked in tests/baselines/test_residual.py on a linear plant, against its best controller.
"""

from .learner import ResidualLearner as ResidualLearner
