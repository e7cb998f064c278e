"""The optimiser on a system of its own: a cart with friction, a quadratic cost, and linear feedback u = −K x.

The best K is known (Riccati equation), and is printed beside the one that the steps find.
"""

import jax
import jax.numpy as jnp

import firsthand as fh

A, B = jnp.array([[1.0, 0.1], [0.0, 0.95]]), jnp.array([[0.0], [0.1]])
WEIGHT = 0.1  # of the command in the cost


def dynamics(x, u):
    """f: position and speed one step later."""
    return A @ x + B @ u


def residuals(x, u, _):
    """The residuals of one step; the cost is the sum of their squares."""
    return jnp.concat([x, WEIGHT**0.5 * u])


def cost(x, u, r):
    """c: of one step."""
    return jnp.sum(residuals(x, u, r) ** 2)


def riccati():
    """The best K."""
    P = jnp.eye(2)
    for _ in range(300):
        K = B.T @ P @ A / (WEIGHT + B.T @ P @ B)
        P = jnp.eye(2) + A.T @ P @ (A - B @ K)
    return K


def feedback(K, x, _):
    """π: the policy; K are its parameters."""
    return -K @ x


@jax.jit
def gradient_step(policy):
    """Along what the system did, as on a robot."""
    rollout = fh.roll_out(policy, dynamics, jnp.eye(2), steps=200)
    gradient = fh.closed_loop_gradient(policy, dynamics, cost, rollout)
    return fh.preconditioned_step(policy, gradient, rollout, eta=0.3, alpha=0.01, epsilon=1e-3)[0]


@jax.jit
def refining_step(policy):
    """Along what the model predicts: here the model is the system."""
    problem = fh.linearise(policy, lambda p: fh.roll_out(p, dynamics, jnp.eye(2), steps=200), residuals)
    return fh.gauss_newton_step(policy, problem, damping=1e-6, alpha=0.01, epsilon=1e-3)[0]


def learn():
    """K after some steps of both kinds."""
    policy = jax.tree_util.Partial(feedback, jnp.zeros((1, 2)))
    for step in [gradient_step] * 10 + [refining_step] * 12:
        policy = step(policy)
    return policy.args[0]


if __name__ == "__main__":
    print("learned", learn(), "Riccati", riccati())
