"""Judge mutants: by the prover, and by the reference on random instances."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from bench.mutation.mutants import Mutant
from egraph.errors import EinsatError
from egraph.rule import MergeRule, Rule
from verify.budget import Exhausted, at_most
from verify.prove import Effort, prove
from verify.random_binding import Refused
from verify.random_testing import CRASHES, compare, draws
from verify.scope import Tree, outside

UNITS = 20_000
"""Work (``verify.budget``) after which the proof of a mutant is abandoned: about a second, and the same on every machine."""
SECONDS, LOOK_SECONDS = 20.0, 2.0
"""Processor time after which a proof that does other work ends, and a look at random instances: a mutant's loops may never end."""
FEW = 8
"""Random instances on which a mutant is compared before its proof."""
DRAWS, FEW_DRAWS = 60, 25
"""Draws for each wanted instance: of a proved mutant, and before its proof."""
MEMORY = 6 << 30
"""Address space that a proof may add to its process, in bytes."""
BROKEN = (*CRASHES, AttributeError, TypeError, KeyError, AssertionError, MemoryError, RuntimeError)
"""Errors that a mutant's own code may raise."""


class TooSlow(Exception):
    """A proof that takes too long: the mutant is not proved."""


@dataclass(frozen=True)
class Seen:
    """The result of a few random instances of a mutant: their number, and how the sides of the last one differ."""

    instances: int
    difference: str = ""


@dataclass(frozen=True)
class Judged:
    """The fate of a mutant. ``false``: a few instances refute it; ``difference``: how a proved one differs, after a thorough search."""

    name: str
    change: str
    fate: Literal["rejected", "slow", "proved"]
    false: bool
    compared: int = 0
    difference: str = ""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``TooSlow`` if the block takes more processor time."""

    def stop(_: int, __: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)  # the default ends the process, should the timer fire just now


@contextmanager
def limited_memory(size_bytes: int) -> Iterator[None]:
    """Raise ``MemoryError`` if the block maps more than ``size_bytes`` of address space; the process is as before after it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + size_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def seen(mutant: Mutant, seed: int) -> Seen:
    """Compare the sides of a mutant on a few random instances."""
    try:
        with limited(LOOK_SECONDS):
            return compared(mutant.rule, True, seed, FEW, FEW_DRAWS)
    except (TooSlow, *BROKEN):
        return Seen(0)


def judged(mutant: Mutant, seed: int, cases: int, *, false: bool) -> Judged:
    """Return the prover's verdict on a mutant and, if it is proved, the result of ``cases`` random instances that its proof covers."""
    try:
        with limited_memory(MEMORY), limited(SECONDS), at_most(UNITS):
            proof = prove(mutant.rule, Effort(tests=0, open_cases=1, applications=0))
    except (TooSlow, Exhausted, MemoryError):
        return Judged(mutant.description, mutant.change, "slow", false)
    except BROKEN:
        return Judged(mutant.description, mutant.change, "rejected", false)
    if proof.verdict != "proved" or proof.covers is None:
        return Judged(mutant.description, mutant.change, "rejected", false)
    outcome = compared(mutant.rule, proof.covers["tree"], seed, cases)
    return Judged(mutant.description, mutant.change, "proved", false, outcome.instances, outcome.difference)


def compared(rule: Rule | MergeRule, tree: Tree, seed: int, cases: int, tries: int = DRAWS) -> Seen:
    """Compare the sides of a rule on random instances that its proof covers, until they differ."""
    done = 0
    for instance in draws(rule, seed, tries * cases):
        if done == cases:
            break
        if outside(tree, rule, instance.bindings):
            continue
        try:
            with np.errstate(all="ignore"):
                _, difference = compare(instance, done, "signed" if done % 2 else "positive", bits=False)
        except (Refused, EinsatError):
            continue
        done += 1
        if difference:
            return Seen(done, str(difference))
    return Seen(done)
