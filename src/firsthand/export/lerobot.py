"""What the robot did in a run as a LeRobotDataset, version 3.0: each motion without a break is an episode of it.

The format itself, written with pyarrow: the lerobot package is not needed.
"""

import io
import json
from typing import Any

import numpy as np

from ..errors import UserError, how_to_install
from ..logs.lerobot import ACTION, INFO, STATE
from ..training.run import Run
from .robot_log import Step, read_steps

VERSION = "v3.0"
DATA_FILE, EPISODES_FILE = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
TASKS_FILE, STATS_FILE = "meta/tasks.parquet", "meta/stats.json"
REFERENCE, TRACKED = "observation.reference", "observation.tracked"
INDICES = ("frame_index", "episode_index", "index", "task_index")


def lerobot_files(run: Run) -> dict[str, bytes]:
    """Names and contents of the dataset's files."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"export to LeRobot needs the package pyarrow: {how_to_install('lerobot')}.") from None
    spec = run.description.spec
    outputs = spec.output_names
    widths = {STATE: spec.layout.measured, ACTION: spec.layout.commands, REFERENCE: outputs, TRACKED: outputs}
    motions = _motions(list(read_steps(run)))
    columns: dict[str, np.ndarray] = {
        STATE: np.stack([step.measured for motion in motions for step in motion]),
        ACTION: np.stack([step.command for motion in motions for step in motion]),
        REFERENCE: np.stack([step.reference for motion in motions for step in motion]),
        TRACKED: np.stack([step.tracked for motion in motions for step in motion]),
    }
    frames = np.concatenate([np.arange(len(motion)) for motion in motions])
    columns |= {
        "timestamp": frames * spec.period_s,
        "frame_index": frames,
        "episode_index": np.repeat(np.arange(len(motions)), [len(motion) for motion in motions]),
        "index": np.arange(len(frames)),
        "task_index": np.zeros(len(frames), int),
    }
    arrays = {
        name: pyarrow.array(values, pyarrow.int64() if name in INDICES else pyarrow.float32())
        if values.ndim == 1
        else pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(values.astype(np.float32).ravel(), pyarrow.float32()), values.shape[1]
        )
        for name, values in columns.items()
    }
    task = f"{spec.robot}: follow the reference"
    return {
        INFO: _json(_info(spec.robot, 1 / spec.period_s, len(motions), len(frames), widths)),
        STATS_FILE: _json({name: _stats(values) for name, values in columns.items()}),
        TASKS_FILE: _parquet(_tasks(task)),
        EPISODES_FILE: _parquet(_episodes(columns, task)),
        DATA_FILE: _parquet(pyarrow.table(arrays)),
    }


def _motions(steps: list[Step]) -> list[list[Step]]:
    """Steps without a break; what was measured at the very end has no command of its own and is left out."""
    motions: list[list[Step]] = [[]]
    for step in steps:
        if step.ends:
            motions.append([])
        else:
            motions[-1].append(step)
    return [motion for motion in motions if motion]


def _info(robot: str, fps: float, episodes: int, frames: int, widths: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [len(names)], "names": list(names)} for name, names in widths.items()
    }
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    features |= {name: {"dtype": "int64", "shape": [1], "names": None} for name in INDICES}
    return {
        "codebase_version": VERSION,
        "robot_type": robot,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
        "fps": round(fps) if abs(fps - round(fps)) < 1e-6 * fps else fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }


def _stats(values: np.ndarray) -> dict[str, Any]:
    rows = values.reshape(len(values), -1).astype(float)
    found = {"min": np.nanmin, "max": np.nanmax, "mean": np.nanmean, "std": np.nanstd}
    return {name: measure(rows, axis=0).tolist() for name, measure in found.items()} | {"count": [len(rows)]}


def _tasks(task: str) -> Any:
    """The table of tasks. For pandas, the task's text is the index."""
    import pyarrow

    table = pyarrow.table({"task_index": pyarrow.array([0], pyarrow.int64()), "__index_level_0__": [task]})
    described = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
            {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object"},
        ],
        "creator": {"library": "pyarrow", "version": pyarrow.__version__},
        "pandas_version": "2.0.0",
    }
    return table.replace_schema_metadata({b"pandas": json.dumps(described).encode()})


def _episodes(columns: dict[str, np.ndarray], task: str) -> Any:
    import pyarrow

    ends = np.flatnonzero(np.diff(columns["episode_index"])) + 1
    starts, stops = [0, *ends.tolist()], [*ends.tolist(), len(columns["episode_index"])]
    zeros = [0] * len(starts)
    table: dict[str, Any] = {
        "episode_index": list(range(len(starts))),
        "tasks": [[task]] * len(starts),
        "length": [stop - start for start, stop in zip(starts, stops, strict=True)],
        "data/chunk_index": zeros,
        "data/file_index": zeros,
        "dataset_from_index": starts,
        "dataset_to_index": stops,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
    }
    stats = [
        {name: _stats(values[start:stop]) for name, values in columns.items()}
        for start, stop in zip(starts, stops, strict=True)
    ]
    for name in columns:
        for measure in ("min", "max", "mean", "std", "count"):
            table[f"stats/{name}/{measure}"] = [entry[name][measure] for entry in stats]
    return pyarrow.table(table)


def _parquet(table: Any) -> bytes:
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=4).encode()
