"""Derive programs, and let the gate judge each: a derived program enters the e-graph if it is proved equal at its own sizes.

Derived programs are kept in the profile database, with a hash of the sources that they depend on, so programs of the same operator, in any
model, are derived once. Verdicts are stored with the proofs instead, because these outlive a derivation that time cut short.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from egraph.derive.derivation import AnyRule, GroupRule, Step
from egraph.engine.applications import BROKEN, RuleStatistics
from egraph.engine.deriving import Derivations, Judged, Stop, signature
from egraph.errors import EinsatError
from egraph.optimize.admission import VALIDATED
from egraph.optimize.gate import Gate, sources_key
from egraph.optimize.outcome import Derived, Offered, RuleUse
from egraph.rewrite.clock import OutOfTime
from egraph.tensor import Kernel, Node, format_fragment, walk
from egraph.tensor.text import TextError, parse_fragment
from egraph.tolerance import Tolerance
from runtime.profile import DerivationRow


@dataclass(eq=False)
class Deriver:
    """Derives programs, has them judged, and caches them; ``open`` returns the derivations for an e-graph."""

    rules: tuple[AnyRule, ...]
    gate: Gate = field(default_factory=Gate)
    tolerance: Tolerance = field(default_factory=Tolerance)
    seconds: float = 0.0
    judged: dict[tuple[str, str], tuple[Judged, ...]] = field(default_factory=dict)
    """The programs known so far, by the rule's name and the operator's signature."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Names of derivations that are not used any more because a program with them failed its check, with the reasons."""

    def open(self) -> Derivations:
        return Derivations(self.rules, self.programs)

    def programs(self, rule: AnyRule, roots: Sequence[Node], stop: Stop = lambda: False) -> tuple[Judged, ...]:
        """Return the programs that ``rule`` derives for operators over shared placeholders, each with a reason if it may not be used.

        Alternatives follow one another, each with one program per root. A derivation that ``stop`` ends returns nothing and is not kept.
        """
        key = rule.name, signature(roots)
        if key not in self.judged:
            started = time.thread_time()
            try:
                judged = self._read(rule, roots, key)
                is_new = judged is None
                judged = self._derive(rule, roots, stop) if judged is None else judged
            except OutOfTime:
                return ()  # within a proof
            finally:
                spent_seconds = time.thread_time() - started
                self.seconds += spent_seconds
            if is_new:
                if stop():
                    return ()  # cut short: neither used nor kept, because another run may have more time
                programs = json.dumps(list(map(_to_json, cycle(roots), judged)), separators=(",", ":"))
                self.gate.database.put(DerivationRow(*key, sources_key(), spent_seconds, programs))
            self.judged[key] = tuple(map(self._tolerated, judged))
        return tuple(replace(one, reason=one.reason or self.left_out.get(one.name, "")) for one in self.judged[key])

    def decisive(self) -> tuple[str, ...]:
        """Return the settings that, besides the operators, decide which programs are derived."""
        names = [rule.name for rule in self.rules]
        return (*names, *sorted(self.left_out), f"{self.tolerance.relative:g}") if names else ()

    def leave_out(self, names: Iterable[str], reason: str) -> tuple[str, ...]:
        """Stop using derivations of these names; return the names that are those of derivations."""
        known = {each.name for judged in self.judged.values() for each in judged}
        dropped = tuple(name for name in dict.fromkeys(names) if name in known)
        self.left_out |= dict.fromkeys(dropped, reason)
        return dropped

    def errors(self) -> dict[str, float]:
        """Return the expected relative error of derived programs, by the names of derivations."""
        error_by_name: dict[str, float] = {}
        for programs in self.judged.values():
            for program in programs:
                error_by_name[program.name] = max(program.error_bound, error_by_name.get(program.name, 0.0))
        return error_by_name

    def uses(self, kernels: Sequence[Kernel]) -> tuple[RuleUse, ...]:
        """Return the derivations that kernels come from, one entry per name, those with most kernels first."""
        rounding = {rule.name: rule.rounding for rule in self.rules}
        by_name = {each.name: rule for (rule, _), judged in self.judged.items() for each in judged}
        counts = {name: sum(name in kernel.rules for kernel in kernels) for name in sorted(by_name)}
        used = sorted((name for name in counts if counts[name]), key=lambda name: (-counts[name], name))
        return tuple(
            RuleUse(name, VALIDATED, counts[name], f"a program that {by_name[name]} derives", rounding[by_name[name]])
            for name in used
        )

    def offered(self, statistics: Sequence[RuleStatistics], *, is_compared: bool) -> Offered:
        """Return the number of derived programs in an e-graph."""
        names = {rule.name for rule in self.rules}
        return Offered(sum(each.unions for each in statistics if each.rule in names), is_compared)

    def derived(self, kernels: Sequence[Kernel]) -> tuple[Derived, ...]:
        """Return the derivations that kernels come from: their name is among the kernel's, and they compute a node of its fragment."""
        inside = [{(node.op, node.attributes, node.type) for node in walk((kernel.fragment,))} for kernel in kernels]
        group_names = {rule.name for rule in self.rules if isinstance(rule, GroupRule)}
        rows = []
        for (rule, operator), programs in sorted(self.judged.items()):
            one_for_all = rule in group_names and len(programs) > 1
            for roots in [programs] if one_for_all else [(one,) for one in programs]:
                one, built = roots[0], walk(one.program for one in roots)
                computed = {(node.op, node.attributes, node.type) for node in built if node.op != "Placeholder"}
                at = tuple(k for k, kernel in enumerate(kernels) if one.name in kernel.rules and computed & inside[k])
                if at and not any(one.reason for one in roots):
                    steps = tuple((step.rule, step.text) for each in roots for step in each.steps)
                    rows.append(Derived(one.name, rule, operator, steps, at))
        return tuple(rows)

    def _tolerated(self, judged: Judged) -> Judged:
        if judged.reason or judged.error_bound <= self.tolerance.relative:
            return judged
        expected, accepted = f"{judged.error_bound:.1g}", f"{self.tolerance.relative:g}"
        return replace(judged, reason=f"the error to expect, {expected}, is above the tolerance {accepted} (--tolerance)")

    def _derive(self, rule: AnyRule, roots: Sequence[Node], stop: Stop) -> tuple[Judged, ...]:
        judged: dict[tuple[Node, ...], tuple[Judged, ...]] = {}
        failure = rule.NOTHING
        try:
            for alternative in rule.alternatives(roots):
                failure = ""
                if stop():
                    break
                programs = tuple(derivation.program for derivation in alternative)
                if programs not in judged:
                    judged[programs] = tuple(
                        Judged(one.name, one.program, one.steps, self._objection(rule, root, one.program), one.error_bound)
                        for root, one in zip(roots, alternative, strict=True)
                    )
        except (EinsatError, RecursionError, *BROKEN) as error:
            failure = f"deriving failed: {type(error).__name__}: {error}"
        if failure:
            judged[tuple(roots)] = tuple(Judged(rule.name, root, (), failure) for root in roots)
        return tuple(one for alternative in judged.values() for one in alternative)

    def _objection(self, rule: AnyRule, root: Node, program: Node) -> str:
        return self.gate.judge((root,), (program,), rule.rounding).reason

    def _read(self, rule: AnyRule, roots: Sequence[Node], key: tuple[str, str]) -> tuple[Judged, ...] | None:
        row = self.gate.database.find(DerivationRow, *key)
        if row is None or row.sources != sources_key():
            return None
        try:
            judged = tuple(map(_from_json, json.loads(row.programs)))
        except (ValueError, KeyError, TypeError, TextError):
            return None  # damaged, or of another version: derive again
        return tuple(
            replace(one, reason=one.reason or self._objection(rule, root, one.program))
            for root, one in zip(cycle(roots), judged, strict=False)
        )


def _to_json(root: Node, judged: Judged) -> dict[str, Any]:
    steps = [[step.rule, step.text] for step in judged.steps]
    reason = judged.reason if judged.program is root else ""  # why nothing was derived; a program's verdict is with its proof
    values = {"name": judged.name, "program": format_fragment(judged.program), "steps": steps}
    return {**values, "reason": reason, "error_bound": judged.error_bound}


def _from_json(raw: dict[str, Any]) -> Judged:
    steps = tuple(Step(rule, text) for rule, text in raw["steps"])
    return Judged(raw["name"], parse_fragment(raw["program"]), steps, raw["reason"], raw["error_bound"])
