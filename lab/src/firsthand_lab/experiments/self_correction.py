"""`self-correction`: a learner that begins with a wrong model (the paper's discussion).

The model is trained beforehand on data in which some commands have the wrong sign, so that it believes these valves to
work backwards. Then learning begins, with this model and a random policy. The paper says that the policy will exploit
the error, and that the data this brings will correct it. Beside it: the same from scratch, and the same with the model
frozen, which nothing can correct.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import INK, PALETTE, log_scale, styled

from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict
from .curves import Curves
from .theory.curves import band

RUNNER = f"{__name__}:run"
KEPT = "wrong model, wrong data kept"
VARIANTS = {
    "from scratch": {"biased": False, "learns": True, "keeps": False},
    "wrong model": {"biased": True, "learns": True, "keeps": False},
    KEPT: {"biased": True, "learns": True, "keeps": True},
    "wrong model, frozen": {"biased": True, "learns": False, "keeps": False},
}
FLIPPED = (0, 1)
"""Boom and dipper: commands of which the wrong model has seen the wrong sign."""
NEAR = 1.5
"""Repaired when the error is at most this many times that of a learner from scratch."""
LOST = 3.0
"""Not repaired when it is still this many times that."""


class SelfCorrection(Experiment):
    """A wrong model, and what new data makes of it."""

    name = "self-correction"
    shows = "new data repairs a model that is wrong on purpose"
    figure = "section 5"
    cost = Cost(full_min=7, quick_s=30)
    seeds = Seeds(full=2, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One: the variants one after the other, so that it compiles once."""
        from .theory.setup import settings

        episodes = size.pick(full=40, quick=8, tiny=2)
        names = list(VARIANTS) if size.name == "full" else ["from scratch", "wrong model", "wrong model, frozen"]
        parameters = {
            "robot": "excavator",
            "seeds": list(range(size.seeds)),
            "episodes": episodes,
            "before": size.pick(full=3, quick=2, tiny=1),
            "rounds": size.pick(full=5, quick=3, tiny=1),
            "flipped": list(FLIPPED),
            "variants": {name: VARIANTS[name] for name in names},
            **settings(size, "paper-exact"),
        }
        return [Job("variants", RUNNER, parameters, steps=len(names) * episodes, weight=0.9 * size.seeds)]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Whether the wrong model came right, and in how many episodes."""
        table = results[0].csv("episodes.csv")
        names = list(results[0].job.parameters["variants"])
        curves = {name: {c: _curves(table, name, c) for c in COLUMNS} for name in names}
        ends = {name: _late(curves[name]["tracking_error"].values) for name in names}
        scratch, wrong, frozen = (ends[name] for name in ("from scratch", "wrong model", "wrong model, frozen"))
        rows = [
            Comparison(f"tracking error in the last quarter, {name} (cm)", f"{100 * ends[name]:.1f}", "–")
            for name in names
        ]
        first = {name: float(curves[name]["cosine"].values[:, 0].mean()) for name in names}
        last = {name: _late(curves[name]["cosine"].values) for name in names}
        off = float(curves["wrong model"]["model_gap"].values[:, 0].mean())
        off_late = _late(curves["wrong model"]["model_gap"].values)
        sooner = _repair_episode(curves["from scratch"]["tracking_error"], curves["wrong model"]["tracking_error"])
        rows += [
            Comparison(
                "cosine of the learner's gradient to the true one, wrong model: first episode, last quarter",
                f"{first['wrong model']:.2f}, {last['wrong model']:.2f}",
                "–",
            ),
            Comparison(
                "the same, model frozen", f"{first['wrong model, frozen']:.2f}, {last['wrong model, frozen']:.2f}", "–"
            ),
            Comparison(
                "the wrong model's error on the episode just seen (declared scales): first, last quarter",
                f"{off:.3g}, {off_late:.3g}",
                "–",
            ),
            Comparison(
                "wrong model over from scratch at the end",
                f"× {wrong / scratch:.2f}",
                "corrected",
                Verdict.of_full(wrong <= NEAR * scratch, size),
            ),
            Comparison(
                "frozen over from scratch at the end",
                f"× {frozen / scratch:.1f}",
                "not corrected",
                Verdict.of_full(frozen >= LOST * scratch, size),
            ),
            Comparison(f"episodes until the error stays within {NEAR:g} times that from scratch", sooner, "–"),
        ]
        text = (
            "Before the first episode the model was trained on data in which the commands of boom and dipper had the "
            "wrong sign; policy and references are those of the run from scratch. At first the learner's gradient had "
            f"a cosine of {first['wrong model']:.2f} to the true one (from scratch: {first['from scratch']:.2f}), in "
            f"the last quarter {last['wrong model']:.2f}. The error then was {100 * wrong:.1f} cm, from scratch "
            f"{100 * scratch:.1f} cm, and with the wrong model frozen {100 * frozen:.1f} cm."
            + (f" Where the wrong data stayed in the buffer it was {100 * ends[KEPT]:.1f} cm." if KEPT in ends else "")
        )
        return Finding(
            Verdict.overall(rows),
            text,
            tuple(rows),
            figures={"self-correction": correction_figure(curves)},
            tables={"episodes": table},
            numbers={"last_error": ends, "cosine_first": first, "cosine_last": last},
        )


COLUMNS = ("tracking_error", "model_gap", "cosine")


def _curves(table: dict[str, np.ndarray], variant: str, column: str) -> Curves:
    at = table["variant"] == variant
    seeds = np.unique(table["seed"][at])
    values = np.stack([table[column][at & (table["seed"] == seed)] for seed in seeds])
    return Curves(np.arange(1, values.shape[1] + 1), values)


def _late(values: np.ndarray) -> float:
    """The mean over the last quarter of the episodes and all seeds."""
    return float(np.mean(values[:, -(-3 * values.shape[1] // 4) :] if values.shape[1] > 1 else values))


def _repair_episode(scratch: Curves, wrong: Curves) -> str:
    """From which episode on the error, as a running mean of three, is never again beyond `NEAR` times the other's."""
    if len(scratch.episodes) < 3:
        return "–"
    ratio = np.convolve(np.log(wrong.log_mean() / scratch.log_mean()), np.ones(3) / 3, mode="valid")
    beyond = np.flatnonzero(ratio > np.log(NEAR))
    if beyond.size == 0:
        return "at once"
    return "not within this run" if beyond[-1] == len(ratio) - 1 else str(int(beyond[-1]) + 4)


@styled
def correction_figure(curves: dict[str, dict[str, Curves]]) -> Figure:
    """Tracking error, the model's error on the newest episode, and the angle of the gradient."""
    figure = Figure(figsize=(12.0, 3.9), layout="constrained")
    error, model, angle = figure.subplots(1, 3)
    panels = (
        (error, "tracking_error", "tracking error (cm)", 100.0),
        (model, "model_gap", "model's error on the episode just seen", 1.0),
    )
    for axes, column, label, factor in panels:
        shown = [
            band(axes, one[column].episodes, factor * one[column].values, PALETTE[i], label=name)
            for i, (name, one) in enumerate(curves.items())
        ]
        log_scale(axes, shown)
        axes.set_ylabel(label)
    for i, one in enumerate(curves.values()):
        angle.plot(one["cosine"].episodes, one["cosine"].values.mean(axis=0), color=PALETTE[i])
    angle.axhline(0.0, color=INK, linewidth=0.9)
    angle.set_ylim(-1.05, 1.05)
    angle.set_ylabel("cosine, learner's to true gradient")
    for axes in (error, model, angle):
        axes.set_xlabel("episode")
    figure.legend(*error.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    return figure


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Leaves episodes.csv, a row per variant, seed and episode. A finished variant is not repeated."""
    from .learning import run_in_order

    parts = {name: partial(learn, parameters, name) for name in parameters["variants"]}
    run_in_order(folder / "episodes.csv", "variant", parts, parameters["episodes"], report)


def learn(parameters: dict[str, Any], variant: str, report: Report) -> list[dict[str, Any]]:
    """All seeds of one variant."""
    import equinox as eqx
    import jax.numpy as jnp

    from firsthand.agent.trees import take_member
    from firsthand.training.learning import as_rollout

    from .theory.gradients import trajectory_starts
    from .theory.measured import gradient_report, model_report
    from .theory.setup import make_group

    chosen = parameters["variants"][variant]
    group = make_group(_with_room(parameters))
    if chosen["biased"]:
        dynamics, optimizer, records = wrong_model(parameters)
        group.state = eqx.tree_at(lambda s: (s.dynamics, s.optimizer), group.state, (dynamics, optimizer))
        if chosen["keeps"]:
            for episode in records:
                group.remember(episode)
    rows = []
    for episode in range(1, parameters["episodes"] + 1):
        before, now = group.state, group.snapshot()["robot"][0]
        metrics = group.run_episode(learn_model=chosen["learns"])
        for i, seed in enumerate(group.seeds):
            old, new, record = take_member(before, i), take_member(group.state, i), group.records[i]
            rollout = as_rollout(group.task.spec, record)
            starts = trajectory_starts(group.plant, take_member(now[0], i), record.commands, record.starts)
            references = jnp.asarray(record.references)
            found = gradient_report(
                group.plant,
                group.task,
                group.settings,
                old.policy,
                new.policy,
                new.dynamics,
                rollout,
                starts,
                references,
            )
            rows.append(
                {
                    "variant": variant,
                    "seed": seed,
                    "episode": episode,
                    "tracking_error": float(metrics["tracking_error"][i]),
                    "cost": float(metrics["cost"][i]),
                    "prediction_error": float(metrics["prediction_error"][i]),
                    "model_gap": model_report(old.dynamics, new.dynamics, rollout)["loss_after"],
                    "cosine": float(found.cosine),
                    "error": float(found.error),
                    "true_norm": float(found.true_norm),
                }
            )
        report(episode, f"{variant}: error {100 * np.mean(metrics['tracking_error']):.1f} cm")
    return rows


def wrong_model(parameters: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    """A model, its optimiser and its data (episodes of every seed), in which some commands have the wrong sign."""
    import dataclasses

    import equinox as eqx
    import jax

    from firsthand.agent import update_model
    from firsthand.agent.trees import stack_trees
    from firsthand.training.learning import as_rollout

    from .theory.setup import make_group

    group = make_group(_with_room(parameters))
    sign = np.ones(group.task.spec.layout.num_commands, np.float32)
    sign[parameters["flipped"]] = -1.0
    layout, episodes = group.task.spec.layout, []
    for _ in range(parameters["before"]):
        group.run_episode(learn_model=False)
        wrong = []
        for record in group.records:
            starts = record.starts.copy()
            starts[:, layout.command_start :] *= np.tile(sign, layout.command_memory)
            wrong.append(dataclasses.replace(record, starts=starts, commands=record.commands * sign))
        episodes.append(wrong)
    taught = make_group(_with_room(parameters))
    for wrong in episodes:
        taught.remember(wrong)
    rollout = stack_trees([as_rollout(taught.task.spec, record) for record in episodes[-1]])
    learn_all = eqx.filter_jit(eqx.filter_vmap(lambda s, b, r: update_model(s, b, r, taught.settings)[0]))
    state = taught.state
    for _ in range(parameters["rounds"]):
        state = learn_all(state, taught.buffer, rollout)
    jax.block_until_ready(state)
    return state.dynamics, state.optimizer, episodes


def _with_room(parameters: dict[str, Any]) -> dict[str, Any]:
    """Buffers that hold the wrong data, too."""
    return {**parameters, "episodes": parameters["episodes"] + parameters["before"]}
