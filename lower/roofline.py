"""The roofline model: a kernel's arithmetic and bytes, counted from its fragment, and the rates of a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from egraph.tensor import Attributes, Candidate, Node, TensorType, walk
from egraph.tensor.expr.bodies import parts, reads_of
from egraph.tensor.expr.index import length
from egraph.tensor.expr.products import contracted_operations
from egraph.tensor.expr.scope import Guarded, Read, Scalar, Scope, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES

FUNCTIONS = frozenset({
    "Exp", "Log", "Tanh", "Sigmoid", "Erf", "Gelu", "Softplus", "Mish", "Pow", "Sin", "Cos", "Elu", "Celu", "Selu", "Softmax", "LogSoftmax",
})  # fmt: skip
"""Operators that evaluate a function by polynomials: one element takes as long as many additions."""
ADDITIONS_A_FUNCTION = 16
REREADING = frozenset({"Resize", "MaxPool", "AveragePool"})
"""Operators that read an element of their operand several times. What is fused before them is computed anew for each."""
INLINED = frozenset({"elementwise", "view", "movement"})
"""Categories of operators whose elements are computed where they are read; results of others are stored inside the kernel."""
DIVIDING = frozenset({"Div", "Quantize"})
"""Operators that divide each element."""
ADDITIONS_A_DIVISION = 4
"""A convolution of bytes with 1.2 million results took 137 us with a product and a sum, 145 with another sum, 165 with a quotient."""


BYTES_A_FLOAT = 4
"""Products of bytes that processors compute in the time of one of float32."""


@dataclass(frozen=True)
class Work:
    """Multiplications and additions, and bytes that must move (the result, and what is read of each operand, once)."""

    flops: float
    size_bytes: int
    contracts: bool = False
    """Whether there is a contraction inside: contractions run near the peak, everything else does not."""
    functions: float = 0.0
    """How many of the flops are whole functions (an exponential counts as one)."""
    repeated: float = 0.0
    """Additions of computing elements again that are read several times; a whole function counts as ``ADDITIONS_A_FUNCTION``.

    Reductions that are computed again inside other reductions are counted apart, by ``lower.eoperator.repeated``.
    """

    @property
    def intensity(self) -> float:
        """Return flops a byte."""
        return self.flops / self.size_bytes if self.size_bytes else 0.0


def size_bytes(type: TensorType) -> int:
    """Return a tensor's size in bytes; 0 if it is unknown."""
    return type.size_bytes if type.is_static and type.dtype not in ("tuple", "string") else 0


def node_flops(node: Node) -> float:
    """Return the arithmetic of one operator: by its specification, else one operation an element of the result."""
    operands = tuple(operand.type for operand in node.inputs)
    if node.op == "Expression" and all(type.is_static for type in (node.type, *operands)) and (shared := _contracted(node)) is not None:
        return shared
    return _flops(node.op, operands, node.attributes, node.type)


@lru_cache(maxsize=1 << 14)
def _flops(op: str, operands: tuple[TensorType, ...], attributes: Attributes, result: TensorType) -> float:
    spec = OPS.get(op)
    if spec is None or not result.is_static or not all(operand.is_static for operand in operands):
        return 0.0
    if spec.flops is not None:
        count = float(spec.flops([operand.sizes for operand in operands], dict(attributes)))
        return count / BYTES_A_FLOAT if operands[0].dtype in BYTES else count
    if spec.category in ("view", "movement"):
        return 0.0
    largest = max([operand.elements for operand in operands], default=0)
    return float(max(result.elements, largest) * (ADDITIONS_A_DIVISION if op in DIVIDING else 1))


@lru_cache(maxsize=1 << 12)
def _contracted(node: Node) -> float | None:
    """Return the operations of an expression whose tables are applied one after the other; None if it has no such form."""
    tensors = [Tensor(str(k), operand.type.sizes) for k, operand in enumerate(node.inputs)]
    return contracted_operations(OPS[node.op].meaning(tensors, dict(node.attributes)))


@lru_cache(maxsize=1 << 14)
def _read_bytes(node: Node, number: int) -> int:
    """Return how many bytes an operator reads of an operand, at most: of a tensor of which it reads a few rows, only these."""
    operand = node.inputs[number].type
    elements = operand.elements if size_bytes(operand) else 0
    if elements and node.op in ("Slice", "Expression") and node.type.is_static:
        scope = OPS[node.op].meaning([Tensor(str(k), each.type.sizes) for k, each in enumerate(node.inputs)], dict(node.attributes))
        of = [read.source for read in reads_of(scope.body)]
        if not scope.summation and not any(isinstance(source, Scope) for source in of):
            elements = min(elements, node.type.elements * sum(source.name == str(number) for source in of if isinstance(source, Tensor)))
    return elements * (size_bytes(operand) // operand.elements) if elements else 0


def work(fragment: Node) -> Work:
    """Count a kernel's arithmetic and its traffic."""
    nodes = list(walk((fragment,)))
    contracts = any(node.op in OPS and OPS[node.op].category in ("contraction", "recurrence") for node in nodes)
    read = dict.fromkeys((node for node in nodes if node.op == "Placeholder"), 0)
    for node in nodes:
        for number, operand in enumerate(node.inputs):
            if operand in read:
                read[operand] += _read_bytes(node, number)
    moved = size_bytes(fragment.type) + sum(min(count, size_bytes(node.type)) for node, count in read.items())
    functions = sum(node.type.elements for node in nodes if node.op in FUNCTIONS and node.type.is_static)
    return Work(math.fsum(node_flops(node) for node in nodes), moved, contracts, float(functions), _repeated(nodes))


def _repeated(nodes: Sequence[Node]) -> float:
    """Return the additions of computing elements again, in a fragment whose nodes are given operands first.

    Nodes are visited from the result to the operands; ``evaluations`` counts the elements that are computed of a node whose consumers read
    some of them several times.
    """
    evaluations: dict[Node, float] = {}
    repeated = 0.0
    for node in reversed(nodes):
        count = evaluations.get(node, 0.0)
        is_rereading = node.op in REREADING and node.type.is_static
        if not count and not is_rereading:
            continue
        is_inlined = node.op in OPS and OPS[node.op].category in INLINED
        if is_inlined and count > node.type.elements:
            additions = ADDITIONS_A_FUNCTION if node.op in FUNCTIONS else node_flops(node) / max(1, node.type.elements)
            repeated += (count - node.type.elements) * additions
        if not is_rereading and not is_inlined:
            continue
        read = (count if is_inlined and count else node.type.elements) * (_reads_an_element(node) if is_rereading else 1)
        for operand in node.inputs:
            if operand.op != "Placeholder" and operand.type.is_static:
                share = operand.type.elements / max(1, node.type.elements) if node.op == "Concat" else 1.0
                evaluations[operand] = max(evaluations.get(operand, 0.0), share * read)
    return repeated


@lru_cache(maxsize=1 << 12)
def _reads_an_element(node: Node) -> int:
    """Return how many elements of its operand an operator reads for one of its result, at most."""
    return _reads(OPS[node.op].meaning([Tensor("0", node.inputs[0].type.sizes)], dict(node.attributes)))


def _reads(scope: Scope) -> int:
    return math.prod(map(length, scope.summation)) * _reads_in(scope.body)


def _reads_in(body: Scalar) -> int:
    match body:
        case Read(Scope() as inner):
            return _reads(inner)
        case Read():
            return 1
        case Guarded(_, then, otherwise):
            return max(_reads_in(then), _reads_in(otherwise))
        case _:
            return sum(map(_reads_in, parts(body)))


@dataclass(frozen=True)
class DeviceSpeed:
    """The rates of a device: measured once by a few small kernels (see ``calibrate``), else conservative guesses."""

    launch_us: float = 0.5
    call_us: float = 10.0
    """Microseconds that a run of a program takes besides its kernels: checking inputs, making outputs, Python."""
    cache_gigabytes_s: float = 40.0
    memory_gigabytes_s: float = 10.0
    contraction_gigaflops_s: float = 50.0
    other_gigaflops_s: float = 4.0
    """Scalar functions a second, in thousand millions."""

    def estimate_us(self, amount: Work) -> float:
        """Return launch + the slower of moving the bytes and doing the arithmetic."""
        bandwidth = self.cache_gigabytes_s if amount.size_bytes <= 1 << 20 else self.memory_gigabytes_s
        moving_us = amount.size_bytes / (bandwidth * 1e3)
        if amount.contracts:
            return self.launch_us + max(moving_us, amount.flops / (self.contraction_gigaflops_s * 1e3))
        additions = max(0.0, amount.flops - amount.functions)
        computing_us = (amount.functions + (additions + amount.repeated) / ADDITIONS_A_FUNCTION) / (self.other_gigaflops_s * 1e3)
        return self.launch_us + max(moving_us, computing_us)

    def copy_us(self, size_bytes: int) -> float:
        """Return the time to read and write so many bytes."""
        return self.estimate_us(Work(0.0, 2 * size_bytes))

    def kernel_us(self, candidate: Candidate, amount: Work) -> float:
        """Return a kernel's estimated time; some devices also use how it is computed."""
        return self.estimate_us(amount)
