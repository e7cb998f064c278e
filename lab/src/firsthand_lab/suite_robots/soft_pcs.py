"""A planar soft arm of another code base: soromox's piecewise-constant strains, two bellows-driven segments, hanging.

firsthand train soft_pcs.py:task        (needs: pip install -c constraints.txt -e 'lab[soft-robots]')
"""

import functools
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import firsthand as fh
from firsthand.errors import UserError

LENGTH_M, RADIUS_M = 0.15, 0.02
TORQUE = 0.25
"""Largest bending moment of a segment's bellows, N m."""
LAG_S = 0.08
"""Of the pressure behind a command."""
PARTS = 8
"""Steps of integration per control period."""
BEND = 6.0
"""Curvature of goals, 1/m."""


def make_arm():
    """The model: two segments that bend, of foamed silicone, hanging down."""
    try:
        from soromox.systems.components.links import LinkSpec
        from soromox.systems.pcs.planar_pcs import PlanarPCS
        from soromox.systems.pcs.structures import PlanarPCSStructure
    except ImportError:
        raise UserError(
            "the robot soft-pcs needs soromox: pip install -c constraints.txt -e 'lab[soft-robots]'."
        ) from None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for float64, which JAX does not have by default
        link = LinkSpec.circular(
            length=LENGTH_M,
            density=500.0,
            radius=RADIUS_M,
            young_modulus=1.2e5,
            poisson_ratio=0.45,
            material_damping_coefficient=1500.0,
            reference_strain=[0.0, 1.0, 0.0],
        )
        return PlanarPCS.from_links(
            [link, link],
            structure=PlanarPCSStructure(strain_selector=jnp.asarray([True, False, False] * 2)),
            gravity=jnp.asarray([0.0, -9.81]),
            base_pose=jnp.asarray([-np.pi / 2, 0.0, 0.0]),
        )


class SoftArm(gymnasium.Env):
    """Measures where both segments end, (x, y) in metres, as a camera would; a command is a bending moment each."""

    dt = 0.05

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(-TORQUE, TORQUE, (2,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        self._advance, self._ends = _compiled()

    def reset(self, *, seed=None, options=None):
        """Hanging, at rest."""
        super().reset(seed=seed)
        self.state = np.zeros(6, np.float32)  # curvatures, their rates, pressures
        return self._observe(), {}

    def step(self, action):
        """One control period."""
        self.state = np.asarray(self._advance(self.state, np.asarray(action, np.float32)))
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        return np.asarray(self._ends(self.state[:2]))


@functools.cache
def _compiled():
    """What is made and compiled once, for all environments: the step, and the ends of the segments."""
    arm, step = make_arm(), SoftArm.dt / PARTS

    def rate(state, action):
        moved = arm.forward_dynamics(jnp.zeros(()), state[:4], (LENGTH_M * state[4:],))
        return jnp.concatenate([moved, (action - state[4:]) / LAG_S])

    def runge_kutta(state, action):
        a = rate(state, action)
        b = rate(state + step / 2 * a, action)
        c = rate(state + step / 2 * b, action)
        d = rate(state + step * c, action)
        return state + step / 6 * (a + 2 * b + 2 * c + d)

    @jax.jit
    def advance(state, action):
        return jax.lax.fori_loop(0, PARTS, lambda _, s: runge_kutta(s, action), state)

    @jax.jit
    def ends(curvatures):
        return arm.forward_kinematics_tips(curvatures)[:, 1:].reshape(-1)

    return advance, ends


def goals(rng, measured, count):
    """Tips of arms that are bent at random: the whole box of positions cannot be reached."""
    ends = _compiled()[1]
    return np.stack([np.asarray(ends(rng.uniform(-BEND, BEND, 2).astype(np.float32)))[2:] for _ in range(count)])


task = fh.GymnasiumTask(
    name="soft-pcs",
    env=SoftArm,
    positions=range(4),
    tracked=(2, 3),
    position_low=(-0.16, -0.16, -0.31, -0.31),
    position_high=(0.16, 0.02, 0.31, 0.16),
    rate=0.3,
    measurement_memory=2,
    sensors=fh.Sensors(noise=2e-4),
    goals=goals,
    stop_at_limits=False,
)
