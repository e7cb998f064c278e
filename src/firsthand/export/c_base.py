"""A base controller as C99: what `firsthand_onboard.base_control` computes, with its memory in an array.

Only bases of our own can be written out; a function in a user's file stays where it is.
"""

from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec, PlanarChain, SelectedOutput
from firsthand_onboard.base_control import (
    CENTERING_S,
    CREEP,
    FADE_S,
    MARGIN,
    MIN_AUTHORITY,
    BaseControl,
    PIBase,
    PolicyBase,
    window_share,
)
from firsthand_onboard.policy import Layer

from .c_values import c_array, c_number, network_calls, network_tables

TRAJECTORY = """\
/* Where a new reference begins, before its first step: the base starts from where the robot then is. */
void {name}_begin_trajectory({name}_memory *memory);

"""
BEGIN = """\
void {name}_begin_trajectory({name}_memory *memory)
{{
    if (!memory->base_starts) memory->base_starts = 1;
}}

"""
START = """\
    if (memory->base_starts > 1) {{
        for (int i = 0; i < BASE_MEMORY; i++) memory->base[i] = base_initial[i];
    }}
    if (memory->base_starts) base_begin({seen}, memory->base);
    memory->base_starts = 0;
"""
BLEND = """\
    base_step(state, points, base, command);
    float level = 0.0f;
    for (int i = 0; i < OUTPUTS; i++) {
        const float error = (points[i] - tip[i]) / error_scale[i];
        level += error * error;
    }
    base[BASE_MEMORY - 2] += WINDOW * (level - base[BASE_MEMORY - 2]);
    if (base[BASE_MEMORY - 2] > ERROR_LIMIT * ERROR_LIMIT || base[BASE_MEMORY - 1] < 1.0f)
        base[BASE_MEMORY - 1] = fmaxf(base[BASE_MEMORY - 1] - FADE, 0.0f);
    for (int i = 0; i < COMMANDS; i++) {
        command[i] += base[BASE_MEMORY - 1] * AUTHORITY * half[i] * SOURCE[i];
        command[i] = fminf(fmaxf(command[i], middle[i] - half[i]), middle[i] + half[i]);
    }
"""


def scaled_layers(layers: Any, control: BaseControl | None) -> Any:
    """The network of tanh(network/a): the last layer divided by the authority."""
    if control is None:
        return layers
    *hidden, (weight, bias) = layers
    share = max(float(control.authority), MIN_AUTHORITY)
    return (*hidden, (np.asarray(weight, np.float32) / share, np.asarray(bias, np.float32) / share))


def base_definitions(name: str, spec: ControlSpec, control: BaseControl | None) -> str:
    """Lines of the header."""
    upper = name.upper()
    return "" if control is None else f"#define {upper}_BASE_MEMORY {control.memory_size(spec)}\n"


def base_fields(name: str, control: BaseControl | None) -> str:
    """Fields of the policy's memory."""
    if control is None:
        return ""
    return (
        f"    float base[{name.upper()}_BASE_MEMORY]; /* the base's memory, mean squared error, trust */\n"
        "    int base_starts; /* 2 with a motion, 1 with a trajectory */\n"
    )


def base_source(name: str, spec: ControlSpec, control: BaseControl) -> str:
    """Tables and functions of the base, before the policy's own."""
    base = control.base
    text = f"enum {{ BASE_MEMORY = {name.upper()}_BASE_MEMORY }};\n"
    for constant, value in (
        ("AUTHORITY", float(control.authority)),
        ("ERROR_LIMIT", float(control.error_limit)),
        ("WINDOW", window_share(spec)),
        ("FADE", spec.period_s / FADE_S),
    ):
        text += f"static const float {constant} = {c_number(float(value))};\n"
    text += c_array("float", "base_initial", [*base.initial_memory(spec), 0.0, 1.0])
    if isinstance(base, PIBase):
        return text + _pi(spec, base)
    nothing = "\nstatic void base_begin(const float *state, float *memory)\n{\n    (void)state;\n    (void)memory;\n}\n"
    if isinstance(base, PolicyBase):
        return text + nothing + _policy(base.layers)
    return (
        text
        + nothing
        + """
static void base_step(const float *state, const float *points, float *memory, float *command)
{
    (void)state;
    (void)memory;
    for (int i = 0; i < COMMANDS; i++) command[i] = points[i];
}
"""
    )


def _policy(layers: tuple[Layer, ...]) -> str:
    outs, calls, source = network_calls("base_", layers)
    return f"""{"".join(network_tables("base_", layers))}
static void base_step(const float *state, const float *points, float *memory, float *command)
{{
    float features[FEATURES], tip[OUTPUTS], {outs};
    (void)memory;
    observe_policy(state, points, features, tip);
{calls}    for (int i = 0; i < COMMANDS; i++) command[i] = middle[i] + half[i] * {source}[i];
}}
"""


def _pi(spec: ControlSpec, base: PIBase) -> str:
    low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
    times = [0.0, *(spec.period_s * k for k in spec.preview)]
    points = np.shape(base.up)[-1]
    fastest = np.maximum(np.asarray(base.up)[:, 1, -1], np.asarray(base.down)[:, 1, -1])
    tables = [
        c_array("int", "pi_position", np.asarray(spec.layout.position, int)),
        *(
            c_array("float", f"pi_{name}", np.asarray(value, np.float32))
            for name, value in (
                ("gain", base.gain),
                ("integral_s", base.integral_s),
                ("ahead_s", base.ahead_s),
                ("sign", base.sign),
                ("up", base.up),
                ("down", base.down),
                ("fastest", fastest),
                ("low", low + MARGIN * (high - low)),
                ("high", high - MARGIN * (high - low)),
                ("times", times),
            )
        ),
    ]
    plan = _planar_plan(spec, spec.kinematics) if isinstance(spec.kinematics, PlanarChain) else _tracked_plan(spec)
    return f"""{"".join(tables)}
enum {{ JOINTS = {len(spec.layout.position)}, MAP = {points} }};

static float clipped(float value, float low, float high)
{{
    return fminf(fmaxf(value, low), high);
}}

/* The reference after a time: linear between the points, held outside. */
static void point_at(const float *points, float time, float *at)
{{
    for (int i = 0; i < OUTPUTS; i++) at[i] = points[i];
    for (int p = 0; p + 1 < POINTS; p++) {{
        const float reached = clipped((time - pi_times[p]) / (pi_times[p + 1] - pi_times[p]), 0.0f, 1.0f);
        for (int i = 0; i < OUTPUTS; i++) at[i] += reached * (points[(p + 1) * OUTPUTS + i] - points[p * OUTPUTS + i]);
    }}
}}

/* The command for a joint's speed, as a share of the half range; beyond 1 for one that cannot be had. */
static float speed_command(int joint, float rate)
{{
    const float *size = (rate > 0.0f ? pi_up : pi_down) + joint * 2 * MAP, *speed = size + MAP;
    const float wanted = fabsf(rate);
    float command = size[0];
    for (int p = 0; p + 1 < MAP; p++) {{
        const float step = fmaxf(speed[p + 1] - speed[p], 1e-6f * speed[MAP - 1]);
        command += (size[p + 1] - size[p]) * clipped((wanted - speed[p]) / step, 0.0f, 1.0f);
    }}
    command *= fmaxf(wanted / speed[MAP - 1], 1.0f);
    command -= size[0] * fmaxf(1.0f - wanted / ({c_number(CREEP)} * pi_fastest[joint]), 0.0f);
    return rate > 0.0f ? pi_sign[joint] * command : rate < 0.0f ? -pi_sign[joint] * command : 0.0f;
}}

{plan}
static void base_begin(const float *state, float *memory)
{{
    for (int j = 0; j < JOINTS; j++) memory[j] = clipped(state[pi_position[j]], pi_low[j], pi_high[j]);
}}

static void base_step(const float *state, const float *points, float *memory, float *command)
{{
    float *reference = memory, *integral = memory + JOINTS, feed[JOINTS];
    plan_joints(points, reference, feed);
    for (int j = 0; j < JOINTS; j++) {{
        const float error = reference[j] - state[pi_position[j]];
        const float action = speed_command(j, feed[j] + pi_gain[j] * (error + integral[j] / pi_integral_s[j]));
        if (fabsf(action) < 1.0f) integral[j] += {c_number(spec.period_s)} * error;
        command[j] = middle[j] + half[j] * clipped(action, -1.0f, 1.0f);
    }}
}}
"""


def _tracked_plan(spec: ControlSpec) -> str:
    assert isinstance(spec.kinematics, SelectedOutput)
    order = np.asarray([spec.kinematics.indices.index(i) for i in spec.layout.position], int)
    return f"""{c_array("int", "pi_output", order)}
/* The joint reference now, and the speed that each joint needs after its own dead time and lag. */
static void plan_joints(const float *points, float *reference, float *feed)
{{
    for (int j = 0; j < JOINTS; j++) {{
        float before[OUTPUTS], after[OUTPUTS];
        const float first = fmaxf(pi_ahead_s[j] - {c_number(1.5 * spec.period_s)}, 0.0f);
        const float last = pi_ahead_s[j] + {c_number(1.5 * spec.period_s)};
        point_at(points, first, before);
        point_at(points, last, after);
        reference[j] = points[pi_output[j]];
        feed[j] = (after[pi_output[j]] - before[pi_output[j]]) / (last - first);
    }}
}}
"""


def _planar_plan(spec: ControlSpec, chain: PlanarChain) -> str:
    middle = (np.asarray(spec.limits.position_low) + np.asarray(spec.limits.position_high)) / 2
    kinds = np.asarray([joint.kind == "revolute" for joint in chain.joints], int)
    return f"""{c_array("int", "chain_turns", kinds)}{c_array("float", "chain_along", [j.along for j in chain.joints])}\
{c_array("float", "chain_across", [j.perpendicular for j in chain.joints])}
{c_array("float", "pi_middle", middle)}static const float PERIOD = {c_number(float(spec.period_s))};

/* The tip, its Jacobian by joint, and the pseudo-inverse weighted by what the joints can do. */
static void invert_tip(const float *q, float *tip, float jacobian[JOINTS][2], float inverse[JOINTS][2])
{{
    float ends[JOINTS + 1][2], angles[JOINTS], angle = 0.0f;
    ends[0][0] = {c_number(chain.base[0])};
    ends[0][1] = {c_number(chain.base[1])};
    for (int j = 0; j < JOINTS; j++) {{
        if (chain_turns[j]) angle += q[j];
        angles[j] = angle;
        const float along = chain_along[j] + (chain_turns[j] ? 0.0f : q[j]), c = cosf(angle), s = sinf(angle);
        ends[j + 1][0] = ends[j][0] + c * along + s * chain_across[j];
        ends[j + 1][1] = ends[j][1] - s * along + c * chain_across[j];
    }}
    tip[0] = ends[JOINTS][0];
    tip[1] = ends[JOINTS][1];
    float a = 1e-6f, b = 0.0f, d = 1e-6f;
    for (int j = 0; j < JOINTS; j++) {{
        jacobian[j][0] = chain_turns[j] ? tip[1] - ends[j][1] : cosf(angles[j]);
        jacobian[j][1] = chain_turns[j] ? -(tip[0] - ends[j][0]) : -sinf(angles[j]);
        const float weight = pi_fastest[j] * pi_fastest[j];
        a += weight * jacobian[j][0] * jacobian[j][0];
        b += weight * jacobian[j][0] * jacobian[j][1];
        d += weight * jacobian[j][1] * jacobian[j][1];
    }}
    const float determinant = a * d - b * b;
    for (int j = 0; j < JOINTS; j++) {{
        const float weight = pi_fastest[j] * pi_fastest[j];
        inverse[j][0] = weight * (jacobian[j][0] * d - jacobian[j][1] * b) / determinant;
        inverse[j][1] = weight * (jacobian[j][1] * a - jacobian[j][0] * b) / determinant;
    }}
}}

/* Speeds that leave the tip where it is and draw the joints to the middle of their ranges. */
static void pull_to_middle(const float *q, float jacobian[JOINTS][2], float inverse[JOINTS][2], float *speed)
{{
    float moved[2] = {{0.0f, 0.0f}};
    for (int j = 0; j < JOINTS; j++) {{
        speed[j] = (pi_middle[j] - q[j]) / {c_number(CENTERING_S)};
        for (int i = 0; i < 2; i++) moved[i] += jacobian[j][i] * speed[j];
    }}
    for (int j = 0; j < JOINTS; j++) speed[j] -= inverse[j][0] * moved[0] + inverse[j][1] * moved[1];
}}

/* The joint reference now, and the speed that each joint needs after its own dead time and lag. */
static void plan_joints(const float *points, float *reference, float *feed)
{{
    float tip[2], jacobian[JOINTS][2], inverse[JOINTS][2], speed[JOINTS];
    for (int round = 0; round < 2; round++) {{
        invert_tip(reference, tip, jacobian, inverse);
        for (int j = 0; j < JOINTS; j++)
            reference[j] += inverse[j][0] * (points[0] - tip[0]) + inverse[j][1] * (points[1] - tip[1]);
    }}
    invert_tip(reference, tip, jacobian, inverse);
    pull_to_middle(reference, jacobian, inverse, speed);
    for (int j = 0; j < JOINTS; j++)
        reference[j] = clipped(reference[j] + PERIOD * speed[j], pi_low[j], pi_high[j]);
    invert_tip(reference, tip, jacobian, inverse);
    for (int j = 0; j < JOINTS; j++) {{
        float there[JOINTS], other[JOINTS][2], back[JOINTS][2], at[OUTPUTS], before[OUTPUTS], after[OUTPUTS];
        const float first = fmaxf(pi_ahead_s[j] - 1.5f * PERIOD, 0.0f), last = pi_ahead_s[j] + 1.5f * PERIOD;
        point_at(points, pi_ahead_s[j], at);
        point_at(points, first, before);
        point_at(points, last, after);
        for (int k = 0; k < JOINTS; k++)
            there[k] = clipped(reference[k] + inverse[k][0] * (at[0] - points[0]) + inverse[k][1] * (at[1] - points[1]),
                               pi_low[k], pi_high[k]);
        invert_tip(there, tip, other, back);
        pull_to_middle(there, other, back, speed);
        feed[j] = speed[j];
        for (int i = 0; i < 2; i++) feed[j] += back[j][i] * (after[i] - before[i]) / (last - first);
    }}
}}
"""
