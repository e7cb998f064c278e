"""The parts of TD-MPC2 against independent answers: regression, networks, losses, plans."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firsthand_lab.baselines.tdmpc2 import Config, learning, networks, planning, regression
from firsthand_lab.baselines.tdmpc2.agent import _plan, _update
from firsthand_lab.baselines.tdmpc2.learning import draw_update_noise, model_loss, policy_loss, value_loss
from firsthand_lab.baselines.tdmpc2.networks import Network, WorldModel, draw_pairs, dropout_mask, member
from firsthand_lab.baselines.tdmpc2.planning import draw_plan_noise

from .tdmpc2_tools import TINY, Line, line_agent, new_model, new_state, normal, perturbed, random_batch, run_episode

# A program each, instead of one per operation.
symexp, symlog = eqx.filter_jit(regression.symexp), eqx.filter_jit(regression.symlog)
two_hot, expected = eqx.filter_jit(regression.two_hot), eqx.filter_jit(regression.expected_value)
cross_entropy = eqx.filter_jit(regression.cross_entropy)
mish, simnorm = eqx.filter_jit(networks.mish), eqx.filter_jit(networks.simnorm)
draw_action, values_of_pair = eqx.filter_jit(networks.draw_action), eqx.filter_jit(networks.values_of_pair)
td_targets, unroll = eqx.filter_jit(learning.td_targets), eqx.filter_jit(planning.unroll)
encode, advance = eqx.filter_jit(WorldModel.encode), eqx.filter_jit(WorldModel.next)


@eqx.filter_jit
def apply(network, *given):
    return network(*given)


@eqx.filter_jit
def value_of(ensemble, which, z, action, config):
    """What one member of the ensemble expects."""
    return regression.expected_value(member(ensemble, which)(z, action), config)


# Regression by classification


def test_two_hot_puts_the_weight_on_the_two_nearest_bins():
    config = Config()
    middles = np.linspace(-10, 10, 101)
    for x in (-1e9, -30.0, -0.05, 0.0, 0.1, 1.0, 77.7, 1e9):
        squeezed = np.clip(np.sign(x) * np.log(1 + abs(x)), -10, 10)
        below = min(np.searchsorted(middles, squeezed, side="right") - 1, 99)
        share = (squeezed - middles[below]) / (middles[below + 1] - middles[below])
        by_hand = np.zeros(101)
        by_hand[below], by_hand[below + 1] = 1 - share, share
        np.testing.assert_allclose(two_hot(jnp.asarray(x), config), by_hand, atol=2e-5)


def test_numbers_survive_the_way_through_the_bins():
    config = Config()
    x = jnp.asarray([-2000.0, -3.0, -0.01, 0.0, 0.5, 12.0, 9000.0])
    np.testing.assert_allclose(symexp(symlog(x)), x, rtol=1e-5)
    logits = jnp.log(two_hot(x, config) + 1e-20)
    np.testing.assert_allclose(expected(logits, config), x, rtol=1e-3, atol=1e-4)


def test_cross_entropy_is_least_at_the_target():
    target = two_hot(jnp.asarray([1.3]), Config())
    at_target = cross_entropy(jnp.log(target + 1e-9), target)
    p = np.asarray(target[0])[np.asarray(target[0]) > 0]
    np.testing.assert_allclose(at_target, [-np.sum(p * np.log(p))], rtol=1e-4)
    assert cross_entropy(jnp.zeros((1, 101)), target)[0] == pytest.approx(np.log(101), rel=1e-5)


# Networks


def test_mish_is_x_tanh_softplus_and_its_slope_is_finite():
    x = jnp.asarray([-200.0, -20.0, -1.0, 0.0, 0.5, 3.0, 25.0, 500.0])
    np.testing.assert_allclose(mish(x), x * np.tanh(np.logaddexp(x, 0.0)), rtol=1e-5, atol=1e-7)
    assert np.isfinite(jax.vmap(jax.grad(mish))(x)).all()


def test_every_group_of_the_latent_state_is_on_a_simplex():
    z = simnorm(10 * normal(5, 24), 8)
    assert (z >= 0).all()
    np.testing.assert_allclose(z.reshape(5, 3, 8).sum(-1), 1.0, rtol=1e-5)
    x = np.arange(8.0, dtype=np.float32)
    np.testing.assert_allclose(simnorm(jnp.asarray(x), 4)[4:], np.exp(x[4:]) / np.exp(x[4:]).sum(), rtol=1e-5)


def test_a_network_in_parts_is_the_network_of_the_joined_input():
    net = Network.random((7, 16, 16, 3), rng=np.random.default_rng(0))
    z, action = jnp.arange(5.0), normal(4, 2)
    joined = jnp.concat([jnp.broadcast_to(z, (4, 5)), action], axis=1)
    np.testing.assert_allclose(apply(net, z, action), apply(net, joined), atol=1e-5)
    # Layer by layer in NumPy.
    x = np.asarray(joined)
    for i, layer in enumerate(net.layers):
        x = x @ np.asarray(layer.weight) + np.asarray(layer.bias)
        if i < 2:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = x * np.tanh(np.logaddexp(x, 0))
    np.testing.assert_allclose(apply(net, joined), x, atol=1e-5)


@eqx.filter_jit
def everything(model: WorldModel, observation: jax.Array, action: jax.Array) -> tuple:
    z = model.encode(observation, TINY)
    values = [expected(member(model.value, i)(z, action), TINY) for i in range(TINY.members)]
    return expected(model.reward(z, action), TINY), values


def test_rewards_and_values_are_zero_at_first():
    reward, values = everything(new_model(TINY, 3, 2), jnp.ones(3), jnp.ones(2))
    np.testing.assert_allclose([reward, *values], 0.0, atol=1e-5)


def test_a_pair_is_two_different_members_and_all_get_their_turn():
    pairs = draw_pairs(200, 5, np.random.default_rng(0))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert len({frozenset(pair) for pair in pairs.tolist()}) == 10
    ensemble = perturbed(new_model(TINY, 3, 2).value)
    z, action = normal(4, TINY.latent), normal(4, 2)
    got = values_of_pair(ensemble, jnp.asarray([2, 0]), z, action, TINY)
    want = [value_of(ensemble, jnp.asarray(i), z, action, TINY) for i in (2, 0)]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    bits = np.random.default_rng(0).integers(2**16, size=100_000, dtype=np.uint16)
    kept = np.asarray(dropout_mask(jnp.asarray(bits), 0.01))
    assert np.mean(kept == 0) == pytest.approx(0.01, abs=0.002)
    assert kept.mean() == pytest.approx(1.0, abs=0.002)


def test_the_policy_draws_from_a_squashed_normal_and_its_entropy_is_the_normals():
    config = dataclasses.replace(TINY, log_std_low=-2.0, log_std_high=1.0)
    policy = Network.random((TINY.latent, 8, 8, 2), rng=np.random.default_rng(0))
    z = jnp.zeros((20_000, TINY.latent))
    action, entropy = draw_action(policy, z, normal(20_000, 1), config)
    before = np.arctanh(np.asarray(action[:, 0], np.float64))
    assert float(entropy.mean()) == pytest.approx(0.5 * np.log(2 * np.pi * np.e * before.var()), abs=0.03)


# Learning


def test_the_value_loss_has_the_gradient_of_its_formula():
    value = perturbed(new_model(TINY, 3, 2).value)
    z, action, weight = normal(10, TINY.latent), normal(10, 2), jnp.linspace(0.1, 1.0, 10)
    wanted = two_hot(jnp.linspace(-3.0, 3.0, 10), TINY)
    bits = jnp.asarray(np.random.default_rng(0).integers(2**16, size=(3, 10, TINY.width), dtype=np.uint16))

    def formula(value, z):
        rows = [member(value, i)(z, action, kept=dropout_mask(bits[i], 0.1)) for i in range(TINY.members)]
        return sum(weight @ cross_entropy(logits, wanted) for logits in rows) / TINY.members

    def ours(value, z):
        return value_loss(value, z, action, wanted, weight, bits, 0.1)

    got, want = (eqx.filter_jit(jax.value_and_grad(f, (0, 1)))(value, z) for f in (ours, formula))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5)


def test_the_model_loss_is_its_formula_step_by_step():
    config = dataclasses.replace(TINY, dropout=0.0)
    model = perturbed(new_model(config, 3, 2))
    batch = random_batch(config, 3, 2)
    rewards = 2 * batch.rewards
    noise = draw_update_noise(config, 2, np.random.default_rng(0))

    @eqx.filter_jit
    def ours(model):
        following = model.encode(batch.observations[1:], config)
        return model_loss(model, batch, following, rewards.reshape(-1), noise.dropout, config)

    @eqx.filter_jit
    def by_hand(model):
        following = model.encode(batch.observations[1:], config)
        z, total = model.encode(batch.observations[0], config), 0.0
        for t in range(config.horizon):
            action = batch.actions[t]
            wanted = two_hot(rewards[t], config)
            value = sum(cross_entropy(member(model.value, i)(z, action), wanted).mean() / 3 for i in range(3))
            reward = cross_entropy(model.reward(z, action), two_hot(batch.rewards[t], config)).mean()
            z = model.next(z, action, config)
            consistency = jnp.mean((z - following[t]) ** 2)
            total += 0.5**t / config.horizon * (20 * consistency + 0.1 * reward + 0.1 * value)
        return total, z

    total, (zs, parts) = ours(model)
    want, last = by_hand(model)
    assert float(total) == pytest.approx(float(want), rel=1e-4)
    np.testing.assert_allclose(zs[-1], last, atol=1e-5)
    assert set(parts) == {"consistency", "reward", "value"}


@pytest.mark.slow
def test_an_update_lowers_the_losses_moves_the_target_slowly_and_the_encoder_less():
    state, discount = new_state(TINY, 1, 1), TINY.discount(Line.length)
    batch, rng = random_batch(TINY, 1, 1), np.random.default_rng(0)
    reports = []
    for i in range(150):
        before = jax.tree.map(np.array, state)  # an update uses the memory of the state it is given
        state, report = _update((batch, draw_update_noise(TINY, 1, rng)), state, discount, TINY)
        reports.append(report)
        if i == 0:
            leaves = map(jax.tree.leaves, (state.target, before.target, state.model.value))
            for slow, old, new in zip(*leaves, strict=True):
                np.testing.assert_allclose(slow, 0.99 * old + 0.01 * new, atol=1e-6)
        if i == 1:
            # Adam's early steps are as large as the rate where the gradient keeps its sign.
            pairs = (state.model.encoder, before.model.encoder), (state.model.dynamics, before.model.dynamics)
            moved = [float(np.abs(new.layers[0].weight - old.layers[0].weight).max()) for new, old in pairs]
            np.testing.assert_allclose(moved, [0.3 * TINY.rate, TINY.rate], rtol=0.3)
    assert reports[-1].reward < 0.8 * reports[0].reward
    assert reports[-1].value < 0.9 * reports[0].value
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(reports[-1]))
    assert state.scale >= 1


def test_the_policy_climbs_the_value():
    """With Q functions that prefer large actions, steps on the policy loss raise the action."""
    config = dataclasses.replace(TINY, dropout=0.0, entropy_weight=0.0)
    value, policy = new_model(config, 3, 1).value, new_state(config, 3, 1).policy
    zs = normal(config.horizon + 1, config.batch, config.latent)
    action = jnp.linspace(-1, 1, config.batch)[:, None]
    noise = draw_update_noise(config, 1, np.random.default_rng(0))

    @eqx.filter_jit
    def fit(value):
        weight = jnp.full(config.batch, 1 / config.batch)
        bits = noise.dropout[:, : config.batch]
        wanted = two_hot(5 * action[:, 0], config)
        gradient = jax.grad(value_loss)(value, zs[0], action, wanted, weight, bits, 0.0)
        return jax.tree.map(lambda p, g: p - 0.3 * g, value, gradient)

    @eqx.filter_jit
    def climb(policy):
        gradient, (scale, _) = jax.grad(policy_loss, has_aux=True)(policy, value, jnp.ones(()), zs, noise, config)
        return jax.tree.map(lambda p, g: p - 0.1 * g, policy, gradient), scale

    for _ in range(300):
        value = fit(value)
    before = draw_action(policy, zs[0], jnp.zeros((config.batch, 1)), config).action.mean()
    for _ in range(100):
        policy, scale = climb(policy)
    after = draw_action(policy, zs[0], jnp.zeros((config.batch, 1)), config).action.mean()
    assert after > before + 0.3
    assert scale >= 1


def test_targets_and_the_policy_loss_are_their_formulas():
    """One by one and in numpy: the smaller of two target values, ρ^t, the running scale, the entropy per entry."""
    config = dataclasses.replace(TINY, dropout=0.0, entropy_weight=0.01)
    state = perturbed(new_state(config, 3, 2))
    noise = draw_update_noise(config, 2, np.random.default_rng(3))
    rows = config.horizon * config.batch
    following, rewards = normal(rows, config.latent), normal(rows)

    def values(ensemble, pair, z, action):
        return np.stack([value_of(ensemble, i, z, action, config) for i in jnp.asarray(pair)])

    action = draw_action(state.policy, following, jnp.asarray(noise.target_action), config).action
    wanted = np.asarray(rewards) + 0.9 * values(state.target, noise.target_pair, following, action).min(axis=0)
    np.testing.assert_allclose(td_targets(state, following, rewards, noise, 0.9, config), wanted, rtol=1e-3, atol=1e-4)

    zs, size = normal(config.horizon + 1, config.batch, config.latent), config.batch
    loss, (scale, mean_entropy) = eqx.filter_jit(policy_loss)(
        state.policy, state.model.value, jnp.asarray(4.0), zs, noise, config
    )
    want, entropies, new_scale = 0.0, [], 0.0
    for t in range(config.horizon + 1):
        part = slice(t * size, (t + 1) * size)
        action, entropy = draw_action(state.policy, zs[t], jnp.asarray(noise.policy_action[part]), config)
        q = values(state.model.value, noise.policy_pair, zs[t], action).mean(axis=0)
        if t == 0:
            spread = max(float(np.subtract(*np.percentile(q, [95, 5]))), 1.0)
            new_scale = 0.99 * 4.0 + 0.01 * spread
        want -= 0.5**t / (config.horizon + 1) * np.mean(q / new_scale + 0.01 * 2 * np.asarray(entropy))
        entropies.append(np.asarray(entropy))
    assert float(scale) == pytest.approx(new_scale, rel=1e-5)
    assert float(loss) == pytest.approx(want, rel=1e-3)
    assert float(mean_entropy) == pytest.approx(np.mean(entropies), rel=1e-4)


# Planning


@pytest.mark.parametrize(("first", "explore"), [(False, True), (True, False)])
def test_a_plan_is_its_formula_round_by_round(first: bool, explore: bool):
    """The same plan in numpy loops: warm start, elites, their weights, mean and spread, the choice and its noise."""
    config = dataclasses.replace(TINY, samples=24, policy_samples=4, elites=6, rounds=2)
    model, policy = perturbed(new_model(config, 3, 2)), perturbed(new_state(config, 3, 2)).policy
    noise = draw_plan_noise(config, 2, np.random.default_rng(4))
    seen, previous = normal(3), 0.1 * normal(config.horizon, 2)
    found = _plan(model, policy, seen, previous, jnp.asarray(first), jnp.asarray(explore), noise, 0.9, config)

    start = encode(model, seen, config)
    proposed, z = [], jnp.broadcast_to(start, (4, config.latent))
    for t in range(config.horizon):
        action = draw_action(policy, z, jnp.asarray(noise.proposals[t]), config).action
        proposed.append(np.asarray(action))
        z = advance(model, z, action, config)
    mean = np.zeros((config.horizon, 2)) if first else np.concatenate([previous[1:], np.zeros((1, 2))])
    std = np.full_like(mean, config.std_high)
    weight = elites = np.zeros(0)
    for i in range(config.rounds):
        sampled = np.clip(mean[:, None] + std[:, None] * noise.samples[i], -1, 1)
        actions = np.concatenate([np.stack(proposed), sampled], axis=1).astype(np.float32)
        z, value = jnp.broadcast_to(start, (24, config.latent)), np.zeros(24)
        for t in range(config.horizon):
            value += 0.9**t * np.asarray(expected(apply(model.reward, z, actions[t]), config))
            z = advance(model, z, actions[t], config)
        last = draw_action(policy, z, jnp.asarray(noise.ends[i]), config).action
        pair = [value_of(model.value, k, z, last, config) for k in jnp.asarray(noise.pairs[i])]
        value += 0.9**config.horizon * np.mean(pair, axis=0)
        best = np.argsort(-value)[: config.elites]
        weight = np.exp(config.temperature * (value[best] - value[best].max()))
        weight, elites = weight / weight.sum(), actions[:, best]
        mean = np.einsum("e,hea->ha", weight, elites)
        std = np.sqrt(np.einsum("e,hea->ha", weight, (elites - mean[:, None]) ** 2)).clip(
            config.std_low, config.std_high
        )
    chosen = elites[0, np.argmax(np.log(weight) + noise.choice)]
    chosen = np.clip(chosen + explore * std[0] * noise.exploration, -1, 1)
    np.testing.assert_allclose(found.mean, mean, atol=2e-4)
    np.testing.assert_allclose(found.action, chosen, atol=2e-4)


def test_unroll_sums_discounted_rewards():
    model = perturbed(new_model(TINY, 1, 1))
    z = encode(model, jnp.ones(1), TINY)
    actions = jnp.tanh(normal(3, 5, 1))
    total, end = unroll(model, z, actions, 0.9, TINY)

    @eqx.filter_jit
    def by_hand(z, sequence):
        value = 0.0
        for t in range(3):
            value += 0.9**t * expected(model.reward(z, sequence[t]), TINY)
            z = model.next(z, sequence[t], TINY)
        return value, z

    for i in range(5):
        value, last = by_hand(z, actions[:, i])
        assert float(total[i]) == pytest.approx(float(value), rel=1e-3, abs=1e-4)
        np.testing.assert_allclose(end[i], last, atol=1e-5)


def test_planning_beats_the_policy_prior():
    """The prior is random; planning with a learned model of the line goes to the target nonetheless."""
    agent = line_agent()
    agent.seed_steps = 400
    rng = np.random.default_rng(0)
    while agent.steps < agent.seed_steps:
        run_episode(agent, rng, explore=True)
    assert agent.updates == 400
    random, no = new_state(TINY, 1, 1).policy, np.bool_(False)
    for x in (-1.2, 1.2):
        seen, noise = np.array([x], np.float32), draw_plan_noise(TINY, 1, rng)
        start = jnp.zeros((TINY.horizon, 1))
        action = _plan(agent._state.model, random, seen, start, ~no, no, noise, agent.discount, TINY).action
        assert np.sign(action[0]) == -np.sign(x)
        assert abs(action[0]) > 0.5
