"""Numbers in the README and docs/ against the data that they come from: fails where a table and its data disagree.

    python scripts/check_numbers.py     prints what was checked and every disagreement; exit code 1 where there is one

A claim names a row of a table by how its cells begin, a column, and what the recorded data say. The cell's numbers must
be those, rounded to the digits that the cell shows. A new table of recorded numbers gets its claims here.
"""

import csv
import itertools
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
CM = 100.0


class Claim(NamedTuple):
    """What one cell of a table must say."""

    page: str
    """The Markdown file."""
    row: tuple[str, ...]
    """How the row's first cells begin, without bold and backticks; an empty cell stands for the one above it."""
    column: str
    """Heading of the column; with `@2` the second of that name."""
    expected: tuple[float, ...]
    """The numbers, in the order in which the cell has them."""
    source: str
    """The recorded file."""


def read(name: str, **wanted: str) -> list[dict[str, str]]:
    """Rows of a recorded CSV file with these values."""
    with (RESULTS / name).open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if all(row[key] == value for key, value in wanted.items())]
    if not rows:
        raise SystemExit(f"{RESULTS / name} has no row with {wanted}")
    return sorted(rows, key=lambda row: int(row.get("seed") or 0))


def column(rows: list[dict[str, str]], name: str, scale: float = 1.0) -> list[float]:
    """A column's numbers."""
    return [scale * float(row[name]) for row in rows]


def median_and_worst(values: list[float]) -> tuple[float, ...]:
    """The median of seeds, and the worst of them."""
    return statistics.median(values), max(values)


def claims() -> Iterator[Claim]:
    """All that is checked."""
    results = "docs/results.md"
    for sensors, episode in (("real", 8), ("real", 25), ("exact", 8), ("exact", 25), ("strong", 10)):
        file = f"sensors/excavator-{sensors}-fast.csv"
        rows = read(file, episode=str(episode))
        for heading, name, measure in (
            ("random, cm", "random", median_and_worst),
            ("shapes, cm", "shapes", median_and_worst),
            ("worst of 100", "random_worst", lambda values: (max(values),)),
        ):
            yield Claim(results, (sensors, str(episode)), heading, tuple(measure(column(rows, name))), file)
    for robot, episode in itertools.product(("excavator", "excavator-realistic"), (8, 25)):
        file = f"sensors/{robot}-real-fast.csv"
        rows = read(file, episode=str(episode))
        for heading, name in (("random", "random"), ("circle, square, line", "shapes")):
            value = statistics.median(column(rows, name))
            yield Claim("README.md", (robot, "fast, median of 5", str(episode)), heading, (value,), file)
    for episode in (8, 25):
        file = "sensors/excavator-realistic-real-fast.csv"
        rows = read(file, episode=str(episode))
        for heading, name, seeds in (("random", "random", "per seed"), ("shapes", "shapes", "per seed@2")):
            values = column(rows, name)
            yield Claim(results, (str(episode),), heading, (statistics.median(values),), file)
            yield Claim(results, (str(episode),), seeds, tuple(values), file)
    results = "docs/earlier_results.md"
    file = "fast/fast.csv"
    for preset, condition, episodes in (
        ("fast", "fast", (4, 8, 10, 15, 25, 40, 60)),
        ("paper-exact", "paper", (50, 100, 200)),
    ):
        for episode in episodes:
            rows = read(file, condition=condition, episode=str(episode))
            row = (f"{preset}, {episode}",)
            for heading, name, seeds in (
                ("random", "newest_random_m", "per seed"),
                ("shapes", "newest_shapes_m", "per seed@2"),
            ):
                values = column(rows, name, CM)
                yield Claim(results, row, f"newest policy, {heading}", (statistics.median(values),), file)
                yield Claim(results, row, seeds, tuple(values), file)
            kept = tuple(statistics.median(column(rows, f"kept_{what}_m", CM)) for what in ("random", "shapes"))
            yield Claim(results, row, "kept policy, random / shapes", kept, file)
    yield from claims_of_earlier_presets()
    yield from claims_of_single_runs()
    yield from claims_of_peers()
    yield from claims_of_realistic_peers()


def claims_of_earlier_presets() -> Iterator[Claim]:
    """Behind sensors, before the phase margin."""
    for sensors, episode in (("real", 8), ("real", 25), ("exact", 25), ("strong", 10)):
        file = f"sensors/before-margin/excavator-{sensors}-fast.csv"
        rows = read(file, episode=str(episode))
        both = tuple(statistics.median(column(rows, name)) for name in ("random", "shapes"))
        yield Claim("docs/earlier_results.md", (sensors, str(episode)), "random / shapes", both, file)


def claims_of_single_runs() -> Iterator[Claim]:
    """The load without notice, a real machine's log, a base, and the shovel in soil."""
    results = "docs/results.md"
    file = "payload/excavator-realistic-fast-1500kg.csv"
    errors = {int(row["episode"]): float(row["error_cm"]) for row in read(file, seed="0")}
    yield Claim(results, ("error, cm",), "18 to 20", (statistics.median(errors[e] for e in (18, 19, 20)),), file)
    for episode in range(21, 27):
        yield Claim(results, ("error, cm",), str(episode), (errors[episode],), file)
    file = "cycles-real-excavator.csv"
    policies = (("1", "policy 1"), ("2", "2"), ("5", "5"), ("10", "10"), ("15", "15"), ("kept", "kept"))
    for way, seed in (("from the log", "0"), ("from the log", "1"), ("from nothing", "0")):
        found = {row["policy"].partition(" ")[0]: float(row["all"]) for row in read(file, way=way, seed=seed)}
        for policy, heading in policies:
            if policy in found:
                row = (f"{way}, seed {seed}",)
                yield Claim("docs/simulator.md", row, heading, (found[policy],), file)
    file = "on-top-of-a-base-excavator-realistic-add.json"
    for line in json.loads((RESULTS / file).read_text())["episodes"]:
        if line["episode"] in (1, 2, 3, 5, 7, 8, 10, 15, 20, 25):
            for who, name in (("base", "base_error"), ("learned", "error")):
                row = (f"seed {line['seed']}, {who}",)
                page = "docs/start_from_your_controller.md"
                yield Claim(page, row, str(line["episode"]), (CM * line[name],), file)
    file = "grading.csv"
    for episode in (8, 12):
        (row,) = read(file, way="soil", judged="soil", seed="0", episode=str(episode))
        for heading, name in (("tip to wanted", "pass"), ("largest along", "pass_max"), ("whole reference", "whole")):
            yield Claim(results, (str(episode),), heading, (float(row[name]),), file)


def claims_of_realistic_peers() -> Iterator[Claim]:
    """The comparison on the realistic machine, from its tests and curves: medians over seeds."""
    folder = "compare-excavator-realistic"
    for shown, controller in (
        ("ours, fast preset", "ours (fast)"),
        ("our model in MPC", "our model in MPC"),
        ("Koopman MPC", "Koopman MPC"),
        ("DeePC", "DeePC"),
        ("PI and feed-forward", "PI + feed-forward"),
        ("the paper's algorithm, judged", "ours (paper)"),
    ):
        after_20, after_33 = (read(f"{folder}/tests.csv", controller=controller, episode=e) for e in ("24", "40"))
        curves = [
            read(f"{folder}/curves.csv", controller=controller, seed=row["seed"])
            for row in read(f"{folder}/runs.csv", controller=controller)
        ]
        ends = [statistics.mean(column(curve, "tracking_error", CM)[-5:]) for curve in curves]
        computing = [sum(column(curve, "computing_s")) / (40 * 50 / 3600) for curve in curves]
        for heading, values, file in (
            ("after 20 min, random", _median(column(after_20, "random_m", CM)), "tests.csv"),
            ("shapes", _median(column(after_20, "shapes_m", CM)), "tests.csv"),
            ("after 33 min, random", _median(column(after_33, "random_m", CM)), "tests.csv"),
            ("shapes@2", _median(column(after_33, "shapes_m", CM)), "tests.csv"),
            ("ms per action", _median(column(after_33, "act_ms")), "tests.csv"),
            ("while learning", _median(ends), "curves.csv"),
            ("min to 10", _minutes(curves), "curves.csv"),
            ("computing per robot hour", _median(computing), "curves.csv"),
        ):
            yield Claim("docs/results.md", (shown,), heading, values, f"{folder}/{file}")
    shown_in_readme = (
        ("paper, median of 2 seeds", "40", "ours (paper)"),
        ("PI with feed-forward, tuned, one seed", "–", "PI + feed-forward"),
    )
    for shown, episodes, controller in shown_in_readme:
        rows = read(f"{folder}/tests.csv", controller=controller, episode="40")
        for heading, name in (("random", "random_m"), ("circle, square, line", "shapes_m")):
            row = ("excavator-realistic", shown, episodes)
            yield Claim("README.md", row, heading, _median(column(rows, name, CM)), f"{folder}/tests.csv")
    for episode, heading in (("24", "at 20 min"), ("40", "at 33 min")):
        ours = read(f"{folder}/tests.csv", controller="ours (fast)", episode=episode)
        for peer in ("our model in MPC", "Koopman MPC"):
            theirs = read(f"{folder}/tests.csv", controller=peer, episode=episode)
            ratios = tuple(
                statistics.median(column(ours, name)) / statistics.median(column(theirs, name))
                for name in ("random_m", "shapes_m")
            )
            yield Claim("docs/results.md", (peer,), heading, ratios, f"{folder}/tests.csv")


def _median(values: list[float]) -> tuple[float]:
    return (statistics.median(values),)


def _minutes(curves: list[list[dict[str, str]]]) -> tuple[float, ...]:
    """Robot minutes until an episode's error was below 10, 5 and 2 cm; not the levels that a seed missed."""
    found = []
    for level in (0.10, 0.05, 0.02):
        times = [
            next((50 / 60 * float(row["episode"]) for row in curve if float(row["tracking_error"]) <= level), None)
            for curve in curves
        ]
        if None not in times:
            found.append(statistics.median(time for time in times if time is not None))
    return tuple(found)


def claims_of_peers() -> Iterator[Claim]:
    """Two tables of the same comparison: a short one and the whole one."""
    file = "compare-excavator/table.csv"
    controllers = {
        "ours, fast preset": "ours (fast)",
        "PI and feed-forward": "PI + feed-forward",
        "the paper's algorithm": "ours (paper)",
        "TD-MPC2, reduced": "TD-MPC2, reduced",
        "SAC": "SAC",
        "DreamerV3, reduced": "DreamerV3, reduced",
        "standing still": "standing still",
        "PPO": "PPO",
    }
    for shown, controller in controllers.items():
        (row,) = read(file, controller=controller)
        random, shapes = (CM * float(row[name]) for name in ("random_m", "shapes_m"))
        yield Claim("docs/results.md", (shown,), "random, cm", (random,), file)
        yield Claim("docs/results.md", (shown,), "shapes, cm", (shapes,), file)
        yield Claim("docs/earlier_results.md", (shown,), "after 40, random", (random,), file)
        yield Claim("docs/earlier_results.md", (shown,), "after 40, shapes", (shapes,), file)


def verdicts() -> Iterator[str]:
    """What is wrong with the verdicts of docs/experiments.md: each is that of its finding."""
    page = "docs/experiments.md"
    rows = {
        row[0]: row
        for table in tables(page)
        if table.headings[:3] == ["name", "seeds", "verdict"]
        for row in table.rows
    }
    for file in sorted((RESULTS / "experiments").glob("*/finding.json")):
        finding = json.loads(file.read_text())
        name, verdict = finding["experiment"], finding["verdict"]
        if file.parent.name != name:
            continue  # a folder of another name keeps an earlier run
        if name not in rows:
            if verdict != "not comparable":
                yield f"{page}: there is no row {name}, and {file} has a finding"
        elif (found := rows[name][1:3]) != [str(finding["seeds"]), verdict]:
            yield f"{page}, row {name}: {found}, but {file} has {finding['seeds']} seeds and {verdict}"


class Table(NamedTuple):
    """A table of a page: headings and rows, as plain text."""

    headings: list[str]
    rows: list[list[str]]


def tables(page: str) -> list[Table]:
    """The tables of a Markdown file; an empty first cell is filled from the row above."""
    found: list[Table] = []
    lines = (ROOT / page).read_text().splitlines()
    for at, line in enumerate(lines):
        if re.fullmatch(r"\|[-:| ]+\|", line) and at and lines[at - 1].startswith("|"):
            table = Table(_cells(lines[at - 1]), [])
            for below in lines[at + 1 :]:
                if not below.startswith("|"):
                    break
                cells = _cells(below)
                if not cells[0] and table.rows:
                    cells[0] = table.rows[-1][0]
                table.rows.append(cells)
            found.append(table)
    return found


def _cells(line: str) -> list[str]:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
    return [cell.replace("`", "").replace("*", "").strip() for cell in plain.strip().strip("|").split("|")]


def find_cell(claim: Claim, found: list[Table]) -> str | None:
    """The cell that a claim is about; None where the page has no such row and column."""
    heading, _, number = claim.column.partition("@")
    for table in found:
        places = [i for i, name in enumerate(table.headings) if name.startswith(heading)]
        if len(places) < int(number or 1):
            continue
        for row in table.rows:
            if len(row) == len(table.headings) and all(map(_begins, row, claim.row)):
                return row[places[int(number or 1) - 1]]
    return None


def _begins(cell: str, wanted: str) -> bool:
    """Whether a cell begins with these words, and not in the middle of a number or a name."""
    return re.match(rf"{re.escape(wanted)}(?![\w-])", cell) is not None


def disagreement(claim: Claim, cell: str | None) -> str:
    """What is wrong with a cell, or an empty text."""
    where = f"{claim.page}, row {' | '.join(claim.row)}, column {claim.column}"
    if cell is None:
        return f"{where}: there is no such cell, and {claim.source} has numbers for it"
    shown = NUMBER.findall(cell)
    if len(shown) != len(claim.expected):
        return f"{where}: {cell!r} has {len(shown)} numbers, but {claim.source} has {len(claim.expected)}"
    for text, value in zip(shown, claim.expected, strict=True):
        if not _rounds_to(value, text):
            return f"{where}: {text} in {cell!r}, but {claim.source} has {value:.4g}"
    return ""


def _rounds_to(value: float, text: str) -> bool:
    """Whether a value, rounded to the digits shown, is the text; half a digit may go either way."""
    digits = len(text.partition(".")[2])
    unit = 10.0**-digits
    if "." not in text and text.endswith("0") and len(text) > 1:
        unit = 10.0 ** (len(text) - len(text.rstrip("0")))
    return abs(value - float(text)) <= 0.5001 * unit


def check(made: Callable[[], Iterator[Claim]] = claims) -> tuple[int, list[str]]:
    """How many cells were checked, and what is wrong."""
    found: dict[str, list[Table]] = {}
    wrong, count = [], 0
    for claim in made():
        count += 1
        page = found.setdefault(claim.page, tables(claim.page))
        if text := disagreement(claim, find_cell(claim, page)):
            wrong.append(text)
    return count, [*wrong, *verdicts()]


if __name__ == "__main__":
    checked, wrong = check()
    for text in wrong:
        print(text, file=sys.stderr)
    print(f"{checked} cells checked against benchmarks/results, {len(wrong)} disagree.")
    sys.exit(1 if wrong else 0)
