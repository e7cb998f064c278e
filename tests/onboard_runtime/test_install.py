"""firsthand-onboard alone in a fresh environment: no JAX, no compiler, and it serves a machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ONBOARD = Path(__file__).parents[2] / "onboard"
TRIP = """
import json, sys
sys.path.insert(0, sys.argv[1])
from onboard_runtime.processes import *
from firsthand_onboard.toy import toy_spec
import tempfile
with rig(Path(tempfile.mkdtemp()), "--speed", "4", simulate=("--speed", "4")) as made:
    client = made.client()
    begin(client, toy_spec(), "first", np.zeros((1, 2), np.float32))
    status = wait_for(lambda: (s := client.ask("status").body)["job"]["ended"] and s)
    client.close()
print(json.dumps({"job": status["job"]}))
"""


def test_it_installs_alone_and_serves_a_machine(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    source = tmp_path / "onboard"
    subprocess.run(["cp", "-r", str(ONBOARD), str(source)], check=True)
    constraints = ["-c", str(ONBOARD.parent / "constraints.txt")]
    install = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--disable-pip-version-check",
        *constraints,
        str(source),
    ]
    done = subprocess.run(install, capture_output=True, text=True, env=environment, check=False, timeout=600)
    if done.returncode and ("No matching distribution" in done.stderr or "connection" in done.stderr.lower()):
        pytest.skip(f"pip has no package index here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    names = {package["name"] for package in json.loads(listed.stdout)} - {"pip", "setuptools"}
    assert names == {"firsthand-onboard", "numpy", "safetensors", "eclipse-zenoh"}
    trip = [python, "-c", TRIP, str(Path(__file__).parents[1])]
    done = subprocess.run(trip, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["job"] == {"name": "first", "ended": "done", "count": 1}
    tool = subprocess.run([str(tmp_path / "venv/bin/firsthand-onboard"), "--version"], capture_output=True, check=True)
    assert tool.stdout.strip()
