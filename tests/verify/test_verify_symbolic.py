"""Symbolic numbers decide what a path implies and fork if both answers are possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from egraph.tensor.expr.index import Floor, Symbol, index
from egraph.tensor.expr.scope import Compare
from verify.bounds import Bounds
from verify.numbers import OnPath, SymbolicNumber
from verify.paths import LeftOut, Path, explore
from verify.solved import Ended
from verify.symbolic import integer, opaque


@dataclass
class Nothing:
    """A state that needs no saving."""

    path: Path

    def saved(self) -> None:
        return None

    def restore(self, saved: None) -> None:
        return None


Result = TypeVar("Result")


def size(path: Path, name: str, minimum: int = 1) -> Any:
    return integer(path, path.symbol(name, minimum))


def outcomes(function: Callable[[Path], Result], limit: int = 100) -> list[Result]:
    """Return what a function returns on each path."""
    return [result for (result,) in explore(Nothing, [lambda state: (function(state.path),)], limit)]


def test_a_comparison_forks_once() -> None:
    def run(path: Path) -> tuple[bool, bool]:
        x, y = size(path, "x"), size(path, "y")
        return x == y, y == x

    assert outcomes(run) == [(True, True), (False, False)]


@dataclass
class Sizes:
    """A state that holds sizes."""

    path: Path
    made: tuple[Any, ...] = ()
    stages: list[str] = field(default_factory=list)
    """The stages that were run, over all paths."""

    def saved(self) -> tuple[Any, ...]:
        return self.made

    def restore(self, saved: tuple[Any, ...]) -> None:
        self.made = saved


def test_what_comes_before_a_fork_is_done_once() -> None:
    runs: list[Sizes] = []

    def start(path: Path) -> Sizes:
        runs.append(Sizes(path))
        return runs[0]

    def first(state: Sizes) -> None:
        state.stages.append("first")
        state.made = (*state.made, size(state.path, "x"), size(state.path, "y"))

    def second(state: Sizes) -> None:
        state.stages.append("second")
        x, y = state.made
        state.made = (*state.made, x if x == y else 0)

    def third(state: Sizes) -> tuple[str, ...]:
        x, y, same = state.made
        return str(x), str(y), str(same), str(same < 2)

    found = list(explore(start, [first, second, third], 100))
    assert runs[0].stages == ["first", "second", "second"]  # a stage starts again on the branch that it did not take
    assert found == [("x", "x", "x", "True"), ("x", "x", "x", "False"), ("x", "y", "0", "True")]


def test_an_equality_makes_later_values_equal() -> None:
    def run(path: Path) -> str:
        x, y = size(path, "x"), size(path, "y")
        return str(x * 2 + y) if x == y else ""

    assert sorted(map(str, outcomes(run))) == ["", "3*x"]


def test_shapes_compare_as_tuples_and_are_not_looked_up() -> None:
    """A path that looks sizes up in a set is discarded, because equal sizes may be written differently and the set would miss some."""

    def compared(path: Path) -> bool:
        x, y, z = (size(path, name) for name in "xyz")
        return (x, z) == (y, z)

    def looked_up(path: Path) -> int:
        return len({(size(path, "x"), 1), (size(path, "y"), 1)})

    assert outcomes(compared) == [True, False]
    assert outcomes(looked_up) == []


def test_minimum_and_order() -> None:
    def run(path: Path) -> tuple[bool, str]:
        x, y = size(path, "x"), size(path, "y")
        return x < 1, str(min(x, y))

    results = outcomes(run)
    assert all(small is False for small, _ in results)
    assert {text for _, text in results} == {"x", "y"}


def test_exact_division_is_exact_and_the_rest_is_known() -> None:
    path = Path()
    x, n = size(path, "x"), size(path, "n")
    assert str((x * n) // n) == "x"
    assert (x * n) % n == 0
    assert (x * n + n - 1) // n == x
    assert -(-(x * n) // n) == x


def test_a_product_that_is_one_makes_its_factors_one() -> None:
    path = Path()
    x, y = size(path, "x"), size(path, "y")
    path.assume(Compare(index(1), "==", path.symbol("x") * path.symbol("y")))
    assert (x, y) == (1, 1)
    assert not path.alternatives


def test_a_quotient_gets_its_bounds() -> None:
    path = Path()
    x, s = size(path, "x"), size(path, "s")
    path.assume(Compare((x // s).value, "==", index(2)))
    assert x >= 2 * s
    assert x < 3 * s
    assert not path.alternatives


def test_a_contradiction_ends_the_path() -> None:
    path = Path()
    path.assume(Compare(path.symbol("x"), "<", index(3)))
    with pytest.raises(Ended):
        path.assume(Compare(index(3), "<", path.symbol("x")))


def test_where_a_plain_number_is_needed_small_ones_are_tried_and_the_rest_is_left_out() -> None:
    def run(path: Path) -> int:
        try:
            return len(range(size(path, "x")))
        except LeftOut:
            return -1

    assert outcomes(run) == [1, 2, 3, 4, -1]


def test_a_broadcast_stays_open_until_asked() -> None:
    path = Path()
    x, y = size(path, "x"), size(path, "y")
    wide = x.widened(y)
    assert not path.alternatives
    assert wide == y.widened(x)
    assert len(path.deferred) == 1
    path.assume(Compare(path.symbol("x"), "!=", index(1)))
    assert wide == x
    assert not path.alternatives


def test_reals_compare_with_numbers_and_infinities() -> None:
    path = Path()
    on, a = OnPath(path), SymbolicNumber(path, path.real("a"))
    path.assume(Compare(index(0), "<", path.real("a")))
    assert on.compare("<", 0, a) and on.compare("<", a, float("inf")) and not on.compare("==", a, float("nan"))
    assert on.compare(">", on.arithmetic("*", a, 2), 0)
    assert on.compare(">", on.arithmetic("/", 1, a), 0)
    assert a.differs_from(1.0)
    assert not on.arithmetic("*", on.arithmetic("/", a, 2), 2).differs_from(a)
    assert not path.alternatives


def halved(value: Any) -> Any:
    """Return the value of an opaque function, which forks if its body is run."""
    return opaque("half", lambda x: x // 2 if x % 2 == 0 else (x - 1) // 2, value)


def test_an_opaque_function_has_one_value_at_equal_arguments() -> None:
    """The value is an arbitrary number, the same at arguments known to be equal before the call, and no path forks."""
    def run(path: Path) -> tuple[bool | None, bool | None, int]:
        path.opaque = True
        x, y = size(path, "x"), size(path, "y")
        path.assume(Compare(index(x.value), "==", index(y.value)))
        first, second, third = halved(x), halved(y), halved(x + 1)
        return path.decide(Compare(first.value, "==", second.value)), path.decide(Compare(first.value, "==", third.value)), halved(4)

    assert outcomes(run) == [(True, None, 2)]
    assert len(outcomes(lambda path: str(halved(size(path, "x"))))) == 2


def test_an_opaque_function_keeps_its_value_on_every_path() -> None:
    def run(path: Path) -> tuple[bool, bool]:
        path.opaque = True
        x = size(path, "x")
        return halved(x) == 0, halved(x) == 0

    assert outcomes(run) == [(True, True), (False, False)]


def test_sizes_that_a_loop_doubles_are_left_out_before_they_fill_the_memory() -> None:
    def squared(path: Path) -> bool:
        n = size(path, "n")
        for _ in range(40):
            n = n * n
        return bool(n > 5)

    def divided(path: Path) -> bool:
        a, b = size(path, "n"), size(path, "n") + 60
        for _ in range(40):
            a, b = b, a % b + 1
        return bool(a > 5)

    for run in (squared, divided):
        with pytest.raises(LeftOut, match="a size that is computed of more than"):
            run(Path())


def test_that_a_value_is_zero_follows_new_facts() -> None:
    bounds, x, y = Bounds(), Symbol("x"), Symbol("y")
    gap = index(x) - y
    assert bounds.zero(gap) is None and bounds.differs(gap)
    copied = bounds.copy()
    assert bounds.zero(gap) is False and copied.zero(gap) is False
    bounds.restart()
    assert bounds.zero(gap) is None and copied.zero(gap) is False
    assert bounds.at_least_zero(gap - 1, strict=False) and bounds.zero(gap) is False


def test_known_signs_and_ranges_follow_new_facts() -> None:
    bounds, x, y = Bounds(), Symbol("x"), Symbol("y")
    half = Floor(index(x), index(2))
    assert bounds.sign(index(x) - 1, strict=False) is True
    assert bounds.sign(index(x) - y, strict=False) is None and bounds.range_of(half) == (0, None)
    assert bounds.at_least_zero(index(x) - y, strict=False) and bounds.at_least_zero(9 - index(x), strict=False)
    assert bounds.sign(index(x) - y, strict=False) is True and bounds.range_of(half) == (0, 4)
    copied = bounds.copy()
    assert copied.at_least_zero(5 - index(x), strict=False)
    assert copied.range_of(half) == (0, 2) and bounds.range_of(half) == (0, 4)
    bounds.restart()
    assert bounds.sign(index(x) - y, strict=False) is None and bounds.range_of(half) == (0, None)
