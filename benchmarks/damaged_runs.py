"""Run folders whose content is wrong although every checksum is right: each must be read or refused in one sentence.

python benchmarks/damaged_runs.py [--count 2000] [--quick] [--seed 0] [--out FILE]

A small run is trained once. Then one file of a copy at a time is changed (a field of config.json or of a line of
metrics.jsonl, an array or the info of a .safetensors file), signed again, and read in every way that needs no robot;
every twentieth also by report (whose figures are made, but not rendered), all exports and --resume's recorder.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")

import numpy as np
from matplotlib.figure import Figure

from firsthand.dashboard.follower import RunFollower
from firsthand.errors import UserError
from firsthand.evaluation import evaluate
from firsthand.export import write_export
from firsthand.logs.episodes import read_run
from firsthand.report import style, write_report
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.registry import NamedRobot, find_robot
from firsthand.runs import RunFolder, packed
from firsthand.runs.packed import read_line, signed_json, signed_line
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.prior import Prior, gather
from firsthand.training.run import Run


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e308, 10**400, -(10**400), 2**63, "", "x", "nan", "inf", "\x00", "é" * 5000, [], {},
    [[]], [None], [1, "a"], {"a": {"b": 1}}, deep(100), "../../etc/passwd", "*/\n", 0.1, [10**400],
    {"": None}, "1" * 500,
)  # fmt: skip


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += leaves(item, (*path, key))
    return found


def change_json(value: Any, rng: np.random.Generator) -> Any:
    """The same with one thing inside replaced, removed or doubled."""
    value = json.loads(json.dumps(value))
    paths = leaves(value)
    if not paths:
        return value
    *way, last = paths[rng.integers(len(paths))]
    part = value
    for key in way:
        part = part[key]
    kind = rng.integers(8)
    if kind == 0:
        del part[last]
    elif kind == 1 and isinstance(part, list):
        part.append(part[last])
    else:
        part[last] = STRANGE[rng.integers(len(STRANGE))]
    return value


def change_arrays(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The same with one array missing, misshapen, of another type or full of something else."""
    arrays = dict(arrays)
    name = sorted(arrays)[rng.integers(len(arrays))]
    array = arrays[name]
    changes: tuple[Callable[[], np.ndarray | None], ...] = (
        lambda: None,
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: array[..., :0] if array.ndim else array[None][:0],
        lambda: np.zeros((), array.dtype),
        lambda: np.zeros(0, array.dtype),
        lambda: array.astype(np.float64 if array.dtype != np.float64 else np.float32),
        lambda: array.astype(np.int64) if np.isfinite(np.asarray(array, float)).all() else array,
        lambda: np.full(array.shape, np.nan, np.float32),
        lambda: np.full(array.shape, 3e38, np.float32),
        lambda: np.concatenate([array, array], axis=0) if array.ndim else array,
        lambda: np.ones(array.shape, bool),
        lambda: np.ones(array.shape, np.complex64),
        lambda: array.T,
    )
    made = changes[rng.integers(len(changes))]()
    if made is None:
        del arrays[name]
        if rng.integers(2):
            arrays[f"{name}.other"] = array
    else:
        arrays[name] = made
    return arrays


def damage(run: Path, rng: np.random.Generator) -> str:
    """Change one file of a run and sign it again; what was changed."""
    files = ["config.json", "metrics.jsonl", *(str(p.relative_to(run)) for p in sorted(run.rglob("*.safetensors")))]
    name = files[rng.integers(len(files))] if rng.integers(2) else files[rng.integers(2)]
    path = run / name
    if name == "config.json":
        content = json.loads(path.read_text())
        del content["sha256"]
        path.write_bytes(signed_json(change_json(content, rng)))
    elif name == "metrics.jsonl":
        rows = [read_line(line) for line in path.read_bytes().splitlines()]
        row = rng.integers(len(rows))
        rows[row] = change_json(rows[row], rng)
        path.write_bytes(b"".join(signed_line(row) + b"\n" for row in rows))
    else:
        arrays, info = packed.unpack(path.read_bytes())
        if rng.integers(3):
            arrays = change_arrays(arrays, rng)
        else:
            info = change_json(info, rng)
        path.write_bytes(packed.pack(arrays, info))
    return name


def readers(run: Path, found: NamedRobot, thorough: bool) -> dict[str, Callable[[], Any]]:
    """Every way to read a run; the slow ones only if asked for."""

    def resume() -> None:
        with RunFolder.open(run, writer=True) as folder:
            config = TrainingConfig.from_dict(folder.config, str(run / "config.json"))
            if config.settings != TRAINED.settings:  # this would be another learner, and slow to make
                return
            prior = Prior.of_run(folder, config)
            Trainer(found.make(), config, FolderRecorder(folder), prior=prior).resume()

    ways: dict[str, Callable[[], Any]] = {
        "metrics": lambda: Run.open(run).metrics(),
        "records": lambda: [Run.open(run).record(episode) for episode in Run.open(run).episodes()],
        "policies": lambda: [Run.open(run).policy(episode) for episode in Run.open(run).episodes()],
        "kept": lambda: (Run.open(run).kept_policy(), Run.open(run).kept_episode()),
        "newest": lambda: Run.open(run).newest_policy(),
        "evaluation": lambda: [Run.open(run).evaluation(episode) for episode in Run.open(run).episodes()],
        "log": lambda: read_run(run, found.task.spec),
        "follower": lambda: RunFollower(run).poll(),
        "export": lambda: write_export(run, "safetensors", run.parent / "out"),
        "init from": lambda: gather(found.task.spec, init_from=run, init="both", data=(run,)),
    }
    if thorough:
        ways |= {
            "report": lambda: write_report(run, run.parent / "page.html"),
            "export c": lambda: write_export(run, "c", run.parent / "out"),
            "export mcap": lambda: write_export(run, "mcap", run.parent / "out"),
            "resume": resume,
        }
    return ways


TRAINED = TrainingConfig.of("soft-arm", "paper", episodes=2, changes={"model.steps": 3, "model.hidden": (4,)})


def train(path: Path) -> NamedRobot:
    """A small run with everything that a run can have."""
    found = find_robot("soft-arm")
    robot = found.make()
    stored = {**TRAINED.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
    with RunFolder.create(path, stored, provenance={"started_utc": "now", "packages": {"jax": "1"}}) as run:
        Trainer(robot, TRAINED, FolderRecorder(run)).train()
    opened = Run.open(path)
    episode = opened.episodes()[-1]
    opened.save_evaluation(episode, evaluate(robot, opened.policy(episode)))
    return found


def do_not_render() -> None:
    """Rendering figures takes most of a report's time, and reads nothing."""
    style._settle = lambda figure: None
    Figure.savefig = lambda *arguments, **options: None


def main() -> None:
    """Damage, read, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="100 files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    count, rng = 100 if given.quick else given.count, np.random.default_rng(given.seed)
    escaped: Counter[str] = Counter()
    refused, files, began = 0, Counter(), time.monotonic()

    def result(done: int) -> dict[str, Any]:
        return {
            "damaged": done, "files": dict(files), "refused_in_one_sentence": refused,
            "tracebacks": sum(escaped.values()), "seconds": round(time.monotonic() - began), "escaped": dict(escaped),
        }  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        found = train(whole)
        do_not_render()
        for i in range(count):
            if i % 100 == 0:
                print(f"{i} files, {sum(escaped.values())} tracebacks, {time.monotonic() - began:.0f} s", flush=True)
                if given.out:  # what is done shall not be lost with what is not
                    given.out.write_text(json.dumps(result(i), indent=2) + "\n")
            copy = Path(folder) / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            name = damage(copy, rng)
            files[name.partition("/")[0]] += 1
            said = False
            for way, read in readers(copy, found, thorough=i % 20 == 0).items():
                try:
                    read()
                except UserError as error:
                    said = True
                    if "\n" in str(error):
                        escaped[f"{way}, {name}: more than one line"] += 1
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    own = [f for f in traceback.extract_tb(error.__traceback__) if "/firsthand" in f.filename][-1]
                    key = f"{way}, {name.partition('/')[0]}: {type(error).__name__} at {own.filename}:{own.lineno}"
                    if not escaped[key]:
                        print(key, "|", str(error)[:150], "|", f"{where.filename}:{where.lineno}", flush=True)
                    escaped[key] += 1
            refused += said
    print(json.dumps(result(count)))
    if given.out:
        given.out.write_text(json.dumps(result(count), indent=2) + "\n")
    sys.exit(1 if escaped else 0)


if __name__ == "__main__":
    main()
