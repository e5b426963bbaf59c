"""Store values between kernels in the precision that they are read in if that is measured to be faster.

A kernel that rounds its operands converts them in each run if they are stored in float32. If the kernel that computes a value writes it
rounded instead, in registers, no conversion is needed and half the bytes move. If every reader rounds the value anyway, the numbers are the
same: no error is added. A reader that does not round reads a rounded value. Such storage counts as an error of its own
(:mod:`lower.cost.rounding`). It is used as long as no program's error was found to be too large, and is dropped first.

Programs get storage after extraction. Their kernels with narrower operands and results are measured like all others, and storage is chosen
by the sum of measured times, not by estimates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from egraph.optimize.choice import program_digest
from egraph.tensor import ELEMENT_TYPES, PLAIN, Candidate, Kernel, Node, Program
from egraph.tensor.storage import fragment_with, is_moving, with_stored, without_stored
from lower.cost.model import FAILED_COST_US, CostModel
from lower.cost.rounding import stored_error
from lower.targets import Lowering

PRECISION = "bf16"
"""The precision that values are stored in."""
STORED = ELEMENT_TYPES[PRECISION]
TOGETHER = 3
"""Number of values of one kernel up to which every combination is measured; of more, all together and all but one are."""


@dataclass(frozen=True)
class Group:
    """Values that are stored alike because kernels only move them from one to the next."""

    values: frozenset[Node]
    error: float
    """The usual relative error that storing them adds."""


def groups(program: Program, lowering: Lowering) -> tuple[Group, ...]:
    """Return the values of a program that all their kernels can write and read in the narrower type, and that some kernel rounds to it."""
    tied: dict[Node, set[Node]] = {kernel.output: {kernel.output} for kernel in program.kernels}
    for kernel in program.kernels:
        if is_moving(kernel):
            for node in (each for each in kernel.inputs if each.type.dtype == PLAIN):
                union = tied.setdefault(node, {node}) | tied[kernel.output]
                tied.update(dict.fromkeys(union, union))
    made = {kernel.output for kernel in program.kernels}
    fixed = set(program.graph.roots)
    users_of = _users(program)
    storable: list[Group] = []
    for values in dict.fromkeys(frozenset(tied[kernel.output]) for kernel in program.kernels):
        if not values <= made or values & fixed or not all(map(_is_storable, values)):
            continue
        users = _using(users_of, values)
        read_in = [precision for kernel in users if not is_moving(kernel) for precision in _readings(kernel, values, lowering)]
        if PRECISION in read_in and not any(_reason(kernel, values, lowering) for kernel in users):
            storable.append(Group(values, stored_error(PRECISION, read_in)))
    return tuple(storable)


def _users(program: Program) -> dict[Node, list[Kernel]]:
    """Return the kernels that write or read each value."""
    users_of: dict[Node, list[Kernel]] = {}
    for kernel in program.kernels:
        for node in dict.fromkeys((*kernel.inputs, kernel.output)):
            users_of.setdefault(node, []).append(kernel)
    return users_of


def _using(users_of: Mapping[Node, Sequence[Kernel]], values: Iterable[Node]) -> list[Kernel]:
    """Return the kernels that write or read any of these values."""
    return list({kernel.output: kernel for node in values for kernel in users_of[node]}.values())


def _is_storable(node: Node) -> bool:
    return node.type.dtype == PLAIN and node.type.is_static


def _reason(kernel: Kernel, values: frozenset[Node], lowering: Lowering) -> str | None:
    """Return the reason why a kernel does not exist with these values stored, or None."""
    if kernel.implementation.is_view:
        return None
    readings = lowering.reads(fragment_with(kernel, values, STORED), kernel.implementation)
    return readings if isinstance(readings, str) else None


def _readings(kernel: Kernel, values: frozenset[Node], lowering: Lowering) -> list[str]:
    """Return the precisions that a kernel rounds those of its operands to that are among the values."""
    readings = lowering.reads(kernel.fragment, kernel.implementation)
    if isinstance(readings, str):
        return []
    return [each for i, node in enumerate(kernel.inputs) if node in values for each in sorted(readings[i])]


def with_rounded_weights(program: Program, lowering: Lowering) -> Program:
    """Return the program to compile: weights that all their kernels round are stored rounded in the artefact, in half the bytes.

    No kernel's time changes, because the library converts weights to a format of its own when a session is opened.
    """
    if not rounds(program):
        return program

    def is_rounded(node: Node, kernels: Sequence[Kernel]) -> bool:
        value = frozenset({node})
        readings = [_readings(kernel, value, lowering) for kernel in kernels if not _reason(kernel, value, lowering)]
        return len(readings) == len(kernels) and all(set(reading) == {PRECISION} for reading in readings)

    roots, users_of = set(program.graph.roots), _users(program)
    weights = {node: kernels for node, kernels in users_of.items() if node.op == "Constant" and _is_storable(node) and node not in roots}
    chosen = frozenset(node for node, kernels in weights.items() if is_rounded(node, kernels))
    return with_stored(program, chosen, STORED) if chosen else program


def extracted_digest(program: Program) -> str:
    """Return the digest of the extracted program, which does not depend on storage."""
    return program_digest(without_stored(program))


@dataclass
class Storage:
    """Decides which values programs of one run store in a narrower type."""

    lowering: Lowering
    is_exact: bool = False
    """Whether only storage without an error is allowed, because the error of a program was too large."""
    adds_error: set[str] = field(default_factory=set)
    """Digests of programs whose storage adds an error."""

    def candidates(self, programs: Iterable[Program], model: CostModel) -> list[Candidate]:
        """Return the kernels without a time that programs may use: first those with all values stored, then those with some."""
        whole: dict[Candidate, float] = {}
        parts: dict[Candidate, float] = {}
        for program in filter(rounds, programs):
            assignment = _Assignment(program, self._groups(program, model), model)
            for kernel in program.kernels:
                for values in assignment.variants(kernel):
                    one = Candidate(fragment_with(kernel, values, STORED), (), (), kernel.implementation)
                    if assignment.is_timed(kernel) and not model.is_settled(one):
                        (parts if values < assignment.all_values & assignment.touched(kernel) else whole)[one] = kernel.cost_us
        parts = {one: cost_us for one, cost_us in parts.items() if one not in whole}
        return [one for kind in (whole, parts) for one in sorted(kind, key=lambda one: (-kind[one], model.key(one)))]

    def applied(self, program: Program, model: CostModel) -> Program:
        """Return the program with the narrower storage that makes it fastest, by the measured times of its kernels."""
        if not rounds(program):
            return program
        assignment = _Assignment(program, self._groups(program, model), model)
        chosen = assignment.best()
        if not chosen:
            return program
        values = frozenset[Node]().union(*(group.values for group in chosen))
        result = with_stored(program, values, STORED, lambda kernel: assignment.cost_us(kernel, values))
        if any(group.error for group in chosen):
            self.adds_error.add(program_digest(result))
        return result

    def _groups(self, program: Program, model: CostModel) -> tuple[Group, ...]:
        """Return the groups that may be stored; if one adds an error, only while errors are neither too large nor counted by the model."""

        def is_accepted(group: Group) -> bool:
            return not self.is_exact and (model.errors is None or not model.errors.part_of(group.error))

        return tuple(group for group in groups(program, self.lowering) if not group.error or is_accepted(group))


def rounds(program: Program) -> bool:
    """Return whether kernels of a program round their operands to the precision that values may be stored in."""
    return any(kernel.implementation.precision == PRECISION for kernel in program.kernels)


class _Assignment:
    """The times of a program's kernels, by the values that are stored."""

    def __init__(self, program: Program, groups: tuple[Group, ...], model: CostModel) -> None:
        self.program, self.groups, self.model = program, groups, model
        self.all_values = frozenset[Node]().union(*(group.values for group in groups))
        users_of = _users(program)
        self._users = {group: _using(users_of, group.values) for group in groups}
        self._groups_of: dict[Node, list[Group]] = {}
        for group, kernels in self._users.items():
            for kernel in kernels:
                self._groups_of.setdefault(kernel.output, []).append(group)
        self._costs_us: dict[tuple[Node, frozenset[Node]], float] = {}

    def touched(self, kernel: Kernel) -> frozenset[Node]:
        return frozenset((*kernel.inputs, kernel.output)) & self.all_values

    def is_timed(self, kernel: Kernel) -> bool:
        """Return whether a kernel has a time of its own: it is not free, and does not write in place."""
        return not kernel.implementation.is_free and kernel.cost_us > 0

    def variants(self, kernel: Kernel) -> list[frozenset[Node]]:
        """Return the sets of stored values that a kernel is tried with."""
        together = [self.touched(kernel) & group.values for group in self._groups_of.get(kernel.output, ())]
        few = range(1, len(together) + 1) if len(together) <= TOGETHER else range(len(together) - 1, len(together) + 1)
        return [frozenset[Node]().union(*chosen) for count in few for chosen in itertools.combinations(together, count)]

    def cost_us(self, kernel: Kernel, values: frozenset[Node]) -> float:
        """Return the time of a kernel with these values stored, or a prohibitive one if it was not measured."""
        key = kernel.output, values & self.touched(kernel)
        if key not in self._costs_us:
            self._costs_us[key] = self._measured_us(kernel, key[1])
        return self._costs_us[key]

    def _measured_us(self, kernel: Kernel, values: frozenset[Node]) -> float:
        if not values or not self.is_timed(kernel):
            return kernel.cost_us
        candidate = Candidate(fragment_with(kernel, values, STORED), (), (), kernel.implementation)
        record = self.model.record(candidate)
        return self.model.cost_us(candidate) if record is not None and record.status == "ok" else FAILED_COST_US

    def best(self) -> tuple[Group, ...]:
        """Return the groups with the least sum of times: the better of two descents, from all groups and from none."""
        descended = [self._descended(frozenset(start)) for start in (self.groups, ())]
        least = min(descended, key=lambda chosen: (self._total_us(chosen), len(chosen)))
        return tuple(group for group in self.groups if group in least)

    def _descended(self, chosen: frozenset[Group]) -> frozenset[Group]:
        is_better = True
        while is_better:
            is_better = False
            for group in self.groups:
                other = chosen ^ {group}
                if self._sum_us(self._users[group], other) < self._sum_us(self._users[group], chosen):
                    chosen, is_better = other, True
        return chosen

    def _total_us(self, chosen: frozenset[Group]) -> float:
        return self._sum_us([kernel for kernel in self.program.kernels if self.touched(kernel)], chosen)

    def _sum_us(self, kernels: Sequence[Kernel], chosen: frozenset[Group]) -> float:
        values = frozenset[Node]().union(*(group.values for group in chosen))
        return sum(self.cost_us(kernel, values) for kernel in kernels)
