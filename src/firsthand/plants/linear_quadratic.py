"""The best controllers of a linear plant that tracks a known reference: what a learner can at best reach.

The system is x_{k+1} = A x_k + B u_k with the state

    x_k = [measured…, u_{k-1} (all channels), u_{k-2}, …, u_{k-memory}],

and the cost of one trajectory with the reference r_0 … r_{H-1} is the mean over steps

    c = 1/H Σ_{k=0}^{H-1}  |C x_k − r_k|² / L²  +  w |u_k − u_{k-1}|²,

where u_{-1} is part of x_0, L is `length_scale` and w is `change_weight`. Nothing is charged for x_H.

Two answers are computed, both in numpy float64:

- `solve_tracking`: the optimum over all controllers. Its gains depend on the step, and it knows the whole reference.
- `solve_preview`: one gain for all steps and a window of the reference, as a learned policy has. It is optimal when
  the horizon has no end. Over a finite horizon it costs a little more than the optimum, mostly because near the end it
  still prepares for what never comes: the less so, the more nearly the reference is at rest there. The best
  time-invariant policy with this window lies between the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import scipy.linalg
from jaxtyping import Float

from firsthand.plants.base import AbstractPlant
from firsthand.plants.probes import DelayedDoubleIntegrator, ScalarPlant


@dataclass(frozen=True)
class LinearSystem:
    """x⁺ = A x + B u, y = C x, u_{k-1} = S x_k."""

    A: Float[np.ndarray, "state state"]
    """∂x_{k+1}/∂x_k."""
    B: Float[np.ndarray, "state commands"]
    """∂x_{k+1}/∂u_k."""
    C: Float[np.ndarray, "outputs state"]
    """Picks the tracked output."""
    S: Float[np.ndarray, "commands state"]
    """Picks the previous command."""


def augment(
    transition: Float[np.ndarray, "measured measured"],
    inputs: Float[np.ndarray, "measured commands"],
    output: Float[np.ndarray, "outputs measured"],
    *,
    delay: int,
    command_memory: int,
) -> LinearSystem:
    """The system with a register of the last `command_memory` commands, in which u_{k-delay} acts at step k.

    The measured part follows m_{k+1} = `transition` m_k + `inputs` u_{k-delay}, and y_k = `output` m_k. The register
    must hold u_{k-1}, for the cost of change, and u_{k-delay}: `command_memory` is at least 1 and at least `delay`.
    """
    if delay < 0:
        raise ValueError(f"delay must be 0 or more, not {delay}.")
    if command_memory < max(1, delay):
        raise ValueError(
            f"command_memory must be at least {max(1, delay)} (1, and the delay of {delay}), not {command_memory}."
        )
    measured, commands = inputs.shape
    size = measured + command_memory * commands

    def register(age: int) -> slice:
        """Where u_{k-age} is in x_k, age ≥ 1."""
        return slice(measured + (age - 1) * commands, measured + age * commands)

    A, B = np.zeros((size, size)), np.zeros((size, commands))
    C, S = np.zeros((output.shape[0], size)), np.zeros((commands, size))
    A[:measured, :measured] = transition
    if delay == 0:
        B[:measured] = inputs
    else:
        A[:measured, register(delay)] = inputs
    B[register(1)] = np.eye(commands)
    for age in range(2, command_memory + 1):
        A[register(age), register(age - 1)] = np.eye(commands)
    C[:, :measured] = output
    S[:, register(1)] = np.eye(commands)
    return LinearSystem(A, B, C, S)


@singledispatch
def augmented_system(plant: AbstractPlant, command_memory: int) -> LinearSystem:
    """The linear system of a probe plant with the last `command_memory` commands in its state.

    The tracked output is x of `ScalarPlant` and the position of `DelayedDoubleIntegrator`.
    """
    raise TypeError(f"{type(plant).__name__} has no linear system: only the probe plants are linear.")


@augmented_system.register
def _(plant: ScalarPlant, command_memory: int) -> LinearSystem:
    transition, inputs = np.array([[float(plant.a)]]), np.array([[float(plant.b)]])
    return augment(transition, inputs, np.eye(1), delay=0, command_memory=command_memory)


@augmented_system.register
def _(plant: DelayedDoubleIntegrator, command_memory: int) -> LinearSystem:
    period = plant.period_s
    transition = np.array([[1.0, period], [0.0, 1.0]])
    inputs = float(plant.gain) * np.array([[0.5 * period**2], [period]])
    output = np.array([[1.0, 0.0]])
    return augment(transition, inputs, output, delay=plant.delay, command_memory=command_memory)


@dataclass(frozen=True)
class Trajectory:
    """One closed-loop run and what it cost."""

    states: Float[np.ndarray, "steps state"]
    """x_0 … x_{H-1}."""
    commands: Float[np.ndarray, "steps commands"]
    """u_0 … u_{H-1}."""
    cost: float
    """The mean over steps; see the module's formula."""


def simulate(
    system: LinearSystem,
    reference: Float[np.ndarray, "steps outputs"],
    initial_state: Float[np.ndarray, " state"],
    policy: Callable[[int, np.ndarray], np.ndarray],
    *,
    length_scale: float,
    change_weight: float,
) -> Trajectory:
    """Run u_k = `policy(k, x_k)` from `initial_state` along `reference`."""
    _check_weights(length_scale, change_weight)
    states, commands = [], []
    state = np.asarray(initial_state, dtype=np.float64)
    for k in range(len(reference)):
        command = policy(k, state)
        states.append(state)
        commands.append(command)
        state = system.A @ state + system.B @ command
    states, commands = np.stack(states), np.stack(commands)
    error = (states @ system.C.T - reference) / length_scale
    change = commands - states @ system.S.T
    cost = (np.sum(error**2) + change_weight * np.sum(change**2)) / len(reference)
    return Trajectory(states, commands, float(cost))


@dataclass(frozen=True)
class TrackingSolution:
    """The finite-horizon optimum for one known reference: u_k = −K_k x_k + d_k."""

    gains: Float[np.ndarray, "steps commands state"]
    """K_k."""
    feedforward: Float[np.ndarray, "steps commands"]
    """d_k."""
    value_matrix: Float[np.ndarray, "state state"]
    """P_0; see `cost`."""
    value_vector: Float[np.ndarray, " state"]
    """q_0; see `cost`."""
    value_constant: float
    """s_0; see `cost`."""

    def command(self, k: int, state: Float[np.ndarray, " state"]) -> Float[np.ndarray, " commands"]:
        """The optimal command at step k: −K_k x + d_k."""
        return self.feedforward[k] - self.gains[k] @ state

    def cost(self, initial_state: Float[np.ndarray, " state"]) -> float:
        """The optimal mean cost from x_0: (x_0ᵀ P_0 x_0 + 2 q_0ᵀ x_0 + s_0) / H.

        Its terms are of the size of |r|² / L² and cancel: the absolute error is about 1e-16 of that.
        """
        quadratic = initial_state @ self.value_matrix @ initial_state
        linear = 2.0 * self.value_vector @ initial_state
        return float(quadratic + linear + self.value_constant) / len(self.gains)


def solve_tracking(
    system: LinearSystem,
    reference: Float[np.ndarray, "steps outputs"],
    *,
    length_scale: float,
    change_weight: float,
) -> TrackingSolution:
    """The controller of least cost for this reference, by the Riccati recursion with its affine term.

    The cost still to come, summed and not averaged, is V_k(x) = xᵀ P_k x + 2 q_kᵀ x + s_k, with V_H = 0. At step k,
    with P, q, s of step k + 1 on the right,

        M = w I + Bᵀ P B,   N = Bᵀ P A − w S,   K_k = M⁻¹ N,   d_k = −M⁻¹ Bᵀ q
        P_k = Cᵀ C / L² + w Sᵀ S + Aᵀ P A − Nᵀ M⁻¹ N
        q_k = −Cᵀ r_k / L² + (A − B K_k)ᵀ q
        s_k = |r_k|² / L² + s − qᵀ B M⁻¹ Bᵀ q.
    """
    _check_weights(length_scale, change_weight)
    A, B, C, S = system.A, system.B, system.C, system.S
    steps, (size, commands) = len(reference), B.shape
    state_cost = C.T @ C / length_scale**2 + change_weight * S.T @ S
    gains, feedforward = np.zeros((steps, commands, size)), np.zeros((steps, commands))
    P, q, s = np.zeros((size, size)), np.zeros(size), 0.0
    for k in reversed(range(steps)):
        M = change_weight * np.eye(commands) + B.T @ P @ B
        N = B.T @ P @ A - change_weight * S
        gains[k] = np.linalg.solve(M, N)
        feedforward[k] = -np.linalg.solve(M, B.T @ q)
        s += reference[k] @ reference[k] / length_scale**2 + q @ B @ feedforward[k]
        q = (A - B @ gains[k]).T @ q - C.T @ reference[k] / length_scale**2
        P = state_cost + A.T @ P @ A - N.T @ gains[k]
        P = 0.5 * (P + P.T)
    return TrackingSolution(gains, feedforward, P, q, float(s))


@dataclass(frozen=True)
class PreviewPolicy:
    """One linear policy for every step: u_k = −K x_k + Σ_{j=0}^{preview} G_j r_{k+j}."""

    gain: Float[np.ndarray, "commands state"]
    """K."""
    preview_gains: Float[np.ndarray, "window commands outputs"]
    """G_j multiplies r_{k+j}, j = 0 … preview. G_0 is zero when preview ≥ 1: at step k its error is already decided."""

    def command(
        self,
        k: int,
        state: Float[np.ndarray, " state"],
        reference: Float[np.ndarray, "steps outputs"],
    ) -> Float[np.ndarray, " commands"]:
        """The command at step k. After its last step the reference keeps its last value."""
        window = np.minimum(k + np.arange(len(self.preview_gains)), len(reference) - 1)
        return np.einsum("jco,jo->c", self.preview_gains, reference[window]) - self.gain @ state


def solve_preview(system: LinearSystem, *, preview: int, length_scale: float, change_weight: float) -> PreviewPolicy:
    """The policy of least cost over an endless horizon that sees r_k … r_{k+preview}.

    K and P are the fixed point of the recursion in `solve_tracking`; with F = A − B K and M = w I + Bᵀ P B, the
    reference j ≥ 1 steps ahead enters with M⁻¹ Bᵀ (Fᵀ)^{j−1} Cᵀ / L². What lies beyond the window is taken to be equal
    to the last value in it, so the gains of all later steps, a geometric series, are added to the last G_j.
    """
    _check_weights(length_scale, change_weight)
    if preview < 0:
        raise ValueError(f"preview must be 0 or more, not {preview}.")
    A, B, C, S = system.A, system.B, system.C, system.S
    size, commands = B.shape
    state_cost = C.T @ C / length_scale**2 + change_weight * S.T @ S
    command_cost = change_weight * np.eye(commands)
    P = scipy.linalg.solve_discrete_are(A, B, state_cost, command_cost, s=-change_weight * S.T)
    M = command_cost + B.T @ P @ B
    gain = np.linalg.solve(M, B.T @ P @ A - change_weight * S)
    closed = A - B @ gain

    weight = C.T / length_scale**2
    vectors = []
    for _ in range(preview):
        vectors.append(weight)
        weight = closed.T @ weight
    tail = np.linalg.solve(np.eye(size) - closed.T, weight)
    # vectors[j - 1] belongs to r_{k+j}; the last entry of the window also stands for everything after it.
    entries = [np.zeros_like(tail), *vectors]
    entries[-1] = entries[-1] + tail
    gains = np.stack([np.linalg.solve(M, B.T @ entry) for entry in entries])
    return PreviewPolicy(gain, gains)


def preview_policy_cost(
    system: LinearSystem,
    reference: Float[np.ndarray, "steps outputs"],
    initial_state: Float[np.ndarray, " state"],
    *,
    preview: int,
    length_scale: float,
    change_weight: float,
) -> float:
    """What the policy of `solve_preview` costs over this reference.

    It is never below `solve_tracking(…).cost(initial_state)`, and a time-invariant learned policy with the same window
    can reach it. It can even go slightly below, because it may learn that trajectories end.
    """
    weights = {"length_scale": length_scale, "change_weight": change_weight}
    policy = solve_preview(system, preview=preview, **weights)
    run = simulate(system, reference, initial_state, lambda k, state: policy.command(k, state, reference), **weights)
    return run.cost


def _check_weights(length_scale: float, change_weight: float) -> None:
    if not length_scale > 0.0:
        raise ValueError(f"length_scale must be positive, not {length_scale!r}.")
    if not change_weight > 0.0:
        raise ValueError(
            f"change_weight must be positive, not {change_weight!r}: without it the last commands are undetermined."
        )
