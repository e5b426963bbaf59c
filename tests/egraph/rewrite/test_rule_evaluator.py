"""The evaluator of rules builds the same terms as Python in every interpretation, and its numbers are integers and doubles."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from egraph.errors import EinsatError
from egraph.rewrite.evaluator import Evaluator
from egraph.rewrite.law import PythonNames, Written, closure_of
from egraph.rewrite.library import BUILTINS, MODULES
from egraph.rewrite.operations import TooLong
from egraph.rewrite.parts import Overlay
from egraph.rewrite.reader import read_function
from egraph.rewrite.values import PLAIN, Closure, Namespace
from egraph.rule import Attributes, Binding, Equation, MergeRule, Mismatch, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import leaky_relu
from egraph.rules import RULES
from egraph.tensor import Node, TensorType, placeholder
from verify.numbers import OnPath, SymbolicNumber
from verify.paths import Path, explore
from verify.random_binding import Refused, draw_binding
from verify.symbolic import integer

BINDINGS = 3


def by_python(law: Any, arguments: dict[str, Any]) -> Any:
    """Return Python's result of a rule's function: its two sides, or its list of tensors."""
    assert isinstance(law, Written) and isinstance(law.closure.around, PythonNames)
    names = [parameter.name for parameter in law.closure.syntax.parameters]
    given = {n: [arguments[f"{n}{i + 1}"] for i in range(law.lists[n])] if n in law.lists else arguments[n] for n in names}
    found = law.closure.around.function(**given)
    if isinstance(found, Equation):
        return found.left.node, found.right.node
    return tuple(each.node for each in ([found] if isinstance(found, Tensor) else found))


def bound(each: Rule, binding: Binding, first: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {name: Attributes(name, values) for name, values in binding.attributes.items()}
    for position, variable in enumerate(each.variables):
        node = placeholder(first + position, binding.types[variable.name], constant=variable.constant)
        number = binding.numbers.get(variable.name)
        found[variable.name] = Weight(node, variable.name, number) if variable.constant else Tensor(node)
    return found


def outcome(run: Any) -> tuple[Node, ...] | str:
    try:
        return tuple(run())
    except Mismatch as refusal:
        return refusal.reason
    except EinsatError as error:
        return error.what


@pytest.mark.parametrize("family", range(8))
def test_what_every_shipped_rule_builds_is_what_python_builds(family: int) -> None:
    for each in RULES[family::8]:
        member = each if isinstance(each, Rule) else each.member
        random, compared = Random(each.name), 0
        for _ in range(400):
            if compared == BINDINGS:
                break
            try:
                binding = draw_binding(member, random)
            except (Refused, EinsatError):
                continue
            arguments = bound(member, binding)
            if isinstance(each, MergeRule):
                own = {v.name: [arguments[v.name]] * 2 for v in member.variables if v.name not in each.shared}
                both = {**arguments, **own}
                law, expected = each.law, outcome(lambda law=each.law, both=both: by_python(law, both))
                found = outcome(lambda law=law, both=both: (side.node for side in law.several(both)))
            else:
                expected = outcome(lambda law=each.law, a=arguments: by_python(law, a))
                found = outcome(lambda law=each.law, a=arguments: (side.node for side in law.sides(a)))
            assert found == expected, (each.name, binding)
            compared += 1
        assert compared, each.name


def run(function: Any, **arguments: Any) -> Any:
    return Evaluator(PLAIN).call(closure_of(function), [], arguments)


@dataclass
class State:
    """A state that needs no saving."""

    path: Path

    def saved(self) -> None: ...
    def restore(self, saved: None) -> None: ...


def on_paths(function: Any, *names: str, minimum: int = 1) -> list[Any]:
    """Return the results of a function of unknown sizes on every path."""
    def ran(state: State) -> tuple[Any]:
        path = state.path
        given = {name: integer(path, path.symbol(name, minimum)) for name in names}
        return (Evaluator(OnPath(path)).call(closure_of(function), [], given),)

    return [found for (found,) in explore(State, [ran], 1000)]


def arithmetic(n: int) -> Any:
    return (n + 1, -n // 3, -n % 3, n // -3, n % -3, n**2, abs(-n), max(n, 3), min(n, 3), sum([n, n]), sorted([3, n, 1]), divmod_of(n))


def divmod_of(n: int) -> tuple[int, int]:
    return n // 4, n % 4


@pytest.mark.parametrize("n", [*range(1, 12), 10**30])
def test_integers_are_python_s(n: int) -> None:
    assert run(arithmetic, n=n) == arithmetic(n)


SAME = (
    "{3, 1, 3} == {1, 3}", "sorted({5, 2, 2})", "[a + b for a in (1, 2) for b in (3, 4) if a < b - 1]", "{k: k * k for k in range(3)}[2]",
    "(1, *range(2), 5)[1:-1]", "tuple(zip((1, 2), (3, 4), strict=True))", "[*map(abs, (-1, 2))]", "next((n for n in (1, 2) if n > 1), 7)",
    "next((n for n in (1, 2) if n > 2), None)", "list(enumerate((7, 8), 1))", "(1, 2) < (1, 3)", "2 in (1, 2)", "3 not in {1: 2}",
    "all(n for n in ())", "None is None", "max((1, 5), (1, 6))", "max([3, -4], key=abs)", "min(3, 2)", "(2, 3).index(3)",
    "[2, 3, 2].count(2)", "0 or 5", "3 and 0", "1 < 2 < 3", "math.prod((2, 3))", "list(reversed((1, 2)))", "7 // 2 * -1", "-7 % 3",
    "2.0 * 3 == 6", "1 / 4", "not ()", "(lambda a, *b, c=3: (a, b, c))(1, 2, c=4)", "len([0] * 3)", "[*'' or (1,)]", "sum([True, True])",
    "max(math.nan, 1.0) != max(math.nan, 1.0)", "min(1.0, math.nan)", "0.1 + 0.2 == 0.3", "1e308 * 10.0 if False else 2**10",
)  # fmt: skip


def written(text: str) -> Closure:
    """Return ``lambda: text`` as a function of the rule language."""
    node = ast.parse(f"lambda: {text}", mode="eval").body
    assert isinstance(node, ast.Lambda)
    return Closure(read_function(node, "a test"), Overlay({**BUILTINS, "math": Namespace("math", MODULES["math"])}, NOTHING), "a test")


class Nothing:
    def find(self, name: str) -> Any:
        raise KeyError(name)


NOTHING = Nothing()


@pytest.mark.parametrize("text", [text for text in SAME if "''" not in text])
def test_what_the_language_has_means_what_it_means_in_python(text: str) -> None:
    assert Evaluator().call(written(text), []) == eval(text, {"math": math})


REFUSED = (
    "[n for n in {1, 2}]", "(1, 2) == [1, 2]", "2 ** -1", "2 ** 100", "2 ** 0.5", "len(4)", "'a' + 'b'", "'a' < 'b'", "-'a'",
    "(n for n in (1,)) == [1]", "f'{1}' == '1'", "not f'{1}'", "abs == abs", "range(1.0)", "abs('a')", "{1: 2} == {1: 2}", "tuple('ab')",
    "[0][1.0]", "1 in 'a'", "int(1.5)", "next((1, 2))", "len(n for n in (1,))", "(1, 2)(3)", "sum(('a', 'b'))", "1 < 'a'",
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_meaning_is_an_error_in_every_interpretation(text: str) -> None:
    with pytest.raises(TypeError):
        Evaluator().call(written(text), [])
    with pytest.raises(TypeError):
        Evaluator(OnPath(Path())).call(written(text), [])


def test_unknown_sizes_decide_as_plain_ones() -> None:
    def parity(n: int) -> int:
        return 0 if n % 2 == 0 else 1

    assert sorted(on_paths(parity, "n")) == [0, 1]
    assert on_paths(lambda n: n * n >= n, "n") == [True]
    assert on_paths(lambda n: n in (0, -1), "n") == [False]


@pytest.mark.parametrize("function", [lambda n: n / 2, lambda n: n * 0.5, lambda n: n == 4.0, lambda n: 1.5 + n])
def test_a_size_is_never_computed_with_as_a_real_number(function: Any) -> None:
    assert on_paths(function, "n") == []


def test_no_loop_is_endless() -> None:
    @rule
    def endless(x: Tensor) -> Steps:
        """-(-x) = x"""
        inner = -x
        yield -inner
        n = 0
        while n >= 0:
            n += 1
        yield x

    with pytest.raises(TooLong):
        endless.apply(Binding({"x": TensorType("float32", (2,))}, {}))


def test_elements_that_are_gone_through_are_steps() -> None:
    """Iterating over an element counts as a step even if nothing else is done with it.

    Three nested loops over 150 elements are more than three million steps.
    """

    def law(x: Tensor) -> Steps:
        few = tuple(range(150))
        require(all(True for a in few for b in few for c in few), "never false")
        yield x

    with pytest.raises(TooLong):
        Written(closure_of(law)).left({"x": Tensor(placeholder(0, TensorType("float32", (2,))))})


def test_no_sequence_grows_without_end() -> None:
    @rule
    def doubled(x: Tensor) -> Steps:
        """-(-x) = x"""
        inner = -x
        yield -inner
        values: tuple[int, ...] = (1,)
        for _ in range(40):
            values = values + values
        yield x if len(values) > 1 else inner

    with pytest.raises(TooLong, match="a sequence of"):
        doubled.apply(Binding({"x": TensorType("float32", (2,))}, {}))


# Numbers


def number(path: Path, name: str) -> SymbolicNumber:
    return SymbolicNumber(path, path.real(name))


def asked(*questions: Any) -> list[tuple[bool, ...]]:
    """Return the answers to questions about two numbers on every path."""

    def ran(state: State) -> tuple[bool, ...]:
        path = state.path
        on, a, b = OnPath(path), number(path, "a"), number(path, "b")
        return tuple(question(on, a, b) for question in questions)

    return list(explore(State, [ran], 1000))


def test_numbers_that_are_named_are_compared_as_they_are() -> None:
    less = lambda on, a, b: on.compare("<", a, b)  # noqa: E731
    more = lambda on, a, b: on.compare(">=", a, b)  # noqa: E731
    assert sorted(asked(less, more)) == [(False, True), (True, False)]


def test_nothing_is_concluded_from_sums_that_are_rounded() -> None:
    """Nothing is concluded from rounded sums: (a + 1e20) - 1e20 is 0 for a = 1, but a for other values."""
    vanishes = lambda on, a, b: on.compare("==", on.arithmetic("-", on.arithmetic("+", a, 1e20), 1e20), 0.0)  # noqa: E731
    is_zero = lambda on, a, b: on.compare("==", a, 0.0)  # noqa: E731
    assert sorted(asked(vanishes, is_zero)) == [(False, False), (False, True), (True, False), (True, True)]


def test_one_sum_has_the_sign_that_it_has() -> None:
    negative = lambda on, a, b: on.compare("<", on.arithmetic("-", a, b), 0.0)  # noqa: E731
    less = lambda on, a, b: on.compare("<", a, b)  # noqa: E731
    assert sorted(asked(negative, less)) == [(False, False), (True, True)]


def test_one_rounding_keeps_strict_order_alone() -> None:
    """One rounding keeps strict order alone: if the rounded a b is > 1, so is the exact product, but a rounded a b <= 1 implies nothing."""
    above = lambda on, a, b: on.compare(">", on.arithmetic("*", a, b), 1.0)  # noqa: E731
    assert sorted(set(asked(above))) == [(False,), (True,)]
    again = lambda on, a, b: on.compare("<", 1.0, on.arithmetic("*", a, b))  # noqa: E731
    assert sorted(set(asked(above, again))) == [(False, False), (True, True)]


def test_division_by_a_number_that_may_be_zero_is_an_error_there() -> None:
    @rule
    def divides(x: Tensor, a: Attributes) -> Steps:
        """leaky(x) = leaky(x)"""
        inner = -x
        yield leaky_relu(-inner, a)
        require(1 / a.alpha > 0, "positive")
        yield leaky_relu(x, a)

    with pytest.raises(ZeroDivisionError):
        divides.apply(Binding({"x": TensorType("float32", (2,))}, {"a": (("alpha", 0.0),)}))
    from verify.prove import Effort, prove

    found = prove(divides, Effort(tests=0))
    assert found.verdict == "refuted" and "ZeroDivisionError" in found.reason


@pytest.mark.parametrize(
    ("a", "b", "operator"), [(1e300, 1e300, "*"), (1e-300, 1e-300, "*"), (1e300, 1e-300, "/"), (1.7e308, 1.7e308, "+")]
)
def test_what_a_double_cannot_hold_refuses_the_match(a: float, b: float, operator: Any) -> None:
    with pytest.raises(Mismatch, match="no number that a double can hold"):
        PLAIN.arithmetic(operator, a, b)


def test_infinities_and_nan_are_ieee() -> None:
    assert PLAIN.arithmetic("-", math.inf, 1.0) == math.inf and math.isnan(PLAIN.arithmetic("-", math.inf, math.inf))
    assert math.isnan(PLAIN.arithmetic("*", math.inf, 0.0)) and not PLAIN.compare("==", math.nan, math.nan)
    infinite = lambda on, a, b: on.compare("==", on.arithmetic("*", a, math.inf), math.inf)  # noqa: E731
    positive = lambda on, a, b: on.compare(">", a, 0.0)  # noqa: E731
    assert sorted(set(asked(infinite, positive))) == [(False, False), (True, True)]
