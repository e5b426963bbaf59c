"""Turn scopes into values: instantiate inner scopes, bind sums, and rebuild values under substitutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, Size, Symbol, index, substitute
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor
from verify.budget import spend
from verify.normal.algebra import add, bind, collect, guarded, only_term, pieces, plain, unused
from verify.normal.choices import count, index_number, positive, split, truth, under, zero
from verify.normal.conditions import Conditions, conjunction, negation
from verify.normal.context import ONE, ZERO, Context, constant, negated, number, single
from verify.normal.digits import substitution
from verify.normal.domains import PARTIAL, WITH_INFINITIES, Way, holding, holds_infinity, note, taken, ways_to
from verify.normal.extrema import Candidate, flattened, largest
from verify.normal.functions import call, constant_number, divided
from verify.normal.joining import joined
from verify.normal.naming import close, free_iterators, named, rename_condition, rename_term
from verify.normal.products import multiply
from verify.normal.signs import filled, sign
from verify.normal.tables import contracted, grid_of, replaced, tabulated
from verify.normal.terms import Call, Element, Extremum, Factor, IndexFactor, Product, Term, Value
from verify.normal.whole_numbers import LARGEST_INT32, NO_OVERFLOW, magnitude

Places = Mapping[Iterator | Symbol, Size]


class Instantiation:
    """Evaluates scopes at places; the value of the same scope at the same places is cached."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.known: dict[tuple[int, tuple[Index, ...], Conditions, tuple[Way, ...] | None], tuple[Scope, Value]] = {}

    def at(self, scope: Scope, places: tuple[Index, ...]) -> Value:
        """Return scope[places]."""
        key = id(scope), places, self.context.guards, self.context.ways
        if key not in self.known:
            self.known[key] = scope, self._at(scope, places)
        return self.known[key][1]

    def _at(self, scope: Scope, places: tuple[Index, ...]) -> Value:
        where: dict[Iterator | Symbol, Size] = dict(zip(scope.traversal, places, strict=True))
        inner: list[Iterator] = []
        for iterator in scope.summation:
            if self.context.decide(Compare(index(iterator.high) - iterator.low, "==", index(1))):
                where[iterator] = iterator.low
            else:
                inner.append(self.context.fresh(iterator))
                where[iterator] = index(inner[-1])
        match scope.reduction:
            case "sum" | "prod":
                body = self.scalar(scope.body, where)
                if inner and self._holds_infinity(scope.reduction, [body]):
                    note(self.context, scope.reduction, [body])
                return total(self.context, inner, body) if scope.reduction == "sum" else product_over(self.context, tuple(inner), (), body)
        if not inner:
            return self.scalar(scope.body, where)
        lowest = scope.reduction == "min"
        candidates = [
            Candidate(tuple(inner), conditions, negated(value) if lowest else value)
            for conditions, value in self._alternatives(scope.body, where, (), -math.inf if scope.reduction == "max" else math.inf)
        ]
        if len(candidates) == 1:  # no maximum is empty: shape rules refuse windows in padding only
            candidates = [replace(candidates[0], filled=(*candidates[0].conditions, *candidates[0].iterators))]
        result = extremum(self.context, candidates)
        return negated(result) if lowest else result

    def _holds_infinity(self, function: str, arguments: Sequence[Value]) -> bool:
        """Return whether needs are recorded and a function that may turn infinities into NaN is applied to one."""
        noted = self.context.ways is not None and self.context.infinite and function in WITH_INFINITIES
        return noted and any(holds_infinity(self.context, argument) for argument in arguments)

    def _alternatives(
        self, body: Scalar, where: Places, conditions: Conditions, identity: float
    ) -> list[tuple[Conditions, Value]]:
        """Return values under disjoint conditions, without those that are the reduction's identity."""
        if body == Number(identity):
            return []
        if not isinstance(body, Guarded):
            with self.context.where(conditions), taken(self.context, (holding(conditions),)):
                return [(conditions, self.scalar(body, where))]
        tests = self.conditions(body.conditions, where)
        branches = [(tests, body.then), *((p, body.otherwise) for p in self._otherwise(tests))]
        result = []
        for branch, inner in branches:
            joined = None if branch is None else conjunction(self.context, (*conditions, *branch))
            if joined is not None:
                result += self._alternatives(inner, where, joined, identity)
        return result

    def conditions(self, conditions: Sequence[Compare], where: Places) -> Conditions | None:
        """Return a conjunction at the places; None if it cannot hold."""
        placed = (Compare(self.place(c.left, where), c.operator, self.place(c.right, where)) for c in conditions)
        return conjunction(self.context, placed)

    def _otherwise(self, tests: Conditions | None) -> list[Conditions]:
        return [()] if tests is None else pieces(self.context, tests)

    def place(self, value: Index, where: Places) -> Index:
        return placed(self.context, value, where)

    def scalar(self, body: Scalar, where: Places) -> Value:
        """Return a scalar expression as a value, with its iterators at the given places."""
        spend()
        match body:
            case Number(value):
                return constant_number(self.context, value)
            case IndexNumber(value):
                return index_number(self.context, self.place(value, where))
            case Read(Tensor(name, shape, dtype), indices):
                element = single(Element(name, shape, tuple(self.place(i, where) for i in indices)))
                return truth(self.context, element) if dtype == "bool" else element
            case Read(source, indices):
                assert isinstance(source, Scope)
                return self.at(source, tuple(self.place(i, where) for i in indices))
            case Table(shape, values, indices):
                return tabulated(self.context, shape, values, tuple(self.place(i, where) for i in indices))
            case Apply("where", (test, then, otherwise)) if self.context.ways is not None:
                return self._chosen(test, then, otherwise, where)
            case Apply(function, arguments):
                given = [self.scalar(a, where) for a in arguments]
                if function in CONVERSIONS and magnitude(arguments[0]) > LARGEST_INT32:
                    self.context.use(NO_OVERFLOW)
                if self.context.ways is not None and (function in PARTIAL or self._holds_infinity(function, given)):
                    note(self.context, function, given)
                return call(self.context, function, given)
            case Guarded(conditions, then, otherwise):
                tests = self.conditions(conditions, where)
                if tests is None:
                    return self.scalar(otherwise, where)
                if not tests:
                    return self.scalar(then, where)
                with self.context.where(tests), taken(self.context, (holding(tests),)):
                    parts = [self.scalar(then, where)]
                pieces_otherwise = self._otherwise(tests)
                alone = pieces_otherwise[0] if len(pieces_otherwise) == 1 else ()
                with self.context.where(alone), taken(self.context, map(holding, pieces_otherwise)):
                    else_value = self.scalar(otherwise, where)
                parts = [guarded(self.context, tests, parts[0])]
                if else_value.terms:
                    parts += [guarded(self.context, piece, else_value) for piece in pieces_otherwise]
                whole = add(self.context, *parts)
                return joined(self.context, whole) if else_value.terms and self.context.at_sizes else whole

    def _chosen(self, test: Scalar, then: Scalar, otherwise: Scalar, where: Places) -> Value:
        """Return a choice by data; the needs of a branch arise only where it is chosen."""
        values = [self.scalar(test, where)]
        for branch, truthful in ((then, True), (otherwise, False)):
            with taken(self.context, ways_to(self.context, values[0], truthful=truthful)):
                values.append(self.scalar(branch, where))
        return call(self.context, "where", values)


def placed(context: Context, value: Index, where: Places) -> Index:
    """Return an index with iterators replaced, also inside data indices."""
    if context.at_sizes and any(isinstance(atom, Floor | Modulo) for monomial, _ in value.terms for atom in monomial):
        return context.placed(value, where)

    def read(inner: Read) -> Read:
        return Read(inner.source, tuple(placed(context, i, where) for i in inner.indices))

    return context.simplify(substitute(value, where, read))


def extremum(context: Context, given: Sequence[Candidate]) -> Value:
    """Return the maximum of alternatives, with conditions that depend on none of their iterators moved outward."""
    bound = frozenset(i for candidate in given for i in candidate.iterators)

    def build(values: Sequence[Value]) -> Value:
        simpler = [replace(candidate, value=_resolved(context, v)) for candidate, v in zip(given, values, strict=True)]
        return largest(context, flattened(context, simpler))

    return split(context, [candidate.value for candidate in given], build, bound)


def _resolved(context: Context, value: Value) -> Value:
    """Return a value with its maxima written as conditions on data, if these then cancel, as in softplus(x) = log(1 + exp(x))."""
    if context.resolving or not any(chooses(Value((t,)), inside=True) for t in value.terms):
        return value
    context.resolving = True
    try:
        result = rebuild(context, value, {})
    finally:
        context.resolving = False
    return value if chooses(result) else result


def chooses(value: Value, *, inside: bool = False) -> bool:
    """Return whether a value contains a maximum of plain values or a condition on data; ``inside``: only in arguments of functions."""
    for term in value.terms:
        for factor in term.factors:
            match factor:
                case Extremum(_, alternatives) if not inside:
                    if len(alternatives) > 1 and any(not alternative.iterators for alternative in alternatives):
                        return True
                    if any(chooses(alternative.value) for alternative in alternatives):
                        return True
                case Call("positive" | "zero", _):
                    if not inside:
                        return True
                case Call(_, arguments):
                    if any(chooses(argument) for argument in arguments):
                        return True
                case Product(_, _, inner) if not inside:
                    if chooses(inner):
                        return True
    return False


def total(context: Context, iterators: Sequence[Iterator], value: Value) -> Value:
    """Return the sum of a value over iterators that are free in it."""
    if not iterators:
        return value
    parts = [tidy(context, term) for term in bind(iterators, value).terms]
    return collect(context, [term for part in parts for term in part.terms])


def tidy(context: Context, term: Term) -> Value:
    """Return a term without iterators that have only one value or on which nothing depends."""
    for iterator in term.iterators:
        for condition in term.conditions:
            at = _solved(condition, iterator)
            if at is not None:
                inside = (Compare(index(iterator.low), "<=", at), Compare(at, "<", index(iterator.high)))
                body = replace(term, iterators=(), conditions=tuple(c for c in term.conditions if c != condition) + inside)
                left = [i for i in term.iterators if i != iterator]  # they stay free because ``at`` may contain them
                return total(context, left, rebuild(context, Value((body,)), {iterator: at}))
    if (simpler := _simpler_sums(context, term)) is not None:
        return simpler
    idle = [iterator for iterator in unused(context, term) if filled(context, iterator)]
    result = Value((replace(term, iterators=tuple(i for i in term.iterators if i not in idle)),))
    for iterator in idle:
        result = multiply(context, result, count(context, index(iterator.low), index(iterator.high)))
    return result


def _simpler_sums(context: Context, term: Term) -> Value | None:
    """Return the term with an iterator replaced by its digits, or with one sum over tables only contracted; None if neither applies."""
    split = substitution(context, term) if context.at_sizes else None
    if split is not None:
        conditions = tuple(c for c in term.conditions if c is not split.solved)
        left = (*split.iterators, *(i for i in term.iterators if i != split.iterator))
        body = rebuild(context, Value((replace(term, iterators=(), conditions=conditions),)), {split.iterator: split.value})
        return total(context, left, guarded(context, split.added, body))
    contraction = contracted(context, term)
    if contraction is None:
        return None
    rest_of_term, table = contraction
    return total(context, rest_of_term.iterators, multiply(context, Value((replace(rest_of_term, iterators=()),)), table))


def _solved(condition: Compare, iterator: Iterator) -> Index | None:
    """Return e of a condition ``iterator == e`` in which the iterator occurs once, with coefficient 1 or -1."""
    if condition.operator != "==":
        return None
    value = condition.left - condition.right
    coefficient = dict(value.terms).get((iterator,))
    if coefficient not in (1, -1):
        return None
    others = value - index(iterator) * coefficient
    solved = others * -coefficient
    return None if iterator in iterators_of(solved) else solved


def rebuild(context: Context, value: Value, where: Places) -> Value:
    """Return a value with iterators replaced and every law applied again."""
    return add(context, *(_rebuild_term(context, term, where) for term in value.terms))


def _rebuild_term(context: Context, term: Term, where: Places) -> Value:
    fresh = {i: context.fresh(i) for i in term.iterators}
    inner: Places = {**where, **{i: index(f) for i, f in fresh.items()}} if fresh else where
    conditions = conjunction(context, _placed_conditions(context, term.conditions, inner))
    if conditions is None:
        return ZERO
    result = number(term.coefficient)
    for factor in term.factors:
        result = multiply(context, result, rebuild_factor(context, factor, inner))
    return total(context, tuple(fresh.values()), guarded(context, conditions, result))


def _placed_conditions(context: Context, conditions: Sequence[Compare], where: Places) -> list[Compare]:
    return [Compare(placed(context, c.left, where), c.operator, placed(context, c.right, where)) for c in conditions]


def rebuild_factor(context: Context, factor: Factor, where: Places) -> Value:
    """Return a factor with iterators replaced, as a value."""
    spend()
    match factor:
        case Element(_, _, indices) if (grid := grid_of(factor)) is not None:
            return replaced(context, grid, [substitute(i, where) for i in indices])
        case Element(tensor, shape, indices):
            return single(Element(tensor, shape, tuple(placed(context, i, where) for i in indices)))
        case IndexFactor(value):
            return index_number(context, placed(context, value, where))
        case Call("positive", (value,)):
            return positive(context, rebuild(context, value, where))
        case Call("zero", (value,)):
            return zero(context, rebuild(context, value, where))
        case Call("reciprocal", (value,)):
            return divided(context, rebuild(context, value, where), positive=sign(context, value) == 1)
        case Call(function, arguments):
            return call(context, function, [rebuild(context, a, where) for a in arguments]) if arguments else single(factor)
        case Product(iterators, conditions, value):
            fresh, inner = _renewed(context, iterators, where)
            tests = conjunction(context, _placed_conditions(context, conditions, inner))
            return ONE if tests is None else product_over(context, fresh, tests, rebuild(context, value, inner))
        case Extremum("max", alternatives):
            candidates = []
            for alternative in alternatives:
                fresh, inner = _renewed(context, alternative.iterators, where)
                tests = conjunction(context, _placed_conditions(context, alternative.conditions, inner))
                if tests is not None:
                    candidates.append(Candidate(fresh, tests, rebuild(context, alternative.value, inner)))
            return extremum(context, candidates)
        case Extremum():
            raise AssertionError("a minimum is the negative of a maximum")


def _renewed(context: Context, iterators: tuple[Iterator, ...], where: Places) -> tuple[tuple[Iterator, ...], Places]:
    fresh = {i: context.fresh(i) for i in iterators}
    return tuple(fresh.values()), {**where, **{i: index(f) for i, f in fresh.items()}}


def product_over(context: Context, iterators: tuple[Iterator, ...], conditions: Conditions, value: Value) -> Value:
    """Return the product of a value over iterators where conditions hold."""

    def build(values: Sequence[Value]) -> Value:
        return _product_over(context, iterators, conditions, values[0])

    return split(context, (value,), build, frozenset(iterators)) if iterators else value


def _product_over(context: Context, iterators: tuple[Iterator, ...], conditions: Conditions, value: Value) -> Value:
    if constant(value) == 1:
        return ONE
    for term in value.terms:
        for condition in term.conditions:
            if not free_iterators(context, condition) & set(term.iterators):
                result = ONE
                for test in (condition, negation(condition)):
                    tests = conjunction(context, (*conditions, test))
                    if tests is not None:
                        result = multiply(context, result, product_over(context, iterators, tests, under(context, value, test)))
                return result
    whole = only_term(value)
    if whole is None or not plain(whole):
        return single(_product(context, iterators, conditions, value))
    result = ONE
    if whole.coefficient != 1:
        result = single(_product(context, iterators, conditions, number(whole.coefficient)))
    for factor in whole.factors:
        match factor:
            case Call("exp", (exponent,)):
                summed = total(context, iterators, guarded(context, conditions, exponent))
                part = call(context, "exp", (summed,))
            case Call("reciprocal", (inner,)):
                part = call(context, "reciprocal", (product_over(context, iterators, conditions, inner),))
            case Product(inner_iterators, inner_conditions, inner):
                mapping = {i: context.fresh(i) for i in inner_iterators}
                renamed = Value(tuple(rename_term(context, t, mapping) for t in inner.terms))
                tests = (*conditions, *(rename_condition(context, c, mapping) for c in inner_conditions))
                part = single(_product(context, (*iterators, *mapping.values()), tests, renamed))
            case _:
                part = single(_product(context, iterators, conditions, single(factor)))
        result = multiply(context, result, part)
    return result


def _product(context: Context, iterators: tuple[Iterator, ...], conditions: Conditions, value: Value) -> Product:
    closed = close(context, value)
    fresh = {i: context.fresh(i) for i in iterators}
    renamed = Value(tuple(rename_term(context, t, fresh) for t in closed.terms))
    tests = tuple(rename_condition(context, c, fresh) for c in conditions)
    ordered, mapping, _ = named(context, tuple(fresh.values()), (*tests, Call("=", (renamed,))), "prod")
    return Product(
        ordered,
        tuple(rename_condition(context, c, mapping) for c in tests),
        Value(tuple(rename_term(context, t, mapping) for t in renamed.terms)),
    )
