"""The choice of a search from its e-graphs: selections, their programs, and a text from which the same search can be repeated."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from egraph.engine.saturate import Saturation
from egraph.optimize.outcome import Refused
from egraph.optimize.outline import Outline
from egraph.optimize.records import Earlier
from egraph.tensor import PLAIN, FrozenEGraph, Program, Selection, format_fragment
from egraph.tensor.text import TextError, format_selection, parse_selections
from lower.cost.model import CostModel


@dataclass(frozen=True)
class Mixed:
    """A selection that rounds, except for some kernels, which are chosen one by one in the model's program, not for all equal blocks."""

    selection: Selection
    returned: Mapping[int, tuple[str, float]]
    """The precision that these kernels return to and their time in it in microseconds, by position in the program."""
    is_by_rules: bool = False
    """Whether the selection is from the rules' e-graph."""

    def program(self, saturation: Saturation, outline: Outline) -> Program:
        """Return the program with these kernels in the precisions that they return to."""
        frozen = saturation.by_rules if self.is_by_rules else saturation.frozen
        assert frozen is not None
        program = outline.program(frozen, self.selection)
        kernels, more_us = list(program.kernels), list[float]()
        for position, (precision, cost_us) in self.returned.items():
            kernel = kernels[position]
            kernels[position] = replace(kernel, implementation=kernel.implementation.in_precision(precision), cost_us=cost_us)
            more_us.append(cost_us - kernel.cost_us)
        return replace(program, kernels=tuple(kernels), cost_us=program.cost_us + math.fsum(more_us))


@dataclass(frozen=True)
class Choice:
    """The selections from an e-graph, in order of predicted time."""

    selections: tuple[Selection, ...]
    """Empty if there was no time for derived programs."""
    by_rules: tuple[Selection, ...] = ()
    """The best selection from the rules' e-graph, if derivations ran."""
    refused: tuple[Refused, ...] = ()
    extract_seconds: float = 0.0
    kernels_unmeasured: int = 0
    """Number of chosen kernels without a measured time, if the search could measure."""
    is_earlier: bool = False
    """Whether an earlier search chose it."""
    mixed: Mixed | None = None

    @property
    def best(self) -> Selection:
        """Return the selection that is predicted to be the best."""
        return (self.selections or self.by_rules)[0]


def program_digest(program: Program) -> str:
    """Return a hash of the outputs and kernels of a program."""
    parts = [f"{name}={node.digest}" for name, node in program.graph.outputs]
    for kernel in program.kernels:
        operands = ",".join(node.digest for node in kernel.inputs)
        parts.append(f"{kernel.implementation}|{format_fragment(kernel.fragment)}|{operands}|{kernel.output.digest}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def programs_of(choice: Choice, saturation: Saturation, outline: Outline, finalists: int) -> tuple[Program, ...]:
    """Return the ``finalists`` best programs of a choice."""
    programs = [outline.program(saturation.frozen, selection) for selection in choice.selections]
    if choice.mixed:
        programs = sorted([choice.mixed.program(saturation, outline), *programs], key=lambda program: program.cost_us)
    programs += [outline.program(saturation.by_rules, selection) for selection in choice.by_rules if saturation.by_rules]
    return contending(programs, len(choice.by_rules), finalists)


def contending(candidates: Sequence[Program], by_rules: int, most: int) -> tuple[Program, ...]:
    """Return ``most`` distinct programs. Those by rules, the last ``by_rules`` candidates, are kept unless only the cheapest fits.

    One that does not round is kept if there is one. The programs by rules come first if they are cheaper than all others and only they
    round.
    """
    programs: dict[str, Program] = {}
    for program in candidates:
        programs.setdefault(program_digest(program), program)
    last = [program for program in candidates[len(candidates) - by_rules :] if program in programs.values()]
    remaining = [program for program in programs.values() if program not in last]
    if most == 1:
        return (min(programs.values(), key=lambda program: program.cost_us),)
    kept, others = remaining[: most - len(last)], remaining[most - len(last) :]
    if len(kept) > 1 and not any(map(_is_exact, (*kept, *last))):
        kept[-1:] = [next(filter(_is_exact, others), kept[-1])]
    if last and not _is_exact(last[0]) and all(_is_exact(program) and program.cost_us > last[0].cost_us for program in kept):
        return (*last, *kept)
    return (*kept, *last)


def _is_exact(program: Program) -> bool:
    return all(kernel.implementation.precision == PLAIN for kernel in program.kernels)


def choice_text(choice: Choice) -> str:
    """Return the choice as text for the profile database."""
    texts: list[object] = ["".join(map(format_selection, selections)) for selections in (choice.selections, choice.by_rules)]
    if mixed := choice.mixed:
        texts += [format_selection(mixed.selection), sorted((at, *returned) for at, returned in mixed.returned.items()), mixed.is_by_rules]
    return json.dumps(texts)


def read_selections(text: str, frozen: FrozenEGraph, model: CostModel) -> tuple[Selection, ...]:
    """Return the selections of a text, or none if it does not fit the e-graph or a kernel has proved wrong since.

    The same model, rules and options grow the same e-graph, so a choice can be restored without candidates and prices.
    """
    try:
        selections = parse_selections(text, frozen)
    except (TextError, TypeError):
        return ()  # written by another version, or the e-graph grew differently: search again
    return () if any(model.is_wrong(candidate) for selection in selections for candidate in selection.chosen.values()) else selections


def read_choice(earlier: Earlier, saturation: Saturation, model: CostModel) -> Choice | None:
    """Return the choice of an earlier search, or None if it does not fit any more."""
    try:
        text, by_rules_text, *mixed_texts = json.loads(earlier.choices)
    except (ValueError, TypeError):
        return None
    selections = read_selections(text, saturation.frozen, model) if text else ()
    by_rules = read_selections(by_rules_text, saturation.by_rules, model) if saturation.by_rules else ()
    mixed: Mixed | None = None
    if mixed_texts:
        whole_text, returned, *place = mixed_texts
        frozen = saturation.by_rules if any(place) else saturation.frozen
        if frozen is None or not (whole := read_selections(whole_text, frozen, model)):
            return None
        try:
            mixed = Mixed(whole[0], {at: (precision, cost_us) for at, precision, cost_us in returned}, any(place))
        except ValueError:
            return None  # written by another version
    is_whole = (selections or not text) and (by_rules or not by_rules_text)
    return Choice(selections, by_rules, earlier.refused, is_earlier=True, mixed=mixed) if is_whole else None
