"""Requests to the code generator, and whether they are supported: no compiler is imported here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from egraph.errors import EinsatError
from egraph.tensor import PLAIN, Attributes, Node, TensorType, make, placeholder, placeholders, walk
from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.scope import Scope
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES, INTEGERS
from egraph.tensor.ops.lookup import READ_AT_COMPUTED_PLACES
from egraph.tensor.ops.reference import fragment_expression
from egraph.tensor.storage import STORAGE, stored
from lower.eoperator.rolls import with_rolls
from lower.eoperator.tabled import refusal
from lower.eoperator.terms import Term, Terms, subterms
from lower.views import row_major

MAXIMUM_TERMS = 1500
_COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "is_nan"})
_RING = frozenset({"add", "sub", "mul"})
"""The scalar functions that are generated for int32."""
_LOGICAL = frozenset({"and_", "or_", "not_"})
_WIDE = INTEGERS - BYTES - {"int32"}
"""Integers that an int32 may not hold."""
_WITHOUT_ARITHMETIC = frozenset({"float16", "bfloat16"})
CONVERTED = ("bfloat16",)
"""The element types that generated kernels convert from and to in registers, where values are stored in them."""
OUTPUT_CHANNELS = {"Conv": 0, "ConvTranspose": 1}
"""The axis of the weights along which the channels of the result lie."""


@dataclass(frozen=True)
class KernelRequest:
    """A fragment to compile, with strides (in elements) of its operands and result where they are not dense row-major."""

    fragment: Node
    output_strides: tuple[int, ...] | None = None
    input_strides: tuple[tuple[int, ...] | None, ...] | None = None
    """One entry a placeholder, by index."""
    precision: str = PLAIN
    """To what the operands of its product are rounded, where that is not float32."""

    @property
    def digest(self) -> str:
        rounding = "" if self.precision == PLAIN else f"|{self.precision}"
        return hashlib.sha256(f"{self.fragment.digest}|{self.output_strides}|{self.input_strides}{rounding}".encode()).hexdigest()[:16]

    @property
    def symbol(self) -> str:
        """Return a readable name that is unique to the content."""
        names = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", n.op).lower() for n in walk((self.fragment,)) if n.op != "Placeholder"]
        return "_".join([*dict.fromkeys(names)][:5] or ["copy"]) + "_" + self.digest


@dataclass(frozen=True)
class Kernel:
    """A request as a term: ``root`` stored at ``offset`` for all values of ``iterators``."""

    table: Terms
    dtypes: dict[str, str]
    """What operands are computed with."""
    lies_in: dict[str, str]
    """The element types in memory of operands, and of ``out``, that are converted."""
    sizes: dict[str, int]
    iterators: tuple[Iterator, ...]
    root: Term
    offset: Index
    output_dtype: str
    output_size: int


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def kernel_of(request: KernelRequest) -> Kernel:
    """Return a request as a term over flat memory."""
    computed = stored(request.fragment)
    leaves = placeholders(computed.fragment)
    names = [str(leaf.integer("index")) for leaf in leaves]
    lies_in = {str(leaf.integer("index")): leaf.type.dtype for leaf in placeholders(request.fragment)}
    lies_in = {name: dtype for name, dtype in lies_in.items() if int(name) in computed.operands}
    lies_in |= {"out": request.fragment.type.dtype} if computed.is_result else {}
    strides_of_inputs = request.input_strides or ()
    strides, dtypes, sizes = {}, {}, {}
    for name, leaf in zip(names, leaves, strict=True):
        given_strides = strides_of_inputs[int(name)] if int(name) < len(strides_of_inputs) else None
        strides[name] = given_strides or row_major(leaf.type.sizes)
        dtypes[name], sizes[name] = leaf.type.dtype, _span(leaf.type.sizes, strides[name])
    table = Terms(strides, dtypes)
    scope: Scope = fragment_expression(with_rolls(computed.fragment))
    shape = computed.fragment.type.sizes
    output_strides = request.output_strides or row_major(shape)
    iterators, coordinates, offset = [], [], index(0)
    for size, stride in zip(shape, output_strides, strict=True):
        if size == 1:
            coordinates.append(index(0))
            continue
        iterators.append(table.fresh("i", size))
        coordinates.append(index(iterators[-1]))
        offset = offset + index(iterators[-1]) * stride
    root = table.instantiate(scope, tuple(coordinates))
    span = _span(shape, output_strides)
    return Kernel(table, dtypes, lies_in, sizes, tuple(iterators), root, offset, computed.fragment.type.dtype, span)


def _type(term: Term, dtypes: dict[str, str], types: dict[Term, str]) -> str:
    """Return a term's element type ('' for a number); raises EinsatError when its arithmetic is not generated."""
    operand_types = [types[child] for child in term.children]
    match term.kind:
        case "number":
            return ""
        case "index" | "table":
            return "float32"
        case "read":
            return dtypes[term.data[0]]
        case "guard":
            kinds = set(operand_types) - {""}
            if kinds & _WITHOUT_ARITHMETIC and any(c.kind == "number" and c.data != 0 for c in term.children):
                raise EinsatError(f"a constant of type {next(iter(kinds))} is not generated")
            if len(kinds) > 1:
                raise EinsatError(f"a choice between types {sorted(kinds)} is not generated")
            return next(iter(kinds), "")
        case "reduce":
            if operand_types[0] not in ("float32", "int32", ""):
                raise EinsatError(f"a reduction of {operand_types[0]} is not generated")
            return operand_types[0] or "float32"
    if term.data in CONVERSIONS:
        refused = {"bool", "float64", *_WITHOUT_ARITHMETIC}
        if operand_types[0] in refused | (_WIDE if CONVERSIONS[term.data] == "int32" else set()):
            raise EinsatError(f"{term.data} of {operand_types[0]} is not generated")
        return CONVERSIONS[term.data]
    if term.data in _LOGICAL:
        return "bool"
    values = operand_types[1:] if term.data == "where" else operand_types
    kinds = set(values) - {""}
    if term.data == "where" and len(kinds) <= 1 and not kinds & _WITHOUT_ARITHMETIC:
        return next(iter(kinds), "float32")
    if kinds == {"int32"} and term.data in _RING:
        return "int32"
    if not kinds <= {"float32", "bool"}:
        raise EinsatError(f"{term.data} of {', '.join(sorted(kinds))} is not generated: only that of float32 is, and sums of int32")
    return "bool" if term.data in _COMPARISONS else "float32"


def element_type(root: Term, dtypes: dict[str, str]) -> str:
    """Return the element type of a term that can be generated, '' for a number."""
    types: dict[Term, str] = {}
    for term in subterms((root,)):
        types[term] = _type(term, dtypes, types)
    return types[root]


@lru_cache(maxsize=64)
def _shared_kernel(fragment: Node) -> Kernel:
    """Return a fragment's kernel, shared by several queries; it must not be changed."""
    return kernel_of(KernelRequest(fragment))


@lru_cache(maxsize=1 << 14)
def supports(fragment: Node) -> str | None:
    """Return None when a kernel can be generated for a fragment, else the reason why not."""
    computed = stored(fragment).fragment
    for node in walk((computed,)):
        if node.op != "Placeholder" and node.op not in OPS:
            return f"{node.op} has no meaning to generate code from"
        if node.op in OPS and OPS[node.op].category == "recurrence":
            return f"{node.op} is a fold, whose steps are not generated"
        if node.op in ("ArgMax", "ArgMin") and node.inputs[0].op != "Placeholder":
            return f"{node.op} compares elements with one of them: computed twice, they may differ in their last bit"
        if not node.type.is_static:
            return f"{node.op} has unknown sizes ({node.type})"
    try:
        kernel = _shared_kernel(fragment)
        if not set(kernel.lies_in.values()) <= set(CONVERTED):
            return f"values stored as {', '.join(sorted({*kernel.lies_in.values()}))} are not converted"
        terms = subterms((kernel.root,))
        if len(terms) > MAXIMUM_TERMS:
            return f"{len(terms)} scalar operations an element are more than {MAXIMUM_TERMS}"
        kind = element_type(kernel.root, kernel.dtypes)
        reason = refusal(kernel.table, kernel.iterators, kernel.root, kernel.offset)
        if reason is not None:
            return reason
    except EinsatError as error:
        return error.what
    if (kind or "float32") != computed.type.dtype:
        return f"a result of type {computed.type.dtype} from {kind or 'constants'} is not generated"
    if max([kernel.output_size, *kernel.sizes.values()]) >= 2**31:
        return "a tensor has more than 2**31 elements"
    return None


def supports_by_parts(fragment: Node) -> str | None:
    """Return the answer of ``supports``, from the operators one by one where that suffices: much faster.

    Operators that can be generated alone can be together, as long as their terms stay few: every read of an operand
    repeats at most the operand's own terms. Indices that are computed, tables below others, and long fragments, are looked at as a whole.
    """
    terms: dict[Node, int] = {}
    for node in walk((fragment,)):
        if node.op == "Placeholder":
            terms[node] = 1
            continue
        if node.op in STORAGE:
            return supports(fragment)
        computed = node.op in READ_AT_COMPUTED_PLACES and node.inputs[-1].op != "Placeholder"
        if computed or (node.op == "Expression" and node is not fragment):
            return supports(fragment)
        part = _part(node.op, node.attributes, tuple(operand.type for operand in node.inputs), node.type)
        if isinstance(part, str):
            return part
        arithmetic, reads = part
        terms[node] = arithmetic + sum(count * terms[operand] for count, operand in zip(reads, node.inputs, strict=True))
    if terms[fragment] > 2 * MAXIMUM_TERMS:  # nested normalisations multiply: composing them to count exactly would take minutes
        return f"about {terms[fragment]} scalar operations an element are more than {MAXIMUM_TERMS}"
    return supports(fragment) if terms[fragment] > MAXIMUM_TERMS else None


@lru_cache(maxsize=1 << 14)
def _part(op: str, attributes: Attributes, operands: tuple[TensorType, ...], type: TensorType) -> tuple[int, tuple[int, ...]] | str:
    """Return how many terms an operator has besides reads, and how often it reads each operand; or why it is not generated."""
    alone = make(op, [placeholder(i, operand) for i, operand in enumerate(operands)], attributes, type)
    reason = supports(alone)
    if reason is not None:
        return reason
    terms = subterms((_shared_kernel(alone).root,))
    read = [term.data[0] for term in terms if term.kind == "read"]
    return len(terms) - len(read), tuple(max(1, read.count(str(i))) for i in range(len(operands)))


@lru_cache(maxsize=1 << 14)
def may_overwrite(fragment: Node) -> frozenset[int]:
    """Return the placeholders whose memory (of the same dense layout) the output may share exactly."""
    if supports(fragment) is not None:
        return frozenset()
    kernel = _shared_kernel(fragment)
    terms = subterms((kernel.root,))
    if any(term.kind in ("reduce", "table") for term in terms):  # vectors of an unrolled kernel overlap
        return frozenset()
    result = []
    for leaf in placeholders(fragment):
        name = str(leaf.integer("index"))
        offsets = [term.data[1] for term in terms if term.kind == "read" and term.data[0] == name]
        gathers = any("DataIndex" in repr(term.data) for term in terms if term.kind in ("read", "index"))
        same = leaf.type.dtype == fragment.type.dtype and leaf.type.elements == fragment.type.elements
        if same and not gathers and offsets and all(offset == kernel.offset for offset in offsets):
            result.append(int(name))
    return frozenset(result)


@lru_cache(maxsize=1 << 14)
def constant_orders(fragment: Node) -> Mapping[int, tuple[int, ...]]:
    """Return in which order kernels read constants, by operand: vectors lie along the innermost axis of the result.

    Weights of convolutions with channels last: places of the window, channels of the operand, channels of the result. As they are given,
    every vector of weights is gathered element by element, once for each part of the result with other guards.
    """
    orders: dict[int, tuple[int, ...]] = {}
    for node in walk((fragment,)):
        if node.op in OUTPUT_CHANNELS and node.string("layout") == "NHWC":
            weights, outputs = node.inputs[1], OUTPUT_CHANNELS[node.op]
            if weights.op == "Placeholder" and weights.attribute("constant"):
                orders[weights.integer("index")] = (*range(2, weights.type.rank), 1 - outputs, outputs)
    return orders
