"""`fidelity`: what simulation-to-real costs, and how fast learning on the robot repairs it.

The flow-source excavator plays the simulation, the two-chamber pressure model the real machine. A policy is learned on
the first, evaluated on the second, and learned on there; beside it learning from scratch on the second.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from firsthand.report.style import INK, PALETTE, episode_axis, log_scale, styled

from . import files
from .base import Comparison, Cost, Experiment, Finding, Job, Report, Result, Seeds, Size, Verdict
from .curves import Curves
from .theory.curves import band

RUNNER = f"{__name__}:run"
NEVER = "not reached"
PHASES = ("simulation", "transferred", "from scratch")


class Fidelity(Experiment):
    """Flow-source model to pressure model."""

    name = "fidelity"
    shows = "what a policy from simulation loses on the more faithful machine, and how fast learning there repairs it"
    figure = "section 1"
    cost = Cost(full_min=9, quick_s=65)
    seeds = Seeds(full=3, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """One per seed."""
        from .theory.setup import settings

        episodes = size.pick(full=12, quick=4, tiny=2)
        return [
            Job(
                f"seed-{seed}",
                RUNNER,
                {"seeds": [seed], "episodes": episodes, **settings(size, "fast")},
                steps=3 * episodes,
                weight=3.5,
            )
            for seed in range(size.seeds)
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """The gap, and how it closes."""
        tables = [result.csv("episodes.csv") for result in results]
        curves = {
            (phase, column): _curves(tables, phase, column)
            for phase in PHASES
            for column in ("tracking_error", "shapes_error")
        }
        home = np.asarray([result.json("transfer.json")["simulation_shapes_error"] for result in results])
        away = np.asarray([result.json("transfer.json")["real_shapes_error"] for result in results])
        transferred, scratch = (curves[phase, "shapes_error"].log_mean() for phase in PHASES[1:])
        episodes = len(transferred)
        best = float(np.exp(np.mean(np.log(scratch[-max(episodes // 3, 1) :]))))
        repaired = _first(transferred, 1.2 * best)
        caught = _first(scratch, 1.2 * best)
        late = max(episodes // 3, 1)
        random = {p: float(curves[p, "tracking_error"].values[:, -late:].mean()) for p in PHASES}
        gap = float(np.exp(np.mean(np.log(away / home))))
        rows = (
            Comparison("shapes where it was learned, flow-source model (cm)", _cm(home), "–"),
            Comparison("the same policy on the pressure model (cm)", _cm(away), "–"),
            Comparison(
                "what the transfer costs", f"× {gap:.1f}", "performance degrades", Verdict.of_full(gap > 1.2, size)
            ),
            Comparison("shapes after learning on from there (cm), by episode", _list_values(transferred), "–"),
            Comparison("shapes from scratch on the pressure model (cm), by episode", _list_values(scratch), "–"),
            Comparison(
                f"episodes until within 1.2 times the final {100 * best:.1f} cm: transferred, from scratch",
                f"{repaired}, {caught}",
                "learning on the robot repairs it",
                Verdict.of_full(repaired != NEVER, size),
            ),
            Comparison(
                "random references in the last third (cm): simulation, transferred, from scratch",
                ", ".join(f"{100 * random[p]:.1f}" for p in PHASES),
                "–",
            ),
        )
        text = (
            f"The fast preset learned for {episodes} episodes on the flow-source excavator; its policy followed the "
            f"shapes there with {_cm(home)} cm and on the pressure model with {_cm(away)} cm (× {gap:.1f}). Then model "
            "and policy learned on there, with new data only. The shapes are run before each episode: episode 1 of "
            "the transferred curve is the policy as it came. Within 1.2 times the final error of learning from "
            f"scratch: transferred {_when(repaired)}, from scratch {_when(caught)}. Both are our "
            "simulations: the gap to a real machine may be larger."
        )
        return Finding(
            Verdict.overall(rows),
            text,
            rows,
            figures={"fidelity": fidelity_figure(curves, home)},
            tables={"episodes": {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}},
            numbers={"gap": gap, "simulation_m": home.tolist(), "real_m": away.tolist()},
        )


def _cm(values: np.ndarray) -> str:
    return ", ".join(f"{100 * v:.1f}" for v in values)


def _list_values(values: np.ndarray) -> str:
    at = np.unique(np.round(np.geomspace(1, len(values), 5)).astype(int))
    return ", ".join(f"{k}: {100 * values[k - 1]:.1f}" for k in at)


def _first(values: np.ndarray, most: float) -> str:
    """From which episode (counted from 1) on the error is below."""
    below = np.flatnonzero(values <= most)
    return str(int(below[0]) + 1) if below.size else NEVER


def _when(episode: str) -> str:
    return "not in this run" if episode == NEVER else f"at episode {episode}"


def _curves(tables: list[dict[str, np.ndarray]], phase: str, column: str) -> Curves:
    values = [
        table[column][(table["phase"] == phase) & (table["seed"] == seed)]
        for table in tables
        for seed in np.unique(table["seed"])
    ]
    return Curves(np.arange(1, len(values[0]) + 1), np.stack(values))


@styled
def fidelity_figure(curves: dict[tuple[str, str], Curves], home: np.ndarray) -> Figure:
    """Errors on the pressure model over episodes, transferred and from scratch."""
    figure = Figure(figsize=(9.0, 3.9), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, column, title in zip(
        panels,
        ("shapes_error", "tracking_error"),
        ("circle, square, line, before the episode", "random references, in the episode"),
        strict=True,
    ):
        shown: list[np.ndarray | float] = []
        for phase, color in zip(PHASES[1:], PALETTE, strict=False):
            one = curves[phase, column]
            shown.append(band(axes, one.episodes, 100 * one.values, color, label=phase, marker="o"))
        if column == "shapes_error":
            level = 100 * float(np.exp(np.mean(np.log(home))))
            axes.axhline(
                level, color=INK, linestyle=(0, (4, 2.5)), linewidth=1.1, label="in the simulation it came from"
            )
            shown.append(level)
        log_scale(axes, shown)
        episode_axis(axes, curves[PHASES[1], column].episodes)
        axes.set_title(title, loc="left")
        axes.set_xlabel("episode on the pressure model")
    panels[0].set_ylabel("mean error (cm)")
    panels[0].legend(loc="best")
    return figure


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Leaves episodes.csv, a row per phase, seed and episode, and transfer.json."""
    import equinox as eqx

    from firsthand.runs.pytrees import from_arrays, to_arrays

    from .learning import write_rows
    from .theory.setup import make_group, plant_of

    episodes = parameters["episodes"]
    flow, pressure = plant_of("excavator"), plant_of("excavator-pressure")
    kept = folder / files.CHECKPOINT / "phases.safetensors"
    simulated = make_group(parameters, flow)

    def parts(group: Any) -> dict[str, Any]:
        return {name: getattr(group.state, name) for name in ("policy", "dynamics", "optimizer")}

    rows: list[dict[str, Any]] = []
    transfer: dict[str, float] = {}
    learned = None
    if kept.exists():
        arrays, info = files.read_arrays(kept)
        rows, transfer = info["rows"], info["transfer"]
        learned = from_arrays(parts(simulated), arrays)

    def phase(group: Any, name: str) -> None:
        number = PHASES.index(name)
        for k in range(1, episodes + 1):
            shapes = group.evaluate()
            metrics = group.run_episode()
            for i, seed in enumerate(group.seeds):
                row = {"phase": name, "seed": seed, "episode": k}
                row |= {n: float(metrics[n][i]) for n in ("tracking_error", "cost", "prediction_error", "model_loss")}
                rows.append({**row, "shapes_error": shapes[i].mean_error})
            note = f"{name}: {100 * np.mean(metrics['tracking_error']):.1f} cm"
            report(number * episodes + k, note)

    if learned is None:
        phase(simulated, "simulation")
        learned = parts(simulated)
        transfer["simulation_shapes_error"] = simulated.evaluate()[0].mean_error
        files.write_arrays(kept, to_arrays(learned), {"rows": rows, "transfer": transfer})
    done = {row["phase"] for row in rows}
    for name in PHASES[1:]:
        if name in done:
            continue
        group = make_group(parameters, pressure)
        if name == "transferred":
            group.state = eqx.tree_at(
                lambda s: (s.policy, s.dynamics, s.optimizer), group.state, tuple(learned.values())
            )
            group.episode = parameters["settings"]["excitation.episodes"]  # it has seen motion: no random commands
            transfer["real_shapes_error"] = group.evaluate()[0].mean_error
        phase(group, name)
        files.write_arrays(kept, to_arrays(learned), {"rows": rows, "transfer": transfer})
    write_rows(folder / "episodes.csv", rows)
    files.write_json(folder / "transfer.json", transfer)
