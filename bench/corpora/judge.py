"""Judge entries of corpora: refute by random tests, prove, and find the precondition under which a false entry is true.

An entry is first judged as it stands. If its right side may be ill-typed, it is judged as the systems apply it: only
where the right side is well-typed. A false entry is tried under its candidate preconditions, and the first that holds is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from random import Random
from typing import Any, Literal, TypeAlias

from bench.corpora.entries import Entry, Expected, Reading, renamed
from egraph.errors import EinsatError, TypeMismatch
from egraph.rule import Binding, Mismatch, Rule, Tensor
from egraph.tensor import placeholder
from verify.proof import Proof
from verify.random_binding import Refused
from verify.random_testing import Instance, check_rule, compare, draws

Decision: TypeAlias = Literal[
    "proved", "proved where the right side is well-typed", "proved under a precondition", "refuted", "tested only", "unknown",
    "not expressible",
]  # fmt: skip
Prover: TypeAlias = Callable[[Rule], Proof]
OPEN = ("tested only", "unknown", "not expressible")
"""Decisions that neither prove nor refute."""
SOUND = ("proved", "proved where the right side is well-typed", "proved under a precondition", "tested only")
MISSING = "the right side may be ill-typed"


@dataclass(frozen=True)
class Pains:
    """How much is tried: random instances of a rule, draws for them, draws for a search of ill-typed right sides, guards tried.

    With a prover, a few draws come first: a proof shows that right sides are well-typed, and the other draws are for rules without one.
    """

    tests: int = 6
    tries: int = 400
    typing: int = 40
    typing_first: int = 8
    guards: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Judgement:
    """The verdict on an entry."""

    entry: Entry
    decision: Decision
    reason: str = ""
    """A counterexample, the first open obligation, or why it is not expressible."""
    guard: str = ""
    """The precondition under which a refuted entry was proved (or tested, without a prover)."""
    note: str = ""
    seconds: float = 0.0
    tests: int = 0
    repeats: str = ""
    """An earlier entry that says the same."""

    @property
    def agrees(self) -> bool | None:
        """Whether the decision is the corpus's own; None if either has none."""
        sound = {**dict.fromkeys(SOUND, True), "refuted": False}
        if self.entry.expected is None or self.decision not in sound:
            return None
        if self.entry.conditional:
            return self.decision == "refuted" or bool(self.guard)
        expected: Expected = "sound" if sound[self.decision] else "unsound"
        return expected == self.entry.expected

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return {
            "id": self.entry.name, "statement": self.entry.text, "verdict": self.decision, "corpus_verdict": self.entry.claim,
            "agrees": self.agrees, "guard": self.guard, "note": self.note, "reason": self.reason, "seconds": round(self.seconds, 4),
            "tests": self.tests, "repeats": self.repeats,
        }  # fmt: skip


def judge_all(entries: Iterable[Entry], prover: Prover | None, pains: Pains = Pains()) -> Iterator[Judgement]:
    """Yield the verdicts on entries in their order; entries that say the same, up to the names of variables, are judged once."""
    judgements: dict[str, Judgement] = {}
    for entry in entries:
        start = time.process_time()
        said = entry.meaning
        same = judgements.get(said)
        if same is None:
            judgement = judge(entry, prover, pains)
            if said:
                judgements[said] = judgement
        else:
            guard = renamed(same.guard, dict(zip(same.entry.names, entry.names, strict=True)))
            judgement = replace(same, entry=entry, guard=guard, repeats=same.entry.name, seconds=time.process_time() - start)
        yield judgement


def judge(entry: Entry, prover: Prover | None, pains: Pains = Pains()) -> Judgement:
    """Return the verdict on an entry: its first reading that is proved, else the first reading's."""
    start = time.process_time()
    first: Judgement | None = None
    passes = (replace(pains, guards=0), pains) if len(entry.readings) > 1 else (pains,)  # what needs no precondition comes first
    for current, reading in product(passes, entry.readings):
        judgement = _judge(entry, reading, prover, current)
        if first is None or judgement.decision in SOUND or (judgement.guard and not first.guard):
            first = judgement
        if judgement.decision in SOUND:
            break
    if first is None:
        return Judgement(entry, "not expressible", entry.reason)
    return Judgement(**{**first.__dict__, "seconds": time.process_time() - start})


def _judge(entry: Entry, reading: Reading, prover: Prover | None, pains: Pains) -> Judgement:
    rules = reading.rules(False, ())
    tests = 0
    for rule in rules:
        result = check_rule(rule, pains.seed, pains.tests, pains.tries)
        tests += result.cases
        if result.failures:
            return _refuted(entry, reading, f"{rule.name}:\n{result.failures[0]}", prover, pains, tests)
        if not result.cases and _ill_typed(rule, pains, 0, pains.typing):
            return _refuted(entry, reading, f"{rule.name}: no draw has a right side of the left side's type", prover, pains, tests)
        if not result.cases:
            return Judgement(entry, "unknown", str(result), note=reading.note)
    few = pains.typing_first if prover else pains.typing
    typed = any(_ill_typed(rule, pains, 0, few) for rule in rules)
    facts: set[str] = set()
    stays = "" if typed else _stays(rules, prover, facts)
    if stays and stays != MISSING and any(_ill_typed(rule, pains, few, pains.typing) for rule in rules):
        stays = MISSING
    if typed or stays == MISSING:
        typed, rules = True, reading.rules(True, ())
        stays = _stays(rules, prover, facts)
    if stays and prover:
        for rule in rules:  # a false rule that few tests did not find
            result = check_rule(rule, pains.seed + 1, 10 * pains.tests, 10 * pains.tries)
            if result.failures:
                return _refuted(entry, reading, f"{rule.name}:\n{result.failures[0]}", prover, pains, tests)
    key = (reading.given, "the right side is well-typed" if typed else "", *sorted(facts))
    guard = " and ".join(each for each in key if each)
    if stays:
        return Judgement(entry, "unknown" if prover else "tested only", stays, guard, reading.note, tests=tests)
    decision: Decision = "proved where the right side is well-typed" if typed else "proved"
    return Judgement(entry, "proved under a precondition" if reading.given else decision, "", guard, reading.note, tests=tests)


def _refuted(entry: Entry, reading: Reading, reason: str, prover: Prover | None, pains: Pains, tests: int) -> Judgement:
    guard = _guard(reading, prover, pains)
    decision: Decision = "proved under a precondition" if entry.open and guard and prover else "refuted"
    return Judgement(entry, decision, reason, guard, reading.note, tests=tests)


def _stays(rules: Sequence[Rule], prover: Prover | None, facts: set[str] | None = None) -> str:
    """Return what stays open of the first rule that is not proved, '' if all are; add what the proofs assume to ``facts``."""
    if prover is None:
        return "no prover was asked"
    for rule in rules:
        proof = prover(rule)
        if proof.failure == "missing guard":
            return MISSING
        if facts is not None:
            facts |= proof.facts
        if proof.verdict != "proved" and proof.failure != "same sides":  # a rule that changes nothing holds
            return f"{rule.name}: {' '.join((proof.reason or proof.verdict, *(o.text for o in proof.obligations[:1])))}"
    return ""


def _guard(reading: Reading, prover: Prover | None, pains: Pains) -> str:
    """Return the first candidate precondition under which the reading holds."""
    pools: tuple[Pool, ...] = ()
    for guard in reading.candidates[: pains.guards]:
        pools = pools or tuple(Pool(rule, pains) for rule in reading.rules(True, ()))
        rules = reading.rules(True, (guard,))
        passed = all(pool.passes(rule) for pool, rule in zip(pools, rules, strict=True))
        if passed and (prover is None or not _stays(rules, prover)):
            return guard.text
    return ""


class Pool:
    """Random instances of a rule, drawn and compared once, to test the rule under one precondition after another."""

    def __init__(self, rule: Rule, pains: Pains) -> None:
        self.pains, self._random = pains, Random(f"{rule.name} {pains.seed} preconditions")
        self._instances = draws(rule, pains.seed, pains.tries)
        self._drawn: list[Instance] = []
        self._equal: dict[int, bool | None] = {}

    def passes(self, rule: Rule) -> bool:
        """Return whether the rule, under another precondition, holds on all instances that meet it, and some do."""
        done = 0
        for position in count():
            if done == 2 * self.pains.tests:
                break
            instance = self._instance(position)
            if instance is None:
                break
            try:
                rule.apply(instance.bindings[0])
            except (TypeMismatch, Mismatch):
                continue
            holds = self._holds(position, instance)
            if holds is False:
                return False
            done += holds is not None
        return done > 0

    def _instance(self, position: int) -> Instance | None:
        if position == len(self._drawn):
            instance = next(self._instances, None)
            if instance is None:
                return None
            self._drawn.append(instance)
        return self._drawn[position]

    def _holds(self, position: int, instance: Instance) -> bool | None:
        """Return whether the sides agree; None if nothing can be compared."""
        if position not in self._equal:
            try:
                _, difference = compare(instance, self._random.getrandbits(32), "positive" if position % 2 else "signed", bits=False)
                self._equal[position] = difference is None
            except (EinsatError, Refused):
                self._equal[position] = None
        return self._equal[position]


def _ill_typed(rule: Rule, pains: Pains, first: int, last: int) -> bool:
    """Return whether some of the random draws find a well-typed left side whose right side is not, or has another type."""
    random = Random(f"{rule.name} {pains.seed} {first} types")
    for _ in range(first, last):
        try:
            binding = rule.draw(random) if rule.draw else None
        except Refused:
            continue
        if binding is not None and not right_fits(rule, binding):
            return True
    return False


def right_fits(rule: Rule, binding: Binding) -> bool:
    """Return whether the right side is well-typed and has the left side's type, where the rule applies."""
    operands = {v.name: Tensor(placeholder(i, binding.types[v.name], constant=v.constant)) for i, v in enumerate(rule.variables)}
    lefts: list[Tensor] = []
    try:
        left, right = rule.law.sides(operands, on_left=lefts.append)
        return bool(right.type == left.type)
    except Mismatch:
        return True
    except TypeMismatch:
        return not lefts
