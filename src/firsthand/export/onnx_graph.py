"""Policy and observer as ONNX graphs, for any number of rows at once.

Policy: state and reference points in, command out. Observer: what it carries, the applied command and the measurement
in, what it carries on out; its state is the policy's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec, SelectedOutput, SerialChain
from firsthand_onboard.numpy_observer import Observer
from firsthand_onboard.observer import num_blocks, predicted_entries
from firsthand_onboard.policy import Layer

from ..errors import UserError, how_to_install
from .card import ModelCard
from .serial_tip import onnx_error, onnx_tip

OPSET = 17
CARRIED = ("clipped", "missing", "restarts")
"""Counters of an observer, besides its state."""


class _Graph:
    """Collects nodes and constants; every method returns the name of what it made."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise UserError(f"export to ONNX needs the package onnx: {how_to_install('export')}.") from None
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, kind: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def columns(self, tensor: str, begin: int, end: int, axis: int = 1) -> str:
        """Entries begin … end − 1 along an axis."""
        ends = (self.constant([v], np.int64) for v in (begin, end, axis))
        return self.node("Slice", tensor, *ends)

    def entries(self, tensor: str, indices: Sequence[int], axis: int = 1) -> str:
        """These entries along an axis."""
        return self.node("Gather", tensor, self.constant(indices, np.int64), axis=axis)

    def with_entries(self, tensor: str, width: int, indices: Sequence[int], values: str) -> str:
        """The columns of a tensor of this width, with others at these places."""
        chosen = list(range(width))
        for i, index in enumerate(indices):
            chosen[index] = width + i
        return self.entries(self.node("Concat", tensor, values, axis=1), chosen)

    def reshape(self, tensor: str, *shape: int) -> str:
        """0 keeps a dimension, −1 takes what is left."""
        return self.node("Reshape", tensor, self.constant(shape, np.int64))

    def normalise(self, tensor: str, center: Any, scale: Any) -> str:
        return self.node("Div", self.node("Sub", tensor, self.constant(center)), self.constant(scale))

    def is_missing(self, tensor: str) -> str:
        """Where it is not finite."""
        return self.node("Or", self.node("IsNaN", tensor), self.node("IsInf", tensor))

    def dense(self, values: str, layer: Layer) -> str:
        weight, bias = layer
        return self.node("Gemm", values, self.constant(np.asarray(weight).T), self.constant(bias))

    def tensor(self, name: str, kind: str, *shape: int) -> Any:
        """An input or output, with a row for each sample."""
        element = getattr(self.onnx.TensorProto, kind)
        return self.onnx.helper.make_tensor_value_info(name, element, ["batch", *shape])

    def model(self, name: str, inputs: list[Any], outputs: list[Any], card: ModelCard) -> bytes:
        """The serialized graph, with the card in its metadata."""
        helper, text = self.onnx.helper, "\n".join(card.lines())
        built = helper.make_graph(self.nodes, name, inputs, outputs, self.constants, doc_string=text)
        model = helper.make_model(built, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="firsthand")
        model.ir_version = 9  # read by runtimes that are some years old
        helper.set_model_props(model, {name: str(value) for name, value in card.as_dict().items()})
        self.onnx.checker.check_model(model)
        return model.SerializeToString()


def onnx_model(spec: ControlSpec, layers: Sequence[Layer], card: ModelCard) -> bytes:
    """The policy's serialized graph, with the card in its metadata."""
    layout, scales, graph = spec.layout, spec.scales, _Graph()
    points = 1 + len(spec.preview)
    middle, half = _command_range(spec)
    features = _robot_features(graph, spec)
    now = graph.columns("points", 0, 1)
    measured = graph.columns("state", 0, layout.num_measured)
    now = graph.reshape(now, 0, spec.num_outputs)
    error = onnx_error(graph, spec.kinematics, now, _output(graph, spec, measured))
    features.append(graph.node("Div", error, graph.constant(scales.error)))
    for p in range(1, points):
        later = graph.reshape(graph.columns("points", p, p + 1), 0, spec.num_outputs)
        motion = onnx_error(graph, spec.kinematics, later, now)
        features.append(graph.node("Div", motion, graph.constant(scales.preview)))
    values = graph.node("Concat", *features, axis=1)
    for layer in layers:
        values = graph.node("Tanh", graph.dense(values, layer))
    scaled = graph.node("Mul", values, graph.constant(half))
    graph.node("Add", scaled, graph.constant(middle), output="command")
    inputs = [graph.tensor("state", "FLOAT", layout.size), graph.tensor("points", "FLOAT", points, spec.num_outputs)]
    outputs = [graph.tensor("command", "FLOAT", layout.num_commands)]
    return graph.model(f"policy of {spec.robot}", inputs, outputs, card)


def observer_model(spec: ControlSpec, observer: Observer, card: ModelCard) -> bytes:
    """The observer's serialized graph: `firsthand_onboard.observer.observe`, and which measurements are lost."""
    graph, layout, settings, given = _Graph(), spec.layout, observer.settings, observer.parameters
    size, start, blocks = layout.num_measured, layout.command_start, num_blocks(spec)
    unit = np.asarray(spec.scales.change_scale, np.float32)
    limit = np.float32(settings.clip) * np.asarray(given.scale, np.float32)
    zero, one, longest = (graph.constant(value, np.int32) for value in (0, 1, settings.max_missing))

    state = _predict(graph, spec, observer)
    remembered = graph.columns(state, 0, start)
    expected = newest = graph.columns(state, 0, size)
    if layout.velocity:
        velocities = graph.entries(graph.reshape(remembered, 0, blocks, size), layout.velocity, axis=2)
        shown = graph.node("Mul", velocities, graph.constant(given.taps))
        shown = graph.node("ReduceSum", shown, graph.constant([1], np.int64), keepdims=0)
        expected = graph.with_entries(newest, size, layout.velocity, shown)
    is_missing = graph.is_missing("measured")
    is_here = graph.node("Not", is_missing)
    innovation = graph.node("Sub", graph.node("Where", is_missing, expected, "measured"), expected)
    trusted = graph.node("Max", innovation, graph.constant(-limit))
    trusted = graph.node("Div", graph.node("Min", trusted, graph.constant(limit)), graph.constant(unit))
    gain = np.asarray(given.gain, np.float32).reshape(blocks * size, size)
    correction = graph.node("MatMul", trusted, graph.constant(gain.T))
    correction = graph.node("Mul", correction, graph.constant(np.tile(unit, blocks)))
    corrected = graph.node("Add", remembered, correction)

    is_clipped = graph.node("Greater", graph.node("Abs", innovation), graph.constant(limit))
    above = graph.node("Add", graph.node("Max", "clipped", zero), one)
    below = graph.node("Sub", graph.node("Min", "clipped", zero), one)
    row = graph.node("Where", graph.node("Greater", innovation, graph.constant(0.0)), above, below)
    clipped = graph.node("Where", is_clipped, row, zero)
    clipped = graph.node("Where", is_here, clipped, "clipped")
    broken = graph.node("Cast", graph.is_missing(corrected), to=graph.onnx.TensorProto.FLOAT)
    broken = graph.node("ReduceMax", graph.reshape(broken, 0, blocks, size), axes=[1], keepdims=0)
    restart = graph.node(
        "Or", graph.node("Greater", broken, graph.constant(0.0)), graph.node("Greater", "missing", longest)
    )
    too_often = graph.node(
        "GreaterOrEqual", graph.node("Abs", clipped), graph.constant(settings.restart_after, np.int32)
    )
    restart = graph.node("And", is_here, graph.node("Or", restart, too_often))
    everywhere = graph.node("Concat", *[restart] * blocks, axis=1)
    repeated = graph.node("Concat", *["measured"] * blocks, axis=1)
    estimate = graph.node("Where", everywhere, repeated, corrected)

    graph.node("Concat", estimate, graph.columns(state, start, layout.size), axis=1, output="next_state")
    graph.node("Where", restart, zero, clipped, output="next_clipped")
    graph.node("Where", is_here, zero, graph.node("Add", "missing", one), output="next_missing")
    restarted = graph.node("Cast", restart, to=graph.onnx.TensorProto.INT32)
    graph.node("Add", "restarts", restarted, output="next_restarts")
    graph.node("Greater", "next_missing", longest, output="lost")
    inputs = [
        graph.tensor("state", "FLOAT", layout.size),
        *(graph.tensor(name, "INT32", size) for name in CARRIED),
        graph.tensor("command", "FLOAT", layout.num_commands),
        graph.tensor("measured", "FLOAT", size),
    ]
    outputs = [
        graph.tensor("next_state", "FLOAT", layout.size),
        *(graph.tensor(f"next_{name}", "INT32", size) for name in CARRIED),
        graph.tensor("lost", "BOOL", size),
    ]
    return graph.model(f"observer of {spec.robot}", inputs, outputs, card)


def _predict(graph: _Graph, spec: ControlSpec, observer: Observer) -> str:
    """The model's next state, from `state` and `command`."""
    layout, given, size = spec.layout, observer.parameters, spec.layout.num_measured
    values = graph.node(
        "Concat", *_robot_features(graph, spec), graph.normalise("command", *_command_range(spec)), axis=1
    )
    *hidden, last = given.layers
    for layer in hidden:
        values = graph.node("Tanh", graph.dense(values, layer))
    change = graph.node("Mul", graph.dense(values, last), graph.constant(given.change_scale))
    measured, entries = graph.columns("state", 0, size), predicted_entries(spec)
    newest = graph.with_entries(measured, size, entries, graph.node("Add", graph.entries(measured, entries), change))
    if layout.velocity:
        speeds = graph.node("Add", graph.entries(measured, layout.velocity), graph.entries(newest, layout.velocity))
        way = graph.node("Mul", speeds, graph.constant(0.5 * spec.period_s))
        reached = graph.node("Add", graph.entries(measured, layout.position), way)
        newest = graph.with_entries(newest, size, layout.position, reached)
    parts = [newest]
    if layout.measurement_memory:
        parts.append(graph.columns("state", 0, layout.command_start - size))
    parts.append("command")
    if layout.command_memory > 1:
        parts.append(graph.columns("state", layout.command_start, layout.size - layout.num_commands))
    return graph.node("Concat", *parts, axis=1)


def _command_range(spec: ControlSpec) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half range of the commands."""
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return (low + high) / 2, (high - low) / 2


def _robot_features(graph: _Graph, spec: ControlSpec) -> list[str]:
    """`state` with every entry of order one: what is measured, how it changed, and the command memory."""
    layout, scales = spec.layout, spec.scales
    measured = graph.columns("state", 0, layout.num_measured)
    features = [graph.normalise(measured, scales.measured_center, scales.measured_scale)]
    if layout.measurement_memory:
        earlier = graph.columns("state", layout.num_measured, layout.command_start)
        earlier = graph.reshape(earlier, 0, layout.measurement_memory, layout.num_measured)
        change = graph.node("Sub", graph.reshape(measured, 0, 1, layout.num_measured), earlier)
        change = graph.node("Div", change, graph.constant(scales.change_scale))
        features.append(graph.reshape(change, 0, layout.measurement_memory * layout.num_measured))
    commands = graph.columns("state", layout.command_start, layout.size)
    middle, half = (np.tile(part, layout.command_memory) for part in _command_range(spec))
    return [*features, graph.normalise(commands, middle, half)]


def _output(graph: _Graph, spec: ControlSpec, measured: str) -> str:
    """The tracked output `(batch, outputs)`."""
    chain = spec.kinematics
    if isinstance(chain, SelectedOutput):
        return graph.entries(measured, chain.indices)
    position = graph.entries(measured, spec.layout.position)
    if isinstance(chain, SerialChain):
        return onnx_tip(graph, chain, position)
    turns = np.asarray([joint.kind == "revolute" for joint in chain.joints], np.float32)
    # Column j of the matrix adds up the revolute joints from the base to joint j.
    angle = graph.node("MatMul", position, graph.constant(np.triu(np.ones((len(turns),) * 2)) * turns[:, None]))
    cos, sin = graph.node("Cos", angle), graph.node("Sin", angle)
    reach = graph.node("Mul", position, graph.constant(1 - turns))
    reach = graph.node("Add", reach, graph.constant([joint.along for joint in chain.joints]))
    across = graph.constant([joint.perpendicular for joint in chain.joints])
    axes = graph.constant([1], np.int64)
    coordinates = []
    for first, second, operator, base in ((cos, sin, "Add", chain.base[0]), (sin, cos, "Sub", -chain.base[1])):
        terms = graph.node(operator, graph.node("Mul", first, reach), graph.node("Mul", second, across))
        total = graph.node("ReduceSum", terms, axes, keepdims=1)
        coordinates.append(graph.node("Add", total, graph.constant([base])))
    coordinates[1] = graph.node("Neg", coordinates[1])
    return graph.node("Concat", *coordinates, axis=1)
