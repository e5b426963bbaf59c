"""Conclusions from assumptions hold at every concrete instance, and include those that shape arithmetic needs."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.tensor.expr.index import DataIndex, Index, Iterator, RealSymbol, Symbol, atoms, index, substitute
from egraph.tensor.expr.scope import Compare, Read, Tensor
from verify import solver
from verify.assumptions import Assumptions, _independent
from verify.facts import Facts
from verify.literals import Literal0, at_minimums, literal
from verify.polynomials import Polynomial, divide, to_index, to_polynomial
from verify.witnesses import Draws
from verify.witnesses import instances as instances_of

N, K, M, G, H, P, S = (Symbol(name) for name in ("n", "k", "m", "g", "h", "p", "s"))
PAD = Symbol("pad", 0)
NOTHING = Assumptions()


def over(name: str, high: object, low: object = 0) -> Iterator:
    return Iterator(name, low if isinstance(low, int) else index(low), index(high))


def le(left: object, right: object) -> Compare:
    return Compare(index(left), "<=", index(right))


def lt(left: object, right: object) -> Compare:
    return Compare(index(left), "<", index(right))


def eq(left: object, right: object) -> Compare:
    return Compare(index(left), "==", index(right))


def test_mixed_radix_positions_come_apart() -> None:
    i, j = over("i", N), over("j", K)
    flat = index(i) * K + j
    assert NOTHING.simplify(flat // index(K)) == index(i)
    assert NOTHING.simplify(flat % index(K)) == index(j)
    assert NOTHING.decide(lt(flat, index(N) * K)) is True
    f = over("f", index(N) * K)
    assert NOTHING.simplify(index(f) // index(K) * K + index(f) % index(K)) == index(f)
    assert NOTHING.decide(lt(index(f) // index(K), N)) is True


def test_three_digits_merge_and_split() -> None:
    a, b, c = over("a", N), over("b", K), over("c", M)
    flat = (index(a) * K + b) * M + c
    assert NOTHING.simplify(flat // (index(K) * M)) == index(a)
    assert NOTHING.simplify(flat // index(M) % index(K)) == index(b)
    assert NOTHING.simplify(flat % (index(K) * M) // index(M)) == index(b)
    assert NOTHING.simplify(flat // index(M) // index(K)) == index(a)


def test_division_by_a_sum_of_sizes() -> None:
    i, j = over("i", N), over("j", index(K) + M)
    assert NOTHING.simplify((index(i) * (index(K) + M) + j) // (index(K) + M)) == index(i)


def test_divisibility_names_the_quotient() -> None:
    divisible = NOTHING.assume(eq(index(N) % index(G), 0))
    assert divisible.simplify(index(N) // index(G) * G - N) == index(0)
    assert divisible.decide(le(G, N)) is True
    assert divisible.decide(le(1, index(N) // index(G))) is True
    i, j = over("i", index(N) // index(G)), over("j", G)
    assert divisible.decide(lt(index(i) * G + j, N)) is True


def test_equalities_apply_everywhere() -> None:
    summed = NOTHING.assume(eq(index(K) + M, N), lt(H, K))
    assert summed.simplify(index(N) - K) == index(M)
    assert summed.decide(lt(index(H) + M, N)) is True
    assert summed.decide(lt(N, index(H) + M)) is False
    assert summed.decide(lt(H, M)) is None
    products = NOTHING.assume(eq(index(N) * K, index(M) * H))
    assert products.decide(eq(index(N) * K * G, index(M) * H * G)) is True
    assert products.decide(eq(N, M)) is None


def test_output_sizes_bound_positions() -> None:
    room = index(H) + 2 * index(PAD) - K
    fits = NOTHING.assume(le(K, index(H) + 2 * index(PAD)))
    o = over("o", room // index(S) + 1)
    tap = over("r", K)
    assert fits.decide(lt(index(o) * S + tap, index(H) + 2 * index(PAD))) is True
    assert fits.decide(lt(index(o) * S + tap, index(H) + PAD)) is None
    assert NOTHING.decide(lt(index(o) * S + tap, index(H) + 2 * index(PAD))) is True  # o lies in its range, so there is room


def test_a_division_that_an_equality_brings_back_is_not_merged_for_ever() -> None:
    """Merging divisions must end: if z = v // 3 - 2 and v contains z, each merge of (v // 3 + n) // d yields another division."""
    z, a = Symbol("z", 0), Symbol("a")
    v = 1 - 2 * index(a) * z + z
    assumed = NOTHING.assume(eq(-2 + v // index(3) - z, 0), lt(0, -3))
    assert assumed.decide(eq(-2 + 2 * index(over("x", a)), -2 + v // index(3) - z)) in (None, True, False)


def test_contradictions() -> None:
    assert NOTHING.assume(lt(N, K), lt(K, M)).consistent()
    assert not NOTHING.assume(lt(N, K), lt(K, M), le(M, N)).consistent()
    assert not NOTHING.assume(eq(N, 0)).consistent()
    assert not NOTHING.assume(eq(2 * index(N), 2 * index(K) + 1)).consistent()
    assert not NOTHING.assume(eq(index(N) * K, 1), lt(1, N)).consistent()


def test_nothing_is_concluded_of_a_division_by_what_may_be_negative() -> None:
    d = index(N) - K
    assert NOTHING.decide(le(0, index(M) % d)) is None
    assert NOTHING.assume(lt(K, N)).decide(le(0, index(M) % d)) is True
    assert NOTHING.decide(le(0, index(M) // d)) is None
    assert NOTHING.assume(lt(K, N)).decide(le(0, index(M) // d)) is True


def test_what_may_be_negative_is_not_taken_for_a_size() -> None:
    """Symbols and iterators with a negative lower bound, and quotients of possibly negative values, may be below zero."""
    shift, row = Symbol("shift", -3), over("i", N, -2)
    for open_value in (shift, index(shift) * N, index(M) // shift, row, index(row) * N, (index(K) - M) // index(N)):
        assert NOTHING.decide(le(0, open_value)) is None
    last = index(over("j", M)) - M + 1
    assert NOTHING.decide(le(0, (index(N) - K) * last)) is None, "zero at one end, of unknown sign at the other"
    assert NOTHING.assume(le(0, shift)).decide(le(0, index(shift) * N)) is True
    assert NOTHING.assume(le(M, K)).decide(le(0, (index(K) - M) // index(N))) is True


def test_real_numbers_are_not_integers() -> None:
    alpha = Index((((RealSymbol("alpha"),), 1),))
    positive = NOTHING.assume(lt(0, alpha))
    assert positive.decide(le(1, alpha)) is None
    assert positive.decide(le(0, alpha)) is True
    assert positive.decide(le(alpha, 0)) is False
    assert positive.assume(lt(alpha, 1)).consistent()


def test_data_indices_are_equal_only_where_their_positions_are() -> None:
    chosen = Tensor("1", (index(N),), "int64")
    i, j = over("i", N), over("j", N)

    def at(position: object) -> Index:
        return index(DataIndex(Read(chosen, (index(position),))))

    assert NOTHING.decide(eq(at(i), at(j))) is None
    assert NOTHING.decide(eq(at(index(i) + 0), at(i))) is True
    assert NOTHING.assume(eq(i, j)).decide(eq(at(i), at(j))) is True


def test_models_are_small_and_satisfy() -> None:
    assumed = NOTHING.assume(lt(K, N), eq(index(N) % index(G), 0), lt(1, G))
    model = assumed.model((N, K, G))
    assert model is not None
    assert model[K] < model[N] and model[N] % model[G] == 0 and 1 < model[G] <= 3
    assert NOTHING.assume(lt(N, 1)).model((N,)) is None


def test_examples_satisfy_whether_they_are_drawn_or_found() -> None:
    for assumed in (
        NOTHING.assume(lt(K, N), eq(index(N) % index(G), 0), lt(1, G)),
        NOTHING.assume(eq(N, index(K) * 2), lt(G, K)),
        NOTHING.assume(eq(index(N) * K, 91), lt(1, K), lt(K, N)),  # no draw satisfies this
    ):
        values = assumed.example((G, K, N))
        assert values is not None and set(values) == {G, K, N}
        sides = [(substitute(c.left, values).constant, c.operator, substitute(c.right, values).constant) for c in assumed.conditions]
        meets = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, "==": lambda a, b: a == b}
        assert all(meets[operator](left, right) for left, operator, right in sides)
    assert NOTHING.assume(lt(N, K), lt(K, N)).example((N, K)) is None


def test_instances_of_extended_facts_meet_them() -> None:
    facts = NOTHING.assume(lt(K, N)).facts
    assert instances_of(facts)
    more = facts.extended([Literal0(to_polynomial(index(K) - 2), ">=")])
    assert instances_of(more) and all(instance.satisfies(each) for instance in instances_of(more) for each in more.kept())
    assert len(instances_of(facts.extended([Literal0(to_polynomial(index(K) - 8), ">=")]))) == 0  # no instance is that large


def test_remainders_come_back_as_remainders() -> None:
    f = over("f", index(N) * K)
    assert str(NOTHING.simplify(2 * (index(f) % index(K)) + 3)) == "2*((f)%k)+3"


SYMBOLS = (Symbol("a"), Symbol("b"), Symbol("z", 0))
BOUND = (over("x", SYMBOLS[0]), over("y", index(SYMBOLS[1]) + 1))


@st.composite
def polynomials(draw: st.DrawFn, depth: int = 2) -> Index:
    total = index(draw(st.integers(-3, 3)))
    for _ in range(draw(st.integers(1, 2))):
        atom = index(draw(st.sampled_from((*SYMBOLS, *BOUND))))
        if depth and draw(st.booleans()):
            inner, divisor = draw(polynomials(depth - 1)), draw(st.sampled_from((index(2), index(3), index(SYMBOLS[0]), index(SYMBOLS[1]))))
            atom = inner // divisor if draw(st.booleans()) else inner % divisor
        if draw(st.booleans()):
            atom = atom * draw(st.sampled_from(SYMBOLS))
        total = total + draw(st.integers(-2, 2)) * atom
    return total


CONDITIONS = st.builds(Compare, polynomials(1), st.sampled_from(("<", "<=", "==", "!=")), polynomials(1))


def instances() -> list[dict[Iterator | Symbol, int]]:
    values: list[dict[Iterator | Symbol, int]] = []
    for a, b, z in product((1, 2, 3), (1, 2, 4), (0, 1, 3)):
        values += [{SYMBOLS[0]: a, SYMBOLS[1]: b, SYMBOLS[2]: z, BOUND[0]: x, BOUND[1]: y} for x in range(a) for y in range(b + 1)]
    return values


INSTANCES = instances()


def at(value: Index, instance: dict[Iterator | Symbol, int]) -> int:
    value_there = substitute(value, instance).constant
    assert value_there is not None
    return value_there


def true_at(condition: Compare, instance: dict[Iterator | Symbol, int]) -> bool:
    left, right = at(condition.left, instance), at(condition.right, instance)
    return {"<": left < right, "<=": left <= right, "==": left == right, "!=": left != right}[condition.operator]


@settings(max_examples=60, deadline=None)
@given(st.lists(CONDITIONS, max_size=3), CONDITIONS, polynomials())
def test_no_instance_refutes_a_conclusion(conditions: list[Compare], question: Compare, value: Index) -> None:
    """Every decision and every simplification holds at all small instances of the assumptions."""
    assumed = NOTHING.assume(*conditions)
    decided, simplified, consistent = assumed.decide(question), assumed.simplify(value), assumed.consistent()
    named = any(isinstance(atom, Symbol) and atom not in SYMBOLS for atom in atoms(simplified))
    for instance in INSTANCES:
        if all(true_at(condition, instance) for condition in conditions):
            assert consistent
            assert decided is None or decided == true_at(question, instance)
            assert named or at(simplified, instance) == at(value, instance)


@settings(max_examples=60, deadline=None)
@given(polynomials(0), polynomials(0))
def test_division_of_polynomials(value: Index, divisor: Index) -> None:
    """value = q * divisor + r, and values that differ by multiples of the divisor leave the same remainder."""
    over_by = to_polynomial(divisor)
    if not over_by.terms or (over_by.constant or 1) < 0:
        return
    quotient, remainder = divide(to_polynomial(value), over_by)
    assert quotient * over_by + remainder == to_polynomial(value)
    assert divide(to_polynomial(value) + over_by * over_by, over_by)[1] == remainder


@settings(max_examples=60, deadline=None)
@given(polynomials())
def test_polynomials_convert_back(value: Index) -> None:
    back = to_index(to_polynomial(value))
    for instance in INSTANCES[::7]:
        assert at(back, instance) == at(value, instance)


def test_answers_do_not_depend_on_earlier_questions() -> None:
    first = NOTHING.assume(lt(K, N))
    before = first.decide(lt(K, index(N) + M))
    first.decide(lt(M, N))
    assert first.decide(lt(K, index(N) + M)) is before is True
    assert isinstance(first.facts, Facts)


@pytest.mark.parametrize("module", ["egraph.optimize.command", "runtime"])
def test_the_solver_is_not_imported_where_nothing_is_proved(module: str) -> None:
    code = f"import sys, {module}; sys.exit('z3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_canonical_forms_are_worked_out_once_and_forgotten_with_new_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form cached without an equation must not be reused under it: (n + 3) // 4 becomes 2 when n = 5 is added."""
    worked_out: list[Polynomial] = []
    before = Facts._canonical

    def counted(self: Facts, value: Polynomial) -> Polynomial:
        worked_out.append(value)
        return before(self, value)

    monkeypatch.setattr(Facts, "_canonical", counted)
    facts, value = Facts(), to_polynomial((index(N) + 3) // 4)
    first = facts.canonical(value)
    count = len(worked_out)
    assert count and facts.canonical(value) is first and len(worked_out) == count
    child = facts.extended([Literal0(to_polynomial(index(N) - 5), "==")])
    assert first.constant is None and child.canonical(value).constant == 2
    assert facts.canonical(value) is first


def test_solvers_are_told_of_an_atom_what_was_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions under the same facts compute the definition of every atom once, and neither answer changes."""
    defined: list[int] = []
    before = solver.definition

    def counted(facts: Facts, atom: int) -> list[Polynomial]:
        defined.append(atom)
        return before(facts, atom)

    monkeypatch.setattr(solver, "definition", counted)
    facts = NOTHING.assume(le(index(N) * 2, M), le(index(M) * 2, K)).facts
    assert solver.entailed(facts, Literal0(to_polynomial(index(K) - index(N) * 4), ">="))
    assert not solver.entailed(facts, Literal0(to_polynomial(index(N) * 4 - index(K)), ">="))
    assert defined and len(defined) == len(set(defined))


def test_questions_that_differ_by_names_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that differ in numbers, relations or lower bounds have their own answers."""
    asked: list[str] = []
    before = solver._solver

    def counted(text: str, *, products: bool) -> object:
        asked.append(text)
        return before(text, products=products)

    monkeypatch.setattr(solver, "_solver", counted)
    solver._contradicts.cache_clear()
    n, m, k, h = (Symbol(f"{name} of this test") for name in "nmkh")  # terms are ordered by when they were first seen

    def holds(small: Symbol, large: Symbol, times: int) -> bool:
        facts = NOTHING.assume(le(index(small) * 3, large)).facts
        return solver.entailed(facts, Literal0(to_polynomial(index(large) - index(small) * times), ">="))

    assert holds(n, m, 2) and holds(k, h, 2) and len(asked) == 1
    assert not holds(n, m, 4) and not holds(k, h, 4) and len(asked) == 2
    assert not holds(n, Symbol("pad of this test", 0), 4) and len(asked) == 3
    solver._contradicts.cache_clear()


def test_high_powers_are_written_out_once_for_each_exponent() -> None:
    power = Index(((tuple([N] * 64), 1),))  # 2^64 terms unless like terms are combined
    assert at_minimums(to_polynomial(power - 1)) and not at_minimums(to_polynomial(power - 2))


def test_facts_with_the_same_equalities_share_what_ranges_say_and_nothing_that_inequalities_say() -> None:
    nothing = Facts()
    large, small = nothing.extended([literal(le(3, N))]), nothing.extended([literal(lt(N, K))])
    assert large.shared() is small.shared() is nothing.shared() is not None
    at_least_three, at_least_one = to_polynomial(index(N) - 3), to_polynomial(index(N) * K - 1)
    assert large.nonnegative(at_least_three) and not small.nonnegative(at_least_three) and not nothing.nonnegative(at_least_three)
    assert large.nonnegative(at_least_one) and small.nonnegative(at_least_one)


def test_facts_with_other_equalities_or_with_divisions_share_nothing() -> None:
    nothing = Facts()
    solved = nothing.extended([literal(eq(N, index(K) + 3))])
    above = to_polynomial(index(over("o", N)) + K - N)
    assert not nothing.nonnegative(above) and solved.shared() is not nothing.shared()
    assert solved.nonnegative(solved.canonical(to_polynomial(index(N) - 3))) and not nothing.nonnegative(to_polynomial(index(N) - 3))
    divided = nothing.extended([literal(eq(N, index(K) // index(M) + 1))])
    assert divided.shared() is None and divided.extended([literal(le(3, K))]).shared() is None


def test_what_shares_no_atom_is_asked_about_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that share no atom with a question are omitted from it, unless they contradict each other. Equal questions thus coincide."""
    asked: list[str] = []

    def noted(text: str, _: bool) -> bool:
        asked.append(text)
        return False

    n, k, m, g, h, p, s = (Symbol(f"{name} apart") for name in "nkmghps")  # terms are ordered by when they were first seen
    alike = NOTHING.assume(*(le(2 * index(a) + 3 * index(b), index(a) * b) for a, b in ((n, k), (m, g))))
    with monkeypatch.context() as patched:
        patched.setattr(solver, "_contradicts", noted)
        for a, b in ((n, k), (m, g)):
            asked.append("")
            assert not alike.entails(le(7, index(a) * b + a))
    first, second = "\n".join(asked).split("\n\n")
    assert first.strip() == second.strip() and "v0" in first and "v2" not in first
    impossible = alike.assume(eq(3 * index(h) + 6 * index(p), 9 * index(s) + 1))
    assert impossible.entails(eq(n, 5)) and not impossible.consistent()
    assert not alike.entails(eq(n, 5)) and alike.consistent()


@pytest.mark.parametrize("seed", [0, 1, 17, 2**40])
def test_drawn_numbers_are_those_of_a_generator_of_that_seed(seed: int) -> None:
    for _ in range(2):  # the second time, the random words are cached
        draws, expected, which = Draws(seed), Random(seed), Random(seed + 1)
        for _ in range(300):
            low, count = which.randint(-9, 9), which.choice([1, 2, 3, 4, 7, 2**31, 2**32, 2**32 + 5, 2**70])
            assert draws.between(low, low + count) == expected.randrange(low, low + count)
            bits = which.randint(1, 100)
            assert draws.getrandbits(bits) == expected.getrandbits(bits)
            values = tuple(range(count % 11 + 1))
            assert draws.chosen(values) == expected.choice(values)


def test_facts_are_freed_without_garbage_collection() -> None:
    """Extended facts are cached in the facts that they extend, which they refer to weakly; a proof extends thousands."""
    gc.collect()
    gc.disable()
    try:
        made = weakref.ref(Assumptions().assume(lt(0, N)).assume(lt(N, M)).facts.extended([literal(lt(M, K))]))
        assert made() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((N, M, K, H, PAD)), st.sampled_from((N, M, K, H, PAD)), st.integers(-2, 2)), max_size=6))
def test_conditions_that_share_nothing_contradict_apart(pairs: list[tuple[Symbol, Symbol, int]]) -> None:
    conditions = [lt(index(first), index(second) + by) for first, second, by in pairs]
    assumed = NOTHING.assume(*conditions)
    found = assumed.consistent()
    assert found == solver.possible(assumed.facts)
    if not found:
        values = product(range(4), repeat=5)
        assert not any(all(_truth(each, dict(zip((N, M, K, H, PAD), value, strict=True))) for each in conditions) for value in values)


def _truth(condition: Compare, values: dict[Symbol, int]) -> bool:
    if any(values[symbol] < symbol.minimum for symbol in values):
        return False
    left, right = (substitute(side, values).constant for side in (condition.left, condition.right))
    assert left is not None and right is not None
    return left < right


def test_groups_of_conditions_share_no_unknown() -> None:
    conditions = (lt(0, N), lt(K, H), lt(N, M), lt(0, S), lt(H, N))
    groups = _independent(conditions)
    assert sorted(map(set, groups), key=len) == [{conditions[3]}, {*conditions} - {conditions[3]}]


def test_facts_that_are_given_count_in_contradictions() -> None:
    given = Facts().extended([literal(lt(N, 3))])
    assert Assumptions(facts=given).assume(lt(1, N)).consistent()
    assert not Assumptions(facts=given).assume(lt(5, N)).consistent()
