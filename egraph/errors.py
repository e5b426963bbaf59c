"""Errors that the user can act on: one base class, with one subclass per stage.

A message says what happened, where, and what to do about it (the exact flag), in that order.
"""


class EinsatError(Exception):
    """Report a problem that the user can act on; the command line prints it without a traceback."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what + (f"\n  at: {where}" if where else "") + (f"\n  fix: {fix}" if fix else ""))


class ModelError(EinsatError):
    """The model file or an option about it cannot be used (exit code 2)."""


class TypeMismatch(EinsatError):
    """An operator was given operands or attributes that it does not accept."""


class RuleError(EinsatError):
    """A rule is unknown, malformed, or not allowed to load."""


class ExtractError(EinsatError):
    """No program can be extracted from the e-graph."""


class LowerError(EinsatError):
    """A kernel cannot be compiled or no implementation exists for it."""


class CheckFailed(EinsatError):
    """The optimised program disagrees with the reference (exit code 3)."""
