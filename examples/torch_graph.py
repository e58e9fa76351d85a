"""A whole step in torch: verify of all layers, a stand-in for the sampler, commit. On a GPU the step is captured in a
CUDA graph once and replayed with other inputs; on the CPU the same function runs without a graph.

    python examples/torch_graph.py            on the GPU if there is one
    python examples/torch_graph.py cpu

Every replay is compared with plain decoding: equal bits in states and in the outputs of accepted tokens.
"""

import sys

import torch

import ringfold

LAYERS, B, WINDOW, H, HV, K, V, STEPS = 2, 3, 4, 2, 4, 64, 64, 6


class Step:
    """Fixed tensors, as a graph needs them, and the work of one step on them."""

    def __init__(self, pool, mixers, slots, device, dtype):
        def tensor(*shape, of=dtype):
            return torch.zeros(shape, dtype=of, device=device)

        self.pool, self.mixers = pool, mixers
        self.slot_ids = torch.tensor([slot.id for slot in slots], dtype=torch.int32, device=device)
        self.inputs = [{"q": tensor(B, WINDOW, H, K), "k": tensor(B, WINDOW, H, K), "v": tensor(B, WINDOW, HV, V),
                        "a": tensor(B, WINDOW, HV), "b": tensor(B, WINDOW, HV)} for _ in range(LAYERS)]
        self.out = [tensor(B, WINDOW, HV, V) for _ in range(LAYERS)]
        self.draft_is_right = tensor(B, WINDOW - 1, of=torch.bool)
        self.num_accepted = tensor(B, of=torch.int32)
        self.row_status = tensor(B, of=torch.int32)

    def run(self):
        for layer, inputs in enumerate(self.inputs):
            self.pool.verify(layer, **inputs, slots=self.slot_ids, mixer=self.mixers[layer], out=self.out[layer])
        # The first token is certain; drafts count up to the first wrong one. All of it stays on the device.
        right = self.draft_is_right.to(torch.int32).cumprod(dim=1).sum(dim=1)
        self.num_accepted.copy_(right + 1)
        self.pool.commit(self.num_accepted, self.slot_ids, row_status=self.row_status)

    def captured(self):
        """A function that runs the step: by replaying a graph of it on a GPU, directly on the CPU."""
        if not self.slot_ids.is_cuda:
            return self.run
        # Once outside of a graph, since the first call of a kernel loads it, on a stream beside the default one, as
        # torch asks for it. Null rows (slot id -1), so that no state changes.
        ids = self.slot_ids.clone()
        self.slot_ids.fill_(-1)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            self.run()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # calls run in torch's current stream, which is the captured one here
            self.run()
        self.slot_ids.copy_(ids)
        return graph.replay


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(1)
    pool = ringfold.Pool(layers=LAYERS, slots=2 * B, H=H, HV=HV, K=K, V=V, ring_rows=WINDOW, act_dtype=dtype,
                         device=device, views="torch")
    mixers = [ringfold.Mixer(A_log=torch.randn(HV, device=device), dt_bias=torch.randn(HV, device=device))
              for _ in range(LAYERS)]
    slots, plain = pool.acquire(B), pool.acquire(B)
    step = Step(pool, mixers, slots, device, dtype)
    run = step.captured()

    kept = 0
    for _ in range(STEPS):
        for inputs in step.inputs:
            for tensor in inputs.values():
                tensor.normal_()
        step.draft_is_right.bernoulli_(0.7)
        run()
        assert step.row_status.eq(ringfold.RowStatus.done).all()
        # The accepted tokens of each request once more, by plain decoding of another slot.
        for r, count in enumerate(step.num_accepted.tolist()):
            kept += count
            for layer, inputs in enumerate(step.inputs):
                for t in range(count):
                    token = {name: tensor[r:r + 1, t:t + 1] for name, tensor in inputs.items()}
                    expected = pool.decode(layer, **token, slots=[plain[r]], mixer=mixers[layer])
                    assert torch.equal(step.out[layer][r, t], expected[0, 0])
    state = pool.state()
    for with_drafts, without in zip(slots, plain):
        assert torch.equal(state[:, with_drafts.id], state[:, without.id])
    how = "graph replays" if device == "cuda" else "steps"
    print(f"{STEPS} {how} on {device}, {kept} tokens kept; outputs and states are those of plain decoding")


if __name__ == "__main__":
    main()
