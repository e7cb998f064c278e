"""The optimiser alone: closed-loop gradients and bounded steps for your own dynamics, policies and costs.

Works on generic pytrees and functions, as Optax does, and knows no robot:

- dynamics f(x, u), a model of the system or the system itself;
- policy π(x, preview), any callable pytree: an `equinox.Module`, or `jax.tree_util.Partial(apply, params)`;
- cost c(x, u, r) of one step, or residuals whose squares add up to it.

docs/optimiser.md has the equations and an example.
"""

from .gauss_newton import LeastSquares as LeastSquares
from .gauss_newton import gauss_newton_step as gauss_newton_step
from .gauss_newton import linearise as linearise
from .gauss_newton import step_residuals as step_residuals
from .gauss_newton import trajectory_weights as trajectory_weights
from .gradient import closed_loop_gradient as closed_loop_gradient
from .gradient import command_sensitivities as command_sensitivities
from .gradient import damped_gradient as damped_gradient
from .gradient import mean_cost as mean_cost
from .gradient import trajectory_cost as trajectory_cost
from .preconditioner import PreconditionState as PreconditionState
from .preconditioner import StepReport as StepReport
from .preconditioner import command_jacobian as command_jacobian
from .preconditioner import conjugate_gradients as conjugate_gradients
from .preconditioner import precondition as precondition
from .preconditioner import preconditioned_step as preconditioned_step
from .rollout import CostFunction as CostFunction
from .rollout import DynamicsFunction as DynamicsFunction
from .rollout import PolicyFunction as PolicyFunction
from .rollout import ResidualFunction as ResidualFunction
from .rollout import Rollout as Rollout
from .rollout import model_errors as model_errors
from .rollout import predict_trajectory as predict_trajectory
from .rollout import roll_out as roll_out
