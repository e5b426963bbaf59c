"""What programs are extracted from, and extracted from again without what proves to be wrong or to lose digits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from egraph.extract import extract, to_program
from egraph.optimize.chooser import Chooser
from egraph.optimize.derived_part import DerivedPart
from egraph.optimize.rehearsal import Rehearsal, RunProgram
from egraph.tensor import Candidate, Graph, Selection
from lower.cost.model import without_twins


@dataclass
class Space:
    """The candidates of an e-graph, less what was left out, and how one chooses among them."""

    everything: Chooser
    first: Chooser | None
    """What rules alone made, where derivations made more."""
    part: DerivedPart | None
    laid: Mapping[int, tuple[Candidate, ...]]
    left_out: dict[int, float] = field(default_factory=dict)
    """Classes whose derived kernels are left out that expect as large an error, or a larger one."""

    def leave_out(self, errors: Mapping[int, float]) -> None:
        """Leave out the derived kernels of these classes that expect such errors, beside those that are left out already."""
        self.left_out |= {number: min(error, self.left_out.get(number, error)) for number, error in errors.items()}
        self.everything.candidates = self._offered(self.left_out)
        self.everything.settled = ()

    def chosen_without(self, errors: Mapping[int, float]) -> Selection:
        """Return what greed chooses where these are left out besides."""
        model, chooser = self.everything.model, self.everything
        more = {number: min(error, self.left_out.get(number, error)) for number, error in errors.items()}
        priced = model.price(self._offered(self.left_out | more))
        (selection,) = extract(chooser.frozen, priced, 1, 0.0, chooser.seed, chooser.budget.policy.extract)
        return selection

    def rehearse(self, graph: Graph, rehearsal: Rehearsal, chosen: Sequence[Selection] = (), run: RunProgram | None = None) -> bool:
        """Leave out the applications of derivations that lose digits in what is ``chosen``, or by greed; return whether there are any.

        Where rules alone would lose as many, nothing is left out.
        """
        if self.part is None:
            return False
        frozen, changed = self.everything.frozen, False
        for number in range(rehearsal.policy.bisections):
            if rehearsal.time_left() <= rehearsal.seconds:
                break
            selection = chosen[0] if chosen and not changed else self.everything.choose(1, greedy=True)[0]
            applications = self.part.applications(selection)
            reason = applications and rehearsal.difference(to_program(frozen, selection, graph), run)
            if not reason:
                break

            def differs(kept: frozenset[int], every: Iterable[int] = applications.keys()) -> str:
                program = to_program(frozen, self.chosen_without({at: 0.0 for at in every if at not in kept}), graph)
                return rehearsal.difference(program, run)

            if differs(frozenset()):
                break
            errors = {at: self.part.error_of(one) or 0.0 for at, one in applications.items()}
            kept = rehearsal.kept(sorted(errors, key=lambda at: (errors[at], at)), differs)
            lost = [at for at in errors if at not in kept]
            names = sorted({rule for at in lost for node in applications[at].covered for rule in node.rules if rule in self.part.errors})
            rehearsal.told.append(f"{len(lost)} of {len(errors)} uses of derived programs are left out ({', '.join(names)}): {reason}")
            # At last whatever is derived there is left out, not only what expects as large an error.
            is_last = number + 1 == rehearsal.policy.bisections
            self.leave_out({at: 0.0 if is_last else errors[at] for at in lost})
            changed = True
        return changed

    def _offered(self, left_out: Mapping[int, float]) -> dict[int, tuple[Candidate, ...]]:
        assert self.part is not None
        return without_twins(self.everything.model, self.part.without(self.laid, left_out))
