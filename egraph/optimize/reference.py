"""The original model in onnxruntime: its inputs and outputs, and the comparison of programs with it.

A user's inputs are read and checked before the search and give open sizes. Programs are compared and timed on them first. The original's
outputs from before the search are kept, because the check begins with the same inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from egraph.errors import CheckFailed, ModelError
from egraph.onnx import importer
from egraph.onnx.importer import ImportResult
from egraph.onnx.importer.halves import UNIT_ROUNDOFF
from egraph.optimize.blame import Blame
from egraph.optimize.budget import slowdown_of, timed
from egraph.optimize.check import VALUES, CheckResult, NoInputs, check, compare, find_feeds, open_original, refuse_if_random
from egraph.optimize.check_noise import IN_MEMORY_BYTES, RunModel, Unoptimised, run_in_float64
from egraph.optimize.options import Options
from egraph.optimize.rehearsal import Sample
from egraph.tensor import Graph, walk
from egraph.tolerance import Tolerance
from runtime.errors import InvalidArgument
from runtime.feeds import FeedSpec, random_feeds
from runtime.input_file import Declared, read_inputs, sizes_text

MOST_ROUNDINGS = 32.0
"""Largest difference of a model's outputs in 16 bits from those in float32, in unit roundoffs, relative to the largest output."""


AGAIN_SECONDS = 1.0
"""If the first run takes less, a second one is timed, because the first one also allocates memory."""


class Answers:
    """A cache of the outputs of runs by their inputs."""

    def __init__(self) -> None:
        self._outputs: dict[str, Sequence[Any]] = {}

    def keep(self, feeds: Mapping[str, Any], outputs: Sequence[Any]) -> None:
        """Store the outputs of a run."""
        self._outputs[digest(feeds)] = outputs

    def of(self, feeds: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return the outputs for these inputs, or None if they are not known."""
        return self._outputs.get(digest(feeds)) if self._outputs else None


def digest(feeds: Mapping[str, Any]) -> str:
    """Return a hash of the names, types and values of inputs."""
    content = hashlib.sha256()
    for name, value in sorted(feeds.items()):
        array = np.asarray(value)
        content.update(f"{name} {array.dtype} {array.shape}:".encode())
        content.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).view(np.uint8).data)
    return content.hexdigest()


def remembering(run: RunModel) -> RunModel:
    """Return a model run with a cache of outputs, because programs are compared on the same inputs before the race and in the check."""
    answers = Answers()

    def answered(feeds: Mapping[str, Any]) -> Sequence[Any]:
        if (outputs := answers.of(feeds)) is None:
            outputs = run(feeds)
            answers.keep(feeds, outputs)
        return outputs

    return answered


Ran: TypeAlias = Callable[[Mapping[str, Any], Sequence[Any]], None]


@dataclass(frozen=True)
class Given:
    """The inputs of files, in the order of the command line."""

    files: tuple[Path, ...] = ()
    feeds: tuple[Mapping[str, np.ndarray], ...] = field(default=(), repr=False)

    @property
    def named(self) -> tuple[tuple[str, Mapping[str, np.ndarray]], ...]:
        """Each input with its name."""
        return tuple((path.name, feeds) for path, feeds in zip(self.files, self.feeds, strict=True))

    @property
    def raced(self) -> tuple[str, str]:
        """The path and the digest of the first inputs, on which programs are timed; empty if there are none."""
        return (str(self.files[0].absolute()), digest(self.feeds[0])) if self.files else ("", "")

    @property
    def key(self) -> str:
        """A digest of all inputs; empty if there are none."""
        return hashlib.sha256(" ".join(map(digest, self.feeds)).encode()).hexdigest()[:32] if self.feeds else ""


def read(options: Options, tell: Callable[[str], None]) -> tuple[Options, ImportResult, Given]:
    """Read the model and the user's inputs; these give the sizes that the model and ``--shape`` leave open."""
    imported, user_inputs = importer.load(options.model, shapes=options.shapes), Given()
    if options.inputs:
        user_inputs = read_given(options.inputs, imported.graph, is_fixed=bool(options.shapes))
        sizes = open_sizes(user_inputs, imported.graph)
        if sizes:
            options = replace(options, shapes={**options.shapes, **sizes})
            imported = importer.load(options.model, shapes=options.shapes)
            flags = " ".join(f"--shape {name}:{','.join(map(str, shape))}" for name, shape in sizes.items())
            note = f"sizes that the model leaves open are those of {user_inputs.files[0].name}: {flags}"
            imported = replace(imported, notes=(*imported.notes, note))
    for text in (*imported.notes, *imported.hints):
        tell(text)
    return options, imported, user_inputs


def read_given(paths: Sequence[Path], graph: Graph, *, is_fixed: bool) -> Given:
    """Read files of inputs for a graph; raises ModelError if one does not fit the graph or the others. ``is_fixed``: by ``--shape``."""
    declared = [Declared(node.string("name"), node.type.dtype, node.type.shape) for node in graph.inputs]
    fix = "save arrays of these sizes" + (", or leave --shape out: the file's sizes are taken then" if is_fixed else "")
    try:
        user_inputs = Given(tuple(paths), tuple(read_inputs(path, declared, shape_fix=fix) for path in paths))
    except InvalidArgument as error:
        raise ModelError(error.what, where=f"--inputs {error.where}", fix=error.fix) from error
    first = user_inputs.feeds[0]
    for path, feeds in zip(paths, user_inputs.feeds, strict=True):
        for name, array in feeds.items():
            if array.shape != first[name].shape:
                raise ModelError(
                    f"the input {name!r} is {sizes_text(first[name].shape)} in {paths[0].name} and {sizes_text(array.shape)} in "
                    f"{path.name}: a program is made for one set of sizes",
                    where=f"--inputs {path}", fix="give files of equal sizes, and run once for each set of sizes (with another -o)",
                )  # fmt: skip
    return user_inputs


def open_sizes(user_inputs: Given, graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the inputs with open sizes; raises ModelError if one name would have two sizes."""
    size_of_name: dict[str, tuple[int, str]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for node in graph.inputs:
        name = node.string("name")
        shape = user_inputs.feeds[0][name].shape
        for size, number in zip(node.type.shape or (), shape, strict=False):
            if isinstance(size, str) and size_of_name.setdefault(size, (number, name))[0] != number:
                raise ModelError(
                    f"the size {size!r} is {size_of_name[size][0]} in the input {size_of_name[size][1]!r} and {number} in {name!r}",
                    where=f"--inputs {user_inputs.files[0]}", fix=f"save arrays that agree on {size!r}",
                )  # fmt: skip
        if not node.type.is_static:
            sizes[name] = shape
    return sizes


@dataclass(frozen=True)
class Accepted:
    """The inputs that the original model runs on. ``specs``: how random inputs are drawn; ``run_seconds``: how long one run took."""

    specs: tuple[FeedSpec, ...]
    run_seconds: float
    slowdown: float = 1.0
    """Factor by which other processes on the cores slowed the runs."""
    is_random: bool = True
    """Whether it runs on random inputs, too."""
    notes: tuple[str, ...] = ()


def accepted(session: Any, graph: Graph, user_inputs: Given, seed: int, ran: Ran) -> Accepted:
    """Run the original on the user's inputs and on random ones; ``ran`` is called with both.

    Raises ModelError if it does not run on a user's input, or if there are none and it runs on no random ones.
    """
    times: list[float] = []
    elapsed_seconds: list[float] = []
    for path, feeds in zip(user_inputs.files, user_inputs.feeds, strict=True):
        try:
            outputs, seconds, elapsed = timed(partial(session.run, None, feeds))
        except Exception as error:  # onnxruntime raises a class a status; every one means "not these inputs"
            message = " ".join(str(error).split())
            what = f"onnxruntime cannot run the original model on these inputs: {message}"
            raise ModelError(what, where=f"--inputs {path}", fix="give inputs that it runs on") from error
        ran(feeds, outputs)
        times.append(seconds)
        elapsed_seconds.append(elapsed)
        if len(times) == 1 and any(node.op == "Opaque" for node in walk(graph.roots)):
            refuse_if_random(session, feeds, outputs)
    accepted_feeds: dict[str, Any] = {}

    def ran_first(feeds: Mapping[str, Any], outputs: Sequence[Any]) -> None:
        accepted_feeds.update(feeds)
        ran(feeds, outputs)

    try:
        specs, seconds, elapsed = timed(lambda: find_feeds(session, graph, seed, ran_first))
    except NoInputs as error:
        if not user_inputs.feeds:
            raise
        first = user_inputs.feeds[0]
        specs = tuple(FeedSpec(node.string("name"), node.type.dtype, first[node.string("name")].shape) for node in graph.inputs)
        notes = (f"results are compared on your inputs alone: {error.what}",)
        return Accepted(specs, min(times), slowdown_of(times, elapsed_seconds), is_random=False, notes=notes)
    times, elapsed_seconds = [*times, seconds], [*elapsed_seconds, elapsed]
    if seconds < AGAIN_SECONDS:
        _, *again = timed(lambda: session.run(None, accepted_feeds))
        times, elapsed_seconds = [*times, again[0]], [*elapsed_seconds, again[1]]
    return Accepted(specs, min(times), slowdown_of(times, elapsed_seconds))


def compared_in_float32(
    session: Any, wide: Any, types: Sequence[str], runs: Accepted, user_inputs: Given, seed: int
) -> tuple[bool, str]:
    """Return whether results are compared with the float32 model ``wide``, which holds if rounding explains the difference, and a note."""
    limit = MOST_ROUNDINGS * max(UNIT_ROUNDOFF[name] for name in types)
    error = 0.0
    for feeds in [*user_inputs.feeds, *([random_feeds(runs.specs, seed)] if runs.is_random else [])]:
        pairs = zip(session.get_outputs(), wide.run(None, dict(feeds)), session.run(None, dict(feeds)), strict=True)
        for output, expected, rounded in pairs:
            try:
                error = max(error, compare(expected, rounded, Tolerance(limit, 0.0), where=output.name))
            except CheckFailed as problem:
                return False, f"results are compared with the model in {' and '.join(types)}: in float32, {problem.what} ({output.name!r})"
    return True, f"results are compared with the model in float32, from which onnxruntime's in {' and '.join(types)} is {error:.2g} off"


@dataclass
class Reference:
    """The original model, and the inputs on which programs are compared with it."""

    options: Options
    graph: Graph
    given: Given
    runs: Accepted
    session: Any
    """The model in onnxruntime, with all its optimisations."""
    answers: Answers

    def __post_init__(self) -> None:
        model, threads, seed = self.options.model, self.options.threads, self.options.seed
        is_kept = sum(tensor.nbytes for tensor in self.graph.tensors.values()) < IN_MEMORY_BYTES
        self._unoptimised = [Unoptimised(model, threads, is_kept=is_kept, seed=moved) for moved in (None, seed)]
        self._plain, self._plain_moved = map(remembering, self._unoptimised)
        exact = partial(run_in_float64, self.graph, self.options.policy.check.float64_seconds)

        def in_float64(position: int) -> RunModel:
            return remembering(lambda feeds: [exact(feeds, position)])

        self._exact = [in_float64(position) for position in range(len(self.graph.roots))]

    @property
    def opening_seconds(self) -> float:
        """Return the seconds of opening the model without optimisations, which is done once, to measure the effect of rounding."""
        return sum(each.opening_seconds for each in self._unoptimised)

    def in_given_types(self, options: Options) -> Reference:
        """Return the reference of the user's model: itself, unless a 16-bit model is compared in float32.

        The 16-bit model is opened again, because it was not kept in memory beside the float32 one.
        """
        if options.model == self.options.model:
            return self
        return replace(self, options=options, session=open_original(options.model, options.threads), answers=Answers())

    @property
    def raced_feeds(self) -> Mapping[str, Any]:
        """Return the inputs that programs are timed on."""
        return self.given.feeds[0] if self.given.feeds else random_feeds(self.runs.specs, self.options.seed)

    def outputs(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Return the original's outputs."""
        outputs: Sequence[Any] | None = self.answers.of(feeds) or self.session.run(None, dict(feeds))
        return outputs or ()

    def checked_samples(self) -> list[Sample]:
        """Return all inputs of a check, each with the original's outputs."""
        return self.samples(max(len(VALUES), self.options.checks - len(self.given.named)))

    def samples(self, count: int = len(VALUES)) -> list[Sample]:
        """Return the inputs that a check begins with, each with the original's outputs, which are kept for the check.

        ``count`` is the largest number of random inputs if the model is not slow.
        """
        feeds: list[Mapping[str, Any]] = [feeds for _, feeds in self.given.named]
        if self.runs.is_random:
            most = self.options.checks if self.runs.run_seconds < self.options.policy.race.slow_run_seconds else 1
            for number in range(min(count, most)):
                values = VALUES[number % len(VALUES)]
                feeds.append(random_feeds([replace(spec, values=values) for spec in self.runs.specs], self.options.seed + number))
        answered: list[Sample] = []
        for each in feeds:
            try:
                outputs = self.outputs(each)
            except Exception:  # onnxruntime raises a class a status; every one means "not these inputs"
                if not answered:  # the model was accepted with the first
                    raise
                continue
            self.answers.keep(each, outputs)
            answered.append((each, outputs))
        return answered

    def compare(
        self,
        candidates: Mapping[str, RunModel],
        goes_on: Callable[[int], bool],
        count: int,
        vouch: Callable[[Mapping[str, Any]], Blame],
        *,
        is_first: bool,
    ) -> CheckResult:
        """Compare candidates with the original on ``count`` inputs; raises Disagreement. ``is_first``: only the first user's input."""
        inputs = self.given.named[:1] if is_first else self.given.named
        return check(
            self.outputs, candidates, [name for name, _ in self.graph.outputs], self.runs.specs,
            tolerance=self.options.tolerance, count=count, seed=self.options.seed,
            plain=self._plain, plain_moved=self._plain_moved, vouch=vouch, goes_on=goes_on, given=inputs, is_random=self.runs.is_random,
            in_float64=lambda feeds, position: self._exact[position](feeds)[0], most_replaced=self.options.policy.check.replaced,
        )  # fmt: skip
