"""Launch a library's kernel: its call is matched again, with the places where operands and result lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from egraph.errors import LowerError
from egraph.tensor import Kernel, Node
from lower.calls.call import Argument, LibraryCall
from lower.targets import Launch
from lower.views import Reason, Window

if TYPE_CHECKING:
    from lower.steps import StepWriter


class Call(Protocol):
    """A matched call: what it reads, and where it writes."""

    @property
    def arguments(self) -> Sequence[Argument]: ...
    @property
    def destination(self) -> Window: ...


C = TypeVar("C", bound=Call)


class Match(Protocol):
    """Returns the call that computes a fragment, or why there is none."""

    def __call__(
        self, fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
    ) -> LibraryCall | Reason: ...


def launch_call(
    writer: StepWriter,
    kernel: Kernel,
    match: Match,
    recipe: Callable[[LibraryCall], Mapping[str, Any] | Reason] = LibraryCall.spec,
) -> Launch:
    """Return the launch of a kernel of a library with several implementations; ``recipe`` is as for ``launch_matched``."""
    return launch_matched(writer, kernel, partial(match, implementation=kernel.implementation.name), recipe)


def launch_matched(
    writer: StepWriter, kernel: Kernel, match: Callable[..., C | Reason], recipe: Callable[[C], Mapping[str, Any] | Reason]
) -> Launch:
    """Return the launch of a kernel; ``recipe`` returns a call's part of the plan's step, or why there is none."""
    locations = writer.placement.locations
    bases = {position: locations[node].window for position, node in enumerate(kernel.inputs)}
    call = match(kernel.fragment, bases=bases, destination=locations[kernel.output].window)
    spec = call if isinstance(call, str) else recipe(call)
    if isinstance(call, str) or isinstance(spec, str):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {spec}", where=str(kernel.output))
    inputs = tuple(writer.window(kernel.inputs[argument.operand], argument.window) for argument in call.arguments)
    return Launch(inputs, writer.window(kernel.output, call.destination), spec)
