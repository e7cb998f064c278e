"""A base that is a function of the user's: `controller(measurement, reference, state) -> (command, state)`."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from firsthand_onboard import ControlSpec

from ..errors import UserError


class FunctionBase(eqx.Module):
    """A user's JAX function as a base of `firsthand_onboard.base_control`; make it with `function_base`."""

    function: Callable[..., Any] = eqx.field(static=True)
    """From measurement, reference now and state to command and state; with `preview`, also the reference ahead."""
    initial: tuple[float, ...] = eqx.field(static=True)
    """Its state when a motion begins, as one vector."""
    unravel: Callable[[Any], Any] = eqx.field(static=True)
    """From that vector to the function's own form."""
    takes_preview: bool = eqx.field(static=True)
    name: str = eqx.field(static=True)
    """Where it comes from, for messages."""
    compiled: Callable[..., Any] = eqx.field(static=True)
    """The same for numpy arrays, where a robot is driven step by step."""

    def initial_memory(self, spec: ControlSpec) -> tuple[float, ...]:
        """The default of its parameter `state`."""
        return self.initial

    def begin(self, spec: ControlSpec, state: Any, memory: Any) -> Any:
        """Its state goes on from trajectory to trajectory."""
        return memory

    def step(self, spec: ControlSpec, state: Any, preview: Any, memory: Any) -> tuple[Any, Any]:
        """Its command."""
        measured = state[: spec.layout.num_measured]
        if isinstance(state, np.ndarray):
            command, memory = self.compiled(measured, preview, memory)
            return np.asarray(command, state.dtype), np.asarray(memory, state.dtype)
        return _call(self.function, self.unravel, self.takes_preview, measured, preview, memory)


def _call(function, unravel, takes_preview: bool, measured: Any, preview: Any, memory: Any) -> tuple[Any, Any]:
    more = {"preview": preview} if takes_preview else {}
    command, state = function(measured, preview[0], unravel(memory), **more)
    flat, _ = ravel_pytree(state)
    return jnp.asarray(command, measured.dtype), jnp.asarray(flat, measured.dtype)


def function_base(function: Any, name: str, spec: ControlSpec) -> FunctionBase:
    """The function as a base of a robot; `UserError` in one sentence where it does not fit.

    Args:
        function: `controller(measurement, reference, state) -> (command, state)`, of JAX. Its state begins as the
            default of its third parameter, `()` without a default. A parameter `preview` gets the reference now and
            ahead, `(1 + preview, outputs)`.
        name: what it is called in messages.
        spec: the robot's.
    """
    if not callable(function):
        raise UserError(
            f"{name} is {function!r}, but a base must be a function controller(measurement, reference, state)."
        )
    names = list(inspect.signature(function).parameters.values())
    if len([p for p in names if p.name != "preview"]) != STATE + 1:
        raise UserError(
            f"{name} takes the parameters ({', '.join(p.name for p in names)}), but a base must take (measurement, "
            "reference, state)."
        )
    default = names[STATE].default
    initial, unravel = ravel_pytree(() if default is inspect.Parameter.empty else default)
    takes_preview = any(p.name == "preview" for p in names)

    @jax.jit
    def compiled(measured, preview, memory):
        return _call(function, unravel, takes_preview, measured, preview, memory)

    flat = tuple(float(v) for v in np.asarray(initial, float).reshape(-1))
    base = FunctionBase(function, flat, unravel, takes_preview, name, compiled)
    _check(base, spec)
    return base


STATE = 2
"""Which parameter of the function is its state."""


def _check(base: FunctionBase, spec: ControlSpec) -> None:
    layout, points = spec.layout, 1 + len(spec.preview)
    measured = np.asarray(spec.scales.measured_center, np.float32)
    preview = np.zeros((points, spec.num_outputs), np.float32)
    inputs = f"a measurement of {layout.num_measured} numbers and a reference of {spec.num_outputs}"
    try:
        command, memory = base.compiled(measured, preview, np.asarray(base.initial, np.float32))
        command, memory = np.asarray(command), np.asarray(memory)
    except Exception as error:
        text = " ".join(str(error).split())[:200].removesuffix(".")
        raise UserError(f"{base.name} raised {type(error).__name__} when called with {inputs}: {text}.") from error
    if command.shape != (layout.num_commands,):
        raise UserError(
            f"{base.name} returns a command of shape {command.shape}, but {spec.robot} takes {layout.num_commands} "
            f"numbers ({', '.join(layout.commands)})."
        )
    if memory.shape != (len(base.initial),):
        raise UserError(
            f"{base.name} returns a state of {memory.size} numbers, but was called with {len(base.initial)}: give its "
            "parameter state a default of the same form."
        )
    if not (np.isfinite(command).all() and np.isfinite(memory).all()):
        raise UserError(f"{base.name} returns {command.tolist()} when called with {inputs}, which is not finite.")
