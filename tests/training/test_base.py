"""Learning on top of a controller, on a tiny plant: the first episode is the base's, and no episode is much worse."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand.agent.memory import LoopDynamics, loop_cost, loop_dynamics
from firsthand.controllers.bases import find_base
from firsthand.errors import UserError
from firsthand.logs import Transitions
from firsthand.models import Controller, Dynamics
from firsthand.models.function_base import function_base
from firsthand.optim.gradient import closed_loop_gradient, mean_cost
from firsthand.optim.rollout import roll_out
from firsthand.plants.probes import ScalarPlant
from firsthand.robots import SimulatedRobot
from firsthand.robots.base_file import check_period
from firsthand.robots.target import TargetRobot, target_task
from firsthand.runs import RunFolder
from firsthand.tasks import Task
from firsthand.training import FolderRecorder, MemoryRecorder, Trainer, TrainingConfig, preset
from firsthand.training.base_guard import (
    BaseGuard,
    BaseSettings,
    BaseState,
    base_metrics,
    judge_with_base,
    with_authority,
)
from firsthand.training.bases import Base, Recorded
from firsthand.training.learning import as_seen
from firsthand.training.origin import BaseOrigin
from firsthand.training.parts import Candidate, Decision, NoSupervisor
from firsthand.training.prior import Prior

SETTINGS = preset("fast").with_changes(
    {
        "policy_step.steps": 3,
        "imagination.trajectories": 2,
        "refinement.steps": 0,
        "model.steps": 50,
        "model.hidden": (16,),
        "excitation.amplitude": 0.1,
        "observer.use": 0,
    }
)
EPISODES = 4


def lazy_pi(measurement, reference, state=(0.0,)):
    """A PI controller that an engineer would tune again."""
    error = reference - measurement[:1]
    integral = state[0] + 0.1 * error[0]
    return jnp.clip(2.0 * error + 0.5 * integral, -1.0, 1.0), (integral,)


@pytest.fixture(scope="module")
def base(task: Task) -> Base:
    return Base(BaseOrigin("lazy.py:lazy_pi"), function_base(lazy_pi, "lazy_pi", task.spec))


WIDE = BaseSettings(first_authority=0.2)
"""For a plant that any policy learns in one episode."""


def trainer(task: Task, base: Base, recorder: Any = None, settings: BaseSettings | None = None) -> Trainer:
    config = TrainingConfig("excavator", "fast", SETTINGS, EPISODES, base=base.origin)
    guard = BaseGuard(task.spec, NoSupervisor(), settings or WIDE)
    return Trainer(SimulatedRobot(ScalarPlant(), task), config, recorder, prior=Prior(base=base), supervisor=guard)


@pytest.fixture(scope="module")
def learned(task: Task, base: Base) -> tuple[Trainer, list[dict[str, Any]], list[Any]]:
    made = trainer(task, base)
    summaries = [made.run_episode() for _ in range(EPISODES)]
    return made, [dict(s.metrics) for s in summaries], [s.record for s in summaries]


def test_the_first_episode_is_the_base_s_and_the_next_are_better(task: Task, learned):
    _, rows, records = learned
    memory = (0.0,)
    for i, commands in enumerate(records[0].commands):  # with the excitation taken out, the function's own commands
        assert records[0].memory[i, 0] == pytest.approx(float(memory[0]), abs=1e-5)
        for k in range(task.steps):
            command, memory = lazy_pi(records[0].measured[i, k], records[0].references[i, k], memory)
            assert abs(float(command[0]) - commands[k, 0]) <= 0.1 + 1e-5
    assert rows[0]["learned_authority"] == pytest.approx(0.2)
    assert rows[-1]["tracking_error"] < 0.8 * rows[0]["tracking_error"]
    assert max(row["tracking_error"] for row in rows) <= 1.2 * rows[0]["tracking_error"]


def test_base_parameters_and_authority_are_not_trained(learned):
    made, rows, _ = learned
    assert float(made.state.policy.control.authority) == pytest.approx(rows[-1]["learned_authority"])


def test_a_broken_learned_part_costs_little_and_loses_authority(task: Task, base: Base):
    """The last layer is replaced by one that drives away from the reference with all its authority."""
    broken = trainer(task, base, settings=BaseSettings(first_authority=1.0, trials=(1.0,)))
    first = broken.run_episode()
    assert isinstance(broken.supervisor, BaseGuard)
    *hidden, (weight, bias) = broken.state.policy.layers
    layers = (*hidden, (jnp.zeros_like(weight), jnp.full_like(bias, 50.0)))
    broken.state = eqx.tree_at(lambda s: s.policy.layers, broken.state, layers)
    second = broken.run_episode()
    assert second.metrics["base_share"] > 0.5
    # An episode has 12 s here: with all authority over the base, the second that it takes to notice costs a third.
    assert second.metrics["tracking_error"] < 1.5 * first.metrics["tracking_error"]
    assert broken.supervisor.state.authority == pytest.approx(0.5)
    third = broken.run_episode()  # with the first policy, and what was learned since
    assert third.metrics["tracking_error"] < 1.2 * first.metrics["tracking_error"]


def test_the_gradient_goes_through_the_base(task: Task, base: Base, float64):
    """Closed-loop gradient of (x, m) against finite differences of the model's own roll-out."""
    policy = trainer(task, base).state.policy
    *hidden, (weight, bias) = policy.layers
    policy = dataclasses.replace(policy, layers=(*hidden, (weight + 0.1, bias)))
    policy = jax.tree.map(lambda a: a.astype(jnp.float64), policy)
    dynamics = jax.tree.map(lambda a: a.astype(jnp.float64), Dynamics.random(task.spec, (8,), key=jax.random.key(1)))
    model, cost = loop_dynamics(policy, dynamics), loop_cost(policy, task.cost)
    assert isinstance(model, LoopDynamics)
    starts = jnp.asarray([[0.2, 0.1], [-0.3, 0.0]], jnp.float64)
    starts = jax.vmap(lambda x: jnp.concat([x, policy.begin(x)]))(starts)
    previews = jnp.broadcast_to(jnp.asarray([0.5, -0.5])[:, None, None, None], (2, 8, 4, 1)).astype(jnp.float64)

    @jax.jit
    def value(scale):
        *rest, (w, b) = policy.layers
        changed = dataclasses.replace(policy, layers=(*rest, (w, b + scale)))
        return mean_cost(cost, roll_out(changed, model, starts, previews=previews))

    @jax.jit
    def gradients():
        return closed_loop_gradient(
            policy, model, cost, roll_out(policy, model, starts, previews=previews), chained=True
        )

    gradient = gradients()
    finite = (value(1e-5) - value(-1e-5)) / 2e-5
    np.testing.assert_allclose(gradient.layers[-1][1].sum(), finite, rtol=1e-5)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient.control))


def test_the_memory_is_found_again_from_the_record(task: Task, learned):
    made, _, records = learned
    policy = made.state.controller
    seen = as_seen(policy, records[0])
    layout = task.spec.layout
    ends = np.asarray(seen.states[:-1, -1, layout.size])  # the integral at the end of a trajectory …
    np.testing.assert_allclose(ends, records[0].memory[1:, 0], atol=1e-5)  # … is that at the start of the next


def test_a_run_on_top_of_a_base_goes_on_where_it_stopped(task: Task, base: Base, tmp_path: Path):
    with RunFolder.create(tmp_path / "run", {}, provenance={}, data=Prior(base=base).files()) as folder:
        whole = trainer(task, base, FolderRecorder(folder))
        for _ in range(3):
            whole.run_episode()
        again = trainer(task, base, FolderRecorder(folder))
        again.resume()
        whole.recorder = MemoryRecorder()
        assert again.supervisor.state == whole.supervisor.state  # pyright: ignore[reportAttributeAccessIssue]
        one, other = whole.run_episode(), again.run_episode()
        assert one.metrics["tracking_error"] == other.metrics["tracking_error"]


def test_the_policy_moves_the_target_that_the_base_follows(task: Task, base: Base):
    inside = Base(dataclasses.replace(base.origin, mode="target"), base.controller)
    targets = target_task(task)
    assert targets.spec.layout.commands == ("target.p",)
    robot = TargetRobot(SimulatedRobot(ScalarPlant(), task), base.controller, targets, seed=0)
    goals = np.asarray([[0.5], [-0.5]])
    config = TrainingConfig("excavator", "fast", SETTINGS, EPISODES, base=inside.origin)
    fresh = Trainer(robot, config, prior=Prior(base=inside)).state.controller
    outer = robot.run_episode(fresh, goals)
    inner = SimulatedRobot(ScalarPlant(), task).run_episode(trainer(task, base).state.controller, goals)
    np.testing.assert_allclose(inner.measured, outer.measured, atol=1e-5)
    np.testing.assert_allclose(
        outer.commands, outer.references[:, : task.steps]
    )  # the target is the reference at first


def row(episode: int, error: float, base_share: float = 0.0) -> dict[str, Any]:
    return {
        "episode": episode,
        "measured_tracking_error": error,
        "valid_share": 1.0,
        "largest_window_error": 2 * error,
        "base_share": base_share,
    }


def test_authority_is_earned_and_lost():
    settings = WIDE
    state = judge_with_base(BaseState(settings.first_authority), settings, row(1, 1.0))
    assert (state.base_error, state.base_peak, state.authority) == (1.0, 2.0, 0.2)
    state = judge_with_base(state, settings, row(2, 0.9))
    assert (state.authority, state.good_episode) == (pytest.approx(0.3), 2)
    state = judge_with_base(state, settings, row(3, 1.25))
    assert (state.authority, state.good_episode) == (pytest.approx(0.15), 2)
    assert "1.25 times the base's" in state.go_back
    state = judge_with_base(state, settings, row(4, 0.9, base_share=0.1))  # taken back in time: no proof, no blame
    assert (state.authority, state.good_episode, state.go_back) == (pytest.approx(0.15), 2, "")
    for episode in range(5, 30):
        state = judge_with_base(state, settings, row(episode, 0.5))
    assert (state.authority, state.go_back) == (1.0, "")


def test_the_learned_part_is_tried_before_it_runs_a_whole_episode():
    settings, number = BaseSettings(), 1
    state = judge_with_base(BaseState(settings.first_authority), settings, row(1, 1.0))
    assert settings.trials[state.trial] == 0.1
    for share in (0.2, 0.5, 1.0, 1.0):
        number += 1
        # The whole episode is worse than the first, but not for this.
        tried = {"tried_error": 0.9, "alone_error": 1.4, "alone_window_error": 2.5, "learned_share": 0.2}
        state = judge_with_base(state, settings, row(number, 1.3) | tried)
        assert (state.go_back, settings.trials[state.trial]) == ("", share)
    assert state.base_error == pytest.approx(1.375)
    assert state.base_peak == 2.5  # the largest that the base has had, whenever it was alone
    tried = {"tried_error": 1.7, "alone_error": 1.325, "alone_window_error": 1.0}
    few = judge_with_base(state, settings, row(9, 1.0) | tried | {"learned_share": 0.2})
    assert not few.go_back  # a hard trajectory or two are no proof
    state = judge_with_base(state, settings, row(9, 1.0) | tried | {"learned_share": 0.5})
    assert "1.26 times the base's" in state.go_back
    assert settings.trials[state.trial] == 0.1


def test_a_model_that_predicts_what_it_has_not_seen_needs_no_trial():
    first = BaseState(0.2)
    for informed, error, share in ((True, 0.1, 1.0), (True, 0.9, 0.1), (True, None, 0.1), (False, 0.1, 0.1)):
        settings = BaseSettings(informed=informed)
        state = judge_with_base(first, settings, row(1, 1.0) | {"prediction_error": error})
        assert settings.trials[state.trial] == share
    again = judge_with_base(state, settings, row(2, 1.0) | {"prediction_error": 0.1})
    assert settings.trials[again.trial] == 1.0


def test_what_a_spike_shows_is_no_error_of_a_trial(learned):
    made, _, records = learned
    record, policy = records[1], made.state.controller
    measured, sound = record.measured.copy(), record.valid.copy()
    measured[0, 3] += 50.0
    sound[0, 2:4] = False  # the steps to it and from it
    spiked = dataclasses.replace(record, measured=measured, truth=None)
    clean = base_metrics(made.task.spec, policy, dataclasses.replace(record, truth=None), 1, sound)
    found = base_metrics(made.task.spec, policy, spiked, 1, sound)
    assert found["tried_error"] == pytest.approx(clean["tried_error"])
    assert base_metrics(made.task.spec, policy, spiked, 1)["tried_error"] > 2 * clean["tried_error"]


def test_a_model_from_logs_is_known_to_the_guard(learned):
    made, *_ = learned
    from firsthand.cli.train import Train

    robot = SimpleNamespace(members=(), has_authority=False, task=made.task)
    for rows, informed in ((0, False), (5, True)):
        taken = Transitions(*(np.zeros((rows, 1), np.float32) for _ in range(3)))
        prior = Prior(base=made.prior.base, taken=(taken,))
        guard = Train(robot="x")._supervisor(robot, None, None, prior)
        assert guard.settings.informed is informed
        assert not prior.has_seen_motion  # random commands stay, small: what the base rejects says nothing of them


def test_what_a_robot_did_while_its_base_was_identified_is_learned_from(task: Task, base: Base):
    rng = np.random.default_rng(0)
    commands = rng.uniform(-1.0, 1.0, (60, 1)).astype(np.float32)
    measured = np.concatenate([np.zeros((1, 1)), np.cumsum(0.1 * commands[:-1], axis=0)]).astype(np.float32)
    joined = np.ones(59, bool)
    joined[29] = False  # the robot was restarted
    found = dataclasses.replace(base, recorded=Recorded(measured, commands, joined))
    prior = Prior().on_base(found, task.spec)
    assert [log.path for log in prior.logs] == ["identification of the base"]
    assert prior.informs_model
    assert prior.has_seen_motion  # pushes of single joints: nothing has to be excited any more
    rows = prior.taken[0]
    assert prior.rows == prior.logs[0].taken == len(rows.states) == 60 - 2 * 2  # a register to fill, and a last row
    np.testing.assert_allclose(rows.following - rows.states[:, :1], 0.1 * rows.commands, atol=1e-6)
    inside = dataclasses.replace(found, origin=dataclasses.replace(base.origin, mode="target"))
    assert not Prior().on_base(inside, task.spec).rows  # those were the commands of the robot inside
    assert Prior().on_base(None, task.spec) == Prior()
    again = Prior().on_base(dataclasses.replace(found, recorded=Recorded(measured, commands, joined)), task.spec)
    assert again.logs == prior.logs


def test_a_broken_learned_part_is_stopped_within_its_episode(task: Task, base: Base):
    broken = trainer(task, base, settings=BaseSettings(first_authority=1.0))
    first = broken.run_episode()
    *hidden, (weight, bias) = broken.state.policy.layers
    layers = (*hidden, (jnp.zeros_like(weight), jnp.full_like(bias, 50.0)))
    broken.state = eqx.tree_at(lambda s: s.policy.layers, broken.state, layers)
    second = broken.run_episode()
    assert second.metrics["learned_share"] <= 0.5
    assert second.metrics["tried_error"] > 1.2 * second.metrics["alone_error"]
    assert second.metrics["alone_window_error"] < second.metrics["largest_window_error"]
    assert second.metrics["tracking_error"] < 1.5 * first.metrics["tracking_error"]
    assert len(second.record.commands) == task.trajectories
    assert isinstance(broken.supervisor, BaseGuard)
    assert broken.supervisor.state.authority == pytest.approx(0.5)


def decided(made: Trainer, trial: int, base_error: float) -> Decision:
    """What the supervisor decides where the base has this error."""
    guard = BaseGuard(made.task.spec, NoSupervisor())
    guard.state = BaseState(0.2, base_error, 100.0, 1, trial=trial)
    return guard.decide(Candidate(made.state.controller, made.state.dynamics, chosen_by_operator=False), lambda: None)


@pytest.mark.parametrize(
    ("trial", "base_error", "tried"),
    [(0, 1e3, 6), (0, 1e-6, 1), (3, 1e3, 6), (3, 1e-6, 1)],
)
def test_a_policy_goes_on_within_an_episode_while_it_is_no_worse_than_the_base(
    task: Task, base: Base, trial: int, base_error: float, tried: int
):
    """Also one that has run whole episodes: what is new in it is asked for first."""
    made = trainer(task, base)
    goals = np.linspace(-1.0, 1.0, task.trajectories)[:, None].astype(np.float32)
    record, found = made._move(decided(made, trial, base_error), goals, None)
    assert (found, len(record.commands)) == (tried, task.trajectories)


def test_parts_of_an_episode_are_one_motion(task: Task, base: Base):
    """The base's integral goes on where the learned part's trial ends: the trial costs nothing by itself."""
    made, whole = trainer(task, base), trainer(task, base)
    goals = np.linspace(-1.0, 1.0, task.trajectories)[:, None].astype(np.float32)
    parts, _ = made._move(decided(made, 0, 1.0), goals, None)
    one = whole.robot.run_episode(whole.state.controller, goals)
    assert parts.memory is not None
    assert one.memory is not None
    assert np.abs(one.memory[1:, 0]).min() > 0
    np.testing.assert_allclose(parts.memory[:, 0], one.memory[:, 0], atol=1e-5)
    assert not made.robot.goes_on


def test_what_is_compared_with_is_an_episode_of_the_base_alone(task: Task, base: Base):
    """Where the first episode could not be measured, the next one is the base's, although the policy has changed."""
    made = trainer(task, base)
    assert isinstance(made.supervisor, BaseGuard)
    failed = row(1, 1.0) | {"valid_share": 0.0}
    made.supervisor.state = judge_with_base(made.supervisor.state, BaseSettings(), failed)
    candidate = Candidate(Controller(made.state.policy), made.state.dynamics, chosen_by_operator=False)
    decision = made.supervisor.decide(candidate, lambda: None)
    control: Any = decision.policy.policy.control
    assert float(control.authority) == 0.0
    assert "the base alone once more" in decision.reason


def test_without_a_reference_the_cost_decides():
    settings = BaseSettings()
    tracking = {"measured_tracking_error": 1.0, "largest_window_error": 2.0}
    state = BaseState(settings.first_authority)
    for episode, cost in ((1, 4.0), (2, 5.0)):
        state = judge_with_base(state, settings, row(episode, 1.0) | tracking | {"score": cost})
    assert "cost was 1.25 times the base's" in state.go_back
    assert math.isnan(state.base_peak)  # no error to watch within an episode
    state = BaseState(0.2, base_error=0.0, good_episode=1)
    assert "inf times" in judge_with_base(state, settings, row(2, 1.0) | {"score": 1.0}).go_back


def test_a_motion_that_begins_anew_trusts_the_learned_part_again(task: Task, learned):
    """As on the robot, whose memory at the start of each trajectory is part of the record."""
    made, _, records = learned
    policy = with_authority(Controller(made.state.policy), 0.2, 1e-3)
    references, memory = records[0].references.copy(), records[0].memory.copy()
    references[0] += 100.0  # far away throughout the first trajectory, exactly met afterwards
    references[1:, : task.steps] = records[0].measured[1:, : task.steps]
    memory[:, -2:] = (0.0, 1.0)
    record = dataclasses.replace(records[0], references=references, memory=memory)
    anew = base_metrics(task.spec, policy, record)["base_share"]
    assert 0 < anew <= 1 / len(memory)
    assert base_metrics(task.spec, policy, dataclasses.replace(record, memory=None))["base_share"] > anew


def raises(measurement, reference, state):
    raise RuntimeError("the valve is closed")


def too_many(measurement, reference, state):
    return jnp.zeros(3), state


def grows(measurement, reference, state):
    return jnp.zeros(1), (0.0,)


def divides(measurement, reference, state):
    return reference / 0.0, state


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (raises, "raised RuntimeError .* the valve is closed"),
        (too_many, r"a command of shape \(3,\), but probe takes 1 numbers \(u\)"),
        (grows, "a state of 1 numbers, but was called with 0"),
        (divides, "not finite"),
        (lambda measurement: measurement, r"takes the parameters \(measurement\), but a base must take"),
        (3, "is 3, but a base must be a function"),
    ],
)
def test_a_function_that_is_no_base_gets_one_sentence(task: Task, function, sentence: str):
    with pytest.raises(UserError, match=sentence):
        function_base(function, "my.py:f", task.spec)


def test_a_base_slower_than_the_period_is_refused(task: Task, base: Base):
    slow = dataclasses.replace(task.spec, period_s=1e-7)
    with pytest.raises(UserError, match=r"takes \d+ ms for a command, but the control period of probe is 0 ms"):
        check_period(base.controller, slow)


def test_pi_on_a_robot_of_torques_is_refused_with_what_can_be_given(monkeypatch: pytest.MonkeyPatch):
    from firsthand.controllers import bases
    from firsthand.controllers.pi import axis_from_findings
    from firsthand.inspection.findings import ChannelFindings
    from firsthand.robots.registry import find_robot

    def identify(robot, task, *, seed):
        robot.close()
        return axis_from_findings(ChannelFindings("torque", True, 0.5, kind="acceleration"), 1.0, 0.05)

    monkeypatch.setattr(bases, "identify_axes", identify)
    with pytest.raises(UserError, match=r"^base is pi, but torque sets acceleration; .* --base FILE.py:FUNCTION\.$"):
        find_base("pi", "add", find_robot("excavator"))


def test_an_unknown_base_is_named():
    from firsthand.robots.registry import find_robot

    with pytest.raises(UserError, match=r"base is 'pie' \(did you mean 'pi'\?\), but must be one of pi, reference"):
        find_base("pie", "add", find_robot("excavator"))
    with pytest.raises(UserError, match="the reference has 2 entries, but the robot takes 4 commands"):
        find_base("reference", "add", find_robot("excavator"))


CONTROLLER = """
def controller(measurement, reference, state=(0.0,)):
    return 0.5 * measurement, (state[0] + 1.0,)
"""


@pytest.mark.slow
def test_the_command_line_trains_resumes_evaluates_and_refuses_to_export(tmp_path: Path, monkeypatch, capsys):
    """On the live page's tiny arm, with a base in a file: reading the run does not run that file."""
    from firsthand.cli import main
    from firsthand.robots import approval
    from firsthand.training.run import Run

    robot = Path(__file__).parents[1] / "dashboard" / "tiny_robot.py"
    file, run = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(CONTROLLER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = ["--preset", "paper-exact", "--model.steps", "5", "--no-report", "--out", str(run)]
    with pytest.raises(SystemExit) as end:
        main(["train", f"{robot}:arm", "--base", f"{file}:controller", "--episodes", "2", *small])
    assert end.value.code in (0, None)
    with pytest.raises(SystemExit) as end:
        main(["train", f"{robot}:arm", "--resume", "--episodes", "3", "--no-report", "--out", str(run)])
    assert end.value.code in (0, None)
    opened = Run.open(run)
    assert opened.metrics()[0]["learned_authority"] == pytest.approx(0.2)
    assert opened.config.base is not None
    assert opened.config.base.name == f"{file}:controller"
    monkeypatch.setattr(approval, "is_approved", lambda path, sha256: False)
    for policy in (opened.kept_policy(), opened.newest_policy()):  # reads, and runs nothing
        with pytest.raises(UserError, match="not allowed to run"):
            opened.runnable(policy)
    monkeypatch.undo()
    assert opened.runnable(opened.kept_policy()).policy.memory_size == 3
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["export", str(run), "--format", "c"])
    assert end.value.code == 2
    assert "which no export holds" in capsys.readouterr().err
