"""The gated delta rule in fp64, written down token by token: what every output and state is compared with."""

import torch
import torch.nn.functional as F

from shapes import K

EPS = 1e-6


def gates(problem, a, b):
    """Log decay [.., HV] or [.., HV, K], and beta [.., HV]."""
    a, b, A = a.double(), b.double(), problem.A_log.double().exp()
    x = a + problem.dt_bias.double()
    if problem.lower_bound is None:
        return -A * F.softplus(x, threshold=1e6), b.sigmoid()
    return problem.lower_bound * (A[:, None] * x).sigmoid(), b.sigmoid()


def run(problem, window, rows, state):
    """Outputs [R, T, HV, V] and the states after each token [R, T, HV, V, K] of some rows of a window, from their
    states [R, HV, V, K]. Everything is fp64."""
    part = {name: window.dense(name)[rows].double() for name in ("q", "k", "v", "a", "b")}
    group = part["v"].shape[2] // part["q"].shape[2]
    q, k = (part[name] / (part[name].square().sum(-1, keepdim=True) + EPS).sqrt() for name in ("q", "k"))
    q, k = q.repeat_interleave(group, 2) * K ** -0.5, k.repeat_interleave(group, 2)
    g, beta = gates(problem, part["a"], part["b"])
    decay = (g if problem.lower_bound is not None else g[..., None]).exp()  # [R, T, HV, K or 1]
    state, outputs, states = state.double(), [], []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, None, :]
        u = beta[:, t, :, None] * (part["v"][:, t] - torch.einsum("rhvk,rhk->rhv", state, k[:, t]))
        state = state + u[..., None] * k[:, t, :, None, :]
        outputs.append(torch.einsum("rhvk,rhk->rhv", state, q[:, t]))
        states.append(state)
    return torch.stack(outputs, 1), torch.stack(states, 1)
