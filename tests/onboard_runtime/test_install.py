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
    # Without a pip of its own, which takes longer to install than all the rest: the pip out here fills it.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    source = tmp_path / "onboard"
    subprocess.run(["cp", "-r", str(ONBOARD), str(source)], check=True)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
    install += ["--disable-pip-version-check", "-c", str(ONBOARD.parent / "constraints.txt"), str(source)]
    done = subprocess.run(install, capture_output=True, text=True, env=environment, check=False, timeout=600)
    if done.returncode and ("No matching distribution" in done.stderr or "connection" in done.stderr.lower()):
        pytest.skip(f"pip has no package index here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    code = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
    listed = subprocess.run([python, "-c", code], capture_output=True, check=True, env=environment)
    assert set(json.loads(listed.stdout)) == {"firsthand-onboard", "numpy", "safetensors", "eclipse-zenoh"}
    trip = [python, "-c", TRIP, str(Path(__file__).parents[1])]
    done = subprocess.run(trip, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["job"] == {
        "name": "first",
        "ended": "done",
        "kind": "visit",
        "count": 1,
    }
    tool = subprocess.run([str(tmp_path / "venv/bin/firsthand-onboard"), "--version"], capture_output=True, check=True)
    assert tool.stdout.strip()
