"""The parts that the loop is given, as the loop sees them.

- `Callback` is told what happens.
- `AbstractRecorder` stores a run, and finds where to resume it.
- `AbstractSupervisor` decides which policy may run next.
- `AbstractControl` hands over what people ask for between two episodes.

Versions that do nothing are here, too. The others have modules of their own: `display`, `recorder`, `guard`, `live`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from firsthand_onboard import ControlSpec

from ..agent import LearnerState
from ..models import Controller, Dynamics
from ..robots import AbstractRobot, EpisodeRecord


@dataclass(frozen=True)
class EpisodeSummary:
    """One finished episode."""

    episode: int
    """Counts from 1."""
    metrics: Mapping[str, Any]
    """The line of metrics.jsonl."""
    record: EpisodeRecord
    """The robot's trajectories."""


@runtime_checkable
class Callback(Protocol):
    """Methods that training calls; implement the ones you need by inheriting. None of them can change the training."""

    def before_episode(self, episode: int) -> None:
        """Before the robot moves; episodes count from 1."""

    def after_motion(self, episode: int) -> None:
        """After the robot's last trajectory, before the update."""

    def after_episode(self, summary: EpisodeSummary) -> None:
        """After the update and after everything is recorded."""

    def notify(self, text: str) -> None:
        """Something that the user should know, as a sentence."""


class CallbackList(Callback):
    """Several callbacks as one, called in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = tuple(callbacks)

    def before_episode(self, episode: int) -> None:
        """Before the robot moves."""
        for callback in self.callbacks:
            callback.before_episode(episode)

    def after_motion(self, episode: int) -> None:
        """After the robot's last trajectory, before the update."""
        for callback in self.callbacks:
            callback.after_motion(episode)

    def after_episode(self, summary: EpisodeSummary) -> None:
        """After the update and after everything is recorded."""
        for callback in self.callbacks:
            callback.after_episode(summary)

    def notify(self, text: str) -> None:
        """Something that the user should know."""
        for callback in self.callbacks:
            callback.notify(text)


class Checkpoint(NamedTuple):
    """Everything that a run needs to go on after an episode."""

    learner: LearnerState
    """The learner's state."""
    robot: Any
    """The robot's snapshot."""
    chosen_on: str = ""
    """The robot on which an operator has put the learner's policy in place; empty for a policy that was learned."""
    operators_policy: Controller | None = None
    """What he has put in place, with the observer that it ran with; None for the learner's own."""


class KeptPolicy(NamedTuple):
    """A policy and what proves it."""

    policy: Controller
    """The weights."""
    episode: int
    """The episode that it ran, from 1."""
    tracking_error: float
    """Its error there, as measured: what a machine can know of itself."""
    proof: float
    """The lower, the better; see `recorder.proof`."""


class Resumed(NamedTuple):
    """Where a run was left."""

    episode: int
    """Episodes done."""
    checkpoint: Checkpoint
    """The checkpoint to go on from."""
    records: Iterable[EpisodeRecord]
    """The robot's trajectories in each episode, in order."""
    notes: list[str]
    """Notes for the user."""


class AbstractRecorder(ABC):
    """Keeps what a run must not lose."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that identifies this run."""

    @property
    @abstractmethod
    def kept(self) -> KeptPolicy | None:
        """The best policy that the robot has proven; None while there is none."""

    @abstractmethod
    def record(self, summary: EpisodeSummary, policy: Controller, checkpoint: Checkpoint) -> None:
        """Keep a finished episode, the policy that ran it, and what to go on from."""

    @abstractmethod
    def replace_checkpoint(self, episode: int, checkpoint: Checkpoint) -> None:
        """Go on from something else after an episode that is recorded already."""

    @abstractmethod
    def metrics(self) -> list[dict[str, Any]]:
        """One entry per recorded episode."""

    @abstractmethod
    def load_policy(self, episode: int, spec: ControlSpec) -> Controller:
        """The policy that ran an episode."""

    @abstractmethod
    def load_record(self, episode: int, spec: ControlSpec) -> EpisodeRecord:
        """The robot's trajectories in an episode."""

    @abstractmethod
    def resume(self, template: Checkpoint) -> Resumed:
        """Go back to the last good checkpoint. `template` has the structure, and is the result where there is none."""


Meanwhile = Callable[[], None]
"""Code that waits for a person calls this now and then, so that the loop can carry out other requests."""


class Candidate(NamedTuple):
    """A candidate for the next episode."""

    policy: Controller
    """The learner's newest policy, or what an operator has put in its place."""
    dynamics: Dynamics
    """The learner's model."""
    chosen_by_operator: bool
    """Whether a person has put the policy in place: then it needs no approval."""


class Decision(NamedTuple):
    """The choice for the next episode."""

    policy: Controller
    """The policy."""
    prediction_holds: bool = True
    """Whether it is the candidate, so that what the model predicted for it still holds."""
    authority: float | None = None
    """Share of the command range; None leaves the robot's as it is."""
    reason: str = ""
    """Why it is not the candidate, for the user; empty where there is nothing to explain."""
    shares: tuple[float, ...] = (1.0,)
    """Shares of the episode's trajectories, rising: after each but the last it is asked whether it goes on."""
    tolerated: tuple[float, ...] = ()
    """After each of them, the tracking error in this episode with which it goes on; empty where none is asked for."""
    alone: Controller | None = None
    """The policy of the other trajectories: the base under the learned policy."""


class AbstractSupervisor(ABC):
    """Stands between a new policy and the robot."""

    @abstractmethod
    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """The policy that runs next; may wait for a person's approval. `EpisodeAbandoned` where he stops instead."""

    @abstractmethod
    def judge(self, summary: EpisodeSummary, policy: Controller) -> None:
        """Learn what came of the episode that this policy has run."""

    @abstractmethod
    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """Remember what was known after an episode of the run; `name` is the robot's. Returns notes for the user."""


class NoSupervisor(AbstractSupervisor):
    """Every new policy runs: for simulations, where nothing can break."""

    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """The candidate."""
        return Decision(candidate.policy)

    def judge(self, summary: EpisodeSummary, policy: Controller) -> None:
        """Nothing is remembered."""

    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """Nothing is remembered."""
        return []


class Outcome(NamedTuple):
    """The result of a request."""

    answer: str
    """For the person."""
    learner: LearnerState | None = None
    """The learner to go on with; None where it stays as it is."""
    policy: Controller | None = None
    """The policy that runs next, with the observer that it ran with; None for the learner's own."""


class AbstractRequest(ABC):
    """One request that waits for the loop."""

    @abstractmethod
    def carry_out(self, learner: LearnerState, episode: int) -> Outcome:
        """Do what was asked for, after this episode; `UserError` where it cannot be done."""

    @abstractmethod
    def accept(self, outcome: Outcome) -> None:
        """Report success."""

    @abstractmethod
    def refuse(self, why: str) -> None:
        """Report why the request cannot be carried out."""


class AbstractControl(ABC):
    """Where requests come from."""

    @abstractmethod
    def next_request(self) -> AbstractRequest | None:
        """The oldest request that is neither accepted nor refused; None when there is none."""

    @abstractmethod
    def wait_while_paused(self, meanwhile: Callable[[], None]) -> None:
        """Return when no pause is wanted, and call `meanwhile` until then; `EpisodeAbandoned` when told to stop."""


class NoControl(AbstractControl):
    """Has no requests."""

    def next_request(self) -> AbstractRequest | None:
        """Always None."""
        return None

    def wait_while_paused(self, meanwhile: Callable[[], None]) -> None:
        """Return at once."""
