"""A 6-joint arm under gravity, in MuJoCo: `servos` takes joint speeds, `torques` takes torques and falls without them.

firsthand train arm.py:torques
"""

from typing import Any

import gymnasium
import mujoco
import numpy as np

import firsthand as fh

_mujoco: Any = mujoco  # its members are compiled, and unknown to type checkers
PERIOD_S = 0.02
RANGE = np.array([2.0, 1.2, 1.5, 1.5, 1.5, 2.0])
"""Limits per joint, rad, to either side of `HOME`."""
HOME = np.array([0.0, 0.6, 1.2, 0.3, 0.0, 0.0])
TORQUE = np.array([60.0, 120.0, 60.0, 20.0, 10.0, 5.0])
"""Nm; holding the arm stretched out takes 70 Nm at the second joint."""
SPEED = 1.5
"""rad/s, of the servos."""
STIFFNESS = 30.0
"""Of the servos' speed loops, 1/(rad/s): gravity makes the joints creep by up to a degree per second."""
TIMESTEP_S = {"servos": 0.0005, "torques": 0.004}
"""Of the simulation. A speed loop at its force limit is integrated explicitly: with 4 ms it overshot by several times
the commanded speed, and chattered."""

_LINKS = (  # axis, offset to the joint, length along z, mass
    ("0 0 1", 0.0, 0.20, 4.0),
    ("0 1 0", 0.20, 0.40, 5.0),
    ("0 1 0", 0.40, 0.35, 3.0),
    ("0 1 0", 0.35, 0.10, 1.2),
    ("0 0 1", 0.10, 0.10, 0.8),
    ("0 1 0", 0.10, 0.10, 0.5),
)


def _model(kind: str) -> str:
    bodies, ends = "", ""
    for i, (axis, offset, length, mass) in enumerate(_LINKS):
        bodies += (
            f'<body pos="0 0 {offset}"><joint name="j{i}" type="hinge" axis="{axis}" damping="0.5" armature="0.1"/>'
            f'<geom type="capsule" fromto="0 0 0 0 0 {length}" size="0.03" mass="{mass}" contype="0" conaffinity="0"/>'
        )
        ends += "</body>"
    servo = ('<velocity joint="j{i}" kv="{kv}" forcerange="-{most} {most}"/>', '<motor joint="j{i}"/>')[
        kind == "torques"
    ]
    actuators = "".join(servo.format(i=i, kv=STIFFNESS * TORQUE[i], most=2.5 * TORQUE[i]) for i in range(6))
    return (
        f'<mujoco><option timestep="{TIMESTEP_S[kind]}" integrator="implicitfast"/>'
        f"<worldbody>{bodies}{ends}</worldbody><actuator>{actuators}</actuator></mujoco>"
    )


class Arm(gymnasium.Env):
    """Measures joint angles and speeds; starts at rest near home."""

    dt = PERIOD_S

    def __init__(self, kind: str) -> None:
        self.model = _mujoco.MjModel.from_xml_string(_model(kind))
        self.data = _mujoco.MjData(self.model)
        most = TORQUE if kind == "torques" else np.full(6, SPEED)
        self.action_space = gymnasium.spaces.Box(-most.astype(np.float32), most.astype(np.float32))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (12,))

    def reset(self, *, seed=None, options=None):
        """At home, with up to a degree of play."""
        super().reset(seed=seed)
        _mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = HOME + self.np_random.uniform(-0.02, 0.02, 6)
        return self._observe(), {}

    def step(self, action):
        """One control period."""
        self.data.ctrl[:] = action
        _mujoco.mj_step(self.model, self.data, nstep=round(PERIOD_S / self.model.opt.timestep))
        return self._observe(), 0.0, False, False, {}

    def place(self, position):
        """Stand still at these angles."""
        self.data.qpos[:], self.data.qvel[:] = position, 0.0
        return self._observe()

    def _observe(self):
        return np.concatenate([self.data.qpos, self.data.qvel]).astype(np.float32)


def _task(kind: str) -> fh.GymnasiumTask:
    return fh.GymnasiumTask(
        name=f"arm-{kind}",
        env=lambda: Arm(kind),
        positions=range(6),
        velocities=range(6, 12),
        position_low=tuple(HOME - RANGE),
        position_high=tuple(HOME + RANGE),
        rate=0.8,
        unit="rad",
        place=lambda env, position: env.unwrapped.place(position),
    )


servos, torques = _task("servos"), _task("torques")
