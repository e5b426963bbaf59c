"""cuDNN: convolutions and transposed ones, with what its float32 engines fuse: a summand, a bias, a Relu, in this order.

The epilogues that have an engine were found by queries to cuDNN 9.24 for a described H100 and A100 (``python -m bench.cuda_plans``). A step
describes a graph. If cuDNN is installed, the step also names cuDNN's favourite plan for the graph; otherwise the device takes the
favourite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from egraph.tensor import Implementation, Kernel, Node, Target
from lower.calls.call import Anchor, Base, LibraryCall
from lower.calls.contractions import convolution, operand, transposed_convolution
from lower.calls.epilogue import Resolver
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Launch, Library
from lower.targets.cuda.call import Epilogue, match_call, named_plan, reads
from lower.views import Reason, Window, image_orders, in_one_order
from runtime.devices.cuda import cudnn
from runtime.devices.cuda.gpus import gpu_of
from runtime.plan import Buffer

if TYPE_CHECKING:
    from lower.steps import StepWriter


def _with_model_weights(node: Node, anchors: tuple[Anchor, ...] | Reason, base: Base) -> tuple[Anchor, ...] | Reason:
    """Take the weights as the model has them, because cuDNN derives groups from the channels, and transposes by itself."""
    if isinstance(anchors, str):
        return anchors
    weights = operand(node.inputs[1], "weights", base)
    if isinstance(weights, str):
        return weights
    return tuple(replace(anchor, arguments=(anchor.arguments[0], weights[0])) for anchor in anchors)


def _convolution(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    return _with_model_weights(node, convolution(node, base), base)


def _deconvolution(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    return _with_model_weights(node, transposed_convolution(node, base), base)


RESOLVERS: Mapping[str, tuple[tuple[str, Resolver], ...]] = {
    "cudnn.convolution": (("Conv", _convolution),),
    "cudnn.deconvolution": (("ConvTranspose", _deconvolution),),
}


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the implementations of an operator."""
    return tuple(name for name, resolvers in RESOLVERS.items() if any(op == each for each, _ in resolvers))


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the call that computes a fragment, or why there is none."""
    name, _, precision = implementation.partition("#")[0].partition("@")
    if precision and precision not in cudnn.TENSOR_CORES:
        return f"cuDNN rounds no float32 operands to {precision}"
    return match_call(fragment, dict(RESOLVERS[name]), _completed, bases, destination)


def _completed(anchor: Anchor, destination: Window, epilogue: Epilogue) -> LibraryCall | Reason:
    source, weights = anchor.arguments
    if anchor.primitive == "deconvolution" and not epilogue.is_empty:
        return "cuDNN fuses nothing with the gradient of a convolution"
    if epilogue.activation not in ("", "relu"):
        return f"no float32 engine of cuDNN fuses {epilogue.activation}"
    if epilogue.bias is None and not epilogue.is_empty:
        return "cuDNN fuses a summand or a Relu together with a bias alone"
    windows = [source.window, destination, *([epilogue.summand.window] if epilogue.summand else [])]
    orders = image_orders(len(destination.shape))
    ordered = in_one_order(windows, orders)
    if ordered is None:
        return "source, summand and result do not lie densely in one order"
    is_last, windows = in_one_order(windows, orders[:1]) is None, ordered
    if not weights.window.is_contiguous or (is_last and not weights.packed):
        return "the weights do not lie in the order of the data, and are not constant"
    arguments = [replace(source, window=windows[0]), weights]
    if epilogue.bias is not None:
        shape = epilogue.bias.window.shape
        if any(size > 1 for axis, size in enumerate(shape) if axis != 1):
            return "a bias varies along more than the channels"
        arguments.append(epilogue.bias)
    post_operations: list[Mapping[str, Any]] = []
    if epilogue.summand is not None:
        post_operations.append({"kind": "binary", "algorithm": "add", "argument": len(arguments)})
        arguments.append(replace(epilogue.summand, window=windows[2]))
    if epilogue.activation:
        post_operations.append({"kind": "eltwise", "algorithm": epilogue.activation, "alpha": 0.0, "beta": 0.0})
    packed = [replace(each, packed=is_last and each.role == "weights") for each in arguments]
    return LibraryCall(anchor.primitive, anchor.parameters, tuple(packed), windows[1], tuple(post_operations))


def _planned(call: LibraryCall, target: Target) -> Mapping[str, Any] | Reason:
    """Return a step's recipe, with the plan that the library prefers."""
    spec = {**call.spec(), "precision": target.precision}
    operands = tuple(Buffer("float32", each.window.shape, each.window.strides, "arena") for each in call.arguments)
    output = Buffer("float32", call.destination.shape, call.destination.strides, "arena")
    plan = favourite(json.dumps(spec, sort_keys=True), operands, output, target)
    return plan if isinstance(plan, str) else {**spec, **plan}


def _match_planned(fragment: Node, implementation: str, target: Target) -> LibraryCall | Reason:
    """Return the call that computes a fragment if the library has a plan for it, as far as can be asked here."""
    call, precision = match(fragment, implementation), Implementation.parse(implementation).precision
    if isinstance(call, LibraryCall) and isinstance(reason := _planned(call, replace(target, precision=precision)), str):
        return reason
    return call


def _launch(writer: StepWriter, kernel: Kernel) -> Launch:
    target = kernel.implementation.target or writer.lowering.target

    def recipe(call: LibraryCall) -> Mapping[str, Any] | Reason:
        named = named_plan(kernel, call, match)
        return {**call.spec(), "precision": target.precision, **named} if named else _planned(call, target)

    return launch_call(writer, kernel, match, recipe)


@lru_cache(maxsize=1 << 10)
def favourite(spec: str, operands: tuple[Buffer, ...], output: Buffer, target: Target) -> Mapping[str, Any] | str:
    """Return cuDNN's preferred plan for a described GPU, an empty choice if it is not installed, or its message if it has no plan."""
    if not cudnn.is_installed():
        return {"engine": None, "knobs": {}, "workspace_bytes": cudnn.WORKSPACE_BYTES}
    described = json.loads(spec)
    packed = cudnn.with_packed(described, operands)
    plan = cudnn.favourite_plan(described, packed, output, gpu_of(target.features), target.precision)
    return plan if isinstance(plan, str) else plan.spec


def library(target: Target) -> Library:
    """Return the library for one target; if cuDNN is installed, only calls for which it has a plan are candidates."""
    planned = lru_cache(maxsize=1 << 15)(partial(_match_planned, target=target))
    tiles = partial(library_tiles, matcher=Matcher(implementations, planned))
    return Library("cudnn", tiles, _launch, reads=partial(reads, match), has_plans=True)
