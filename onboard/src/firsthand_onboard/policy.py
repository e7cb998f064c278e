"""The policy: observation → two hidden layers → command. One forward pass for numpy, JAX and every export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .arrays import constant, namespace
from .features import observation
from .spec import ControlSpec, SpecError

Layer = tuple[Any, Any]
"""Weight `(out, in)` and bias `(out,)` of one layer."""


def network_output(layers: Sequence[Layer], features: Any) -> Any:
    """The network before its last tanh: tanh hidden layers, then a linear one."""
    xp = namespace(features)
    for weight, bias in layers[:-1]:
        features = xp.tanh(weight @ features + bias)
    weight, bias = layers[-1]
    return weight @ features + bias


def command_of(spec: ControlSpec, layers: Sequence[Layer], features: Any) -> Any:
    """The command for an observation, inside the command limits: middle + half range · tanh(network)."""
    low, high = constant(spec.limits.command_low, features), constant(spec.limits.command_high, features)
    return (low + high) / 2 + (high - low) / 2 * namespace(features).tanh(network_output(layers, features))


def policy_command(spec: ControlSpec, layers: Sequence[Layer], state: Any, preview: Any) -> Any:
    """π(x, r): the command in state `state` with the reference preview `preview` (see `features.observation`)."""
    return command_of(spec, layers, observation(spec, state, preview))


def expected_shapes(spec: ControlSpec) -> list[tuple[tuple[int, int], tuple[int]]]:
    """The shapes of weight and bias per layer that the specification asks for."""
    sizes = (spec.observation_size, *spec.policy.hidden, spec.layout.num_commands)
    return [((sizes[i + 1], sizes[i]), (sizes[i + 1],)) for i in range(len(sizes) - 1)]


def check_layers(spec: ControlSpec, layers: Sequence[Layer]) -> None:
    """Raise `SpecError` unless the layers have the specification's shapes and are finite."""
    expected = expected_shapes(spec)
    if len(layers) != len(expected):
        raise SpecError(f"the policy has {len(layers)} layers, but the specification asks for {len(expected)}")
    for i, ((weight, bias), (weight_shape, bias_shape)) in enumerate(zip(layers, expected)):  # noqa: B905
        for name, array, shape in (("weight", weight, weight_shape), ("bias", bias, bias_shape)):
            if tuple(array.shape) != shape:
                raise SpecError(f"policy.{i}.{name} has shape {tuple(array.shape)}, but must have {shape}")
            with np.errstate(over="ignore"):
                single = np.asarray(array).astype(np.float32)
            if not np.all(np.isfinite(single)):
                raise SpecError(f"policy.{i}.{name} holds a value that is not finite in single precision")


class NumpyPolicy:
    """The policy as the robot runs it: numpy float32, no allocation beyond the forward pass."""

    def __init__(self, spec: ControlSpec, layers: Sequence[Layer]) -> None:
        check_layers(spec, layers)
        self.spec = spec
        self.layers = [
            (np.ascontiguousarray(w, dtype=np.float32), np.ascontiguousarray(b, dtype=np.float32)) for w, b in layers
        ]

    def __call__(self, state: np.ndarray, preview: np.ndarray) -> np.ndarray:
        """π(x, r) in float32."""
        return policy_command(
            self.spec, self.layers, np.asarray(state, dtype=np.float32), np.asarray(preview, dtype=np.float32)
        )


def policy_to_bytes(spec: ControlSpec, layers: Sequence[Layer]) -> bytes:
    """Specification and weights as one safetensors blob; loading it runs nothing."""
    check_layers(spec, layers)
    tensors = {}
    for i, (weight, bias) in enumerate(layers):
        tensors[f"policy.{i}.weight"] = np.asarray(weight, dtype=np.float32)
        tensors[f"policy.{i}.bias"] = np.asarray(bias, dtype=np.float32)
    return save(tensors, metadata={"control_spec": spec.to_json()})


def load_policy(path: str | Path) -> NumpyPolicy:
    """The policy in a file that `policy_to_bytes` made; `SpecError` says what is wrong with any other file."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            text = (file.metadata() or {}).get("control_spec")
            if text is None:
                raise SpecError(f"{path} holds no control specification")
            spec = ControlSpec.from_json(text)
            names = set(file.keys())
            layers = []
            for i in range(len(spec.policy.hidden) + 1):
                missing = {f"policy.{i}.weight", f"policy.{i}.bias"} - names
                if missing:
                    raise SpecError(f"{path} lacks the tensor {sorted(missing)[0]}")
                layers.append((file.get_tensor(f"policy.{i}.weight"), file.get_tensor(f"policy.{i}.bias")))
    except (OSError, SafetensorError) as error:
        raise SpecError(f"{path} cannot be read as a policy: {error}") from None
    return NumpyPolicy(spec, layers)
