"""Predictive control from data, on linear plants whose answers are known."""

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

from firsthand.errors import UserError
from firsthand.plants.linear_quadratic import augmented_system, solve_tracking
from firsthand.plants.probes import DelayedDoubleIntegrator
from firsthand.robots.simulated import SimulatedRobot
from firsthand_lab.baselines.pid import follow_episode
from firsthand_lab.baselines.predictive import design, learner, program, recording
from firsthand_lab.baselines.predictive.controller import PredictiveController
from firsthand_lab.baselines.predictive.deepc import DeePC, change_cost
from firsthand_lab.baselines.predictive.input_map import InputMap, choose_map
from firsthand_lab.baselines.predictive.joint_reference import JointReference
from firsthand_lab.baselines.predictive.koopman import Koopman
from firsthand_lab.baselines.predictive.recording import Series, Windows
from firsthand_lab.baselines.setup import plant_and_task
from firsthand_lab.baselines.view import RobotView
from firsthand_onboard.kinematics import tracked_output

pytest.importorskip("osqp", reason="the extra `mpc` is not installed")

PAST, HORIZON, WEIGHTS, CHANGE = 6, 12, np.array([1.0, 2.0]), np.array([0.01, 0.02])


class Linear:
    """Two coupled axes with lag, driven at a speed, two periods of dead time: x⁺ = A x + B u, y = C x."""

    def __init__(self) -> None:
        axis, delay = np.array([[1.0, 0.1], [0.0, 0.7]]), 2
        push = np.kron(np.eye(2), [[0.0], [0.3]]) @ np.array([[1.0, 0.2], [-0.1, 0.8]])
        size = 4 + 2 * delay
        self.A, self.B, self.C = np.zeros((size, size)), np.zeros((size, 2)), np.zeros((2, size))
        self.A[:4, :4], self.A[:4, -2:] = np.kron(np.eye(2), axis), push
        self.A[6:, 4:6] = np.eye(2)
        self.B[4:6] = np.eye(2)
        self.C[0, 0] = self.C[1, 2] = 1.0

    def run(self, steps: int, *, sensor: float = 0.0, process: float = 0.0, seed: int = 0) -> tuple[Series, np.ndarray]:
        """A recording, and the true states."""
        rng = np.random.default_rng(seed)
        x, states, commands = np.zeros(len(self.A)), [], []
        for _ in range(steps):
            states.append(x)
            commands.append(np.clip(rng.uniform(-1, 1, 2) - 0.3 * self.C @ x, -1, 1))
            shake = np.zeros(len(x))
            shake[[1, 3]] = process * rng.standard_normal(2)
            x = self.A @ x + self.B @ commands[-1] + shake
        states.append(x)
        truth = np.stack(states)
        measured = truth @ self.C.T + sensor * rng.standard_normal((steps + 1, 2))
        return Series(measured, np.stack(commands), np.ones(steps, bool)), truth

    def over_horizon(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Outputs over the horizon: gain v + free."""
        gain, free = np.zeros((2 * HORIZON, 2 * HORIZON)), []
        for j in range(HORIZON):
            x = self.A @ x
            free.append(self.C @ x)
            for i in range(j + 1):
                gain[2 * j : 2 * j + 2, 2 * i : 2 * i + 2] = self.C @ np.linalg.matrix_power(self.A, j - i) @ self.B
        return gain, np.concatenate(free)


@pytest.fixture(scope="module")
def exact():
    plant = Linear()
    series, states = plant.run(500)
    return plant, states, Windows.of(series, series.commands, 2, past=PAST, horizon=HORIZON)


def predictors(windows: Windows):
    yield DeePC(windows, past=PAST, horizon=HORIZON, ridge=1e-10, lambda_g=1e4)
    yield Koopman(windows, past=PAST, horizon=HORIZON, outputs=2, splines=0, ridge=1e-12)


def test_commands_of_a_linear_plant_are_those_of_its_true_model(exact):
    plant, states, windows = exact
    i = 200
    gain, free = plant.over_horizon(states[i + PAST])
    reference = np.random.default_rng(1).normal(0.0, 0.2, 2 * HORIZON) + np.tile(windows.past_measured[i, -2:], HORIZON)
    last = windows.past_commands[i, -2:]
    change, before = change_cost(HORIZON, CHANGE)
    weight = np.diag(np.tile(WEIGHTS, HORIZON))
    hessian, linear = 2 * gain.T @ weight @ gain + change, 2 * gain.T @ weight @ (free - reference) + before @ last
    best = -np.linalg.solve(hessian, linear)
    # The same with limits, by a solver of another kind on the true model.
    low, high, rate = np.full(2, -0.5), np.full(2, 0.6), np.full(2, 0.2)
    difference = np.eye(2 * HORIZON) - np.eye(2 * HORIZON, k=-2)
    first = np.r_[last, np.zeros(2 * HORIZON - 2)]
    inside = np.clip(last, low, high)
    first[:2] = inside
    limited = scipy.optimize.minimize(
        lambda v: 0.5 * v @ hessian @ v + linear @ v,
        np.tile(inside, HORIZON),
        jac=lambda v: hessian @ v + linear,
        bounds=list(zip(np.tile(low, HORIZON), np.tile(high, HORIZON), strict=True)),
        constraints=scipy.optimize.LinearConstraint(
            difference, first - np.tile(rate, HORIZON), first + np.tile(rate, HORIZON)
        ),
        method="trust-constr",
        options={"gtol": 1e-8, "xtol": 1e-10, "maxiter": 400},
    ).x
    free_limits = {"output_low": np.full(2, -np.inf), "output_high": np.full(2, np.inf), "weight": 2.0}
    for predictor in predictors(windows):
        plan = predictor.plan(WEIGHTS)
        phi = predictor.features(windows.past_commands[i : i + 1], windows.past_measured[i : i + 1])[0]
        q = plan.from_past @ phi + plan.from_reference @ reference + before @ last
        found = -np.linalg.solve(plan.hessian + change, q)
        np.testing.assert_allclose(found, best, atol=1e-5, err_msg=predictor.name)
        shown = plan.gain @ found + plan.free @ phi + plan.pulled @ reference
        np.testing.assert_allclose(shown, gain @ best + free, atol=1e-5)
        solver = program.CommandProgram(plan.hessian + change, plan.gain, low=low, high=high, rate=rate, **free_limits)
        solved = solver.solve(q, last, plan.free @ phi + plan.pulled @ reference)
        np.testing.assert_allclose(solved[:4], limited[:4], atol=5e-3, err_msg=predictor.name)
        assert (np.abs(solved[:2] - inside) <= rate + 1e-9).all()
        assert ((solved >= np.tile(low, HORIZON)) & (solved <= np.tile(high, HORIZON))).all()


def test_positions_are_kept_inside_their_limits(exact):
    _, _, windows = exact
    predictor = next(predictors(windows))
    plan, i = predictor.plan(WEIGHTS), 200
    change, before = change_cost(HORIZON, CHANGE)
    phi = predictor.features(windows.past_commands[i : i + 1], windows.past_measured[i : i + 1])[0]
    here, last = windows.past_measured[i, -2:], windows.past_commands[i, -2:]
    reference = np.tile(here + 0.3, HORIZON)  # beyond the limit
    free = plan.free @ phi + plan.pulled @ reference
    q = plan.from_past @ phi + plan.from_reference @ reference + before @ last
    ends = []
    for high in (np.inf, 0.1):
        solver = program.CommandProgram(
            plan.hessian + change,
            plan.gain,
            low=-np.ones(2),
            high=np.ones(2),
            rate=np.ones(2),
            output_low=np.full(2, -np.inf),
            output_high=here + high,
            weight=2.0,
        )
        ends.append((plan.gain @ solver.solve(q, last, free) + free)[-2:] - here)
    assert (ends[0] > 0.15).all()
    assert (ends[1] < 0.11).all()


def test_predictions_of_a_noisy_plant_are_nearly_the_kalman_filters():
    """What infinite data would give: the steady-state Kalman filter of the true model, from a Riccati equation."""
    plant, sensor, process, steps = Linear(), 0.02, 0.05, 6000
    series, _ = plant.run(steps, sensor=sensor, process=process)
    noise = np.zeros(plant.A.shape)
    noise[1, 1] = noise[3, 3] = process**2
    read = sensor**2 * np.eye(2)
    # Dead time is known exactly, so that only the four physical states are estimated; tiny noise keeps it regular.
    covariance = scipy.linalg.solve_discrete_are(plant.A.T, plant.C.T, noise + 1e-12 * np.eye(len(noise)), read)
    gain = covariance @ plant.C.T @ np.linalg.inv(plant.C @ covariance @ plant.C.T + read)
    x, estimates = np.zeros(len(plant.A)), []
    for k in range(steps + 1):
        x = x + gain @ (series.measured[k] - plant.C @ x)
        estimates.append(x)
        x = plant.A @ x + (plant.B @ series.commands[k] if k < steps else 0)
    past = 12
    windows = Windows.of(series, series.commands, 2, past=past, horizon=HORIZON)
    learn, test = windows.split(past + HORIZON)
    first = len(windows) - len(test) + past
    reach, _ = plant.over_horizon(np.zeros(len(plant.A)))
    free = np.stack([plant.over_horizon(estimates[first + i])[1] for i in range(0, len(test), 5)])
    test = test.part(slice(None, None, 5))
    optimum = float(
        np.mean(((free + test.future_commands @ reach.T - test.future_outputs).reshape(-1, 2) ** 2) @ WEIGHTS)
    )
    deepc = DeePC(learn, past=past, horizon=HORIZON, ridge=1e-6)
    koopman = Koopman(learn, past=past, horizon=HORIZON, outputs=2, splines=0, ridge=1e-8)
    assert deepc.error(test, WEIGHTS) < 1.1 * optimum
    assert koopman.error(test, WEIGHTS) < 1.1 * optimum
    assert min(deepc.error(test, WEIGHTS), koopman.error(test, WEIGHTS)) > 0.97 * optimum


def test_the_map_finds_a_dead_band_and_leaves_a_linear_plant_alone():
    plant = Linear()
    series, _ = plant.run(2500, sensor=1e-3)
    straight = choose_map(series, np.zeros(2), 2)
    np.testing.assert_array_equal(straight.forward(series.commands[:5]), series.commands[:5])
    dead = InputMap(np.zeros(2), np.array([0.2, 0.0]), np.array([0.3, 0.0]), np.array([1.0, 1.6]), np.ones(2))
    # The same motion behind valves: the commands are those that lead to it.
    behind = dataclasses.replace(series, commands=dead.backward(series.commands))
    found = choose_map(behind, np.zeros(2), 2)
    assert found.up[0] == pytest.approx(0.2, abs=0.05)
    assert found.down[0] == pytest.approx(0.3, abs=0.06)
    assert found.up[1] == found.down[1] == 0.0
    assert found.slope[1] == pytest.approx(1.6, rel=0.3)
    v = np.array([[0.5, -0.4], [-0.3, 0.02]])
    np.testing.assert_allclose(found.forward(found.backward(v)), v, atol=1e-9)


def test_windows_leave_out_what_did_not_happen():
    series, _ = Linear().run(60)
    valid = np.ones(60, bool)
    valid[30] = False
    cut = Windows.of(dataclasses.replace(series, valid=valid), series.commands, 2, past=4, horizon=6)
    assert len(cut) == (30 - 9) + (29 - 9)
    whole = Windows.of(series, series.commands, 2, past=4, horizon=6)
    assert len(whole) == 60 - 9
    k = 4 + 7  # now, of the window with number 7
    np.testing.assert_array_equal(whole.past_measured[7].reshape(4, 2)[-1], series.measured[k])
    np.testing.assert_array_equal(whole.past_commands[7].reshape(4, 2)[-1], series.commands[k - 1])
    np.testing.assert_array_equal(whole.future_commands[7].reshape(6, 2)[0], series.commands[k])
    np.testing.assert_array_equal(whole.future_outputs[7].reshape(6, 2)[0], series.measured[k + 1])


def test_the_joints_reference_puts_the_tip_where_it_is_wanted():
    _, task = plant_and_task("excavator")
    spec = task.spec
    reference = JointReference(spec, 18, np.ones(4))
    measured = np.r_[np.asarray(task.home), np.zeros(4)]
    reference.begin(measured)
    tip = np.asarray(tracked_output(spec, measured))
    points = tip + np.linspace(0, 1, 1 + len(spec.preview))[:, None] * np.array([0.2, -0.15])
    rows = reference(points)
    there = np.asarray(tracked_output(spec, np.r_[rows[-1], np.zeros(4)]))
    np.testing.assert_allclose(there, points[-1], atol=2e-3)


@pytest.mark.parametrize("name", ["deepc", "koopman"])
def test_a_delayed_mass_is_steered_nearly_as_well_as_by_its_true_model(name, make_probe_task, monkeypatch):
    """From excitation alone, against the optimum of a controller that knows the plant and the whole reference."""
    limit, length, change, delay = 1.0, 0.3, 0.02, 2
    plant = DelayedDoubleIntegrator(delay=delay)
    task = make_probe_task(
        measured=2,
        command_memory=delay,
        steps=40,
        preview=tuple(range(1, 21)),
        command_limit=limit,
        length_scale=length,
        change_weight=change,
    )
    monkeypatch.setattr(recording, "MINUTES", 1.0)
    monkeypatch.setattr(recording, "MIN_STEPS", 600)
    found = learner.PredictiveLearner(name, task, seed=0)
    found.excite(SimulatedRobot(plant, task, seed=0))
    assert found.robot_time_s == pytest.approx(60.0, abs=task.episode_s)
    view = RobotView(plant, task, seed=0)
    follow_episode(view, found.make())
    system = augmented_system(plant, delay)
    reached, best = 0.0, 0.0
    for record in view.records:
        start, target = record.starts[0].astype(float), record.references[0, : task.steps].astype(float)
        errors = (record.measured[0, :-1, :1] - target) / length
        commands = np.concatenate([start[2:3][None], record.commands[0]])
        reached += np.mean(errors**2) + change * np.mean(np.diff(commands[:, 0]) ** 2)
        best += solve_tracking(system, target, length_scale=length, change_weight=change).cost(start)
    assert reached < 1.15 * best  # a receding horizon of 2 s costs a little more than the whole reference
    assert reached > 0.99 * best


def test_a_robot_whose_recording_is_all_pieces_is_refused():
    series, _ = Linear().run(400)
    valid = np.arange(400) % 8 != 0
    request = design.Request(dataclasses.replace(series, valid=valid), series.commands, 2, HORIZON, WEIGHTS, CHANGE)
    with pytest.raises(UserError, match="not enough stretches of 16 steps"):
        design.choose_deepc(request)


@pytest.mark.parametrize("valid", [np.arange(400) % 8 != 0, np.arange(400) < 30])
def test_so_it_is_before_the_map_of_its_commands_is_looked_for(valid):
    _, task = plant_and_task("excavator")
    series = Series(np.zeros((401, 8)), np.zeros((400, 4)), valid)
    with pytest.raises(UserError, match="not enough stretches of 18 steps"):
        design.find_map(task, series)


def test_a_missing_solver_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "osqp", None)
    with pytest.raises(UserError, match=r"need the solver OSQP .* `make peers`, or pip install .*lab\[mpc\]"):
        program.require()


def test_a_reading_that_did_not_come_does_not_stay_in_the_correction():
    controller = PredictiveController.__new__(PredictiveController)
    predictor = SimpleNamespace(
        past=1,
        horizon=2,
        features=lambda commands, measured: measured,
        predict=lambda features, commands: np.zeros((1, 2)),
    )
    controller.law = SimpleNamespace(predictor=predictor, weights=np.ones(1), correction=0.5)  # pyright: ignore
    robot: Any = SimpleNamespace(known=5, commands=np.zeros((3, 1)), bias=np.zeros((2, 1)))
    for reading, bias in ((np.nan, 0.0), (1.0, 0.5)):
        robot.measured = np.array([[0.0], [1.0], [reading]])
        controller._correct(robot)
        assert robot.bias[1, 0] == bias
