"""What is measured: shapes, works, and which of ringfold's own works a peer's is put beside."""

import dataclasses
import re

K = V = 128
LAYERS = 8  # of the pools; a commit is one call for all of them, and its share of a layer counts
BATCHES = (1, 8, 32, 128, 256)
FEW_BATCHES = (1, 32, 256)  # for windows of 2 and of 8
ACCEPTED = {1: 1, 2: 2, 4: 3, 8: 5}  # of T drafted tokens, in whole steps and folds
HISTORY = 8  # rows of verify_history
LOWER_BOUND = -5.0  # of KDA's gate


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    kind: str  # gdn, kda
    state: str  # f32, bf16
    T: int
    B: int
    H: int
    HV: int

    def __str__(self):
        return f"{self.kind}_{self.state}_t{self.T}_b{self.B}_h{self.H}x{self.HV}"

    @property
    def accepted(self):
        return ACCEPTED[self.T]

    @property
    def state_bytes(self):
        """Of one slot of one layer."""
        return self.HV * V * K * (4 if self.state == "f32" else 2)

    def family(self):
        """What kernels are compiled for, and what pools are made for: all but B."""
        return dataclasses.replace(self, B=0)


PATTERN = re.compile(r"(gdn|kda)_(f32|bf16)_t(\d+)_b(\d+)_h(\d+)x(\d+)")


def parse(text):
    found = PATTERN.fullmatch(text)
    if not found:
        raise ValueError(f"expected a shape like gdn_f32_t4_b32_h16x32, found {text!r}")
    kind, state, *numbers = found.groups()
    return Shape(kind, state, *map(int, numbers))


# Of each mixer the first is its main shape, which is measured for every T; the other for windows of 4.
HEADS = {"gdn": ((16, 32), (16, 64)), "kda": ((32, 32), (12, 12))}


def grid():
    """Main shapes first, so that a run that is cut short has them."""
    shapes = []
    for T, heads in ((4, 0), (8, 0), (4, 1), (2, 0)):
        for kind, pairs in HEADS.items():
            for state in ("f32", "bf16"):
                shapes += [Shape(kind, state, T, B, *pairs[heads]) for B in (BATCHES if T == 4 else FEW_BATCHES)]
    return shapes


def chosen(pattern):
    """Shapes of the grid that contain one of the comma-separated parts; exact names may also lie outside of it."""
    if not pattern:
        return grid()
    found = []
    for part in pattern.split(","):
        inside = [shape for shape in grid() if part in str(shape)]
        found += inside or [parse(part)]
    return list(dict.fromkeys(found))


# Works of peers, and ringfold's that do the same job.
BESIDE = {
    "verify_states": ("verify_fast", "verify_exact"),
    "verify_ring": ("verify_fast", "verify_exact"),
    "verify_outputs": ("verify_fast", "verify_exact"),
    "verify_history": ("verify_history",),
    "fold": ("fold",),
    "decode": ("decode", "decode_lazy"),
    "step_states": ("step_on_commit", "step_on_next_verify", "step_lazy"),
    "step_fold": ("step_on_commit", "step_on_next_verify", "step_lazy"),
    "step_circular": ("step_on_commit", "step_on_next_verify", "step_lazy"),
}
MEANING = {
    "verify_states": "verify of T drafted tokens that leaves the state after each of them in memory; ringfold: verify "
                     "that leaves the window in the ring",
    "verify_ring": "verify of T drafted tokens that leaves the window in a ring",
    "verify_outputs": "verify of T drafted tokens that leaves nothing behind, so that accepted tokens have to be computed "
                      "again; ringfold: verify that leaves the window in the ring",
    "verify_history": f"verify of T drafted tokens with {HISTORY} accepted tokens in the ring and not in the state",
    "fold": "accepted tokens of the ring go into the state: 2 of 2, 3 of 4, 5 of 8; one layer's share of a call for "
            f"{LAYERS}",
    "decode": "one certain token for each row, state updated; decode_lazy, as peers with a cache: its row goes to the ring, and "
              "into the state when that is nearly full; mean over a flush cycle",
    "step_states": "whole step with one state per draft: verify, and what then makes the accepted state the current one",
    "step_fold": "whole step with a ring that every commit folds",
    "step_circular": "whole step with a ring whose history is folded when it is nearly full; mean over a flush cycle",
}
