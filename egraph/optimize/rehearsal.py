"""Run the chosen program as a standard model before it is compiled, to reject derived programs that lose digits on this model early.

The error of a fast convolution depends on its operands. Its transforms add up values of the size of its operands. If summands cancel and
the result is much smaller, their rounding error is large relative to it. Therefore the error that a derivation has on usual data is
multiplied by an amplification, measured in a run of the original for each product and convolution: the root mean squares of operand and
weights of a result, over the result's. Derived kernels whose expected error exceeds the tolerance are not offered.

This is an estimate. The chosen program is therefore run, too, by onnxruntime as the model that would be saved, on inputs that the check
begins with. If its outputs differ, the applications of derivations in it are bisected: the largest part of them that keeps the error small
is kept.

This requires to know which part of an e-graph derivations made, and where a program uses it. The part that rules alone made is found in the
larger e-graph by its terms. A class that rules alone can compute too, but that a program computes from derived classes, is an
*application*: without it, the class is computed as the rules would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from egraph.errors import CheckFailed
from egraph.optimize.blame import evaluate
from egraph.optimize.budget import timed
from egraph.optimize.check import compare
from egraph.optimize.check_noise import RunModel, open_exported
from egraph.optimize.folding import Folder
from egraph.policy import CheckPolicy
from egraph.tensor import Attributes, Candidate, ENode, FrozenEGraph, Graph, Node, Program, Selection
from egraph.tolerance import Tolerance

Term: TypeAlias = tuple[str, Attributes, tuple[int, ...]]
CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul")
"""Operators that programs are derived for; only operators that are fused with them lie between them and the stored class."""


@dataclass(frozen=True)
class DerivedPart:
    """The classes and e-nodes that rules alone made, in the numbers of the e-graph that derivations grew."""

    frozen: FrozenEGraph
    classes: frozenset[int]
    terms: frozenset[Term]
    errors: Mapping[str, float] = field(default_factory=dict)
    """Expected relative error of each derivation by its name."""

    def is_derived(self, candidate: Candidate) -> bool:
        """Return whether a kernel computes or reads a derived e-node."""
        return any(_term(node) not in self.terms for node in candidate.covered) or not self.classes.issuperset(candidate.operands)

    def error_of(self, candidate: Candidate) -> float | None:
        """Return the expected error of the derivations that a kernel comes from, or None if their names are not known."""
        return max((self.errors[rule] for node in candidate.covered for rule in node.rules if rule in self.errors), default=None)

    def applications(self, selection: Selection) -> dict[int, Candidate]:
        """Return the classes that a program computes from derived e-nodes although rules alone could, each with its kernel."""
        chosen = ((number, candidate) for number, candidate in selection.chosen.items() if number in self.classes)
        return {number: candidate for number, candidate in chosen if self.is_derived(candidate)}

    def contractions(self, number: int) -> frozenset[int]:
        """Return the classes of products and convolutions that a class is computed from by operators that are fused with them."""
        return frozenset(below for below in self._down_to_contractions(number) if self._is_contraction(below))

    @cached_property
    def sources(self) -> Mapping[int, tuple[Node, ...]]:
        """The nodes of the input program whose values a class holds, at most transposed or reshaped."""
        leader: dict[int, int] = {}

        def find(number: int) -> int:
            while leader.setdefault(number, number) != number:
                number = leader[number]
            return number

        for eclass, nodes in self.frozen.classes.items():
            for node in nodes:
                if node.op in ("Transpose", "Reshape") and _term(node) in self.terms:
                    leader[find(node.children[0])] = find(eclass)
        groups: dict[int, list[Node]] = {}
        for at, source in self.frozen.source.items():
            groups.setdefault(find(at), []).append(source)
        return {at: tuple(groups.get(find(at), ())) for at in self.frozen.classes}

    def without(
        self, candidates: Mapping[int, tuple[Candidate, ...]], left_out: Mapping[int, float]
    ) -> dict[int, tuple[Candidate, ...]]:
        """Return the candidates without derived ones of these classes whose expected error is at least the given one, or unknown.

        This includes all classes down to the product or convolution; otherwise the application would remain below the next bias.
        """
        limits: dict[int, float] = {}
        for number, error in left_out.items():
            for below in self._down_to_contractions(number):
                limits[below] = min(error, limits.get(below, error))

        def stays(number: int, candidate: Candidate) -> bool:
            if number not in limits or not self.is_derived(candidate):
                return True
            error = self.error_of(candidate)
            return error is not None and error < limits[number]

        return {number: tuple(candidate for candidate in options if stays(number, candidate)) for number, options in candidates.items()}

    def _is_contraction(self, number: int) -> bool:
        return any(node.op in CONTRACTIONS and _term(node) in self.terms for node in self.frozen.classes[number])

    def _down_to_contractions(self, number: int) -> tuple[int, ...]:
        reached, stack = {number: None}, [number]
        while stack:
            at = stack.pop()
            if self._is_contraction(at):
                continue
            for node in self.frozen.classes[at]:
                if _term(node) in self.terms:
                    new = [child for child in node.children if child not in reached and child not in self.frozen.leaves]
                    reached |= dict.fromkeys(new)
                    stack += new
        return tuple(reached)


def derived_part(by_rules: FrozenEGraph, frozen: FrozenEGraph, errors: Mapping[str, float] | None = None) -> DerivedPart:
    """Return the part that derivations added to the e-graph ``by_rules``, which has grown to ``frozen``."""
    class_of_term = {_term(node): number for number, nodes in frozen.classes.items() for node in nodes}
    numbers: dict[int, int] = {}
    terms: set[Term] = set()
    waiting = sorted(by_rules.classes, reverse=True)  # numbered from the roots: reversed, operands come first
    grown = True
    while grown:
        grown = False
        for old in waiting:
            for node in by_rules.classes[old]:
                if all(child in numbers for child in node.children):
                    term = (node.op, node.attributes, tuple(numbers[child] for child in node.children))
                    if term in class_of_term and term not in terms:
                        terms.add(term)
                        numbers.setdefault(old, class_of_term[term])
                        grown = True
    return DerivedPart(frozen, frozenset(numbers.values()), frozenset(terms), errors or {})


def _term(node: ENode) -> Term:
    return node.op, node.attributes, node.children


Sample: TypeAlias = tuple[Mapping[str, Any], Sequence[Any]]
"""Inputs, and the original model's outputs on them."""
OpenProgram: TypeAlias = Callable[[Program], AbstractContextManager[RunModel]]
"""Opens a program once to run it on all samples."""


@dataclass
class Rehearsal:
    """Compares programs with the original's outputs on a few inputs."""

    graph: Graph
    folder: Folder
    samples: Sequence[Sample]
    tolerance: Tolerance
    threads: int
    time_left: Callable[[], float] = lambda: math.inf
    open_seconds: float = 0.0
    """Approximate time to open a model and, below, to run it once."""
    run_seconds: float = 0.0
    opened: Callable[[float], None] = lambda seconds: None
    """Called with the seconds in which onnxruntime opened a program on a machine without other load."""
    errors: Callable[[], Mapping[str, float]] = dict
    """Returns the expected relative error of each derivation by its name."""
    notes: list[str] = field(default_factory=list)
    """Notes on the derived programs that were excluded."""
    policy: CheckPolicy = CheckPolicy()
    originals: Callable[[Node], Sequence[Node]] = lambda node: (node,)
    """Returns the nodes of the graph that a node of the outline stands for."""

    @property
    def seconds(self) -> float:
        """Return the approximate seconds of one rehearsal: a model is saved, opened and run on every sample."""
        return 2.0 * self.open_seconds + 2.0 * len(self.samples) * self.run_seconds

    def difference(self, program: Program, open_program: OpenProgram | None = None) -> str:
        """Return how a program's outputs differ by more than is accepted, or an empty text if they do not.

        ``open_program`` runs the program; by default it is run as a standard model.
        """
        part = Tolerance(self.policy.margin * self.tolerance.relative, self.policy.margin * self.tolerance.absolute)
        try:
            with (open_program or self.open_standard)(program) as run:
                for feeds, expected in self.samples:
                    for (name, _), expected_output, actual in zip(self.graph.outputs, expected, run(feeds), strict=True):
                        compare(expected_output, actual, part, where=f"output {name!r}")
        except CheckFailed as error:
            return error.what
        except Exception as error:  # onnxruntime raises a class a status
            return f"it does not run: {' '.join(str(error).split())}"
        return ""

    def expected_errors(self, part: DerivedPart, candidates: Mapping[int, tuple[Candidate, ...]]) -> dict[int, float]:
        """Return the classes with derived kernels that would lose too many digits, each with the least expected error of such kernels."""
        errors = {
            number: {error for candidate in options if part.is_derived(candidate) for error in [part.error_of(candidate)] if error}
            for number, options in candidates.items()
            if number in part.classes
        }
        below = {number: part.contractions(number) for number, each in errors.items() if each}
        sources = {at: [o for node in part.sources[at] for o in self.originals(node)] for numbers in below.values() for at in numbers}
        amplified = self.amplifications(dict.fromkeys(node for nodes in sources.values() for node in nodes))
        least_errors: dict[int, float] = {}
        for number, contractions in below.items():
            factor = max((amplified.get(node, 1.0) for at in contractions for node in sources[at]), default=1.0)
            too_large = [error for error in errors[number] if self.policy.layer * error * factor > self.tolerance.relative]
            if too_large:
                least_errors[number] = min(too_large)
        return least_errors

    def amplifications(self, nodes: Iterable[Node]) -> dict[Node, float]:
        """Return the factor by which results of products and convolutions are smaller, relative to their summands, than usual."""
        tapped: list[Node] = []
        size_bytes = 0
        for node in nodes:
            if node.op in CONTRACTIONS and node.inputs[1].op == "Constant" and node.type.is_static and node.inputs[0].type.is_static:
                size_bytes += node.type.size_bytes + node.inputs[0].type.size_bytes
                if size_bytes > self.policy.tapped_bytes:
                    break
                tapped.append(node)
        largest: dict[Node, float] = {}
        for feeds, _ in self.samples if tapped else ():
            values = evaluate(self.graph, [each for node in tapped for each in (node, node.inputs[0])], feeds, self.threads)
            values |= {node: np.asarray(feeds[node.string("name")]) for node in self.graph.inputs if node.string("name") in feeds}
            for node in tapped:
                x, w = node.inputs
                result, operand = _size(values[node]), _size(values[x]) if x in values else 0.0
                summed = operand * _norm(self.graph.tensors[w.string("digest")], node)
                if result > 0.0 and math.isfinite(summed):
                    largest[node] = max(largest.get(node, 1.0), summed / result)
        return largest

    def kept(self, applications: Sequence[int], differs: Callable[[frozenset[int]], str]) -> frozenset[int]:
        """Return the applications that may stay, of some that lose too many digits together: halves are added to harmless ones.

        ``differs`` returns how outputs differ if some of them are kept. Applications that there is no time to try are excluded.
        """

        def harmless_of(some: Sequence[int], harmless: frozenset[int]) -> frozenset[int]:
            if self.time_left() <= self.seconds:
                return frozenset()
            if not differs(harmless | frozenset(some)):
                return frozenset(some)
            return halved(some, harmless)

        def halved(some: Sequence[int], harmless: frozenset[int]) -> frozenset[int]:
            if len(some) < 2:
                return frozenset()
            middle = len(some) // 2
            first = harmless_of(some[:middle], harmless)
            return first | harmless_of(some[middle:], harmless | first)

        return halved(applications, frozenset())

    @contextmanager
    def open_standard(self, program: Program) -> Iterator[RunModel]:
        """Open the standard model of a program in onnxruntime."""
        session, quiet_seconds, _ = timed(partial(open_exported, self.folder.fold(program), self.threads))
        self.opened(quiet_seconds)
        yield lambda feeds: session.run(None, dict(feeds))


def _size(value: np.ndarray) -> float:
    """Return the root mean square of finite values."""
    finite = value[np.isfinite(value)].astype(np.float64) if value.dtype.kind == "f" else np.zeros(0)
    return float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0


def _norm(weights: np.ndarray, node: Node) -> float:
    """Return the Euclidean norm of the weights of one result, as the root mean square over results."""
    squares = float(np.sum(np.square(weights, dtype=np.float64)))
    match node.op:
        case "MatMul":
            results = weights.size // weights.shape[-2] if weights.ndim > 1 else 1
        case "Conv":
            results = weights.shape[0]
        case _:  # transposed: the second axis is the results of each group
            results = weights.shape[1] * node.integer("group")
    return math.sqrt(squares / max(1, results))
