"""Split and merge expressions: one scope as several, several of one form as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from egraph.derive.rules.bodies import Refusal, counted, every, fresh, pulled, replaced, where
from egraph.tensor.expr.bodies import reads_of, with_reads
from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Apply, Compare, Guarded, Read, Scalar, Scope, Tensor


def split_values(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """{x < n} body  =  {x < n} [x == 0 ? {body at 0} : x == 1 ? {body at 1} : ...], one scope for each value: the phases of an image"""
    if refusal := counted(scope):
        return refusal
    if iterator not in scope.traversal or length(iterator) < 2:
        return Refusal("a traversal iterator with at least two values")
    remaining = tuple(i for i in scope.traversal if i != iterator)
    parts = [Scope(remaining, scope.summation, scope.reduction, replaced(scope.body, {iterator: x})) for x in range(length(iterator))]
    reads = [Read(part, tuple(map(index, remaining))) for part in parts]
    body: Scalar = reads[-1]
    for x in reversed(range(len(reads) - 1)):
        body = Guarded((Compare(index(iterator), "==", index(x)),), reads[x], body)
    return Scope.pointwise(scope.traversal, body)


def split_terms(scope: Scope) -> Scope | Refusal:
    """{t} sum(i) (a + b)  =  {t} ({t: sum(i) a}[t] + {t: sum(i) b}[t]), likewise for differences"""
    conditions, value = pulled(scope.body, scope.reduction)
    if scope.reduction != "sum" or not isinstance(value, Apply) or value.function not in ("add", "sub"):
        return Refusal("the body is no sum of terms")
    coordinates = tuple(map(index, scope.traversal))
    bodies = [where(conditions, term, scope.reduction) for term in value.arguments]
    reads = tuple(Read(scope.with_body(body), coordinates) for body in bodies)
    return Scope.pointwise(scope.traversal, Apply(value.function, reads))


def merge_expressions(scopes: Sequence[Scope]) -> tuple[Scope, ...] | Refusal:
    """{t} f(A_j)  =  {j, t: f([j == 0 ? A_0 : A_1 ...])}[j, t] for scopes that differ in tensors alone: one scope with one more iterator

    If they share no tensor, two matmuls become one batched matmul.
    """
    patterns = {_pattern(scope) for scope in scopes}
    if len(scopes) < 2 or len(patterns) != 1:
        return Refusal("the scopes differ in more than the tensors they read")
    tensors = [_tensors(scope.body) for scope in scopes]
    first = scopes[0]
    (j,) = (fresh("j", len(scopes), every(first)),)
    stacked: dict[str, Scope] = {}
    for at, tensor in enumerate(tensors[0]):
        column = [row[at] for row in tensors]
        if len({t.name for t in column}) > 1:
            stacked[tensor.name] = _stack(column)
    if not stacked:
        return Refusal("the scopes are one and the same")
    body = _redirected(first.body, lambda name, coordinates: Read(stacked[name], (index(j), *coordinates)), stacked)
    merged = Scope((j, *first.traversal), first.summation, first.reduction, body)
    return tuple(
        Scope.pointwise(scope.traversal, Read(merged, (index(k), *map(index, scope.traversal)))) for k, scope in enumerate(scopes)
    )


def _pattern(scope: Scope) -> str:
    """Return the text of a scope with its tensors numbered by first occurrence; scopes of one text repeat tensors at the same places."""
    numbers: dict[str, Scope | Tensor] = {}
    for tensor in _tensors(scope.body):
        numbers.setdefault(tensor.name, Tensor(f"t{len(numbers)}", tensor.shape, tensor.dtype))
    shapes = ",".join(str(t.shape) for t in numbers.values())
    return format_scope(scope.with_body(_renamed(scope.body, numbers))) + shapes


def _renamed(body: Scalar, names: Mapping[str, Scope | Tensor]) -> Scalar:
    return _redirected(body, lambda name, coordinates: Read(names[name], coordinates), names)


def _tensors(body: Scalar) -> tuple[Tensor, ...]:
    return tuple({read.source.name: read.source for read in reads_of(body) if isinstance(read.source, Tensor)}.values())


def _stack(tensors: Sequence[Tensor]) -> Scope:
    """{j, i...} [j == 0 ? A_0[i...] : j == 1 ? A_1[i...] : ...]"""
    j = Iterator("j", 0, len(tensors))
    traversal = tuple(Iterator(f"i{k}", 0, size) for k, size in enumerate(tensors[0].shape))
    coordinates = tuple(map(index, traversal))
    body: Scalar = Read(tensors[-1], coordinates)
    for k in reversed(range(len(tensors) - 1)):
        body = Guarded((Compare(index(j), "==", index(k)),), Read(tensors[k], coordinates), body)
    return Scope.pointwise((j, *traversal), body)


def _redirected(body: Scalar, change: Callable[[str, tuple[Index, ...]], Scalar], names: Mapping[str, object]) -> Scalar:
    def changed(read: Read) -> Scalar:
        return change(read.source.name, read.indices) if isinstance(read.source, Tensor) and read.source.name in names else read

    return with_reads(body, changed)
