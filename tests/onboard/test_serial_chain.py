"""Chains in space: against MuJoCo's own kinematics, against JAX, and as data."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from firsthand.tasks.excavator import CHAIN, JOINT_HIGH, JOINT_LOW
from firsthand_onboard import (
    ArmModel,
    ChainJoint,
    ControlSpec,
    Limits,
    NumpyPolicy,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SerialChain,
    SpecError,
    StateLayout,
)
from firsthand_onboard.features import observation
from firsthand_onboard.kinematics import (
    chain_jacobian,
    chain_points,
    nearest_configuration,
    output_after,
    output_error,
    output_of_positions,
    tracked_output,
)
from firsthand_onboard.policy import expected_shapes, policy_command
from firsthand_onboard.rotations import multiply, quaternion_of_vector, rotation_matrix

ROOT = Path(__file__).parents[2]
SIX = ROOT / "examples" / "arms" / "six_joint.urdf"
SEVEN = Path(__file__).parent / "arms" / "seven_joint.urdf"
RAIL = Path(__file__).parent / "arms" / "rail_arm.xml"
LEVER = 0.2


def read(path: Path, **options) -> ArmModel:
    if path.suffix == ".urdf":
        return ArmModel.from_urdf(path, tip="tool0", **options)
    return ArmModel.from_mjcf(path, tip="tcp", **options)


def arm_spec(chain: SerialChain) -> ControlSpec:
    """A specification with this chain, for policies."""
    joints = len(chain.joints)
    return ControlSpec(
        robot="arm",
        period_s=0.05,
        layout=StateLayout(
            measured=(*(f"q{i}" for i in range(joints)), "load"),
            position=tuple(range(joints)),
            velocity=(),
            commands=("u",),
            command_memory=1,
        ),
        kinematics=chain,
        preview=(2, 4),
        scales=Scales((0.0,) * (joints + 1), (1.0,) * (joints + 1), (0.1,) * (joints + 1), 0.3, 0.5),
        limits=Limits((-1.0,), (1.0,), (-2.0,) * joints, (2.0,) * joints),
        reference=ReferenceSpec("position", 10, (-1.0,) * joints, (1.0,) * joints),
        policy=PolicyShape((8,)),
    )


class MujocoArm:
    """The same file in MuJoCo."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        whole = '<mujoco><compiler fusestatic="false"/></mujoco><link name="base_link"/>'  # keep links of fixed joints
        self.model = mujoco.MjModel.from_xml_string(text.replace('<link name="base_link"/>', whole, 1))  # type: ignore[attr-defined]
        self.data = mujoco.MjData(self.model)  # type: ignore[attr-defined]
        self.is_urdf = path.suffix == ".urdf"

    def at(self, joints, position) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Position, rotation matrix, and both Jacobians of the tip."""
        model, data = self.model, self.data
        for name, value in zip(joints, position, strict=True):
            data.qpos[model.joint(name).qposadr[0]] = value
        mujoco.mj_forward(model, data)  # type: ignore[attr-defined]
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        if self.is_urdf:
            index = model.body("tool0").id
            point, turn = data.xpos[index], data.xmat[index]
            mujoco.mj_jacBody(model, data, linear, angular, index)  # type: ignore[attr-defined]
        else:
            index = model.site("tcp").id
            point, turn = data.site_xpos[index], data.site_xmat[index]
            mujoco.mj_jacSite(model, data, linear, angular, index)  # type: ignore[attr-defined]
        columns = [model.joint(name).dofadr[0] for name in joints]
        return point.copy(), turn.reshape(3, 3).copy(), linear[:, columns], angular[:, columns]


@pytest.mark.parametrize("path", [SIX, SEVEN, RAIL], ids=lambda path: path.stem)
def test_the_tip_and_its_jacobian_are_mujocos(path):
    arm, other = read(path, lever=LEVER), MujocoArm(path)
    plain = dataclasses.replace(arm.chain, lever=0.0)
    assert len(arm.joints) == {"six_joint": 6}.get(path.stem, 7)
    for position in np.random.default_rng(0).uniform(arm.position_low, arm.position_high, (20, len(arm.joints))):
        point, turn, linear, angular = other.at(arm.joints, position)
        output = output_of_positions(arm.chain, position)
        np.testing.assert_allclose(output[:3], point, atol=1e-9)
        np.testing.assert_allclose(output_of_positions(plain, position), point, atol=1e-9)
        np.testing.assert_allclose(chain_points(plain, position)[-1], point, atol=1e-9)
        found = multiply(quaternion_of_vector(output[3:] / LEVER), arm.chain.rest)
        np.testing.assert_allclose(rotation_matrix(found), turn, atol=1e-9)
        np.testing.assert_allclose(chain_jacobian(plain, position), linear, atol=1e-9)
        # Turning joint j by a little turns the tip by that column: the error's vector is in the frame of the base.
        step = 1e-6
        for j in range(len(position)):
            moved = output_of_positions(arm.chain, position + step * np.eye(len(position))[j])
            change = output_error(arm_spec(arm.chain), moved, output) / step
            np.testing.assert_allclose(change, [*linear[:, j], *LEVER * angular[:, j]], atol=1e-4)


def test_the_jacobian_is_jaxs():
    """The seven-joint arm's with orientation, and the derivative at rest, where a rotation vector of 0 is."""
    arm = read(SEVEN, lever=LEVER)
    position = np.stack([np.asarray(arm.middle), np.random.default_rng(1).uniform(arm.position_low, arm.position_high)])
    with jax.enable_x64(True):
        by_jax = jax.jit(jax.vmap(jax.jacfwd(lambda q: output_of_positions(arm.chain, q))))(jnp.asarray(position))
    for q, expected in zip(position, by_jax, strict=True):
        np.testing.assert_allclose(chain_jacobian(arm.chain, q), expected, atol=1e-7)
    np.testing.assert_allclose(output_of_positions(arm.chain, position[0])[3:], 0.0, atol=1e-9)


def test_a_planar_chain_in_space_is_the_same_chain():
    positions = np.random.default_rng(2).uniform(JOINT_LOW, JOINT_HIGH, (50, 4))
    in_space = output_of_positions(CHAIN.in_space(), positions)
    np.testing.assert_allclose(in_space[:, [0, 2]], output_of_positions(CHAIN, positions), atol=1e-12)
    assert (in_space[:, 1] == 0.0).all()


def test_an_error_of_orientation_is_the_rotation_vector_between():
    """Worked by hand: from a quarter turn about x to a quarter turn about z is 120° about (1, 1, 1)/√3 turned."""
    chain = dataclasses.replace(read(SIX).chain, lever=2.0)
    spec, quarter = arm_spec(chain), np.pi / 2
    found, wanted = np.zeros(6), np.zeros(6)
    found[3], wanted[5] = 2.0 * quarter, 2.0 * quarter
    expected = 2.0 * (2 * np.pi / 3) / np.sqrt(3) * np.asarray([-1.0, -1.0, 1.0])
    np.testing.assert_allclose(output_error(spec, wanted, found)[3:], expected, atol=1e-9)
    np.testing.assert_allclose(output_error(spec, wanted, wanted), 0.0, atol=1e-12)
    square = jax.jit(jax.grad(lambda w: jnp.sum(output_error(spec, w, jnp.asarray(wanted)) ** 2)))
    slope = square(jnp.asarray(wanted))
    assert np.isfinite(np.asarray(slope)).all()


def test_a_chain_travels_in_the_specification():
    spec = arm_spec(read(SEVEN, lever=LEVER).chain)
    again = ControlSpec.from_json(spec.to_json())
    assert again == spec
    assert again.digest() == spec.digest()
    assert spec.num_outputs == 6
    other = dataclasses.replace(spec.kinematics, lever=0.3)
    assert dataclasses.replace(spec, kinematics=other).digest() != spec.digest()


@pytest.mark.parametrize("lever", [0.0, LEVER])
def test_the_robots_own_policy_is_the_learners(lever):
    spec = arm_spec(read(SEVEN, lever=lever).chain)
    rng = np.random.default_rng(3)
    layers = [
        (rng.normal(size=weight).astype(np.float32), rng.normal(size=bias).astype(np.float32))
        for weight, bias in expected_shapes(spec)
    ]
    policy = NumpyPolicy(spec, layers)
    for _ in range(20):
        state = rng.uniform(-1, 1, spec.layout.size).astype(np.float32)
        preview = tracked_output(spec, state[: spec.layout.num_measured]) + rng.normal(0, 0.1, (3, spec.num_outputs))
        preview = preview.astype(np.float32)
        np.testing.assert_allclose(policy(state, preview), policy_command(spec, layers, state, preview), atol=2e-5)


def test_what_the_policy_sees_does_not_jump_where_a_rotation_vector_does():
    """Half a turn from rest the output jumps to its opposite; the way from there to a reference nearby does not."""
    spec = arm_spec(SerialChain((ChainJoint("revolute"),) * 7, tip=(0.3, 0.0, 0.0), lever=LEVER))
    state = np.zeros(spec.layout.size)

    def seen(angle, wanted):
        here, there = state.copy(), np.zeros(7)
        here[0], there[0] = angle, wanted
        reference = np.asarray(output_of_positions(spec.kinematics, there))
        preview = np.repeat(reference[None], 1 + len(spec.preview), axis=0)
        return np.asarray(observation(spec, here, preview))[spec.layout.size :], reference

    before, after = seen(np.pi - 0.01, np.pi - 0.005), seen(np.pi - 0.01, np.pi + 0.005)
    assert np.abs(before[1] - after[1]).max() > 3 * LEVER  # what is tracked jumps
    turned = after[0][:6] * np.asarray(spec.scales.error)
    assert turned[5] == pytest.approx(0.015 * LEVER, rel=1e-6)
    assert np.abs(before[0] - after[0]).max() < 0.1
    # And back: the error leads from the one output to the other.
    rng = np.random.default_rng(0)
    found, wanted = (output_of_positions(spec.kinematics, rng.uniform(-3, 3, (20, 7))) for _ in range(2))
    again = output_after(spec, found, output_error(spec, wanted, found))
    np.testing.assert_allclose(output_error(spec, again, wanted), 0.0, atol=1e-6)


@pytest.mark.parametrize("lever", [0.0, LEVER])
def test_a_configuration_is_found_for_a_point_in_space(lever):
    arm = read(SIX, lever=lever)
    low, high = np.asarray(arm.position_low), np.asarray(arm.position_high)
    wanted = output_of_positions(arm.chain, low + 0.6 * (high - low))
    found = nearest_configuration(arm.chain, wanted, low=low, high=high)
    np.testing.assert_allclose(output_of_positions(arm.chain, found), wanted, atol=1e-5)
    assert ((found >= low) & (found <= high)).all()
    with pytest.raises(SpecError, match="out of reach"):
        nearest_configuration(arm.chain, [3.0, 0, 0, 0, 0, 0][: arm.chain.num_outputs], low=low, high=high)


def test_limits_come_from_the_file():
    arm = read(SIX)
    assert arm.joints == ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
    assert arm.position_low == (-3.1, -2.6, -2.6, -2.9, -2.9, -2.9)
    assert arm.position_high == (3.1, 0.6, 2.6, 2.9, 2.9, 2.9)
    assert arm.speed == (2.0, 2.0, 2.5, 3.0, 3.0, 3.0)
    assert arm.effort == (150.0, 150.0, 100.0, 28.0, 28.0, 28.0)
    assert arm.rate(0.5) == (1.0, 1.0, 1.25, 1.5, 1.5, 1.5)
    rail = read(RAIL)
    np.testing.assert_allclose(rail.position_low[:2], [-0.5, np.radians(-150)])
    assert rail.speed == (None, 1.5, *[None] * 5)
    assert rail.effort == (400.0, 80.0, *[None] * 4, 9.0)
    with pytest.raises(SpecError, match="'rail' has no velocity limit; give rate yourself"):
        rail.rate()


def test_a_base_and_fixed_joints_shorten_the_chain():
    whole, short = read(SEVEN), ArmModel.from_urdf(SEVEN, tip="tool0", base="joint2_link", fixed={"joint5": 0.4})
    assert short.joints == ("joint3", "joint4", "joint6", "joint7")
    q = np.asarray([0.3, -1.0, 0.7, 0.2])
    far = output_of_positions(whole.chain, np.asarray([0.0, 0.0, 0.3, -1.0, 0.4, 0.7, 0.2]))
    at = ArmModel.from_urdf(SEVEN, tip="joint2_link", lever=1.0)  # the frame of that link
    vector = output_of_positions(at.chain, np.zeros(2))
    turn = rotation_matrix(multiply(quaternion_of_vector(vector[3:]), at.chain.rest))
    np.testing.assert_allclose(vector[:3] + turn @ output_of_positions(short.chain, q), far, atol=1e-9)


def urdf(*joints: str, links: str = "abc", more: str = "") -> str:
    named = "".join(f'<link name="{name}"/>' for name in links)
    return f'<robot name="r">{named}{"".join(joints)}{more}</robot>'


def joint(name: str, parent: str, child: str, kind: str = "revolute", inside: str | None = None, more: str = "") -> str:
    limit = '<limit lower="-1" upper="1" velocity="1" effort="1"/>' if inside is None else inside
    origin = '<origin xyz="1 0 0"/><axis xyz="0 0 1"/>'
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>{origin}{limit}{more}'
        "</joint>"
    )


GOOD = joint("one", "a", "b"), joint("two", "b", "c")
BAD_URDF = {
    "loop": (urdf(*GOOD, joint("three", "a", "c")), r"'c' is the child of two joints, 'two' and 'three'.* a loop"),
    "ring": (urdf(*GOOD, joint("three", "c", "a")), r"the links form a loop through 'c'"),
    "floating base": (urdf(joint("one", "a", "b", "floating"), GOOD[1]), r"'one' is floating.*base='b'"),
    "missing link": (urdf(GOOD[0], joint("two", "b", "d")), r"the child of joint 'two' is the link 'd', .* a, b, c"),
    "missing tip": (urdf(joint("one", "a", "b"), links="ab"), r"tip is 'c', but the links are: a, b"),
    "unknown type": (urdf(GOOD[0], joint("two", "b", "c", "screw")), r"the type 'screw', but must be one of revolute"),
    "mimic": (urdf(GOOD[0], joint("two", "b", "c", more='<mimic joint="one"/>')), r"'two' mimics 'one'.*fixed="),
    "no limits": (urdf(GOOD[0], joint("two", "b", "c", inside="")), r"'two' has no position limits.*limits={'two'"),
    "continuous": (urdf(GOOD[0], joint("two", "b", "c", "continuous")), r"'two' has no position limits"),
    "NaN": (
        urdf(GOOD[0], joint("two", "b", "c", inside='<limit lower="nan" upper="1"/>')),
        r"lower of the limit of joint 'two' is 'nan', but must be a finite number",
    ),
    "order": (
        urdf(GOOD[0], joint("two", "b", "c", inside='<limit lower="2" upper="1"/>')),
        r"from 2 to 1, but",
    ),
    "speed": (
        urdf(GOOD[0], joint("two", "b", "c", inside='<limit lower="0" upper="1" velocity="-2"/>')),
        r"'two' has a velocity limit of -2.0, but it must be above 0",
    ),
    "numbers": (
        urdf(GOOD[0], joint("two", "b", "c").replace("1 0 0", "1 0")),
        r"must be 3 finite numbers",
    ),
    "no axis": (urdf(GOOD[0], joint("two", "b", "c").replace("0 0 1", "0 0 0")), r"the axis of joint 'two' has no len"),
    "fixed tip": (urdf(*(joint(n, p, c, "fixed") for n, p, c in ("oab", "tbc"))), r"no joint moves 'c'"),
    "tip on the axis": (urdf(joint("one", "a", "b"), links="ab").replace('"b"', '"c"'), r"lies on the axis of one"),
    "entities": ('<!DOCTYPE x [<!ENTITY a "b">]>' + urdf(*GOOD), r"document type"),
    "not XML": (urdf(*GOOD)[:-20], r"it is not XML"),
    "xacro": (urdf(*GOOD, more="<xacro:if/>"), r"xacro macro.*expand it first: xacro robot.urdf >"),
    "MJCF": ("<mujoco/>", r"it is an MJCF file; read it with from_mjcf"),
    "another format": ("<sdf/>", r"begins with <sdf>, but a URDF file begins with <robot>"),
    "depth": ("<robot>" + "<a>" * 300 + "</a>" * 300 + "</robot>", r"deeper than 200"),
}


def test_limits_of_zero_are_unknown_to_whoever_exported_the_file(tmp_path):
    limit = '<limit lower="-1" upper="1" velocity="0" effort="0"/>'
    (tmp_path / "robot.urdf").write_text(urdf(GOOD[0], joint("two", "b", "c", inside=limit)))
    arm = ArmModel.from_urdf(tmp_path / "robot.urdf", tip="c")
    assert (arm.speed, arm.effort) == ((1.0, None), (1.0, None))


def test_a_gear_divides_the_speed_and_multiplies_the_force(tmp_path):
    actuator = '<velocity joint="one" gear="-10" ctrlrange="-30 30" forcerange="-2 2"/>'
    (tmp_path / "robot.xml").write_text(mjcf(HINGE, f"<actuator>{actuator}</actuator>"))
    arm = ArmModel.from_mjcf(tmp_path / "robot.xml", tip="b")
    assert (arm.speed, arm.effort) == ((3.0,), (20.0,))


DEFAULTS = """<default><position forcerange="-7 7"/>
<default class="strong"><general forcerange="-9 9" ctrlrange="-2 2" gear="3"/></default>
<default class="free"><motor forcelimited="false" ctrllimited="false"/></default></default>"""


@pytest.mark.parametrize("actuator", [
    '<motor name="m" joint="one"/>',
    '<velocity name="m" joint="one" class="strong"/>',
    '<velocity name="m" joint="one" class="strong" gear="2" forcerange="-5 5"/>',
    '<motor name="m" joint="one" class="free"/>',
])  # fmt: skip
def test_an_actuator_has_the_defaults_of_its_class_as_in_mujoco(actuator, tmp_path):
    text = mjcf(HINGE, f"{DEFAULTS}<actuator>{actuator}</actuator>")
    (tmp_path / "robot.xml").write_text(text)
    arm = ArmModel.from_mjcf(tmp_path / "robot.xml", tip="b")
    theirs = mujoco.MjModel.from_xml_string(text)  # type: ignore[attr-defined]
    gear = theirs.actuator_gear[0, 0]
    force = gear * theirs.actuator_forcerange[0, 1] if theirs.actuator_forcelimited[0] else None
    speed = theirs.actuator_ctrlrange[0, 1] / gear if "velocity" in actuator else None
    assert arm.effort == ((None,) if force is None else pytest.approx((force,)))
    assert arm.speed == ((None,) if speed is None else pytest.approx((speed,)))


@pytest.mark.parametrize("case", BAD_URDF)
def test_a_bad_urdf_gets_its_sentence(case, tmp_path):
    text, message = BAD_URDF[case]
    (tmp_path / "robot.urdf").write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        ArmModel.from_urdf(tmp_path / "robot.urdf", tip="c")
    assert str(tmp_path / "robot.urdf") in str(caught.value)
    assert "\n" not in str(caught.value)


def mjcf(inside: str, more: str = "") -> str:
    return f'<mujoco><worldbody><body name="a"><geom size="1"/>{inside}</body></worldbody>{more}</mujoco>'


HINGE = '<joint name="one" range="-10 10"/><body name="b" pos="1 0 0"><geom size="1"/></body>'
BAD_MJCF = {
    "floating base": (mjcf("<freejoint/>" + HINGE), r"'a' has a free joint: the base floats.*base='a'"),
    "free": (mjcf('<joint type="free"/>' + HINGE), r"'a' has a free joint"),
    "ball": (mjcf('<joint name="two" type="ball"/>' + HINGE), r"'two' is a ball joint"),
    "include": (mjcf('<include file="x.xml"/>' + HINGE), r"it has <include>, but must be one file"),
    "loop": (mjcf(HINGE, '<equality><connect body1="b" anchor="0 0 0"/></equality>'), r"<connect> holds the body 'b'"),
    "missing tip": (mjcf(""), r"tip is 'b', but the bodies and sites are: a"),
    "no range": (mjcf(HINGE.replace(' range="-10 10"', "")), r"'one' has no position limits"),
    "mimic": (mjcf(HINGE, '<equality><joint joint1="one" joint2="two"/></equality>'), r"'one' mimics 'two'"),
    "class": (mjcf(HINGE.replace("joint ", 'joint class="arm" ')), r"no default class 'arm'; the classes are: main"),
    "no joint": (mjcf(HINGE.replace('<joint name="one" range="-10 10"/>', "")), r"no joint moves 'b'"),
    "URDF": ("<robot/>", r"it is a URDF file"),
    "NaN": (mjcf(HINGE.replace("1 0 0", "nan 0 0")), r"pos of body 'b' is 'nan 0 0', but must be 3 finite numbers"),
}


@pytest.mark.parametrize("case", BAD_MJCF)
def test_a_bad_mjcf_gets_its_sentence(case, tmp_path):
    text, message = BAD_MJCF[case]
    (tmp_path / "robot.xml").write_text(text)
    with pytest.raises(SpecError, match=message):
        ArmModel.from_mjcf(tmp_path / "robot.xml", tip="b")


def test_a_wrong_call_gets_its_sentence(tmp_path):
    with pytest.raises(SpecError, match="there is no robot file"):
        ArmModel.from_urdf(tmp_path / "none.urdf", tip="c")
    with pytest.raises(SpecError, match="limits names 'elbo', but the joints up to 'tool0' are: shoulder_pan"):
        ArmModel.from_urdf(SIX, tip="tool0", limits={"elbo": (-1, 1)})
    with pytest.raises(SpecError, match="base is 'tool0', which is not between the root and the tip 'elbow_link'"):
        ArmModel.from_urdf(SIX, tip="elbow_link", base="tool0")
    with pytest.raises(SpecError, match=r"joint.axis is \(0, 0, 2\), of length 2, but must have length 1"):
        ChainJoint("revolute", axis=(0, 0, 2))
    with pytest.raises(SpecError, match="lever is -1, but must be 0"):
        SerialChain((ChainJoint("revolute"),), lever=-1)
