"""The planar chain of the M545 arm: lengths, joint ranges and where each body's mass sits.

x points forward, z up. A positive joint angle turns a link *down*, so a vector (along, perpendicular) in a link at
absolute angle `a` is, in the plane, (cos a · along + sin a · perp, -sin a · along + cos a · perp).

Facts are marked (S) read in a public source, (M) measured on a public network model of the arm, (E) our estimate.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

GRAVITY = 9.81

JOINTS = ("boom", "dipper", "telescope", "pitch")
POSITION_LOW = (-1.34, 0.58, 0.0, -0.35)
"""Lower end stops: rad, rad, m, rad (S)."""
POSITION_HIGH = (0.44, 2.78, 1.8, 2.28)
"""Upper end stops: rad, rad, m, rad (S)."""
REFERENCE_POSE = (-0.85, 1.2, 0.6, 0.8)
"""The pose at which the joint velocities were measured (M)."""
REFERENCE_TIP = (5.799, 0.856)
"""Where the shovel tip is in the reference pose, m (S)."""

BOOM_PIVOT = (0.703, 0.549)
"""(x, z) from the cabin's origin, m (S)."""
BOOM_LENGTH = 2.84
"""Boom pivot to dipper pivot, m (S)."""
DIPPER_ALONG = 2.027
"""Dipper pivot to pitch pivot along the dipper with the telescope in, m (S)."""
DIPPER_PERPENDICULAR = 0.369
"""The same across the dipper, m (S)."""
TIP_ALONG = 1.418
"""Pitch pivot to shovel tip, m (S)."""
TIP_PERPENDICULAR = 0.053
"""The same across the tool, m (S)."""

WORKSPACE_X = (3.5, 6.5)
WORKSPACE_Z = (0.5, 5.0)
"""The box in which references are drawn and the large payload must be lifted, m."""


class Body(NamedTuple):
    """A point mass with a rotary inertia, fixed to one link.

    The masses are facts (S); where a centre of mass sits, and the inertia about it (mass · length² / 12 of a body of
    plausible length), are estimates (E).
    """

    name: str
    mass: float
    """kg."""
    link: str
    """"boom", "dipper", "telescope" (turns with the dipper, slides with the telescope) or "tool"."""
    along: float
    """m from the link's pivot; for the telescope from the dipper pivot, at zero extension."""
    perpendicular: float
    """m, upward when the link points forward."""
    inertia: float
    """kg m² about the centre of mass."""


BODIES = (
    Body("boom", 953.0, "boom", 1.35, 0.20, 640.0),
    Body("dipper", 689.0, "dipper", 0.65, 0.22, 230.0),
    Body("telescope", 167.0, "telescope", 1.05, 0.369, 47.0),
    Body("roto base", 205.0, "telescope", 2.027, 0.369, 5.0),
    Body("roto", 119.0, "tool", 0.20, 0.0, 2.0),
    Body("tool mount", 75.0, "tool", 0.42, 0.0, 1.0),
    Body("shovel", 763.0, "tool", 0.85, 0.0, 65.0),
)
PAYLOAD_ALONG = 0.95
"""m along the tool from the pitch pivot to the payload's centre (E)."""
PAYLOAD_PERPENDICULAR = 0.05
"""m (E)."""


def forward_kinematics(q: Float[Array, "4"]) -> Float[Array, "2"]:
    """The shovel tip (x, z) in metres."""
    boom, dipper, telescope, pitch = q[0], q[1], q[2], q[3]
    a1, a2, a3 = boom, boom + dipper, boom + dipper + pitch
    along = DIPPER_ALONG + telescope
    x = (
        BOOM_PIVOT[0]
        + BOOM_LENGTH * jnp.cos(a1)
        + along * jnp.cos(a2)
        + DIPPER_PERPENDICULAR * jnp.sin(a2)
        + TIP_ALONG * jnp.cos(a3)
        + TIP_PERPENDICULAR * jnp.sin(a3)
    )
    z = (
        BOOM_PIVOT[1]
        - BOOM_LENGTH * jnp.sin(a1)
        - along * jnp.sin(a2)
        + DIPPER_PERPENDICULAR * jnp.cos(a2)
        - TIP_ALONG * jnp.sin(a3)
        + TIP_PERPENDICULAR * jnp.cos(a3)
    )
    return jnp.stack([x, z])


def _sum(link: str, *factors: str) -> float:
    """Σ over the bodies of a link of mass · product of the named body fields."""
    return float(sum(np.prod([b.mass] + [getattr(b, f) for f in factors]) for b in BODIES if b.link == link))


class LinkSums(NamedTuple):
    """Mass moments of the links, summed once: all that gravity and the mass matrix need to know about the bodies.

    Each is a mass (kg), a first moment (kg m) or a second moment about the link's pivot (kg m²).
    """

    boom_along: float
    boom_perp: float
    boom_second: float
    dipper_mass: float
    dipper_along: float
    dipper_perp: float
    dipper_second: float
    slide_mass: float
    slide_along: float
    slide_perp: float
    slide_second: float
    tool_mass: float
    tool_along: float
    tool_perp: float
    tool_second: float


def _link_sums() -> LinkSums:
    values = {}
    for link, name in (("boom", "boom"), ("dipper", "dipper"), ("telescope", "slide"), ("tool", "tool")):
        values[f"{name}_mass"] = _sum(link)
        values[f"{name}_along"] = _sum(link, "along")
        values[f"{name}_perp"] = _sum(link, "perpendicular")
        own = sum(b.inertia for b in BODIES if b.link == link)
        values[f"{name}_second"] = own + _sum(link, "along", "along") + _sum(link, "perpendicular", "perpendicular")
    return LinkSums(**{field: values[field] for field in LinkSums._fields})


LINK_SUMS = _link_sums()
