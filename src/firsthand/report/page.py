"""What the HTML page of a run says; `templates/report.html` is how. No script, nothing loaded from elsewhere."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..advice import no_advice
from ..evaluation import Evaluation, TrackingMetrics
from ..evaluation.published import published_results
from ..robots.description import ROBOT_DESCRIPTION
from ..robots.user_file import name_for_titles
from ..units import METRES, NO_UNIT, UNKNOWN, Unit, duration, number, three_digits
from .data import finite_mean
from .gather import RunReport, reproduction
from .html import Picture, Section, image, render_page


def render(report: RunReport, images: Mapping[str, bytes]) -> str:
    """The whole page. `images` are the figures as SVG, by name."""
    config = report.run.config
    title = f"{name_for_titles(config.robot)}, preset {config.preset}, seed {config.seed}"
    sections = [_learning(report, images)]
    if report.evaluation is not None:
        sections.append(_shapes(report, images))
    sections.append(_episodes(report, images))
    if report.poses is not None:
        sections.append(_poses(report, images))
    sections.append(_series(report, images))
    return render_page(
        "report.html",
        title,
        **_head(report),
        sections=sections,
        table=None if report.evaluation is None else _table(report, report.evaluation),
        missing=_not_evaluated(report),
        health=_health(report, images),
        signals=_signals(report),
        configuration=_configuration(report),
    )


def _head(report: RunReport) -> dict[str, Any]:
    history, config = report.history, report.run.config
    done, robot_time = len(history), history.last("robot_time_s")
    episodes = f"{done} of {config.episodes} episodes" if done < config.episodes else f"{done} episodes"
    facts = [
        episodes,
        f"{duration(robot_time)} of robot time" if math.isfinite(robot_time) else "robot time not known",
        f"started {_date(report.run.folder.provenance.get('started_utc'))}",
    ]
    if config.sensors is not None:
        facts.insert(0, f"sensors {config.sensors}")
    if config.payload_kg:
        facts.insert(0, f"payload {config.payload_kg:g} kg")
    count = history.num_recent
    spread = "the last episode" if count == 1 else f"mean of the last {count} episodes"
    score = report.score
    if report.evaluation is None:
        best = float(np.nanmin(history.column(score.key))) if _is_known(report) else float("nan")
        second = (score.unit.with_unit(best), f"{score.name} of the best episode")
    else:
        reached = report.evaluation.overall.mean_error if score.key != "cost" else report.evaluation.cost
        second = (
            score.unit.with_unit(reached),
            f"{score.name} on {report.shape_names}, which the learner never saw, with the kept policy",
        )
    boxes = (
        (score.unit.with_unit(history.recent_mean(score.key)), f"{score.name} in training, {spread}")
        if score.key == "cost"
        else (score.unit.with_unit(history.recent_mean(score.key)), f"tracking error on random references, {spread}"),
        second,
        (duration(robot_time) if math.isfinite(robot_time) else UNKNOWN, "robot time used"),
    )
    return {"facts": facts, "boxes": boxes}


def _is_known(report: RunReport) -> bool:
    return bool(np.isfinite(report.history.column(report.score.key)).any())


def _date(started: Any) -> str:
    """2026-05-04 13:30 UTC, from the ISO time that provenance holds; whatever else it holds is shown as it is."""
    if not isinstance(started, str):
        return "at an unknown time"
    return started[:16].replace("T", " ") + " UTC" if started.endswith("+00:00") else started


def _learning(report: RunReport, images: Mapping[str, bytes]) -> Section:
    history, unit = report.history, report.score.unit
    error = history.column(report.score.key)
    best = int(np.nanargmin(error)) if np.isfinite(error).any() else None
    text = (
        f"The {report.score.name} was {unit.with_unit(float(error[0]))} in the first episode and "
        f"{unit.with_unit(float(error[-1]))} in the last."
    )
    if best is not None:
        text += f" The best was {unit.with_unit(float(error[best]))}, in episode {history.column('episode')[best]:.0f}."
    if report.oracle is not None:
        text += (
            f" The oracle, the same policy class trained with the simulated robot's true gradients, reaches "
            f"{unit.with_unit(report.oracle['random_error'])}."
        )
    loss = "one-step loss, where 1 is a model that predicts no change"
    if report.run.config.settings.model.horizon > 1:
        loss = "loss over roll-outs, in units of its usual one-step errors; it is not comparable with the one-step "
        loss += "error on each new episode beside it"
    caption = (
        f"{_described_score(report)}, mean squared distance from the reference (the controller loss), and the model's "
        f"{loss}. Triangles at the lower edge are zeros, crosses at the upper edge values that are not finite."
    )
    picture = image(images, "learning", f"Learning curves. {text}", caption)
    return Section("Learning", (picture,), text)


def _described_score(report: RunReport) -> str:
    return "Mean distance from the reference" if report.score.key != "cost" else "Mean cost of a step"


def _panels(rows: Sequence[Sequence[Any]], unit: Unit) -> str:
    return "; ".join(f"{panel.title}: {unit.with_unit(panel.error_m)}" for row in rows for panel in row)


def _shapes(report: RunReport, images: Mapping[str, bytes]) -> Section:
    heading = report.shape_names[:1].upper() + report.shape_names[1:]
    caption = (
        "“Episode 1” is the policy that ran episode 1; “kept” is the best policy that the robot has proven. The robot "
        "starts at rest at the dot. A path that ends at the edge of a panel goes on outside it."
    )
    picture = image(
        images, "shapes", f"Paths and references. {_panels(report.shapes, report.unit)}.", caption, scroll=True
    )
    speed = report.run.description.evaluation_speed
    text = (
        f"References that the learner never trained on, travelled at {report.unit.of(speed):.3g} {report.unit.shown}/s."
    )
    return Section(heading, (picture,), text)


def _episodes(report: RunReport, images: Mapping[str, bytes]) -> Section:
    trajectories = len(report.episodes[-1].pairs)
    caption = f"Each episode is {trajectories} trajectories in a chain: each starts where the last one ended."
    alternative = f"Paths and references. {_panels([report.episodes], report.unit)}."
    return Section("Random references", (image(images, "episodes", alternative, caption, scroll=True),))


def _poses(report: RunReport, images: Mapping[str, bytes]) -> Section:
    caption = "The arm at instants evenly spread over the trajectory, darker as time goes on."
    picture = image(images, "poses", f"Poses of the arm along {report.series.title}.", caption)
    return Section("The arm along the path", (picture,))


def _series(report: RunReport, images: Mapping[str, bytes]) -> Section:
    unit, error = report.unit, report.series.error_m
    finite = error[np.isfinite(error)]
    largest = float(finite.max()) if finite.size else float("nan")
    who, heading = "the kept policy is", "The kept policy over time"
    if report.evaluation is None:
        who, heading = "the robot was", "The last trajectory over time"
    text = (
        f"On the {report.series.title} {who} {unit.with_unit(finite_mean(error))} off on average and "
        f"{unit.with_unit(largest)} at most."
    )
    if report.evaluation is None:
        text = text.replace("On the episode", "In episode")
    caption = "Commands as applied, and positions as measured; dashed lines are their limits."
    pictures: tuple[Picture, ...] = (image(images, "time", f"Time series. {text}", caption, scroll=True),)
    if "coordinates" in images:
        every = "Every coordinate of the tracked output; dashed lines are its reference."
        pictures += (image(images, "coordinates", every, every, scroll=True),)
    return Section(heading, pictures, text)


def _table(report: RunReport, evaluation: Evaluation) -> dict[str, Any]:
    unit = report.unit
    columns: list[tuple[str, str, Sequence[str]]] = [
        (reference.name, "", metric_texts(metrics, unit))
        for reference, metrics in zip(evaluation.references, evaluation.metrics, strict=True)
    ]
    columns.append(("together", "together", metric_texts(evaluation.overall, unit)))
    for name, (v_avg, v_max, mean, largest, rho) in published_results(report.run.config.robot).items():
        cells = [number(100 * v_avg, 1), number(100 * v_max, 1), number(100 * mean, 2), number(100 * largest, 1)]
        columns.append((name, "paper", (*cells, number(rho, 2), "", "")))
    labels = (
        f"mean speed v avg ({unit.shown}/s)",
        f"highest speed v max ({unit.shown}/s)",
        f"mean error ({unit.shown})",
        f"largest error ({unit.shown})",
        "ρ = largest error / v max (s)",
        "change of command |Δu|",
        "steps at a position limit",
    )
    if evaluation.costs:
        labels = ("cost per step", *labels)
        prices = [NO_UNIT.text(cost) for cost in (*evaluation.costs, evaluation.cost)]
        prices += [""] * (len(columns) - len(prices))
        columns = [(name, kind, (price, *cells)) for (name, kind, cells), price in zip(columns, prices, strict=True)]
    notes = ["Speeds are the reference's own, so that chatter cannot make ρ look better."]
    if any(kind == "paper" for _, kind, _ in columns):
        notes.append("Grey columns are what the paper gives, measured on a real machine with references of its own.")
    if report.oracle is not None:
        notes.append(f"The oracle reaches {unit.with_unit(report.oracle['shapes_error'])} together.")
    warnings = list(evaluation.notes())
    if report.oracle is not None and evaluation.overall.mean_error < report.oracle["shapes_error"]:
        warnings.append("The policy is better than the oracle, which is no lower bound: its budget is limited.")
    named = [{"name": name, "kind": kind, "cells": cells} for name, kind, cells in columns]
    return {"columns": named, "labels": labels, "notes": notes, "warnings": warnings}


def _not_evaluated(report: RunReport) -> dict[str, str]:
    """How to get what is not here."""
    moves = ", which moves the machine," if report.run.description.hardware else ""
    return {"command": f"firsthand evaluate {shlex.quote(str(report.run.path))}", "moves": moves}


def metric_texts(metrics: TrackingMetrics, unit: Unit) -> tuple[str, ...]:
    """The columns of the paper's table 1 as text: fixed digits for centimetres, about three for anything else."""
    values = [unit.of(v) for v in (metrics.mean_speed, metrics.max_speed, metrics.mean_error, metrics.max_error)]
    texts = [number(v, d) if unit == METRES else three_digits(v) for v, d in zip(values, (1, 1, 2, 1), strict=True)]
    return (*texts, number(metrics.rho_s, 3), _small(metrics.command_change), str(metrics.limit_hits))


def _small(change: float) -> str:
    return number(change, 4) if change < 1 else three_digits(change)


def _health(report: RunReport, images: Mapping[str, bytes]) -> dict[str, Any]:
    history, robot, settings = report.history, report.run.description, report.run.config.settings
    step = history.column("step_norm")
    largest = float(np.nanmax(step)) if np.isfinite(step).any() else float("nan")
    refused = history.last("refused_updates")
    seconds, total = history.column("update_time_s"), robot.trajectories * robot.steps
    update = finite_mean(seconds[1:] if len(seconds) > 1 else seconds)  # the first one compiles
    rows = (
        ("refused updates", f"{number(refused, 0)} in {len(history)} episodes"),
        (
            "policy steps taken",
            f"{number(finite_mean(history.column('steps_taken')), 1)} per episode, of at most "
            f"{settings.policy_step.steps}",
        ),
        ("largest step norm", f"{number(largest, 3)}, at pace 1 of at most η/(2√ε) = {number(report.step_bound, 3)}"),
        ("at a position limit", f"{number(history.last('limit_hits'), 0)} of {total} steps in the last episode"),
        (
            "computing",
            f"{number(update, 1)} s per episode, {number(100 * update / robot.episode_s, 0)} % of the robot’s time",
        ),
    )
    if report.trust_region:
        radius = f"{number(history.last('radius'), 3)} now, of at most {settings.trust_region.max_radius:g}"
        rows = (*rows, ("trust-region radius", radius))
    caption = (
        "An update is refused when the model or the gradient is not finite or a bound is broken; then the old policy "
        "stays. The first episode’s computing time includes compilation; the mean above leaves it out."
    )
    alternative = "Errors on new data, growth, gradient and step norms, refused updates, limits, time."
    picture = image(images, "health", alternative, caption, scroll=True)
    nothing = no_advice(len(report.history))
    return {"advice": report.advice, "no_advice": nothing, "rows": rows, "picture": picture}


def _signals(report: RunReport) -> dict[str, Any]:
    """Measurements and commands, with units and ranges."""
    spec = report.run.description.spec
    layout, limits = spec.layout, spec.limits
    ranges = dict(zip(layout.position, zip(limits.position_low, limits.position_high, strict=True), strict=True))
    rows = []
    for i in range(layout.num_measured):
        kind = "position" if i in layout.position else "velocity" if i in layout.velocity else "measured"
        rows.append((layout.measured_label(i), kind, "{:g} to {:g}".format(*ranges[i]) if i in ranges else "", ""))
    for i, (low, high, rest) in enumerate(zip(limits.command_low, limits.command_high, spec.neutral, strict=True)):
        rows.append((layout.command_label(i), "command", f"{low:g} to {high:g}", f"{rest:g}"))
    tracked = ", ".join(f"{n} ({u})" for n, u in zip(spec.output_names, spec.output_units, strict=False))
    return {"rows": rows, "tracked": tracked or ", ".join(spec.output_names)}


def _configuration(report: RunReport) -> dict[str, Any]:
    run = report.run
    provenance = run.folder.provenance
    git = provenance.get("git")
    git = git if isinstance(git, dict) and git.get("commit") else {}
    config = dict(run.folder.config)
    robot = dict(config.pop(ROBOT_DESCRIPTION))
    control_spec, references = robot.pop("control_spec"), robot.pop("references")
    robot["references"] = [reference["name"] for reference in references]
    blocks = {"Configuration": config, "Robot": robot, "Control specification": control_spec, "Provenance": provenance}
    return {
        "command": reproduction(run, len(report.history)),
        "commit": str(git.get("commit", "")),
        "dirty": ", with uncommitted changes" if git.get("dirty") else "",
        "blocks": [(name, json.dumps(value, indent=2, ensure_ascii=False)) for name, value in blocks.items()],
    }
