"""Exceptions: one for each code of the library, and each is what a Python programmer would catch anyway."""

from __future__ import annotations

from ._ringfold import Code


class Error(Exception):
    """A call of ringfold failed. The text names the argument, what was expected and what was found.

    Anything but ``internal`` means that no byte of any array was changed.
    """

    code: Code = Code.internal


class InvalidArgumentError(Error, ValueError):
    """An argument contradicts its description, or a row was refused and there is no ``row_status``."""

    code = Code.invalid_argument


class NotFoundError(Error, ValueError):
    """A name that nobody knows (``impl``). A ValueError, as any other wrong value of an argument is."""

    code = Code.not_found


class UnsupportedError(Error, NotImplementedError):
    """Valid, but nothing on this machine or in this build can do it."""

    code = Code.unsupported


class OutOfMemoryError(Error, MemoryError):
    """Memory or the pool's slots are exhausted."""

    code = Code.out_of_memory


class InternalError(Error, RuntimeError):
    """A bug in ringfold, or an error of CUDA."""

    code = Code.internal


_BY_CODE = {kind.code: kind for kind in
            (InvalidArgumentError, NotFoundError, UnsupportedError, OutOfMemoryError, InternalError)}


def exception_of(code: int) -> type[Error]:
    """The exception of a code of the library; called by the C++ side."""
    return _BY_CODE[Code(code)]
