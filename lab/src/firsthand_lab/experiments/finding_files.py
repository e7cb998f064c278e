"""A finding as files: finding.md, finding.json, figures and tables."""

from pathlib import Path
from typing import Any

from firsthand.report.style import save
from firsthand.runs import atomic

from . import files
from .base import Experiment, Finding, Result, Size


def write_finding(path: Path, experiment: Experiment, size: Size, results: list[Result], finding: Finding) -> None:
    """Figures and tables first, then the text that names them."""
    for name, figure in finding.figures.items():
        png, svg = save(figure)
        atomic.write_bytes(path / f"{name}.png", png)
        atomic.write_bytes(path / f"{name}.svg", svg)
    for name, columns in finding.tables.items():
        files.write_csv(path / f"{name}.csv", columns)
    done = [result.done for result in results if result.finished]
    data = {
        "experiment": experiment.name,
        "figure": experiment.figure,
        "size": size.name,
        "seeds": size.seeds,
        "verdict": finding.verdict.value,
        "text": finding.text,
        "rows": [
            {
                "quantity": row.quantity,
                "measured": row.measured,
                "paper": row.paper,
                "verdict": None if row.verdict is None else row.verdict.value,
            }
            for row in finding.rows
        ],
        "numbers": dict(finding.numbers),
        "core_seconds": round(sum(d["core_seconds"] for d in done), 1),
        "commits": sorted({str(d["commit"]) for d in done}),
        "command": finding.command or experiment.command(size),
    }
    atomic.write_text(path / "finding.md", as_markdown(experiment, data, finding))
    atomic.write_json(path / "finding.json", data)


def summary_lines(finding: Finding) -> list[str]:
    """The finding's own tables, if it has some."""
    lines = []
    for table in finding.summary:
        lines += [f"| {' | '.join(table)} |", "|---" * len(table) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in zip(*table.values(), strict=True)]
        lines.append("")
    return lines


def as_markdown(experiment: Experiment, data: dict[str, Any], finding: Finding) -> str:
    """The finding for people."""
    lines = [
        f"# {experiment.name}: {finding.verdict.value}",
        "",
        f"{experiment.shows[:1].upper()}{experiment.shows[1:]}"
        + (" (not in the paper)." if experiment.figure == "ours" else f" ({experiment.figure} of the paper)."),
        "",
        finding.text,
        "",
        *summary_lines(finding),
        "| | measured | paper | |",
        "|---|---|---|---|",
        *(
            f"| {row.quantity} | {row.measured} | {row.paper} | {'' if row.verdict is None else row.verdict.value} |"
            for row in finding.rows
        ),
        "",
        *(f"![{name}]({name}.png)\n" for name in finding.figures),
        f"`{data['command']}`: {data['seeds']} seed{'s' if data['seeds'] > 1 else ''}, "
        f"{data['core_seconds'] / 60:.1f} core-minutes, code {', '.join(data['commits'])}.",
    ]
    if finding.tables:
        lines.append(f"Data: {', '.join(f'{name}.csv' for name in finding.tables)}, and `jobs/`.")
    return "\n".join(lines) + "\n"
