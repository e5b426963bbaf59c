"""Generate rules: enumerate, compare, prove, and keep the equations that the others do not show.

The run proceeds depth by depth, so that a run that ends early has the small equations. Within a depth, equations with few
operators come first, then those with many variables, so that a general equation precedes its consequences. Each equation is
examined once. An instance of an accepted equation, or one that a saturation with the accepted rules shows, is dropped. Any other
equation is stated as a rule in both directions and passed to the judge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias

from egraph.rule import Rule
from verify.generate.contexts import contexts
from verify.generate.derivation import derivable, is_instance
from verify.generate.enumeration import candidates, commutativity
from verify.generate.productions import productions
from verify.generate.source import Draft, draft, title
from verify.generate.terms import Equation, settled, subterms, variables
from verify.generate.weaken import Accepted, Judge, Outcome, weakest

StopReason: TypeAlias = Literal["complete", "budget", "interrupted"]
Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What to enumerate. ``terms``: most terms per context; ``seconds``: time after which the run stops and keeps its results."""

    operators: tuple[str, ...]
    depth: int = 2
    variables: int = 4
    terms: int = 20_000
    seconds: float | None = None


@dataclass
class Generated(Generic[Outcome]):
    """The result of a run: accepted equations with their rules, counts of dropped ones, and why the run ended."""

    settings: Settings
    contexts: int = 0
    terms: int = 0
    candidates: int = 0
    instances: int = 0
    derived: int = 0
    equations: list[tuple[Equation, tuple[Accepted[Outcome], ...]]] = field(default_factory=list)
    open: list[Draft] = field(default_factory=list)
    """Equations that hold on the test data but were not proved in any direction."""
    stop_reason: StopReason = "complete"
    seconds: float = 0.0

    @property
    def accepted(self) -> tuple[Accepted[Outcome], ...]:
        return tuple(accepted for _, variants in self.equations for accepted in variants)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Return the judge's outcome for each rule."""
        return {accepted.rule.name: accepted.outcome for accepted in self.accepted}

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(accepted.rule for accepted in self.accepted)


ENUMERATION_SHARE = 0.5
"""Largest share of the remaining time for the enumeration of one depth; the rest is for proofs."""


class _OutOfTime(Exception):
    pass


def generate(settings: Settings, judge: Judge[Outcome], say: Progress = lambda text: None) -> Generated[Outcome]:
    """Return the rules that ``judge`` accepts among the equations of small terms; an interrupted run keeps its results."""
    start = time.monotonic()
    result: Generated[Outcome] = Generated(settings)

    def check_time() -> None:
        if settings.seconds is not None and time.monotonic() - start > settings.seconds:
            raise _OutOfTime

    seen: dict[str, Equation] = {}
    try:
        for depth in range(1, settings.depth + 1):
            left = None if settings.seconds is None else settings.seconds - (time.monotonic() - start)
            equations = _enumerate(depth, seen, result, say, None if left is None else time.monotonic() + ENUMERATION_SHARE * left)
            _accept(equations, result, judge, say, check_time)
        _minimise(result, say, check_time)
    except _OutOfTime:
        result.stop_reason = "budget"
    except KeyboardInterrupt:
        result.stop_reason = "interrupted"
    result.seconds = time.monotonic() - start
    return result


def _enumerate(depth: int, seen: dict[str, Equation], result: Generated[Outcome], say: Progress, until: float | None) -> Sequence[Equation]:
    """Return the equations of a depth that no smaller depth has, in the order of examination; the search stops at time ``until``."""
    settings = result.settings
    chosen = productions(settings.operators)
    every = contexts(chosen, depth, settings.variables)
    result.contexts = len(every)
    every_context = frozenset(every)
    new: dict[str, Equation] = {}
    for equation in map(settled, commutativity(chosen) if depth == 1 else ()):
        new[str(equation)] = equation
    for position, context in enumerate(every):
        if until is not None and time.monotonic() > until:
            result.stop_reason = "budget"
            break
        equations, terms = candidates(context, chosen, depth, every_context, terms=settings.terms)
        result.terms += terms
        for equation in map(settled, equations):
            if str(equation) not in seen:
                new.setdefault(str(equation), equation)  # keep the one from the most general context, which came first
        say(f"depth {depth}, typing {position + 1} of {len(every)}: {result.terms} terms, {len(seen) + len(new)} equations")
    seen |= new
    result.candidates = len(seen)
    return sorted(new.values(), key=lambda equation: (equation.operators, -len(equation.context), str(equation)))


def _accept(
    equations: Iterable[Equation], result: Generated[Outcome], judge: Judge[Outcome], say: Progress, check_time: Callable[[], None]
) -> None:
    taken = {rule.name for rule in result.rules}
    for equation in equations:
        check_time()
        done = result.derived + result.instances
        say(f"{result.candidates} equations: {len(result.equations)} proved, {done} shown by these, {len(result.open)} open")
        if any(is_instance(equation, earlier) for earlier, _ in result.equations):
            result.instances += 1
        elif derivable([equation], result.rules)[0]:
            result.derived += 1
        else:
            kept: list[Accepted[Outcome]] = []
            failed: list[Draft] = []
            for direction in _directions(equation):
                try:
                    drafted = draft(direction, title(direction, taken))
                except LookupError:  # the left side does not determine an extent of the right side
                    continue
                accepted = weakest(drafted, judge)
                if accepted is None:
                    failed.append(drafted)
                else:
                    taken.add(drafted.name)
                    kept.append(accepted)
            if kept:
                result.equations.append((equation, tuple(kept)))
            elif failed:
                result.open.append(failed[0])


def _directions(equation: Equation) -> tuple[Equation, ...]:
    """Return the directions in which an equation is a rule: the left side has an operator and all variables of the right side.

    A term is not rewritten into one that contains it. If the larger term occurs, the other direction gives the same equality.
    """
    back = Equation(equation.right, equation.left, equation.context)
    both = (equation,) if str(settled(back)) == str(settled(equation)) else (equation, back)
    readable = (way for way in both if not isinstance(way.left, int) and set(variables(way.right)) <= set(variables(way.left)))
    return tuple(way for way in readable if way.left not in subterms(way.right))


def _minimise(result: Generated[Outcome], say: Progress, check_time: Callable[[], None]) -> None:
    """Drop equations that all the others together show, the last ones first, because a later equation may be the more general one."""
    for equation, variants in list(reversed(result.equations)):
        check_time()
        say(f"{len(result.equations)} equations: looking for those that the others show")
        others = tuple(accepted.rule for another, rewrites in result.equations if another is not equation for accepted in rewrites)
        if derivable([equation], others)[0]:
            result.equations.remove((equation, variants))
            result.derived += 1
