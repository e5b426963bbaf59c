"""What a call of a library is: a primitive, windows over a fragment's operands, post-operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lower.views import Reason, Window

Base: TypeAlias = Callable[[Any], Window]
"""Where a placeholder's elements lie."""


@dataclass(frozen=True)
class Argument:
    """An operand in a role, as a window over placeholder ``operand`` in the library's order of dimensions."""

    role: str
    operand: int
    window: Window
    packed: bool = False
    """Whether the library may keep it in its own format: its value never changes."""
    dtype: str = ""
    """The element type in which the library reads it; empty where that is the tensor's."""


@dataclass(frozen=True)
class PostOperation:
    """One step after the primitive; ``operand`` (with ``window``) for those that read another tensor."""

    kind: str
    algorithm: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    operand: int | None = None
    window: Window | None = None


@dataclass(frozen=True)
class Anchor:
    """One way to call the library for one operator, before its epilogue is known.

    ``arrange`` takes a window over the operator's result to the library's order of dimensions.
    ``bias_axis``: the dimension (after ``arrange``) along which a bias argument varies; None where there is none.
    """

    primitive: str
    parameters: Mapping[str, Any]
    arguments: tuple[Argument, ...]
    arrange: Callable[[Window], Window | Reason]
    bias_axis: int | None = None
    fuses: frozenset[str] = frozenset()
    """Kinds of post-operations that the primitive takes."""
    fuses_nothing: str = ""
    """Why this call may have neither bias nor post-operations; empty where it may."""


@dataclass(frozen=True)
class LibraryCall:
    """A complete call; ``arguments`` in the order of the step's inputs, post-operation operands last."""

    primitive: str
    parameters: Mapping[str, Any]
    arguments: tuple[Argument, ...]
    destination: Window
    post_operations: tuple[Mapping[str, Any], ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()
    """Where the windows of source and destination begin in every run of the primitive, beside where they begin in the first, in elements:
    it runs once for each dense piece of a result that has gaps. Empty where it runs once."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def precisions(self, of: Callable[[Argument], str]) -> dict[int, frozenset[str]]:
        """Return to what the call rounds each operand, by its number: one that is read in several roles may have several."""
        read_in: dict[int, frozenset[str]] = {}
        for argument in self.arguments:
            read_in[argument.operand] = read_in.get(argument.operand, frozenset()) | {of(argument)}
        return read_in

    def reading(self, dtype: str, roles: Sequence[str]) -> LibraryCall:
        """Return the call that reads these operands converted to an element type."""
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
