"""ringfold: speculative decoding for models with a recurrent state, exact in every bit.

``verify`` computes the outputs of a window of draft tokens and leaves the state as it was, ``Pool.commit`` replays the
accepted ones; the state is then that of plain ``decode``, bit for bit. Arrays are those of any library with DLPack.
docs/python.md has the tour; ``ringfold.torch`` has operators for torch.compile.
"""

from ._errors import (Error, InternalError, InvalidArgumentError, NotFoundError, OutOfMemoryError, UnsupportedError)
from ._ops import (History, Mixer, Ring, RingOwners, conv_commit, conv_decode, conv_verify, decode, decode_layer, fold, gated_norm,
                   verify, verify_layer)
from ._pool import Pool, PoolBytes, PoolConfig, Slot, pool_bytes
from ._registry import (Candidate, Cell, Explanation, Footprint, Info, Plan, Report, StepCost, check, choose, explain,
                        implementations, info, machines, num_threads, set_num_threads, step_costs)
from ._ringfold import FOLDED, MAX_HEAD_DIM, MAX_WINDOW, NO_WINDOW, NOT_ACQUIRED, Code, RowStatus
from ._ringfold import version as _version


def commit(pool, num_accepted, slots, **arguments):
    """``pool.commit``: consumes the pending window of every row, in all layers of the pool."""
    pool.commit(num_accepted, slots, **arguments)


def __getattr__(name):
    if name == "torch":  # imported when it is asked for, since it imports torch
        import importlib

        return importlib.import_module("ringfold.torch")
    raise AttributeError(f"module 'ringfold' has no attribute {name!r}")


#: The version of the library, for example "0.1.0".
version: str = _version()
__version__ = version

__all__ = ["Candidate", "Cell", "Code", "Error", "Explanation", "FOLDED", "Footprint", "History", "Info",
           "InternalError", "InvalidArgumentError", "MAX_HEAD_DIM", "MAX_WINDOW", "Mixer", "NOT_ACQUIRED", "NO_WINDOW",
           "NotFoundError", "OutOfMemoryError", "Plan", "Pool", "PoolBytes", "PoolConfig", "Report", "Ring", "RingOwners",
           "RowStatus", "Slot", "StepCost", "UnsupportedError", "check", "choose", "commit", "conv_commit",
           "conv_decode", "conv_verify", "decode", "decode_layer", "explain", "fold", "gated_norm", "implementations",
           "info", "machines", "num_threads", "pool_bytes", "set_num_threads", "step_costs", "verify", "verify_layer",
           "version"]
