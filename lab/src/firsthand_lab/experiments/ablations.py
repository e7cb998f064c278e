"""Figures 12 and 13: what happens when the model stops learning, or learns too rarely."""

import numpy as np

from .base import Comparison, Cost, Experiment, Finding, Job, Result, Seeds, Size, Verdict
from .baseline import EPISODES, HONEST_ROBOT, baseline, jobs_of, small
from .curves import Curves, gather
from .drawing import two_losses
from .learning import Setup

FREEZE_AFTER = {"full": 100, "quick": 15, "tiny": 4}
FREEZE_EARLY, EARLY_EPISODES = 10, 150
"""In the full size the model is also frozen here, where our loss is what the paper's is at episode 100."""
EVERY = 16
SPARSE_EPISODES = {"full": 1000, "quick": 64, "tiny": 16}
PLAIN_EPISODES = {"full": 400, "quick": 64, "tiny": 16}
ADAM_STEPS = 10
"""Per model update. With 300, a single update fits the model to all data, and rare updates do no harm."""
WORSE = 1.5
"""This many times the loss of the plain run, or of the moment of freezing, counts as worse."""


def _split(results: list[Result]) -> tuple[list[Result], list[Result]]:
    """The plain runs and the changed ones."""

    def is_changed(result: Result) -> bool:
        parameters = result.job.parameters
        return parameters["model_until"] is not None or parameters["model_every"] > 1

    return [r for r in results if not is_changed(r)], [r for r in results if is_changed(r)]


def _table(plain: tuple[Curves, Curves], changed: tuple[Curves, Curves]) -> dict[str, np.ndarray]:
    """Mean loss and model error of both, over the longer one's episodes."""
    episodes = max((plain[0].episodes, changed[0].episodes), key=len)

    def pad(curves: Curves) -> np.ndarray:
        mean = curves.log_mean()
        return np.concatenate([mean, np.full(len(episodes) - len(mean), np.nan)])

    return {
        "episode": episodes,
        "controller_loss": pad(plain[0]),
        "model_error": pad(plain[1]),
        "controller_loss_changed": pad(changed[0]),
        "model_error_changed": pad(changed[1]),
    }


class FreezeModel(Experiment):
    """The model stops learning after episode 100; the policy goes on."""

    name = "freeze-model"
    shows = "a model that stops learning spoils the policy"
    figure = "figure 12"
    cost = Cost(full_min=32, quick_s=50)
    seeds = Seeds(full=4, quick=1, tiny=2)

    def jobs(self, size: Size) -> list[Job]:
        """The plain run, and the frozen one."""
        robot = HONEST_ROBOT[size.name]  # it drifts: a model that no longer learns grows old
        setup = Setup(robot=robot, episodes=EPISODES[size.name], model_until=FREEZE_AFTER[size.name], **small(size))
        jobs = [*baseline(size, robot), *jobs_of(setup, f"{robot}-frozen", size.seeds, weight=0.15)]
        if size.name == "full":
            early = Setup(robot=robot, episodes=EARLY_EPISODES, model_until=FREEZE_EARLY)
            jobs += jobs_of(early, f"{robot}-frozen-early", size.seeds, weight=0.15)
        return jobs

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Losses at the freeze and at the end, beside the plain run's."""
        plain, changed = _split(results)
        frozen = [r for r in changed if r.job.parameters["model_until"] == FREEZE_AFTER[size.name]]
        early = [r for r in changed if r not in frozen]
        loss, model = gather(plain, "controller_loss"), gather(plain, "prediction_error")
        stopped, blind = gather(frozen, "controller_loss"), gather(frozen, "prediction_error")
        at, last = FREEZE_AFTER[size.name], EPISODES[size.name]
        grown = stopped.around(last) / stopped.around(at)
        against = stopped.around(last) / loss.around(last)
        blinder = blind.around(last) / blind.around(at)
        verdict = Verdict.of(grown > WORSE and against > WORSE, size)
        rows = [
            Comparison(f"controller loss when frozen, episode {at} (m²)", f"{stopped.around(at):.1e}", "3e-02"),
            Comparison(f"controller loss at episode {last} (m²)", f"{stopped.around(last):.1e}", "2e-01"),
            Comparison("growth of the controller loss since then", f"× {grown:.1f}", "× 7", verdict),
            Comparison("growth of the model's error since then", f"× {blinder:.1f}", "× 6"),
            Comparison(f"loss at episode {last} against the plain run", f"× {against:.1f}", "× 100"),
        ]
        text = _freeze_text(at, last, grown, against, blinder, loss.values.shape[0], verdict)
        losses = [("model goes on learning", loss), (f"model frozen after episode {at}", stopped)]
        errors = [("", model), ("", blind)]
        if early:
            sooner = gather(early, "controller_loss")
            losses.append((f"model frozen after episode {FREEZE_EARLY}", sooner))
            errors.append(("", gather(early, "prediction_error")))
            ratio = sooner.around(EARLY_EPISODES) / loss.around(EARLY_EPISODES)
            since = sooner.around(EARLY_EPISODES) / sooner.around(FREEZE_EARLY)
            rows.append(
                Comparison(
                    f"frozen after episode {FREEZE_EARLY}: loss at episode {EARLY_EPISODES}, against the plain run",
                    f"× {ratio:.1f}",
                    "–",
                )
            )
            text += (
                f" Our loss falls ten times sooner than theirs: at episode {FREEZE_EARLY} it is what theirs is at 100. "
                f"Frozen there, it changes by a factor of {since:.2f} until episode {EARLY_EPISODES} and is then "
                f"{ratio:.1f} times the plain run's: what is lost is what was still to be learned."
            )
        return Finding(
            verdict,
            text,
            tuple(rows),
            figures={
                "freeze-model": two_losses(
                    [("controller loss (m²)", losses), ("model error, newest episode", errors)],
                    at=[(at, "model frozen")],
                )[0]
            },
            tables={"freeze-model": _table((loss, model), (stopped, blind))},
            numbers={"growth": grown, "against_plain": against, "model_growth": blinder},
        )


def _freeze_text(at: int, last: int, grown: float, against: float, blinder: float, seeds: int, verdict: Verdict) -> str:
    claim = {
        Verdict.PASS: "As in the paper, a policy that follows a model that no longer learns gets worse.",
        Verdict.FAIL: (
            "The decline that the paper shows does not appear here to that extent (a growth by less than a factor of "
            f"{WORSE:g} counts as none)."
        ),
    }.get(verdict, "This size is too small to tell.")
    return (
        f"The model learned until episode {at} and was then left as it was, while the policy went on to episode "
        f"{last} "
        f"({seeds} seeds each). From there to the end the controller loss changed by a factor of {grown:.1f} "
        "and the model's "
        f"error on new episodes by {blinder:.1f}; at the end the loss is {against:.1f} times that of the plain "
        f"run. {claim}"
    )


class SparseModelUpdates(Experiment):
    """The model learns in every sixteenth episode only."""

    name = "sparse-model-updates"
    shows = "a model that learns every 16th episode makes learning unstable"
    figure = "figure 13"
    cost = Cost(full_min=40, quick_s=50)
    seeds = Seeds(full=4, quick=1, tiny=2)

    def jobs(self, size: Size) -> list[Job]:
        """The plain run, and one with rare model updates."""
        changed = small(size)
        changed["settings"] = {**changed.get("settings", {}), "model.steps": ADAM_STEPS}
        robot = HONEST_ROBOT[size.name]
        plain = Setup(robot=robot, episodes=PLAIN_EPISODES[size.name], **changed)
        sparse = Setup(robot=robot, episodes=SPARSE_EPISODES[size.name], model_every=EVERY, **changed)
        return [
            *jobs_of(plain, f"{robot}-few-steps", size.seeds, weight=0.12),
            *jobs_of(sparse, f"{robot}-sparse", size.seeds, weight=0.12),
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Level and swing of the losses, and whether they cycle with the updates."""
        plain, sparse = _split(results)
        loss, model = gather(plain, "controller_loss"), gather(plain, "prediction_error")
        rare, blind = gather(sparse, "controller_loss"), gather(sparse, "prediction_error")
        plain_last, last = PLAIN_EPISODES[size.name], SPARSE_EPISODES[size.name]
        late = rare.values[:, last // 2 :]
        low, high = (float(v) for v in np.exp(np.nanquantile(np.log(late), [0.05, 0.95])))
        plain_late = loss.values[:, plain_last // 2 :]
        plain_low, plain_high = (float(v) for v in np.exp(np.nanquantile(np.log(plain_late), [0.05, 0.95])))
        swing, plain_swing = high / low, plain_high / plain_low
        model_ratio = blind.around(last, last // 2) / model.around(plain_last, plain_last // 2)
        unstable = swing > 2 * plain_swing and high > 2 * plain_high
        cycle = cycle_share(rare.values[:, last // 2 :], EVERY)
        verdict = Verdict.of(unstable and model_ratio > WORSE, size)
        rows = (
            Comparison("controller loss in the second half (m²)", f"{low:.1e} to {high:.1e}", "5e-03 to 1", verdict),
            Comparison("the same of the plain run (m²)", f"{plain_low:.1e} to {plain_high:.1e}", "2e-03"),
            Comparison("swing, and that of the plain run", f"× {swing:.0f} and × {plain_swing:.0f}", "× 200"),
            Comparison("model's error on new episodes against the plain run", f"× {model_ratio:.1f}", "stays high"),
            Comparison(f"share of the loss's variation that repeats every {EVERY} episodes", f"{cycle:.2f}", "cycles"),
        )
        return Finding(
            verdict,
            _sparse_text(last, low, high, swing, plain_swing, model_ratio, cycle, rare.values.shape[0], verdict),
            rows,
            figures={
                "sparse-model-updates": two_losses(
                    [
                        ("controller loss (m²)", [("every episode", loss), (f"every {EVERY}th episode", rare)]),
                        ("model error, newest episode", [("", model), ("", blind)]),
                    ]
                )[0]
            },
            tables={"sparse-model-updates": _table((loss, model), (rare, blind))},
            numbers={
                "low": low,
                "high": high,
                "swing": swing,
                "plain_swing": plain_swing,
                "model_ratio": model_ratio,
                "cycle": cycle,
            },
        )


def cycle_share(losses: np.ndarray, period: int) -> float:
    """Share of the variance of log ℓ, over all seeds, that its mean course over a period explains; 0 to 1.

    White noise has about 1/(number of periods). `losses` has a row per seed. NaN where no period is complete.
    """
    if losses.shape[1] < period:
        return float("nan")
    logs = np.log(losses[:, : losses.shape[1] // period * period])
    logs = (logs - logs.mean(axis=1, keepdims=True)).reshape(len(logs), -1, period)
    course = logs.mean(axis=1, keepdims=True)
    total = float(np.mean(logs**2))
    return float(np.mean(course**2)) / total if total > 0 else 0.0


def _sparse_text(
    last: int,
    low: float,
    high: float,
    swing: float,
    plain_swing: float,
    model_ratio: float,
    cycle: float,
    seeds: int,
    verdict: Verdict,
) -> str:
    claim = {
        Verdict.PASS: "As in the paper, learning becomes unstable when the model is updated too rarely.",
        Verdict.FAIL: "The paper's instability does not appear here to that extent.",
    }.get(verdict, "This size is too small to tell.")
    return (
        f"The model learned in every {EVERY}th of {last} episodes only, {ADAM_STEPS} Adam steps each time ({seeds} "
        "seeds); the policy stepped in every one. In "
        f"the second half the controller loss lies between {low:.1e} and {high:.1e} m² (5 % to 95 %), a swing "
        "by a factor "
        f"of {swing:.0f} against {plain_swing:.0f} when the model learns in every episode, and the model's "
        "error on new "
        f"episodes is {model_ratio:.1f} times as large. {100 * cycle:.0f} % of the variation of the loss repeats with "
        f"the updates. {claim}"
    )
