"""Stopping and resuming a learner gives the same bits as never having stopped."""

from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from firsthand.runs import RunFolder, pytrees

OPTIMIZER = optax.adam(1e-2)


class LearnerState(NamedTuple):
    network: eqx.nn.MLP
    optimizer: optax.OptState
    key: jax.Array
    steps: jax.Array


def initial(seed: int) -> LearnerState:
    network_key, key = jax.random.split(jax.random.key(seed))
    network = eqx.nn.MLP(2, 1, 16, 2, key=network_key)
    return LearnerState(network, OPTIMIZER.init(eqx.filter(network, eqx.is_array)), key, jnp.zeros((), jnp.int32))


@eqx.filter_jit
def episode(state: LearnerState) -> LearnerState:
    key, data_key = jax.random.split(state.key)
    x = jax.random.normal(data_key, (32, 2))

    def loss(network: eqx.nn.MLP) -> jax.Array:
        return jnp.mean((jax.vmap(network)(x)[:, 0] - jnp.sin(x).prod(1)) ** 2)

    updates, optimizer = OPTIMIZER.update(eqx.filter_grad(loss)(state.network), state.optimizer)
    return LearnerState(eqx.apply_updates(state.network, updates), optimizer, key, state.steps + 1)


def train(path: Path, episodes: int) -> None:
    if path.exists():
        run = RunFolder.open(path, writer=True)
        done, arrays, _, _ = run.load_checkpoint()
        # Another seed: what is restored must come from the file alone.
        state = pytrees.from_arrays(initial(99), arrays)
        run.rewind(done)
    else:
        run = RunFolder.create(path, {}, provenance={})
        done, state = 0, initial(0)
    with run:
        for k in range(done + 1, episodes + 1):
            state = episode(state)
            run.save_checkpoint(k, pytrees.to_arrays(state), {"episode": k})


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    train(tmp_path / "whole", 6)
    for episodes in (2, 3, 6):
        train(tmp_path / "parts", episodes)
    for k in (4, 5, 6):
        name = f"checkpoints/{k:06d}.safetensors"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
