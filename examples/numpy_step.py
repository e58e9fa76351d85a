"""One step with drafts in NumPy: verify a window of four tokens, keep two, and compare with plain decoding.

    python examples/numpy_step.py
"""

import numpy as np

import ringfold

H, HV, K, V, WINDOW = 2, 4, 64, 64, 4
random = np.random.default_rng(1)


def noise(*shape):
    return random.standard_normal(shape, dtype=np.float32)


def main():
    # One recurrent layer, its parameters, and two requests: one with drafts, one without.
    pool = ringfold.Pool(slots=8, H=H, HV=HV, K=K, V=V, ring_rows=WINDOW)
    mixer = ringfold.Mixer(A_log=noise(HV), dt_bias=noise(HV))
    drafted, plain = pool.acquire(2)

    # Four tokens: the last accepted one and three drafts, after projections and short conv. Arrays are [B, T, ..].
    q, k, v = noise(1, WINDOW, H, K), noise(1, WINDOW, H, K), noise(1, WINDOW, HV, V)
    a, b = noise(1, WINDOW, HV), noise(1, WINDOW, HV)

    before = pool.state(0)[drafted.id].copy()  # state() is the pool's own memory
    out = pool.verify(0, q, k, v, a, b, [drafted], mixer=mixer)
    assert pool.state(0)[drafted.id].tobytes() == before.tobytes()  # verify leaves the state alone

    accepted = 2  # what the sampler decided
    pool.commit([accepted], [drafted])

    # The same two tokens one by one, without drafts.
    for t in range(accepted):
        token = (x[:, t:t + 1] for x in (q, k, v, a, b))  # views with strides: nothing is copied
        expected = pool.decode(0, *token, [plain], mixer=mixer)
        assert out[:, t].tobytes() == expected[:, 0].tobytes()
    assert pool.state(0)[drafted.id].tobytes() == pool.state(0)[plain.id].tobytes()
    print(f"{accepted} of {WINDOW} tokens kept; outputs and state are those of plain decoding, in every bit")


if __name__ == "__main__":
    main()
