"""Calls of a library: a primitive, windows over a fragment's operands, and post-operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lower.views import Reason, Window

Base: TypeAlias = Callable[[Any], Window]
"""Returns the window in which a placeholder's elements lie."""


@dataclass(frozen=True)
class Argument:
    """An operand in a role, as a window over placeholder ``operand`` in the library's order of dimensions."""

    role: str
    operand: int
    window: Window
    packed: bool = False
    """Whether the library may store it in its own format, because its value never changes."""
    dtype: str = ""
    """The element type in which the library reads it; empty if that is the tensor's."""


@dataclass(frozen=True)
class PostOperation:
    """One step after the primitive; ``operand`` (with ``window``) is set if the step reads another tensor."""

    kind: str
    algorithm: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    operand: int | None = None
    window: Window | None = None


@dataclass(frozen=True)
class Anchor:
    """One way to call the library for one operator, before its epilogue is known.

    ``arrange`` maps a window over the operator's result to the library's order of dimensions.

    ``bias_axis``: the dimension (after ``arrange``) along which a bias argument varies; None if there is none.
    """

    primitive: str
    parameters: Mapping[str, Any]
    arguments: tuple[Argument, ...]
    arrange: Callable[[Window], Window | Reason]
    bias_axis: int | None = None
    fuses: frozenset[str] = frozenset()
    """Kinds of post-operations that the primitive can fuse."""
    fuses_nothing: str = ""
    """Why this call may have neither bias nor post-operations; empty if it may."""


@dataclass(frozen=True)
class LibraryCall:
    """A complete call; ``arguments`` in the order of the step's inputs, post-operation operands last."""

    primitive: str
    parameters: Mapping[str, Any]
    arguments: tuple[Argument, ...]
    destination: Window
    post_operations: tuple[Mapping[str, Any], ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()
    """Where the windows of source and destination begin in every run of the primitive, relative to the first run, in elements. The
    primitive runs once for each dense piece of a result that has gaps. Empty if it runs once."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def precisions(self, of: Callable[[Argument], str]) -> dict[int, frozenset[str]]:
        """Return the precisions to which the call rounds each operand, by its number; an operand in several roles may have several."""
        read_in: dict[int, frozenset[str]] = {}
        for argument in self.arguments:
            read_in[argument.operand] = read_in.get(argument.operand, frozenset()) | {of(argument)}
        return read_in

    def reading(self, dtype: str, roles: Sequence[str]) -> LibraryCall:
        """Return the call that reads the operands in these roles converted to an element type."""
        return replace(self, arguments=tuple(replace(a, dtype=dtype) if a.role in roles else a for a in self.arguments))

    def spec(self) -> dict[str, Any]:
        """Return the call as a plan step's recipe."""
        types = {a.role: a.dtype for a in self.arguments if a.dtype}
        return {
            "primitive": self.primitive,
            **({"types": types} if types else {}),
            **self.parameters,
            "arguments": {a.role: i for i, a in enumerate(self.arguments) if a.role},
            "packed": [a.role for a in self.arguments if a.packed],
            "post_ops": [dict(p) for p in self.post_operations],
            **({"pieces": [list(piece) for piece in self.pieces]} if self.pieces else {}),
        }
