"""`firsthand compare`: what it refuses before anything runs, and the smallest comparison from end to end."""

import sys

import pytest

from firsthand.errors import UserError
from firsthand_lab.baselines.dreamerv3 import job as dreamerv3
from firsthand_lab.cli.compare import Compare
from firsthand_lab.experiments import worker

from .conftest import Firsthand


def must_not_run(*arguments):
    raise AssertionError("not refused: it would train for hours")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"peers": "pid,pdi"},
            r"no peer 'pdi' \(did you mean 'pid'\?\); known are pid, deepc, koopman",
        ),
        ({"peers": "ours"}, "peers is 'ours', but must name at least one besides ours"),
        ({"peers": "imagination", "episodes": 0}, "episodes is 0, but must be at least 1"),
        ({"peers": "imagination", "seeds": 0}, "seeds is 0"),
        ({"peers": "pid", "episodes": 5}, "episodes is 5, but pid needs at least"),
        ({"peers": "imagination", "robot": "excavatr"}, "excavatr"),
        # One job is on one core, however many there are.
        ({"peers": "tdmpc2:default", "episodes": 100, "workers": 64}, r"takes about 19 hours .*or add --yes"),
        ({"peers": "imagination", "so_far": True}, "no folder .* yet: run the same command without --so-far"),
    ],
)
def test_what_is_refused_before_anything_runs(changed, sentence, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "cores", lambda: 64)
    monkeypatch.setattr("firsthand_lab.cli.compare.run_studies", must_not_run)
    out = tmp_path / "comparison"
    with pytest.raises(UserError, match=sentence):
        Compare(**{"robot": "excavator", "out": out, **changed}).run()
    assert not out.exists()


@pytest.mark.parametrize("peer", ["ppo", "dreamerv3"])
def test_a_missing_extra_is_named(peer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setattr(dreamerv3, "ENVIRONMENT", tmp_path / "none")
    with pytest.raises(UserError, match="make peers"):
        Compare(robot="excavator", peers=peer, out=tmp_path / "comparison").run()
    assert not (tmp_path / "comparison").exists()


@pytest.mark.parametrize("on", ["local", "ray"])
def test_more_workers_than_cores_do_not_shorten_the_estimate(on, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "cores", lambda: 2)
    more = {"episodes": 200, "seeds": 3, "workers": 64, "on": on}
    with pytest.raises(UserError, match=r"takes about 16 hours on this machine.*or add --yes"):
        Compare(robot="excavator", peers="dreamerv3,tdmpc2", out=tmp_path / "comparison", **more).run()


@pytest.mark.slow
def test_the_smallest_comparison(firsthand: Firsthand, tmp_path):
    out = tmp_path / "comparison"
    arguments = ["excavator", "--tiny", "--episodes", "2", "--seeds", "1", "--out", out]
    done = firsthand("compare", *arguments, "--peers", "imagination")
    assert done.returncode == 0, done.stderr
    assert "ours, imagined" in done.stdout
    for name in ("finding.md", "finding.json", "curves.png", "paths.png", "table.csv", "curves.csv", "tests.csv"):
        assert (out / name).stat().st_size > 0
    again = firsthand("compare", *arguments, "--so-far")
    assert again.returncode == 0, again.stderr
    assert "ours, imagined" in again.stdout
