"""The task of the tiny runs in `probe_runs`."""

import pytest

from firsthand.tasks import Task


@pytest.fixture(scope="session")
def task(make_probe_task) -> Task:
    return make_probe_task(
        measured=1,
        command_memory=1,
        steps=20,
        preview=(1, 2, 3),
        command_limit=1.0,
        length_scale=1.0,
        change_weight=0.01,
    )


@pytest.fixture
def work_task(make_probe_task) -> Task:
    return make_probe_task(
        measured=2, command_memory=2, steps=5, preview=(1,), command_limit=1.0, length_scale=1.0, change_weight=0.01
    )
