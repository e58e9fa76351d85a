"""FlashInfer's jobs without a ring: a state per draft, outputs alone, and accepted tokens run again from their inputs."""

import torch

import states
from jobs import Calls, Steps
from shapes import K


class Starts:
    """GDN: where in the states of earlier windows a window begins, and its own rows of them. Made once for all layers,
    when tokens are accepted. KDA's kernel finds it itself."""

    def prepare_starts(self):
        p = self.problem
        self.before_first = [indices[:, 0] - 1 for indices in self.store.indices]
        self.first = [before + p.accepted for before in self.before_first]
        B = p.shape.B
        self.starts = {indices.data_ptr(): (first, slice(i * B, (i + 1) * B))
                       for i, (indices, first) in enumerate(zip(self.store.indices, self.first))}


class VerifyStates(Starts, states.VerifyStates):
    def __init__(self, peer, p):
        super().__init__(peer, p)
        self.prepare_starts()


class StepStates(Starts, states.StepStates):
    def __init__(self, peer, p):
        super().__init__(peer, p)
        self.prepare_starts()

    def commit(self, set_, accepted):
        super().commit(set_, accepted)
        if self.problem.shape.kind == "gdn":
            torch.add(self.before_first[set_], accepted, out=self.first[set_])


def outputs(peer, job, window, layer, set_):
    """Outputs, and nothing is left behind."""
    p = job.problem
    state, ids = p.state[layer], p.slot_ids[set_]
    if p.shape.kind == "kda":
        return peer.kda_outputs(**peer.qkv(window), g=window.dense("a"), beta=window.dense("b"), **peer.of_kda(p),
                                initial_state_source=state, initial_state_indices=ids, scale=K ** -0.5,
                                use_gate_in_kernel=True, beta_is_logit=True, output=peer.out(window))
    if p.shape.state == "f32":
        return peer.verify_gdn(job, window, state, ids)
    return peer.gdn_outputs(**peer.qkv(window), **peer.gates(p, window), initial_state_source=state,
                            initial_state_indices=ids, scale=K ** -0.5, disable_state_update=True)


def says(shape):
    """(precision, note) of `outputs`."""
    if shape.state == "f32":
        return "fp32", ""
    staged = "; windows of 2 are padded to 16 by copies" if shape.kind == "gdn" and shape.T not in (4, 8) else ""
    rounded = "rounds A_log and dt_bias to bf16" if shape.kind == "gdn" else ""
    return "bf16 operands", rounded + staged


class VerifyOutputs(Calls):
    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer
        self.precision, self.note = says(p.shape)

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return outputs(self.peer, self, p.window(i), layer, set_)


def replay(peer, job, window, layer, set_, last):
    """The accepted tokens' inputs once more, into the state alone; `last`: the index of each row's last of them."""
    p = job.problem
    peer.gdn_bf16(**peer.qkv(window), **peer.gates(p, window), initial_state_source=p.state[layer],
                  initial_state_indices=p.slot_ids[set_], accepted_steps=last, scale=K ** -0.5,
                  output=peer.out(window), disable_output=True)


REPLAY = "state-only run of the MTP kernel over inputs that the caller kept, one launch for each layer"


class Replay(Calls):
    note = REPLAY

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.tokens, self.last = peer, p.shape.accepted, p.accepted - 1

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        replay(self.peer, self, p.window(i), layer, set_, self.last)

    def after(self, i):
        return self.before(i)


class StepReplay(Steps):
    """Outputs alone in the verify; the commit runs the accepted tokens again."""

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.windows = peer, {}
        self.precision, note = says(p.shape)
        self.note = "; ".join(part for part in (note, "commit: " + REPLAY) if part)

    def verify(self, layer, set_, window):
        self.windows[layer] = window
        return outputs(self.peer, self, window, layer, set_)

    def commit(self, set_, accepted):
        last = accepted - 1
        for layer, window in self.windows.items():
            replay(self.peer, self, window, layer, set_, last)

    def committed(self):
        return self.begin()
