"""The documentation site without building it: navigation, links, made pages; the notebooks run in a short form.

`make docs` builds it, with warnings as errors.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from documented import ROOT
from firsthand.training.presets import PRESETS
from firsthand_lab.experiments import Size, Verdict
from firsthand_lab.experiments.convergence import PAPER_SEGMENT, judge_exponent
from firsthand_lab.experiments.curves import slope_between
from firsthand_lab.experiments.registry import EXPERIMENTS
from firsthand_onboard.cli import parser as onboard_parser

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md") for path in ROOT.glob(pattern))


def load(path: str) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def paths_in(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [path for entry in (nav if isinstance(nav, list) else nav.values()) for path in paths_in(entry)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = paths_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    made = {"changelog.md", *(f"reference/{name}.md" for name in ("python", "command_line", "settings"))}
    made |= {f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(there | made | {"decisions/"})


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found, fenced = set(), False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (heading := re.match(r"#+ (.*)", line)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
            found.add(re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page}: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text()), f"{page}: {target}"


def test_links_that_leave_the_pages_are_rewritten() -> None:
    rewrite = load("scripts/docs_hooks.py").rewrite_links
    assert rewrite("[a](fast.md#x)", "algorithm.md") == "[a](fast.md#x)"
    assert rewrite("[a](../README.md#two-commands)", "tutorial.md") == "[a](index.md)"
    assert rewrite("[many_machines.md](many_machines.md#x)", "fast.md") == "[many machines](many_machines.md#x)"
    assert rewrite("[a](../sensors.md)", "decisions/0011-noisy-sensors.md") == "[a](../sensors.md)"
    assert rewrite("[a](docs/fast.md)", "changelog.md") == "[a](fast.md)"
    assert rewrite("[two\nlines](../../docs/fast.md)", "notebooks/excavator.md") == "[two\nlines](../fast.md)"
    assert rewrite("[code](../examples/pendulum.py)", "tutorial.md") == "code (`examples/pendulum.py`)"
    assert rewrite("```\n[a](../x.md)\n```", "tutorial.md") == "```\n[a](../x.md)\n```"


def test_lists_in_lists_are_indented_as_mkdocs_wants() -> None:
    text = "1. a\n   b\n   - c\n     d\n\n   e\n2. f\n\ng\n- h\nlazy\n  - i\n\n```\n  - code\n```\n"
    wide = "1. a\n    b\n    - c\n        d\n\n    e\n2. f\n\ng\n- h\nlazy\n    - i\n\n```\n  - code\n```\n"
    assert load("scripts/docs_hooks.py").indent_lists(text) == wide


def test_made_pages_hold_every_command_and_setting() -> None:
    hooks = load("scripts/docs_hooks.py")
    settings = hooks.settings_page()
    assert "| `--policy_step.eta` |" in settings
    python = hooks.python_page()
    assert "By name: `fast`, `paper`, `paper-exact`." in python
    assert "new empty dictionary" not in python
    assert "--topics FILE" in hooks.help_text(["train"])


def test_numbers_of_tables_are_those_of_the_data() -> None:
    numbers = load("scripts/check_numbers.py")
    count, wrong = numbers.check()
    assert wrong == []
    assert count > 60


def test_a_number_that_is_not_the_datas_is_found() -> None:
    numbers = load("scripts/check_numbers.py")
    claim = next(claim for claim in numbers.claims() if claim.page == "README.md")
    cell = numbers.find_cell(claim, numbers.tables("README.md"))
    assert numbers.disagreement(claim, cell) == ""
    assert "but sensors/" in numbers.disagreement(claim, "9.9")
    assert "has 2 numbers" in numbers.disagreement(claim, "1.1, 1.2")
    assert "no such cell" in numbers.disagreement(claim, None)


def test_a_verdict_that_is_not_the_findings_is_found(tmp_path: Path) -> None:
    numbers = load("scripts/check_numbers.py")
    recorded = json.loads((numbers.RESULTS / "experiments" / "convergence" / "finding.json").read_text())
    assert recorded["verdict"] == "FAIL"
    folder = tmp_path / "experiments" / "convergence"
    folder.mkdir(parents=True)
    numbers.RESULTS = tmp_path
    for verdict, wrong in (("FAIL", 0), ("PASS", 1), ("not comparable", 1)):
        (folder / "finding.json").write_text(json.dumps({**recorded, "verdict": verdict}))
        assert len(list(numbers.verdicts())) == wrong, verdict


def test_the_page_says_which_experiments_have_recorded_data() -> None:
    numbers = load("scripts/check_numbers.py")
    (table,) = [one for one in numbers.tables("docs/experiments.md") if one.headings[:2] == ["name", "recorded on"]]
    rows = [(name, row) for row in table.rows for name in row[0].split(", ")]
    assert sorted(name for name, _ in rows) == sorted(EXPERIMENTS)
    for name, row in rows:
        recorded = any((numbers.RESULTS / folder / "finding.json").exists() for folder in (f"experiments/{name}", name))
        assert ("not run at full size" in row[-1]) != recorded, name


def test_the_finding_of_convergence_is_what_its_tables_give_today() -> None:
    judge = load("benchmarks/judge_convergence.py")
    recorded = json.loads((judge.RESULTS / "finding.json").read_text())
    row = judge_exponent(slope_between(judge.rebuild_losses(), *PAPER_SEGMENT), Size("full", recorded["seeds"]))
    assert (row.measured, row.verdict) == (recorded["rows"][0]["measured"], Verdict(recorded["verdict"]))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    # Nothing is loaded from elsewhere when a page is viewed.
    for page in tmp_path.rglob("*.html"):
        assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="https?:', page.read_text()), page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changes = {"policy_step.cg_iterations": 2, "model.steps": 10}
    monkeypatch.setitem(PRESETS, "fast", PRESETS["paper-exact"].with_changes(changes))
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            code = re.sub(r"EPISODES = \d+", "EPISODES = 2", "".join(cell["source"]))
            exec(compile(code, str(path), "exec"), names)
    if path.stem == "own_dynamics":
        assert float(abs(names["learned"] - names["exact"]).max()) < 1e-3


def test_the_ros2_node_starts_what_the_program_understands() -> None:
    node = load("examples/ros2/firsthand_node.py")
    parameters = yaml.safe_load((ROOT / "examples/ros2/firsthand.yaml").read_text())["firsthand"]["ros__parameters"]
    assert set(parameters) == set(node.PARAMETERS)
    command = node.serve_command(node.PARAMETERS | {"limits": "limits.json"})
    given = onboard_parser().parse_args(command[3:])
    assert given.machine == "firsthand_onboard.ros2:Ros2Machine"
    assert given.limits == Path("limits.json")
    assert onboard_parser().parse_args(node.serve_command(parameters)[3:]).stop_lag == 0.5  # or it would be refused
    assert node.point_in_space((1.0, 2.0), "xz") == (1.0, 0.0, 2.0)
    assert node.point_in_space((1.0, 2.0, 3.0), "xz") == (1.0, 2.0, 3.0)
    process = subprocess.Popen(["sleep", "30"])
    assert node.stop_process(process, 5.0)


def test_the_unit_for_systemd_starts_what_the_program_understands() -> None:
    text = (ROOT / "deploy" / "firsthand-onboard.service").read_text()
    start = re.search(r"^ExecStart=\S+/firsthand-onboard (.*)$", text, flags=re.MULTILINE)
    assert start is not None
    assert onboard_parser().parse_args(start[1].split()).machine == "my_machine.py:MyMachine"
    assert "Restart=no" in text
