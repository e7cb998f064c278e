"""The learner of a machine at work: it takes blocks of work, and now and then returns a better policy.

Everything here is deterministic, without threads, robots or network. The caller passes each block of work to `take`,
runs `begin_update` (in a thread, while the machine goes on), hands the result to `adopt`, and has the machine run
`controller` from the next chunk on.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from ...agent import Agent, AgentState, LearnerState, Settings
from ...agent.refinement import Refinement
from ...errors import UserError
from ...evaluation import tracking_metrics
from ...models import Controller
from ...robots import EpisodeRecord
from ...tasks import Task
from ..base_guard import BaseSettings, base_metrics, error_limit, with_authority
from ..bases import with_authority_of
from ..learning import fit_settings, prepare_experience, read_record
from .chunks import Chunk, ChunkStore
from .contexts import Choice, Context, choose_context, forecast_error
from .standing import Standing, judge_block


@dataclass(frozen=True)
class WorkSettings:
    """How work is learned from."""

    blocks: int = 2
    """An update is made from this many newest blocks of work under the same conditions."""
    eager_updates: int = 6
    """New conditions are learned with so many updates, as soon as there is work to learn from."""
    idle_blocks: int = 10
    """After that, an update is made after so many blocks: drift is slow."""
    chunks: int = 60
    """Chunks of work that a context remembers."""
    recent_chunks: int = 24
    """The newest of them are never forgotten."""
    contexts: int = 12
    """Conditions that are remembered; the one that was not met for longest goes first."""
    better: float = 0.85
    """Other conditions are recognised where their model misses less than this share of what the current one does."""
    surprise: float = 1.4
    """Conditions are new where the best model misses this many times what is usual for it."""
    worse: float = 1.3
    """A policy is taken back where its error is this many times the one before it, while the model still holds."""

    def __post_init__(self) -> None:
        for name in ("blocks", "eager_updates", "idle_blocks", "recent_chunks", "contexts"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.chunks <= self.recent_chunks:
            raise UserError(f"chunks is {self.chunks}, but must be above recent_chunks, {self.recent_chunks}.")
        if not 0 < self.better < 1 < self.surprise or not self.worse > 1:
            raise UserError("better must lie between 0 and 1, surprise and worse above 1.")


class WorkReport(NamedTuple):
    """The result of a block of work."""

    error: float
    """Mean tracking error, as measured."""
    context: int
    """Number of the conditions, in the order in which they were first met."""
    choice: Choice
    """Whether they are the same as before, known other ones, or new."""
    missed: float
    """Share of the motion that the model in use missed."""
    due: bool
    """Whether an update should be begun now."""
    taken_back: bool
    """Whether the policy was taken back to the last good one."""
    authority: float = math.nan
    """Of the learned part over its base in this block, 0 where the base was alone; NaN without a base."""
    true_error: float = math.nan
    """Mean tracking error of the true state; NaN where that is not known."""


class Update(NamedTuple):
    """A new state for a context."""

    number: int
    """The context's."""
    began: LearnerState
    """The context's state that it began with."""
    state: LearnerState


class WorkLearner:
    """Learns from blocks of work, one context per kind of conditions."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        state: LearnerState,
        work: WorkSettings | None = None,
        *,
        block_trajectories: int,
        seed: int = 0,
        on_base: BaseSettings | None = None,
    ) -> None:
        """A `state` whose policy stands on a base begins with the authority that it has; `on_base` says how it goes on.

        The base alone runs the first block under each kind of conditions.
        """
        self.task, self.work, self.on_base = task, work or WorkSettings(), on_base or BaseSettings()
        self.base_alone = False
        """Whether an operator has taken the learned part back: the base is alone until this is false again."""
        self.settings = fit_settings(settings, task)
        self.agent = Agent(task.spec, task.cost, self.settings)
        self.block_trajectories = block_trajectories
        self.seed = seed
        self.block = 0
        """Blocks taken so far."""
        self.next_number = 1
        """Of the next conditions that are new."""
        control = state.policy.control
        earned = self.on_base.first_authority if control is None else float(control.authority)
        self.contexts: dict[int, Context] = {0: self._context(state, earned)}
        self.current = 0
        self.newest: list[tuple[EpisodeRecord, list[Chunk]]] = []
        """The newest blocks since the conditions changed, and what the store made of them."""
        self.since_update = 0
        """Blocks since the last update was begun."""
        self._capacity = (self.work.chunks + self.work.blocks * block_trajectories) * task.steps

    def _context(self, state: LearnerState, authority: float) -> Context:
        store = ChunkStore(self.task.spec, capacity=self.work.chunks, recent=self.work.recent_chunks)
        standing = None if state.policy.control is None else Standing(authority)
        return Context(state, store, self.block, self.block, standing=standing)

    @property
    def controller(self) -> Controller:
        """The controller for the next chunk and later ones."""
        context = self.contexts[self.current]
        controller, standing = context.state.controller, context.standing
        if standing is None:
            return controller
        authority = 0.0 if standing.alone or self.base_alone else standing.authority
        return with_authority(controller, authority, error_limit(self.on_base, standing.base_peak))

    @property
    def is_measuring(self) -> bool:
        """Whether the base alone runs this block, to be compared with: what was learned meanwhile can wait."""
        standing = self.contexts[self.current].standing
        return standing is not None and standing.alone

    def compare_with_base(self) -> None:
        """The base alone runs the next block, to be compared with: the machine may be another than it was."""
        context = self.contexts[self.current]
        if context.standing is not None:
            context.standing = dataclasses.replace(context.standing, alone=True)

    def take(self, record: EpisodeRecord, *, ran: int | None = None) -> WorkReport:
        """A block of work is done; `record` has `block_trajectories` trajectories.

        `controller` has run the last `ran` of them, by default all; where they are less than half of it, the block says
        nothing about its policy.
        """
        if len(record.commands) != self.block_trajectories:
            raise ValueError(
                f"a block has {self.block_trajectories} trajectories, but came with {len(record.commands)}"
            )
        self.block += 1
        rollout, sound = read_record(self.task.spec, record)
        error = self._error(record, sound)
        true_error = math.nan if record.truth is None else tracking_metrics(self.task.spec, (record,)).mean_error
        numbers = sorted(self.contexts)
        missed = [forecast_error(self.contexts[number].state, rollout, sound) for number in numbers]
        ran = len(record.commands) if ran is None else ran
        judged = record.part(slice(len(record.commands) - ran, None)) if 2 * ran >= len(record.commands) else None
        choice, at = choose_context(
            [self.contexts[number] for number in numbers],
            numbers.index(self.current),
            missed,
            better=self.work.better,
            surprise=self.work.surprise,
        )
        before, own = self.current, missed[numbers.index(self.current)]
        if choice is Choice.NEW:
            self._begin(numbers[at])
        elif choice is Choice.KNOWN:
            self.current = numbers[at]
        if self.current != before:
            # The block may hold work under both conditions: it is used to recognise, not to learn.
            self.newest, self.since_update = [], 0
            self.contexts[self.current].used = self.block
            return WorkReport(error, self.current, choice, own, False, False, true_error=true_error)
        return self._remember(record, rollout, sound, error, own, judged)._replace(true_error=true_error)

    def _remember(
        self, record: EpisodeRecord, rollout, sound, error: float, missed: float, judged: EpisodeRecord | None
    ) -> WorkReport:
        context = self.contexts[self.current]
        context.used = self.block
        self.newest = [*self.newest, (record, context.store.add(rollout, sound))][-self.work.blocks :]
        context.usual = _follow(context.usual, missed, 0.2)
        authority, taken_back = self._authority(context), False
        if judged is not None:
            own = self._error(judged, sound[-len(judged.commands) :])
            if context.standing is not None:
                taken_back = self._judge_on_base(context, judged, own)
            if not (taken_back or authority == 0.0):
                taken_back = self._judge(context, own)
        self.since_update += 1
        eager = context.updates < self.work.eager_updates
        wanted = self.work.blocks if eager else self.work.idle_blocks
        due = len(self.newest) == self.work.blocks and self.since_update >= wanted
        return WorkReport(error, self.current, Choice.SAME, missed, due, taken_back, authority)

    def _error(self, record: EpisodeRecord, sound: Bool[Array, "trajectories steps"]) -> float:
        """Mean tracking error, as measured, over the sound steps: a spike of a sensor is no error of the policy."""
        counted = dataclasses.replace(record, valid=np.asarray(sound))
        return tracking_metrics(self.task.spec, (counted,)).measured_mean_error

    def _authority(self, context: Context) -> float:
        """What the learned part has over its base now; NaN without one."""
        if context.standing is None:
            return math.nan
        return 0.0 if context.standing.alone or self.base_alone else context.standing.authority

    def _judge_on_base(self, context: Context, record: EpisodeRecord, error: float) -> bool:
        """Compare the learned part with its base; whether it was worse, and was taken back."""
        standing = context.standing
        assert standing is not None
        if self.base_alone and not standing.alone:
            standing = dataclasses.replace(standing, alone=True)  # the operator's choice is a comparison, too
        found = base_metrics(self.task.spec, self.controller, record)
        peak, share = found["largest_window_error"], found["base_share"]
        context.standing, worse = judge_block(standing, self.on_base, error=error, peak=peak, base_share=share)
        if worse and context.good is not None:
            self._take_back(context)
        elif standing.accused >= 0 and not worse:  # not the policy was worse, but the conditions: what was usual is not
            context.history, context.error = [], math.nan
        return worse

    def _judge(self, context: Context, error: float) -> bool:
        """Take a policy back that is worse than the one before it; otherwise it counts as good."""
        if not math.isfinite(error):
            return False
        if context.good is not None and math.isfinite(context.error) and error > self.work.worse * context.error:
            context.history.append(error)
            if len(context.history) >= 2:  # twice in a row: work differs in difficulty, too
                self._take_back(context)
                return True
            return False
        context.history = []
        context.error = _follow(context.error, error, 0.2)
        context.good = context.state
        return False

    def _take_back(self, context: Context) -> None:
        """Go on with the last good policy, for which the model has predicted nothing and no refinement has begun."""
        good = context.good
        assert good is not None
        context.state = dataclasses.replace(
            context.state,
            policy=good.policy,
            radius=0.5 * context.state.radius,
            expected_cost=jnp.full_like(context.state.expected_cost, jnp.nan),
            refinement=Refinement.initial(good.policy, self.settings),
            record=good.record,
        )
        context.history, context.good = [], None
        context.error = math.nan

    def _begin(self, nearest: int) -> None:
        """A new context, from the nearest; where there are too many, the one that was not met for longest goes."""
        fresh = self._context(self.contexts[nearest].state, self.on_base.first_authority)
        if len(self.contexts) >= self.work.contexts:
            others = [n for n in self.contexts if n != nearest]
            oldest = min(others, key=lambda n: self.contexts[n].used, default=nearest)
            del self.contexts[oldest]
        self.current, self.next_number = self.next_number, self.next_number + 1
        self.contexts[self.current] = fresh

    def begin_update(self) -> Callable[[], Update]:
        """The update that is due, as a function for any thread; what it returns goes to `adopt`."""
        number, context = self.current, self.contexts[self.current]
        record = EpisodeRecord.join([record for record, _ in self.newest])
        newest = {id(chunk) for _, chunks in self.newest for chunk in chunks}
        earlier = ChunkStore(self.task.spec, capacity=self.work.chunks, recent=self.work.recent_chunks)
        # The agent appends the newest itself.
        earlier.chunks = [chunk for chunk in context.store.chunks if id(chunk) not in newest]
        buffer = earlier.buffer(self._capacity)
        rng = np.random.Generator(np.random.Philox(key=[self.seed, self.block]))
        state, self.since_update = context.state, 0
        # The learner counts with the authority that its policy has whenever the base is not alone.
        standing = context.standing
        learner = state
        if standing is not None:
            limit = error_limit(self.on_base, standing.base_peak)
            learner = with_authority_of(state, with_authority(state.controller, standing.authority, limit))

        def update() -> Update:
            noise = float(state.noise_share(self.settings))
            experience = prepare_experience(self.task, self.settings, buffer, record, rng, noise_share=noise)
            after, _ = self.agent.observe(AgentState(learner, buffer), experience)
            return Update(number, state, jax.block_until_ready(after.learner))

        return update

    def adopt(self, update: Update) -> bool:
        """Go on with what an update found, also where the machine works under other conditions by now.

        Not where its conditions are forgotten, or the policy that it began with was taken back: whether it was taken.
        """
        context = self.contexts.get(update.number)
        if context is None or context.state is not update.began:
            return False
        context.state = update.state
        context.history = []  # of the policy before
        context.updates += 1
        return True


def _follow(usual: float, new: float, share: float) -> float:
    """A running mean that begins with its first value."""
    if not math.isfinite(new):
        return usual
    return new if not math.isfinite(usual) else usual + share * (new - usual)
