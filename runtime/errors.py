"""Errors of the runtime; they are apart from ``egraph.errors`` because the runtime imports nothing of it."""

from __future__ import annotations


class ExecutionError(RuntimeError):
    """Report what happened, where, and how to fix it. Base of everything the runtime raises on purpose."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what + (f"\n  at: {where}" if where else "") + (f"\n  fix: {fix}" if fix else ""))


class InvalidArgument(ExecutionError, ValueError):
    """A name, element type or shape given to ``run`` is not the model's."""


class ArtefactError(ExecutionError):
    """The artefact's files are missing, damaged or from another version."""


class KernelError(ExecutionError):
    """A kernel cannot be created, or failed while running."""


class LibraryMissing(ExecutionError):
    """A shared library or a compiler that is needed is not installed."""
