"""Where the parts of a robot are, for pictures of it. Numpy only."""

import numpy as np

from firsthand_onboard import ControlSpec, SelectedOutput, SerialChain
from firsthand_onboard.kinematics import chain_points, tracked_output


def body_points(spec: ControlSpec, measured: np.ndarray) -> np.ndarray | None:
    """From the base to the tip, `(…, points, 2)`, in the plane of the tracked output; None where nothing is known.

    A chain is computed from its joints; one in space is seen from the side. Where the robot measures several of its
    points, as `NAME.x` and `NAME.y`, and tracks one of them, they are joined in the order in which they are measured,
    from the origin.
    """
    measured = np.asarray(measured, float)
    if not isinstance(spec.kinematics, SelectedOutput):
        points = np.asarray(chain_points(spec.kinematics, measured[..., list(spec.layout.position)]))
        return points[..., list(drawn_coordinates(spec))]
    names = spec.layout.measured
    tracked = [names[i].rpartition(".") for i in spec.kinematics.indices[:2]]
    if len(tracked) < 2 or tracked[0][0] != tracked[1][0] or not tracked[0][0]:
        return None
    parts = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    pairs = [tuple(f"{part}.{axis}" for _, _, axis in tracked) for part in parts]
    ends = [[names.index(name) for name in pair] for pair in pairs if all(name in names for name in pair)]
    if len(ends) < 2:
        return None
    points = measured[..., np.asarray(ends)]
    return np.concatenate([np.zeros_like(points[..., :1, :]), points], axis=-2)


def drawn_coordinates(spec: ControlSpec) -> tuple[int, int]:
    """Which two coordinates of the tracked output a picture shows: x and z of a chain in space, else the first two."""
    return (0, 2) if isinstance(spec.kinematics, SerialChain) else (0, 1)


def plane_of(spec: ControlSpec, outputs: np.ndarray) -> np.ndarray:
    """Tracked outputs `(…, steps, outputs)` as points of a picture, `(…, steps, 2)`; one output is drawn over time."""
    if outputs.shape[-1] > 1:
        return outputs[..., list(drawn_coordinates(spec))]
    time = np.broadcast_to(spec.period_s * np.arange(outputs.shape[-2])[:, None], outputs.shape)
    return np.concatenate([time, outputs], axis=-1)


def output_names(spec: ControlSpec) -> tuple[str, ...]:
    """Names of the tracked output's coordinates."""
    if isinstance(spec.kinematics, SelectedOutput):
        return tuple(spec.layout.measured[i].replace(".", " ") for i in spec.kinematics.indices)
    if spec.num_outputs == len("xz"):
        return "x", "z"
    names = ("x", "y", "z", "rotation x", "rotation y", "rotation z")
    return tuple(names[i] if i < len(names) else f"output {i}" for i in range(spec.num_outputs))


def axis_labels(spec: ControlSpec, unit: str) -> tuple[str, str]:
    """The axes of such a picture."""
    if not isinstance(spec.kinematics, SelectedOutput):
        return f"x ({unit})", f"z ({unit})"
    names = [spec.layout.measured[i].replace(".", " ") for i in spec.kinematics.indices]
    units = spec.output_units or (unit,) * len(names)
    labels = [f"{name} ({one})" if one else name for name, one in zip(names, units, strict=True)]
    return ("time (s)", labels[0]) if len(labels) == 1 else (labels[0], labels[1])


def path_points(spec: ControlSpec, measured: np.ndarray) -> np.ndarray:
    """The path of the tracked output in the picture, `(…, steps, 2)`."""
    return plane_of(spec, np.asarray(tracked_output(spec, np.asarray(measured, float))))
