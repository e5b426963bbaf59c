"""Pair the terms of two sums by maps between their iterators, checked both ways; terms that overlap in part are split.

Left minus right is a list of signed terms. Two terms cancel where a map between their iterators makes them equal.
The map is guessed from the index equations of their reads. Then these obligations must follow from the assumptions:
the map leads from one domain into the other, the inverse map leads back, both compositions are the identity, and
reads, nested values and coefficients agree. If a condition of a domain does not follow, the terms are split by it.
"""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from dataclasses import dataclass, field
from itertools import islice, permutations

from egraph.tensor.expr.index import Iterator
from verify.assumptions import Assumptions
from verify.budget import spend
from verify.covering import covers, inhabited
from verify.facts import Facts
from verify.forms import (
    Best,
    Choice,
    Function,
    Multiplied,
    Names,
    Part,
    Read,
    Sum,
    Summand,
    Unsupported,
    anonymous,
    describe,
    form_of,
    mentions,
    name_of,
    renamed_term,
    replaced_literal,
    replaced_part,
    replaced_term,
    signature,
)
from verify.index_equations import solve
from verify.literals import Literal0, closure, negation
from verify.normal.terms import Value
from verify.outcome import Equal, Open, Outcome
from verify.pairing import PAIRINGS, equations_of, opposed, pairings, pairs_of_terms
from verify.polynomials import ONE, ZERO, Polynomial, entry, replaced
from verify.solver import holds, possible, solution
from verify.summands import tidy, unrolled

_SPLITS = 200
"""Most splits of the terms of one sum."""
_DIVISORS = 3
"""Most divisors by which all terms are multiplied, one after the other."""


@dataclass(frozen=True)
class Match:
    """How two terms agree: ``forward`` maps the first term's iterators; each term has additional conditions."""

    forward: dict[int, Polynomial]
    of_first: tuple[Literal0, ...]
    of_second: tuple[Literal0, ...]


@dataclass
class Pairing:
    """One attempt at a proof: names for new iterators, and the term that stayed open."""

    names: Names
    open_term: Summand | None = None
    open_facts: Facts | None = None
    _known: dict[tuple[int, Part, Part], tuple[Facts, bool]] = field(default_factory=dict)
    """Cached equality of factors that do not depend on their terms' iterators, because the same ones recur in a sum of many terms."""

    def obligation(self) -> str:
        """Return a message that names the term without a partner."""
        return f"no partner for {describe(self.open_term)}" if self.open_term else "the sides did not pair"

    def open_position(self) -> dict[str, int]:
        """Return values of iterators at which the term without a partner contributes; {} unless all sizes are numbers."""
        if self.open_term is None or self.open_facts is None or not self.open_facts.at_sizes:
            return {}
        values = solution(self.open_facts.extended(self.open_term.conditions)) or {}
        return {kind.name: value for atom, value in values.items() if isinstance(kind := entry(atom).kind, Iterator)}

    def equal(self, left: Sum, right: Sum, facts: Facts) -> bool:
        """Return whether two sums are proved equal wherever the facts hold."""
        if left == right:
            return True
        extrema = self._extrema(left, right, facts)
        if extrema is not None and self.equal_parts(*extrema, facts):
            return True
        return self._cancel([*left.terms, *(_negated(t) for t in right.terms)], facts)

    def _extrema(self, left: Sum, right: Sum, facts: Facts) -> tuple[Best, Best] | None:
        """Return both sides as extrema if exactly one is an extremum, because any value is the extremum of itself; else None."""
        bests = [_best(left), _best(right)]
        if None not in bests:
            return None
        bests = [best or self._at_least_zero(side, facts) for best, side in zip(bests, (left, right), strict=True)]
        kinds = {best.kind for best in bests if best is not None}
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        first, second = (best or Best(kind, (Choice((), (), side),)) for best, side in zip(bests, (left, right), strict=True))
        return first, second

    def _at_least_zero(self, value: Sum, facts: Facts) -> Best | None:
        """m [m > 0] = max(m, 0) for a maximum m"""
        match value.terms:
            case (Summand(numerator, denominator, (), (), (Best("max") as best, Function("positive", (tested,)))),):
                pass
            case (Summand(numerator, denominator, (), (), (Function("positive", (tested,)), Best("max") as best)),):
                pass
            case _:
                return None
        whole = Sum((Summand(ONE, ONE, (), (), (best,)),))
        if numerator != ONE or denominator != ONE or not self.equal(whole, tested, facts):
            return None
        return Best("max", (*best.choices, Choice((), (), Sum(()))))

    def _cancel(self, terms: list[Summand], facts: Facts, depth: int = 0) -> bool:
        """Return whether signed terms are proved to cancel, if necessary after multiplying by their divisors or writing sums out."""
        left = self._paired(terms, facts)
        if not left:
            return True
        cleared = self._times_divisor(left, facts) if depth < _DIVISORS else None
        if cleared is not None and self._cancel(cleared, facts, depth + 1):
            return True
        written_out = unrolled(left, self.names, facts)
        if written_out is not None and self._cancel(written_out, facts, depth):
            return True
        self.open_term, self.open_facts = left[0], facts
        return False

    def _paired(self, terms: list[Summand], facts: Facts) -> list[Summand]:
        """Return the signed terms that remain after others have cancelled.

        At known sizes, terms of the same sign are added only if they are alike and are never split by their overlap. The sum of the
        coefficients over all positions then decreases with every split, so that splitting terminates.
        """
        terms = [tidied for term in terms if (tidied := tidy(term, facts)) is not None]
        alone = _alone(terms)
        terms = [term for term in terms if id(term) not in alone or possible(facts.extended(term.conditions))]
        if _alone(terms):
            return terms
        matches: dict[tuple[int, int], Match | None] = {}
        kept: list[Summand] = []  # keeps terms alive, so that their ids stay unique
        for _ in range(_SPLITS):
            if not terms:
                break
            chosen: tuple[int, Summand, Summand, Match] | None = None
            for first, second in pairs_of_terms(terms):
                if chosen is not None and facts.at_sizes and not opposed(first, second):
                    break
                at = (id(first), id(second))
                if at not in matches:
                    kept += [first, second]
                    matches[at] = self._match(first, second, facts)
                match = matches[at]
                if match is not None:
                    open_count = len(match.of_first) + len(match.of_second)
                    if open_count and facts.at_sizes and not opposed(first, second):
                        continue
                    if chosen is None or open_count < chosen[0]:
                        chosen = open_count, first, second, match
                    if not open_count:
                        break
            if chosen is None:
                possible_terms = [t for t in terms if possible(facts.extended(t.conditions))]
                if len(possible_terms) == len(terms):
                    break
                terms = possible_terms
                continue
            _, first, second, match = chosen
            terms = [t for t in terms if t is not first and t is not second]
            terms += self._combined(first, second, match, facts)
        return terms

    def unpaired(self, left: Sum, right: Sum, facts: Facts) -> tuple[Summand, ...]:
        """Return the terms of left minus right without a partner, signature by signature."""
        groups: dict[tuple[str, ...], list[Summand]] = {}
        for term in (*left.terms, *(_negated(t) for t in right.terms)):
            groups.setdefault(signature(term), []).append(term)
        return tuple(term for group in groups.values() for term in self._paired(group, facts))

    def _times_divisor(self, terms: list[Summand], facts: Facts) -> list[Summand] | None:
        """Multiply all terms by the divisor of one of them, a count that is certainly positive; return None if there is none."""
        for term in terms:
            for part in term.parts:
                if not (isinstance(part, Function) and part.name == "reciprocal"):
                    continue
                (divisor,) = part.arguments
                if any(mentions(part, a) for a in term.iterators) or not _counts(divisor, facts):
                    continue
                return [product for summand in terms for product in self._multiplied(summand, part, divisor, facts)]
        return None

    def _multiplied(self, term: Summand, part: Part, divisor: Sum, facts: Facts) -> list[Summand]:
        for twin in term.parts:
            varies = name_of(twin) != name_of(part) or any(mentions(twin, a) for a in term.iterators)
            if not varies and self.equal_parts(twin, part, facts):
                left = tuple(p for p in term.parts if p is not twin)
                return [Summand(term.numerator, term.denominator, term.iterators, term.conditions, left)]
        products = []
        for count in divisor.terms:
            factor = renamed_term(count, self.names)
            products.append(
                Summand(
                    term.numerator * factor.numerator, term.denominator * factor.denominator, (*term.iterators, *factor.iterators),
                    (*term.conditions, *factor.conditions), term.parts,
                )
            )  # fmt: skip
        return [renamed_term(product, self.names) for product in products]

    def _combined(self, first: Summand, second: Summand, match: Match, facts: Facts) -> list[Summand]:
        """Return the sum of two terms on their overlap, and the parts of each outside of it."""
        moved = replaced_term(first, match.forward)
        if moved.denominator == second.denominator:
            numerator, denominator = moved.numerator + second.numerator, second.denominator
        else:
            numerator = moved.numerator * second.denominator + second.numerator * moved.denominator
            denominator = moved.denominator * second.denominator
        conditions = (*second.conditions, *match.of_second)
        result: list[Summand] = []
        if facts.extended(conditions).canonical(numerator).terms:
            result.append(Summand(numerator, denominator, second.iterators, conditions, second.parts))
        for term, open_conditions in ((first, match.of_first), (second, match.of_second)):
            for count, condition in enumerate(open_conditions):
                outside = (*term.conditions, *open_conditions[:count], negation(condition))
                result.append(Summand(term.numerator, term.denominator, term.iterators, outside, term.parts))
        renamed = [renamed_term(term, self.names) for term in result]
        return [tidied for term in renamed if (tidied := tidy(term, facts)) is not None]

    def _match(self, first: Summand, second: Summand, facts: Facts) -> Match | None:
        """Return how two terms with the same signature agree: a match without further conditions if there is one, else the first match."""
        spend()
        best: Match | None = None
        for parts in islice(pairings(first.parts, second.parts), PAIRINGS):
            for forward, backward in self._maps(first, second, parts, facts):
                match = self._checked(first, second, parts, forward, backward, facts)
                if match is not None and not match.of_first and not match.of_second:
                    return match
                best = best or match
        return best

    def _maps(
        self, first: Summand, second: Summand, parts: tuple[tuple[Part, Part], ...], facts: Facts
    ) -> Iterable[tuple[dict[int, Polynomial], dict[int, Polynomial]]]:
        """Guess maps between the iterators, in both directions."""
        equations, inner_first, inner_second = equations_of(parts)
        ours, theirs = set(first.iterators), set(second.iterators)
        forward = _restricted(solve(equations, ours | inner_first, facts), ours, inner_first | inner_second)
        backward = _restricted(solve(equations, theirs | inner_second, facts), theirs, inner_first | inner_second)
        left = sorted(ours - forward.keys(), key=lambda a: entry(a).key)
        right = sorted(theirs - backward.keys(), key=lambda a: entry(a).key)
        if len(left) != len(right):  # the conditions of one side determine its iterators: pair all of them
            forward, backward, left, right = {}, {}, sorted(ours, key=lambda a: entry(a).key), sorted(theirs, key=lambda a: entry(a).key)
        if len(left) != len(right):
            return
        for order in islice(permutations(right), PAIRINGS):
            pairs = list(zip(left, order, strict=True))
            if all(entry(a).low == entry(b).low and entry(a).high == entry(b).high for a, b in pairs):
                to_second = {a: Polynomial({(b,): 1}) for a, b in pairs}
                to_first = {b: Polynomial({(a,): 1}) for a, b in pairs}
                yield (
                    {a: replaced(v, to_second) for a, v in forward.items()} | to_second,
                    {b: replaced(v, to_first) for b, v in backward.items()} | to_first,
                )

    def _checked(
        self, first: Summand, second: Summand, parts: tuple[tuple[Part, Part], ...],
        forward: dict[int, Polynomial], backward: dict[int, Polynomial], facts: Facts,
    ) -> Match | None:  # fmt: skip
        """Check the obligations of a map; conditions of domains that do not follow become conditions of the match."""
        if any(closure(v) & set(first.iterators) for v in forward.values()) or any(
            closure(v) & set(second.iterators) for v in backward.values()
        ):
            return None
        inside_second = facts.extended(second.conditions)
        of_second = _missing(first, forward, inside_second)
        matched = inside_second.extended(of_second)
        if (of_second and not possible(matched)) or not _returns(forward, backward, matched):
            return None
        if not all(self._same_parts(p, q, first, second, forward, facts, matched) for p, q in parts):
            return None
        inside_first = facts.extended(first.conditions)
        of_first = _missing(second, backward, inside_first)
        if not _returns(backward, forward, inside_first.extended(of_first)):
            return None
        return Match(forward, of_first, of_second)

    def _same_parts(
        self, left: Part, right: Part, first: Summand, second: Summand, forward: dict[int, Polynomial], facts: Facts, matched: Facts
    ) -> bool:
        """Return whether factors of two terms agree under the map; factors that do not depend on it have to agree everywhere."""
        if isinstance(left, Read) or any(mentions(left, a) for a in first.iterators) or any(mentions(right, a) for a in second.iterators):
            return self.equal_parts(replaced_part(left, forward), right, matched)
        key = id(facts), anonymous(left, "p"), anonymous(right, "p")
        if key not in self._known:
            self._known[key] = facts, key[1] == key[2] or self.equal_parts(left, right, facts)
        return self._known[key][1] or (matched is not facts and self.equal_parts(left, right, matched))

    def equal_parts(self, left: Part, right: Part, facts: Facts) -> bool:
        """Return whether two factors are proved equal wherever the facts hold."""
        if left == right:
            return True
        match left, right:
            case Read(name, shape, indices), Read(twin, _, places):
                return name == twin and equal_reads(shape, indices, places, facts)
            case Function(name, arguments), Function(twin, values):
                if name != twin or len(arguments) != len(values):
                    return False
                orders = [values, values[::-1]] if name in COMMUTATIVE else [values]
                return any(all(self.equal(a, b, facts) for a, b in zip(arguments, order, strict=True)) for order in orders)
            case Best(), Best():
                return left.kind == right.kind and covers(left, right, facts, self.equal) and covers(right, left, facts, self.equal)
            case Multiplied(choice), Multiplied(candidate):
                first, second = (Summand(ONE, ONE, c.iterators, c.conditions, (Function("", (c.value,)),)) for c in (choice, candidate))
                inner = self._match(first, second, facts)
                return inner is not None and not inner.of_first and not inner.of_second
        return False


def equal_values(left: Value, right: Value, assumptions: Assumptions) -> Outcome:
    """Compare two normal forms over the same free iterators."""
    pairing = Pairing(Names("n"))
    try:
        first, second = form_of(left, assumptions.facts, Names("l")), form_of(right, assumptions.facts, Names("r"))
        if pairing.equal(first, second, assumptions.facts):
            return Equal()
    except Unsupported as reason:
        return Open(str(reason), assumptions.conditions)
    return Open(pairing.obligation(), assumptions.conditions, pairing.open_position())


def unpaired(left: Value, right: Value, assumptions: Assumptions) -> tuple[Summand, ...] | None:
    """Return the terms of left minus right without a partner; None if a form is not supported."""
    facts = assumptions.facts
    try:
        return Pairing(Names("n")).unpaired(form_of(left, facts, Names("l")), form_of(right, facts, Names("r")), facts)
    except Unsupported:
        return None


COMMUTATIVE = frozenset({"equal", "and_", "or_"})


def equal_reads(shape: tuple[Polynomial, ...], left: tuple[Polynomial, ...], right: tuple[Polynomial, ...], facts: Facts) -> bool:
    """Return whether two positions in a tensor are the same, axis by axis or by their row-major number.

    Reads lie inside their tensors, so equal row-major numbers are equal positions.
    """
    if len(left) != len(right):
        return False
    differences = [facts.canonical(a - b) for a, b in zip(left, right, strict=True)]
    if not any(d.terms for d in differences):
        return True
    flat = ZERO
    for size, difference in zip(shape, differences, strict=True):
        flat = flat * size + difference
    if not facts.canonical(flat).terms:
        return True
    return all(holds(facts, Literal0(d, "==")) for d in differences)


def _restricted(solution: dict[int, Polynomial], unknowns: set[int], forbidden: set[int]) -> dict[int, Polynomial]:
    return {a: v for a, v in solution.items() if a in unknowns and not closure(v) & forbidden}


def _missing(first: Summand, forward: dict[int, Polynomial], inside: Facts) -> tuple[Literal0, ...]:
    """Return those conditions for the map to lead into the first term's domain that do not follow."""
    needed: list[Literal0] = []
    for atom, value in forward.items():
        low, high = entry(atom).low, entry(atom).high
        assert low is not None and high is not None, "an iterator has a range"
        needed += [Literal0(value - low, ">="), Literal0(high - ONE - value, ">=")]
    needed += [replaced_literal(condition, forward) for condition in first.conditions]
    return tuple(literal for literal in needed if not holds(inside, literal))


def _returns(forward: dict[int, Polynomial], backward: dict[int, Polynomial], inside: Facts) -> bool:
    """Return whether backward after forward is the identity."""
    return all(
        holds(inside, Literal0(replaced(value, forward) - Polynomial({(atom,): 1}), "==")) for atom, value in backward.items()
    )


def _best(value: Sum) -> Best | None:
    match value.terms:
        case (Summand(numerator, denominator, (), (), (Best() as best,)),) if numerator == ONE == denominator:
            return best
    return None


def _counts(value: Sum, facts: Facts) -> bool:
    """Return whether a value is proved positive: a sum of positive numbers over domains of which at least one is not empty."""
    plain = all(not t.parts and facts.nonnegative(facts.canonical(t.numerator)) for t in value.terms)
    return plain and any(
        facts.nonnegative(facts.canonical(t.numerator) - ONE) and inhabited(Choice(t.iterators, t.conditions, value), facts)
        for t in value.terms
    )


def _alone(terms: list[Summand]) -> set[int]:
    """Return the ids of terms with unique signatures, which can vanish only if their domain is empty."""
    alike: dict[tuple[str, ...], set[int]] = {}
    for term in terms:
        alike.setdefault(signature(term), set()).add(id(term))
    return {next(iter(ids)) for ids in alike.values() if len(ids) == 1}


def _negated(term: Summand) -> Summand:
    return Summand(-term.numerator, term.denominator, term.iterators, term.conditions, term.parts)
