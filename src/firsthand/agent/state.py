"""The learner's whole state, as one named pytree."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import BaseControl

from ..models import Controller, Dynamics, Observer, Policy
from .estimation import Estimation
from .model_learning import initial_optimizer
from .refinement import Refinement
from .settings import Settings
from .track_record import TrackRecord
from .windows import noise_blend


class LearnerState(eqx.Module):
    """The state that Algorithm 1 carries from episode to episode, apart from the data."""

    policy: Policy
    """π_φ."""
    dynamics: Dynamics
    """f_θ, with its normalisation."""
    optimizer: PyTree
    """Adam's moments for θ."""
    key: PRNGKeyArray
    """Random key of the learner (mini-batches)."""
    radius: Float[Array, ""]
    """Trust-region radius of further policy steps, carried from episode to episode."""
    expected_cost: Float[Array, ""]
    """The mean cost that the model predicted for the policy now in use; NaN when nothing was predicted."""
    refinement: Refinement
    """The state of Gauss–Newton steps."""
    largest_cost: Float[Array, ""]
    """The largest measured cost so far: what progress is measured by."""
    record: TrackRecord
    """Usual costs and step lengths, and the last proven policy."""
    refused: Int[Array, ""]
    """Updates refused so far because something was not finite or a bound did not hold."""
    refused_in_a_row: Int[Array, ""]
    """The same, since the last good update."""
    estimation: Estimation | None = None
    """The learned observer and the register beside it; None where the settings have no observer."""

    @staticmethod
    def random(
        spec: ControlSpec, settings: Settings, *, seed: int, control: BaseControl | None = None
    ) -> "LearnerState":
        """Random initial weights; on top of a base a policy whose commands are the base's."""
        policy_key, dynamics_key, key = jax.random.split(jax.random.key(seed), 3)
        dynamics = Dynamics.random(spec, settings.model.hidden, key=dynamics_key)
        gain = settings.policy_step.initial_command
        policy = Policy.random(spec, key=policy_key, last_gain=gain, control=control)
        return LearnerState(
            policy=policy,
            dynamics=dynamics,
            optimizer=initial_optimizer(dynamics, settings),
            key=key,
            radius=jnp.asarray(settings.trust_region.radius, jnp.float32),
            expected_cost=jnp.asarray(jnp.nan, jnp.float32),
            refinement=Refinement.initial(policy, settings),
            largest_cost=jnp.zeros((), jnp.float32),
            record=TrackRecord.initial(policy),
            refused=jnp.zeros((), jnp.int32),
            refused_in_a_row=jnp.zeros((), jnp.int32),
            estimation=Estimation.initial(dynamics, settings) if settings.observer.use else None,
        )

    def with_dynamics(self, dynamics: Dynamics, optimizer: PyTree) -> "LearnerState":
        """The same learner with a model that was learned elsewhere."""
        estimation = None if self.estimation is None else self.estimation.with_dynamics(dynamics)
        return dataclasses.replace(self, dynamics=dynamics, optimizer=optimizer, estimation=estimation)

    def noise_share(self, settings: Settings) -> Float[Array, ""]:
        """β (`noise_blend`); 1 without an observer, where it is not known."""
        return jnp.ones(()) if self.estimation is None else noise_blend(self.estimation.missed, settings)

    @property
    def observer(self) -> Observer | None:
        """The observer that the policy sees through; None where it sees the plain register. Not for traced code."""
        if self.estimation is None or not bool(self.estimation.active):
            return None
        return self.estimation.observer

    @property
    def controller(self) -> Controller:
        """The controller for the robot: the policy, with the observer where it is in use."""
        return Controller(self.policy, self.observer)
