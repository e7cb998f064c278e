"""What the tests share: float64, counting compilations, and small tasks on the probe plants.

The shapes in the types are checked in every test: see `--jaxtyping-packages` in pyproject.toml.
"""

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

# Compiled fast, not fast code: the tests compile more than they compute. XLA's fusion emitters take three times as long
# as the older ones. One thread: every worker of pytest has about one core. Read when JAX first computes.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_cpu_multi_thread_eigen=false",
)

import jax
import numpy as np
import pytest
from hypothesis import settings

from firsthand.tasks.base import EvaluationReference, Task
from firsthand.tasks.cost import tracking_cost
from firsthand_onboard import (
    ControlSpec,
    Limits,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    StateLayout,
)


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among what stays: tracing makes many objects, and few cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the workers of this session have compiled: one compiles, the others load.

    Small programs too: `check_plant` empties JAX's own caches, and then they are needed again.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder


LARGEST_WORKER = 2 << 30
"""Bytes of memory beyond which a worker lets go of the compiled programs it holds: two of them share a laptop."""


@pytest.fixture(scope="module", autouse=True)
def forget_programs(compiled: Path) -> Iterator[None]:
    """Programs stay in the folder `compiled`; what a later module needs again is loaded from there."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGE_SIZE") > LARGEST_WORKER:
        jax.clear_caches()
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc: give what is free back to the machine
            libc.malloc_trim(0)


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this session's processes keep which robot files may be run: not in the home of who runs the tests."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but not rendered, which takes most of the time of a report; their files are empty."""
    monkeypatch.setattr("firsthand.report.style._settle", lambda figure: None)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *arguments, **options: None)


@pytest.fixture
def float64() -> Iterator[None]:
    """JAX computes in float64 during this test, and only during it."""
    with jax.enable_x64(True):
        yield


class Compilations:
    """How many programs XLA has compiled since the block began."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


@contextmanager
def _compilations() -> Iterator[Compilations]:
    counter = Compilations()
    jax.monitoring.register_event_duration_secs_listener(counter)
    try:
        yield counter
    finally:
        jax.monitoring.unregister_event_duration_listener(counter)


@pytest.fixture(scope="session")
def compilations() -> Callable[[], AbstractContextManager[Compilations]]:
    """`with compilations() as compiled: …; compiled.count` counts what XLA compiles inside the block."""
    return _compilations


def uniform_goals(rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
    """Goals of the probe tasks: anywhere in [-1, 1]."""
    return rng.uniform(-1.0, 1.0, (count, 1))


def two_steps(speed: float) -> tuple[EvaluationReference, ...]:
    """Two evaluation references of different length: stay, and go away at `speed`."""
    stay, away = np.zeros((7, 1)), 0.1 * speed * np.arange(12.0)[:, None]
    return (
        EvaluationReference("stay", stay, np.zeros(1)),
        EvaluationReference("away", away, np.zeros(1)),
    )


def probe_task(
    *,
    measured: int,
    command_memory: int,
    steps: int,
    preview: tuple[int, ...],
    command_limit: float,
    length_scale: float,
    change_weight: float,
    hidden: tuple[int, ...] = (16,),
    trajectories: int = 6,
) -> Task:
    """A task on a probe plant (period 0.1 s): entry 0 of what is measured follows goals in its own space.

    Nothing but `linear_quadratic`'s cost is charged: there is no joint-limit term. `change_weight` is the cost's own,
    for commands scaled to [-1, 1]; per unit of command it is `change_weight / command_limit**2`.
    """
    spec = ControlSpec(
        robot="probe",
        period_s=0.1,
        layout=StateLayout(
            measured=("p", "v")[:measured],
            position=(0,),
            velocity=(1,) if measured == 2 else (),
            commands=("u",),
            command_memory=command_memory,
        ),
        kinematics=SelectedOutput((0,)),
        preview=preview,
        scales=Scales(
            measured_center=(0.0,) * measured,
            measured_scale=(1.0,) * measured,
            change_scale=(0.1,) * measured,
            error=0.3,
            preview=0.3,
        ),
        limits=Limits((-command_limit,), (command_limit,), (-10.0,), (10.0,)),
        reference=ReferenceSpec(space="output", steps=steps, rate_low=(-1.0,), rate_high=(1.0,)),
        policy=PolicyShape(hidden),
    )
    return Task(
        spec=spec,
        cost=tracking_cost(spec, length_scale=length_scale, change_weight=change_weight, limit_weight=0.0),
        sample_goals=uniform_goals,
        evaluation=two_steps,
        evaluation_speed=0.3,
        home=(0.0,),
        trajectories=trajectories,
    )


@pytest.fixture(scope="session")
def make_probe_task() -> Callable[..., Task]:
    """The function that makes small tasks on the probe plants."""
    return probe_task


@pytest.fixture(scope="session")
def toy_spec() -> ControlSpec:
    """Two positions, two commands and both memories: small, and with every part of the state in use."""
    return ControlSpec(
        robot="toy",
        period_s=0.05,
        layout=StateLayout(
            measured=("p0", "p1"),
            position=(0, 1),
            velocity=(),
            commands=("u0", "u1"),
            command_memory=2,
            measurement_memory=1,
        ),
        kinematics=SelectedOutput((0, 1)),
        preview=(1, 3),
        scales=Scales(
            measured_center=(0.1, -0.2),
            measured_scale=(1.0, 0.8),
            change_scale=(0.5, 0.4),
            error=0.7,
            preview=0.6,
        ),
        limits=Limits((-1.0, -2.0), (1.0, 1.0), (-3.0, -3.0), (3.0, 3.0)),
        reference=ReferenceSpec(space="output", steps=5, rate_low=(-1.0, -1.0), rate_high=(1.0, 1.0)),
        policy=PolicyShape((4,)),
    )
