"""What the experiments on the theory conclude from data whose right answer is known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from firsthand_lab.experiments import Finding, Result, Size, Verdict, files
from firsthand_lab.experiments.base import Experiment
from firsthand_lab.experiments.deployment import Deployment
from firsthand_lab.experiments.deployment_machine import oil_after
from firsthand_lab.experiments.fidelity import Fidelity
from firsthand_lab.experiments.noise import LEVELS, Noise
from firsthand_lab.experiments.regret import Regret
from firsthand_lab.experiments.self_correction import SelfCorrection
from firsthand_lab.experiments.step_bound import ALPHAS, EPSILONS, StepBound

Tables = Callable[[str, dict], dict[str, dict]]


def conclude(experiment: Experiment, seeds: int, folder: Path, tables: Tables) -> Finding:
    """The full-size conclusion; `tables(job name, parameters)` are the CSV files of each job."""
    size, results = Size("full", seeds), []
    for job in experiment.jobs(size):
        for name, columns in tables(job.name, dict(job.parameters)).items():
            path = folder / job.id / name
            if name.endswith(".csv"):
                files.write_csv(path, columns)
            elif name.endswith(".json"):
                files.write_json(path, columns)
            else:
                files.write_arrays(path, columns)
        results.append(Result(job, folder / job.id))
    return experiment.conclude(size, results)


def measured(finding: Finding, start: str) -> str:
    return next(row.measured for row in finding.rows if row.quantity.startswith(start))


EXCITED_COST = 5.0


def regret_tables(gap_power: float, error_power: float) -> Tables:
    """Gaps such that R_T ∝ T^gap_power, and errors such that Σ‖δ‖² ∝ T^error_power; the rest is plain."""

    def tables(name: str, parameters: dict) -> dict[str, dict]:
        learners, episodes = len(parameters["etas"]), parameters["episodes"]
        t = np.arange(1, episodes + 1, dtype=float)

        def each(values: np.ndarray) -> np.ndarray:
            return np.repeat(values, learners)

        # The first episode is excited and does not count, however much it costs.
        counted = np.arange(0, episodes, dtype=float)
        sums = [counted**p + EXCITED_COST for p in (gap_power, error_power)]
        gap, square = (each(np.diff(values, prepend=0.0)) for values in sums)
        ones = np.ones(episodes * learners)
        columns = {
            "eta": np.tile(parameters["etas"], episodes),
            "horizon": np.tile(parameters["horizons"], episodes),
            "episode": each(t),
            "cost": 0.01 + gap,
            "hindsight_cost": 0.01 * ones,
            "error": np.sqrt(square),
            "model_error": np.sqrt(square) / 2,
            "true_norm": np.sqrt(2 * 0.5 * gap),  # a PL constant of one half
            "gradient_norm": np.sqrt(square),
            "discounted_norm": ones,
            "cosine": 0.9 * ones,
            "slope": -ones,
            "step": ones,
            "cost_after": 0.01 + 0.9 * gap,
            "curvature": 2 * ones,
            "largest": 4 * ones,
            "discount": ones,
            "loss_after": each(t**-1.0),
            "loss_before": each(2 * t**-1.0),
            "loss_best": 0 * ones,
            "loss_largest": ones,
            "shift": each(t**-0.5),
            "shift_error": 0.05 * ones,
            "spectral_radius": 0.98 * ones,
            "growth_per_step": 0.97 * ones,
            "largest_product": 5 * ones,
        }
        return {"episodes.csv": columns}

    return tables


def test_sublinear_regret_is_found_and_its_constants_are_read_off(tmp_path: Path) -> None:
    finding = conclude(Regret(), 2, tmp_path, regret_tables(0.6, 0.4))
    assert finding.verdict is Verdict.PASS
    found = finding.numbers["exponents"]
    assert [found[n][0] for n in ("regret", "falling", "error")] == pytest.approx([0.6, 0.6, 0.4], abs=0.02)
    assert found["gap"][0] == pytest.approx(-0.4, abs=0.01)
    assert "0.70" in next(row.paper for row in finding.rows if "horizons" in row.quantity)  # (1 + 0.4)/2
    constants = finding.numbers["constants"][0]
    assert constants == pytest.approx(
        {"least": 0.05, "most": 4.0, "lipschitz": 1.0, "smooth": 2.0, "pl": 0.5}, rel=1e-3
    )
    assert float(measured(finding, "bound on R_T")) > 1


def test_linear_growth_is_no_success(tmp_path: Path) -> None:
    finding = conclude(Regret(), 2, tmp_path, regret_tables(1.0, 1.0))
    assert finding.verdict is Verdict.FAIL
    assert [finding.rows[i].verdict for i in (0, 3)] == [Verdict.FAIL, Verdict.FAIL]


def test_a_gap_that_grows_in_the_tail_is_no_success_after_a_costly_burn_in(tmp_path: Path) -> None:
    """Σ gaps is dominated by the first episodes and its exponent is near 0: the tail decides."""
    early, late = regret_tables(0.05, 0.4), regret_tables(1.5, 0.4)

    def tables(name: str, parameters: dict) -> dict[str, dict]:
        one, other = early(name, parameters)["episodes.csv"], late(name, parameters)["episodes.csv"]
        return {"episodes.csv": {**one, "cost": 100 * (one["cost"] - 0.01) + 0.1 * other["cost"] + 0.01}}

    finding = conclude(Regret(), 2, tmp_path, tables)
    assert finding.numbers["exponents"]["regret"][0] < 0.5
    assert finding.numbers["exponents"]["gap"][0] > 0
    assert finding.verdict is Verdict.FAIL


def step_tables(factor: float) -> Tables:
    def tables(name: str, parameters: dict) -> dict[str, dict]:
        rows = [
            (0, alpha, epsilon, norm, factor * norm / (epsilon + norm**2) / (1 + 100 * alpha))
            for epsilon in EPSILONS
            for alpha in ALPHAS
            for norm in np.sqrt(epsilon) * np.geomspace(0.01, 100, 41)
        ]
        names = ("seed", "alpha", "epsilon", "gradient_norm", "step")
        learning = {"seed": [0, 0], "episode": [1, 2], "gradient_norm": [1.0, 0.3], "step_norm": [0.2, 0.1]}
        sweep = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        return {"sweep.csv": sweep, "learning.csv": learning}

    return tables


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (1.05, Verdict.FAIL), (0.9, Verdict.FAIL)])
def test_a_step_beside_the_formula_is_noticed(tmp_path: Path, factor: float, verdict: Verdict) -> None:
    finding = conclude(StepBound(), 1, tmp_path, step_tables(factor))
    assert finding.verdict is verdict
    if factor == 1.0:
        assert measured(finding, "longest step with α = 0, ε = 0.05") == "2.2361 at ‖∇‖ = 0.2236"


def test_noise_that_doubles_the_error_is_significant(tmp_path: Path) -> None:
    def tables(preset: str, parameters: dict) -> dict[str, dict]:
        errors = [0.02 * (1 + i / 4) for i in range(len(LEVELS)) for _ in range(2)]
        levels = np.repeat([level.name for level in LEVELS], 2)
        seeds = [0, 1] * len(LEVELS)
        return {"levels.csv": {"level": levels, "seed": seeds, "shapes_error": errors, "random_error": errors}}

    finding = conclude(Noise(), 2, tmp_path, tables)
    assert finding.verdict is Verdict.PASS
    assert measured(finding, "severe over none, shapes, fast") == "× 2.0"


@pytest.mark.parametrize(("end", "verdict"), [(0.03, Verdict.PASS), (0.2, Verdict.FAIL)])
def test_whether_a_wrong_model_came_right(tmp_path: Path, end: float, verdict: Verdict) -> None:
    def tables(name: str, parameters: dict) -> dict[str, dict]:
        rows = []
        for variant in parameters["variants"]:
            last = {"from scratch": 0.025, "wrong model, frozen": 0.9}.get(variant, end)
            for episode in range(1, 41):
                error = last if episode > 12 else 1.0
                rows.append((variant, 0, episode, error, 0.1 / episode, -0.5 if episode < 4 else 0.9))
        names = ("variant", "seed", "episode", "tracking_error", "model_gap", "cosine")
        return {"episodes.csv": {n: [row[i] for row in rows] for i, n in enumerate(names)}}

    finding = conclude(SelfCorrection(), 1, tmp_path, tables)
    assert finding.verdict is verdict
    assert measured(finding, "cosine").startswith("-0.50, 0.90")


def test_the_gap_between_the_two_machines(tmp_path: Path) -> None:
    def tables(name: str, parameters: dict) -> dict[str, dict]:
        rows = []
        for phase, first in (("simulation", 1.0), ("transferred", 0.06), ("from scratch", 1.5)):
            for episode in range(1, 13):
                error = max(first / episode**2, 0.02)
                rows.append((phase, int(name[-1]), episode, error, error))
        columns = ("phase", "seed", "episode", "tracking_error", "shapes_error")
        transfer = {"simulation_shapes_error": 0.02, "real_shapes_error": 0.06}
        return {"episodes.csv": {n: [r[i] for r in rows] for i, n in enumerate(columns)}, "transfer.json": transfer}

    finding = conclude(Fidelity(), 2, tmp_path, tables)
    assert finding.verdict is Verdict.PASS
    assert measured(finding, "what the transfer costs") == "× 3.0"
    assert measured(finding, "episodes until within") == "2, 8"  # 0.06/4 and 1.5/64 are below 1.2 · 0.02


def test_the_working_day(tmp_path: Path) -> None:
    def tables(name: str, parameters: dict) -> dict[str, dict]:
        episode = np.arange(1, 181)
        error = np.maximum(1.0 / episode, 0.02)
        columns = {
            "episode": episode,
            "robot_time_s": 50.0 * episode,
            "tracking_error": error,
            "controller_loss": error**2,
            "model_loss": error,
            "between_s": np.full(180, 5.0),
            "oil_c": [oil_after(50.0 * k, 1 / 1800) for k in episode],
            "free_share": np.full(180, 0.97),
        }
        one = np.zeros((2, 6, 8), np.float32) + np.asarray([-0.85, 1.2, 0.6, 0.8, 0, 0, 0, 0], np.float32)
        record = {
            "starts": np.zeros((2, 56), np.float32),
            "measured": one,
            "commands": np.zeros((2, 5, 4), np.float32),
            "references": np.full((2, 23, 2), 4.0, np.float32),
            "free": np.ones((2, 5, 4), bool),
            "valid": np.ones((2, 5), bool),
        }
        return {"episodes.csv": columns, **{f"records/{m:06d}.safetensors": record for m in parameters["marks"]}}

    finding = conclude(Deployment(), 1, tmp_path, tables)
    assert finding.verdict is Verdict.PASS
    assert measured(finding, "total time over robot time") == "1.100 (2.75 h for 2.50 h)"
    assert oil_after(0.0, 1 / 1800) == pytest.approx(30.0)
    assert oil_after(1800.0, 1 / 1800) == pytest.approx(75.0 - 45.0 / np.e)
