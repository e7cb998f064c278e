"""The load-sensing pump of the realistic excavator.

A line tells the pump the highest load pressure; the pump keeps a margin above it and swivels out as far as valves ask,
as its displacement allows, and as the engine's power allows:

    ṗ_LS = (max_i p_i - p_LS) / T_line                   over the open valves, p_i what valve i needs, less the margin
    Q* = min(Σ demand, Q_max n, P n / p)                 n is the engine's speed over its nominal one
    Q̇ = r tanh((Q* - Q) / (r T_pump))                    going out, r: full stroke in `stroke_s`
    Q̇ = (Q* - Q) / T_destroke                            coming back

The supply pressure is the one at which the valves take Q, and never more than p_LS plus the margin.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand.plants.excavator.effects import Effects, EffectSizes
from firsthand.plants.excavator.parameters import BAR, LITRE_PER_MINUTE, ExcavatorParameters

Scalar = Float[Array, ""]


class Pump(NamedTuple):
    """State of the pump and its line."""

    flow: Scalar
    """Its flow at the present displacement, l/min."""
    sensed: Scalar
    """Load pressure at the pump's end of the load-sensing line, bar."""


def pump_at_rest(p: ExcavatorParameters, sizes: EffectSizes) -> Pump:
    """Nothing is asked for."""
    return Pump(jnp.asarray(sizes.standby * p.pump_flow / LITRE_PER_MINUTE), jnp.asarray(0.0))


def advance_pump(
    pump: Pump,
    demand: Float[Array, "4"],
    needed: Float[Array, "4"],
    supply: Scalar,
    engine: Scalar,
    dt: float,
    p: ExcavatorParameters,
    effects: Effects,
    sizes: EffectSizes,
) -> Pump:
    """A short time `dt` later.

    `demand` is what the valves ask for (m³/s), `needed` the supply pressure at which each gets it, `supply` the present
    one (Pa), `engine` the engine's speed relative to the nominal one.
    """
    most = p.pump_flow * engine
    least = sizes.standby * p.pump_flow
    wanted = jnp.minimum(least + jnp.sum(demand), most) if effects.pump else most
    if effects.power:
        wanted = jnp.minimum(wanted, sizes.power * engine / jnp.maximum(supply, 10 * BAR))
    flow = pump.flow * LITRE_PER_MINUTE
    if effects.pump:
        reach = p.pump_flow / sizes.stroke_s * sizes.pump_s
        out = (1 - np.exp(-dt / sizes.pump_s)) * reach * jnp.tanh((wanted - flow) / reach)
        back = (1 - np.exp(-dt / sizes.destroke_s)) * (wanted - flow)
        flow = flow + jnp.where(wanted > flow, out, back)
    elif effects.power:
        flow = flow + (1 - np.exp(-dt / sizes.prompt_s)) * (wanted - flow)
    else:
        flow = wanted
    load = jnp.maximum(jnp.max(jnp.where(demand > 0, needed, 0.0)) - sizes.margin, 0.0) / BAR
    sensed = pump.sensed + (1 - np.exp(-dt / sizes.line_s)) * (load - pump.sensed)
    return Pump(flow / LITRE_PER_MINUTE, sensed if effects.pump else load)
