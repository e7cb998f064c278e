"""The tip of a serial chain, and errors of it, as C and as ONNX nodes: `serial_output` and `serial_error`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from firsthand_onboard import SerialChain
from firsthand_onboard.rotations import SMALL, multiply
from firsthand_onboard.spec import Kinematics

from .c_values import c_number


def c_tip(chain: SerialChain, entries: Sequence[int]) -> str:
    """Statements that set `tip` from `state`, whose `entries` are the joints' positions."""
    frames = chain.frames
    x, y, z = (c_number(value) for value in frames.offsets[-1])
    lines = [f"float x = {x}, y = {y}, z = {z}, u, v, w;"]
    for i in range(len(chain.joints) - 1, -1, -1):
        at = f"state[{entries[i]}]"
        if chain.joints[i].kind == "revolute":
            lines.append(f"u = cosf({at}) * x - sinf({at}) * y;")
            lines.append(f"v = sinf({at}) * x + cosf({at}) * y;")
            lines.append("w = z;")
        else:
            lines.append(f"u = x; v = y; w = z + {at};")
        for name, row, offset in zip("xyz", frames.matrices[i], frames.offsets[i], strict=True):
            lines.append(f"{name} = {_c_sum(row, 'uvw', offset)};")
    lines.extend(f"tip[{i}] = {name};" for i, name in enumerate("xyz"))
    if chain.lever:
        lines.extend(_c_orientation(chain, entries))
    return "".join(f"    {line}\n" for line in lines)


def _c_sum(factors: Sequence[float], names: str, constant: float = 0.0) -> str:
    terms = [f"{c_number(f)} * {name}" for f, name in zip(factors, names, strict=True) if f != 0.0]
    return " + ".join([*terms, c_number(float(constant))] if constant or not terms else terms)


def _c_orientation(chain: SerialChain, entries: Sequence[int]) -> list[str]:
    a, b, c, d = (c_number(float(value)) for value in chain.frames.quaternions[0])
    lines = [f"float a = {a}, b = {b}, c = {c}, d = {d}, e, f, g, h; /* a quaternion */"]
    for joint, entry, following in zip(chain.joints, entries, chain.frames.quaternions[1:], strict=True):
        if joint.kind == "revolute":
            cos, sin = f"cosf(0.5f * state[{entry}])", f"sinf(0.5f * state[{entry}])"
            lines.append(f"e = a * {cos} - d * {sin}; f = b * {cos} + c * {sin};")
            lines.append(f"g = c * {cos} - b * {sin}; h = d * {cos} + a * {sin};")
        else:
            lines.append("e = a; f = b; g = c; h = d;")
        for name, row in zip("abcd", _right_product(following), strict=True):
            lines.append(f"{name} = {_c_sum(row.tolist(), 'efgh')};")
    return lines + _c_vector(chain, "tip")


def _c_vector(chain: SerialChain, out: str) -> list[str]:
    """Statements from the quaternion a, b, c, d to entries 3, 4, 5 of `out`."""
    lever = c_number(2 * chain.lever)
    return [
        f"float factor = a < 0.0f ? -{lever} : {lever}; /* the rotation vector, times the lever */",
        "const float cosine = fmaxf(fabsf(a), 1e-12f), square = b * b + c * c + d * d, sine = sqrtf(square);",
        f"if (square < {c_number(SMALL * SMALL)}) factor *= (1.0f - square / (cosine * cosine) / 3.0f) / cosine;",
        "else factor *= atanf(sine / cosine) / sine;",
        *(f"{out}[{i}] = factor * {name};" for i, name in zip((3, 4, 5), "bcd", strict=True)),
    ]


def c_error(chain: Kinematics) -> str:
    """The function `output_error`: `firsthand_onboard.kinematics.output_error`."""
    head = "static void output_error(const float *wanted, const float *found, float *error)\n{\n"
    lines = ["for (int i = 0; i < OUTPUTS; i++) error[i] = wanted[i] - found[i];"]
    if not (isinstance(chain, SerialChain) and chain.lever):
        return f"{head}    {lines[0]}\n}}\n"
    lines += [
        "float p[4], q[4];",
        "quaternion_of(wanted + 3, p);",
        "quaternion_of(found + 3, q);",
        "/* the turn from the one to the other: p times the inverse of q */",
        "const float a = p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3];",
        "const float b = p[1] * q[0] - p[0] * q[1] - p[2] * q[3] + p[3] * q[2];",
        "const float c = p[2] * q[0] - p[0] * q[2] + p[1] * q[3] - p[3] * q[1];",
        "const float d = p[3] * q[0] - p[0] * q[3] - p[1] * q[2] + p[2] * q[1];",
        *_c_vector(chain, "error"),
    ]
    one, small = c_number(1 / chain.lever), c_number(SMALL * SMALL)
    quaternion = f"""/* Of a rotation vector times the lever. */
static void quaternion_of(const float *vector, float *turn)
{{
    const float x = {one} * vector[0], y = {one} * vector[1], z = {one} * vector[2];
    const float square = x * x + y * y + z * z, angle = sqrtf(square);
    const float factor = square < {small} ? 0.5f - square / 48.0f : sinf(0.5f * angle) / angle;
    turn[0] = square < {small} ? 1.0f - square / 8.0f : cosf(0.5f * angle);
    turn[1] = factor * x;
    turn[2] = factor * y;
    turn[3] = factor * z;
}}

"""
    return quaternion + head + "".join(f"    {line}\n" for line in lines) + "}\n"


def _right_product(second: Sequence[float]) -> np.ndarray:
    """M with M · first = first · second, for quaternions."""
    return np.stack([np.asarray(multiply(unit, second), float) for unit in np.eye(4).tolist()], axis=1)


ABOUT_Z = np.diag([1.0, 1.0, 0.0]), np.asarray([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0] * 3]), np.diag([0.0, 0.0, 1.0])
"""A turn about z is cos · the first + sin · the second + the third."""


def onnx_tip(graph: Any, chain: SerialChain, position: str) -> str:
    """Nodes from positions `(batch, joints)` to the tracked output `(batch, outputs)`."""
    frames, count = chain.frames, len(chain.joints)
    cos, sin = graph.node("Cos", position), graph.node("Sin", position)
    zero = graph.node("Mul", graph.columns(position, 0, 1), graph.constant([[0.0] * 3]))
    point = graph.node("Add", zero, graph.constant([frames.offsets[-1]]))
    for i in range(count - 1, -1, -1):
        matrix = np.asarray(frames.matrices[i])
        if chain.joints[i].kind == "revolute":
            parts = [graph.node("MatMul", point, graph.constant((matrix @ part).T)) for part in ABOUT_Z]
            turned = (graph.node("Mul", graph.columns(cos, i, i + 1), parts[0]),)
            turned = (*turned, graph.node("Mul", graph.columns(sin, i, i + 1), parts[1]))
            point = graph.node("Add", graph.node("Add", *turned), parts[2])
        else:
            along = graph.node("Mul", graph.columns(position, i, i + 1), graph.constant([matrix[:, 2]]))
            point = graph.node("Add", graph.node("MatMul", point, graph.constant(matrix.T)), along)
        point = graph.node("Add", point, graph.constant([frames.offsets[i]]))
    return graph.node("Concat", point, _onnx_orientation(graph, chain, position), axis=1) if chain.lever else point


def _onnx_orientation(graph: Any, chain: SerialChain, position: str) -> str:
    half = graph.node("Mul", position, graph.constant(0.5))
    cos, sin = graph.node("Cos", half), graph.node("Sin", half)
    zero = graph.node("Mul", graph.columns(position, 0, 1), graph.constant([[0.0] * 4]))
    turn = graph.node("Add", zero, graph.constant([chain.frames.quaternions[0]]))
    about_z = _right_product((0.0, 0.0, 0.0, 1.0))
    for i, joint in enumerate(chain.joints):
        after = _right_product(chain.frames.quaternions[i + 1])
        plain = graph.node("MatMul", turn, graph.constant(after.T))
        if joint.kind == "revolute":
            turned = graph.node("MatMul", turn, graph.constant((after @ about_z).T))
            plain = graph.node("Mul", graph.columns(cos, i, i + 1), plain)
            plain = graph.node("Add", plain, graph.node("Mul", graph.columns(sin, i, i + 1), turned))
        turn = plain
    return _onnx_vector(graph, chain, turn)


def onnx_error(graph: Any, chain: Kinematics, wanted: str, found: str) -> str:
    """Nodes of `firsthand_onboard.kinematics.output_error`, for `(rows, outputs)` of both."""
    difference = graph.node("Sub", wanted, found)
    if not (isinstance(chain, SerialChain) and chain.lever):
        return difference
    p, q = (_onnx_quaternion(graph, chain, graph.columns(one, 3, 6)) for one in (wanted, found))
    # p times the inverse of q is linear in each: row k of q's matrix is what multiplies entry k of p.
    back = graph.node("Mul", q, graph.constant([[1.0, -1.0, -1.0, -1.0]]))
    turn = None
    for k, unit in enumerate(np.eye(4)):
        part = graph.node("MatMul", p, graph.constant(_right_product(unit.tolist()).T))
        part = graph.node("Mul", graph.columns(back, k, k + 1), part)
        turn = part if turn is None else graph.node("Add", turn, part)
    return graph.node("Concat", graph.columns(difference, 0, 3), _onnx_vector(graph, chain, turn), axis=1)


def _onnx_quaternion(graph: Any, chain: SerialChain, scaled: str) -> str:
    """Of rotation vectors times the lever, `(rows, 3)`."""
    vector = graph.node("Div", scaled, graph.constant(chain.lever))
    square = graph.node("ReduceSum", graph.node("Mul", vector, vector), graph.constant([1], np.int64), keepdims=1)
    is_small = graph.node("Less", square, graph.constant(SMALL * SMALL))
    angle = graph.node("Sqrt", graph.node("Where", is_small, graph.constant(1.0), square))
    half = graph.node("Mul", angle, graph.constant(0.5))
    small = graph.node("Sub", graph.constant(0.5), graph.node("Div", square, graph.constant(48.0)))
    factor = graph.node("Where", is_small, small, graph.node("Div", graph.node("Sin", half), angle))
    near = graph.node("Sub", graph.constant(1.0), graph.node("Div", square, graph.constant(8.0)))
    real = graph.node("Where", is_small, near, graph.node("Cos", half))
    return graph.node("Concat", real, graph.node("Mul", factor, vector), axis=1)


def _onnx_vector(graph: Any, chain: SerialChain, turn: Any) -> str:
    """From quaternions `(rows, 4)` to their rotation vectors times the lever."""
    real, vector = graph.columns(turn, 0, 1), graph.columns(turn, 1, 4)
    is_negative = graph.node("Less", real, graph.constant(0.0))
    sign = graph.node("Where", is_negative, graph.constant(-2 * chain.lever), graph.constant(2 * chain.lever))
    cosine = graph.node("Max", graph.node("Abs", real), graph.constant(1e-12))
    square = graph.node("ReduceSum", graph.node("Mul", vector, vector), graph.constant([1], np.int64), keepdims=1)
    is_small = graph.node("Less", square, graph.constant(SMALL * SMALL))
    sine = graph.node("Sqrt", graph.node("Where", is_small, graph.constant(1.0), square))
    large = graph.node("Div", graph.node("Atan", graph.node("Div", sine, cosine)), sine)
    ratio = graph.node("Div", square, graph.node("Mul", cosine, cosine))
    small = graph.node("Sub", graph.constant(1.0), graph.node("Div", ratio, graph.constant(3.0)))
    small = graph.node("Div", small, cosine)
    factor = graph.node("Mul", sign, graph.node("Where", is_small, small, large))
    return graph.node("Mul", factor, vector)
