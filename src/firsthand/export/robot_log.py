"""What the robot did in a run, step by step; and as an MCAP file of ROS 2 messages.

Foxglove, Rerun and PlotJuggler open the file without ROS, `ros2 bag play` plays it, `firsthand train --data` reads it.
"""

import io
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import error_size
from firsthand_onboard.kinematics import output_error, tracked_output

from ..errors import UserError, how_to_install
from ..logs.ros2 import COMMAND_TOPIC, MEASURED_TOPIC, label
from ..robots import EpisodeRecord
from ..training.run import Run

PAUSE_S = 10.0
"""Time between two motions in the file that do not continue each other, so that they are not taken for one motion."""
JOINT_TOPIC, TRACKED_TOPIC, REFERENCE_TOPIC = "/joint_states", "/firsthand/tracked", "/firsthand/reference"
ERROR_TOPIC, PROGRESS_TOPIC = "/firsthand/error", "/firsthand/progress"
JOINT_STATE, NUMBERS = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray"
_RULE = "=" * 80
DEFINITIONS = {
    JOINT_STATE: f"""std_msgs/Header header
string[] name
float64[] position
float64[] velocity
float64[] effort
{_RULE}
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{_RULE}
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
""",
    NUMBERS: f"""std_msgs/MultiArrayLayout layout
float64[] data
{_RULE}
MSG: std_msgs/MultiArrayLayout
std_msgs/MultiArrayDimension[] dim
uint32 data_offset
{_RULE}
MSG: std_msgs/MultiArrayDimension
string label
uint32 size
uint32 stride
""",
}


class Step(NamedTuple):
    """One control period of an episode, or the measurement with which a motion ended."""

    episode: int
    """From 1."""
    trajectory: int
    """Of the episode, from 1."""
    measured: np.ndarray
    """The measurements."""
    command: np.ndarray
    """The command applied from then on; for a measurement that ends a motion, the command before it."""
    tracked: np.ndarray
    """The tracked output."""
    reference: np.ndarray
    """Where it should have been."""
    error: float
    """Distance between the two."""
    ends: bool
    """Whether a motion ends here; the next step is another one."""


def read_steps(run: Run) -> Iterator[Step]:
    """Every step that happened, in order."""
    for episode in run.episodes():
        yield from _episode(run.description.spec, run.record(episode), episode)


def _episode(spec: ControlSpec, record: EpisodeRecord, episode: int) -> Iterator[Step]:
    """A trajectory that begins in exactly the state in which the last one ended continues its motion.

    One after a reset does not, also where it begins at the same place.
    """
    layout, registers = spec.layout, record.registers(spec.layout)
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
            yield Step(
                episode,
                trajectory + 1,
                record.measured[trajectory, step],
                record.commands[trajectory, min(step, count - 1)],
                output[trajectory, step],
                record.references[trajectory, step].astype(np.float64),
                error_size(spec, output_error(spec, output[trajectory, step], record.references[trajectory, step])),
                step == count,
            )


def mcap_log(run: Run) -> bytes:
    """Every step that happened, as ROS 2 messages."""
    try:
        from mcap_ros2.writer import Writer
    except ImportError:
        raise UserError(f"export to MCAP needs the package mcap-ros2-support: {how_to_install('mcap')}.") from None
    spec, stream = run.description.spec, io.BytesIO()
    layout = spec.layout
    writer = Writer(stream)
    schemas = {kind: writer.register_msgdef(kind, text) for kind, text in DEFINITIONS.items()}
    outputs = spec.output_names
    joints = [joint_name(layout.measured[i]) for i in layout.position]
    names = {
        MEASURED_TOPIC: layout.measured,
        COMMAND_TOPIC: layout.commands,
        TRACKED_TOPIC: outputs,
        REFERENCE_TOPIC: outputs,
        ERROR_TOPIC: ("error",),
        PROGRESS_TOPIC: ("episode", "trajectory"),
    }
    forms = {topic: _layout(entries) for topic, entries in names.items()}
    began, time = _began(run), 0.0
    for step in read_steps(run):
        stamp = round((began + time) * 1e9)
        values = {
            MEASURED_TOPIC: step.measured,
            COMMAND_TOPIC: step.command,
            TRACKED_TOPIC: step.tracked,
            REFERENCE_TOPIC: step.reference,
            ERROR_TOPIC: (step.error,),
            PROGRESS_TOPIC: (step.episode, step.trajectory),
        }
        for topic, numbers in values.items():
            content = {"layout": forms[topic], "data": [float(value) for value in numbers]}
            writer.write_message(topic, schemas[NUMBERS], content, log_time=stamp)
        state = {
            "header": {"stamp": {"sec": stamp // 10**9, "nanosec": stamp % 10**9}, "frame_id": ""},
            "name": joints,
            "position": [float(step.measured[i]) for i in layout.position],
            "velocity": [float(step.measured[i]) for i in layout.velocity],
            "effort": [],
        }
        writer.write_message(JOINT_TOPIC, schemas[JOINT_STATE], state, log_time=stamp)
        time += PAUSE_S if step.ends else spec.period_s
    writer.finish()
    return stream.getvalue()


def joint_name(measured: str) -> str:
    """The joint of a position: `boom` of `boom.position`."""
    return measured.removesuffix(".position")


def _layout(names: tuple[str, ...]) -> dict[str, Any]:
    text = ",".join(label(name) for name in names)
    return {"dim": [{"label": text, "size": len(names), "stride": len(names)}], "data_offset": 0}


def _began(run: Run) -> float:
    """Seconds since 1970 at which the run began; 0 when the run does not say."""
    try:
        return datetime.fromisoformat(str(run.folder.provenance.get("started_utc"))).timestamp()
    except ValueError:
        return 0.0


def foxglove_layout(spec: ControlSpec) -> bytes:
    """A layout for Foxglove: tracked output and reference, error, joints, commands."""
    layout = spec.layout

    def plot(title: str, paths: list[tuple[str, str]]) -> dict[str, Any]:
        series = [
            {"value": path, "label": name, "enabled": True, "timestampMethod": "receiveTime"} for path, name in paths
        ]
        return {
            "title": title,
            "paths": series,
            "showXAxisLabels": True,
            "showYAxisLabels": True,
            "showLegend": True,
            "legendDisplay": "floating",
            "isSynced": True,
            "xAxisVal": "timestamp",
        }

    pairs = [
        (f"{topic}.data[{i}]", f"{what} {i + 1}")
        for i in range(spec.num_outputs)
        for topic, what in ((TRACKED_TOPIC, "tracked"), (REFERENCE_TOPIC, "reference"))
    ]
    panels = {
        "Plot!tracked": plot("Tracked output and reference", pairs),
        "Plot!error": plot("Tracking error", [(f"{ERROR_TOPIC}.data[0]", "error")]),
        "Plot!measured": plot(
            "Measured", [(f"{MEASURED_TOPIC}.data[{i}]", name) for i, name in enumerate(layout.measured)]
        ),
        "Plot!command": plot(
            "Commands", [(f"{COMMAND_TOPIC}.data[{i}]", name) for i, name in enumerate(layout.commands)]
        ),
    }
    left = {"first": "Plot!tracked", "second": "Plot!error", "direction": "column", "splitPercentage": 65}
    right = {"first": "Plot!measured", "second": "Plot!command", "direction": "column"}
    content = {
        "configById": panels,
        "globalVariables": {},
        "userNodes": {},
        "playbackConfig": {"speed": 1},
        "layout": {"first": left, "second": right, "direction": "row"},
    }
    return json.dumps(content, indent=2).encode()
