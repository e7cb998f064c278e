"""The observer as C99: what `firsthand_onboard.observer.observe` computes, with its state in a struct."""

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.numpy_observer import Observer
from firsthand_onboard.observer import predicted_entries

from .accuracy import exact_observations, random_observations
from .c_values import c_array, c_number, network_calls, network_tables
from .card import ModelCard


def observer_definitions(name: str, observer: Observer | None) -> str:
    """Its settings as constants of the header."""
    if observer is None:
        return ""
    upper, settings = name.upper(), observer.settings
    return f"""#define {upper}_MAX_MISSING {settings.max_missing} /* steps without a measurement that are predicted */
#define {upper}_RESTART_AFTER {settings.restart_after} /* clipped innovations in a row after which an entry restarts */
"""


def observer_header(name: str, observer: Observer | None) -> str:
    """The struct and the functions of the header."""
    if observer is None:
        return ""
    upper = name.upper()
    return f"""/* The estimate, with what the observer counts for each measurement. */
typedef struct {{
    float state[{upper}_STATE]; /* measurements, the newest first, then commands, the newest first */
    int clipped[{upper}_MEASURED]; /* innovations in a row that were too large; negative: too far below */
    int missing[{upper}_MEASURED]; /* steps since the last measurement */
    int restarts[{upper}_MEASURED]; /* how often the estimate restarted from the measurement */
}} {name}_observer;

/* Before a motion and after a pause: the robot has been standing like this, with this command. {name}_begin and
 * {name}_step call this and the next function. */
void {name}_observer_start({name}_observer *observer, const float *measured, const float *command);

/* One control period: this command was applied (it must be finite), then this was measured. Returns the status. */
int {name}_observer_step({name}_observer *observer, const float *command, const float *measured);

"""


def observer_source(name: str, spec: ControlSpec, observer: Observer) -> str:
    """The functions of the source, with their constants."""
    given, layout, upper = observer.parameters, spec.layout, name.upper()
    single = np.float32
    entries = predicted_entries(spec)
    limit = single(observer.settings.clip) * np.asarray(given.scale, single)
    gain = np.asarray(given.gain, single).reshape(-1, layout.num_measured)
    outs, calls, out = network_calls("model_", given.layers, linear=True)
    tables = [
        c_array("int", "predicted", np.asarray(entries)),
        c_array("float", "predicted_change", np.asarray(given.change_scale, single)),
        c_array("float", "gain", gain.T),  # by innovation
        c_array("float", "limit", limit),
        *network_tables("model_", given.layers),
    ]
    before = integrate = show = ""
    if layout.velocity:
        count = len(layout.velocity)
        tables += [
            c_array("int", "position", np.asarray(layout.position)),
            c_array("int", "velocity", np.asarray(layout.velocity)),
            c_array("float", "taps", np.asarray(given.taps, single)),
        ]
        before = f"""    float before[{count}];
    for (int v = 0; v < {count}; v++) before[v] = state[velocity[v]];
"""
        integrate = f"""    for (int v = 0; v < {count}; v++)
        state[position[v]] += {c_number(0.5 * spec.period_s)} * (before[v] + state[velocity[v]]);
"""
        show = f"""    for (int v = 0; v < {count}; v++) {{
        expected[velocity[v]] = 0.0f;
        for (int j = 0; j <= EARLIER; j++)
            expected[velocity[v]] += taps[j * {count} + v] * state[j * MEASURED + velocity[v]];
    }}
"""
    return f"""/* The observer. */
{"".join(tables)}
/* The model's next state. */
static void predict(float *state, const float *command)
{{
    float features[STATE + COMMANDS], {outs};
    int at = robot_features(state, features);
    for (int i = 0; i < COMMANDS; i++) features[at++] = (command[i] - middle[i]) / half[i];
{calls}{before}    move_on(state, command);
    for (int i = 0; i < {len(entries)}; i++) state[predicted[i]] += predicted_change[i] * {out}[i];
{integrate}}}

/* What the sensors show in this state. */
static void expect(const float *state, float *expected)
{{
    for (int i = 0; i < MEASURED; i++) expected[i] = state[i];
{show}}}

void {name}_observer_start({name}_observer *observer, const float *measured, const float *command)
{{
    stand(observer->state, measured, command);
    for (int i = 0; i < MEASURED; i++) observer->clipped[i] = observer->missing[i] = observer->restarts[i] = 0;
}}

int {name}_observer_step({name}_observer *observer, const float *command, const float *measured)
{{
    float *state = observer->state, innovation[MEASURED], correction[FIRST_COMMAND] = {{0}};
    int status = 0;
    predict(state, command);
    expect(state, innovation);
    for (int i = 0; i < MEASURED; i++) {{
        innovation[i] = isfinite(measured[i]) ? measured[i] - innovation[i] : 0.0f;
        if (!isfinite(measured[i])) continue;
        if (fabsf(innovation[i]) > limit[i]) {{
            if (innovation[i] > 0.0f) {{
                innovation[i] = limit[i];
                observer->clipped[i] = observer->clipped[i] > 0 ? observer->clipped[i] + 1 : 1;
            }} else {{
                innovation[i] = -limit[i];
                observer->clipped[i] = observer->clipped[i] < 0 ? observer->clipped[i] - 1 : -1;
            }}
            status |= {upper}_CLIPPED;
        }} else {{
            observer->clipped[i] = 0;
        }}
    }}
    for (int i = 0; i < MEASURED; i++) {{
        const float share = innovation[i] / change[i];
        for (int k = 0; k < FIRST_COMMAND; k++) correction[k] += gain[i * FIRST_COMMAND + k] * share;
    }}
    for (int k = 0; k < FIRST_COMMAND; k++) state[k] += change[k % MEASURED] * correction[k];
    for (int i = 0; i < MEASURED; i++) {{
        if (!isfinite(measured[i])) {{
            if (observer->missing[i] < INT_MAX) observer->missing[i]++;
            status |= observer->missing[i] > {upper}_MAX_MISSING ? {upper}_MISSING | {upper}_LOST : {upper}_MISSING;
            continue;
        }}
        const int row = observer->clipped[i] < 0 ? -observer->clipped[i] : observer->clipped[i];
        int restart = row >= {upper}_RESTART_AFTER || observer->missing[i] > {upper}_MAX_MISSING;
        for (int j = 0; j <= EARLIER; j++)
            if (!isfinite(state[j * MEASURED + i])) restart = 1;
        observer->missing[i] = 0;
        if (!restart) continue;
        for (int j = 0; j <= EARLIER; j++) state[j * MEASURED + i] = measured[i];
        observer->clipped[i] = 0;
        if (observer->restarts[i] < INT_MAX) observer->restarts[i]++;
        status |= {upper}_RESTARTED;
    }}
    return status;
}}

"""


def observer_test(
    name: str, spec: ControlSpec, observer: Observer, card: ModelCard, vectors: int, seed: int
) -> tuple[str, str]:
    """Of the test program: the test vector, and the statements of `main` that check it."""
    upper = name.upper()
    given = random_observations(spec, observer, vectors, seed)
    wanted = exact_observations(spec, observer, given)
    tables = [
        c_array("float", "before", given.carry.state),
        c_array("int", "before_clipped", np.asarray(given.carry.clipped, int)),
        c_array("int", "before_missing", np.asarray(given.carry.missing, int)),
        c_array("float", "applied", given.commands),
        c_array("float", "measured", given.measured),
        c_array("float", "after", wanted.state),
        c_array("int", "after_clipped", np.asarray(wanted.clipped, int)),
        c_array("int", "after_missing", np.asarray(wanted.missing, int)),
        c_array("int", "after_restarts", np.asarray(wanted.restarts, int)),
        c_array("float", "change", spec.scales.change_scale),
    ]
    return (
        "".join(tables),
        f"""    const double allowed_estimate = {card.observer_tolerance:.3g};
    double worst_estimate = 0.0;
    int miscounted = 0;
    for (int v = 0; v < VECTORS; v++) {{
        const int first = v * {upper}_MEASURED;
        {name}_observer observer;
        {name}_observer_start(&observer, measured + first, applied + v * {upper}_COMMANDS);
        for (int i = 0; i < {upper}_STATE; i++) observer.state[i] = before[v * {upper}_STATE + i];
        for (int i = 0; i < {upper}_MEASURED; i++) {{
            observer.clipped[i] = before_clipped[first + i];
            observer.missing[i] = before_missing[first + i];
        }}
        {name}_observer_step(&observer, applied + v * {upper}_COMMANDS, measured + first);
        for (int i = 0; i < {spec.layout.command_start}; i++) {{
            const double unit = change[i % {upper}_MEASURED];
            const double off = fabs((double)observer.state[i] - after[v * {upper}_STATE + i]) / unit;
            if (!(off <= worst_estimate)) worst_estimate = off;
        }}
        for (int i = 0; i < {upper}_MEASURED; i++)
            miscounted += observer.clipped[i] != after_clipped[first + i] ||
                          observer.missing[i] != after_missing[first + i] ||
                          observer.restarts[i] != after_restarts[first + i];
    }}
    printf("observer: largest difference %.3g change scales; allowed is %.3g; %d counted wrongly\\n", worst_estimate,
           allowed_estimate, miscounted);
    if (!(worst_estimate <= allowed_estimate) || miscounted) return 1;
""",
    )
