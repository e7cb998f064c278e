"""Files other than runs, damaged: policies, latches, simulators, studies, logs. Each is read or refused in a sentence.

python benchmarks/damaged_files.py [--count 2000] [--quick] [--seed 0] [--out FILE]

What has a checksum is changed inside and signed again: fields of JSON replaced, removed or doubled, arrays missing,
misshapen, of another type. What has none also loses bytes, gets others, or is cut.
"""

import argparse
import csv
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")

import numpy as np
from safetensors.numpy import load, save

from damaged_runs import change_arrays, change_json, train
from firsthand.errors import UserError
from firsthand.export import write_export
from firsthand.logs.base import Series
from firsthand.logs.read import read_log
from firsthand.robots.description import RobotDescription
from firsthand.robots.registry import find_robot
from firsthand.runs import packed
from firsthand.simulators.fit import FitSettings, make_untrained_plant
from firsthand.simulators.folder import save as save_simulator
from firsthand_lab.experiments import files as study_files
from firsthand_onboard import ControlSpec, SpecError
from firsthand_onboard.cli import _text as read_text
from firsthand_onboard.faults import FaultLatch
from firsthand_onboard.gate_limits import GateLimits
from firsthand_onboard.homing import Homing
from firsthand_onboard.policy_file import load_controller

Rng = np.random.Generator


@dataclass(frozen=True)
class Kind:
    """A kind of file or folder: how to make a sound one, how to damage it, how it is read."""

    make: Callable[[Path], None]
    damage: Callable[[Path, Rng], None]
    read: Callable[[Path], Any]


def damage_bytes(path: Path, rng: Rng) -> None:
    """Bytes lost, changed, added; or the file is something else altogether."""
    data = bytearray(path.read_bytes())
    way = rng.integers(6)
    at = int(rng.integers(max(len(data), 1)))
    if way == 0:
        data = data[:at]
    elif way == 1 and data:
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    elif way == 2:
        data[at:at] = rng.bytes(int(rng.integers(1, 200)))
    elif way == 3:
        data[at : at + int(rng.integers(1, 200))] = b""
    elif way == 4:
        data[at : at + 8] = (2**63 - 1).to_bytes(8, "little")
    else:
        others = (b"", b"\x00" * 100, b"[" * 50_000, b'{"a":' * 20_000, b"\xff\xfe\x00", b"1" * 5000, b'{"x": 1e999}')
        data = bytearray(others[int(rng.integers(len(others)))])
    path.write_bytes(bytes(data))


def damage_json(path: Path, rng: Rng) -> None:
    """One field changed, or bytes."""
    if rng.integers(5) == 0:
        damage_bytes(path, rng)
    else:
        path.write_text(json.dumps(change_json(json.loads(path.read_text()), rng)))


def damage_tensors(path: Path, rng: Rng) -> None:
    """A safetensors file without a checksum of its own: arrays or metadata changed, or bytes."""
    way, data = rng.integers(4), path.read_bytes()
    if way == 0:
        damage_bytes(path, rng)
        return
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.get("__metadata__", {})
    arrays = load(data)
    if way == 1 and "control_spec" in metadata:
        changed = change_json(json.loads(metadata["control_spec"]), rng)
        metadata = {**metadata, "control_spec": json.dumps(changed)}
    elif way == 2:
        metadata = {name: text for name, text in metadata.items() if rng.integers(2)}
    else:
        arrays = change_arrays(arrays, rng)
    path.write_bytes(save({n: np.ascontiguousarray(a) for n, a in arrays.items() if a.dtype.kind != "c"}, metadata))


def damage_simulator(path: Path, rng: Rng) -> None:
    """The description, or the weights with a SHA-256 that fits them."""
    description = path / "simulator.json"
    if rng.integers(2):
        damage_json(description, rng)
        return
    weights = next(path.glob("*.safetensors"))
    arrays, info = packed.unpack(weights.read_bytes())
    weights.write_bytes(packed.pack(change_arrays(arrays, rng), info))
    content = json.loads(description.read_text())
    content["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    description.write_text(json.dumps(content))


def damage_one_of(path: Path, rng: Rng) -> None:
    """One file of a folder."""
    inside = sorted(p for p in path.rglob("*") if p.is_file())
    file = inside[int(rng.integers(len(inside)))]
    (damage_json if file.suffix == ".json" else damage_bytes)(file, rng)


def damage_csv(path: Path, rng: Rng) -> None:
    """Fields that are no numbers, rows too short or too long, or bytes."""
    if rng.integers(2):
        damage_bytes(path, rng)
        return
    rows = list(csv.reader(path.read_text().splitlines()))
    strange = ("", "x", "nan", "inf", "-inf", "1e999", "1" * 400, "\x00", '"', "é", "0x10", "1_0", " ")
    for _ in range(int(rng.integers(1, 4))):
        row = rows[int(rng.integers(len(rows)))]
        way = rng.integers(3)
        if way == 0 and row:
            del row[int(rng.integers(len(row)))]
        elif way == 1:
            row.append("1")
        elif row:
            row[int(rng.integers(len(row)))] = strange[int(rng.integers(len(strange)))]
    path.write_text("\n".join(",".join(row) for row in rows))


def make_simulator(path: Path) -> None:
    """An untrained simulator of the excavator."""
    task, rng = find_robot("excavator").task, np.random.default_rng(0)
    series = Series(rng.normal(size=(50, 8)).astype(np.float32), rng.uniform(-1, 1, (49, 4)).astype(np.float32))
    settings = FitSettings(hidden=(4,))
    plant = make_untrained_plant(task.spec, [series], settings)
    described = RobotDescription.of(task, kind="simulation")
    save_simulator(path, plant, robot="excavator", description=described, data=[], settings=settings, accuracy={})


def kinds(folder: Path) -> dict[str, Kind]:
    """Every kind, made from one small run."""
    found = train(folder / "run")
    run, spec = folder / "run", found.task.spec

    def export(form: str) -> Callable[[Path], None]:
        def make(path: Path) -> None:
            write_export(run, form, path.parent / f"{form}-out")
            inside = sorted((path.parent / f"{form}-out").rglob("*"))
            found = (p for p in inside if (p.suffix == path.suffix if path.suffix else (p / "meta").is_dir()))
            shutil.move(next(found, path.parent / f"{form}-out"), path)

        return make

    def table(path: Path) -> None:
        names = ["time", *spec.layout.measured, *spec.layout.commands]
        rng, rows = np.random.default_rng(0), []
        center, scale = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.measured_scale)
        low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
        for k in range(300):
            measured = center + 0.2 * scale * np.sin(0.05 * k + np.arange(len(center)))
            rows.append([k * spec.period_s, *measured, *rng.uniform(low, high)])
        path.write_text("\n".join([",".join(names), *(",".join(f"{v:.6g}" for v in row) for row in rows)]))

    def study(path: Path) -> None:
        study_files.write_json(path / "experiment.json", {"format": 1, "experiment": "fast", "size": "quick"})
        study_files.write_json(path / "jobs" / "a" / "job.json", {"id": "a", "runner": "x", "arguments": {"seed": 0}})
        study_files.write_csv(path / "jobs" / "a" / "curve.csv", {"episode": [1, 2], "error": [0.1, 0.2]})
        study_files.write_arrays(path / "jobs" / "a" / "data.safetensors", {"x": np.zeros((2, 3))}, {"a": 1})

    def read_study(path: Path) -> None:
        study_files.read_json(path / "experiment.json")
        study_files.read_json(path / "jobs" / "a" / "job.json")
        study_files.read_csv(path / "jobs" / "a" / "curve.csv")
        study_files.read_arrays(path / "jobs" / "a" / "data.safetensors")

    def text(content: str) -> Callable[[Path], None]:
        def make(path: Path) -> None:
            path.write_text(content)

        return make

    limits = GateLimits.of(spec, np.asarray(spec.limits.command_low))
    homing = Homing(tuple(0.0 for _ in spec.layout.position))
    return {
        "policy.safetensors": Kind(export("safetensors"), damage_tensors, load_controller),
        "latch.json": Kind(text('{"fault": "stopped", "number": 3}'), damage_json, FaultLatch),
        "limits.json": Kind(
            text(limits.to_json()), damage_json,
            lambda path: GateLimits.from_json(read_text(path, "limits"), spec, np.asarray(spec.limits.command_low)),
        ),
        "homing.json": Kind(
            text(homing.to_json()), damage_json, lambda path: Homing.from_json(read_text(path, "homing"))
        ),
        "spec.json": Kind(
            text(spec.to_json()), damage_json, lambda path: ControlSpec.from_json(read_text(path, "specification"))
        ),
        "simulator": Kind(make_simulator, damage_simulator, lambda path: find_robot(str(path)).make().measured()),
        "study": Kind(study, damage_one_of, read_study),
        "log.csv": Kind(table, damage_csv, lambda path: read_log(path, spec)),
        "log.mcap": Kind(export("mcap"), damage_bytes, lambda path: read_log(path, spec)),
        "dataset": Kind(export("lerobot"), damage_one_of, lambda path: read_log(path, spec)),
    }  # fmt: skip


def main() -> None:
    """Damage, read, count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="45 files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    count, rng = 45 if given.quick else given.count, np.random.default_rng(given.seed)
    escaped: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = kinds(folder)
        if given.only:
            every = {kind: every[kind] for kind in given.only}
        for kind, each in every.items():
            sound = folder / "sound" / kind
            sound.parent.mkdir(exist_ok=True)
            each.make(sound)
            each.read(sound)  # it is one
            for _ in range(-(-count // len(every))):
                copy = folder / "copy" / kind
                shutil.rmtree(copy.parent, ignore_errors=True)
                copy.parent.mkdir()
                (shutil.copytree if sound.is_dir() else shutil.copy)(sound, copy)
                each.damage(copy, rng)
                tried[kind] += 1
                try:
                    each.read(copy)
                except (UserError, SpecError) as error:
                    refused[kind] += 1
                    if "\n" in str(error):
                        escaped[f"{kind}: more than one line"] += 1
                        print(kind, "|", repr(str(error))[:200], flush=True)
                except Exception as error:
                    own = [f for f in traceback.extract_tb(error.__traceback__) if "/firsthand" in f.filename]
                    own = own[-1] if own else traceback.extract_tb(error.__traceback__)[-1]
                    key = f"{kind}: {type(error).__name__} at {own.filename.partition('/src/')[2]}:{own.lineno}"
                    if not escaped[key]:
                        print(key, "|", str(error)[:150], flush=True)
                    escaped[key] += 1
            print(f"{kind}: {tried[kind]} tried, {refused[kind]} refused, {time.monotonic() - began:.0f} s", flush=True)
    result = {
        "damaged": sum(tried.values()), "kinds": dict(tried), "refused_in_one_sentence": dict(refused),
        "tracebacks": sum(escaped.values()), "seconds": round(time.monotonic() - began),
    }  # fmt: skip
    print(json.dumps(result))
    if given.out:
        given.out.write_text(json.dumps({**result, "escaped": dict(escaped)}, indent=2) + "\n")
    sys.exit(1 if escaped else 0)


if __name__ == "__main__":
    main()
