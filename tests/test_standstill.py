"""Every rule of `standstill`, on both sides of its threshold, and what it tells the user to try."""

from typing import Any

import pytest

from firsthand.standstill import WINDOW, find_standstill
from firsthand.training.display import concerns

LEARNS: dict[str, Any] = {
    "gradient_norm": 0.3,
    "policy_change": 0.1,
    "update_accepted": True,
    "rolled_back": False,
    "command_effect": 0.4,
    "tracking_error": 1.0,
    "valid_share": 1.0,
    "saturation": 0.1,
    "limit_share": 0.0,
}


def lines(count: int = WINDOW, **changes: Any) -> list[dict[str, Any]]:
    return [{**LEARNS, **changes} for _ in range(count)]


def test_a_run_that_learns_goes_on():
    assert find_standstill([]) is None
    assert find_standstill(lines(100)) is None


@pytest.mark.parametrize(
    ("count", "changes", "words"),
    [
        (3, {"gradient_norm": 0.0}, "gradient was zero in 3 updates in a row"),
        (5, {"policy_change": 0.0}, "the same, bit for bit, after 5 updates"),
        (10, {"command_effect": 0.001}, "commands have no visible effect"),
    ],
)
def test_a_rule_needs_every_episode_of_its_window(count: int, changes: dict[str, Any], words: str):
    found = find_standstill(lines(count, **changes))
    assert found is not None
    assert words in str(found)
    assert find_standstill(lines(count - 1, **changes)) is None
    assert find_standstill([*lines(1), *lines(count - 1, **changes)]) is None or count == WINDOW


def test_updates_refused_every_second_time_stop_a_run():
    refused = [*lines(1), *lines(1, update_accepted=False)] * (WINDOW // 2)
    assert "5 of the last 10 updates were refused" in str(find_standstill(refused))
    assert find_standstill([*lines(2), *refused[2:]]) is None
    taken_back = [*lines(1), *lines(1, rolled_back=True)] * (WINDOW // 2)
    assert "refused or taken back" in str(find_standstill(taken_back))


def test_commands_without_effect_are_fine_while_the_error_falls():
    falling = [{**LEARNS, "command_effect": 0.0, "tracking_error": 0.9**k} for k in range(WINDOW)]
    assert find_standstill(falling) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid_share": 0.2}, "Only 20 % of the steps can be learned from"),
        ({"saturation": 0.98}, "98 % of the commands stand at a limit"),
        ({"command_effect": 0.0}, "Check that commands reach the robot"),
        ({"limit_share": 0.7}, "outside its limits in 70 % of the steps"),
        ({}, "No step lowers the cost"),
    ],
)
def test_what_to_try_next_follows_from_what_was_seen(changes: dict[str, Any], words: str):
    assert words in str(find_standstill(lines(policy_change=0.0, **changes)))


def test_the_console_shows_what_matters_and_nothing_else():
    fine = {
        "early_ends": 0.0,
        "horizon": 100,
        "lost_share": 0.0,
        "limit_share": 0.01,
        "rolled_back": False,
        "policy_change": 0.1,
        "refused_updates": 0,
    }
    assert concerns(fine) == []
    bad = {**fine, "early_ends": 0.4, "horizon": 20, "lost_share": 0.2, "limit_share": 0.3, "policy_change": 0.0}
    assert concerns({**bad, "refused_updates": 3}) == [
        "40 % ended early, of 20 steps",
        "20 % of the samples lost",
        "at limits 30 %",
        "policy unchanged",
        "3 refused",
    ]
