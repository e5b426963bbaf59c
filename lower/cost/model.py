"""The cost of a kernel: its measured median if the profile database has one, an estimate otherwise.

Estimates only rank kernels that are not measured yet. Extraction is repeated until everything that it chose has been measured (or time is
up), so a wrong estimate costs a measurement and not a wrong choice. Kernels around one costly operator are a family: they take about the
same time, whatever is fused above it. So do kernels of attention of the same sizes. A kernel with a measured relative is estimated by it,
corrected by the operands that it reads besides; every other kernel by its arithmetic and its bytes. If measured contractions are faster
than expected, because the machine was slow when it was calibrated, their rate is raised.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from egraph.policy import CostPolicy
from egraph.tensor import PLAIN, Candidate, Implementation, Kernel, Node, Program, Target, format_fragment, renumbered, walk
from egraph.tensor.ops import OPS
from egraph.tensor.ops.movement import joins_outermost
from egraph.tensor.ops.stitch import stitch_of
from lower.cost.prior import IGNORANT, Prior
from lower.cost.rounding import EXPECTED_SHARE, ErrorModel
from lower.filling import box_window, filling, whole_below
from lower.roofline import DeviceSpeed, Work
from lower.roofline import work as count_work
from lower.targets import default_target, lowering_for
from lower.views import Reason, Window, contiguous
from runtime.profile import Database, Record
from runtime.profile.tables import PLAN_MARK
from runtime.profile.versions import LEAST_FROM_MEMORY_BYTES, from_memory, in_place

FAILED_COST_US = 1e9
"""The cost of a kernel that cannot be run, in microseconds."""

KernelKey: TypeAlias = tuple[str, str]
"""Fragment text and implementation: the key of a measurement."""
Offered: TypeAlias = Mapping[int, tuple[Candidate, ...]]
"""Candidates by class."""
Family: TypeAlias = tuple[Implementation, Hashable, tuple[object, ...]]
"""Implementation, the costly operator over what it reads, and the transposes above it; or its library's criterion instead of these two."""

CHEAP = ("elementwise", "view", "movement")
LEAST_FLOPS = 1e7
"""Operations from which a contraction's time tells the rate of the device."""
LEAST_CHANGE = 1.1
"""Least factor by which the rate of contractions changes, because all estimates are then computed again."""


def key_of(candidate: Candidate) -> KernelKey:
    return format_fragment(candidate.fragment), candidate.implementation.text


@dataclass
class CostModel:
    """Prices candidates for one device. Texts and work of fragments are cached, because pricing is repeated often."""

    database: Database
    device: str
    speed: DeviceSpeed
    weights_from_memory: bool = False
    """Whether the model's weights are too large for the shared cache; kernels are then timed with their constants outside of it."""
    caution: float = 1.0
    """The factor by which estimates are multiplied: above 1, a measured kernel is preferred to an estimated one."""
    model: str = ""
    """The name of the model whose programs are priced, because a kernel may cost more inside of them than it does alone."""
    target: Target = field(default_factory=default_target)
    """The target that the candidates are code for."""
    policy: CostPolicy = CostPolicy()
    prior: Prior = IGNORANT
    """The prior of the ratio of an unmeasured kernel's time to its roofline; ``IGNORANT`` for a device that is not timed."""
    errors: ErrorModel | None = None
    """The error model; None if no kernel rounds its operands, or if any error is accepted."""

    def __post_init__(self) -> None:
        self._lowering = lowering_for(self.target)
        self._keys: dict[tuple[Node, Implementation], KernelKey] = {}
        self._work: dict[Node, Work] = {}
        self._constants_bytes: dict[Node, int] = {}
        self._records: dict[KernelKey, Record | None] = {}
        self._planned: dict[tuple[Node, Implementation], Implementation] = {}
        self._in_place: dict[KernelKey, Record | None] = {}
        self._families: dict[tuple[Node, Implementation], Family | None] = {}
        self._learned: set[KernelKey] = set()
        """The kernels whose times already enter the estimates of others."""
        self._relatives: dict[Family, dict[KernelKey, tuple[int, float]]] = {}
        self._ratios: dict[int, dict[KernelKey, float]] = {}
        """Ratios of measured to expected times of kernels, by the bit length of the number of bytes that they move."""
        self._filled: dict[tuple[Node, Implementation, Window | Reason], float] = {}
        self._shares: dict[str, dict[KernelKey, float]] = {}
        """Ratios of measured times to times in float32, by implementation: products of three parts may be fast where convolutions are
        slow."""
        self._exact: dict[str, float] = {}
        """The time in float32 of each fragment's fastest measured kernel, in microseconds."""
        self._expected: dict[tuple[Node, Implementation], tuple[DeviceSpeed, float]] = {}
        self._calibrated = self.speed
        self._contracted: dict[KernelKey, float] = {}
        """Ratios of measured to expected times of contractions, by the calibrated speed and the prior."""

    def speculative(self) -> CostModel:
        """Return a model that knows all that this one does; no other model or run sees the records that are filed in it."""
        other = replace(self, database=self.database.scratch())
        other._keys, other._work, other._families, other._expected = self._keys, self._work, self._families, self._expected
        other._constants_bytes = self._constants_bytes
        return other

    def key(self, candidate: Candidate) -> KernelKey:
        part = (candidate.fragment, candidate.implementation)
        if part not in self._keys:
            self._keys[part] = key_of(candidate)
        return self._keys[part]

    def device_of(self, fragment: Node) -> str:
        """Return the device and manner of timing under which a fragment's measurements are filed."""
        return from_memory(self.device) if self.reads_memory(fragment) else self.device

    def code_digest(self, candidate: Candidate) -> str:
        """Return a hash of what a kernel's time depends on; '' if its code is not ours."""
        return self._lowering.code_digest(candidate.fragment, candidate.implementation)

    def recorded(self, device: str, candidate: Candidate) -> Record | None:
        """Return the database's record of a kernel."""
        if not self.database.has_times(device, *self.key(candidate)):
            return None  # computing the digest of its code may take milliseconds
        return self.database.get(device, *self.key(candidate), self.code_digest(candidate))

    def reads_memory(self, fragment: Node) -> bool:
        """Return whether a fragment is timed with its constants in no cache."""
        if not self.weights_from_memory:
            return False
        if fragment not in self._constants_bytes:
            self._constants_bytes[fragment] = _constants_bytes(fragment)
        return self._constants_bytes[fragment] >= LEAST_FROM_MEMORY_BYTES

    def record(self, candidate: Candidate) -> Record | None:
        key = self.key(candidate)
        if key not in self._records:
            self._records[key] = self.recorded(self.device_of(candidate.fragment), candidate)
        filed = self._records[key]
        if filed is not None and filed.median_us is not None and key not in self._learned:
            self._learn(candidate, key, filed.median_us)
        return filed

    def _learn(self, candidate: Candidate, key: KernelKey, median_us: float) -> None:
        """Update the estimates of other kernels by this kernel's time."""
        amount, precision = self.work(candidate.fragment), candidate.implementation.precision
        if self._tells_rate(candidate):
            factor = self.prior.factor(candidate.fragment, candidate.implementation.text, amount)
            self._contracted[key] = median_us / (factor * self._calibrated.kernel_us(candidate, amount))
            self._correct_rate()
        if (of := self.family(candidate)) is not None:
            self._relatives.setdefault(of, {})[key] = amount.size_bytes, median_us
        elif candidate.implementation.is_generated:
            self._ratios.setdefault(amount.size_bytes.bit_length(), {})[key] = median_us / self.expected_us(candidate)
        if precision == PLAIN:
            self._exact[key[0]] = min(median_us, self._exact.get(key[0], math.inf))
        else:
            exact = self.record(_exact(candidate))
            if exact is None or not exact.median_us:
                return  # the share is learned once the exact kernel is timed, too
            self._shares.setdefault(candidate.implementation.with_plan("").name, {})[key] = median_us / exact.median_us
        self._learned.add(key)

    def _tells_rate(self, candidate: Candidate) -> bool:
        """Return whether a kernel's time tells the rate of contractions: it is large, in float32, and not onnxruntime's."""
        amount, implementation = self.work(candidate.fragment), candidate.implementation
        is_large = amount.contracts and amount.flops >= LEAST_FLOPS and self._lowering.speed is None
        return is_large and implementation.precision == PLAIN and not implementation.is_opaque

    def _correct_rate(self) -> None:
        """Raise the calibrated rate of contractions as far as the median of the measured ones is faster than expected."""
        if len(self._contracted) >= self.policy.enough_alike:
            rate = self._calibrated.contraction_gigaflops_s / min(1.0, statistics.median(self._contracted.values()))
            if abs(math.log(rate / self.speed.contraction_gigaflops_s)) > math.log(LEAST_CHANGE):
                self.speed = replace(self.speed, contraction_gigaflops_s=rate)

    def expected_us(self, candidate: Candidate) -> float:
        """Return the expected time of a kernel before it is measured: its roofline times the factor of the prior."""
        part = (candidate.fragment, candidate.implementation)
        speed, expected_us = self._expected.get(part, (None, 0.0))
        if speed is not self.speed:
            amount = self.work(candidate.fragment)
            factor = self.prior.factor(candidate.fragment, candidate.implementation.text, amount)
            expected_us = self.speed.kernel_us(candidate, amount) * max(1.0, factor * self.policy.optimism)
            self._expected[part] = self.speed, expected_us
        return expected_us

    def family(self, candidate: Candidate) -> Family | None:
        """Return the family of a kernel of a library or around an expression; None for others, whose loops depend on all they compute."""
        part = (candidate.fragment, candidate.implementation)
        if part not in self._families:
            library = self._lowering.library_of(candidate.implementation)
            if library is not None and (of_library := library.family(candidate.fragment)) is not None:
                self._families[part] = candidate.implementation, of_library, ()
            else:
                has_one = candidate.implementation.is_library or any(node.op == "Expression" for node in walk((candidate.fragment,)))
                self._families[part] = family(candidate) if has_one else None
        return self._families[part]

    def is_settled(self, candidate: Candidate) -> bool:
        """Return whether a measurement would add nothing: it is measured, free, runs in place, or cannot be run alone."""
        unmeasured = candidate.implementation.is_free or is_stitch(candidate) or not is_measurable(candidate.fragment)
        return unmeasured or self.record(candidate) is not None

    def by_fastest_plan(self, candidate: Candidate) -> Candidate:
        """Return a library's kernel with the fastest measured plan of its library, else with the library's own choice."""
        library = self._lowering.library_of(candidate.implementation)
        if library is None or not library.has_plans:
            return candidate
        part = (candidate.fragment, candidate.implementation)
        if part not in self._planned:
            fragment, text = self.key(candidate)
            fastest = self.database.get(self.device_of(candidate.fragment), fragment, f"{text}{PLAN_MARK}", self.code_digest(candidate))
            plan = fastest.message if fastest is not None and fastest.status == "ok" else ""
            self._planned[part] = candidate.implementation.with_plan(plan) if plan else candidate.implementation
        planned = self._planned[part]
        return candidate if planned is candidate.implementation else replace(candidate, implementation=planned)

    def is_wrong(self, candidate: Candidate) -> bool:
        record = None if candidate.implementation.is_free else self.record(candidate)
        return record is not None and record.status == "wrong"

    def file(self, record: Record) -> None:
        """Keep a record and price by it from now on."""
        self.database.put(record)
        key = record.fragment, record.implementation
        self._records[key] = record
        self._learned.discard(key)

    def in_place(self, candidate: Candidate) -> Record | None:
        """Return the time of a kernel inside a program for this model, if it was found to differ from its time alone."""
        key = self.key(candidate)
        if self.model and key not in self._in_place:
            self._in_place[key] = self.recorded(in_place(self.device_of(candidate.fragment), self.model), candidate)
        return self._in_place.get(key)

    def file_in_place(self, candidate: Candidate, times_us: tuple[float, ...]) -> None:
        """Price a kernel by its time inside programs for this model, now and in later runs."""
        key = self.key(candidate)
        device = in_place(self.device_of(candidate.fragment), self.model)
        record = Record(device, *key, "ok", times_us, generator=self.code_digest(candidate))
        self.database.put(record)
        self._in_place[key] = record

    def cost_us(self, candidate: Candidate) -> float:
        """Return the measured median, a prohibitive cost if the kernel failed or hung, else the estimate."""
        if candidate.implementation.is_free:
            return 0.0
        if (inside := self.in_place(candidate)) is not None and inside.median_us is not None:
            return inside.median_us
        record = self.record(candidate)
        if record is None:
            return self.estimate_us(candidate) * self._caution_about(candidate)
        return record.median_us if record.median_us is not None else FAILED_COST_US

    def stitched_us(self, candidate: Candidate, candidates: Offered) -> tuple[float, Mapping[tuple[int, Candidate], float]]:
        """Return the time to get the parts of a stitch to where they stand in its whole, and the additional time of kernels of parts.

        The least time of any kernel of a part is the stitch's. Additional time of another kernel, such as a copy, is that kernel's own.
        """
        stitch, type = stitch_of(candidate.fragment), candidate.fragment.type
        assert stitch is not None
        stitched_us, more_us = 0.0, dict[tuple[int, Candidate], float]()
        for operand, box in stitch.parts:
            window, bytes_each = box_window(contiguous(type.sizes), box), type.size_bytes // type.elements
            least_us, of_part = self._filled_us(candidate.operands[operand], window, bytes_each, candidates, frozenset())
            stitched_us += least_us
            more_us |= of_part
        return stitched_us, more_us

    def _filled_us(
        self, number: int, window: Window | Reason, bytes_each: int, candidates: Offered, above: frozenset[int]
    ) -> tuple[float, dict[tuple[int, Candidate], float]]:
        """Return the least time to get a class into a window of a larger tensor, and the additional time of each of its kernels."""
        each_us, more_us = dict[Candidate, float](), dict[tuple[int, Candidate], float]()
        copy_us = self.speed.copy_us(0 if isinstance(window, str) else math.prod(window.shape) * bytes_each)
        for made in candidates.get(number, ()):
            each_us[made] = copy_us
            if not made.implementation.is_free:
                kernel = Kernel(made.fragment, (), made.fragment, made.implementation)
                inside = window if isinstance(window, str) else window.reshape(made.fragment.type.sizes)
                each_us[made] = self._filling_us(kernel, inside)
            elif not isinstance(window, str) and (below := whole_below(made.fragment)) is not None and made.operands[0] not in above:
                inside = window.reshape(below.type.sizes)
                each_us[made], beside = self._filled_us(made.operands[0], inside, bytes_each, candidates, above | {number})
                more_us |= beside
        least_us = min(each_us.values(), default=copy_us)
        return least_us, more_us | {(number, made): us - least_us for made, us in each_us.items() if us > least_us}

    def _filling_us(self, kernel: Kernel, window: Window | Reason) -> float:
        key = kernel.fragment, kernel.implementation, window
        if key not in self._filled:
            self._filled[key] = filling(kernel, window, self._lowering.library_writes, self.speed).more_us
        return self._filled[key]

    def program_us(self, program: Program) -> float:
        """Return the predicted time of a run of a program: its kernels, and the call."""
        return program.cost_us + self.speed.call_us

    def _caution_about(self, candidate: Candidate) -> float:
        """Return the caution; more for libraries and onnxruntime, whose reference implementations may be thousands of times slower."""
        implementation = candidate.implementation
        return self.caution**self.policy.library_caution if implementation.is_library or implementation.is_opaque else self.caution

    def estimate_us(self, candidate: Candidate) -> float:
        """Return an estimate: the time of the measured relative whose bytes are nearest, else by the roofline.

        If generated kernels of about the size proved faster than the roofline says (their operands stay in a cache that it does not know),
        the estimate follows them, so that possible fusions are tried instead of being discarded for measured kernels.
        """
        amount = self.work(candidate.fragment)
        of = self.family(candidate)
        relatives = self._relatives.get(of) if of is not None else None
        if not relatives:
            implementation = candidate.implementation
            if implementation.precision != PLAIN and (exact_us := self._exact_us(candidate)) is not None:
                return exact_us * self._expected_share(implementation)
            faster = self._faster_than_estimated(amount) if implementation.is_generated else 1.0
            return self.expected_us(candidate) * (self.policy.opaque if implementation.is_opaque else faster)
        key = min(relatives, key=lambda relative: (abs(relatives[relative][0] - amount.size_bytes), relative))
        size_bytes, time_us = relatives[key]
        moving_us = (amount.size_bytes - size_bytes) / (self.speed.memory_gigabytes_s * 1e3)
        return max(self.policy.least_of_relative * time_us, time_us + moving_us)

    def _exact_us(self, candidate: Candidate) -> float | None:
        """Return the time of a kernel in float32: its own, a relative's, or that of other implementations; None if none is known."""
        exact = _exact(candidate)
        record = self.record(exact)
        if record is not None:
            return record.median_us
        return self.estimate_us(exact) if self.has_relatives(exact) else self._exact.get(self.key(exact)[0])

    def _expected_share(self, implementation: Implementation) -> float:
        """Return the expected ratio of a kernel's time to its time in float32, by measured kernels of the implementation."""
        measured = self._shares.get(implementation.with_plan("").name, {}).values()
        return statistics.median(measured) if len(measured) >= self.policy.enough_alike else EXPECTED_SHARE[implementation.precision]

    def _faster_than_estimated(self, amount: Work) -> float:
        order = amount.size_bytes.bit_length()
        alike = [ratio for near in (order - 1, order, order + 1) for ratio in self._ratios.get(near, {}).values()]
        return min(1.0, statistics.median(alike)) if len(alike) >= self.policy.enough_alike else 1.0

    def work(self, fragment: Node) -> Work:
        if fragment not in self._work:
            self._work[fragment] = count_work(fragment)
        return self._work[fragment]

    def has_relatives(self, candidate: Candidate) -> bool:
        """Return whether another kernel of the same family is measured."""
        of = self.family(candidate)
        return of is not None and bool(self._relatives.get(of))

    def look_up(self, candidates: Mapping[int, tuple[Candidate, ...]]) -> None:
        """Read the records of all candidates, so that every estimate is made from all relatives."""
        for options in candidates.values():
            for candidate in options:
                if not candidate.implementation.is_free:
                    self.record(candidate)

    def price(
        self, candidates: Mapping[int, tuple[Candidate, ...]], uses: Mapping[int, int] | None = None
    ) -> dict[int, tuple[Candidate, ...]]:
        """Return the candidates with their costs, without those whose results are known to be wrong.

        A spare candidate costs as if it failed, unless all others of its class do. The additional time to get a part of a stitch into its
        box, beyond that of the part's best kernel, is added to its kernel's cost. ``uses``: how many equal blocks of the model compute a
        class, if more than one. Times add up, and so do the squares of errors.
        """
        self.look_up(candidates)
        if self.errors:
            self.errors.look_up()
        joined = joined_for_free(candidates)
        stitched_us: dict[tuple[int, Candidate], float] = {}
        beside_us: dict[tuple[int, Candidate], float] = {}
        for number, options in candidates.items():
            for candidate in options:
                if is_in_place(candidate, candidates):
                    stitched_us[number, candidate], of_parts = self.stitched_us(candidate, candidates)
                    beside_us |= {part: max(us, beside_us.get(part, 0.0)) for part, us in of_parts.items()}
        priced: dict[int, tuple[Candidate, ...]] = {}
        for number, options in candidates.items():
            planned = [(self.by_fastest_plan(option), option) for option in options]
            planned = [pair for pair in planned if not self.is_wrong(pair[0])]
            right = [candidate for candidate, _ in planned]
            costs_us = [
                0.0
                if joined and (number, candidate) in joined
                else stitched_us[number, option]
                if stitched_us and (number, option) in stitched_us
                else self.cost_us(candidate) + (beside_us.get((number, option), 0.0) if beside_us else 0.0)
                for candidate, option in planned
            ]
            is_needed = all(candidate.is_spare or cost_us >= FAILED_COST_US for candidate, cost_us in zip(right, costs_us, strict=True))
            count = uses.get(number, 1) if uses else 1
            priced[number] = tuple(
                replace(
                    candidate,
                    cost_us=FAILED_COST_US if candidate.is_spare and not is_needed else count * cost_us,
                    error=count * self.errors.part(candidate) if self.errors else 0.0,
                )
                for candidate, cost_us in zip(right, costs_us, strict=True)
            )
        return priced


def _exact(candidate: Candidate) -> Candidate:
    """Return the same kernel in float32."""
    return replace(candidate, implementation=candidate.implementation.in_precision(PLAIN))


def without_twins(model: CostModel, candidates: Mapping[int, tuple[Candidate, ...]]) -> dict[int, tuple[Candidate, ...]]:
    """Keep the candidate with the least arithmetic among those that read the same operands by the same implementation.

    They differ in the way their fragment is written (transposes that cancel, a layout attribute), not in what runs.
    """

    def effort(candidate: Candidate) -> tuple[float, int, KernelKey]:
        return model.work(candidate.fragment).flops, len(candidate.covered), model.key(candidate)

    kept: dict[int, tuple[Candidate, ...]] = {}
    for number, options in candidates.items():
        groups: dict[tuple[tuple[int, ...], Implementation], list[Candidate]] = {}
        for candidate in options:
            groups.setdefault((tuple(sorted(candidate.operands)), candidate.implementation), []).append(candidate)
        kept[number] = tuple(min(group, key=effort) if len(group) > 1 else group[0] for group in groups.values())
    return kept


def jobs(model: CostModel, candidates: Mapping[int, tuple[Candidate, ...]]) -> list[Candidate]:
    """List library candidates to measure, the largest estimates first: the plainest of each family without a time.

    Families that are hopeless beside a measured rival are skipped; everything else is measured only when extraction chooses it.
    """
    model.look_up(candidates)
    plainest: dict[Family | KernelKey, tuple[tuple[int, KernelKey], Candidate]] = {}
    for options in candidates.values():
        launched = (candidate for candidate in options if not candidate.implementation.is_free)
        priced = (candidate for candidate in launched if model.record(candidate) or model.has_relatives(candidate))
        best = min(map(model.cost_us, priced), default=float("inf"))
        for candidate in options:
            if not candidate.implementation.is_library or model.is_settled(candidate) or model.has_relatives(candidate):
                continue
            if model.estimate_us(candidate) <= model.policy.hopeless * best:
                key = model.key(candidate)
                rank = (len(candidate.covered), key)
                group = model.family(candidate) or key
                if group not in plainest or rank < plainest[group][0]:
                    plainest[group] = (rank, candidate)
    chosen = [candidate for _, candidate in plainest.values()]
    return sorted(chosen, key=lambda candidate: (-model.estimate_us(candidate), model.key(candidate)))


def _constants_bytes(fragment: Node) -> int:
    constants = (node for node in walk((fragment,)) if node.op == "Placeholder" and node.attribute("constant"))
    return sum(node.type.size_bytes for node in constants if node.type.is_static)


def is_measurable(fragment: Node) -> bool:
    """Return whether a kernel can be run alone. Opaque nodes and unknown sizes cannot, and cost the same in every program."""
    return fragment.op != "Opaque" and all(node.type.is_static for node in walk((fragment,)))


def unmeasured(model: CostModel, chosen: Iterable[Candidate]) -> list[Candidate]:
    """List the distinct chosen candidates that have no measurement yet, the most expensive estimates first."""
    missing = {model.key(candidate): candidate for candidate in chosen if not model.is_settled(candidate)}
    return [candidate for _, candidate in sorted(missing.items(), key=lambda item: (-model.estimate_us(item[1]), item[0]))]


def joined_for_free(candidates: Mapping[int, tuple[Candidate, ...]]) -> set[tuple[int, Candidate]]:
    """Return the candidates, with their classes, that need no step of their own: their parts are written where they will stand.

    ``lower.placement`` does so for values made by kernels, each of which stands in one concatenation. If one concatenation is a part of
    another, the parts of the inner one stand in both for free, as long as the outer one reads the inner one, not its parts.
    """
    joining = {number: [candidate for candidate in options if is_joining(candidate)] for number, options in candidates.items()}
    readers: dict[int, set[int]] = {}
    for number, options in joining.items():
        for candidate in options:
            for part in candidate.operands:
                readers.setdefault(part, set()).add(number)
    parts_of = {number: {part for candidate in options for part in candidate.operands} for number, options in joining.items()}
    innermost = {part: {candidate for candidate in joined if parts_of[candidate].isdisjoint(joined)} for part, joined in readers.items()}
    made = {number for number, options in candidates.items() if any(not candidate.implementation.is_free for candidate in options)}
    return {
        (number, candidate)
        for number, options in joining.items()
        for candidate in options
        if all(part in made and innermost[part] == {number} for part in candidate.operands)
    }


def is_joining(candidate: Candidate) -> bool:
    """Return whether a kernel is a concatenation of distinct operands along the outermost axis, and nothing else."""
    fragment = candidate.fragment
    return joins_outermost(fragment) and len(set(fragment.inputs)) == len(fragment.inputs) == len(set(candidate.operands))


def is_stitch(candidate: Candidate) -> bool:
    """Return whether a kernel only puts parts into boxes of a whole."""
    return candidate.implementation.is_generated and stitch_of(candidate.fragment) is not None


def is_in_place(candidate: Candidate, candidates: Mapping[int, tuple[Candidate, ...]]) -> bool:
    """Return whether ``lower.placement`` can write the parts of a stitch over its whole: the whole is computed, and all operands differ."""
    stitch = stitch_of(candidate.fragment) if is_stitch(candidate) else None
    if stitch is None or len(set(candidate.operands)) != len(candidate.operands):
        return False
    return candidate.operands[stitch.background] in candidates


def family(candidate: Candidate) -> Family | None:
    """Return the family of a candidate: its last costly operator with all below it; None if no such operator is above all others."""
    nodes = [node for node in walk((candidate.fragment,)) if node.op != "Placeholder"]
    costly = [node for node in nodes if node.op not in OPS or OPS[node.op].category not in CHEAP]
    last = next((node for node in costly if set(walk((node,))).issuperset(costly)), None)
    if last is None:
        return None
    below = set(walk((last,)))
    moved = tuple(node.attributes for node in nodes if node.op == "Transpose" and node not in below)
    return candidate.implementation, renumbered(last)[0], moved
