"""A policy as C99: one source file, a header and a test with its vectors. No allocation, no library but libm.

Where the policy has an observer, the same files hold it (`c_observer`).
"""

import re
from collections.abc import Sequence

import numpy as np

from firsthand_onboard import ControlSpec, SelectedOutput, SerialChain
from firsthand_onboard.base_control import BaseControl
from firsthand_onboard.numpy_observer import Observer
from firsthand_onboard.policy import Layer

from .accuracy import exact_commands, random_inputs, starting_memories
from .c_base import (
    BEGIN,
    BLEND,
    START,
    TRAJECTORY,
    base_definitions,
    base_fields,
    base_source,
    scaled_layers,
)
from .c_observer import observer_definitions, observer_header, observer_source, observer_test
from .c_values import c_array, c_number, network_calls, network_tables
from .card import ModelCard
from .serial_tip import c_error, c_tip

VECTORS = 16
"""Inputs in the test vector."""


def identifier(robot: str) -> str:
    """The robot's name as the start of a C name."""
    name = re.sub(r"\W+", "_", robot, flags=re.ASCII).strip("_").lower()
    return name if name and not name[0].isdigit() else f"robot_{name}".strip("_")


def c_files(
    spec: ControlSpec,
    layers: Sequence[Layer],
    card: ModelCard,
    observer: Observer | None = None,
    control: BaseControl | None = None,
    *,
    seed: int = 0,
) -> dict[str, str]:
    """File names and texts: source, header, and a program that checks the test vectors."""
    name = identifier(spec.robot)
    return {
        f"{name}_policy.h": _header(name, spec, card, observer, control),
        f"{name}_policy.c": _source(name, spec, layers, card, observer, control),
        f"{name}_policy_test.c": _test(name, spec, layers, card, observer, control, seed),
    }


def _comment(card: ModelCard) -> str:
    return "/*\n" + "".join(f" * {comment_text(line)}\n" for line in card.lines()) + " */\n"


def comment_text(line: str) -> str:
    """A line that neither ends a comment nor begins one, and does not go on in the next line."""
    line = re.sub(r"\*(?=/)|/(?=\*)", lambda found: f"{found[0]} ", line)
    return f"{line} ." if line.endswith(("\\", "??/")) else line


def _same_policy(name: str, card: ModelCard) -> str:
    """Stops a compiler that is given files of two policies."""
    return f"""#if {name.upper()}_POLICY_ID != {card.short_id}
#error "{name}_policy.h is of another policy than this file: export again"
#endif
"""


PLAIN_MEMORY = """/* What the policy remembers between steps: measurements and commands. */
typedef struct {{
    float state[{upper}_STATE];
    float command[{upper}_COMMANDS]; /* applied last */
    int moving;
{base}}} {name}_memory;
"""
OBSERVED_MEMORY = """/* What the policy remembers between steps: the estimate, and the command. */
typedef struct {{
    {name}_observer observer;
    float command[{upper}_COMMANDS]; /* applied last */
    int moving;
{base}}} {name}_memory;
"""
PLAIN_STEP = """\
/* One control period: from what is measured now and the reference (row 0 now, the others ahead) to the command.
 * Where a measurement is missing (NaN or infinite), the one before is held; for how long is the caller's to decide. The
 * command is not finite where a measurement has never come yet, or where the points are not finite: do not apply it. It
 * is not remembered. Returns the status. */"""
OBSERVED_STEP = """\
/* One control period: from what is measured now and the reference (row 0 now, the others ahead) to the command. The
 * policy sees the observer's estimate, which begins with the first step. Where a measurement is missing (NaN or
 * infinite), it is predicted; after {upper}_MAX_MISSING steps the status has {upper}_LOST: stop the robot. The command
 * is not finite where a measurement has never come yet, or where the points are not finite: do not apply it. It is not
 * remembered. Returns the status. */"""


def _header(
    name: str, spec: ControlSpec, card: ModelCard, observer: Observer | None, control: BaseControl | None
) -> str:
    layout, upper = spec.layout, name.upper()
    memory, step = (PLAIN_MEMORY, PLAIN_STEP) if observer is None else (OBSERVED_MEMORY, OBSERVED_STEP)
    return f"""{_comment(card)}#ifndef {upper}_POLICY_H
#define {upper}_POLICY_H

#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_POLICY_ID {card.short_id} /* how the SHA-256 above begins */
#define {upper}_MEASURED {layout.num_measured}
#define {upper}_COMMANDS {layout.num_commands}
#define {upper}_OUTPUTS {spec.num_outputs}
#define {upper}_STATE {layout.size}
#define {upper}_POINTS {1 + len(spec.preview)} /* of the reference: now and ahead */
#define {upper}_PERIOD_S {spec.period_s:.9g}
#define {upper}_HAS_OBSERVER {int(observer is not None)}
{observer_definitions(name, observer)}{base_definitions(name, spec, control)}
/* The status of a step: the sum of what happened in it. */
#define {upper}_MISSING 1 /* a measurement was missing */
#define {upper}_NO_COMMAND 2 /* the command is not finite: do not apply it */
#define {upper}_CLIPPED 4 /* with an observer: a measurement was far from what was expected and counts in part */
#define {upper}_RESTARTED 8 /* with an observer: the estimate of an entry restarted from its measurement */
#define {upper}_LOST 16 /* with an observer: a measurement is missing for longer than may be predicted */

{observer_header(name, observer)}{memory.format(name=name, upper=upper, base=base_fields(name, control))}
/* Before the first step of a robot that stands still; neutral is the command with which it does. */
void {name}_begin({name}_memory *memory, const float *measured, const float *neutral);

{step.format(upper=upper)}
int {name}_step({name}_memory *memory, const float *measured, const float *points, float *command);

/* After a step, if something between policy and robot changed the command: what was really applied. Where that is not
 * finite, the command before is kept. */
void {name}_applied({name}_memory *memory, const float *command);

/* The points of a reference of `length` rows that {name}_step wants at row `step`; held at the last row. */
void {name}_points(const float *reference, int length, int step, float *points);

/* Where the tracked output is, from what is measured. */
void {name}_output(const float *measured, float *output);

{"" if control is None else TRAJECTORY.format(name=name)}\
/* The bare function from state and points{"" if control is None else " and the base's memory"} to command; \
{name}_step calls it. */
void {name}_evaluate(const float *state, const float *points, {_memory_argument(control)}float *command);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _tip(spec: ControlSpec) -> str:
    """Statements that set `tip` from `measured`."""
    if isinstance(spec.kinematics, SerialChain):
        return c_tip(spec.kinematics, spec.layout.position)
    if isinstance(spec.kinematics, SelectedOutput):
        return "".join(f"    tip[{i}] = state[{entry}];\n" for i, entry in enumerate(spec.kinematics.indices))
    chain = spec.kinematics
    lines = [
        "    float angle = 0.0f, c, s, along;\n",
        f"    tip[0] = {c_number(chain.base[0])};\n",
        f"    tip[1] = {c_number(chain.base[1])};\n",
    ]
    for joint, entry in zip(chain.joints, spec.layout.position, strict=True):
        if joint.kind == "revolute":
            lines.append(f"    angle += state[{entry}];\n    along = {c_number(joint.along)};\n")
        else:
            lines.append(f"    along = {c_number(joint.along)} + state[{entry}];\n")
        across = c_number(joint.perpendicular)
        lines.append("    c = cosf(angle);\n    s = sinf(angle);\n")
        lines.append(f"    tip[0] += c * along + s * {across};\n    tip[1] += c * {across} - s * along;\n")
    return "".join(lines)


PLAIN_FUNCTIONS = (
    """void {name}_begin({name}_memory *memory, const float *measured, const float *neutral)
{{
    for (int i = 0; i < COMMANDS; i++) memory->command[i] = neutral[i];
    stand(memory->state, measured, neutral);
    memory->moving = 0;
}}
""",
    """    float *state = memory->state, held[MEASURED];
    int status = 0, whole = 1; /* every measurement has come before */
    for (int i = 0; i < MEASURED; i++) {{
        if (!isfinite(state[i])) whole = 0;
        if (!isfinite(measured[i])) status = {upper}_MISSING;
        held[i] = isfinite(measured[i]) ? measured[i] : state[i];
    }}
    if (!whole) {{
        stand(state, held, memory->command);
    }} else {{
        if (memory->moving) move_on(state, memory->command);
        for (int i = 0; i < MEASURED; i++) state[i] = held[i];
    }}
{start}    {name}_evaluate(state, points, {base}command);
""",
)
OBSERVED_FUNCTIONS = (
    """void {name}_begin({name}_memory *memory, const float *measured, const float *neutral)
{{
    for (int i = 0; i < COMMANDS; i++) memory->command[i] = neutral[i];
    {name}_observer_start(&memory->observer, measured, neutral);
    memory->moving = 0;
}}
""",
    """    {name}_observer *observer = &memory->observer;
    int status = 0;
    if (memory->moving) {{
        status = {name}_observer_step(observer, memory->command, measured);
    }} else {{ /* a motion begins with the median of three measurements, of which two are those of `begin` */
        float held[MEASURED];
        int whole = 1; /* every measurement has come before */
        for (int i = 0; i < MEASURED; i++)
            if (!isfinite(observer->state[i])) whole = 0;
        for (int i = 0; i < MEASURED; i++) {{
            if (!isfinite(measured[i])) status = {upper}_MISSING;
            held[i] = isfinite(measured[i]) && (EARLIER < 2 || !whole) ? measured[i] : observer->state[i];
        }}
        {name}_observer_start(observer, held, memory->command);
    }}
{start}    {name}_evaluate(observer->state, points, {base}command);
""",
)


def _memory_argument(control: BaseControl | None) -> str:
    """The parameter of `evaluate` that a base needs."""
    return "" if control is None else "float *base, "


def _source(
    name: str,
    spec: ControlSpec,
    layers: Sequence[Layer],
    card: ModelCard,
    observer: Observer | None,
    control: BaseControl | None,
) -> str:
    layers = scaled_layers(layers, control)
    layout, scales, upper = spec.layout, spec.scales, name.upper()
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    tables = [
        c_array("float", "center", scales.measured_center),
        c_array("float", "scale", scales.measured_scale),
        c_array("float", "change", scales.change_scale),
        c_array("float", "middle", (low + high) / 2),
        c_array("float", "half", (high - low) / 2),
        c_array("int", "ahead", np.asarray((0, *spec.preview), int)),
        c_array("float", "error_scale", np.broadcast_to(scales.error, (spec.num_outputs,))),
        c_array("float", "motion_scale", np.broadcast_to(scales.preview, (spec.num_outputs,))),
        *network_tables("", layers),
    ]
    outs, calls, source = network_calls("", layers)
    begin, step = PLAIN_FUNCTIONS if observer is None else OBSERVED_FUNCTIONS
    blend = f"    for (int i = 0; i < COMMANDS; i++) command[i] = middle[i] + half[i] * {source}[i];\n"
    under, start, given = "", "", ""
    if control is not None:
        blend, under, given = BLEND.replace("SOURCE", source), base_source(name, spec, control), "memory->base, "
        start = START.format(seen="state" if observer is None else "observer->state")
        stands = "    memory->moving = 0;\n"
        begin = BEGIN + begin.replace(stands, f"{stands}    memory->base_starts = 2;\n")
    return f"""{_comment(card)}#include "{name}_policy.h"

{_same_policy(name, card)}
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "with -ffast-math a measurement that is missing goes unseen: compile without it"
#endif

#include <limits.h>
#include <math.h>

enum {{
    MEASURED = {upper}_MEASURED,
    COMMANDS = {upper}_COMMANDS,
    OUTPUTS = {upper}_OUTPUTS,
    STATE = {upper}_STATE,
    POINTS = {upper}_POINTS,
    EARLIER = {layout.measurement_memory}, /* measurements remembered besides the newest */
    FIRST_COMMAND = {layout.command_start},
    FEATURES = {spec.observation_size}
}};

{"".join(tables)}
static void affine(const float *restrict weight, const float *restrict bias, const float *restrict in, int inputs,
                   float *restrict out, int outputs)
{{
    for (int o = 0; o < outputs; o++) out[o] = bias[o];
    int i = 0;
    for (; i + 4 <= inputs; i += 4) {{ /* four inputs at a time: out is read and written a quarter as often */
        const float *restrict row = weight + (long)i * outputs;
        const float a = in[i], b = in[i + 1], c = in[i + 2], d = in[i + 3];
        for (int o = 0; o < outputs; o++)
            out[o] += (row[o] * a + row[outputs + o] * b) + (row[2 * outputs + o] * c + row[3 * outputs + o] * d);
    }}
    for (; i < inputs; i++)
        for (int o = 0; o < outputs; o++) out[o] += weight[(long)i * outputs + o] * in[i];
}}

static void layer(const float *restrict weight, const float *restrict bias, const float *restrict in, int inputs,
                  float *restrict out, int outputs)
{{
    affine(weight, bias, in, inputs, out, outputs);
    for (int o = 0; o < outputs; o++) out[o] = tanhf(out[o]);
}}

/* The state, every entry of order one; returns how many. */
static int robot_features(const float *state, float *features)
{{
    int at = 0;
    for (int i = 0; i < MEASURED; i++) features[at++] = (state[i] - center[i]) / scale[i];
    for (int j = 1; j <= EARLIER; j++)
        for (int i = 0; i < MEASURED; i++) features[at++] = (state[i] - state[j * MEASURED + i]) / change[i];
    for (int i = FIRST_COMMAND; i < STATE; i++) {{
        const int channel = (i - FIRST_COMMAND) % COMMANDS;
        features[at++] = (state[i] - middle[channel]) / half[channel];
    }}
    return at;
}}

/* Both registers move on by one; the newest measurement stays until it is overwritten. */
static void move_on(float *state, const float *command)
{{
    for (int i = FIRST_COMMAND - 1; i >= MEASURED; i--) state[i] = state[i - MEASURED];
    for (int i = STATE - 1; i >= FIRST_COMMAND + COMMANDS; i--) state[i] = state[i - COMMANDS];
    for (int i = 0; i < COMMANDS; i++) state[FIRST_COMMAND + i] = command[i];
}}

/* As if it had been standing like this, with this command, for a long time. */
static void stand(float *state, const float *measured, const float *command)
{{
    for (int i = 0; i < FIRST_COMMAND; i++) state[i] = measured[i % MEASURED];
    for (int i = FIRST_COMMAND; i < STATE; i++) state[i] = command[(i - FIRST_COMMAND) % COMMANDS];
}}

static void tracked_output(const float *state, float *tip)
{{
{_tip(spec)}}}

void {name}_output(const float *measured, float *output)
{{
    tracked_output(measured, output);
}}

/* From one output to another. */
{c_error(spec.kinematics)}
/* The policy's input, and the tracked output. */
static void observe_policy(const float *state, const float *points, float *features, float *tip)
{{
    int at = robot_features(state, features);
    tracked_output(state, tip);
    for (int p = 0; p < POINTS; p++) {{
        float error[OUTPUTS];
        output_error(points + p * OUTPUTS, p ? points : tip, error);
        for (int i = 0; i < OUTPUTS; i++) features[at++] = error[i] / (p ? motion_scale[i] : error_scale[i]);
    }}
}}

{under}
void {name}_evaluate(const float *state, const float *points, {_memory_argument(control)}float *command)
{{
    float features[FEATURES], tip[OUTPUTS], {outs};
    observe_policy(state, points, features, tip);
{calls}{blend}}}

{"" if observer is None else observer_source(name, spec, observer)}{begin.format(name=name)}
int {name}_step({name}_memory *memory, const float *measured, const float *points, float *command)
{{
{step.format(name=name, upper=upper, start=start, base=given)}    for (int i = 0; i < COMMANDS; i++)
        if (!isfinite(command[i])) status |= {upper}_NO_COMMAND;
    {name}_applied(memory, command);
    return status;
}}

void {name}_applied({name}_memory *memory, const float *command)
{{
    for (int i = 0; i < COMMANDS; i++)
        if (isfinite(command[i])) memory->command[i] = command[i];
    memory->moving = 1;
}}

void {name}_points(const float *reference, int length, int step, float *points)
{{
    for (int p = 0; p < POINTS; p++) {{
        int row = step + ahead[p];
        if (row > length - 1) row = length - 1;
        for (int i = 0; i < OUTPUTS; i++) points[p * OUTPUTS + i] = reference[(long)row * OUTPUTS + i];
    }}
}}
"""


def _test(
    name: str,
    spec: ControlSpec,
    layers: Sequence[Layer],
    card: ModelCard,
    observer: Observer | None,
    control: BaseControl | None,
    seed: int,
) -> str:
    upper = name.upper()
    watch, watching = ("", "") if observer is None else observer_test(name, spec, observer, card, VECTORS, seed)
    what = "policy against its test vector" if observer is None else "policy and observer against their test vectors"
    states, points = random_inputs(spec, VECTORS, seed)
    expected = exact_commands(spec, layers, states, points, control)
    memory, before, given = "", "", ""
    if control is not None:
        memories = np.stack(starting_memories(spec, control, states))
        memory = c_array("float", "memories", memories)
        before = f"""        float base[{upper}_BASE_MEMORY];
        for (int i = 0; i < {upper}_BASE_MEMORY; i++) base[i] = memories[v * {upper}_BASE_MEMORY + i];
"""
        given = "base, "
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return f"""/* Checks the {what}: cc -std=c99 -O3 {name}_policy.c {name}_policy_test.c -lm */
#include "{name}_policy.h"

{_same_policy(name, card)}
#include <math.h>
#include <stdio.h>

enum {{ VECTORS = {VECTORS} }};
{c_array("float", "states", states)}{c_array("float", "points", points)}{c_array("float", "expected", expected)}\
{c_array("float", "half", (high - low) / 2)}{memory}{watch}
int main(void)
{{
    const double allowed = {card.tolerance:.3g}; /* rounding in single precision */
    double worst = 0.0;
    for (int v = 0; v < VECTORS; v++) {{
        float command[{upper}_COMMANDS];
{before}        {name}_evaluate(states + v * {upper}_STATE, points + v * {upper}_POINTS * {upper}_OUTPUTS, {given}\
command);
        for (int i = 0; i < {upper}_COMMANDS; i++) {{
            const double off = fabs(((double)command[i] - expected[v * {upper}_COMMANDS + i]) / half[i]);
            if (!(off <= worst)) worst = off;
        }}
    }}
    printf("largest difference %.3g of half a command range; allowed is %.3g\\n", worst, allowed);
{watching}    return worst <= allowed ? 0 : 1;
}}
"""
