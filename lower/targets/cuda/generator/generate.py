"""From a request to CUDA text, and on to a cubin where a compiler is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from egraph.errors import LowerError
from egraph.tensor import PLAIN, Node, Target, walk
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES
from lower.eoperator.request import OUTPUT_CHANNELS, KernelRequest, kernel_of, may_overwrite, supports_by_parts
from lower.targets.cuda.generator.attention import AttentionRequest, write_attention
from lower.targets.cuda.generator.compiler import MULTIPROCESSORS, compile_text
from lower.targets.cuda.generator.functions import PREAMBLE, TENSOR_TYPES, TYPES, preamble
from lower.targets.cuda.generator.kernel import OUTPUT, SCRATCH, GeneratedKernel, Report
from lower.targets.cuda.generator.schedules import Scheduler, Shape
from lower.targets.cuda.generator.writer import Writer
from runtime.devices.cuda.kernels import Launch

WHOLE = BYTES | {"int32"}
OF_BYTES = ("Dequantize", "DequantizeBlocks")
"""Operators that compute a float32 from whole numbers."""
MOVING = ("view", "movement")
"""Categories of operators that move elements of any type and compute nothing."""
UNBOUNDED = re.compile(r"__launch_bounds__\((\d+)\)")
BOUNDED = re.compile(r"__launch_bounds__\((\d+), (\d+)\)")
TRIED_REGISTERS = (32, 64, 128)
MOST_FEWER = 2
"""Blocks fewer on a multiprocessor that are tried, at most, where registers are spilled."""
REGISTERS = MULTIPROCESSORS["sm_80"].registers
"""Of a multiprocessor; as many on all that we compile for."""
MOST_BLOCKS = (1 << 31) - 1
"""Blocks of a launch along x, at most, on every device."""


def supports(fragment: Node) -> str | None:
    """Return None where a fragment has a CUDA kernel, else the reason why not: arithmetic is that of float32 alone."""
    for node in walk((fragment,)):
        computes = node.op in OPS and OPS[node.op].category not in MOVING
        if node.op in OF_BYTES or (node.type.dtype in WHOLE and computes):
            return f"{node.op} computes with whole numbers"
    return supports_by_parts(fragment)


@lru_cache(maxsize=1 << 14)
def multiplies_in(fragment: Node, precision: str) -> bool:
    """Return whether a fragment's kernel is in tiles of products, whose operands are rounded to a precision."""
    contractions = [node for node in walk((fragment,)) if node.op in OPS and OPS[node.op].category == "contraction"]
    if precision not in (PLAIN, *TENSOR_TYPES) or len(contractions) != 1 or supports(fragment) is not None:
        return False
    kernel = kernel_of(KernelRequest(fragment))
    writer = Writer({name: f"in{name}" for name in kernel.sizes}, kernel.dtypes)
    return Scheduler(kernel, writer, precision).product(kernel) is not None


@lru_cache(maxsize=1 << 14)
def constant_orders(fragment: Node) -> Mapping[int, tuple[int, ...]]:
    """Return in which order products read constants, by operand: neighbouring rows, or columns, of a tile are neighbours in memory.

    What is summed lies further out, places of a window outermost: one of them is looked at for a whole stage.
    """
    if not multiplies_in(fragment, PLAIN):
        return {}
    orders: dict[int, tuple[int, ...]] = {}
    for node in walk((fragment,)):
        for operand, order in zip(node.inputs, _orders(node), strict=False):
            if operand.op == "Placeholder" and operand.attribute("constant") and order != tuple(range(operand.type.rank)):
                orders[operand.integer("index")] = order
    return orders


def _orders(node: Node) -> Sequence[tuple[int, ...]]:
    """Return in which order of their axes a contraction reads its operands best, if they are constant."""
    if node.op == "MatMul" and min(operand.type.rank for operand in node.inputs) > 1:
        left, right = (tuple(range(operand.type.rank)) for operand in node.inputs)
        return (*left[:-2], left[-1], left[-2]), right
    if node.op in OUTPUT_CHANNELS:
        data, weights = (tuple(range(operand.type.rank)) for operand in node.inputs)
        outputs = OUTPUT_CHANNELS[node.op]
        return data, (*weights[2:], 1 - outputs, outputs)
    return ()


def generate(request: KernelRequest, target: Target) -> GeneratedKernel:
    """Return a request's kernel for a target; without a compiler its text and launches alone. LowerError where it is not generated."""
    kernel = write(request)
    compiled = compile_unspilled(kernel.text, kernel.launches, target.architecture)
    return kernel if compiled is None else replace(kernel, cubin=compiled[0], report=compiled[1])


def compile_unspilled(text: str, launches: Sequence[Launch], architecture: str) -> tuple[bytes, Report] | None:
    """Compile a text; where registers are spilled, also with other bounds on them: return what spills least, then what occupies most.

    Left to itself, ptxas takes 32 registers for a row of 21 operands and spills; told to keep to 32, it takes 24. Of a kernel that is
    bounded, fewer blocks lie on a multiprocessor then.
    """
    compiled = compile_text(text, launches, architecture)
    if compiled is None or not compiled[1].spill_bytes:
        return compiled
    changed = {UNBOUNDED.sub(partial(_bounds, registers), text) for registers in TRIED_REGISTERS}
    changed |= {BOUNDED.sub(partial(_fewer, blocks), text) for blocks in range(1, MOST_FEWER + 1)}
    others = [other for each in sorted(changed - {text}) if (other := compile_text(each, launches, architecture)) is not None]
    return min([compiled, *others], key=lambda one: (one[1].spill_bytes, -one[1].occupancy))


def _bounds(registers: int, found: re.Match[str]) -> str:
    """Return bounds that leave a thread so many registers."""
    return f"__launch_bounds__({found[1]}, {max(1, REGISTERS // (registers * int(found[1])))})"


def _fewer(blocks: int, found: re.Match[str]) -> str:
    """Return bounds that let so many blocks fewer lie on a multiprocessor."""
    return f"__launch_bounds__({found[1]}, {max(1, int(found[2]) - blocks)})"


def write(request: KernelRequest) -> GeneratedKernel:
    """Return a request's text and launches, which are the same for all architectures; LowerError where it is not generated."""
    if isinstance(request, AttentionRequest):
        text, only = write_attention(request)
        return GeneratedKernel(PREAMBLE + text, (only,))
    reason = supports(request.fragment)
    if reason is not None:
        raise LowerError(f"no kernel can be generated: {reason}", where=request.symbol)
    kernel = kernel_of(request)
    if kernel.lies_in:
        raise LowerError("values that are stored in another element type are not converted", where=request.symbol)
    names = sorted(kernel.sizes, key=int)
    parameters = {name: f"in{name}" for name in names}
    writer = Writer(parameters, kernel.dtypes)
    if request.precision != PLAIN and request.precision not in TENSOR_TYPES:
        raise LowerError(f"tensor cores round nothing to {request.precision} here", where=request.symbol)
    scheduler = Scheduler(kernel, writer, request.precision)
    shape, parts = scheduler.write(kernel), scheduler.parts
    alone = "" if may_overwrite(request.fragment) else " __restrict__"
    operands = {parameters[name]: f"const {TYPES[kernel.dtypes[name]]}*{alone} {parameters[name]}" for name in names}
    scratch = {SCRATCH: f"float* __restrict__ {SCRATCH}"}
    result = {OUTPUT: f"{TYPES[kernel.output_dtype]}*{alone} {OUTPUT}"}
    if parts is None:
        launched = [_launched(request.symbol, writer, shape, operands | result)]
    else:
        added = {SCRATCH: f"const {scratch[SCRATCH]}"}
        launched = [
            _launched(f"{request.symbol}_parts", parts.writer, parts.shape, operands | scratch),
            _launched(request.symbol, writer, shape, operands | added | result),
        ]
    text = preamble(request.precision) + "".join(text for text, _ in launched)
    return GeneratedKernel(text, tuple(launch for _, launch in launched), scratch_bytes=parts.scratch_bytes if parts else 0)


def _launched(symbol: str, writer: Writer, shape: Shape, parameters: Mapping[str, str]) -> tuple[str, Launch]:
    """Return a function's text and its launch; ``parameters``: declarations by name."""
    if shape.blocks > MOST_BLOCKS:
        raise LowerError(f"{shape.blocks} blocks are more than a launch has", where=symbol)
    head = f'extern "C" __global__ void __launch_bounds__({shape.bounds}) {symbol}({", ".join(parameters.values())}) {{'
    body = [f"  {line}" for line in writer.blocks[0].lines]
    return "\n".join([head, *body, "}", ""]), Launch(symbol, (shape.blocks, 1, 1), (*shape.block, 1), 0, tuple(parameters))
