"""The PD controller of the real excavator's log, as a base: a gain, and a jump over the dead band of the valves.

firsthand train real-excavator --base examples/real_excavator_pd.py:controller --base-mode target
"""

import jax.numpy as jnp

# A positive command moves boom, arm and bucket to smaller angles, swing to larger ones.
SIGN = jnp.asarray([-1.0, -1.0, -1.0, 1.0])


def controller(measurement, reference, state):
    """From the measured joint angles and the wanted ones to valve commands; nothing is remembered."""
    error = reference - measurement[:4]
    return jnp.clip(SIGN * (4.0 * error + 0.3 * jnp.tanh(error / 0.01)), -1.0, 1.0), state
