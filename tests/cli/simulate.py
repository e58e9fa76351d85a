"""What a case must give, computed in double precision straight from docs/math.md and docs/contract.md.

Shares nothing with the library. Beside every value stands a bound on the error of a correct fp32 computation:

Let u = 2^-24. A correctly rounded operation has relative error <= u, and exp, log1p, sigmoid have <= 2 ulp <= 4u. Run the
recurrence on absolute values: Mu = beta(|v| + sum M|kd|), M' = M*decay + Mu|k|, Mo = Mu*sum|k||q| + sum M|qd|. If the state is
known within n*u*M, then to first order the next one is known within (n+c)*u*M', where c counts what one token adds on a path:
k and q normalised (a sum of K squares, root, quotient: K+4 each), kd (decay error d+4, product 1), a sum over K (K+1),
difference, beta (4), two products (4), the last fma (1) and its k (K+4): c <= 3K+24+d. Outputs add kq: 2(K+4)+1+(K+1), so
c_o <= 6K+48+d. d = |error of g|/u: softplus gate exp(A)(2|x|+15 softplus(x)); safe gate |lower_bound|(1.5|exp(A)x|+5).
Rounding to a 16-bit dtype moves a value by at most half a unit, 2^-8 (bf16) or 2^-11 (fp16) of it (2^-25 below the normal
range of fp16). Outputs are rounded once. Rounding the state to a 16-bit pool may fall on either side of a tie: a whole unit
of |S| <= M is added to n, as 2^-7/u or 2^-10/u. A factor 1.01 covers the terms of second order.
"""

import math

from casefile import Tensor

U = 2.0**-24
HALF_UNIT = {"F32": 2.0**-24, "BF16": 2.0**-8, "F16": 2.0**-11}
DONE, NULL, OUT_OF_RANGE, BAD_ACCEPT, NO_WINDOW, TOO_LONG, BAD_TRACK = 0, 1, 2, 4, 5, 7, 8


def softplus(x, beta, threshold):
    return x if beta * x > threshold else math.log1p(math.exp(beta * x)) / beta


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def rounding(dtype, value):
    return 1.01 * HALF_UNIT[dtype] * abs(value) + (2.0**-25 if dtype == "F16" else 0.0)


class Head:
    """State of one value head: S and M are [V][K], n is the error count."""

    def __init__(self, rows):
        self.S, self.M, self.n = [list(row) for row in rows], [[abs(x) for x in row] for row in rows], 0.0

    def clone(self):
        other = Head(self.S)
        other.M, other.n = [list(row) for row in self.M], self.n
        return other

    def rounded(self, dtype):
        """As stored in a pool of that dtype."""
        if dtype != "F32":
            self.S = [Tensor(dtype, [len(row)], row).values for row in self.S]
            self.n += 2 * HALF_UNIT[dtype] / U
        return self


class Layer:
    def __init__(self, case, A_log, dt_bias, K):
        self.case, self.A_log, self.dt_bias, self.K = case, A_log, dt_bias, K

    def gate(self, hv, a):
        """(log decay, d) for each raw value of a."""
        A, result = math.exp(self.A_log[hv]), []
        for i, raw in enumerate(a):
            x = raw + (self.dt_bias[hv * len(a) + i] if self.case["mixer"] == "kda" else self.dt_bias[hv])
            if self.case.get("lower_bound") is not None:
                bound = self.case["lower_bound"]
                result.append((bound * sigmoid(A * x), abs(bound) * (1.5 * abs(A * x) + 5)))
            else:
                sp = softplus(x, self.case.get("softplus_beta", 1.0), self.case.get("softplus_threshold", 20.0))
                result.append((-A * sp, A * (2 * abs(x) + 15 * sp)))
        return result

    def token(self, head, hv, q, k, v, a, b):
        """Advances `head` in place; returns [(output, bound)] per v."""
        K, gates = self.K, self.gate(hv, a)
        decay = [math.exp(g) for g, _ in gates] * (1 if len(gates) == K else K)
        d = max(error for _, error in gates)
        if self.case.get("qk_l2norm", True):
            k = [x / math.sqrt(sum(y * y for y in k) + 1e-6) for x in k]
            q = [x / math.sqrt(sum(y * y for y in q) + 1e-6) for x in q]
        scale = self.case.get("scale")
        q = [x * (K**-0.5 if scale is None else scale) for x in q]
        beta = sigmoid(b)
        kq, abs_kq = sum(x * y for x, y in zip(k, q)), sum(abs(x * y) for x, y in zip(k, q))
        outputs = []
        for row, (S, M) in enumerate(zip(head.S, head.M)):
            p = sum(S[i] * k[i] * decay[i] for i in range(K))
            w = sum(S[i] * q[i] * decay[i] for i in range(K))
            u = beta * (v[row] - p)
            Mu = beta * (abs(v[row]) + sum(M[i] * abs(k[i]) * decay[i] for i in range(K)))
            Mo = Mu * abs_kq + sum(M[i] * abs(q[i]) * decay[i] for i in range(K))
            outputs.append((u * kq + w, 1.01 * (head.n + 6 * K + 48 + d) * U * Mo))
            head.S[row] = [S[i] * decay[i] + u * k[i] for i in range(K)]
            head.M[row] = [M[i] * decay[i] + Mu * abs(k[i]) for i in range(K)]
        head.n += 3 * K + 24 + d
        return outputs


class Simulator:
    """Runs a case; expected[name] is a list of exact ints (status) or of (value, bound)."""

    def __init__(self, case, tensors):
        self.case, self.t, self.expected = case, tensors, {}
        state = tensors["state"]
        self.layered, self.dtype = len(state.shape) == 5, state.dtype
        self.layers = state.shape[0] if self.layered else 1
        self.slots, self.HV, self.V, self.K = state.shape[-4:]
        self.layer = [Layer(case, self.pick("A_log", n), self.pick("dt_bias", n), self.K) for n in range(self.layers)]
        self.heads = [[self.read_slot(n, slot) for slot in range(self.slots)] for n in range(self.layers)]
        self.pending, self.last_slots = {}, None
        for i, step in enumerate(case["steps"]):
            self.i = i
            getattr(self, "do_" + step["op"])()
        self.expected["state"] = [pair for layer in self.heads for slot in layer for pair in self.flat(slot)]

    def pick(self, name, layer, *index):
        tensor = self.t[name]
        return tensor.at(layer, *index) if self.layered else (tensor.at(*index) if index else tensor.values)

    def read_slot(self, layer, slot):
        values = self.pick("state", layer, slot)
        rows = [values[i:i + self.K] for i in range(0, len(values), self.K)]
        return [Head(rows[h * self.V:(h + 1) * self.V]) for h in range(self.HV)]

    def flat(self, heads):
        return [(s, 1.01 * head.n * U * m + rounding(self.dtype, s) * (head.n > 0))
                for head in heads for S, M in zip(head.S, head.M) for s, m in zip(S, M)]

    def ints(self, name):
        tensor = self.t.get(f"{self.i}.{name}")
        return None if tensor is None else tensor.values

    def set_status(self, status):
        self.expected[f"{self.i}.status"] = status

    def slot_status(self, slot):
        return NULL if slot < 0 else OUT_OF_RANGE if slot >= self.slots else DONE

    def advance(self, layer, heads, token, step):
        """One token of one layer: outputs per hv and v."""
        H = self.t[f"{step}.q"].shape[-2]
        q, k, v = (self.pick(f"{step}.{name}", layer, token) for name in "qkv")
        a, b = self.pick(f"{step}.a", layer, token), self.pick(f"{step}.b", layer, token)
        a = a if isinstance(a, list) else [a]
        b = b if isinstance(b, list) else [b]
        per_head, outputs = len(a) // self.HV, []
        for hv in range(self.HV):
            h = hv // (self.HV // H)
            outputs += self.layer[layer].token(
                heads[hv], hv, q[h * self.K:(h + 1) * self.K], k[h * self.K:(h + 1) * self.K],
                v[hv * self.V:(hv + 1) * self.V], a[hv * per_head:(hv + 1) * per_head], b[hv])
        return outputs

    def window(self, keep_state, snapshots):
        step, slots, cu = self.i, self.ints("slot_ids"), self.ints("cu_seqlens")
        self.last_slots = self.last_slots if keep_state else slots
        v = self.t[f"{step}.v"]
        tokens = v.shape[1 if self.layered else 0]
        if cu is None:
            cu = [row * tokens // len(slots) for row in range(len(slots) + 1)]
        longest = max(end - begin for begin, end in zip(cu, cu[1:]))
        rows, status = self.case.get("ring_rows") or longest, []
        out = [[[(0.0, 0.0)] * (self.HV * self.V)] * tokens for _ in range(self.layers)]
        states = [[[(0.0, 0.0)] * (self.HV * self.V * self.K)] * tokens for _ in range(self.layers)]
        for row, slot in enumerate(slots):
            code = self.slot_status(slot)
            if code == DONE and not keep_state and cu[row + 1] - cu[row] > rows:
                code = TOO_LONG
            status.append(code)
            if code != DONE:
                continue
            for layer in range(self.layers):
                heads = [head.clone() for head in self.heads[layer][slot]]
                for token in range(cu[row], cu[row + 1]):
                    pairs = self.advance(layer, heads, token, step)
                    out[layer][token] = [(o, bound + rounding(v.dtype, o)) for o, bound in pairs]
                    if self.case.get("state_rounding") == "per_token":
                        heads = [head.rounded(self.dtype) for head in heads]
                    states[layer][token] = self.flat([head.clone().rounded(self.dtype) for head in heads])
                if keep_state:
                    self.heads[layer][slot] = [head.rounded(self.dtype) for head in heads]
            self.pending.pop(slot, None)
            if not keep_state:
                self.pending[slot] = (step, list(range(cu[row], cu[row + 1])))
        self.expected[f"{step}.o"] = [pair for layer in out for token in layer for pair in token]
        if snapshots:
            self.expected[f"{step}.states"] = [pair for layer in states for token in layer for pair in token]
        self.set_status(status)

    def do_verify(self):
        self.window(keep_state=False, snapshots=False)

    def do_verify_snapshot(self):
        self.window(keep_state=False, snapshots=True)

    def do_decode(self):
        self.window(keep_state=True, snapshots=False)

    def judge_commit(self, slot, accept, track, step):
        if self.slot_status(slot) != DONE:
            return self.slot_status(slot)
        if slot not in self.pending:
            return NO_WINDOW
        if not 0 <= accept <= len(self.pending[slot][1]):
            return BAD_ACCEPT
        if track >= 0 and step >= 0 and (track >= self.slots or step >= accept):
            return BAD_TRACK
        return DONE

    def do_commit(self):
        slots, accept = self.ints("slot_ids") or self.last_slots, self.ints("accept")
        tracks = self.ints("track_slots") or [-1] * len(slots)
        steps = self.ints("track_steps") or [-1] * len(slots)
        status = [self.judge_commit(*row) for row in zip(slots, accept, tracks, steps)]
        for code, slot, count, track, step in zip(status, slots, accept, tracks, steps):
            if code != DONE:
                continue
            source, tokens = self.pending.pop(slot)
            if count == 0:
                continue
            for layer in range(self.layers):
                heads = self.heads[layer][slot]
                for n in range(count):
                    self.advance(layer, heads, tokens[n], source)
                    if self.case.get("state_rounding") == "per_token":
                        heads = [head.rounded(self.dtype) for head in heads]
                    if track >= 0 and step == n:
                        self.heads[layer][track] = [head.clone().rounded(self.dtype) for head in heads]
                self.heads[layer][slot] = [head.rounded(self.dtype) for head in heads]
            if track >= 0 and step >= 0:
                self.pending.pop(track, None)
        self.set_status(status)

    def do_reset(self):
        status = [self.slot_status(slot) for slot in self.ints("slot_ids")]
        for code, slot in zip(status, self.ints("slot_ids")):
            if code == DONE:
                self.pending.pop(slot, None)
                for layer in range(self.layers):
                    self.heads[layer][slot] = [Head([[0.0] * self.K] * self.V) for _ in range(self.HV)]
        self.set_status(status)

    def do_copy(self):
        pairs = list(zip(self.ints("src"), self.ints("dst")))
        before = [[[head.clone() for head in heads] for heads in layer] for layer in self.heads]
        pending, status = dict(self.pending), []
        for src, dst in pairs:
            codes = self.slot_status(src), self.slot_status(dst)
            code = NULL if NULL in codes else max(codes)
            status.append(code)
            if code != DONE:
                continue
            for layer in range(self.layers):
                self.heads[layer][dst] = [head.clone() for head in before[layer][src]]
            self.pending.pop(dst, None)
            if src in pending:
                self.pending[dst] = pending[src]
        self.set_status(status)
