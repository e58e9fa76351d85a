"""Jobs of the protocol with one state per draft: a window leaves the state after each token, and the next one begins at
the accepted one. FLA and ATOM have it; each says with `update` how its kernel is called."""

import torch

from jobs import Calls, Steps
from problem import DTYPES
from shapes import K, V


class States:
    """T states of every slot of some layers; state i of a slot is that after i + 1 tokens of its last window."""

    def __init__(self, p, layers, requests):
        s = p.shape
        self.states = torch.empty(layers, requests * s.T, s.HV, V, K, device=p.device, dtype=DTYPES[s.state])
        self.states.normal_(0.0, 0.1, generator=p.generator)
        self.indices = [(torch.arange(s.B * s.T, device=p.device, dtype=torch.int32) + i * s.B * s.T).view(s.B, s.T)
                        for i in range(requests // s.B)]

    def current(self, p, set_, accepted):
        """Places of the states that count of the compared rows."""
        return self.indices[set_].long()[p.rows, accepted.long()[p.rows] - 1]


class VerifyStates(Calls):
    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer
        # Calls of all layers share the memory, which is several L2s large.
        self.store = States(p, 1, max(1, min(p.sets * p.layers, (p.slots - 1) // p.shape.B)) * p.shape.B)

    def set_of(self, i):
        return i % len(self.store.indices)

    def call(self, i):
        p = self.problem
        return self.peer.update(self, p.window(i), self.store.states[0], self.store.indices[self.set_of(i)], p.accepted)

    def before(self, i):
        return self.store.states[0, self.store.current(self.problem, self.set_of(i), self.problem.accepted)].clone()

    def after(self, i):
        return self.store.states[0, self.store.indices[self.set_of(i)].long()[self.problem.rows]]


class StepStates(Steps):
    """A step is a verify: the next one begins at the accepted state."""

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer, self.accepted = peer, p.accepted
        self.store = States(p, p.layers, p.sets * p.shape.B)

    def verify(self, layer, set_, window):
        return self.peer.update(self, window, self.store.states[layer], self.store.indices[set_], self.accepted)

    def commit(self, set_, accepted):
        self.accepted = accepted  # where the next verify begins

    def begin(self):
        return self.store.states[0, self.store.current(self.problem, 0, self.accepted)].clone()

    def committed(self):
        return self.begin()

    def committed_rows(self):
        return self.begin()


class Decode(Calls):
    """The state is read and written in place."""

    def __init__(self, peer, p):
        super().__init__(p)
        self.peer = peer

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        return self.peer.update(self, p.window(i), p.state[layer], p.slot_ids[set_], None)

    def after(self, i):
        return self.before(i)
