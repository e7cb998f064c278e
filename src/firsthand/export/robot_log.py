"""A run's episodes as an MCAP file, which Foxglove and Rerun open and `firsthand train --data` reads."""

import io
import json
from datetime import datetime
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.kinematics import tracked_output

from ..errors import UserError
from ..logs.mcap import TOPIC, schema
from ..robots import EpisodeRecord
from ..training.run import Run

PAUSE_S = 10.0
"""Time between two motions in the file that do not continue each other, so that nobody takes them for one."""


def mcap_log(run: Run) -> bytes:
    """Every step that happened, as a message on `firsthand/step`."""
    try:
        from mcap.writer import Writer
    except ImportError:
        raise UserError("export to MCAP needs the package mcap: pip install 'firsthand[mcap]'.") from None
    spec, stream = run.description.spec, io.BytesIO()
    writer = Writer(stream)
    writer.start(profile="", library="firsthand")
    kind = writer.register_schema(TOPIC, "jsonschema", json.dumps(_described(spec)).encode())
    channel = writer.register_channel(TOPIC, "json", kind, {"robot": spec.robot})
    began = _began(run)
    time = 0.0
    for episode in run.episodes():
        for content, last in _steps(spec, run.record(episode), episode):
            stamp = round((began + time) * 1e9)
            data = json.dumps({"time": round(time, 6), **content}).encode()
            writer.add_message(channel, log_time=stamp, publish_time=stamp, data=data)
            time += PAUSE_S if last else spec.period_s
    writer.finish()
    return stream.getvalue()


def _described(spec: ControlSpec) -> dict[str, Any]:
    known = schema(spec)
    numbers = {"type": "array", "items": {"type": "number"}}
    known["properties"] |= {
        "tracked": {**numbers, "description": "the tracked output"},
        "reference": {**numbers, "description": "where it should be"},
        "error": {"type": "number", "description": "distance between the two"},
        "episode": {"type": "integer"},
        "trajectory": {"type": "integer"},
    }
    return known


def _began(run: Run) -> float:
    """Seconds since 1970 at which the run began; 0 when the run does not say."""
    try:
        return datetime.fromisoformat(str(run.folder.provenance.get("started_utc"))).timestamp()
    except ValueError:
        return 0.0


def _steps(spec: ControlSpec, record: EpisodeRecord, episode: int) -> list[tuple[dict[str, Any], bool]]:
    """One message per step, and one for where a motion ended, which is marked.

    A trajectory that begins in exactly the state in which the last one ended continues its motion; one after a reset
    does not, also where it begins at the same place.
    """
    layout, found, registers = spec.layout, [], record.registers(spec.layout)
    output = np.asarray(tracked_output(spec, record.measured.astype(np.float64)))
    for trajectory in range(len(record.starts)):
        count = int(record.valid[trajectory].sum())
        if count == 0:
            continue
        ends = (
            trajectory == len(record.starts) - 1
            or count < record.valid.shape[1]
            or not np.array_equal(
                record.state_after(layout, registers[trajectory], trajectory), registers[trajectory + 1]
            )
        )
        for step in range(count + ends):
            tracked, reference = output[trajectory, step], record.references[trajectory, step].astype(np.float64)
            command = record.commands[trajectory, min(step, count - 1)]
            content = {
                "measured": _named(layout.measured, record.measured[trajectory, step]),
                "commands": _named(layout.commands, command),
                "tracked": _plain(tracked),
                "reference": _plain(reference),
                "error": _plain([np.linalg.norm(tracked - reference)])[0],
                "episode": episode,
                "trajectory": trajectory + 1,
            }
            found.append((content, step == count))
    return found


def _named(names: tuple[str, ...], values: np.ndarray) -> dict[str, float | None]:
    return dict(zip(names, _plain(values), strict=True))


def _plain(values: Any) -> list[float | None]:
    """Numbers for JSON, which has no NaN."""
    return [float(value) if np.isfinite(value) else None for value in np.asarray(values)]
