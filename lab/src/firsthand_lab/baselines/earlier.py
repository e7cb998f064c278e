"""The two earlier approaches of the paper's table 1, rebuilt on our excavator.

`simulator`: Egli & Hutter 2022. The machine is moved about at random, a network learns from the log how it moves, and
PPO trains a policy in that learned simulator; the policy then runs on the machine as it is.

`randomised`: Nan & Hutter 2024. PPO trains one policy over many machines that differ in payload, oil and valve gains;
the policy is told in numbers which machine it is on. A second network learns to read these numbers off the last two
seconds of motion, and stands in for them on the machine. The simulated family contains the true machine, which is
more than its authors had.

Both leave `speeds.csv` in the form of the plain run's, so that `tracking-table` shows them beside ours.
"""

# PyTorch and stable-baselines3 are the extra `peers`, which need not be installed.
# pyright: reportMissingImports=false

from collections import deque
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from firsthand.evaluation import tracking_metrics
from firsthand.plants.base import AbstractPlant
from firsthand.plants.wrapped import AbstractWrapper
from firsthand.robots.simulated import SimulatedRobot
from firsthand.tasks import Task

from ..experiments import files
from ..experiments.base import Job, Report
from ..experiments.learning import SPEEDS, write_rows
from .fleet import fleet
from .sb3 import require
from .setup import plant_and_task
from .view import Controller, Stepper, on_random, on_shapes

RUNNER = f"{__name__}:run"
FLEET = 64
"""Robots side by side."""
PPO_SETTINGS: dict[str, Any] = {
    "n_steps": 125,
    "batch_size": 2000,
    "n_epochs": 8,
    "learning_rate": 3e-4,
    "policy_kwargs": {"net_arch": [128, 128]},
}
"""Otherwise the defaults of stable-baselines3; batches for 64 robots instead of one. Observations are in fixed scales,
rewards are normalised."""
LOG_MINUTES = 60.0
"""Robot time of random motion for the learned simulator."""
LOOKS, EVERY = 10, 5
"""Observations that the estimator sees, and the control periods between them: two seconds."""
HELD_OUT = 8
"""Machines on which the estimator is judged and not fitted."""
SPREAD = 0.25
"""Valve gains are drawn from 1 − this to 1 + this, each joint and direction by itself."""


class Varied(AbstractWrapper):
    """An excavator whose valves answer more or less strongly than they should."""

    stronger: Float[Array, "2 4"]
    """Factor on commands above and below zero."""

    def reset(self, position: Float[Array, "4"]) -> Any:
        """As for the excavator."""
        return self.plant.reset(position)

    def step(self, state: Any, command: Float[Array, "4"], *, key: PRNGKeyArray) -> Any:
        """The excavator's step with the stronger or weaker command."""
        changed = command * jnp.where(command > 0, self.stronger[0], self.stronger[1])
        return self.plant.step(state, changed, key=key)

    def measure(self, state: Any, *, key: PRNGKeyArray) -> Any:
        """As for the excavator."""
        return self.plant.measure(state, key=key)


def family(plant: Any, count: int, seed: int) -> tuple[Varied, np.ndarray]:
    """Machines that differ, stacked, and in numbers of order one how: payload, oil, eight gains."""
    rng = np.random.default_rng(seed)
    numbers = rng.uniform(-1.0, 1.0, (count, 10)).astype(np.float32)

    def machine(row: np.ndarray) -> Varied:
        changed = plant.with_payload(float(450.0 * (row[0] + 1)))
        oil = jnp.asarray(50.0 + 25.0 * row[1], plant.oil_temperature_c.dtype)
        changed = eqx.tree_at(lambda p: p.oil_temperature_c, changed, oil)
        return Varied(changed, jnp.asarray(1.0 + SPREAD * row[2:].reshape(2, 4)))

    machines = [machine(row) for row in numbers]
    arrays, fixed = zip(*(eqx.partition(m, eqx.is_array) for m in machines), strict=True)
    return eqx.combine(jax.tree.map(lambda *a: jnp.stack(a), *arrays), fixed[0]), numbers


def job(approach: str, seed: int, *, steps: int, speeds: tuple[float, ...], tiny: bool = False) -> Job:
    """One approach and seed; `steps` control steps of all simulated robots together."""
    parameters = {"approach": approach, "seed": seed, "steps": steps, "speeds": list(speeds), "tiny": tiny}
    return Job(f"{approach}-seed-{seed}", RUNNER, parameters, steps=100, weight=steps / 1e6)


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Train in simulation, then run on the machine; an interrupted job begins anew."""
    require("ppo")
    import torch

    torch.set_num_threads(1)
    plant, task = plant_and_task("excavator", tiny=parameters["tiny"])
    seed, facts = parameters["seed"], {}
    if parameters["approach"] == "simulator":
        learned = learned_simulator(plant, task, seed, minutes=2.0 if parameters["tiny"] else LOG_MINUTES)
        report(5, "simulator learned")
        stepper = Stepper(learned, task)
        model = train_policy(fleet(stepper, FLEET, seed=seed), parameters, report)
        controller: Controller = Greedy(model)
        facts["in_simulation_m"] = tracking_metrics(task.spec, on_random(stepper, controller)).mean_error
    else:
        machines, numbers = family(plant, FLEET, seed)
        robots = fleet(Stepper(machines, task, each=True), FLEET, seed=seed, extra=numbers)
        model = train_policy(robots, parameters, report)
        estimator = Estimator.learn(model, robots, numbers, seed, rounds=2 if parameters["tiny"] else 30)
        controller = Adaptive(model, estimator)
        facts["estimate_r2"] = estimator.explained
    write_speeds(folder, Stepper(plant, task), controller, parameters)
    files.write_json(folder / "facts.json", facts)
    report(100, "done")


def learned_simulator(plant: Any, task: Task, seed: int, *, minutes: float) -> AbstractPlant:
    """A network that moves like the machine, from its log."""
    from firsthand.logs.base import Series
    from firsthand.simulators import FitSettings, fit, record

    series = []
    for episode in record(SimulatedRobot(plant, task, seed=seed), minutes, seed=seed):
        series += [
            Series(y, u, start) for y, u, start in zip(episode.measured, episode.commands, episode.starts, strict=True)
        ]
    small: dict[str, Any] = {"steps": 20, "rollout_steps": 5} if minutes < LOG_MINUTES else {}
    return fit(task.spec, series, FitSettings(seed=seed, **small))


def train_policy(robots: Any, parameters: dict[str, Any], report: Report) -> Any:
    """PPO on the simulated robots."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import VecNormalize

    total, seed = parameters["steps"], parameters["seed"]
    settings = {**PPO_SETTINGS, **({"n_steps": 20, "batch_size": 640} if parameters["tiny"] else {})}
    wrapped = VecNormalize(robots, norm_obs=False, norm_reward=True)
    model = PPO("MlpPolicy", wrapped, seed=seed, device="cpu", **settings)

    class Shown(BaseCallback):
        """Says how far it is."""

        def _on_rollout_end(self) -> None:
            share = min(self.num_timesteps / total, 1.0)
            report(int(5 + 85 * share), f"{self.num_timesteps / 1e6:.1f} M steps in simulation")

        def _on_step(self) -> bool:
            return True

    model.set_logger(Logger(None, []))  # its own would leave a folder in /tmp
    model.learn(total, callback=Shown())
    return model


class Greedy(Controller):
    """PPO's policy without exploration."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1]."""
        return self.model.predict(seen, deterministic=True)[0]


class Past:
    """The last two seconds of several robots."""

    def __init__(self, count: int, size: int) -> None:
        self.rows: deque[np.ndarray] = deque([np.zeros((count, size), np.float32)] * (LOOKS * EVERY), LOOKS * EVERY)

    def add(self, seen: np.ndarray) -> np.ndarray:
        """After one more observation: `(robots, LOOKS · size)`."""
        self.rows.append(seen.astype(np.float32))
        return np.concatenate([self.rows[i] for i in range(EVERY - 1, LOOKS * EVERY, EVERY)], axis=1)


class Estimator:
    """Which machine is this? A network that reads it off the motion."""

    def __init__(self, network: Any, explained: float) -> None:
        self.network, self.explained = network, explained

    def __call__(self, past: np.ndarray) -> np.ndarray:
        """The numbers of each robot's machine."""
        import torch

        with torch.no_grad():
            return self.network(torch.as_tensor(past)).clamp(-1.0, 1.0).numpy()

    @staticmethod
    def learn(model: Any, robots: Any, numbers: np.ndarray, seed: int, rounds: int) -> "Estimator":
        """From trajectories of the trained policy on the machines it was trained on, but for `HELD_OUT` of them."""
        import torch

        size = robots.observation_space.shape[0] - numbers.shape[1]
        data, wanted = [], []
        past, seen = Past(len(numbers), size), robots.reset()
        for k in range(rounds * LOOKS * EVERY):
            looked = past.add(seen[:, :size])
            if k >= LOOKS * EVERY and k % EVERY == 0:
                data.append(looked)
                wanted.append(numbers)
            robots.step_async(model.predict(seen, deterministic=False)[0])
            seen = robots.step_wait()[0]
        machines = [slice(None, -HELD_OUT), slice(-HELD_OUT, None)]
        (x, y), (new_x, new_y) = (
            [torch.as_tensor(np.concatenate([rows[some] for rows in part])) for part in (data, wanted)]
            for some in machines
        )
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], 128),
            torch.nn.Tanh(),
            torch.nn.Linear(128, 128),
            torch.nn.Tanh(),
            torch.nn.Linear(128, y.shape[1]),
        )
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(60 * rounds):
            rows = torch.randint(len(x), (256,), generator=generator)
            loss = torch.mean((network(x[rows]) - y[rows]) ** 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            left = float(torch.mean((network(new_x) - new_y) ** 2) / torch.var(new_y))
        return Estimator(network, 1.0 - left)


class Adaptive(Controller):
    """The policy with estimated numbers in place of the true ones."""

    def __init__(self, model: Any, estimator: Estimator) -> None:
        self.model, self.estimator = model, estimator
        self.past: Past | None = None

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1]; what was learned of a machine is kept from one trajectory to the next."""
        if self.past is None or len(self.past.rows[0]) != len(seen):
            self.past = Past(*seen.shape)
        numbers = self.estimator(self.past.add(seen))
        return self.model.predict(np.concatenate([seen, numbers], axis=1), deterministic=True)[0]


def write_speeds(folder: Path, stepper: Stepper, controller: Controller, parameters: dict[str, Any]) -> None:
    """Table 1 at several speeds, and on random references (with an empty speed)."""
    spec, rows = stepper.task.spec, []

    def add(speed: float, reference: str, records: Any) -> None:
        metrics = tracking_metrics(spec, records).as_dict()
        rows.append({"speed": speed, "episode": 0, "seed": parameters["seed"], "reference": reference, **metrics})

    add(float("nan"), "random", on_random(stepper, controller))
    for speed in parameters["speeds"]:
        add(speed, "together", on_shapes(stepper, controller, speed))
    write_rows(folder / SPEEDS, rows)
