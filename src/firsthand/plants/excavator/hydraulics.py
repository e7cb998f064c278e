"""Valves and pump: what both fidelities share, and the flow-source pump."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from firsthand.plants.excavator.geometry import POSITION_HIGH, POSITION_LOW
from firsthand.plants.excavator.linkage import ARM_SIGNS
from firsthand.plants.excavator.parameters import (
    BAR,
    PERIOD_S,
    ExcavatorParameters,
    by_direction,
    sigmoid,
    stroke_factors,
)

MEMORY = 3
"""Past commands kept, enough for a dead time of three control periods."""
RELIEF_RAMP = 10 * BAR
"""The relief valve opens fully over this much pressure."""


def delayed_command(
    commands: Float[Array, "4 4"], start_s: float, end_s: float, p: ExcavatorParameters
) -> Float[Array, "4"]:
    """What the valves see between `start_s` and `end_s` of a control period, averaged.

    `commands[0]` is this period's, `commands[h]` that of h periods ago, which reaches the valves between
    dead_time - h T and dead_time - (h - 1) T.
    """
    dead = jnp.asarray(p.dead_time_s)
    total = jnp.zeros(4)
    for h in range(MEMORY + 1):
        first = dead - h * PERIOD_S if h < MEMORY else -jnp.inf
        last = dead - (h - 1) * PERIOD_S if h > 0 else jnp.inf
        share = jnp.clip(jnp.minimum(last, end_s) - jnp.maximum(first, start_s), 0.0) / (end_s - start_s)
        total = total + share * commands[h]
    return total


def advance_spool(spool: Float[Array, "4"], command: Float[Array, "4"], dt: float, p: ExcavatorParameters) -> Array:
    """First-order spool that opens with limited speed and closes fast.

    Away from its centre it moves like ds/dt = r tanh((u - s) / (r τ)), with r the slew rate and τ the time constant of
    opening; back to it with the time constant of closing. (u - s) s is positive when opening and negative when closing;
    the blend between the two is smooth, and at the centre (s = 0) counts as opening.
    """
    error = command - spool
    open_s, close_s = jnp.asarray(p.open_s), jnp.asarray(p.close_s)
    reach = by_direction(command > 0, p.slew_plus, p.slew_minus) * open_s
    opening = (1 - jnp.exp(-dt / open_s)) * reach * jnp.tanh(error / reach)
    closing = (1 - jnp.exp(-dt / close_s)) * error
    share = sigmoid((error * spool + 0.02) * 100.0)
    return spool + closing + (opening - closing) * share


def end_cushion(q: Float[Array, "4"], plus: Bool[Array, "4"], p: ExcavatorParameters) -> Float[Array, "4"]:
    """What is left of the flow, 0 to 1, toward an end stop: cylinders have cushions.

    `plus` is the direction of the command of each joint.
    """
    _, _, sign_plus, sign_minus = stroke_factors(p)
    signs = np.asarray(ARM_SIGNS)
    low, high = jnp.asarray(POSITION_LOW), jnp.asarray(POSITION_HIGH)
    room = jnp.where(by_direction(plus, sign_plus * signs, sign_minus * signs) > 0, high - q, q - low)
    return jnp.clip(room / jnp.asarray(p.cushion), 0.0, 1.0)


def valve_gain(spool: Float[Array, "4"], dead_band_factor: Array, p: ExcavatorParameters) -> Float[Array, "4"]:
    """Fraction of full flow, 0 to 1, that a spool position in [-1, 1] asks for, whatever its direction.

    With x the stroke beyond the dead band as a fraction of what is left, k the knee and c the saturation:
    g = (1 + k) x² / (x + k), which starts smoothly and is convex, then tanh(c g) / tanh(c).
    """
    plus = spool > 0
    k = by_direction(plus, p.knee_plus, p.knee_minus)
    c_plus, c_minus = jnp.asarray(p.saturation_plus), jnp.asarray(p.saturation_minus)
    c = by_direction(plus, c_plus, c_minus)
    full = by_direction(plus, 1 / jnp.tanh(c_plus), 1 / jnp.tanh(c_minus))
    dead = dead_band_factor * jnp.asarray(p.dead_band)
    x = jnp.maximum(jnp.abs(spool) - dead, 0.0) / (1 - dead)
    return jnp.tanh(c * (1 + k) * x * x / (x + k)) * full


def supply_pressure(
    demand: Float[Array, "4"],
    start: Float[Array, "4"],
    ramp: Float[Array, "4"],
    p: ExcavatorParameters,
    flow: Float[Array, ""] | float | None = None,
) -> Float[Array, ""]:
    """The pressure in Pa at which the consumers and the relief valve together take what the pump can give.

    That is `flow` in m³/s, by default all that the pump has.

    Consumer i takes demand_i · clip((s - start_i) / ramp_i, 0, 1) at supply pressure s: the lowest pressure is served
    first and the highest starves. A pump that has flow to spare could go up to relief, so that is what s says then.

    The sum is piecewise linear in s, so the root lies on the line between two neighbouring corners and is exact. Its
    derivative comes from one Newton step taken there (the implicit function theorem), not through the search.
    """
    pump_flow = p.pump_flow if flow is None else flow
    starts = jnp.append(start, p.relief)
    ramps = jnp.append(ramp, RELIEF_RAMP)
    demands = jnp.append(demand, pump_flow)

    def excess(s, demands, starts, ramps):
        return jnp.sum(demands * jnp.clip((s - starts) / ramps, 0.0, 1.0), -1) - pump_flow

    fixed = jax.lax.stop_gradient((demands, starts, ramps))
    corners = jnp.concatenate([fixed[1], fixed[1] + fixed[2]])
    values = excess(corners[:, None], *fixed)
    below = values <= 0
    low = jnp.max(jnp.where(below, corners, 0.0))
    high = jnp.min(jnp.where(below, p.relief + RELIEF_RAMP, corners))
    value_low = jnp.max(jnp.where(below, values, -pump_flow))
    value_high = jnp.min(jnp.where(below, jnp.inf, values))
    root = jax.lax.stop_gradient(low - value_low * (high - low) / (value_high - value_low))
    x = (root - fixed[1]) / fixed[2]
    slope = jnp.sum(jnp.where((x > 0) & (x < 1), fixed[0] / fixed[2], 0.0))
    # The slope is zero only where the pump is exactly used up; the floor keeps the derivative finite there.
    return root - excess(root, demands, starts, ramps) / jnp.maximum(slope, 1e-3 * pump_flow / p.relief)
