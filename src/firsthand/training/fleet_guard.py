"""Several machines, one learner: each machine has a supervisor of its own, which sees only what it did.

The learner proposes one policy. Each machine's supervisor decides by itself whether that machine runs it, and with
which authority, or goes on with a policy that is known to be good there. Then the policy is fitted to the machine
(`offsets`). The supervisors' state follows from the run's metrics and episodes, so it is the same after a resume. There
is one exception: where a machine ran another policy than the learner's, a resumed run compares with the learner's.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from firsthand_onboard import ControlSpec

from ..evaluation import tracking_metrics
from ..models import Controller
from ..robots import AbstractRobot, EpisodeRecord
from ..robots.earned import authority_metrics
from ..tasks import Task
from .learning import read_record
from .offsets import Offset, SeenEpisode, fit_offsets, with_offset
from .parts import (
    AbstractRecorder,
    AbstractSupervisor,
    Candidate,
    Checkpoint,
    Decision,
    EpisodeSummary,
    KeptPolicy,
    Meanwhile,
    Resumed,
)

if TYPE_CHECKING:
    from ..robots.fleet import Fleet, Member

OFFSET_EPISODES = 4
"""The newest episodes that the machines' offsets are estimated from."""


class FleetGuard(AbstractSupervisor):
    """A supervisor per machine, and the offset of each."""

    def __init__(self, fleet: "Fleet", make: Callable[[AbstractRobot], AbstractSupervisor]) -> None:
        """`make` makes the supervisor of one machine."""
        self.fleet, self.task = fleet, fleet.task
        self.guards = {member.index: make(member.robot) for member in fleet.members}
        self.offsets: dict[int, Offset] = {}
        self._decided: dict[int, Controller] = {}
        """The decision of each machine's supervisor for the next episode."""
        self._episodes: deque[SeenEpisode] = deque(maxlen=OFFSET_EPISODES)

    def decide(self, candidate: Candidate, meanwhile: Meanwhile) -> Decision:
        """One decision per machine; the fleet is told what each runs. The loop goes on with the candidate if one
        does that is there.

        A machine that is away is decided for, too: it may join.
        """
        self.offsets = fit_offsets(candidate.dynamics, tuple(self._episodes))
        decisions: list[tuple[Member, Decision]] = []
        for member in self.fleet.members:
            decision = self.guards[member.index].decide(candidate, meanwhile)
            if decision.authority is not None:
                member.robot.authority = decision.authority
            offset = self.offsets.get(member.index)
            self._decided[member.index] = decision.policy
            member.controller = decision.policy if offset is None else with_offset(decision.policy, offset)
            decisions.append((member, decision))
        there = [decision for member, decision in decisions if not member.away] or [found for _, found in decisions]
        held = [decision for decision in there if decision.prediction_holds]
        chosen = held[0] if held else there[0]
        reasons = [f"{member.address}: {decision.reason}" for member, decision in decisions if decision.reason]
        return chosen._replace(
            prediction_holds=bool(held), authority=None, reason="; ".join(reasons) if reasons else ""
        )

    def judge(self, summary: EpisodeSummary, policy: Controller) -> None:
        """Each machine's supervisor judges what that machine did, with the policy that it decided on for it.

        `policy` is the loop's, which all have run where an operator chose it. One that took no part learns nothing.
        """
        self._remember(summary.record)
        for entry in summary.metrics["machines"]:
            index = entry["index"]
            own, alike = part_of(summary.record, index), self.fleet.members[index].controller is None
            metrics = MappingProxyType({**summary.metrics, **entry})
            ran = policy if alike else self._decided[index]
            self.guards[index].judge(EpisodeSummary(summary.episode, metrics, own), ran)

    def resume(self, recorder: AbstractRecorder, episode: int, robot: AbstractRobot, name: str) -> list[str]:
        """Remember what was known of each machine."""
        spec, notes = self.task.spec, []
        views = {m.index: MachineView(recorder, m.robot.machine_id, m.address) for m in self.fleet.members}
        for number in range(max(1, episode - OFFSET_EPISODES + 1), episode + 1):
            record = recorder.load_record(number, spec)
            if record.machines is not None:  # by the numbers that they had then
                then = {view.index_in(number): index for index, view in views.items()}
                now = np.asarray([then.get(int(index), -1 - int(index)) for index in record.machines], np.int32)
                self._remember(dataclasses.replace(record, machines=now))
        for member in self.fleet.members:
            view = views[member.index]
            rows = view.metrics()
            if rows:
                last = int(rows[-1]["episode"])
                found = self.guards[member.index].resume(view, last, member.robot, name)
                notes += [f"{member.address}: {note}" for note in found]
        return notes

    def _remember(self, record: EpisodeRecord) -> None:
        if record.machines is not None:
            self._episodes.append(SeenEpisode(*read_record(self.task.spec, record), record.machines))


class MachineView(AbstractRecorder):
    """What a run keeps of one machine, for that machine's supervisor; nothing is recorded through it."""

    def __init__(self, recorder: AbstractRecorder, machine: str, address: str) -> None:
        self.recorder, self.machine, self.address = recorder, machine, address

    @property
    def identity(self) -> str:
        """That of the run."""
        return self.recorder.identity

    @property
    def kept(self) -> KeptPolicy | None:
        """That of the run."""
        return self.recorder.kept

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per episode in which the machine took part."""
        found = ((row, self._entry(row)) for row in self.recorder.metrics())
        return [{**row, **entry} for row, entry in found if entry is not None]

    def load_policy(self, episode: int, spec: ControlSpec) -> Controller:
        """The policy that the run has kept of an episode."""
        return self.recorder.load_policy(episode, spec)

    def load_record(self, episode: int, spec: ControlSpec) -> EpisodeRecord:
        """This machine's trajectories in an episode."""
        index = self.index_in(episode)
        assert index is not None
        return part_of(self.recorder.load_record(episode, spec), index)

    def index_in(self, episode: int) -> int | None:
        """The machine's number in an episode, as `EpisodeRecord.machines` has it; None where it took no part."""
        entry = self._entry(next(row for row in self.recorder.metrics() if row["episode"] == episode))
        return None if entry is None else int(entry["index"])

    def _entry(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        for entry in row.get("machines") or ():
            if entry["machine_id"] == self.machine if self.machine else entry["machine"] == self.address:
                return entry
        return None

    def record(self, summary: EpisodeSummary, policy: Controller, checkpoint: Checkpoint) -> None:
        """Not supported by this view."""
        raise NotImplementedError

    def replace_checkpoint(self, episode: int, checkpoint: Checkpoint) -> None:
        """Not supported by this view."""
        raise NotImplementedError

    def resume(self, template: Checkpoint) -> Resumed:
        """Not supported by this view."""
        raise NotImplementedError


def part_of(record: EpisodeRecord, machine: int) -> EpisodeRecord:
    """One machine's trajectories in an episode."""
    assert record.machines is not None
    mine = record.machines == machine
    return EpisodeRecord.from_arrays({name: array[mine] for name, array in record.arrays().items()})


def fleet_metrics(
    fleet: AbstractRobot,
    task: Task,
    record: EpisodeRecord,
    sound: Bool[np.ndarray, "trajectories steps"],
    run: str,
    episode: int,
    robot_time_s: float,
) -> dict[str, Any]:
    """Of an episode of several machines: an entry per machine that took part, and the time that it took.

    A machine took part where it measured anything, and is judged by its `sound` steps, as one that learns alone: what a
    spike or a stuck sensor reports is no error of the machine's. `robot_time_s` is the time before: machines that move
    at the same time take that of the longest share.
    """
    assert record.machines is not None
    entries, longest = [], 0
    for member in fleet.members:
        own = part_of(record, member.index)
        if not own.valid.any():
            continue
        longest = max(longest, own.valid.shape[0])
        believed = sound[record.machines == member.index]
        measured = dataclasses.replace(own, truth=None, valid=believed)
        entries.append(
            {
                "machine": member.address,
                "index": member.index,
                "trajectories": int(own.valid.any(axis=1).sum()),
                "measured_tracking_error": tracking_metrics(task.spec, (measured,)).measured_mean_error,
                "valid_share": float(believed.mean()),
                **authority_metrics(member.robot.machine_id, run, episode, member.robot.authority),
            }
        )
    share = longest / len(record.machines)
    return {"machines": entries, "robot_time_s": robot_time_s + share * task.episode_s}
