"""FlashInfer's GDN verify with a u-cache. It needs a compiler for its kernels at run time (nvidia-cutlass-dsl and
apache-tvm-ffi), and is listed as missing where these are not installed."""

import importlib.util

from loading import Missing, folder_of, version_of


class FlashInfer:
    name = "flashinfer"

    def __init__(self, peers):
        place = folder_of(peers, "flashinfer")
        self.version = version_of("flashinfer-python", place)
        for module in ("cutlass", "tvm_ffi"):
            if importlib.util.find_spec(module) is None:
                raise Missing(f"flashinfer {self.version} is there, {module} is not")
        raise Missing(f"flashinfer {self.version} is there, but this harness has no calls for it")

    def works(self, shape):
        return {}

    def job(self, work, p):
        raise Missing("no works")
