"""The guard: what it lets run, when it goes back, and that a resume knows what it knew."""

import dataclasses
import io
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.cli.train import Train
from firsthand.errors import UserError
from firsthand.learner import Hyperparameters, LearnerState, Rollout
from firsthand.logs import Transitions
from firsthand.models import Policy
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import SimulatedRobot
from firsthand.runs import RunFolder
from firsthand.training import Trainer, TrainingConfig, preset
from firsthand.training.guard import (
    Forecast,
    Guard,
    GuardSettings,
    GuardState,
    ask_by_file,
    between,
    forecast,
    judged,
)
from firsthand.training.loop import policy_arrays
from firsthand.training.prior import Prior
from firsthand_onboard.toy import toy_spec

SETTINGS = GuardSettings()


def after(*episodes: tuple[float, float], settings: GuardSettings = SETTINGS) -> list[GuardState]:
    """The guard's state after each of the episodes (tracking error, prediction error)."""
    state, states = GuardState(settings.authority), []
    for number, (error, predicted) in enumerate(episodes, 1):
        state = judged(state, settings, number, error, predicted)
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


def test_limits_widen_only_while_the_model_predicts_well():
    widths = [s.authority for s in after((1, 0.1), (1, 0.1), (1, 2.0), (1, float("nan")), (1, 0.1), (1, 0.1))]
    assert widths == pytest.approx([0.5, 0.75, 0.75, 0.75, 1.0, 1.0])


def a_rollout() -> tuple[LearnerState, Rollout]:
    """A learner of the toy robot, and an episode that its own model and policy have made: residuals are zero."""
    spec = toy_spec()
    state = LearnerState.random(spec, Hyperparameters(), seed=0)
    rng = np.random.default_rng(0)
    previews = jnp.asarray(rng.uniform(-1, 1, (2, 6, 1 + len(spec.preview), 2)), jnp.float32)
    starts = jnp.asarray(rng.uniform(-0.3, 0.3, (2, spec.layout.size)), jnp.float32)

    @jax.jit
    def drive(starts, previews):
        """x⁺ = f(x, π(x)), step by step."""

        def one(start, preview):
            def step(x, p):
                u = state.policy(x, p)
                following = state.dynamics(x, u)
                return following, (following, u)

            _, (xs, us) = jax.lax.scan(step, start, preview)
            return jnp.concatenate([start[None], xs]), us

        return jax.vmap(one)(starts, previews)

    states, commands = drive(starts, previews)
    rollout = Rollout(
        states=states,
        commands=commands,
        previews=previews,
        free=jnp.ones((2, 6, 2), bool),
        valid=jnp.ones((2, 6), bool),
    )
    return state, rollout


def test_the_forecast_of_the_policy_that_ran_is_what_was_measured():
    state, rollout = a_rollout()
    same = forecast(state.policy, state.policy, state.dynamics, rollout)
    assert same.command_change == 0.0
    assert same.error == pytest.approx(same.measured_error, rel=1e-5)
    assert same.within(SETTINGS)


def test_a_policy_with_another_bias_changes_commands_by_as_much():
    state, rollout = a_rollout()
    *hidden, (weight, bias) = state.policy.layers
    other = dataclasses.replace(state.policy, layers=(*hidden, (weight * 0, bias * 0 + 10.0)))  # tanh(10): full command
    found = forecast(other, state.policy, state.dynamics, rollout)
    old = np.asarray(rollout.commands)
    assert found.command_change == pytest.approx(float(np.sqrt(np.mean((1.0 - old) ** 2))), rel=1e-4)
    half = between(state.policy, other, 0.5)
    np.testing.assert_allclose(np.asarray(half.layers[-1][1]), (np.asarray(bias) + 10.0) / 2)


def test_what_is_too_much_or_not_a_number_may_not_run():
    assert Forecast(0.4, 0.1, 0.1).within(SETTINGS)
    assert not Forecast(0.6, 0.1, 0.1).within(SETTINGS)
    assert not Forecast(0.4, 0.2, 0.1).within(SETTINGS)
    assert not Forecast(0.4, float("nan"), 0.1).within(SETTINGS)


HYPER = dataclasses.replace(preset("paper"), model_steps=20, model_hidden=(16,), excitation=0.0)


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

        def make(settings: GuardSettings) -> Trainer:
            config = TrainingConfig("excavator", "fast", HYPER, 9)
            return Trainer(SimulatedRobot(ScalarPlant(), task), config, run, callbacks=(Guard(settings),))

        yield make


def spoil(trainer: Trainer) -> None:
    """An update that went wrong: full command, always."""
    *hidden, (weight, bias) = trainer.state.policy.layers
    bad = dataclasses.replace(trainer.state.policy, layers=(*hidden, (weight * 0, bias * 0 + 10.0)))
    trainer.state = dataclasses.replace(trainer.state, policy=bad)


def ran(trainer: Trainer, episode: int) -> bytes:
    """The weights that an episode was run with."""
    arrays, _ = trainer.run.load_episode(episode)
    return b"".join(arrays[name].tobytes() for name in sorted(arrays) if name.startswith("policy"))


def weights(policy: Policy) -> bytes:
    """The same of a policy in memory."""
    arrays = policy_arrays(policy)
    return b"".join(arrays[name].tobytes() for name in sorted(arrays))


def test_a_spoilt_policy_does_not_run(trainer):
    made = trainer(SETTINGS)
    made.run_episode()
    spoil(made)
    made.run_episode()
    last = f"policy.{len(made.task.spec.policy.hidden)}.bias"
    assert np.abs(made.run.load_episode(2)[0][last]).max() < 6.0  # at most half of the way, or the old policy


def test_a_spoilt_policy_that_ran_is_taken_back_and_a_resume_knows_it(trainer):
    made = trainer(GuardSettings(command_change=1e9, error_factor=1e9, worse=2.5))
    made.run_episode()
    made.run_episode()
    spoil(made)
    assert made.run_episode().metrics["tracking_error_m"] > 2.5 * made.run.read_metrics()[1]["tracking_error_m"]
    again = trainer(GuardSettings(command_change=1e9, error_factor=1e9, worse=2.5))
    again.resume()
    again.run_episode()
    assert ran(again, 4) == ran(again, 2) != ran(again, 3)
    assert not again.callbacks[0].state.go_back


def test_the_first_policy_is_asked_for_too(trainer):
    made, asked = trainer(SETTINGS), []
    guard = Guard(SETTINGS, approve=lambda text: bool(asked.append(text)))
    made.callbacks = (guard,)
    with pytest.raises(UserError, match="did not approve the first policy"):
        made.run_episode()
    assert "50 % of the command range" in asked[0]
    assert made.episode == 0


def test_asking_needs_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UserError, match="no terminal"):
        Train("tcp/127.0.0.1:1", approve="ask", out=tmp_path / "run").run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("word", "answer"), [("yes", True), ("NO", False)])
def test_approval_by_file(tmp_path, word, answer):
    question = tmp_path / "question"
    (tmp_path / "question.answer").write_text("stale")
    ask = ask_by_file(question, every_s=0.01)

    def operator() -> None:
        while not question.exists():
            time.sleep(0.005)
        (tmp_path / "question.answer").write_text(word)

    thread = threading.Thread(target=operator)
    thread.start()
    assert ask("commands change") is answer
    thread.join()
    assert not question.exists()


@pytest.mark.parametrize("field", ["command_change", "error_factor", "worse", "widen", "authority", "proven"])
def test_settings_say_what_is_wrong(field):
    with pytest.raises(UserError, match=field):
        GuardSettings(**{field: -1.0})


def test_a_policy_that_learned_from_a_log_is_what_the_guard_remembers(trainer):
    rng = np.random.default_rng(0)
    states, commands = rng.uniform(-1, 1, (240, 2)), rng.uniform(-1, 1, (240, 1))
    following = states[:, :1] + 0.1 * commands
    rows = Transitions(*(part.astype(np.float32) for part in (states, commands, following)))
    made = trainer(SETTINGS)
    hyper = dataclasses.replace(HYPER, imagined=4)
    config = dataclasses.replace(made.config, hyper=hyper)
    prior = Prior(taken=(rows,))
    made = Trainer(made.robot, config, made.run, made.callbacks, prior)
    untrained = weights(made.state.policy)
    made.run_episode()
    assert weights(made.callbacks[0]._ran) == weights(made.callbacks[0]._good) == ran(made, 1) != untrained
