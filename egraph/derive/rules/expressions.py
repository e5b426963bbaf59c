"""Expression splitting, merging and fusion: one scope as several, several of one form as one, producers inside their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from egraph.derive.rules.bodies import Refusal, counted, every, fresh, pulled, replaced, where
from egraph.expr.compose import inline
from egraph.expr.index import Index, Iterator, index, known, length
from egraph.expr.printing import format_scope
from egraph.expr.scope import Apply, Compare, Guarded, Read, Scalar, Scope, Tensor


def split_range(scope: Scope, iterator: Iterator, at: int) -> Scope | Refusal:
    """{x < n} body  =  {x < n} [x < at ? {x < at: body}[x] : {x < n - at: body at x + at}[x - at]]; a sum of two, where x is summed"""
    if refusal := counted(scope):
        return refusal
    if not 0 < at < length(iterator):
        return Refusal(f"{at} does not lie inside the range of {iterator.name}")
    first, second = (_restricted(scope, iterator, low, high) for low, high in ((0, at), (at, length(iterator))))
    if iterator in scope.summation:
        if scope.reduction not in _JOINS:
            return Refusal(f"no function joins two parts of a {scope.reduction}")
        places = tuple(map(index, scope.traversal))
        return Scope(scope.traversal, (), "sum", Apply(_JOINS[scope.reduction], (Read(first, places), Read(second, places))))
    left = Read(first, tuple(map(index, scope.traversal)))
    right = Read(second, tuple(index(i) - (at if i == iterator else 0) for i in scope.traversal))
    return Scope(scope.traversal, (), "sum", Guarded((Compare(index(iterator), "<", index(at)),), left, right))


_JOINS: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def _restricted(scope: Scope, iterator: Iterator, low: int, high: int) -> Scope:
    shrunk = Iterator(iterator.name, 0, high - low)
    body = replaced(scope.body, {iterator: index(shrunk) + low})
    traversal, summation = (tuple(shrunk if i == iterator else i for i in group) for group in (scope.traversal, scope.summation))
    return Scope(traversal, summation, scope.reduction, body)


def split_values(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """{x < n} body  =  {x < n} [x == 0 ? {body at 0} : x == 1 ? {body at 1} : ...], one scope for each value: the phases of an image"""
    if refusal := counted(scope):
        return refusal
    if iterator not in scope.traversal or length(iterator) < 2:
        return Refusal("a traversal iterator with at least two values")
    others = tuple(i for i in scope.traversal if i != iterator)
    parts = [Scope(others, scope.summation, scope.reduction, replaced(scope.body, {iterator: x})) for x in range(length(iterator))]
    reads = [Read(part, tuple(map(index, others))) for part in parts]
    body: Scalar = reads[-1]
    for x in reversed(range(len(reads) - 1)):
        body = Guarded((Compare(index(iterator), "==", index(x)),), reads[x], body)
    return Scope(scope.traversal, (), "sum", body)


def split_terms(scope: Scope) -> Scope | Refusal:
    """{t} sum(i) (a + b)  =  {t} ({t: sum(i) a}[t] + {t: sum(i) b}[t]), likewise for differences"""
    conditions, rest = pulled(scope.body, scope.reduction)
    if scope.reduction != "sum" or not isinstance(rest, Apply) or rest.function not in ("add", "sub"):
        return Refusal("the body is no sum of terms")
    places = tuple(map(index, scope.traversal))
    reads = tuple(Read(Scope(scope.traversal, scope.summation, "sum", where(conditions, term, "sum")), places) for term in rest.arguments)
    return Scope(scope.traversal, (), "sum", Apply(rest.function, reads))


def fuse(scope: Scope, producers: Mapping[str, Scope | Tensor]) -> Scope:
    """B[A[t]]: the producers of named tensors take the place of the reads of them"""
    return inline(scope, producers)


def merge_expressions(scopes: Sequence[Scope]) -> tuple[Scope, ...] | Refusal:
    """{t} f(A_j)  =  {j, t: f([j == 0 ? A_0 : A_1 ...])}[j, t] for scopes that differ in tensors alone: one scope with one more iterator

    Where no tensor is shared, two matmuls are one batched matmul.
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
    body = _redirected(first.body, lambda name, places: Read(stacked[name], (index(j), *places)), stacked)
    merged = Scope((j, *first.traversal), first.summation, first.reduction, body)
    return tuple(
        Scope(scope.traversal, (), "sum", Read(merged, (index(k), *map(index, scope.traversal)))) for k, scope in enumerate(scopes)
    )


def _pattern(scope: Scope) -> str:
    """Return the text of a scope with its tensors numbered by their first occurrence; what is one tensor in one is one in all."""
    numbers: dict[str, Scope | Tensor] = {}
    for tensor in _tensors(scope.body):
        numbers.setdefault(tensor.name, Tensor(f"t{len(numbers)}", tensor.shape, tensor.dtype))
    shapes = ",".join(str(t.shape) for t in numbers.values())
    return format_scope(Scope(scope.traversal, scope.summation, scope.reduction, _renamed(scope.body, numbers))) + shapes


def _renamed(body: Scalar, names: Mapping[str, Scope | Tensor]) -> Scalar:
    return _redirected(body, lambda name, places: Read(names[name], places), names)


def _tensors(body: Scalar) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}

    def note(value: Scalar) -> None:
        match value:
            case Read(Tensor() as source, _):
                found.setdefault(source.name, source)
            case Apply(_, arguments):
                for argument in arguments:
                    note(argument)
            case Guarded(_, then, otherwise):
                note(then)
                note(otherwise)

    note(body)
    return tuple(found.values())


def _stack(tensors: Sequence[Tensor]) -> Scope:
    """{j, i...} [j == 0 ? A_0[i...] : j == 1 ? A_1[i...] : ...]"""
    j = Iterator("j", 0, len(tensors))
    traversal = tuple(Iterator(f"i{k}", 0, size) for k, size in enumerate(tensors[0].shape))
    places = tuple(map(index, traversal))
    body: Scalar = Read(tensors[-1], places)
    for k in reversed(range(len(tensors) - 1)):
        body = Guarded((Compare(index(j), "==", index(k)),), Read(tensors[k], places), body)
    return Scope((j, *traversal), (), "sum", body)


def _redirected(body: Scalar, change: Callable[[str, tuple[Index, ...]], Scalar], names: Mapping[str, object]) -> Scalar:
    match body:
        case Read(Tensor(name), places) if name in names:
            return change(name, places)
        case Apply(function, arguments):
            return Apply(function, tuple(_redirected(a, change, names) for a in arguments))
        case Guarded(conditions, then, otherwise):
            return Guarded(conditions, _redirected(then, change, names), _redirected(otherwise, change, names))
    return body


def concatenate_expressions(first: Scope, second: Scope, axis: int) -> tuple[Scope, Scope] | Refusal:
    """{x < m} f(A[x]), {x < n} f(B[x])  =  two ranges of {x < m + n} f([x < m ? A[x] : B[x - m]]): matmuls that share an operand

    for scopes that are one but for the range of one traversal iterator, and for tensors that are read at it along one axis.
    """
    if len(first.traversal) != len(second.traversal):
        return Refusal("the ranks differ")
    x, x2 = first.traversal[axis], second.traversal[axis]
    m, n = length(x), length(x2)
    wide = fresh("x", m + n, every(first))
    pairs = list(zip(_tensors(first.body), _tensors(second.body), strict=False))
    joined: dict[str, Scope] = {}
    for a, b in pairs:
        if a.name == b.name:
            continue
        along = _axis_of(first.body, a, x)
        if along is None or along != _axis_of(second.body, b, x2):
            return Refusal(f"${a.name} is not read at {x.name} along one axis")
        if a.shape[:along] + a.shape[along + 1 :] != b.shape[:along] + b.shape[along + 1 :] or (a.shape[along], b.shape[along]) != (m, n):
            return Refusal(f"${a.name} and ${b.name} are not of the ranges merged")
        joined[a.name] = _concatenation(a, b, along)
    if not joined or len(_tensors(first.body)) != len(_tensors(second.body)):
        return Refusal("no tensor differs, or their numbers do")
    expected = _renamed(replaced(first.body, {x: index(x2)}), {a.name: b for a, b in pairs})
    same = Scope(second.traversal, second.summation, second.reduction, second.body)
    other = Scope((*first.traversal[:axis], x2, *first.traversal[axis + 1 :]), first.summation, first.reduction, expected)
    if format_scope(other) != format_scope(same):
        return Refusal("the scopes differ in more than one range and the tensors read at it")
    body = _redirected(replaced(first.body, {x: index(wide)}), lambda name, places: Read(joined[name], places), joined)
    traversal = (*first.traversal[:axis], wide, *first.traversal[axis + 1 :])
    merged = Scope(traversal, first.summation, first.reduction, body)

    def part(scope: Scope, low: int) -> Scope:
        places = tuple(index(i) + (low if k == axis else 0) for k, i in enumerate(scope.traversal))
        return Scope(scope.traversal, (), "sum", Read(merged, places))

    return part(first, 0), part(second, m)


def _axis_of(body: Scalar, tensor: Tensor, iterator: Iterator) -> int | None:
    """Return the axis along which every read of ``tensor`` stands at ``iterator`` itself."""
    match body:
        case Read(source, indices) if source == tensor:
            axes = [k for k, place in enumerate(indices) if place == index(iterator)]
            return axes[0] if len(axes) == 1 else None
        case Apply(_, arguments):
            found = [_axis_of(a, tensor, iterator) for a in arguments if _reads_it(a, tensor)]
            return found[0] if found and len(set(found)) == 1 else None
        case Guarded(_, then, otherwise):
            found = [_axis_of(a, tensor, iterator) for a in (then, otherwise) if _reads_it(a, tensor)]
            return found[0] if found and len(set(found)) == 1 else None
    return None


def _reads_it(body: Scalar, tensor: Tensor) -> bool:
    return tensor in _tensors(body)


def _concatenation(a: Tensor, b: Tensor, axis: int) -> Scope:
    shape = [size if k != axis else known(a.shape[axis]) + known(b.shape[axis]) for k, size in enumerate(a.shape)]
    traversal = tuple(Iterator(f"i{k}", 0, size) for k, size in enumerate(shape))
    x = index(traversal[axis])
    second = tuple(index(i) - (a.shape[axis] if k == axis else 0) for k, i in enumerate(traversal))
    body = Guarded((Compare(x, "<", index(a.shape[axis])),), Read(a, tuple(map(index, traversal))), Read(b, second))
    return Scope(traversal, (), "sum", body)
