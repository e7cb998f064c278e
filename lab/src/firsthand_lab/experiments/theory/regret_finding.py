"""What the data of `regret` says: exponents, the theory's bounds from measured constants, figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import FAINT, INK, PALETTE, log_scale, styled

from ..base import Comparison, Finding, Result, Size, Verdict
from .bounds import PolicyConstants, newest_episode_gap, one_step_bound, regret_bound
from .curves import band, guide, log_across
from .growth import Interval, growth_exponent, interval, log_slope, tail_exponent
from .regret_job import EXCITED

ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
"""Where a legend covers no curve."""
CLEARLY = 0.98
"""An exponent counts as below a value when its interval ends below this share of it."""


@dataclass(frozen=True)
class Schedule:
    """One schedule of η: what was measured, `(seeds, episodes)` per column."""

    name: str
    eta: float
    epsilon: float
    columns: dict[str, np.ndarray]

    @staticmethod
    def of(results: Sequence[Result], index: int) -> "Schedule":
        """One of the schedules, from the jobs of all seeds, up to its horizon; excited episodes are left out."""
        parameters = results[0].job.parameters
        learners, horizon = len(parameters["etas"]), parameters["horizons"][index]
        tables = [result.csv("episodes.csv") for result in results]
        columns = {
            name: np.stack([table[name].reshape(-1, learners)[EXCITED:horizon, index] for table in tables])
            for name in tables[0]
        }
        name = "constant" if index == 0 else f"horizon-{horizon}"
        return Schedule(name, parameters["etas"][index], parameters["settings"]["policy_step.epsilon"], columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def episodes(self) -> np.ndarray:
        """Those that count, up to T."""
        return self["episode"][0]

    @property
    def gaps(self) -> np.ndarray:
        """g(φ_t; x̃_t) − g(φ*; x̃_t), with the best policy in hindsight for φ*."""
        return self["cost"] - self["hindsight_cost"]

    @property
    def regret(self) -> np.ndarray:
        """R_T for T = 1, 2, …."""
        return np.cumsum(self.gaps, axis=1)

    def exponent(self, values: np.ndarray) -> Interval:
        """p of Σ values ∝ T^p over seeds."""
        return interval([growth_exponent(one) for one in values])

    def constants(self, seed: int) -> PolicyConstants:
        """The theory's constants as far as one seed's run shows them."""
        gap, norm = self.gaps[seed], self["true_norm"][seed]
        behind = gap > 0
        ratio = norm[behind] ** 2 / (2 * gap[behind])
        return PolicyConstants(
            least=self.epsilon,
            most=float(self["largest"][seed].max()),
            lipschitz=float(max(norm.max(), self["gradient_norm"][seed].max())),
            smooth=float(np.nanmax(self["curvature"][seed])),
            pl=float(ratio.min()) if ratio.size else float("nan"),
        )

    def bound(self, seed: int) -> np.ndarray:
        """The bound on R_T with these constants, counted from the first episode that counts."""
        first = float(self.gaps[seed, 0])
        later = regret_bound(self.constants(seed), self.eta, first, self["error"][seed, :-1]).total
        return first + np.concatenate([[0.0], later])

    def steps_within(self, seed: int) -> np.ndarray:
        """Which updates changed the cost on their own references by no more than the theory allows."""
        c = self.constants(seed)
        change = (self["cost_after"] - self["cost"])[seed, 1:]
        return change <= one_step_bound(c, self.eta, self["true_norm"][seed, 1:], self["error"][seed, 1:])


def conclude(size: Size, results: Sequence[Result]) -> Finding:
    """Exponents, bounds and figures."""
    constant, *falling = (Schedule.of(results, i) for i in range(len(results[0].job.parameters["etas"])))
    seeds = range(len(constant.regret))
    first = round(float(falling[0].episodes[-1]) * (falling[0].eta / constant.eta) ** 2)
    horizons = np.asarray([first, *(s.episodes[-1] for s in falling)], float)
    ends = np.stack([constant.regret[:, first - 1 - EXCITED], *(s.regret[:, -1] for s in falling)], axis=1)

    growth = {
        "gap": interval([tail_exponent(one) for one in constant.gaps]),
        "regret": constant.exponent(constant.gaps),
        "falling": interval([log_slope(horizons, one) for one in ends]),
        "error": constant.exponent(constant["error"] ** 2),
        "model_error": constant.exponent(constant["model_error"] ** 2),
        "local": constant.exponent(constant["true_norm"] ** 2),
        "model": constant.exponent(_fill_gaps(constant["loss_after"] - constant["loss_best"])),
    }
    predicted = max(0.5, (1.0 + growth["error"].mean) / 2.0)
    bounds = np.stack([constant.bound(seed) for seed in seeds])
    factor = float(np.median(bounds[:, -1] / constant.regret[:, -1]))
    within = float(np.mean([constant.steps_within(seed).mean() for seed in seeds]))
    part = max(len(constant.episodes) // 4, 1)
    shift = constant["shift"][:, 1:]
    early, late = float(shift[:, :part].mean()), float(shift[:, -part:].mean())
    loops = {n: float(np.nanmedian(constant[n][:, -2 * part :])) for n in ("growth_per_step", "spectral_radius")}
    amplified = float(np.nanmedian(constant["largest_product"][:, -2 * part :]))
    uphill = float((constant["slope"][:, 1:] > 0).mean())

    told = size.name == "full"

    def judge(holds: bool) -> Verdict:
        return Verdict.of_full(holds, size)

    def below(value: Interval, most: float) -> bool:
        return bool((value.high if np.isfinite(value.high) else value.mean) < CLEARLY * most)

    gap = growth["gap"]
    rows = (
        Comparison(
            f"exponent of the gap per episode in the tail, η = {constant.eta:g}",
            str(gap),
            "below 0",
            judge((gap.high if np.isfinite(gap.high) else gap.mean) < 0.0),
        ),
        Comparison(f"growth exponent of R_T, η = {constant.eta:g}", str(growth["regret"]), "1 (bound)"),
        Comparison(
            f"growth exponent of R_T over horizons, η ∝ T^(−1/2), T = {', '.join(f'{h:.0f}' for h in horizons)}",
            str(growth["falling"]),
            f"{predicted:.2f} (bound: (1 + exponent of Σ‖δ‖²)/2)",
            judge(growth["falling"].mean <= predicted),
        ),
        Comparison("growth exponent of Σ‖δ_t‖²", str(growth["error"]), "below 1", judge(below(growth["error"], 1.0))),
        Comparison("the same with the learner's discount in both gradients", str(growth["model_error"]), "–"),
        Comparison(
            "growth exponent of the local regret Σ‖∇g‖²",
            str(growth["local"]),
            "below 1",
            judge(below(growth["local"], 1.0)),
        ),
        Comparison("bound on R_T with measured constants, over R_T", f"{factor:.1e}", "at least 1", judge(factor >= 1)),
        Comparison("updates within the one-step bound", f"{100 * within:.0f} %", "100 %", judge(within == 1.0)),
        Comparison("updates against the true gradient (∇gᵀΔφ > 0)", f"{100 * uphill:.0f} %", "–"),
        Comparison(
            "shift Δ_t between episodes, lower bound: first quarter, last quarter",
            f"{early:.2f}, {late:.2f}",
            "small after a burn-in",
            judge(late < early),
        ),
        Comparison(
            "growth exponent of the model's regret on the newest episode",
            str(growth["model"]),
            "below 1",
            judge(below(growth["model"], 1.0)),
        ),
        Comparison(
            "growth of the loop per step after the transient, last half",
            f"{loops['growth_per_step']:.3f}",
            "below 1",
            judge(loops["growth_per_step"] < 1.0),
        ),
        Comparison("largest eigenvalue of A + BK, last half", f"{loops['spectral_radius']:.3f}", "–"),
        Comparison("largest ‖Π(A + BK)‖ on the way, last half", f"{amplified:.0f}", "–"),
    )
    judged = [rows[i].verdict for i in (0, 2, 3, 5)]
    verdict = Verdict.NOT_COMPARABLE if not told else Verdict.PASS
    if Verdict.FAIL in judged:
        verdict = Verdict.FAIL
    names = [n for n in constant.columns if n not in ("episode", "eta", "horizon")]
    return Finding(
        verdict,
        _text(constant, growth, predicted, factor, within, told),
        rows,
        figures={
            "regret": regret_figure(constant, falling, horizons, ends, bounds),
            "gradients": gradient_figure(constant),
            "data-and-model": data_figure(constant),
        },
        tables={
            s.name: {
                "seed": np.tile(np.arange(len(s.regret)), len(s.episodes)),
                "episode": s["episode"].T.reshape(-1).astype(int),
                **{n: s[n].T.reshape(-1) for n in names},
                "regret": s.regret.T.reshape(-1),
            }
            for s in (constant, *falling)
        },
        numbers={
            "exponents": {n: list(v) for n, v in growth.items()},
            "constants": [vars(constant.constants(seed)) for seed in seeds],
            "regret": [float(v) for v in constant.regret[:, -1]],
            "horizons": horizons.tolist(),
            "regret_at_horizons": ends.tolist(),
            "hindsight_cost": float(constant["hindsight_cost"].mean()),
        },
    )


def _fill_gaps(values: np.ndarray) -> np.ndarray:
    """Where nothing was measured, what was measured last (or, before that, first)."""
    filled = values.copy()
    for one in filled:
        known = np.flatnonzero(np.isfinite(one))
        if known.size:
            one[:] = one[known[np.clip(np.searchsorted(known, np.arange(len(one)), side="right") - 1, 0, None)]]
    return filled


def _text(
    constant: Schedule, growth: dict[str, Any], predicted: float, factor: float, within: float, told: bool
) -> str:
    episodes = int(constant.episodes[-1])
    text = (
        f"The preset `paper-exact` learned for {episodes} episodes with a constant step, and for each horizon T with "
        "η ∝ T^(−1/2). The excited first episode does not count. Regret is counted against the best fixed policy that "
        "we could find in hindsight (the best of all learners, last or of a single episode, trained on with the "
        "plant's true gradients on the run's own references); the true optimum may be better, so true regret is at "
        f"least this. In the last three quarters the gap per episode goes like t^{growth['gap']}; below 0 it falls, "
        "and regret is sublinear. The true gradient is the derivative through the simulated plant, "
        "without the learner's discount. With the constant step, for which the bound is linear, R_T grew like "
        f"T^{growth['regret']}, and with η ∝ T^(−1/2) over horizons like T^{growth['falling']} (the bound allows "
        f"{predicted:.2f}); Σ‖δ‖² grew like T^{growth['error']}. The bound itself, with the constants that the run "
        f"shows, is {factor:.0e} times the regret: it holds and says nothing about its size. {100 * within:.0f} % of "
        "the updates kept the one-step bound. The shift between episodes is a lower bound on total variation: no "
        "sample of this size bounds it from above, so the model's bound is drawn with the most favourable shift."
    )
    return text if told else f"Too few episodes to tell an exponent; the machinery runs. {text}"


@styled
def regret_figure(
    constant: Schedule, falling: Sequence[Schedule], horizons: np.ndarray, ends: np.ndarray, bounds: np.ndarray
) -> Figure:
    """R_T over T with both schedules, and the bound beside what was measured."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = constant.episodes
    shown = [band(left, x, constant.regret, PALETTE[0], label=f"η = {constant.eta:g}")]
    for schedule in falling:
        shown.append(band(left, schedule.episodes, schedule.regret, PALETTE[1], linewidth=1.0, alpha=0.6))
    low, high = ends.min(axis=0), ends.max(axis=0)
    middle = np.exp(np.log(np.maximum(ends, 1e-12)).mean(axis=0))
    left.errorbar(
        horizons,
        middle,
        yerr=np.maximum((middle - low, high - middle), 0.0),
        color=PALETTE[1],
        marker="o",
        linestyle="none",
        capsize=3,
        label="η ∝ T^(−1/2): R_T at its horizon T",
    )
    last = float(np.exp(np.log(np.maximum(constant.regret[:, -1], 1e-12)).mean()))
    guide(left, x, last, 1.0, "T")
    guide(left, x, last, 0.5, "√T")
    log_across(left)
    log_scale(left, shown)
    left.set_xlabel("episodes T")
    left.set_ylabel("regret R_T")
    left.legend(**ABOVE)
    shown = [
        band(right, x, bounds, INK, label="bound, measured constants", linestyle="--"),
        band(right, x, np.cumsum(constant["cost"], axis=1), FAINT, label="Σ cost: no regret is larger"),
        band(right, x, constant.regret, PALETTE[0], label="measured R_T"),
    ]
    log_across(right)
    log_scale(right, shown)
    right.set_xlabel("episodes T")
    right.legend(**ABOVE)
    return figure


@styled
def gradient_figure(constant: Schedule) -> Figure:
    """Norms of the true gradient and of the learner's error; their mean squares up to T; the angle between them."""
    figure = Figure(figsize=(12.0, 3.9), layout="constrained")
    norms, means, angle = figure.subplots(1, 3)
    x = constant.episodes
    drawn = (
        ("true_norm", "‖∇g‖, the plant's", PALETTE[0]),
        ("error", "‖δ‖, the learner's error", PALETTE[1]),
        ("model_error", "‖δ‖ with the same discount", PALETTE[2]),
    )
    log_scale(norms, [band(norms, x, constant[n], color, label=label) for n, label, color in drawn])
    norms.set_ylabel("norm")
    norms.legend(loc="best")
    mean_squares = [
        band(means, x, np.cumsum(constant[n] ** 2, axis=1) / x, color, label=f"(1/T) Σ {label.split(',')[0]}²")
        for n, label, color in drawn[:2]
    ]
    log_across(means)
    log_scale(means, mean_squares)
    means.set_ylabel("mean square up to T")
    means.legend(loc="best")
    for seed in constant["cosine"]:
        angle.plot(x, seed, color=PALETTE[0], alpha=0.7, linewidth=1.1)
    angle.axhline(0.0, color=INK, linewidth=0.9)
    angle.set_ylim(-1.05, 1.05)
    angle.set_ylabel("cosine of the angle, learner's to true gradient")
    for axes in (norms, means, angle):
        axes.set_xlabel("episode")
    return figure


@styled
def data_figure(constant: Schedule) -> Figure:
    """The shift between episodes, the model's regret, and the growth of the loop."""
    figure = Figure(figsize=(12.0, 3.9), layout="constrained")
    shift, model, loop = figure.subplots(1, 3)
    x = constant.episodes
    for seed, error in zip(constant["shift"], constant["shift_error"], strict=True):
        shift.plot(x[1:], seed[1:], color=PALETTE[0], linewidth=1.1, alpha=0.8)
        shift.fill_between(x[1:], (seed - error)[1:], (seed + error)[1:], color=PALETTE[0], alpha=0.08, linewidth=0)
    shift.axhline(0.0, color=INK, linewidth=0.9)
    shift.set_ylabel("shift Δ_t, lower bound")
    shift.set_ylim(-0.55, 1.02)
    regret = np.cumsum(_fill_gaps(constant["loss_after"] - constant["loss_best"]), axis=1)
    largest = float(constant["loss_largest"].max())
    most = np.stack([newest_episode_gap(np.maximum(one, 0.0), largest) for one in constant["shift"]])
    log_scale(
        model,
        [
            band(model, x, most, INK, linestyle="--", label="first term of the bound, with Δ's lower bound"),
            band(model, x, np.cumsum(constant["loss_after"], axis=1), FAINT, label="Σ loss: no regret is larger"),
            band(model, x, regret, PALETTE[0], label="measured, against a refit model"),
        ],
    )
    log_across(model)
    model.set_ylabel("model regret on the newest episode")
    model.legend(**ABOVE)
    drawn = (
        ("growth_per_step", "of products, after the transient", PALETTE[0]),
        ("spectral_radius", "largest eigenvalue", PALETTE[1]),
    )
    for name, label, color in drawn:
        band(loop, x, constant[name], color, label=label)
    loop.axhline(1.0, color=INK, linewidth=0.9)
    loop.set_ylabel("growth of the closed loop per step")
    loop.legend(loc="best")
    for axes in (shift, model, loop):
        axes.set_xlabel("episode")
    return figure
