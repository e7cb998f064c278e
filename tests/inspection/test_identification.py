"""What `firsthand inspect` reports, against robots whose answers are known."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import firsthand as fh
from firsthand.inspection import Inspection, InspectionSettings, conclude, excite
from firsthand.inspection.excitation import is_settling
from firsthand.inspection.proposals import propose
from firsthand.inspection.stopping import measure_stopping
from firsthand.inspection.summary import strength, times
from firsthand.robots.servo_axes import ServoAxes
from firsthand_onboard import SelectedOutput, SpecError
from firsthand_onboard.gate import Gate
from firsthand_onboard.gate_limits import GateLimits

from .probe import PERIOD_S, ProbeRobot, Truth, UnstableRobot


def inspect(truth: Truth, *, minutes: float = 2.0, seed: int = 0, amplitude: float = 0.5) -> Inspection:
    robot, wanted = ProbeRobot(truth, seed=seed), InspectionSettings(minutes, amplitude, seed)
    return conclude("probe", robot.task.spec, wanted, excite(robot, wanted))


@settings(max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    delay=st.integers(0, 6),
    gain=st.floats(0.3, 1.5),
    lag=st.floats(0.3, 4.0),
    kind=st.sampled_from(["position", "rate"]),
    velocities=st.booleans(),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_dead_time_gain_and_rise(delay: int, gain: float, lag: float, kind: str, velocities: bool, sign: float) -> None:
    truth = Truth(kind=kind, delay=delay, gain=sign * gain, lag_steps=lag, velocities=velocities)
    found = inspect(truth).findings.channels[0]
    assert found.responds
    assert found.dead_time_steps == delay
    assert found.kind == kind
    assert found.gain_plus == pytest.approx(truth.gain, rel=0.06)
    assert found.gain_minus == pytest.approx(truth.gain, rel=0.06)
    # 63 % of a first-order lag is reached one time constant after the dead time; sampling hides less than a period.
    assert abs(found.rise_steps - (delay + lag)) < 1.0


@settings(max_examples=8)
@given(delay=st.integers(0, 5), band=st.floats(0.05, 0.25), gain=st.floats(0.5, 1.5))
def test_a_dead_band_does_not_pass_for_dead_time(delay: int, band: float, gain: float) -> None:
    truth = Truth(delay=delay, dead_band=band, gain=gain, lag_steps=3.0)
    found = inspect(truth, minutes=3.0).findings.channels[0]
    assert found.dead_time_steps == delay
    for edge in (found.dead_band_plus, found.dead_band_minus):
        assert edge is not None
        assert edge.silent <= band <= edge.responding
        assert edge.edge == pytest.approx(band, abs=0.02)
    assert found.gain_plus == pytest.approx(gain, rel=0.08)


@pytest.mark.parametrize("kind", ["position", "rate"])
def test_the_gain_of_a_slow_robot_is_read_from_pushes_that_went_on(kind: str) -> None:
    truth = Truth(kind=kind, gain=0.8, delay=2, lag_steps=8.0, steps=125)
    found = inspect(truth, minutes=3.0).findings.channels[0]
    # What is left of the lag in the last quarter of a push of 25 periods.
    settled = 1 - np.exp(-(np.arange(20, 26) - 2) / 8.0).mean()
    assert found.gain_plus == pytest.approx(0.8 * settled, rel=0.02)
    assert found.gain_minus == pytest.approx(0.8 * settled, rel=0.02)


@pytest.mark.parametrize("delay", [1, 3])
def test_short_pushes_of_a_robot_that_falls_show_its_dead_time(delay: int) -> None:
    for seed in range(4):
        truth = Truth(delay=delay, gain=0.3, limit=0.3)
        robot, wanted = UnstableRobot(truth, seed=seed), InspectionSettings(2.0, 0.5, seed)
        recording = excite(robot, wanted)
        found = conclude("probe", robot.task.spec, wanted, recording).findings.channels[0]
        assert found.dead_time_steps in (delay, delay + 1)


def test_a_robot_that_is_sampled_fast_is_pushed_long_enough() -> None:
    truth = Truth(gain=0.8, lag_steps=60.0, steps=2500, period_s=0.001)
    found = inspect(truth, minutes=0.5).findings.channels[0]
    assert found.kind == "rate"
    assert found.gain_plus == pytest.approx(0.8, rel=0.02)
    assert found.rise_steps == pytest.approx(2 + 60, abs=2.0)


@pytest.mark.parametrize("noise", [0.0, 0.0005])
def test_a_speed_that_neutral_ends_is_a_rate_however_slowly_it_settles(noise: float) -> None:
    result = inspect(Truth(delay=7, gain=0.8, lag_steps=8.0, noise=noise), minutes=3.0)
    found = result.findings.channels[0]
    assert found.kind == "rate"
    assert not found.settles
    assert any("too short to see where the speed that u0 sets settles" in note for note in result.findings.notes)
    assert times(result)[0][4].startswith("≥")
    assert strength(result)[0][-2].startswith("≥")
    assert found.gain_plus < 0.8  # what is shown is less than the truth
    assert result.stopping is not None
    (dead,), (way,) = result.stopping["dead_time_s"], result.stopping["lag_s"]
    assert (7 + 8) * PERIOD_S <= dead + way <= 1.5 * (7 + 8) * PERIOD_S + 2 * PERIOD_S


def test_a_mass_that_noise_hides_does_not_pass_for_a_rate() -> None:
    truth = Truth(kind="acceleration", delay=2, gain=0.5, lag_steps=0.2, noise=0.003)
    assert inspect(truth, minutes=3.0).findings.channels[0].kind == "acceleration"


def test_an_edge_that_noise_hides_is_not_given_as_a_number() -> None:
    result = inspect(Truth(delay=2, dead_band=0.12, gain=0.3, lag_steps=3.0, noise=0.003), minutes=3.0)
    band = result.findings.channels[0].dead_band_plus
    assert band is not None
    assert band.silent == 0.0
    assert band.responding > 0.12
    row = strength(result)[0]
    assert row[3] == f"≤ {band.responding:.2g}"
    assert row[5].startswith("≥")
    (channel,) = result.as_dict()["channels"]
    assert np.isnan([channel["dead_band"]["plus"]["edge"], channel["gain"]["plus"]]).all()
    assert channel["dead_band"]["plus"]["responding"] == band.responding


def test_settling_time_of_a_first_order_lag() -> None:
    found = inspect(Truth(delay=3, lag_steps=3.0)).findings.channels[0]
    # 5 % are left after ln 20 = 3.0 time constants.
    assert found.settling_steps == pytest.approx(3 + 3.0 * np.log(20), abs=1.0)


@pytest.mark.parametrize("kind", ["position", "rate"])
def test_noise_hides_a_response_for_one_period_at_most(kind: str) -> None:
    for seed in range(6):
        truth = Truth(kind=kind, delay=3, gain=0.8, lag_steps=3.0, noise=0.001)
        result = inspect(truth, seed=seed)
        found = result.findings.channels[0]
        assert found.dead_time_steps in (3, 4)
        assert result.findings.noise[0] == pytest.approx(0.001, rel=0.25)
        assert found.gain_plus == pytest.approx(0.8, rel=0.06)


def test_gain_without_drift_and_in_the_unit_of_the_command() -> None:
    truth = Truth(gain=0.05, drift=0.02, half_range=10.0, neutral=4.0, dead_band=1.0)
    found = inspect(truth, minutes=3.0).findings.channels[0]
    assert found.gain_plus == pytest.approx(0.05, rel=0.08)
    assert found.gain_minus == pytest.approx(0.05, rel=0.08)
    assert found.dead_band_plus is not None
    assert found.dead_band_plus.edge == pytest.approx(1.0, abs=0.2)


class Warming(ProbeRobot):
    """A wall on its way to where what it loses is what it gets: it drifts less and less."""

    def _step(self, command: np.ndarray) -> None:
        before = self.position
        super()._step(command)
        self.position = self.position - PERIOD_S * 0.02 * before


def test_a_drift_that_changes_is_neither_gain_nor_noise() -> None:
    robot = Warming(Truth(gain=0.1, drift=0.05, noise=2e-4))
    settings = InspectionSettings(3.0, 0.5, 0)
    found = conclude("wall", robot.task.spec, settings, excite(robot, settings)).findings
    assert found.stands_still
    (channel,) = found.channels
    assert (channel.gain_minus, channel.gain_plus) == pytest.approx((0.1, 0.1), rel=0.1)
    assert found.noise[0] == pytest.approx(2e-4, rel=0.25)


@pytest.mark.parametrize("velocities", [True, False])
def test_a_mass_that_is_pushed(velocities: bool) -> None:
    truth = Truth(kind="acceleration", delay=2, gain=1.0, lag_steps=0.2, velocities=velocities)
    result = inspect(truth)
    assert result.recording.stopped == ""
    assert np.abs(result.recording.after[:, 0]).max() < truth.limit
    found = result.findings.channels[0]
    assert found.kind == "acceleration"
    assert found.dead_time_steps == 2
    assert found.gain_plus == pytest.approx(1.0, rel=0.1)


def test_coupling_alone_and_together() -> None:
    mixing = ((1.0, 0.0), (0.5, -0.8), (0.0, 0.0))
    result = inspect(Truth(gain=0.6, mixing=mixing, delay=1), minutes=3.0)
    effects = result.findings.coupling
    alone = effects.alone / np.abs(effects.alone).max()
    assert alone == pytest.approx(np.asarray(mixing), abs=0.03)
    # The robot is linear: together is as alone.
    assert effects.together == pytest.approx(effects.alone, abs=0.03 * np.abs(effects.alone).max())
    assert effects.clear.tolist() == [[True, False], [True, True], [False, False]]
    assert [c.moves for c in result.findings.channels] == ["p0", "p1"]


def test_a_channel_that_moves_nothing_is_named() -> None:
    result = inspect(Truth(mixing=((1.0, 0.0),), noise=0.001), minutes=3.0)
    first, second = result.findings.channels
    assert first.responds
    assert not second.responds
    assert any(note.startswith("u1 does not respond") for note in result.findings.notes)
    assert result.proposal is not None


def inspect_swapped() -> Inspection:
    """Two joints, each with the other's velocity sensor."""
    mixing = ((1.0, 0.0), (0.0, 0.8))
    robot = ProbeRobot(Truth(delay=4, gain=0.6, lag_steps=3.0, mixing=mixing, velocities=True, noise=1e-3))
    spec = robot.task.spec
    spec = replace(spec, layout=replace(spec.layout, velocity=(3, 2)))
    robot.task = replace(robot.task, spec=spec)
    settings = InspectionSettings(3.0, 0.5, 0)
    return conclude("probe", spec, settings, excite(robot, settings))


def test_nothing_is_proposed_where_a_response_comes_before_its_dead_time_is_over() -> None:
    result = inspect_swapped()
    assert all(channel.lag_steps < 0 for channel in result.findings.channels)
    assert result.proposal is None
    assert result.stopping is None
    assert any("is over: what is measured of p0 is not its response" in note for note in result.findings.notes)


def test_velocities_that_are_swapped_are_named() -> None:
    notes = inspect_swapped().findings.notes
    assert any(note.startswith("v1 follows p1, not p0") for note in notes)
    assert any(note.startswith("v0 follows p0, not p1") for note in notes)
    coupled = Truth(gain=0.6, mixing=((1.0, 0.2), (0.9, 0.4)), velocities=True, noise=1e-3)
    assert not any("follows" in note for note in inspect(coupled, minutes=3.0).findings.notes)


def test_commands_are_remembered_for_longer_than_the_dead_time() -> None:
    result = inspect(Truth(delay=3, lag_steps=5.0, gain=0.8))
    (found,) = result.findings.channels
    # Noise can make a dead time look one period longer than it is.
    late = replace(found, dead_time_steps=9, rise_steps=8.6)
    proposal = propose(replace(result.findings, channels=(late,)), result.recording, result.spec)
    assert proposal is not None
    assert proposal.command_memory == 10
    assert "lag 0.0" in proposal.reasons["command_memory"]


def test_nothing_is_proposed_for_a_robot_that_does_not_respond() -> None:
    result = inspect(Truth(gain=0.0, noise=0.001))
    assert result.proposal is None
    assert result.as_dict()["channels"][0]["responds"] is False


def test_proposals_follow_the_robot() -> None:
    truth = Truth(delay=3, lag_steps=5.0, gain=0.8)
    proposal = inspect(truth).proposal
    assert proposal is not None
    assert proposal.period_s == PERIOD_S
    assert proposal.command_memory in (8, 9)  # dead time and lag
    assert proposal.preview[-1] >= 3 + 5
    assert proposal.measured_center == (0.0,)
    assert proposal.measured_scale == (3.0,)
    # One period at full speed.
    assert proposal.change_scale[0] == pytest.approx(0.8 * PERIOD_S, rel=0.15)


def inspect_tracked(share: float, *, rate: float = 1.0, noise: float = 0.0) -> Inspection:
    """p0 is the position, p1 is tracked and moves `share` as far."""
    robot = ProbeRobot(Truth(delay=3, lag_steps=5.0, gain=0.8, noise=noise, mixing=((1.0,), (share,))))
    spec = robot.task.spec
    spec = replace(
        spec,
        layout=replace(spec.layout, position=(0,)),
        limits=replace(spec.limits, position_low=(-3.0,), position_high=(3.0,)),
        kinematics=SelectedOutput((1,)),
        preview=(1, 30),
        scales=replace(spec.scales, measured_center=(0.0, 0.4), measured_scale=(1.0, 1.8)),
        reference=replace(spec.reference, rate_low=(-rate,), rate_high=(rate,)),
    )
    robot.task = replace(robot.task, spec=spec, home=(0.0,))
    settings = InspectionSettings(2.0, 0.5, 0)
    return conclude("probe", spec, settings, excite(robot, settings))


def test_what_is_tracked_is_scaled_as_the_task_has_it_and_looked_ahead_for() -> None:
    proposal = inspect_tracked(0.7).proposal
    assert proposal is not None
    assert (proposal.measured_center, proposal.measured_scale) == ((0.0, 0.4), (3.0, 1.8))
    assert 3 + 5 <= proposal.preview[-1] <= 2 * (3 + 5)
    unseen = inspect_tracked(0.0, noise=0.01).proposal
    assert unseen is not None
    assert unseen.preview[-1] == 30
    assert unseen.reasons["preview"].startswith("As far as it is")


def test_references_that_are_faster_than_the_robot_are_named() -> None:
    assert not any("`rate`" in note for note in inspect_tracked(0.7, rate=1.0).findings.notes)
    notes = inspect_tracked(0.7, rate=100.0).findings.notes
    assert any(note.startswith("The task asks for 100 per s of p1 (`rate`)") for note in notes)


def test_a_position_that_swings_along_does_not_stand_for_the_channel() -> None:
    class Crane(ProbeRobot):
        """p1 hangs on p0 and swings with a period of four seconds."""

        swing = speed = 0.0

        def _step(self, command: np.ndarray) -> None:
            before = self.rate[0]
            super()._step(command)
            push = 4.0 * (self.rate[0] - before)
            self.speed += -push - PERIOD_S * ((np.pi / 2) ** 2 * self.swing + 0.5 * self.speed)
            self.swing += PERIOD_S * self.speed
            self.position = np.asarray([self.position[0], self.swing])

    robot, settings = Crane(Truth(gain=0.4, mixing=((1.0,), (0.0,)))), InspectionSettings(3.0, 0.5, 0)
    (found,) = conclude("crane", robot.task.spec, settings, excite(robot, settings)).findings.channels
    assert (found.moves, found.kind) == ("p0", "rate")
    assert found.gain_plus == pytest.approx(0.4, rel=0.1)


def test_a_robot_that_is_sampled_too_slowly_is_offered_a_shorter_period() -> None:
    proposal = inspect(Truth(kind="position", delay=0, lag_steps=1.0)).proposal
    assert proposal is not None
    assert proposal.period_s < PERIOD_S
    spec = ProbeRobot(Truth()).task.spec
    assert proposal.snippet(spec).startswith(f"# period_s={proposal.period_s:g} would be better: inspect again")
    kept = replace(proposal, period_s=PERIOD_S)
    assert kept.snippet(spec).startswith(f"period_s={PERIOD_S:g},\n")
    # What is to be pasted is for the period in use.
    assert proposal.command_memory <= 2
    slower = replace(proposal, period_s=2 * PERIOD_S)
    assert slower.snippet(spec).startswith(f"# period_s={2 * PERIOD_S:g}, change the environment's dt first")


@pytest.mark.parametrize("attribute", ["task", "task()"])
def test_what_is_to_be_pasted_runs(attribute: str) -> None:
    proposal, spec = inspect(Truth(delay=3, lag_steps=5.0)).proposal, ProbeRobot(Truth()).task.spec
    assert proposal is not None
    task = fh.GymnasiumTask(
        env=lambda: ServoAxes(low=[-3.0], high=[3.0], speed=1.0, period_s=PERIOD_S, has_velocities=False),
        positions=(0,),
        position_low=-3.0,
        position_high=3.0,
        rate=0.5,
    )
    names: dict[str, Any] = {"task": task if attribute == "task" else lambda: task}
    exec(proposal.paste(spec, attribute), names)
    pasted = names["task"].make_task().spec
    assert pasted.layout.command_memory == proposal.command_memory
    assert (pasted.preview, pasted.scales.measured_scale) == (proposal.preview, proposal.measured_scale)


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (inspect(Truth(noise=0.001), seed=3).as_dict() for _ in range(2))
    np.testing.assert_equal(first, second)


@pytest.mark.parametrize("velocities", [True, False])
@pytest.mark.parametrize(("delay", "lag"), [(0, 2.0), (2, 4.0), (5, 6.0)])
def test_how_it_stops_is_what_the_gate_needs(velocities: bool, delay: int, lag: float) -> None:
    truth = Truth(delay=delay, lag_steps=lag, velocities=velocities, steps=125)
    found = inspect(truth, minutes=3.0)
    assert found.stopping is not None
    (dead,), (way,) = found.stopping["dead_time_s"], found.stopping["lag_s"]
    total = (delay + lag) * PERIOD_S  # a first-order lag goes on for its time constant
    assert total <= dead + way <= 1.5 * total + 2 * PERIOD_S
    limits = GateLimits.of(found.spec, directions=((0, 1),), stopping=found.stopping)
    assert limits.stop_lag_s == (way,)


def test_a_robot_that_neutral_does_not_stop_is_told_to_brake() -> None:
    found = inspect(Truth(kind="acceleration", gain=2.0, delay=1, lag_steps=0.3, velocities=True), minutes=3.0)
    assert found.stopping is not None
    assert found.stopping["lag_s"] == [None]
    assert found.stopping["brake"] == [1.0]
    assert 1.2 <= found.stopping["deceleration"][0] <= 2.0
    assert Gate(found.spec, GateLimits.of(found.spec, directions=((0, 1),), stopping=found.stopping)).brakes
    with pytest.raises(SpecError, match="Say how it stops"):
        GateLimits.of(found.spec, directions=((0, 1),), stopping={"lag_s": found.stopping["lag_s"]})


def test_commands_that_set_positions_have_no_stopping() -> None:
    assert inspect(Truth(kind="position")).stopping is None


@pytest.mark.parametrize(("unit", "stops"), [("°C", False), ("rad", True), ("", True)])
def test_a_temperature_has_no_joints_that_stop(unit: str, stops: bool) -> None:
    found = inspect(Truth(delay=2, lag_steps=4.0), minutes=1.0)
    spec = replace(found.spec, layout=replace(found.spec.layout, measured_units=(unit,)))
    assert (measure_stopping(found.recording, found.findings, spec) is not None) == stops


@pytest.mark.parametrize(
    ("path", "settles"),
    [
        (lambda k, rng: 1.0 - np.exp(-k / 30.0), True),
        (lambda k, rng: np.exp(-k / 5.0) + 0.01 * rng.standard_normal(len(k)), True),
        (lambda k, rng: 0.01 * k, False),  # drifts, or runs away
        (lambda k, rng: np.exp(k / 30.0), False),  # falls
        (lambda k, rng: 0.1 * rng.standard_normal(len(k)), False),
        (lambda k, rng: 0.004 * (1.0 - np.exp(-k / 10.0)), False),  # too little to matter
    ],
)
def test_settling_is_told_from_noise_and_from_drift(path, settles: bool) -> None:
    values = path(np.arange(61.0), np.random.default_rng(0))
    assert is_settling(np.diff(values)[:, None], np.asarray([2.0])) == settles


def test_a_robot_that_still_settles_at_first_is_waited_for() -> None:
    """A leaking tank on its way to its level: a command sets its rate, as when it had stood still."""

    class Tank(ServoAxes):
        def __init__(self) -> None:
            super().__init__(low=[0.0], high=[3.0], speed=1.0, period_s=20.0, command_low=0.0, command_high=1.0)
            self.observation_space = gymnasium.spaces.Box(0.0, 3.0, (1,))

        def place(self, position):
            self.level = np.asarray(position, float)
            return self.level.copy()

        def step(self, action):
            for _ in range(20):
                self.level = self.level + 0.012 * np.asarray(action, float) - 0.004 * np.sqrt(self.level)
            return self.level.copy(), 0.0, False, False, {}

    source = fh.GymnasiumTask(env=Tank, positions=(0,), position_low=0.0, position_high=3.0, rate=0.0015, neutral=0.0)
    task = source.make_task()
    robot = source.make_robot(task, payload_kg=0.0, seed=0)
    settings = InspectionSettings(minutes=300.0, amplitude=0.5, seed=0)
    found = conclude("tank", task.spec, settings, excite(robot, settings)).findings
    robot.close()
    assert found.stands_still
    assert found.channels[0].kind == "rate"
    assert found.channels[0].gain_plus == pytest.approx(0.012, rel=0.5)  # it leaks while it is pushed
