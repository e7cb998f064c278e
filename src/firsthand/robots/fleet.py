"""Several machines of one kind as one robot: `firsthand train tcp/a tcp/b`.

The trajectories of an episode are divided among the machines that are there, which move at the same time, each behind
its own onboard program: its own lease, gate and authority. If a machine cannot be reached, its share of the episode is
left out, and the trainer goes on trying to reach it in the background. It takes part again in the next episode for
which it is there. The loop sees one robot and one record.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from firsthand_onboard.link import identity

from ..console import notify
from ..errors import UserError
from ..models import Controller, Policy
from ..tasks import Task
from ..tasks.base import EvaluationReference
from .base import AbstractRobot, EpisodeAbandoned, EpisodeRecord
from .description import spec_difference
from .onboard import Arrays, as_record
from .remote import PATIENCE_S, RemoteAddress, RemoteRobot, RobotAway
from .source import RobotSource

DROP_S = 5.0
"""In the middle of an episode a machine in trouble is waited for so long; then its share is left out."""
LOOK_S = 1.0
"""A machine that is away is looked for this often."""


@dataclass(frozen=True)
class FleetAddress:
    """Where several machines are, and which robot they are."""

    addresses: tuple[str, ...]
    name: str = ""

    @staticmethod
    def parse(text: str) -> "FleetAddress":
        """From `NAME@tcp/host:port,tcp/host:port`, with or without the name."""
        name, _, addresses = text.rpartition("@")
        parts = tuple(RemoteAddress.parse(address).address for address in addresses.split(","))
        if len(set(parts)) < len(parts):
            raise UserError(f"ROBOT is {text!r}, which names an address more than once.")
        return FleetAddress(parts, name)

    def full_name(self) -> str:
        """With the robot's name, which the machines are asked for; `UserError` where they are of different kinds."""
        name = self.name or self._ask()
        return f"{name}@{','.join(self.addresses)}"

    def _ask(self) -> str:
        found: dict[str, Any] = {}
        reasons = []
        for address in self.addresses:
            try:
                found[address] = RemoteAddress(address).ask_spec()
            except RobotAway as error:
                reasons.append(str(error))
        if not found:
            raise UserError(reasons[0])
        (first, spec), *others = found.items()
        for address, other in others:
            if difference := spec_difference(other, spec):
                raise UserError(
                    f"The machine at {address} is not of the kind of the one at {first}: {difference}; machines that "
                    "learn together have one control specification."
                )
        for reason in reasons:
            notify(f"{reason} The run begins without it; it may join later.")
        return spec.robot


@dataclass(frozen=True)
class FleetSource(RobotSource):
    """Several machines, from their addresses."""

    at: FleetAddress
    find_source: Callable[[str], RobotSource]
    """Where the robot that they are would come from by name."""

    def make_task(self) -> Task:
        """The task of the robot that the machines are."""
        return self.find_source(self.at.full_name().rpartition("@")[0]).make_task()

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> "Fleet":
        """Connects when it is first used."""
        if payload_kg:
            raise UserError(f"payload is {payload_kg} kg, but the load of a machine is what it carries.")
        return Fleet([RemoteRobot(a, task, run=f"seed{seed}-{identity()[:8]}") for a in self.at.addresses])


@dataclass
class Member:
    """One machine of a fleet."""

    robot: RemoteRobot
    index: int
    """Its place in the fleet's name, and in `EpisodeRecord.machines`."""
    away: str = ""
    """Why it takes no part; empty while it does."""
    excluded: bool = False
    """Whether it is not looked for any more: another kind of machine is there now."""
    controller: Policy | Controller | None = None
    """Its policy in the next episode; None for the common one."""

    @property
    def address(self) -> str:
        """Where it is."""
        return self.robot.address


class Fleet(AbstractRobot):
    """Machines of one kind that collect at the same time."""

    hardware = True
    has_authority = True
    pauses_between_trajectories = True

    def __init__(self, robots: Sequence[RemoteRobot], *, patience_s: float = PATIENCE_S) -> None:
        self.members: list[Member] = [Member(robot, i) for i, robot in enumerate(robots)]
        self.task, self.patience_s = robots[0].task, patience_s
        self._division: list[tuple[Member, int]] = []
        self._episodes = 0
        self._closed = threading.Event()
        self._looking: set[int] = set()

    # Who is there.

    @property
    def present(self) -> list[Member]:
        """The machines that take part."""
        return [member for member in self.members if not member.away]

    @property
    def lead(self) -> RemoteRobot:
        """The first machine that is there: it is measured, evaluated on and speaks for the fleet."""
        return (self.present or self.members)[0].robot

    def shares(self, count: int) -> list[tuple[int, Float[np.ndarray, " measured"]]]:
        """The trajectories divided among the machines that are there; the first of them changes from time to time."""
        deadline = time.monotonic() + self.patience_s
        while True:
            found = self._look()
            if found:
                break
            if self.stop_wanted is not None and self.stop_wanted():
                raise EpisodeAbandoned
            if time.monotonic() > deadline or all(member.excluded for member in self.members):
                raise UserError(f"None of the machines is there: {self.members[0].away}")
            time.sleep(0.2)
        turn = self._episodes % len(found)
        order = [*found[turn:], *found[:turn]][:count]
        each, more = divmod(count, len(order))
        self._division = [(member, each + (i < more)) for i, (member, _) in enumerate(order)]
        return [(share, measured) for (_, share), (_, measured) in zip(self._division, order, strict=True)]

    def _look(self) -> list[tuple[Member, np.ndarray]]:
        """What each machine that takes part measures, asked at the same time. One that would not move takes no part."""
        found: dict[int, np.ndarray] = {}

        def look(member: Member) -> None:
            found[member.index] = member.robot.measured_if_ready()

        self._together([(member, look) for member in self.present])
        return [(member, found[member.index]) for member in self.members if member.index in found]

    def _together(self, work: Sequence[tuple[Member, Callable[[Member], None]]]) -> bool:
        """Do something on several machines at once; whether somebody has abandoned the episode."""
        failed: list[BaseException] = []

        def guarded(member: Member, action: Callable[[Member], None]) -> None:
            robot = member.robot
            robot.patience_s, robot.stop_wanted = DROP_S, self.stop_wanted
            robot.before_trajectory = self.before_trajectory
            try:
                action(member)
            except RobotAway as error:
                self._leave(member, str(error))
            except UserError as error:
                if self._episodes == 0:  # nothing has been learned yet: let the user decide
                    failed.append(error)
                member.excluded = True
                self._leave(member, str(error))
            except BaseException as error:  # for the trainer's thread
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=part, daemon=True) for part in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in failed:
            if not isinstance(error, EpisodeAbandoned):
                raise error
        return bool(failed)

    def _leave(self, member: Member, why: str) -> None:
        member.away = why
        notify(f"{member.address} takes no part: {why}{'' if member.excluded else ' The others go on.'}")
        if not member.excluded and member.index not in self._looking:
            self._looking.add(member.index)
            threading.Thread(target=self._look_for, args=(member, self._closed, self._looking), daemon=True).start()

    def _look_for(self, member: Member, closed: threading.Event, looking: set[int]) -> None:
        """Until the machine is there again and would move, or the fleet is closed."""
        while not closed.wait(LOOK_S):
            member.robot.patience_s, member.robot.before_trajectory = 0.0, None
            try:
                member.robot.measured_if_ready()
            except RobotAway:
                continue
            except EpisodeAbandoned:
                break
            except UserError as error:
                member.excluded, member.away = True, str(error)
                notify(f"{member.address} takes no part: {error}")
                break
            if closed.is_set():
                break
            looking.discard(member.index)
            notify(f"{member.address} takes part from the next episode on.")
            member.away = ""
            return
        looking.discard(member.index)

    # An episode.

    def run_episode(
        self,
        policy: Policy | Controller,
        goals: Float[np.ndarray, "trajectories goal"],
        excitation: Float[np.ndarray, "trajectories steps commands"] | None = None,
    ) -> EpisodeRecord:
        """Each machine visits its share of the goals, all at the same time.

        Trajectories that a machine did not bring back are in the record as steps that did not happen.
        """
        goals = np.asarray(goals, np.float32)
        done: list[Arrays | None] = [None] * len(goals)
        machines = np.zeros(len(goals), np.int32)
        while True:
            if sum(share for _, share in self._division) != len(goals):
                self.shares(len(goals))
            work, first = [], 0
            for member, share in self._division:
                rows = range(first, first + share)
                machines[first : first + share], first = member.index, first + share
                work.append((member, self._visitor(policy, goals, excitation, rows, done)))
            self._division = []
            if self._together(work):
                raise EpisodeAbandoned
            if any(part is not None for part in done):
                break
        self._episodes += 1
        return _as_record(done, machines)

    def run_alike(self) -> None:
        """No machine has a policy of its own."""
        for member in self.members:
            member.controller = None

    def _visitor(
        self, policy: Policy | Controller, goals: np.ndarray, excitation: Any, rows: range, done: list[Arrays | None]
    ) -> Callable[[Member], None]:
        """What one machine does in an episode; what it brings is put into `done` as it comes."""

        def visit(member: Member) -> None:
            def arrived(index: int, arrays: Arrays) -> None:
                done[rows[index]] = arrays

            arrays = {"goals": goals[rows.start : rows.stop]}
            if excitation is not None:
                arrays["excitation"] = np.asarray(excitation[rows.start : rows.stop], np.float32)
            member.robot.arrived = arrived
            try:
                member.robot.execute("visit", member.controller or policy, arrays, len(rows))
            finally:
                member.robot.arrived = None
            member.robot.go_home()

        return visit

    # What is asked of one machine.

    @property
    def authority(self) -> float:
        """The lead's; each machine has its own."""
        return self.lead.authority

    @authority.setter
    def authority(self, share: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.lead.authority = share

    @property
    def machine_id(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the lead machine."""
        return self.lead.machine_id

    @property
    def can_reset(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the lead is a simulation."""
        return self.lead.can_reset

    @property
    def neutral_between_motions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the lead machine."""
        return self.lead.neutral_between_motions

    def measured(self) -> Float[np.ndarray, " measured"]:
        """What the lead's sensors say."""
        return self.lead.measured()

    def play(self, commands: Float[np.ndarray, "steps commands"]) -> Float[np.ndarray, "steps_and_last measured"]:
        """Commands open loop, on the lead."""
        return self.lead.play(commands)

    def play_applied(
        self, commands: Float[np.ndarray, "steps commands"]
    ) -> tuple[Float[np.ndarray, "steps_and_last measured"], Float[np.ndarray, "steps commands"]]:
        """Commands open loop, on the lead."""
        return self.lead.play_applied(commands)

    def follow(
        self, policy: Policy | Controller, references: tuple[EvaluationReference, ...]
    ) -> tuple[EpisodeRecord, ...]:
        """On the lead."""
        self.lead.patience_s = self.patience_s
        return self.lead.follow(policy, references)

    def snapshot(self) -> Any:
        """Nothing: machines cannot be rewound."""
        return ()

    def restore(self, snapshot: Any) -> None:
        """The machines are where they are."""

    # All of them.

    def finish_trajectory(self) -> None:
        """Every machine finishes its trajectory, and then holds."""
        for member in self.members:
            member.robot.finish_trajectory()

    def stop_at_once(self) -> str:
        """Stop every machine, all at the same time; what each does then."""
        answers: dict[int, str] = {}

        def stop(member: Member) -> None:
            answers[member.index] = f"{member.address}: {member.robot.stop_at_once()}"

        # Also one that takes no part: where its link was lost it may still move.
        threads = [threading.Thread(target=stop, args=(member,), daemon=True) for member in self.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return " ".join(answers[index] for index in sorted(answers))

    def close(self) -> None:
        """Give every lease back and leave."""
        self._closed.set()
        for member in self.members:
            with contextlib.suppress(UserError):
                member.robot.close()
            if not member.excluded:  # a later use of the fleet asks all of them again
                member.away = ""
        self._closed, self._looking = threading.Event(), set()


def _as_record(done: Sequence[Arrays | None], machines: np.ndarray) -> EpisodeRecord:
    """One record of what several machines did. A trajectory that is missing is another one of which no step counts."""
    some = next(part for part in done if part is not None)
    observed = any(part is not None and "restarts" in part for part in done)
    parts = []
    for part in done:
        arrays = dict(some if part is None else part)
        if observed:  # a machine may have gone back to a policy without an observer
            arrays.setdefault("restarts", np.zeros(arrays["measured"].shape[-1], np.float32))
        if part is None:
            arrays["valid"] = np.zeros_like(arrays["valid"])
        parts.append(arrays)
    return dataclasses.replace(as_record(parts), machines=machines)
