"""Starting from earlier work: another run's model and policy, and logs in the buffer before the first episode."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import initial_state

from ..agent import Agent, AgentState, Buffer, Experience, LearnerState, Settings, append_rows
from ..agent.model_learning import learn_model
from ..errors import UserError
from ..logs import Transitions, read_log
from ..logs.base import Log, transitions
from ..logs.episodes import stored_spec
from ..robots import EpisodeRecord
from ..robots.base import neutral
from ..robots.description import spec_difference
from ..runs import RunFolder, atomic, packed
from ..runs.packed import Arrays
from ..runs.pytrees import from_arrays
from ..tasks import Task
from .base_guard import BaseSettings
from .bases import FILE as BASE
from .bases import FIRST_AUTHORITY, Base
from .config import TrainingConfig
from .learning import draw_imagined_starts, measurement_at_rest
from .origin import IDENTIFICATION, InitFrom, Parts, TakenLog, check_parts

WEIGHTS = "init.safetensors"
STRETCH = 100
"""Consecutive rows of a log that stay together where only a part of it is kept."""


@dataclass(frozen=True)
class Prior:
    """The starting point of a run."""

    init: InitFrom | None = None
    """The other run."""
    weights: Arrays | None = None
    """The parts that are taken over, by name in its checkpoint."""
    logs: tuple[TakenLog, ...] = ()
    """The logs."""
    taken: tuple[Transitions, ...] = ()
    """The transitions of each log."""
    notes: tuple[str, ...] = ()
    """Notes for the user."""
    base: Base | None = None
    """The controller that the policy is learned on top of."""

    def on_base(self, base: Base | None, spec: ControlSpec) -> "Prior":
        """The same on top of a base. The model learns from what the robot did while it was identified, too.

        In target mode that says nothing: the commands were those of the robot inside.
        """
        prior = dataclasses.replace(self, base=base)
        if base is None or base.recorded is None or base.origin.mode == "target":
            return prior
        log, rows = _take(base.recorded.as_log(spec), spec)
        return dataclasses.replace(prior, logs=(*prior.logs, log), taken=(*prior.taken, rows))

    @property
    def rows(self) -> int:
        """Transitions in all."""
        return sum(len(one.states) for one in self.taken)

    @property
    def base_settings(self) -> BaseSettings:
        """How the supervisor of a run on this base begins."""
        mode = "add" if self.base is None else self.base.origin.mode
        return BaseSettings(first_authority=FIRST_AUTHORITY[mode], informed=self.informs_model)

    @cached_property
    def has_seen_motion(self) -> bool:
        """Whether the model knows motion already, so that the first episodes need no random commands.

        On top of a base they are small, and stay: a log of the base alone shows nothing beside what the base does. The
        motion in which it was identified shows what each command does.
        """
        if self.base is None:
            return self.informs_model
        return any(log.path == IDENTIFICATION for log in self.logs)

    @property
    def informs_model(self) -> bool:
        """Whether the model has learned before the first episode: from logs, or in another run."""
        return bool(self.rows) or (self.init is not None and self.init.takes_model)

    def files(self) -> dict[str, bytes]:
        """What the run folder keeps, by name under `data/`: resuming needs neither the logs nor the other run."""
        files = {}
        if self.init is not None and self.weights is not None:
            files[WEIGHTS] = packed.pack(self.weights, asdict(self.init))
        if self.base is not None:
            files[BASE] = self.base.to_bytes()
        for i, (log, rows) in enumerate(zip(self.logs, self.taken, strict=True)):
            files[_file(i)] = packed.pack(rows._asdict(), asdict(log))
        return files

    @staticmethod
    def of_run(run: RunFolder, config: TrainingConfig, base: Base | None = None) -> "Prior":
        """The starting point of a resumed run, as it was stored; `base` is its base (`Base.of_run`)."""
        weights = None
        if config.init_from is not None:
            weights = _load_data(run, WEIGHTS, asdict(config.init_from))
        kept = [_load_data(run, _file(i), asdict(log)) for i, log in enumerate(config.data)]
        taken = tuple(Transitions(**arrays) for arrays in kept)
        return Prior(config.init_from, weights, config.data, taken, base=base)

    def initial(self, state: LearnerState) -> LearnerState:
        """The learner's first state, with the other run's weights in place."""
        if self.init is None or self.weights is None:
            return state
        for part in _parts(self.init.parts):
            mine = {name.removeprefix(f"{part}."): a for name, a in self.weights.items() if name.startswith(f"{part}.")}
            try:
                new = from_arrays(getattr(state, part), mine)
            except UserError as error:
                raise UserError(f"the {part} of {self.init.path} does not fit this run's: {error}") from None
            state = eqx.tree_at(lambda s, part=part: getattr(s, part), state, new)
        return state.with_dynamics(state.dynamics, state.optimizer)

    def buffer(self, task: Task, capacity: int, max_rows: int) -> Buffer:
        """A buffer for `capacity` transitions of the robot's own, with evenly spaced stretches of the logs in it.

        There are at most `max_rows` of them. The model draws its batches evenly from the buffer: all of a long log
        would drown what the robot does now.
        """
        layout = task.spec.layout
        count = min(self.rows, max_rows)
        buffer = Buffer.empty(capacity + count, layout.size, layout.num_commands, layout.num_measured)
        if not count:
            return buffer
        rows = spread_stretches(self.rows, count)
        states, commands, following = (np.concatenate(column)[rows] for column in zip(*self.taken, strict=True))
        return append_rows(buffer, states, commands, following)

    def warm_start(self, state: LearnerState, task: Task, settings: Settings, *, seed: int) -> LearnerState:
        """Before the first episode: the model learns from all of the logs, then a random policy from the model.

        The model takes as many Adam steps as it would have if the robot had gathered the same data, but at most
        `model.log_rounds` episodes' worth. The policy practises in `imagination.practice_episodes` imagined episodes;
        the paper's algorithm, which imagines nothing, leaves that out. On top of a base nothing is practised: the first
        episode is the base's.
        """
        if not self.rows:
            return state
        buffer = self.buffer(task, 0, self.rows)
        rounds = min(max(self.rows // (task.trajectories * task.steps), 1), settings.model.log_rounds)
        report = None
        for _ in range(rounds):
            key, batch_key = jax.random.split(state.key)
            dynamics, optimizer, report = learn_model(state.dynamics, state.optimizer, buffer, settings, key=batch_key)
            state = eqx.tree_at(lambda s: s.key, state.with_dynamics(dynamics, optimizer), key)
        trained = self.base is not None or (self.init is not None and self.init.takes_policy)
        if report is None or not bool(report.accepted) or trained or not settings.imagination.trajectories:
            return state
        return practice_on_model(state, buffer, task, settings, np.random.default_rng([seed, 0xDA7A]))


def spread_stretches(rows: int, count: int) -> np.ndarray:
    """`count` of `rows` rows, in evenly spaced stretches: roll-outs and observers learn from what is consecutive."""
    if count >= rows:
        return np.arange(rows)
    number = -(-count // STRETCH)
    firsts = np.linspace(0, max(rows - STRETCH, 0), number).astype(int)
    return np.unique(firsts[:, None] + np.arange(min(STRETCH, rows)))[:count]


def practice_on_model(
    state: LearnerState, buffer: Buffer, task: Task, settings: Settings, rng: np.random.Generator
) -> LearnerState:
    """The policy after some episodes that only the model has seen."""
    # Nothing is refined: a model that agrees with itself has earned no trust.
    agent = Agent(task.spec, task.cost, settings.with_changes({"refinement.steps": 0}))
    rows = np.asarray(buffer.states[: int(buffer.size)])
    now = AgentState(state, buffer)
    home = measurement_at_rest(task.spec, np.asarray(task.home))
    for _ in range(settings.imagination.practice_episodes):
        starts = rows[rng.integers(len(rows), size=task.trajectories)]
        starts[0] = initial_state(task.spec.layout, home, neutral(task.spec))
        record = _only_starts(task, starts)
        own = draw_imagined_starts(task, record, task.trajectories, rng)
        extra = draw_imagined_starts(task, record, settings.imagination.trajectories, rng)
        if own is None or extra is None:
            return now.learner
        now, _ = agent.observe(now, Experience(None, extra, practice=own))
    # The trust region and its bookkeeping start afresh: the robot has not been asked yet.
    return eqx.tree_at(lambda s: s.policy, state, now.learner.policy)


def _only_starts(task: Task, starts: np.ndarray) -> EpisodeRecord:
    spec, count = task.spec, len(starts)
    return EpisodeRecord(
        starts=starts,
        measured=np.zeros((count, 1, spec.layout.num_measured), np.float32),
        commands=np.zeros((count, 0, spec.layout.num_commands), np.float32),
        references=np.zeros((count, 0, spec.num_outputs), np.float32),
        free=np.zeros((count, 0, spec.layout.num_commands), bool),
        valid=np.zeros((count, 0), bool),
    )


def gather(
    spec: ControlSpec,
    *,
    init_from: Path | None = None,
    init: Parts = "both",
    data: Sequence[Path] = (),
    topics: Path | None = None,
) -> Prior:
    """Read the other run and the logs; one sentence when one of them cannot be used."""
    check_parts(init)
    source, weights, notes = _other_run(init_from, init, spec) if init_from is not None else (None, None, ())
    logs, taken = [], []
    for path in data:
        one, rows = _take(read_log(path, spec, topics=topics), spec)
        if not len(rows.states):
            reasons = ", ".join(f"{count} rows: {reason}" for reason, count in one.refused.items())
            raise UserError(f"nothing in {path} can be used ({reasons or 'it is empty'}).")
        logs.append(dataclasses.replace(one, path=str(path.resolve())))
        taken.append(rows)
    return Prior(source, weights, tuple(logs), tuple(taken), notes)


def _take(log: Log, spec: ControlSpec) -> tuple[TakenLog, Transitions]:
    """The transitions of a log, and what there is to say about them."""
    rows, refused = transitions(spec, log)
    return TakenLog(log.path, log.sha256, log.rows, len(rows.states), dict(refused.most_common()), log.note), rows


def _other_run(path: Path, parts: Parts, spec: ControlSpec) -> tuple[InitFrom, Arrays, tuple[str, ...]]:
    folder = RunFolder.open(path)
    if difference := spec_difference(stored_spec(folder), spec):
        raise UserError(f"{path} cannot be started from, because its robot is another: {difference}.")
    if not folder.checkpoints():
        raise UserError(f"{path} cannot be started from: it has no finished episode.")
    checkpoint = folder.load_checkpoint()
    wanted = tuple(f"learner.{part}." for part in _parts(parts))
    weights = {n.removeprefix("learner."): a for n, a in checkpoint.arrays.items() if n.startswith(wanted)}
    file = folder.path / "checkpoints" / f"{checkpoint.episode:06d}.safetensors"
    digest = hashlib.sha256(atomic.read_bytes(file)).hexdigest()
    return InitFrom(str(path.resolve()), checkpoint.episode, digest, parts), weights, tuple(checkpoint.notes)


def _parts(parts: Parts) -> tuple[str, ...]:
    """Fields of the learner's state; the model comes with its optimiser."""
    model = ("dynamics", "optimizer")
    return {"model": model, "policy": ("policy",), "both": (*model, "policy")}[parts]


def _file(number: int) -> str:
    return f"{number + 1:06d}.safetensors"


def _load_data(run: RunFolder, name: str, expected: dict) -> Arrays:
    arrays, info = run.load_data(name)
    if info != expected:
        raise UserError(f"{run.path / 'data' / name} is not what {run.path / 'config.json'} says the run started from.")
    return arrays
