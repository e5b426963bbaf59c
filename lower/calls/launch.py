"""The launch of a library's kernel: its call is matched again, now that it is known where operands and result lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from egraph.errors import LowerError
from egraph.tensor import Kernel, Node
from lower.calls.call import LibraryCall
from lower.targets import Launch
from lower.views import Reason, Window

if TYPE_CHECKING:
    from lower.steps import StepWriter


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
    """Return the launch of a kernel; ``recipe`` returns a call's part of the plan's step, or why there is none."""
    locations = writer.placement.locations
    bases = {position: locations[node].window for position, node in enumerate(kernel.inputs)}
    call = match(kernel.fragment, kernel.implementation.name, bases=bases, destination=locations[kernel.output].window)
    spec = call if isinstance(call, str) else recipe(call)
    if isinstance(call, str) or isinstance(spec, str):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {spec}", where=str(kernel.output))
    inputs = tuple(writer.window(kernel.inputs[argument.operand], argument.window) for argument in call.arguments)
    return Launch(inputs, writer.window(kernel.output, call.destination), spec)
