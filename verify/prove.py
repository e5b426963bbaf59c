"""Prove a rule for all sizes: random tests refute, symbolic cases prove, and the two have to agree.

    proof = prove(rule)
    proof.verdict, proof.scope        # 'proved', 'all sizes, ranks 1 to 4'

A rule is proved if the two sides of every symbolic case are equal under the conditions of the left side's shape rules and of
the guard. All cases with the same ranks and attributes count as proved together or not at all. If only some choices are proved,
the scope names the others. A difference that random tests find refutes the rule, whatever was proved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from egraph.errors import EinsatError
from egraph.rewrite.clock import OutOfTime, within
from egraph.rule import MergeRule, Rounding, Rule, Verdict
from egraph.tensor.expr.index import Symbol, atoms, index, substitute
from egraph.tensor.expr.scope import Scope
from verify.application import objection as open_at
from verify.bindings import Fixed
from verify.budget import Exhausted, at_most
from verify.cases import REST, Case, Survey, cases
from verify.counterexamples import smallest
from verify.definedness import has_nan, is_nan
from verify.equality import prove_equal
from verify.families import applying, family_of, only_moves
from verify.generalised import generalised
from verify.isomorphism import Names
from verify.open_cases import attempts_for, examined
from verify.outcome import Equal, Open, Outcome
from verify.paths import TooManyPaths
from verify.proof import Obligation, Proof
from verify.random_testing import Difference, Instance, RuleTest, check_rule, draws
from verify.readings import TRANSCENDENTAL, applies, forgotten, rewritten, without_laws
from verify.rounding import ONLY_ROUNDING, case_objection, objection
from verify.scope import MEMBERS, Judged, described, tree_of

SMALL_SETS: tuple[Mapping[str, tuple[int, ...]], ...] = (
    {"strides": (1, 2), "dilations": (1, 2)},
    {"strides": (1, 2), "dilations": (1, 2), "group": (1, 2)},
)
"""Values of attributes that are enumerated, one set after the other, if a rule is not proved for unknown attributes."""


HIGHER = tuple(range(7))
"""Ranks that are tried if nothing passes the guard at the usual ranks."""
MOST_EXPECTED = 100
"""Expected different cases of equal choices at one rank of windows; a rank with more is left to proofs of single applications."""
MOST_SHARED = 16
"""Families whose proofs are cached. A few suffice because the rules of a family are proved one after another."""
LOWEST = 2
"""The highest ranks of a rule with too many paths are removed one by one, but not this rank and those below."""
OPEN_IF_NONE_PROVED = 8
"""Number of open cases after which the proof stops if no case is proved."""
LAWS = "laws of exponentials and logarithms"
"""The fact that one side may overflow when the other does not."""


@dataclass(frozen=True)
class Effort:
    """Limits on the work for one rule.

    ``tests``: number of random instances (0: the cases alone decide). ``open_cases``: number of open cases after which the proof stops.
    """

    tests: int = 64
    tries: int = 6000
    seed: int = 0
    open_cases: int = 24
    ranks: tuple[int, ...] | None = None
    """Ranks of variables and free shapes; by default as many as the number of variables leaves time for."""
    seconds: float = math.inf
    """Processor time in seconds after which the rule's verdict is "unknown"."""
    general_work: float = math.inf
    """Units of work (``verify.budget``) after which the proof for all sizes stops and applications at their own sizes decide."""
    applications: int = 6
    """Number of random applications that are proved at their own sizes if there is no general proof."""


@dataclass
class Growth:
    """The number of different cases that a rule of windows has at one rank; each further spatial axis multiplies it by the same factor."""

    rank: int | None = None
    """Current rank of the variable that is chosen first; its values come in ascending order."""
    different: int = 0
    ways: set[str] = field(default_factory=set)
    """Texts of the choices of the cases counted at this rank."""

    def goes_on(self, choices: Mapping[str, Any]) -> bool:
        """Return False if the case begins a rank at which too many cases are expected."""
        rank = _first_rank(choices)
        if rank is None or rank == self.rank:
            return True
        before = self.rank or 0
        expected = (self.different / max(1, len(self.ways))) ** ((rank - 2) / (before - 2)) if before > 2 else 0.0
        self.rank, self.different, self.ways = rank, 0, set()
        return expected <= MOST_EXPECTED

    def count(self, choices: Mapping[str, Any], *, new: bool) -> None:
        """Count a case that was judged."""
        self.different += new
        self.ways.add(repr(choices))


def _first_rank(choices: Mapping[str, Any]) -> int | None:
    name = next(iter(choices), "")
    return choices[name] if name.startswith("rank of ") else None


@dataclass
class Attempt:
    """All cases of a rule, judged."""

    judged: list[Judged] = field(default_factory=list)
    obligations: list[Obligation] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    facts: set[str] = field(default_factory=set)
    open: list[Case] = field(default_factory=list)
    unconfirmed: int = 0
    """Number of open cases without an instance at which the sides are known to be equal."""
    proved: int = 0
    same: int = 0
    broken: Case | None = None
    """A case whose right side is ill-typed, or on which the rule raises."""
    gave_up: str = ""
    complaint: str = ""
    """Why the rule is not in the rounding class that it states."""
    too_many_paths: bool = False
    survey: Survey = field(default_factory=Survey)
    ranks: set[int] = field(default_factory=set)
    growth: Growth = field(default_factory=Growth)
    names: Names = field(default_factory=Names)
    any_function: str = ""
    """An elementwise operator that stands for any function."""
    special: set[int] = field(default_factory=set)
    """The names of the generalisations that are not proved; their cases are judged one by one."""
    alike: dict[int, frozenset[str]] = field(default_factory=dict)
    """For the name of each proved case, the facts that it rests on. Cases with the same name state the same equation."""

    @property
    def is_complete(self) -> bool:
        return self.proved > 0 and not self.obligations and not self.gave_up


def prove(rule: Rule | MergeRule, effort: Effort = Effort()) -> Proof:
    """Return the verdict on a rule, with the facts that the proof rests on or the open obligations."""
    start = time.thread_time()
    blank = Proof(rule.name, "unknown", "", 0.0, 0, 0, 0, rule.rounding)
    try:
        with within(effort.seconds):
            test = check_rule(rule, effort.seed, effort.tests, effort.tries)
            blank = replace(blank, cases=test.cases, exact_cases=test.exact_cases)
            proof = _judged_by_test(rule, test, blank, effort) or _judged_by_cases(rule, test.instances, blank, effort)
    except OutOfTime as reached:
        proof = replace(blank, failure="time", reason=f"time: {reached}")
    return replace(proof, seconds=time.thread_time() - start)


def _judged_by_test(rule: Rule | MergeRule, test: RuleTest, blank: Proof, effort: Effort) -> Proof | None:
    """Return the verdict if random testing decides alone: a difference, a crash, or identical sides."""
    if test.differences:
        example = smallest(rule, test.differences[0], effort.seed)
        return replace(blank, verdict="refuted", failure="difference", counterexample=example, reason="the two sides differ")
    if test.failures:
        return replace(blank, verdict="refuted", failure="raises", reason=test.failures[0].strip())
    if test.cases and test.identical == test.cases:
        return replace(blank, verdict="refuted", failure="same sides", reason="the right side is the left side: nothing is rewritten")
    return None


def _judged_by_cases(rule: Rule | MergeRule, drawn: Sequence[Instance], blank: Proof, effort: Effort) -> Proof:
    attempt = _general(rule, effort)
    if attempt.broken is None and (difference := _examined(rule, attempt)) is not None:
        example = smallest(rule, difference, effort.seed)
        return replace(blank, verdict="refuted", failure="difference", counterexample=example, reason="the two sides differ")
    if attempt.obligations and not attempt.broken and not attempt.gave_up and _has_windows(rule):
        for sets in SMALL_SETS:
            narrower = _attempt(rule, Fixed(ranks=attempt.survey.ranks, sets=sets), effort)
            if narrower.is_complete:
                attempt = narrower
                break
    blank = replace(blank, paths=attempt.proved, facts=frozenset(attempt.facts), obligations=tuple(attempt.obligations))
    if attempt.broken is not None:
        return _hard_failure(attempt.broken, blank)
    if attempt.same and attempt.same == attempt.proved and not attempt.obligations:
        return replace(blank, verdict="refuted", failure="same sides", reason="the right side is the left side: nothing is rewritten")
    if not blank.cases and effort.tests and not (attempt.left_out and not attempt.proved and not attempt.obligations):
        return _never_applied(attempt, blank)
    tree = tree_of(attempt.judged)
    if attempt.gave_up or tree is False or not attempt.proved or not _reaches(tree):
        reason = attempt.gave_up or (f"outside the prover's reach: {attempt.left_out[0]}" if attempt.left_out else "")
        weak = bool(attempt.gave_up or attempt.obligations) or attempt.too_many_paths  # other gaps are not a matter of effort
        if weak and not attempt.unconfirmed and (applications := _applications(rule, effort)):
            if complaint := attempt.complaint or objection(rule, blank.facts, effort.seed, drawn):
                return replace(blank, failure="rounding", reason=complaint)
            return replace(blank, verdict="proved for these sizes", scope=applications, reason=reason, covers={"tree": False})
        verdict: Verdict = "unknown" if attempt.obligations or attempt.gave_up else "tested only"
        return replace(blank, verdict=verdict, reason=reason, failure="outside" if verdict == "tested only" else "")
    if attempt.unconfirmed:
        return blank
    complaint = attempt.complaint or objection(rule, blank.facts, effort.seed, drawn)
    if complaint:
        return replace(blank, failure="rounding", reason=complaint)
    verdict = "proved for these sizes" if attempt.obligations else "proved"
    family = family_of(rule) if attempt.any_function else None
    scope = _scope(attempt) + (f", as for any function in place of {family.op}" if family else "")
    return replace(blank, verdict=verdict, scope=scope, covers={"tree": tree})


def _examined(rule: Rule | MergeRule, attempt: Attempt) -> Difference | None:
    """Return a difference at an instance of an open case; count the open cases without an instance that is known to be equal."""
    if isinstance(rule, Rule) and rule.ranks is not None:
        return None
    for case in attempt.open:
        outcome = examined(rule, case, attempts_for(len(attempt.open)))
        if isinstance(outcome, Difference):
            return outcome
        attempt.unconfirmed += not outcome
    return None


def _general(rule: Rule | MergeRule, effort: Effort) -> Attempt:
    """Judge all cases, with functions of integers left opaque if that suffices, because their definitions fork every path.

    If nothing passes the guard at the usual ranks, higher ranks are tried. If there are too many paths, the highest ranks are removed.
    """
    if (shared := _shared(rule, effort)) is not None:
        return shared
    if isinstance(rule, Rule) and rule.ranks is not None:
        attempt = _attempt(rule, Fixed(opaque=True), effort)
        if not attempt.survey.opaque or (attempt.is_complete and attempt.broken is None and not attempt.left_out):
            return attempt
    attempt = _attempt(rule, None, effort)
    while attempt.too_many_paths and effort.ranks is None and max(attempt.survey.ranks, default=0) > LOWEST:
        attempt = _attempt(rule, Fixed(attempt.survey.ranks[:-1], attempt.survey.windowed), effort)
    nothing = not (attempt.proved or attempt.obligations or attempt.left_out or attempt.broken or attempt.gave_up)
    if nothing and effort.ranks is None and not (isinstance(rule, Rule) and rule.ranks is not None):
        return _attempt(rule, None, replace(effort, ranks=HIGHER))
    return attempt


_SHARED: dict[Hashable, Attempt | None] = {}
"""The cached proof of each family; None if the family has no proof."""


def _shared(rule: Rule | MergeRule, effort: Effort) -> Attempt | None:
    """Return the proof of the rule's family, from the cache or made now; None if there is none."""
    family = family_of(rule)
    if family is None:
        return None
    key = family.key, effort.ranks
    if key not in _SHARED:
        attempt = _attempt(family.rule, None, effort, family.op)
        holds = attempt.is_complete and attempt.broken is None and not (attempt.left_out or attempt.facts or attempt.complaint)
        while len(_SHARED) >= MOST_SHARED:
            _SHARED.pop(next(iter(_SHARED)))
        _SHARED[key] = replace(attempt, names=Names(), alike={}) if holds else None
    return _SHARED[key]


def _applications(rule: Rule | MergeRule, effort: Effort) -> str:
    """Return the scope of a rule if all its random applications are proved at their own sizes; '' if one is not."""
    instances = list(islice(draws(rule, effort.seed, effort.tries), effort.applications))
    proved = sum(not open_at(rule, instance.bindings) for instance in instances)
    return f"each application at its own sizes, as {proved} of {len(instances)} random ones" if proved == len(instances) > 0 else ""


def _reaches(tree: Any) -> bool:
    """Return whether the tree covers anything."""
    if isinstance(tree, bool | str):
        return tree is True
    return any(_reaches(subtree) for groups in tree.values() for _, subtree in groups)


def _has_windows(rule: Rule | MergeRule) -> bool:
    pattern = rule.pattern if isinstance(rule, Rule) else rule.member.pattern
    return any(op in repr(pattern) for op in ("Conv", "Pool"))


def _attempt(rule: Rule | MergeRule, fixed: Fixed | None, effort: Effort, any_function: str = "") -> Attempt:
    attempt = Attempt(any_function=any_function)
    try:
        with at_most(effort.general_work):
            _judge_all(rule, fixed, effort, attempt)
    except Exhausted:
        if effort.general_work == math.inf:
            raise
        attempt.gave_up = f"given up after {effort.general_work:,} units of work"
    except TooManyPaths as error:
        attempt.gave_up = str(error)
    except RecursionError:
        attempt.gave_up = "the conditions of a path are too deep to solve"
    return attempt


def _judge_all(rule: Rule | MergeRule, fixed: Fixed | None, effort: Effort, attempt: Attempt) -> None:
    """Judge the cases in order, until one is broken or too many stay open."""
    windowed = _has_windows(rule)
    for case in cases(rule, fixed, attempt.survey, effort.ranks):
        if windowed and not attempt.growth.goes_on(case.choices):
            break  # the first choice has a new value, so the ranks before it are complete
        if case.ill_typed or case.failure:
            if _model(case) is None:  # possibly no instance takes this path
                demand = f"the right side is well-typed: {case.ill_typed}" if case.ill_typed else f"no {case.failure}"
                attempt.obligations.append(Obligation(case.scope_note, demand, tuple(map(str, case.assumptions.conditions))))
                attempt.judged += ((choices, "open") for choices in case.all_choices)
                attempt.open.append(case)
                continue
            attempt.broken = case
            break
        attempt.ranks |= set((case.ranks or {}).values())
        before = len(attempt.alike)
        judgement = _judge(case, attempt, rule.rounding)
        attempt.judged += ((choices, judgement) for choices in case.all_choices)
        attempt.growth.count(case.choices, new=len(attempt.alike) > before)
        most = 1 if attempt.any_function else effort.open_cases if attempt.proved else min(OPEN_IF_NONE_PROVED, effort.open_cases)
        if len(attempt.obligations) >= most or (attempt.any_function and attempt.left_out):
            attempt.gave_up = f"given up after {most} open cases"
            break


def _judge(case: Case, attempt: Attempt, rounding: Rounding) -> bool | str:
    """Return True if a case is proved, otherwise the reason why not."""
    if case.left_out:
        attempt.too_many_paths = attempt.too_many_paths or case.scope_note == REST
        attempt.left_out.append(case.left_out)
        return case.left_out
    facts: set[str] = set(case.facts)
    if attempt.any_function and not all(map(only_moves, (*case.left, *case.right))):
        attempt.left_out.append("what computes more than a function of elements")
        return attempt.left_out[-1]
    if (general := generalised(case)) is not None:
        name = attempt.names.of(general.assumptions.conditions, general.left, general.right)
        if name not in attempt.alike and name not in attempt.special:
            needed = _facts_of(general, rounding)
            if needed is None:
                attempt.special.add(name)
            elif needed <= attempt.facts:  # otherwise the case is judged by itself, because it may need fewer facts
                _check_class(case, attempt, rounding)
                attempt.alike[name] = frozenset(facts) | needed
        if name in attempt.alike:
            return _is_proved(case, facts | attempt.alike[name], attempt)
    name = attempt.names.of(case.assumptions.conditions, case.left, case.right)
    if name in attempt.alike:
        return _is_proved(case, facts | attempt.alike[name], attempt)
    for left, right in zip(case.left, case.right, strict=True):
        if has_nan(left) or has_nan(right):
            if is_nan(left.body) and is_nan(right.body):
                continue
            attempt.obligations.append(Obligation(case.scope_note, "the sides are equal where a constant is NaN"))
            attempt.open.append(case)
            return "open"
        outcome = _compared(left, right, case)
        if isinstance(outcome, Open):
            if not case.assumptions.consistent():
                return True  # no instance takes this path
            attempt.obligations.append(Obligation(case.scope_note, outcome.obligation, tuple(map(str, outcome.conditions))))
            attempt.open.append(case)
            return "open"
        if outcome.facts - attempt.facts and _needs_facts(left, right, case):
            facts |= outcome.facts
        if rounding == "reassociates" and not facts - set(ONLY_ROUNDING) and _by_laws(left, right, case):
            facts.add(LAWS)
    _check_class(case, attempt, rounding)
    attempt.alike[name] = frozenset(facts)
    return _is_proved(case, facts, attempt)


def _needs_facts(left: Scope, right: Scope, case: Case) -> bool:
    """Return whether the proof that two sides are equal needs the laws of their functions."""
    return isinstance(prove_equal(forgotten(left), forgotten(right), case.assumptions), Open)


def _check_class(case: Case, attempt: Attempt, rounding: Rounding) -> None:
    """Record why a proved case is not in the rounding class that its rule states, unless that is known of an earlier case."""
    if not attempt.complaint and (sizes := case.assumptions.example(_symbols(case))) is not None:
        sides = [(left, right) for left, right in zip(case.left, case.right, strict=True)]
        if attempt.any_function:
            sides = [(applying(left, attempt.any_function), applying(right, attempt.any_function)) for left, right in sides]
        complaints = (case_objection(rounding, left, right, sizes) for left, right in sides)
        attempt.complaint = next(filter(None, complaints), "")


def _facts_of(general: Case, rounding: Rounding) -> frozenset[str] | None:
    """Return the facts that the proof of a generalisation rests on; None if there is no proof."""
    facts: frozenset[str] = frozenset()
    for left, right in zip(general.left, general.right, strict=True):
        outcome = _equal(left, right, general)
        if isinstance(outcome, Open):
            return None
        if outcome.facts and _needs_facts(left, right, general):
            facts |= outcome.facts
        if rounding == "reassociates" and _by_laws(left, right, general):
            facts |= {LAWS}
    return facts


def _is_proved(case: Case, facts: set[str], attempt: Attempt) -> bool:
    attempt.facts |= facts
    attempt.proved += 1
    attempt.same += case.same
    return True


def _compared(left: Scope, right: Scope, case: Case) -> Outcome:
    """Compare two sides; if that stays open or rests on facts, also compare them in other spellings."""
    outcome = _equal(left, right, case)
    if isinstance(outcome, Equal) and not outcome.facts:
        return outcome
    for first, second in rewritten(left, right):
        again = _equal(first, second, case)
        if isinstance(again, Equal) and (isinstance(outcome, Open) or again.facts < outcome.facts):
            outcome = again
    return outcome


def _equal(left: Scope, right: Scope, case: Case) -> Outcome:
    try:
        return prove_equal(left, right, case.assumptions)
    except EinsatError as error:
        return Open(error.what, case.assumptions.conditions)


def _by_laws(left: Scope, right: Scope, case: Case) -> bool:
    """Return whether the equality of two sides needs the laws of exponentials or logarithms."""
    if not applies(left, TRANSCENDENTAL) and not applies(right, TRANSCENDENTAL):
        return False
    first, second = (without_laws(side, TRANSCENDENTAL) for side in (left, right))
    return isinstance(prove_equal(first, second, case.assumptions), Open)


def _hard_failure(case: Case, blank: Proof) -> Proof:
    instance = ", ".join(f"{name} of shape {shape}" for name, shape in _instance(case).items())
    where = f" for {instance}" if instance else ""
    if case.failure:
        return replace(blank, verdict="refuted", failure="raises", reason=f"the rule raises {case.failure}{where} ({case.scope_note})")
    reason = f"a guard is missing: the left side is well-typed and the right side is not{where}: {case.ill_typed} ({case.scope_note})"
    return replace(blank, verdict="refuted", failure="missing guard", reason=reason)


def _model(case: Case) -> dict[Symbol, int] | None:
    return case.assumptions.model(_symbols(case))


def _instance(case: Case) -> dict[str, str]:
    """Return concrete shapes of the variables at which a case arises."""
    model = _model(case) or {}
    return {
        name: "(" + ", ".join(str(substitute(size, model)) for size in shape) + ("," if len(shape) == 1 else "") + ")"
        for name, shape in case.shapes.items()
    }


def _symbols(case: Case) -> list[Symbol]:
    sizes = (index(size) for shape in case.shapes.values() for size in shape)
    sides = (side for condition in case.assumptions.conditions for side in (condition.left, condition.right))
    symbols = {atom for value in chain(sizes, sides) for atom in atoms(value) if isinstance(atom, Symbol)}
    return sorted(symbols, key=lambda symbol: symbol.name)


def _never_applied(attempt: Attempt, blank: Proof) -> Proof:
    """Return the verdict on a rule that no random draw fits: vacuous if no symbolic case is left either."""
    reasons = "; ".join(f"{count} x {reason}" for reason, count in attempt.survey.refused.most_common(3))
    if not attempt.proved and not attempt.obligations:
        return replace(blank, verdict="refuted", failure="vacuous", reason=f"nothing passes the guard: {reasons or 'no case is left'}")
    return replace(blank, failure="vacuous", reason=f"no random draw passes the guard, so that no proof could be tested: {reasons}")


def _scope(attempt: Attempt) -> str:
    proved = [choices for choices, leaf in attempt.judged if leaf is True]
    if attempt.survey.pointwise:
        text = "all sizes and ranks"
    else:
        ranks = sorted(attempt.ranks)
        text = f"all sizes, ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"all sizes, rank {ranks[0]}" if ranks else "all sizes"
    sets = described({n: v for n, v in choices.items() if "[" in n} for choices in proved)
    text += f", {sets}" if sets else ""
    members = sorted({int(str(choices[MEMBERS])) for choices in proved if MEMBERS in choices})
    text += f", {members[0]} to {members[-1]} members" if members else ""
    missing = [f"{described([choices]) or 'some'} ({leaf})" for choices, leaf in attempt.judged if leaf is not True]
    return text + (f"; not {'; '.join(dict.fromkeys(missing[:3]))}{' ...' if len(missing) > 3 else ''}" if missing else "")
