"""Numbers and arrays as C99."""

from collections.abc import Sequence

import numpy as np

from firsthand_onboard.policy import Layer


def c_array(kind: str, name: str, values: np.ndarray | Sequence[float]) -> str:
    """A constant array, in the order of memory."""
    items = [c_number(value) for value in np.asarray(values).reshape(-1)]
    rows = [", ".join(items[i : i + 8]) for i in range(0, len(items), 8)]
    return f"static const {kind} {name}[{len(items)}] = {{\n    " + ",\n    ".join(rows) + "};\n"


def c_number(value: float) -> str:
    """The shortest text that reads back as the same single-precision number; a NaN needs math.h."""
    if np.isnan(value):
        return "NAN"
    if float(value).is_integer() and isinstance(value, int | np.integer):
        return str(int(value))
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if any(mark in text for mark in ".en") else f"{text}.0f"


def network_tables(prefix: str, layers: Sequence[Layer]) -> list[str]:
    """The weights of a network as constant arrays.

    By input, so that the inner loop runs over outputs and compilers can take several at a time.
    """
    tables = []
    for i, (weight, bias) in enumerate(layers):
        tables.append(c_array("float", f"{prefix}weight{i}", np.asarray(weight, np.float32).T))
        tables.append(c_array("float", f"{prefix}bias{i}", np.asarray(bias, np.float32)))
    return tables


def network_calls(prefix: str, layers: Sequence[Layer], *, linear: bool = False) -> tuple[str, str, str]:
    """Declarations, statements that start from `features`, and the name of the result; `linear` in its last layer."""
    calls, source = [], "features"
    for i, (weight, _) in enumerate(layers):
        function = "affine" if linear and i == len(layers) - 1 else "layer"
        outputs, inputs = np.shape(weight)
        calls.append(f"    {function}({prefix}weight{i}, {prefix}bias{i}, {source}, {inputs}, out{i}, {outputs});\n")
        source = f"out{i}"
    return ", ".join(f"out{i}[{len(bias)}]" for i, (_, bias) in enumerate(layers)), "".join(calls), source
