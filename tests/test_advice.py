"""Every rule of advice, on both sides of its threshold."""

import math
from typing import Any

import pytest

from firsthand.advice import EPISODES_NEEDED, advise, no_advice
from firsthand.cli.results import print_advice

HEALTHY: dict[str, Any] = {
    "tracking_error": 0.01,
    "update_accepted": True,
    "steps_taken": 20,
    "valid_share": 1.0,
    "closed_loop_growth": 0.98,
    "innovation_size": 1.1,
    "innovation_size_channel": "arm.position",
    "innovation_correlation": -0.3,
    "innovation_correlation_channel": "arm.velocity",
    "one_step_error_ratio": 0.9,
    "forecast_error": 0.2,
    "forecast_error_ratio": 0.9,
    "model_loss": 1.0,
    "held_out_loss": 2.0,
    "velocity_delay": 0.1,
    "late_velocities": "",
    "swapped_velocities": "",
    "observer": False,
    "noise_share": 0.02,
    "observer_error_ratio": 1.0,
    "observer_delay": 0.0,
}
LATE = {"velocity_delay": 1.05, "late_velocities": "boom, arm"}


def lines(count: int = 12, **changes: Any) -> list[dict[str, Any]]:
    """A run in which the error falls steadily."""
    return [{**HEALTHY, "episode": k + 1, "tracking_error": 0.9**k, **changes} for k in range(count)]


def texts(made: list[dict[str, Any]]) -> dict[str, str]:
    return {advice.rule: advice.text for advice in advise(made)}


def test_a_healthy_run_needs_no_advice():
    assert advise(lines(30)) == []
    assert no_advice(30) == "Nothing stands out."
    assert no_advice(2) == "Advice begins with episode 3."


@pytest.mark.parametrize(
    ("rule", "given", "other", "words"),
    [
        ("lost measurements", {"valid_share": 0.85}, {"valid_share": 0.95}, "15 % of the steps"),
        ("stopped", {"steps_taken": 0}, {"steps_taken": 1}, "stopped learning"),
        ("stopped", {"update_accepted": False}, {"update_accepted": True}, "refused"),
        ("unstable", {"closed_loop_growth": 1.02}, {"closed_loop_growth": 1.005}, "doubles every 35 steps"),
        ("overfitting", {"forecast_error_ratio": 3.0}, {"forecast_error_ratio": 2.0}, "less excitation noise"),
        (
            "overfitting",
            {"forecast_error_ratio": 3.0},
            {"forecast_error_ratio": 3.0, "forecast_error": 0.01},  # good enough all the same
            "3.0 times as much",
        ),
        (
            "overfitting",
            {"held_out_loss": 6.0},
            {"held_out_loss": 6.0, "forecast_error": 0.01},
            "its loss on new episodes is 6.0 times",
        ),
        ("overfitting", {"held_out_loss": 6.0}, {"held_out_loss": 4.0}, "fewer model.steps"),
        ("restarts", {"observer_restarts": 8}, {"observer_restarts": 2}, "8 times per episode"),
        ("chatter", {"chatter": 0.3}, {"chatter": 0.1}, "30 % of them reverse"),
        ("sensor", {"innovation_size": 4.0}, {"innovation_size": 2.0}, "arm.position is 4.0 times"),
        (
            "sensor",
            {"innovation_size": 4.0},
            {"innovation_size": 4.0, "one_step_error_ratio": 3.0},  # all channels, not one
            "check that sensor",
        ),
        ("lasting errors", {"innovation_correlation": 0.8}, {"innovation_correlation": 0.5}, "arm.velocity last"),
        (
            "lasting errors",
            {"innovation_correlation": 0.8},
            {"innovation_correlation": 0.8, "forecast_error": 0.01},
            "missing from the state",
        ),
        (
            "follows noise",
            {"innovation_correlation": -0.5, "observer": True},
            {"innovation_correlation": -0.5, "observer": False},  # that of every noisy register
            "follows the noise of arm.velocity",
        ),
        (
            "swapped velocities",
            {"swapped_velocities": "boom speed follows arm"},
            {"swapped_velocities": ""},
            "Correct `velocities` in the task: boom speed follows arm",
        ),
        ("late velocities", LATE, {"velocity_delay": 0.3}, "Velocities of boom, arm arrive about one period late"),
        ("noise", {"noise_share": 0.3}, {"noise_share": 0.05}, "30 % of a step's change"),
    ],
)
def test_a_rule_speaks_on_one_side_of_its_threshold_only(rule, given, other, words):
    assert words.lower() in texts(lines(**given))[rule].lower()
    assert rule not in texts(lines(**other))


@pytest.mark.parametrize("missing", [None, math.nan, "text", ...])
@pytest.mark.parametrize("name", sorted(set(HEALTHY) - {"update_accepted", "tracking_error"}))
def test_what_is_not_known_makes_no_rule_speak(name, missing):
    made = lines(30, **{name: missing})
    if missing is ...:
        for line in made:
            del line[name]
    assert advise(made) == []


def test_velocities_that_looked_swapped_in_two_episodes_only_are_left_alone():
    made = lines()
    for line in made[-2:]:
        line["swapped_velocities"] = "boom speed follows arm"
    assert texts(made) == {}


def test_late_velocities_say_whether_the_observer_has_learned_it():
    assert "learned by the observer" in texts(lines(**LATE, observer=True, observer_delay=0.9))["late velocities"]
    assert "not learned that yet" in texts(lines(**LATE, observer=True))["late velocities"]
    assert "no observer is in use" in texts(lines(**LATE))["late velocities"]
    assert "observer.use 1" in texts(lines(**LATE, observer=None))["late velocities"]
    two = {**LATE, "velocity_delay": 2.1}
    assert "about 2 periods late" in texts(lines(**two))["late velocities"]


def test_noise_says_whether_the_observer_pays():
    used = texts(lines(noise_share=0.3, observer=True, observer_error_ratio=0.8))["noise"]
    assert "in use" in used
    assert "0.80 times" in used
    assert "does not pay" in texts(lines(noise_share=0.3, observer_error_ratio=1.2))["noise"]


def test_a_sudden_loss_of_foresight_is_a_changed_machine_and_a_lasting_one_overfitting():
    sudden = lines()
    for line in sudden[-4:]:
        line["forecast_error_ratio"] = 4.0
    assert "have changed" in texts(sudden)["changed"]
    assert "arm.position" in texts(sudden)["changed"]
    assert "overfitting" not in texts(sudden)
    once = lines()
    once[-1]["forecast_error_ratio"] = 100.0  # a single episode says nothing
    assert advise(once) == []


def test_losses_of_register_and_observer_are_not_compared():
    made = lines(held_out_loss=6.0)
    assert "overfitting" in texts(made)
    for line in made[1::2]:
        line["observer"] = True
    assert "overfitting" not in texts(made)


def test_a_learner_that_stopped_learning_says_so():
    level = lines(EPISODES_NEEDED, tracking_error=0.01)
    assert "model predicts new episodes well, but the policy does not improve" in texts(level)["no progress"]
    assert not advise(level)[0].urgent
    worse = lines(EPISODES_NEEDED, tracking_error=0.01, forecast_error_ratio=2.0)
    for line in worse[10:]:
        line["tracking_error"] = 0.02
    assert "2.0 times" in texts(worse)["no progress"]
    assert "learning has stopped" in texts(worse)["no progress"]
    assert advise(worse)[0].urgent
    assert "no progress" not in texts(level[:15])  # too early to tell
    assert "no progress" not in texts(lines(EPISODES_NEEDED))


def test_urgent_advice_comes_first():
    found = advise(lines(noise_share=0.3, forecast_error_ratio=4.0, closed_loop_growth=1.1))
    assert [advice.urgent for advice in found] == [True, True, False]


def test_the_terminal_marks_what_asks_for_something(capsys):
    print_advice(lines(noise_share=0.3, closed_loop_growth=1.1))
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.startswith("Advice: The model believes the closed loop unstable")
    assert "Sensors are noisy" in shown
    print_advice(lines())
    assert capsys.readouterr().err == ""
