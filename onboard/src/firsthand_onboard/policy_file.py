"""The policy file: specification, weights and, where there is one, the observer, as one safetensors blob."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from .base_control import PREFIX as BASE_PREFIX
from .base_control import BaseControl, NumpyBase, base_arrays, base_from_arrays, check_base, has_base
from .numpy_observer import (
    PREFIX,
    NumpyController,
    NumpyObserver,
    Observer,
    check_observer,
    has_observer,
    observer_arrays,
    observer_digest,
    observer_from_arrays,
)
from .ordinary_files import read_ordinary
from .policy import Layer, NumpyPolicy, check_layers
from .signing import Signer
from .spec import ControlSpec, SpecError

MAX_FILE = 1 << 28
"""Bytes of a policy file; ours have some hundred thousand."""
OBSERVER_SHA256 = "observer_sha256"
"""The entry of the metadata with the observer's digest; only where there is an observer."""


def policy_to_bytes(
    spec: ControlSpec, layers: Sequence[Layer], observer: Observer | None = None, control: BaseControl | None = None
) -> bytes:
    """Specification, weights, observer and base as one safetensors blob; loading it runs nothing."""
    check_layers(spec, layers)
    tensors = {}
    for i, (weight, bias) in enumerate(layers):
        tensors[f"policy.{i}.weight"] = np.asarray(weight, dtype=np.float32)
        tensors[f"policy.{i}.bias"] = np.asarray(bias, dtype=np.float32)
    metadata = {"control_spec": spec.to_json()}
    if control is not None:
        check_base(spec, control.base)
        tensors.update({name: np.ascontiguousarray(array) for name, array in base_arrays(control).items()})
    if observer is not None:
        check_observer(spec, observer.parameters)
        named = {name: np.ascontiguousarray(array) for name, array in observer_arrays(observer).items()}
        metadata[OBSERVER_SHA256] = observer_digest(named)
        tensors.update(named)
    return save(tensors, metadata=metadata)


def load_controller(path: str | Path, signer: Signer | None = None) -> NumpyController:
    """Policy and observer in a file that `policy_to_bytes` made; the observer is None where it holds none.

    With a `signer` a file is refused that does not have its signature beside it (`firsthand export --sign KEY`).
    """
    spec, arrays, digest = _read(path, signer)
    layers = []
    for i in range(len(spec.policy.hidden) + 1):
        missing = {f"policy.{i}.weight", f"policy.{i}.bias"} - set(arrays)
        if missing:
            raise SpecError(f"{path} lacks the tensor {sorted(missing)[0]}")
        layers.append((arrays[f"policy.{i}.weight"], arrays[f"policy.{i}.bias"]))
    base = NumpyBase(spec, base_from_arrays(spec, arrays)) if has_base(arrays) else None
    policy = NumpyPolicy(spec, layers, base)
    if digest is None and not has_observer(arrays):
        return NumpyController(policy)
    if observer_digest(arrays) != digest:
        raise SpecError(f"the observer in {path} is damaged: it does not have the SHA-256 that the file names")
    return NumpyController(policy, NumpyObserver(spec, *observer_from_arrays(spec, arrays)))


def load_policy(path: str | Path) -> NumpyPolicy:
    """The policy alone; `SpecError` says what is wrong with a file that `policy_to_bytes` did not make.

    One that was trained on an observer's estimate expects it: use `load_controller`.
    """
    return load_controller(path).policy


def load_observer(path: str | Path) -> NumpyObserver:
    """The observer in a policy file; `SpecError` for a policy that was exported without one."""
    observer = load_controller(path).observer
    if observer is None:
        raise SpecError(f"{path} holds a policy that was exported without an observer")
    return observer


def _read(path: str | Path, signer: Signer | None) -> tuple[ControlSpec, dict[str, Any], str | None]:
    """The file is read once, so the signature was checked for exactly what is loaded."""
    try:
        data = read_ordinary(path, MAX_FILE)
    except OSError as error:
        raise SpecError(f"{path} cannot be read as a policy: {error}") from None
    if signer is not None:
        signer.check(path, data)
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])  # its length comes first
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:  # numpy lacks types
        raise SpecError(f"{path} cannot be read as a policy: {error}") from None
    metadata = header.get("__metadata__") or {}
    if "control_spec" not in metadata:
        raise SpecError(f"{path} holds no control specification")
    spec = ControlSpec.from_json(metadata["control_spec"])
    wanted = ("policy.", PREFIX, BASE_PREFIX)
    arrays = {name: array for name, array in tensors.items() if name.startswith(wanted)}
    return spec, arrays, metadata.get(OBSERVER_SHA256)
