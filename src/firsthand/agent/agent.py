"""The agent: Algorithm 1 from an episode's data to the next policy, as one pure function.

    agent = Agent(task.spec, task.cost, settings)
    state = agent.init(seed, capacity)
    state, update = agent.observe(state, experience)        # append, learn the model, improve the policy

Nothing here knows where the experience came from: the training loop, several seeds side by side (under `jax.vmap`) and
practice on logs all call `observe`. `training.learning.prepare_experience` makes an `Experience` of what a robot did.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from firsthand_onboard import ControlSpec

from ..optim.rollout import CostFunction, Rollout
from .buffer import Buffer, ImaginedStarts, write_rollout
from .estimation import Estimation, innovation_error
from .improvement import PolicyReport
from .memory import add_memory, add_memory_to_starts, imagine_rollout
from .model_learning import ModelReport, prediction_error
from .settings import Settings
from .state import LearnerState
from .update import update_model, update_policy


class AgentState(eqx.Module):
    """Everything that the next episode's update depends on."""

    learner: LearnerState
    """Parameters, optimiser and bookkeeping: what a checkpoint holds."""
    buffer: Buffer
    """All transitions so far: rebuilt from the stored episodes, not part of a checkpoint."""


class Experience(eqx.Module):
    """The data that the agent learns from after an episode."""

    rollout: Rollout | None
    """N trajectories of H steps as measured; None where the robot did nothing, as in practice on a model."""
    imagined: ImaginedStarts | None = None
    """Starts and fresh references of `settings.imagined_trajectories` imagined trajectories; None for none."""
    practice: ImaginedStarts | None = None
    """If given, the policy learns along the model's own trajectories from here instead of the measured ones."""
    sound: Bool[Array, "trajectories steps"] | None = None
    """Steps without a spike or a stuck sensor in what they see and lead to; None means all."""
    memory: Float[Array, "trajectories memory"] | None = None
    """The base's memory at the start of each measured trajectory, where the policy has a base."""


class Update(NamedTuple):
    """The report of one episode's update."""

    prediction_error: Float[Array, ""]
    """Loss of the model on the new episode, before it learned from it; NaN where nothing was measured."""
    model: ModelReport
    """The model's update; a loss of NaN where the model did not learn."""
    policy: PolicyReport
    """The policy's update."""
    rollout: Rollout
    """The trajectories that the policy learned along, as the policy sees them; of (x, m) with a base (`memory`)."""


class Agent(eqx.Module):
    """Learns a dynamics model and a policy of one robot; holds no state of its own."""

    spec: ControlSpec = eqx.field(static=True)
    """The specification of the robot's state, commands and references."""
    cost: CostFunction
    """c(x, u, r) of one step."""
    settings: Settings
    """Everything that Algorithm 1 leaves open; may hold arrays under `jax.vmap`."""

    def init(self, seed: int, capacity: int) -> AgentState:
        """Random weights, and an empty buffer for at least `capacity` transitions."""
        layout = self.spec.layout
        return AgentState(
            LearnerState.random(self.spec, self.settings, seed=seed),
            Buffer.empty(capacity, layout.size, layout.num_commands, layout.num_measured),
        )

    def observe(
        self, state: AgentState, experience: Experience, *, learn_model: bool = True
    ) -> tuple[AgentState, Update]:
        """Append the episode to the buffer, update the model, then the policy.

        **Arguments:**

        - `state`: its buffer is consumed, and must have room for the episode (see `buffer.make_room`).
        - `experience`: the episode.
        - `learn_model`: if false the model stays as it is; the data is still kept.

        **Returns:** the next state, and what the update did. An update that is not sound leaves the parameters as they
        were, and is counted in `state.learner.refused`.
        """
        learner, buffer, rollout = state.learner, state.buffer, experience.rollout
        novelty = jnp.asarray(jnp.nan)
        model, generalises = ModelReport(novelty, jnp.asarray(True), novelty), None
        if rollout is not None:
            measured, sound = rollout, experience.sound
            novelty, observed = episode_error(learner, measured, sound), learner.estimation
            buffer = write_rollout((measured, sound), buffer)
            if learn_model:
                learner, model = update_model(learner, buffer, measured, self.settings)
            rollout = see_rollout(learner.estimation, measured, sound)
            if learner.policy.control is not None:
                rollout = add_memory(learner.policy, rollout, experience.memory)
            generalises = does_generalise(novelty, episode_error(learner, measured, sound), self.settings)
            if observed is not None and learner.estimation is not None:  # register and observer are not compared
                generalises = generalises & (observed.active == learner.estimation.active)
        if experience.practice is not None:
            rollout = imagine_rollout(learner.policy, learner.dynamics, experience.practice)
        if rollout is None:
            raise ValueError("an experience needs a rollout or starts to practise from")
        imagined = experience.imagined
        if learner.policy.control is not None:
            imagined = add_memory_to_starts(learner.policy, imagined, rollout)
        learner, policy = update_policy(learner, self.cost, rollout, imagined, model, self.settings, generalises)
        return AgentState(learner, buffer), Update(novelty, model, policy, rollout)


def does_generalise(new: Float[Array, ""], fitted: Float[Array, ""], settings: Settings) -> Bool[Array, ""]:
    """Whether a new episode was predicted about as well as the model describes it after learning from it.

    Errors that are a small share of the changes are good enough, however much smaller they have become.
    """
    return (new <= settings.model.noise_share) | (new <= settings.refinement.max_overfit * fitted)


@eqx.filter_jit
def episode_error(
    learner: LearnerState, rollout: Rollout, sound: Bool[Array, "trajectories steps"] | None
) -> Float[Array, ""]:
    """The one-step error of the model in use on an episode: of the register, or of the observer's innovations."""
    estimation = learner.estimation
    seen = see_rollout(None, rollout, sound)
    if estimation is None:
        return prediction_error(learner.dynamics, seen)
    return jax.lax.cond(
        estimation.active,
        lambda: innovation_error(estimation.observer, rollout),
        lambda: prediction_error(learner.dynamics, seen),
    )


@eqx.filter_jit
def see_rollout(
    estimation: Estimation | None, rollout: Rollout, sound: Bool[Array, "trajectories steps"] | None
) -> Rollout:
    """The measured trajectories as the policy sees them: see `Estimation.see`. Without an observer, the register."""
    trusted = jnp.ones_like(rollout.valid) if sound is None else sound
    if estimation is None:
        return eqx.tree_at(lambda r: r.valid, rollout, rollout.valid & trusted)
    return estimation.see(rollout, trusted)
