"""From measured positions to the tracked output, and back to a configuration. Pure functions against the array API."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import namespace
from .serial_chain import SerialChain, serial_after, serial_error, serial_jacobian, serial_output, serial_points
from .spec import CHAINS, Chain, ControlSpec, Kinematics, PlanarChain, SpecError


def chain_points(chain: Chain, position: Any) -> Any:
    """Where the ends of the links are: `(…, points, 2 or 3)`, the base first, the tip last.

    In a planar chain, a vector (along, perpendicular) in a link at absolute angle a is
    (cos a · along + sin a · perp, −sin a · along + cos a · perp): a positive angle turns the link down.
    """
    if isinstance(chain, SerialChain):
        return serial_points(chain, position)
    xp = namespace(position)
    x = xp.full_like(position[..., 0], chain.base[0])
    z = xp.full_like(position[..., 0], chain.base[1])
    angle = xp.zeros_like(position[..., 0])
    xs, zs = [x], [z]
    for i, joint in enumerate(chain.joints):
        along = joint.along
        if joint.kind == "revolute":
            angle = angle + position[..., i]
        else:
            along = along + position[..., i]
        cos, sin = xp.cos(angle), xp.sin(angle)
        x = x + cos * along + sin * joint.perpendicular
        z = z - sin * along + cos * joint.perpendicular
        xs.append(x)
        zs.append(z)
    return xp.stack([xp.stack(xs, axis=-1), xp.stack(zs, axis=-1)], axis=-1)


def output_of_positions(kinematics: Kinematics, position: Any) -> Any:
    """The tracked output `(…, outputs)` at joint positions `(…, positions)`; only a chain has one."""
    if isinstance(kinematics, SerialChain):
        return serial_output(kinematics, position)
    if not isinstance(kinematics, PlanarChain):
        raise SpecError("reference.space is 'position', but this robot's tracked output is measured, not computed")
    return chain_points(kinematics, position)[..., -1, :]


def tracked_output(spec: ControlSpec, measured: Any) -> Any:
    """The tracked output `(…, outputs)` at a measurement `(…, measured)`."""
    xp = namespace(measured)
    if isinstance(spec.kinematics, CHAINS):
        position = xp.stack([measured[..., i] for i in spec.layout.position], axis=-1)
        return output_of_positions(spec.kinematics, position)
    return xp.stack([measured[..., i] for i in spec.kinematics.indices], axis=-1)


def output_error(spec: ControlSpec, wanted: Any, found: Any) -> Any:
    """From the tracked output `found` to the one `wanted`, `(…, outputs)`.

    The difference; for an orientation, the rotation vector from the one to the other (see `SerialChain`).
    """
    if isinstance(spec.kinematics, SerialChain):
        return serial_error(spec.kinematics, wanted, found)
    return wanted - found


def output_after(spec: ControlSpec, found: Any, error: Any) -> Any:
    """The tracked output that an error, as of `output_error`, leads to from `found`."""
    if isinstance(spec.kinematics, SerialChain):
        return serial_after(spec.kinematics, found, error)
    return found + error


def tip_jacobian(chain: PlanarChain, position: Any) -> Any:
    """∂tip/∂position, `(2, joints)`, of one configuration, exactly."""
    xp, points, angle = namespace(position), chain_points(chain, position), 0.0
    columns = []
    for i, joint in enumerate(chain.joints):
        if joint.kind == "revolute":
            angle = angle + position[i]
            arm = points[-1] - points[i]
            columns.append(xp.stack([arm[1], -arm[0]]))
        else:
            turned = position[i] * 0.0 + angle
            columns.append(xp.stack([xp.cos(turned), -xp.sin(turned)]))
    return xp.stack(columns, axis=-1)


def chain_jacobian(chain: Chain, position: np.ndarray) -> np.ndarray:
    """∂output/∂position, `(outputs, joints)`, in numpy; used off the control path.

    By central differences for a planar chain.
    """
    if isinstance(chain, SerialChain):
        return serial_jacobian(chain, position)
    step = 1e-6
    shifted = position + step * np.concatenate([np.eye(len(position)), -np.eye(len(position))])
    tips = chain_points(chain, shifted)[:, -1, :]
    n = len(position)
    return (tips[:n] - tips[n:]).T / (2 * step)


def _towards(jacobian: np.ndarray, residual: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    """argmin |z + Δ| over Δ subject to J Δ = residual, and to no coordinate at ±1 being pushed further out.

    Coordinates that would be are held one after the other, the one pushed hardest first.
    """
    held = np.zeros(len(scaled), bool)
    while True:
        free = ~held
        update = np.zeros_like(scaled)
        inverse = np.linalg.pinv(jacobian[:, free], rcond=1e-4)
        update[free] = inverse @ (residual + jacobian[:, free] @ scaled[free]) - scaled[free]
        outward = np.where((np.abs(scaled) >= 1.0) & free, update * np.sign(scaled), 0.0)
        if outward.max() <= 0 or free.sum() <= len(residual):
            return update
        held[np.argmax(outward)] = True


def nearest_configuration(
    chain: Chain,
    point: Any,
    *,
    low: Any,
    high: Any,
    iterations: int = 500,
    tolerance: float = 1e-9,
) -> np.ndarray:
    """The joint positions that put the tip at `point`, nearest to the middle of the joint ranges.

    Minimises Σ((q − middle)/(half range))² subject to tip(q) = point: Newton on the constraint with the weighted
    pseudo-inverse, and a projected pull towards the middle in its null space. `SpecError` when the point is out of
    reach inside the limits.
    """
    point, low, high = (np.asarray(a, dtype=np.float64) for a in (point, low, high))
    middle, half = (low + high) / 2, (high - low) / 2
    scaled = np.zeros(len(middle))  # z = (q − middle)/half: the cost is |z|²
    for _ in range(iterations):
        position = middle + half * scaled
        jacobian = chain_jacobian(chain, position) * half
        residual = point - output_of_positions(chain, position)
        update = _towards(jacobian, residual, scaled)
        length = float(np.linalg.norm(update))
        scaled = np.clip(scaled + update * min(1.0, 0.3 / max(length, 1e-12)), -1.0, 1.0)
        if length < tolerance:
            break
    position = middle + half * scaled
    miss = float(np.linalg.norm(point - output_of_positions(chain, position)))
    if not miss < 1e-5:
        raise SpecError(
            f"the point {tuple(point)} is out of reach inside the joint limits: the tip misses it by {miss:.3f} m"
        )
    return position
