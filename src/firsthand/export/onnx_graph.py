"""A policy as an ONNX graph: state and reference points in, command out, for any number of rows at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec, PlanarChain
from firsthand_onboard.policy import Layer

from ..errors import UserError
from .card import ModelCard

OPSET = 17


class _Graph:
    """Collects nodes and constants; every method returns the name of what it made."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self.helper, self.numpy_helper = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any, kind: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def columns(self, tensor: str, begin: int, end: int, axis: int = 1) -> str:
        """Entries begin … end − 1 along an axis."""
        ends = (self.constant([v], np.int64) for v in (begin, end, axis))
        return self.node("Slice", tensor, *ends)

    def shaped(self, tensor: str, *shape: int) -> str:
        """0 keeps a dimension, −1 takes what is left."""
        return self.node("Reshape", tensor, self.constant(shape, np.int64))


def onnx_model(spec: ControlSpec, layers: Sequence[Layer], card: ModelCard) -> bytes:
    """The serialized graph, with the card in its metadata."""
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise UserError("export to ONNX needs the package onnx: pip install 'firsthand[export]'.") from None
    layout, scales, graph = spec.layout, spec.scales, _Graph(helper, numpy_helper)
    points = 1 + len(spec.preview)
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    middle, half = (low + high) / 2, (high - low) / 2

    def normalised(tensor: str, center: Any, scale: Any) -> str:
        return graph.node("Div", graph.node("Sub", tensor, graph.constant(center)), graph.constant(scale))

    measured = graph.columns("state", 0, layout.num_measured)
    features = [normalised(measured, scales.measured_center, scales.measured_scale)]
    if layout.measurement_memory:
        earlier = graph.columns("state", layout.num_measured, layout.command_start)
        earlier = graph.shaped(earlier, 0, layout.measurement_memory, layout.num_measured)
        change = graph.node("Sub", graph.shaped(measured, 0, 1, layout.num_measured), earlier)
        change = graph.node("Div", change, graph.constant(scales.change_scale))
        features.append(graph.shaped(change, 0, layout.measurement_memory * layout.num_measured))
    commands = graph.columns("state", layout.command_start, layout.size)
    times = layout.command_memory
    features.append(normalised(commands, np.tile(middle, times), np.tile(half, times)))
    now = graph.columns("points", 0, 1)
    error = graph.node("Sub", graph.shaped(now, 0, spec.num_outputs), _output(graph, spec, measured))
    features.append(graph.node("Div", error, graph.constant(scales.error)))
    motion = graph.node("Sub", graph.columns("points", 1, points), now)
    motion = graph.node("Div", motion, graph.constant(scales.preview))
    features.append(graph.shaped(motion, 0, (points - 1) * spec.num_outputs))
    values = graph.node("Concat", *features, axis=1)
    for weight, bias in layers:
        weight_name, bias_name = graph.constant(np.asarray(weight).T), graph.constant(bias)
        values = graph.node("Tanh", graph.node("Gemm", values, weight_name, bias_name))
    scaled = graph.node("Mul", values, graph.constant(half))
    graph.node("Add", scaled, graph.constant(middle), output="command")

    def tensor(name: str, *shape: int | str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])

    built = helper.make_graph(
        graph.nodes,
        f"policy of {spec.robot}",
        [tensor("state", layout.size), tensor("points", points, spec.num_outputs)],
        [tensor("command", layout.num_commands)],
        graph.constants,
        doc_string="\n".join(card.lines()),
    )
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="firsthand")
    model.ir_version = 9  # read by runtimes that are some years old
    helper.set_model_props(model, {name: str(value) for name, value in card.as_dict().items()})
    checker.check_model(model)
    return model.SerializeToString()


def _output(graph: _Graph, spec: ControlSpec, measured: str) -> str:
    """The tracked output `(batch, outputs)`."""
    chain = spec.kinematics
    if not isinstance(chain, PlanarChain):
        return graph.node("Gather", measured, graph.constant(chain.indices, np.int64), axis=1)
    position = graph.node("Gather", measured, graph.constant(spec.layout.position, np.int64), axis=1)
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
