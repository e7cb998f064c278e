"""The guard: what it lets run, when it goes back, and that a resume knows what it knew."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent import LearnerState, Rollout, Settings
from firsthand.control.files import Request
from firsthand.errors import UserError
from firsthand.models import Controller, Observer, Policy
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import SimulatedRobot, earned
from firsthand.robots.earned import authority_metrics
from firsthand.robots.registry import make_task
from firsthand.robots.remote import RemoteRobot
from firsthand.runs import RunFolder
from firsthand.training import FolderRecorder, Trainer, TrainingConfig, preset
from firsthand.training.forecast import Forecast, forecast, interpolate
from firsthand.training.guard import Guard, recall
from firsthand.training.judgement import GuardSettings, GuardState, judge_episode
from firsthand.training.learning import with_policy
from firsthand.training.live.interventions import EventLog, Interventions
from firsthand.training.parts import AbstractControl, AbstractRequest, Outcome
from firsthand_onboard.toy import toy_spec

SETTINGS = GuardSettings()


def after(*episodes: tuple[float, float], settings: GuardSettings = SETTINGS) -> list[GuardState]:
    """The guard's state after each of the episodes (tracking error, prediction error)."""
    state, states = GuardState(settings.first_authority), []
    for number, (error, predicted) in enumerate(episodes, 1):
        state = judge_episode(state, settings, number, error, predicted)
        states.append(state)
    return states


def test_a_bad_episode_brings_the_last_good_policy_back():
    states = after((2.0, 0.1), (0.5, 0.1), (0.1, 0.1), (0.1, 0.1), (0.1, 0.1), (0.9, 0.1))
    assert [s.go_back for s in states] == [False] * 5 + [True]
    assert states[-1].good_episode == 5
    assert states[-1].excess == pytest.approx(9.0)


def test_a_payload_that_doubles_the_error_does_not():
    assert not any(s.go_back for s in after(*[(0.1, 0.1)] * 5, *[(0.2, 0.1)] * 5))


def test_a_changed_machine_is_accepted_after_one_return():
    states = after(*[(0.1, 0.1)] * 5, (0.5, 0.1), (0.5, 0.1), (0.5, 0.1))
    assert [s.go_back for s in states[5:]] == [True, False, False]
    assert states[-1].errors == (0.5, 0.5)


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_an_episode_without_a_measurement_is_not_good(error):
    assert after((0.1, 0.1), (error, 0.1))[-1].go_back


def test_after_a_return_an_episode_without_a_measurement_changes_nothing():
    states = after((0.1, 0.1), (9.0, 0.1), (float("nan"), 0.1), (0.1, 0.1), (0.1, 0.1))
    assert [s.go_back for s in states] == [False, True, True, False, False]
    assert [s.good_episode for s in states] == [1, 1, 1, 4, 5]
    assert all(np.isfinite(s.errors).all() for s in states)


def test_an_episode_that_was_hardly_seen_proves_nothing():
    before = after((0.1, 0.1), (0.1, 0.1))[-1]
    blind = judge_episode(before, SETTINGS, 3, 0.05, 0.0, valid_share=0.1)
    assert blind == before
    assert judge_episode(before, SETTINGS, 3, 0.9, 0.0, valid_share=0.1).go_back  # what little was seen was bad
    assert judge_episode(before, SETTINGS, 3, 0.05, 0.0, valid_share=0.9).authority > before.authority


def test_limits_widen_only_while_the_model_predicts_well():
    widths = [s.authority for s in after((1, 0.1), (1, 0.1), (1, 2.0), (1, float("nan")), (1, 0.1), (1, 0.1))]
    assert widths == pytest.approx([0.5, 0.75, 0.75, 0.75, 1.0, 1.0])


def a_rollout(free: np.ndarray | None = None) -> tuple[LearnerState, Rollout]:
    """A learner of the toy robot, and an episode that its own model and policy have made: model errors are zero.

    Where it is not free, a gate has taken half a unit off the command.
    """
    spec = toy_spec()
    free = np.ones((2, 6, 2), bool) if free is None else free
    state = LearnerState.random(spec, Settings(), seed=0)
    rng = np.random.default_rng(0)
    previews = jnp.asarray(rng.uniform(-1, 1, (2, 6, 1 + len(spec.preview), 2)), jnp.float32)
    starts = jnp.asarray(rng.uniform(-0.3, 0.3, (2, spec.layout.size)), jnp.float32)

    @jax.jit
    def drive(starts, previews, free):
        """x⁺ = f(x, π(x)), step by step."""

        def one(start, preview, free):
            def step(x, inputs):
                p, own = inputs
                u = state.policy(x, p)
                u = jnp.where(own, u, u - 0.5)
                following = state.dynamics(x, u)
                return following, (following, u)

            _, (xs, us) = jax.lax.scan(step, start, (preview, free))
            return jnp.concatenate([start[None], xs]), us

        return jax.vmap(one)(starts, previews, free)

    states, commands = drive(starts, previews, jnp.asarray(free))
    rollout = Rollout(
        states=states,
        commands=commands,
        previews=previews,
        free=jnp.asarray(free),
        valid=jnp.ones((2, 6), bool),
    )
    return state, rollout


@pytest.mark.parametrize("gated", [0.0, 0.5])
def test_the_forecast_of_the_policy_that_ran_is_what_was_measured(gated):
    state, rollout = a_rollout(np.random.default_rng(1).uniform(size=(2, 6, 2)) >= gated)
    same = forecast(state.policy, state.policy, state.dynamics, rollout)
    assert same.policy_change == 0.0
    assert same.error == pytest.approx(same.measured_error, rel=1e-5)
    assert SETTINGS.allow(same)


def test_where_nothing_was_measured_nothing_is_predicted():
    state, rollout = a_rollout()
    blind = dataclasses.replace(rollout, valid=jnp.zeros((2, 6), bool))
    nothing = forecast(state.policy, state.policy, state.dynamics, blind)
    assert np.isnan([nothing.policy_change, nothing.error]).all()
    assert not SETTINGS.allow(nothing)


def test_a_policy_with_another_bias_changes_commands_by_as_much():
    state, rollout = a_rollout()
    *hidden, (weight, bias) = state.policy.layers
    other = dataclasses.replace(state.policy, layers=(*hidden, (weight * 0, bias * 0 + 10.0)))  # tanh(10): full command
    found = forecast(other, state.policy, state.dynamics, rollout)
    old = np.asarray(rollout.commands)
    assert found.policy_change == pytest.approx(float(np.sqrt(np.mean((1.0 - old) ** 2))), rel=1e-4)
    half = interpolate(Controller(state.policy), Controller(other), 0.5)
    np.testing.assert_allclose(np.asarray(half.layers[-1][1]), (np.asarray(bias) + 10.0) / 2)


def test_the_same_weights_behind_another_observer_change_commands():
    state, rollout = a_rollout()
    same = forecast(state.policy, state.policy, state.dynamics, rollout, seen_before=rollout)
    before = dataclasses.replace(rollout, states=rollout.states + 0.1)
    other = forecast(state.policy, state.policy, state.dynamics, rollout, seen_before=before)
    assert same.policy_change == 0
    assert other.policy_change > 1e-3


def test_what_is_too_much_or_not_a_number_may_not_run():
    assert SETTINGS.allow(Forecast(0.4, 0.1, 0.1))
    assert not SETTINGS.allow(Forecast(0.6, 0.1, 0.1))
    assert not SETTINGS.allow(Forecast(0.4, 0.2, 0.1))
    assert not SETTINGS.allow(Forecast(0.4, float("nan"), 0.1))


AGENT_SETTINGS = preset("paper").with_changes({"model.steps": 20, "model.hidden": (16,), "excitation.amplitude": 0.0})


@pytest.fixture
def trainer(make_probe_task, tmp_path):
    """Makes trainers of a tiny plant that share a run folder; they have a guard and stop at nine episodes."""
    task = make_probe_task(
        measured=1,
        command_memory=1,
        steps=20,
        preview=(1, 2, 3),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
    )
    with RunFolder.create(tmp_path / "run", {}, provenance={}) as run:

        def make(settings: GuardSettings, approve=None, control=None, robot_name: str = "excavator") -> Trainer:
            config = TrainingConfig(robot_name, "fast", AGENT_SETTINGS, 9)
            robot = SimulatedRobot(ScalarPlant(), task)
            guard = Guard(task, settings, approve)
            return Trainer(robot, config, FolderRecorder(run), supervisor=guard, control=control)

        yield make


def spoil(trainer: Trainer) -> None:
    """An update that went wrong: full command, always."""
    *hidden, (weight, bias) = trainer.state.policy.layers
    bad = dataclasses.replace(trainer.state.policy, layers=(*hidden, (weight * 0, bias * 0 + 10.0)))
    trainer.state = dataclasses.replace(trainer.state, policy=bad)


def ran(trainer: Trainer, episode: int) -> bytes:
    """The weights that an episode was run with."""
    return weights(trainer.recorder.load_policy(episode, trainer.task.spec))


def weights(policy: Policy | Controller) -> bytes:
    """The same of a policy in memory."""
    arrays = policy.arrays()
    return b"".join(arrays[name].tobytes() for name in sorted(arrays))


def test_a_spoilt_policy_does_not_run(trainer):
    made = trainer(SETTINGS)
    made.run_episode()
    spoil(made)
    made.run_episode()
    _, bias = made.recorder.load_policy(2, made.task.spec).layers[-1]
    assert np.abs(bias).max() < 6.0  # at most half of the way, or the old policy


def test_a_spoilt_policy_that_ran_is_taken_back_and_a_resume_knows_it(trainer):
    made = trainer(GuardSettings(policy_change=1e9, error_factor=1e9, worse=2.5))
    made.run_episode()
    made.run_episode()
    spoil(made)
    assert (
        made.run_episode().metrics["measured_tracking_error"]
        > 2.5 * made.recorder.metrics()[1]["measured_tracking_error"]
    )
    again = trainer(GuardSettings(policy_change=1e9, error_factor=1e9, worse=2.5))
    again.resume()
    again.run_episode()
    assert ran(again, 4) == ran(again, 2) != ran(again, 3)
    assert not again.supervisor.state.go_back


LOOSE = GuardSettings(policy_change=1e9, error_factor=1e9)


class Put(AbstractRequest):
    """An operator's request for the policy of an episode; as if it had run behind this observer."""

    def __init__(self, trainer: Trainer, episode: int, observer: Observer | None = None) -> None:
        self.trainer, self.episode, self.observer = trainer, episode, observer
        self.answer = ""

    def carry_out(self, learner: LearnerState, episode: int) -> Outcome:
        policy = self.trainer.recorder.load_policy(self.episode, self.trainer.task.spec)
        policy = dataclasses.replace(policy, observer=self.observer)
        return Outcome("done", with_policy(learner, policy), policy)

    def accept(self, outcome: Outcome) -> None:
        self.answer = outcome.answer

    def refuse(self, why: str) -> None:
        self.answer = f"refused: {why}"


class Desk(AbstractControl):
    """Where a test puts its requests."""

    def __init__(self) -> None:
        self.requests: list[Put] = []

    def next_request(self) -> Put | None:
        return next((request for request in self.requests if not request.answer), None)

    def wait_while_paused(self, meanwhile) -> None:
        pass


@pytest.mark.parametrize("answer", [True, False])
def test_what_the_operator_puts_in_place_during_a_question_is_what_runs(trainer, answer):
    desk = Desk()

    def ask(question: str, meanwhile) -> bool:
        if made.episode == 2:
            desk.requests.append(Put(made, 1))
            meanwhile()
            assert desk.requests[0].answer == "done"
            return answer
        return True

    made = trainer(LOOSE, ask, desk)
    for _ in range(3):
        made.run_episode()
    assert ran(made, 3) == ran(made, 1) != ran(made, 2)


def test_what_the_operator_has_put_in_place_holds_after_a_resume(trainer):
    desk = Desk()
    made = trainer(LOOSE, control=desk)
    for _ in range(3):
        made.run_episode()
    desk.requests.append(Put(made, 2))
    made._apply_requests()
    elsewhere = trainer(SETTINGS, robot_name="soft-arm")
    elsewhere.resume()
    assert not elsewhere._chosen_by_operator
    assert weights(elsewhere.state.policy) == ran(made, 2)

    asked = []
    again = trainer(LOOSE, lambda question, meanwhile: bool(asked.append(question)))
    again.resume()
    again.run_episode()
    assert asked == []  # it needs no approval
    assert ran(again, 4) == ran(again, 2)
    again.run_episode()
    assert len(asked) == 1  # the next one is the learner's own


def test_the_operators_policy_keeps_its_observer_in_a_resume_and_in_a_kept_checkpoint(trainer):
    """The learner's own policy has no observer here: the pair without it has never run."""
    desk = Desk()
    made = trainer(LOOSE, control=desk)
    for _ in range(2):
        made.run_episode()
    desk.requests.append(Put(made, 1, Observer.register(made.state.dynamics)))
    made._apply_requests()
    expected = weights(made._candidate())
    assert made.state.observer is None
    assert expected != ran(made, 1)

    again = trainer(LOOSE)
    again.resume()
    assert weights(again._candidate()) == expected
    elsewhere = trainer(LOOSE, robot_name="soft-arm")
    elsewhere.resume()
    assert weights(elsewhere._candidate()) == ran(made, 1)  # the learner's, which the guard looks at

    path = made.recorder.run.path
    interventions = Interventions(path, EventLog(path), made.recorder, made.robot, made.config)
    interventions.carry_out(Request("checkpoint", "session"), made.state, 2)
    again.run_episode()
    assert ran(again, 3) == expected
    restored = interventions.carry_out(Request("restore", "session", 2), again.state, 3)
    assert restored.policy is not None
    assert weights(restored.policy) == expected


def test_a_policy_that_cannot_be_kept_is_not_put_in_place(trainer, monkeypatch):
    desk = Desk()
    made = trainer(LOOSE, control=desk)
    made.run_episode()
    before = made.state

    def full(*_: object, **__: object) -> None:
        raise UserError("the disk is full.")

    monkeypatch.setattr(made.recorder.run, "save_checkpoint", full)
    desk.requests.append(Put(made, 1))
    made._apply_requests()
    assert desk.requests[0].answer == "refused: the disk is full."
    assert made.state is before
    assert not made._chosen_by_operator


MACHINE, OTHER = "0123", "4567"
RUN = 64 * "a"


def recalled(settings: GuardSettings, rows: list[dict], here: str = MACHINE, run: str = RUN) -> float:
    """The share of the range with which a run goes on after these lines of metrics.jsonl."""
    task = make_task("excavator")
    guard, robot = Guard(task, settings), RemoteRobot("tcp/127.0.0.1:1", task)
    robot._machine_id = here
    recorder: Any = SimpleNamespace(
        identity=run, metrics=lambda: rows, load_record=lambda k, spec: None, load_policy=lambda k, spec: None
    )
    guard.resume(recorder, len(rows), robot, "a@tcp/1")
    return guard.state.authority


def row(episode: int, authority: float, machine: str = MACHINE) -> dict:
    judged = {"episode": episode, "measured_tracking_error": 0.1, "prediction_error": 0.9}
    return judged | authority_metrics(machine, RUN, episode, authority)


def test_a_given_authority_caps_what_a_resumed_run_has_earned():
    rows = [row(1, 0.5), row(2, 0.9)]
    assert recalled(GuardSettings(), rows) == 0.9
    assert recalled(GuardSettings(authority=0.6), rows) == 0.6
    assert recalled(GuardSettings(authority=0.5), rows) == 0.5
    assert recalled(GuardSettings(authority=1.0), rows) == 0.9


def test_a_run_that_comes_to_another_machine_says_so():
    assert recall(GuardSettings(), [row(1, 0.5), row(2, 0.9)], OTHER, RUN)[1]
    assert not recall(GuardSettings(), [row(1, 0.5), row(2, 0.9)], MACHINE, RUN)[1]


def test_what_was_earned_on_one_machine_does_not_hold_on_another():
    rows = [row(1, 0.5), row(2, 0.9)]
    assert recalled(GuardSettings(), rows, here=OTHER) == 0.5
    assert recalled(GuardSettings(), rows, here="") == 0.5  # one that does not say who it is


def test_a_genuine_line_of_another_run_earns_nothing():
    """Copied into this folder, it is this user's own, of this machine, and of the right episode."""
    rows = [row(1, 0.5), row(2, 0.9)]
    assert recalled(GuardSettings(), rows, run=64 * "b") == 0.5
    assert recall(GuardSettings(), rows, MACHINE, 64 * "b")[1]


@pytest.mark.parametrize(
    "forged",
    [
        {"authority": 1.0},
        {"episode": 3},
        {"machine_id": OTHER},
        {"authority_proof": None},
        {"authority_proof": "é"},
        {"authority_proof": 32 * "0"},
        {"authority": 10**400},
        {"authority": True},
        {"authority": [1.0]},
    ],
)
def test_what_a_folder_says_about_authority_needs_this_users_key(forged):
    rows = [row(1, 0.5), row(2, 0.9) | forged]
    assert recalled(GuardSettings(), rows, here=forged.get("machine_id", MACHINE)) == 0.5


def test_another_users_lines_earn_nothing(tmp_path, monkeypatch):
    rows = [row(1, 0.5), row(2, 0.9)]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(earned, "_key_here", [])
    assert recalled(GuardSettings(), rows) == 0.5
    assert (tmp_path / "firsthand" / "trainer.key").stat().st_mode & 0o777 == 0o600
    assert recalled(GuardSettings(), [row(1, 0.9)]) == 0.9
