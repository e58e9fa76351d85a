"""Putting the functions of ``ringfold.integrations.sglang`` in place in an installed SGLang, and undoing it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any, Optional

from .._errors import UnsupportedError

_OPS = "sglang.kernels.ops.attention"
_KERNELS = "sglang.srt.layers.attention.linear.kernels"


def _places(folder):
    """(module, attribute) of every function, where it is defined and where another module has imported it by name."""
    update = "fused_sigmoid_gating_delta_rule_update"
    return ((f"{_OPS}.{folder}.fused_sigmoid_gating_recurrent", update),
            (f"{_KERNELS}.gdn_triton", update),
            (f"{_KERNELS}.kda_triton", update),
            (f"{_OPS}.{folder}.gdn_replayssm_spec_fold", "commit_gdn_replayssm_fold_all_layers"),
            (f"{_OPS}.{folder}.kda_replayssm_spec_decode", "commit_kda_replayssm_spec"),
            (f"{_OPS}.{folder}.kda_replayssm_spec_decode", "commit_kda_replayssm_spec_all_layers"),
            (f"{_OPS}.cutedsl_gdn_mtp_ring", "gated_delta_rule_mtp"))


#: First and last release, and what is replaced. An attribute is replaced by the function of its name.
_TABLE = (((0, 5, 18), (0, 5, 22), _places("fla")),
          ((0, 5, 23), (0, 5, 23), _places("linear")))


def _text(release):
    return ".".join(map(str, release))


#: The releases of SGLang that ``enable`` knows.
KNOWN_VERSIONS = ", ".join(_text(first) if first == last else f"{_text(first)} to {_text(last)}"
                           for first, last, _ in _TABLE)


@dataclass(frozen=True)
class Report:
    """What ``enable`` or ``disable`` did."""

    #: of SGLang, as it says it; "" where nothing was done
    version: str
    #: "module.attribute", in the order in which they were replaced (or restored)
    replaced: tuple[str, ...]
    #: "module.attribute: reason" of what was left as it is
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Patch:
    module: Any
    attribute: str
    original: Any
    replacement: Any

    @property
    def name(self):
        return f"{self.module.__name__}.{self.attribute}"


_patches: list[_Patch] = []
_report: Optional[Report] = None


def _installed_version() -> str:
    if "sglang" not in sys.modules and importlib.util.find_spec("sglang") is None:
        raise ImportError(f"ringfold: expected an installed sglang ({KNOWN_VERSIONS}), found none")
    package = importlib.import_module("sglang")
    version = getattr(package, "__version__", None)
    if not isinstance(version, str):
        raise UnsupportedError(f"sglang.__version__: expected a release ({KNOWN_VERSIONS}), found {version!r}")
    return version


def _places_of(version: str):
    # A release alone is known: what lies between two of them (.dev, rc) may have moved, and so may a .post.
    release = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version.partition("+")[0])
    if release:
        numbers = tuple(map(int, release.groups()))
        for first, last, places in _TABLE:
            if first <= numbers <= last:
                return places
    raise UnsupportedError(f"sglang: expected a version that is known ({KNOWN_VERSIONS}), found {version}")


def _parameters(function):
    return tuple(inspect.signature(function).parameters)


def _prepared(module_name: str, attribute: str, replacement) -> _Patch:
    """The patch of one place. LookupError: why there is none."""
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise LookupError(f"cannot be imported ({error})") from None
    original = getattr(module, attribute, None)
    if not callable(original):
        raise LookupError("expected a function, found " + ("nothing" if original is None else repr(original)))
    theirs, ours = _parameters(original), _parameters(replacement)
    if ours[:len(theirs)] != theirs:
        raise LookupError(f"expected the arguments {', '.join(ours)}, found {', '.join(theirs)}")
    return _Patch(module, attribute, original, replacement)


def enable(strict: bool = True) -> Report:
    """Replaces SGLang's functions by those of ``ringfold.integrations.sglang``, in this process.

    Call it before SGLang captures CUDA graphs. Called again, it changes nothing and returns the same report.

    Args:
        strict: a place that is not as expected (module missing, function missing, other arguments) is an error, and
            nothing is replaced. False: such a place is left as it is, and the report says so.

    Raises:
        ImportError: there is no SGLang.
        UnsupportedError (a NotImplementedError): its version is not known, or (``strict``) a place is not as expected.
    """
    global _report
    if _report is not None:
        return _report
    version = _installed_version()
    functions = importlib.import_module(__package__ + ".sglang")
    prepared, skipped = [], []
    for module, attribute in _places_of(version):
        try:
            prepared.append(_prepared(module, attribute, getattr(functions, attribute)))
        except LookupError as reason:
            skipped.append(f"{module}.{attribute}: {reason.args[0]}")
    if strict and skipped:
        raise UnsupportedError(f"sglang {version}: nothing was replaced, since it is not as expected: "
                               + "; ".join(skipped))
    for patch in prepared:
        setattr(patch.module, patch.attribute, patch.replacement)
    _patches.extend(prepared)
    _report = Report(version, tuple(patch.name for patch in prepared), tuple(skipped))
    return _report


def disable() -> Report:
    """Puts the very objects back that ``enable`` replaced. What somebody else has replaced since is left alone."""
    global _report
    version = "" if _report is None else _report.version
    restored, skipped = [], []
    while _patches:
        patch = _patches.pop()
        if getattr(patch.module, patch.attribute, None) is patch.replacement:
            setattr(patch.module, patch.attribute, patch.original)
            restored.append(patch.name)
        else:
            skipped.append(f"{patch.name}: replaced by somebody else since")
    _report = None
    return Report(version, tuple(restored), tuple(skipped))
