"""ringfold's side: its works as jobs, through the C ABI."""

import torch

import capi
import history
from capi import constant, make
from jobs import Calls, Steps
from problem import DTYPES
from shapes import HISTORY, K, V

# Ring rows of lazy where the ring keeps u: those that ringfold bench times.
LAZY_ROWS = {1: 16, 2: 16, 4: 16, 8: 24}


def stream_of(device):
    return torch.cuda.current_stream().cuda_stream if device.type == "cuda" else None


def mixer_of(p):
    return make("mixer", kind=constant(p.shape.kind), A_log=p.A_log, dt_bias=p.dt_bias,
                lower_bound=p.lower_bound or 0.0)


def borrowed(owner, key, tensor):
    """The DLTensor of a tensor that lives as long as `owner`, made once: graphs hold many calls."""
    kept = owner.__dict__.setdefault("borrowed", {})
    if key not in kept:
        kept[key] = capi.dl_tensor(tensor())
    return kept[key]


def slots_of(p, set_):
    return borrowed(p, ("slots", set_), lambda: p.slot_ids[set_])


def window_of(p, window, set_):
    return make("window", slot_ids=slots_of(p, set_),
                **{name: borrowed(window, name, lambda: window.dense(name)) for name in ("q", "k", "v", "a", "b")})


def out_of(job, window):
    return borrowed(job, "out", lambda: job.out.view(window.dense("v").shape))


class View:
    """Memory of a pool, for torch.as_tensor."""

    def __init__(self, address, shape, code):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "typestr": code, "version": 3}
        self.__array_interface__ = dict(self.__cuda_array_interface__)


def pool_tensor(pool, which, dtype, device):
    """A torch tensor of all layers."""
    address, shape = pool.tensor(which)
    code = {torch.float32: "<f4", torch.int32: "<i4", torch.bfloat16: "<i2"}[dtype]
    view = View(address, shape, code)
    if device.type == "cuda":
        return torch.as_tensor(view, device=device).view(dtype)
    import numpy
    return torch.from_numpy(numpy.asarray(view)).view(dtype)


class Own:
    """Rings that the caller owns, for the calls that need no pool."""

    def __init__(self, p, rows):
        shape = p.shape
        per_key = (K,) if shape.kind == "kda" else ()
        lead = (p.layers, p.slots, rows)
        self.k, self.v = p.empty(*lead, shape.H, K), p.empty(*lead, shape.HV, V)
        self.g = p.empty(*lead, shape.HV, *per_key, dtype=torch.float32)
        self.beta = p.empty(*lead, shape.HV, dtype=torch.float32)
        self.pending = torch.full((p.layers, p.slots), -1, device=p.device, dtype=torch.int32)

        self.layers = [make("ring", k=self.k[i], v=self.v[i], g=self.g[i], beta=self.beta[i]) for i in range(p.layers)]

    def all(self):
        return make("ring", k=self.k, v=self.v, g=self.g, beta=self.beta)


class Verify(Calls):
    """Window into the ring, outputs; fold policy on_commit."""

    def __init__(self, library, p, numerics):
        super().__init__(p)
        numerics = numerics if p.device.type == "cuda" else "exact"  # nothing else is served on a CPU
        self.library, self.numerics = library, constant(numerics)
        self.own = Own(p, p.shape.T)
        self.out = torch.empty_like(p.windows[0].v)
        self.mixer = mixer_of(p)
        self.note = f"ringfold: {numerics}"

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        window = p.window(i)
        self.library.call("verify", make(
            "verify_args", mixer=self.mixer, window=window_of(p, window, set_),
            state=borrowed(p, ("state", layer), lambda: p.state[layer]), ring=self.own.layers[layer],
            pending=borrowed(self.own, layer, lambda: self.own.pending[layer]), out=out_of(self, window),
            numerics=self.numerics, stream=stream_of(p.device)))
        return self.out


class Fold(Verify):
    """Accepted rows of all layers in one call; a call's share of a layer counts."""

    def __init__(self, library, p):
        super().__init__(library, p, "exact")
        self.tokens = p.shape.accepted
        for i in range(p.calls):
            super().call(i)
        self.note = "ringfold: exact, all layers in one call"

    def fold(self, set_):
        p = self.problem
        self.library.call("fold", make("fold_args", state=p.state, ring=self.own.all(), slot_ids=p.slot_ids[set_],
                                       num_accepted=p.accepted, stream=stream_of(p.device)))

    def enqueue(self):
        for set_ in range(self.problem.sets):
            self.fold(set_)
        return self.problem.calls

    def call(self, i):
        super().call(i)
        self.fold(self.problem.place(i)[1])

    def after(self, i):
        return self.before(i)


class Decode(Calls):
    def __init__(self, library, p):
        super().__init__(p)
        self.library, self.mixer = library, mixer_of(p)
        self.out = torch.empty_like(p.windows[0].v)
        self.note = "ringfold: exact"

    def call(self, i):
        p = self.problem
        layer, set_ = p.place(i)
        window = p.window(i)
        self.library.call("decode", make(
            "decode_args", mixer=self.mixer, window=window_of(p, window, set_),
            state=borrowed(p, ("state", layer), lambda: p.state[layer]), out=out_of(self, window),
            stream=stream_of(p.device)))
        return self.out

    def after(self, i):
        return self.before(i)


class PoolStep(Steps):
    """A pool's verify of each layer and its commit of all, under a fold policy in its fastest numerics."""

    def __init__(self, library, p, policy, numerics=None, rounding="per_commit", rows=None):
        super().__init__(p)
        s = p.shape
        with_u = policy == "lazy" and p.device.type == "cuda" and numerics != "exact"
        fast = policy == "on_commit" or with_u
        cuda = p.device.type == "cuda"
        self.numerics = numerics or ("fast" if fast and cuda else "exact")
        if rows is None:
            rows = {"on_commit": s.T, "on_next_verify": 2 * s.T, "lazy": LAZY_ROWS[s.T] if with_u else 3 * s.T}[policy]
        self.policy, self.rows, self.library = policy, rows, library
        self.pool = library.pool(
            layers=p.layers, slots=p.slots, H=s.H, HV=s.HV, K=K, V=V, ring_rows=rows, max_window=s.T,
            kind=constant(s.kind), state_dtype=constant(s.state), act_dtype=constant("f32" if p.dtype == torch.float32 else "bf16"),
            fold_policy=constant(policy), state_rounding=constant(rounding),
            device=constant("device_cuda" if cuda else "device_cpu"), device_id=p.device.index or 0, ring_u=int(with_u))
        self.pool.set_stream(stream_of(p.device))
        self.pool.acquire(p.slots)
        self.held = pool_tensor(self.pool, "state", DTYPES[s.state], p.device)
        self.held.copy_(p.state)
        self.mixer, self.out = mixer_of(p), torch.empty_like(p.windows[0].v)
        self.period = self.cycle()
        self.note = f"ringfold: {policy}, {self.numerics}{', u in the ring' if with_u else ''}, ring of {rows} rows"

    def cycle(self):
        """Steps until a history is as long again: lazy folds where less than a window's rows would be left (with u in
        a commit, else in the verify that comes before, where two windows would not fit)."""
        p = self.problem.shape
        if self.policy != "lazy":
            return 1
        seen, live, i = {}, 0, 0
        while live not in seen:
            seen[live] = i
            if self.numerics == "exact" and live + 2 * p.T > self.rows:
                live = 0
            live += p.accepted
            if live + p.T > self.rows:
                live = 0
            i += 1
        return i - seen[live]

    def verify(self, layer, set_, window):
        p = self.problem
        self.library.call("verify", make(
            "verify_args", mixer=self.mixer, window=window_of(p, window, set_), pool=self.pool.handle, layer=layer,
            out=out_of(self, window), numerics=constant(self.numerics), stream=stream_of(p.device)))
        return self.out.clone() if layer == 0 and self.keeps else self.out

    keeps = False  # whether outputs are copied, which timing leaves out

    def commit(self, set_, accepted):
        p = self.problem
        self.pool.commit(make("commit_args", slot_ids=slots_of(p, set_), num_accepted=accepted,
                              stream=stream_of(p.device)))

    def settle(self):
        self.pool.settle()

    def committed(self):
        return super().begin() if self.policy == "on_commit" else None

    def check(self):
        self.keeps = True
        errors = super().check()
        self.keeps = False
        return errors


class History(history.Verify, PoolStep):
    """verify alone, behind a history: every window of it accepted whole beforehand."""

    def __init__(self, library, p):
        super().__init__(library, p, "lazy")
        self.remember(Steps.begin(self))
        self.note += f", {HISTORY} rows of history"


class Ringfold:
    """name -> job of every work of ringfold."""

    name = "ringfold"

    def __init__(self, path):
        self.library = capi.Library(path)
        self.version = self.library.version

    def works(self, shape):
        names = ["verify_fast", "verify_exact", "fold", "step_on_commit", "step_on_next_verify", "step_lazy", "decode",
                 "decode_lazy"]
        return names + (["verify_history"] if shape.kind == "gdn" else [])

    def job(self, work, p):
        if work.startswith("verify_") and work != "verify_history":
            return Verify(self.library, p, work.removeprefix("verify_"))
        if work == "decode_lazy":  # windows of one token, which is always accepted
            return PoolStep(self.library, p, "lazy")
        if work.startswith("step_"):
            return PoolStep(self.library, p, work.removeprefix("step_"))
        return {"fold": Fold, "decode": Decode, "verify_history": History}[work](self.library, p)
