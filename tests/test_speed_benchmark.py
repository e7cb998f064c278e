"""`make bench` runs: its smallest form, without asserting on time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).parents[1] / "benchmarks" / "speed.py"


def run(*parts: str, out: Path) -> list[dict]:
    subprocess.run([sys.executable, SPEED, "--quick", "--only", *parts, "--out", out], check=True, capture_output=True)
    return json.loads(out.read_text())["ratios"]


@pytest.mark.slow
def test_every_part_gives_ratios(tmp_path):
    rows = run("update", "plants", "export", "observer", "link", out=tmp_path / "speed.json")
    assert {row["part"] for row in rows} == {"update", "plants", "export", "observer", "link"}
    assert all(row["ratio"] > 0 for row in rows if row["part"] != "link")
    assert {"excavator-realistic: simulated / real time"} <= {row["what"] for row in rows}
