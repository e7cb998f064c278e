"""What runs on a robot: a policy and, where there is one, the observer whose estimate it sees."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from firsthand_onboard import ControlSpec, NumpyController, NumpyObserver, NumpyPolicy
from firsthand_onboard.base_control import NumpyBase
from firsthand_onboard.numpy_observer import has_observer, observer_arrays, observer_from_arrays
from firsthand_onboard.observer import ObserverParameters, ObserverSettings, register_gain, register_taps

from .networks import Dynamics, Layers, Policy

NEVER_CLIPPED = 1e6
"""Change scales that no innovation reaches."""


class Observer(eqx.Module):
    """The learned observer (`firsthand_onboard.observer`) as a pytree: its parameters can be trained."""

    parameters: ObserverParameters
    settings: ObserverSettings = eqx.field(static=True)
    spec: ControlSpec = eqx.field(static=True)

    @staticmethod
    def register(dynamics: Dynamics, settings: ObserverSettings | None = None) -> "Observer":
        """The observer that is the plain register, with this model: where learning begins."""
        spec = dynamics.spec
        unit = jnp.asarray(spec.scales.change_scale)
        gain, taps = (jnp.asarray(part, unit.dtype) for part in (register_gain(spec), register_taps(spec)))
        parameters = ObserverParameters(dynamics.layers, dynamics.change_scale, gain, taps, NEVER_CLIPPED * unit)
        return Observer(parameters, settings or ObserverSettings.of(spec), spec)

    def arrays(self) -> dict[str, np.ndarray]:
        """The observer as named arrays, for a file."""
        return observer_arrays(self)

    @staticmethod
    def from_arrays(spec: ControlSpec, arrays: Mapping[str, np.ndarray]) -> "Observer":
        """The observer from named arrays; others are ignored."""
        parameters, settings = observer_from_arrays(spec, arrays)
        return Observer(jax.tree.map(jnp.asarray, parameters), settings, spec)


class Controller(eqx.Module):
    """A policy with its observer; without one the policy sees the plain register of measurements and commands."""

    policy: Policy
    observer: Observer | None = None

    def __call__(
        self, state: Float[Array, " state"], preview: Float[Array, "points outputs"]
    ) -> Float[Array, " commands"]:
        """The policy's command in a state: the observer's estimate, or the register."""
        return self.policy(state, preview)

    @property
    def layers(self) -> Layers:
        """The policy's weights."""
        return self.policy.layers

    @property
    def spec(self) -> ControlSpec:
        """The policy's specification."""
        return self.policy.spec

    def arrays(self) -> dict[str, np.ndarray]:
        """Policy and observer as named arrays, for a file."""
        return {**self.policy.arrays(), **({} if self.observer is None else self.observer.arrays())}

    @staticmethod
    def from_arrays(spec: ControlSpec, arrays: Mapping[str, np.ndarray]) -> "Controller":
        """Policy and observer from named arrays; others are ignored."""
        observer = Observer.from_arrays(spec, arrays) if has_observer(arrays) else None
        return Controller(Policy.from_arrays(spec, arrays), observer)

    def for_robot(self) -> NumpyController:
        """The same in numpy, as a robot runs it."""
        spec, single = self.spec, np.float32
        control = self.policy.control
        base = None if control is None else NumpyBase(spec, control)
        layers = [(np.asarray(w, single), np.asarray(b, single)) for w, b in self.policy.layers]
        policy = NumpyPolicy(spec, layers, base)
        return NumpyController(policy, None if self.observer is None else NumpyObserver.of(spec, self.observer))


def as_controller(policy: Policy | Controller) -> Controller:
    """A bare policy as a controller without an observer."""
    return policy if isinstance(policy, Controller) else Controller(policy)
