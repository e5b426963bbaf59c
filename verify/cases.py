"""The symbolic cases of a rule: every way its function can run on the shapes that its left side admits.

A case is an equation between scopes over named tensors, with the assumptions of the path to it. If all cases are proved, the
rule is proved for what the cases cover. Paths that are not covered are named in the notes and never claimed.

**Pointwise rules** are run once, on scalars. If all operators of both sides are elementwise, the element of the result
at i is a function of one element of each variable, the one that broadcasting puts at i. Broadcasting composes, so a
variable is read at the same place however the operators are nested. Both sides are therefore the same functions of these
elements as on scalars, whatever the ranks and sizes. A match whose two sides have different types is refused.
The argument holds only if the rule does not look at a type, which the run observes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from egraph.errors import EinsatError, TypeMismatch
from egraph.rewrite.clock import OutOfTime
from egraph.rewrite.law import fields_of, natives, texts
from egraph.rewrite.operations import TooLong
from egraph.rewrite.refusals import WrongAttribute, WrongNumber
from egraph.rewrite.terms import Bound, Pattern, Variable, is_float32
from egraph.rule import Attributes, MergeRule, Mismatch, Rule, Weight
from egraph.rule import Tensor as RuleTensor
from egraph.tensor.expr.compose import identity
from egraph.tensor.expr.index import RealSymbol, atoms
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES
from verify.assumptions import Assumptions
from verify.bindings import WINDOWED, Binder, Fixed, Step, steps_of
from verify.fragments import SATURATING, KnownNumber, SymbolicTerm, Workshop, operators
from verify.numbers import OnPath, Quotient, SymbolicNumber, Unsettled, snapshot
from verify.paths import LeftOut, Path, TooManyPaths, explore
from verify.random_testing import CRASHES
from verify.solved import Ended

ROUNDED = "constants are rounded"
"""The fact that a proof rests on if a number in the sides is not the double that a match computes."""
FLOAT32 = "constants are compared to float32 precision"
MEMBERS = (2, 3)
"""Numbers of members of a merge that are proved."""
REST = "the rest of its paths"
"""The case of all paths beyond ``RUNS``."""
MOST_NUMBERS = 64
"""Most combinations of fixed constants and attributes that one rule may ask for."""
RUNS = 16000
"""Runs of one rule after which its remaining paths are not covered."""
FIRST_TRIES = 64
"""Early runs, before all of the left side is filled, that are made without asking whether they pay."""
SELDOM_REFUSED = 16
"""Early runs go on only if at least one in this many refuses."""


@dataclass(frozen=True)
class Case:
    """One equation to prove: ``left[i] == right[i]`` for all i where the assumptions hold.

    ``ill_typed``, ``failure`` and ``left_out`` say why there is no equation: the operators refuse a right side that the guard let
    pass, the rule's own code raised an error, or the path is not covered.
    """

    scope_note: str
    assumptions: Assumptions
    left: tuple[Scope, ...] = ()
    right: tuple[Scope, ...] = ()
    facts: frozenset[str] = frozenset()
    ranks: Mapping[str, int] | None = None
    """The rank of every tensor variable; None when the case covers all ranks."""
    choices: Mapping[str, object] = field(default_factory=dict)
    """Everything that was chosen: ranks, layouts, modes, axes, permutations."""
    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The shape of every tensor variable, for counterexamples."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The element type of every tensor variable."""
    bundles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Attributes: integers as indices, numbers as quotients of indices."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Constants of one number."""
    is_opaque: bool = False
    """Whether the case depends on a comparison of rounded numbers, so that no instance certainly belongs to it."""
    same: bool = False
    """Whether the right side is the left side."""
    tells_bytes_apart: bool = True
    """Whether the case may not hold with int8 and uint8 exchanged."""
    ill_typed: str = ""
    failure: str = ""
    left_out: str = ""


    @property
    def all_choices(self) -> tuple[Mapping[str, object], ...]:
        """Return the choices for which the case stands: its own, and those with int8 and uint8 exchanged if it does not tell them apart."""
        if self.tells_bytes_apart or not any(name.startswith("type of ") for name in self.choices):
            return (self.choices,)
        exchanged = dict(zip(BYTES, reversed(tuple(BYTES)), strict=True))
        return self.choices, {
            name: exchanged[str(value)] if name.startswith("type of ") else value for name, value in self.choices.items()
        }


@dataclass
class Survey:
    """Statistics of a run over all paths of a rule."""

    refused: Counter[str] = field(default_factory=Counter)
    """How often the guard refused, by reason."""
    pointwise: bool = False
    ranks: tuple[int, ...] = ()
    windowed: tuple[int, ...] = Fixed.windowed
    opaque: bool = False
    """Whether a function of integers was left opaque. If so, an open case may still hold."""


class _Refused(Ended):
    """The guard refuses the match."""


class _NotFilled(Exception):
    """A rule's function asks for a variable that is not filled yet."""


class _MissingTerm(Bound):
    """A placeholder for a variable that is not filled yet: the left side can be built from it, but nothing can be read from it."""

    def __init__(self, *, on_left: bool) -> None:
        self.on_left = on_left
        """Whether the function has not given its left side yet. The pattern determines the operand types of the left side."""

    def left_is_given(self, _: RuleTensor) -> None:
        """Record that terms built from here on are not part of the left side."""
        self.on_left = False

    @property
    def type(self) -> Any:
        raise _NotFilled

    def applied(self, op: str, operands: Sequence[Bound], attributes: tuple[tuple[str, Any], ...]) -> Bound:
        if not self.on_left:
            raise _NotFilled
        return self


class _MissingWeight(Weight):
    """A constant that is not filled yet."""

    def __init__(self, term: _MissingTerm) -> None:
        self.term = term

    @property
    def number(self) -> Any:  # type: ignore[override]  # never known
        raise _NotFilled


class _MissingAttributes(Attributes):
    """Attributes that are not filled yet; they belong to an operator of the left side over an operand that is missing too."""

    def __init__(self, name: str, term: _MissingTerm) -> None:
        self.name, self.term = name, term

    @property
    def values(self) -> Any:  # type: ignore[override]  # never known
        if not self.term.on_left:
            raise _NotFilled
        return ()


def cases(
    rule: Rule | MergeRule, fixed: Fixed | None = None, survey: Survey | None = None, ranks: Sequence[int] | None = None
) -> Iterator[Case]:
    """Yield the symbolic cases of a rule, in a fixed order, and fill ``survey`` with statistics.

    ``ranks``: ranks of the variables; by default up to ``highest_rank``.
    ``fixed.sets`` enumerates attributes such as strides over small sets instead of leaving them unknown.
    """
    survey = Survey() if survey is None else survey
    types, bytes_apart = looks_at_types(rule), tells_bytes_apart(rule)
    if isinstance(rule, Rule) and rule.ranks is not None:
        survey.ranks = tuple(sorted(set(rule.ranks.values())))
        given = replace(fixed or Fixed(), looks_at_types=types)
        yield from (case for case in _all(rule, given, survey, pointwise=False) if case is not None)
        return
    if fixed is None and isinstance(rule, Rule) and is_elementwise(rule.pattern):
        scalars = Fixed(ranks=(0,), looks_at_types=types, tells_bytes_apart=bytes_apart)
        scalar_cases = list(_all(rule, scalars, survey, pointwise=True))
        if not any(case is None for case in scalar_cases):
            survey.pointwise = True
            yield from (case for case in scalar_cases if case is not None)
            return
    if fixed is None:
        windows = windowed_bundles(rule.pattern if isinstance(rule, Rule) else rule.member.pattern)
        tried = tuple(range(highest_rank(rule) + 1)) if ranks is None else tuple(ranks)
        windowed = (3, 4, 5) if len(windows) < 2 else (3, 4)
        fixed = Fixed(tried, windowed if ranks is None else tuple(rank for rank in tried if rank >= 3))
    fixed = replace(fixed, looks_at_types=types, tells_bytes_apart=bytes_apart)
    survey.ranks, survey.windowed = fixed.ranks, fixed.windowed
    yield from (case for case in _all(rule, fixed, survey, pointwise=False) if case is not None)


def looks_at_types(rule: Rule | MergeRule) -> bool:
    """Return whether a rule reads the element types of its variables."""
    laws = (rule.law,) if isinstance(rule, Rule) else (rule.law, rule.member.law)
    return any("dtype" in fields_of(law) for law in laws)


def tells_bytes_apart(rule: Rule | MergeRule) -> bool:
    """Return whether a rule may treat int8 and uint8 differently: it names one of them, reads types, or saturates numbers."""
    member = rule if isinstance(rule, Rule) else rule.member
    named = {text for law in (rule.law, member.law) for text in (*texts(law), *natives(law))} | pattern_operators(member.pattern)
    declared = any(variable.dtype in BYTES for variable in member.variables)
    return declared or looks_at_types(rule) or not named.isdisjoint({*BYTES, *SATURATING, *map(str.lower, SATURATING)})


def is_elementwise(pattern: Pattern | Variable) -> bool:
    """Return whether all operators of a pattern are elementwise."""
    return all(OPS[op].category == "elementwise" for op in pattern_operators(pattern))


def pattern_operators(term: Pattern | Variable) -> set[str]:
    """Return the names of the operators of a pattern."""
    return set() if isinstance(term, Variable) else {term.op}.union(*map(pattern_operators, term.operands))


def windowed_bundles(term: Pattern | Variable) -> set[str]:
    """Return the attribute variables of convolutions and pools. With two of them, every spatial axis multiplies the paths."""
    if isinstance(term, Variable):
        return set()
    bundles = {str(term.attributes)} if term.op in WINDOWED else set()
    return bundles.union(*map(windowed_bundles, term.operands))


MOVES = ("Transpose", "Slice", "Reshape", "Expand")


def highest_rank(rule: Rule | MergeRule) -> int:
    """Return the highest rank at which free variables are covered: 5, as for videos and windows, or 4, as for images.

    It is lower if several things multiply the paths: two operands or moves, a move beside an operator with axes of its own, a permutation
    beside a reshape, or a constant's number among five operands.
    """
    member = rule if isinstance(rule, Rule) else rule.member
    free: set[str] = set()
    moves: set[tuple[str, str]] = set()

    def visit(term: Pattern | Variable, below: str) -> None:
        if isinstance(term, Variable):
            if below not in ("Conv", "ConvTranspose", "InstanceNormalization"):
                free.add(term.name)
            return
        if term.op in MOVES:
            moves.add((term.op, str(term.attributes)))
        for position, operand in enumerate(term.operands):
            is_scale = position > 0 and term.op in ("Quantize", "Dequantize")  # one number, or of the rank of the tensor that it scales
            if not (is_scale and isinstance(operand, Variable)):
                visit(operand, term.op)

    visit(member.pattern, "")
    count = Counter(op for op, _ in moves)
    has_axes = any(OPS[op].category != "elementwise" for op in pattern_operators(member.pattern).difference(MOVES))
    asks = "number" in fields_of(rule.law) and len(free) > 4
    few = 5 if len(free) < 2 and len(moves) < 2 and not (moves and has_axes) else 4
    return few - asks - (count["Transpose"] > 0 and count["Reshape"] > 0)


def _all(rule: Rule | MergeRule, fixed: Fixed, survey: Survey, *, pointwise: bool) -> Iterator[Case | None]:
    """Yield the cases of a rule, and again with every number that its guard asks for; None if it is run as pointwise and is not."""
    waiting, done = [fixed], [fixed]
    while waiting:
        now = waiting.pop(0)
        asked: list[Fixed] = []

        def start(path: Path, now: Fixed = now, asked: list[Fixed] = asked) -> _Run:
            path.opaque = now.opaque
            return _Run(rule, Binder(path, Workshop(path, tells_bytes_apart=now.tells_bytes_apart), now), survey, asked, pointwise)

        try:
            for case in explore(start, _stages(rule), RUNS):
                yield None if case is _NOT_POINTWISE else case
        except TooManyPaths as reason:
            yield Case(REST, Assumptions(), left_out=str(reason))
        for each in asked:
            if each in done:
                continue
            if len(done) > MOST_NUMBERS:
                yield Case("the numbers that it asks for", Assumptions(), left_out=f"more than {MOST_NUMBERS} of them")
                return
            done.append(each)
            waiting.append(each)


_NOT_POINTWISE = Case("a rule of more than pointwise operators", Assumptions())


@dataclass
class _Run:
    """The state of a run of a rule, from stage to stage."""

    rule: Rule | MergeRule
    binder: Binder
    survey: Survey
    asked: list[Fixed]
    pointwise: bool
    sides: tuple[tuple[SymbolicTerm, ...], tuple[SymbolicTerm, ...]] = ((), ())
    ahead: dict[tuple[int, Step], _Ahead] = field(default_factory=dict)
    """Counts of early runs of the function after each part of the left side, over all paths."""

    def saved(self) -> Any:
        return self.sides, self.binder.saved()

    def restore(self, saved: Any) -> None:
        self.sides, bound = saved
        self.binder.restore(bound)


Stage = Callable[[_Run], "Case | None"]


@dataclass
class _Ahead:
    """How often the function was run before all of the left side was filled, and how often it refused."""

    tried: int = 0
    refused: int = 0

    @property
    def pays(self) -> bool:
        """Return whether to run early again. An early run costs about as much as a path; a refusal ends all paths with this beginning."""
        return self.tried < FIRST_TRIES or self.refused * SELDOM_REFUSED >= self.tried


def _stages(rule: Rule | MergeRule) -> list[Stage]:
    """Return the stages of a run: fill the left side part by part, run the rule's function, settle open questions, make the case."""
    steps: list[tuple[int, Step]]
    if isinstance(rule, MergeRule):
        own_names = _member_variables(rule)
        patterns = [_renamed(rule.member.pattern, own_names, number + 1) for number in range(max(MEMBERS))]
        steps = [(number, step) for number, pattern in enumerate(patterns) for step in steps_of(pattern)]
    elif rule.ranks is not None:
        steps = [(0, Step(variable, ranks=(rule.ranks[variable.name],))) for variable in rule.variables]
    else:
        steps = [(0, step) for step in steps_of(rule.pattern)]
    filling = [partial(_fill, number=number, step=step) for number, step in steps]
    return [*filling, *(partial(_advance, of=of) for of in (_build, _settle, _end))]


def _fill(run: _Run, number: int, step: Step) -> None:
    """Bind a part of the left side; in a merge, a part of one member."""
    path = run.binder.path
    if path.left_out or (isinstance(run.rule, MergeRule) and number >= path.choose("members", MEMBERS)):
        return
    try:
        run.binder.fill(step)
    except LeftOut as leaving:  # the case is still made, because the proof has to name it as not covered
        path.left_out = str(leaving)
        return
    if run.pointwise or (isinstance(run.rule, Rule) and run.rule.ranks is not None):
        return
    ahead = run.ahead.setdefault((number, step), _Ahead())
    if ahead.pays:
        ahead.tried += 1
        reason = _refused_ahead(run)
        if reason is not None:
            ahead.refused += 1
            run.survey.refused[reason] += 1
            raise _Refused(reason)


def _refused_ahead(run: _Run) -> str | None:
    """Return why the rule's function refuses a match given what is filled so far; None if it does not, or needs more to decide.

    The function runs on a copy of the path, up to the first variable that is missing. A refusal counts only if the run chose nothing and
    no question had two answers, because then every path that continues from here reaches the same refusal.
    """
    path, binder = run.binder.path, run.binder
    before, alternatives, built = path.copy(), path.alternatives, binder.saved()
    path.alternatives, path.conclusion = [], True
    try:
        missing = _MissingTerm(on_left=isinstance(run.rule, Rule))
        given = _given(run.rule, binder, missing)
        if isinstance(run.rule, Rule):
            run.rule.law.sides(given, OnPath(path), missing.left_is_given)
        else:
            run.rule.law.several(given, OnPath(path))
    except (WrongNumber, WrongAttribute):
        return None  # the rule asks for a run with that number
    except Mismatch as refusal:
        return None if path.alternatives else refusal.reason
    except (_NotFilled, Ended, EinsatError, TooLong, RecursionError, *CRASHES):
        return None
    finally:
        path.become(before)
        path.alternatives = alternatives
        binder.restore(built)
    return None


def _build(run: _Run) -> None:
    """Run the rule's function."""
    path = run.binder.path
    path.conclusion = True
    _refuse_left_out(path)
    run.sides = _built(run.rule, run.binder)
    _refuse_left_out(path)


def _settle(run: _Run) -> None:
    """Answer the questions that the right side leaves open, and compare the types of the sides."""
    run.binder.path.settle_all()
    for left, right in zip(*run.sides, strict=True):
        _agree(left, right, OnPath(run.binder.path))


def _end(run: _Run) -> Case:
    """Return the case."""
    (lefts, rights), binder, pointwise = run.sides, run.binder, run.pointwise
    path, workshop = binder.path, binder.workshop
    if pointwise and (workshop.looked or any(OPS[op].category != "elementwise" for side in rights for op in operators(side))):
        return _NOT_POINTWISE
    try:
        equal = [tuple(_scope(workshop, term) for term in terms) for terms in run.sides]
    except LeftOut as leaving:
        return _case(path, binder, pointwise, left_out=str(leaving))
    except EinsatError as error:
        return _case(path, binder, pointwise, left_out=f"no meaning: {error.what}")
    return _case(path, binder, pointwise, left=equal[0], right=equal[1], same=all(a is b for a, b in zip(lefts, rights, strict=True)))


def _advance(run: _Run, of: Stage) -> Case | None:
    """Run a stage; return the case if the run ends in it, None if the run continues."""
    binder, survey, asked, pointwise = run.binder, run.survey, run.asked, run.pointwise
    path, workshop, fixed = binder.path, binder.workshop, binder.fixed
    try:
        return of(run)
    except _Refused as refusal:
        survey.refused[str(refusal)] += 1
        if pointwise and workshop.looked:
            return _NOT_POINTWISE
        raise
    except LeftOut as leaving:
        return _case(path, binder, pointwise, left_out=str(leaving))
    except Ended:
        raise
    except TooLong as long:
        raise OutOfTime(str(long)) from long
    except WrongNumber as wrong:
        _request_run(asked, replace(fixed, numbers={**fixed.numbers, wrong.variable: _portable(wrong.number)}), fixed)
        raise Ended from wrong
    except WrongAttribute as wrong:
        _request_run(asked, replace(fixed, values={**fixed.values, (wrong.variable, wrong.attribute): _portable(wrong.value)}), fixed)
        raise Ended from wrong
    except Mismatch as refusal:
        survey.refused[refusal.reason] += 1
        if pointwise and workshop.looked:
            return _NOT_POINTWISE
        raise Ended from refusal
    except TypeMismatch as error:
        if pointwise and workshop.looked:
            return _NOT_POINTWISE
        case = _case(path, binder, pointwise, ill_typed=error.what)
        if not case.assumptions.consistent():
            raise Ended from error
        return case
    except RecursionError:
        raise
    except CRASHES as crash:
        if pointwise and workshop.looked:
            return _NOT_POINTWISE
        case = _case(path, binder, pointwise, failure=f"{type(crash).__name__}: {crash}")
        if not case.assumptions.consistent():
            raise Ended from crash
        return case
    finally:
        survey.opaque = survey.opaque or bool(path.values)


def _refuse_left_out(path: Path) -> None:
    """Raise ``LeftOut`` on a path that is not covered, because a rule's function may have caught the exception."""
    if path.left_out:
        raise LeftOut(path.left_out)


def _request_run(asked: list[Fixed], fixed: Fixed, current: Fixed) -> None:
    """Request a run with a number fixed, unless the rule asks for a second value of a fixed one."""
    if fixed not in asked and set(fixed.numbers) | set(fixed.values) != set(current.numbers) | set(current.values):
        asked.append(fixed)


def _portable(number: Any) -> float | Quotient:
    """Return a number that means the same on another path."""
    if isinstance(number, Unsettled):
        number = number.settled()
    if not isinstance(number, SymbolicNumber):
        return float(number)
    if any(isinstance(atom, RealSymbol) and atom.name.startswith("rounded_") for side in number.ideal for atom in atoms(side)):
        raise number.path.leaving("a number that is asked for is rounded too often")
    return Quotient(*number.ideal, number.roundings, number.key)


def _member_variables(rule: Rule | MergeRule) -> tuple[str, ...]:
    """Return the variables of which every member of a merge has its own."""
    return () if isinstance(rule, Rule) else tuple(v.name for v in rule.member.variables if v.name not in rule.shared)


def _built(rule: Rule | MergeRule, binder: Binder) -> tuple[tuple[SymbolicTerm, ...], tuple[SymbolicTerm, ...]]:
    """Run the rule's function on the filled pattern."""
    if isinstance(rule, Rule) and rule.ranks is not None:
        return _built_by_function(rule, binder)
    path, given = binder.path, _given(rule, binder, None)
    numbers = OnPath(path)
    if isinstance(rule, Rule):
        left, right = rule.law.sides(given, numbers)
        return (_term(left),), (_term(right),)
    own_names = _member_variables(rule)
    common = {name: value for name, value in given.items() if name not in own_names}
    count = path.choose("members", MEMBERS)
    lefts = tuple(_term(rule.member.law.left({**common, **{name: given[name][i] for name in own_names}}, numbers)) for i in range(count))
    rights = tuple(map(_term, rule.law.several(given, numbers)))
    return lefts, rights


def _given(rule: Rule | MergeRule, binder: Binder, missing: _MissingTerm | None) -> dict[str, Any]:
    """Return the arguments of a rule's function; ``missing`` stands for variables that are not filled yet."""
    path, member, own_names = binder.path, rule if isinstance(rule, Rule) else rule.member, _member_variables(rule)

    def bound(variable: Variable, name: str) -> RuleTensor:
        if missing is not None and name not in binder.leaves:
            return _MissingWeight(missing) if variable.constant else RuleTensor(missing)
        term = binder.leaves[name]
        return KnownNumber(term, path) if variable.constant else RuleTensor(term)

    given: dict[str, Any] = {v.name: bound(v, v.name) for v in member.variables if v.name not in own_names}
    for name in member.attribute_variables:
        if missing is not None and name not in binder.bundles:
            given[name] = _MissingAttributes(name, missing)
        else:
            given[name] = Attributes(name, binder.bundles[name])
    if isinstance(rule, MergeRule):
        count = path.choose("members", MEMBERS)
        given |= {v.name: [bound(v, f"{v.name}{i + 1}") for i in range(count)] for v in member.variables if v.name in own_names}
    return given


def _built_by_function(rule: Rule, binder: Binder) -> tuple[tuple[SymbolicTerm, ...], tuple[SymbolicTerm, ...]]:
    """Run a function that makes its own left side; the demands of the operators up to that point are assumed."""
    path = binder.path
    path.conclusion = False

    def conclude(_: RuleTensor) -> None:
        path.conclusion = True

    try:
        left, right = rule.law.sides({v.name: RuleTensor(binder.leaves[v.name]) for v in rule.variables}, OnPath(path), conclude)
    except TypeMismatch as error:
        if path.conclusion:
            raise
        raise Ended(error.what) from error
    return (_term(left),), (_term(right),)


def _renamed(term: Pattern | Variable, own_names: tuple[str, ...], number: int) -> Pattern | Variable:
    """Return the pattern of one member of a merge, with its own variables numbered."""
    if isinstance(term, Variable):
        return Variable(f"{term.name}{number}", term.constant) if term.name in own_names else term
    return Pattern(term.op, term.attributes, tuple(_renamed(operand, own_names, number) for operand in term.operands))


def _term(tensor: RuleTensor) -> SymbolicTerm:
    assert isinstance(tensor.term, SymbolicTerm)
    return tensor.term


def _agree(left: SymbolicTerm, right: SymbolicTerm, numbers: OnPath) -> None:
    """Refuse, as a match does, if the sides have different types."""
    if left.dtype != right.dtype or len(left.shape) != len(right.shape) or not all(
        numbers.compare("==", a, b, True) for a, b in zip(left.shape, right.shape, strict=True)
    ):
        raise _Refused("the sides have different types")


def _scope(workshop: Workshop, term: SymbolicTerm) -> Scope:
    meaning = workshop.meaning(term)
    return identity(meaning) if isinstance(meaning, Tensor) else meaning


def _case(path: Path, binder: Binder, pointwise: bool, **fields: Any) -> Case:
    notes = [f"{name} {_shown(value)}" for name, value in path.choices.items()]
    facts = {ROUNDED} if binder.workshop.rounded else set()
    if binder.fixed.numbers or binder.fixed.values:
        notes.append(FLOAT32)
        if not all(map(_is_float32, (*binder.fixed.numbers.values(), *binder.fixed.values.values()))):
            facts.add(ROUNDED)
    ranks = None if pointwise else {name: len(leaf.shape) for name, leaf in binder.leaves.items()}
    shapes = {name: binder.workshop.sizes(leaf) for name, leaf in binder.leaves.items()}
    choices = dict(path.choices)
    if pointwise:
        choices = {name: value for name, value in choices.items() if not name.startswith("rank of ")}  # a scalar stands for any rank
        notes = ["all ranks and sizes", *(note for note in notes if not note.startswith("rank of "))]
    assumptions = Assumptions().assume(*path.conditions, *path.equalities(), *path.broadcasts())
    leaves, numbers = binder.leaves, binder.workshop.numbers
    fields |= {
        "is_opaque": bool(path.truths or path.rounded),
        "tells_bytes_apart": binder.fixed.tells_bytes_apart,
        "types": {name: leaf.dtype for name, leaf in leaves.items()},
        "bundles": {name: {key: snapshot(value) for key, value in bundle} for name, bundle in binder.bundles.items()},
        "numbers": {name: snapshot(numbers[name]) for name in leaves if numbers.get(name) is not None},
    }
    return Case(", ".join(notes), assumptions, facts=frozenset(facts), ranks=ranks, choices=choices, shapes=shapes, **fields)


def _is_float32(number: float | Quotient) -> bool:
    """Return whether float32 represents the number, so that the rule asks for exactly this number."""
    return not isinstance(number, Quotient) and is_float32(number)


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
