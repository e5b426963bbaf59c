"""A campaign: mutants of many rules, chosen so that every rule has its turn, judged in processes of their own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from random import Random
from typing import Any, Literal, TypeAlias, TypeVar

from bench.mutation.judging import Judged, judged, seen
from bench.mutation.mutants import made, sites
from bench.mutation.progress import Progress
from egraph.rule import MergeRule, Rule

CHUNK = 20
"""Mutants that one process judges: the caches of proofs end with the process."""
PATIENCE = 5
"""Mutants of a rule that are looked at for each one that is wanted."""

Result = TypeVar("Result")
Tried: TypeAlias = tuple[int, int, bool]
"""A chosen mutant: the numbers of its rule and its change, and whether a few instances refute it."""


@dataclass(frozen=True)
class Tally:
    """The fates of the mutants. ``slow``: the proof was abandoned. ``wrong``: proved, and refuted by the reference; there must be none.

    ``stillborn``: changes after which there was no rule; ``idle``: no random instance fits the mutant, so it is skipped.
    ``false``: refuted by the reference on a few random instances, whatever the prover says. ``by_change``: for every kind of
    change the number of mutants, and how many of these were false, rejected, abandoned and proved.
    """

    rules: int
    sites: int
    mutated: int
    mutants: int
    stillborn: int
    idle: int
    false: int
    rejected: int
    slow: int
    proved: int
    compared: int
    wrong: tuple[str, ...]
    proved_names: tuple[str, ...]
    without: tuple[str, ...]
    by_change: dict[str, dict[str, int]]


@dataclass(frozen=True)
class _Choice:
    """The mutants chosen for one rule, with counts of its changes."""

    chosen: tuple[Tried, ...]
    sites: int
    stillborn: int
    idle: int

    @staticmethod
    def read(values: Mapping[str, Any]) -> _Choice:
        """Return a stored choice."""
        return _Choice(**{**values, "chosen": tuple((number, position, false) for number, position, false in values["chosen"])})


def _seconds() -> float:
    """Return the processor time of this process and of those that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def run(
    rules: Sequence[Rule | MergeRule], count: int, seed: int, cases: int, say: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> Tally:  # fmt: skip
    """Judge ``count`` mutants of the rules, drawn at random, and compare what is proved with the reference.

    Mutants of a rule alternate between one that a few random instances refute and one that they do not: the false ones must not
    be proved, and among the others are mutants that are false only in rare cases. An interrupt ends the campaign with the mutants
    judged so far; steps that ``progress`` has recorded are not repeated.
    """
    progress = Progress() if progress is None else progress
    share = -(-count // max(1, len(rules)))

    def choose(numbers: Sequence[int]) -> list[_Choice]:
        return [_chosen(rules[n], n, share, seed) for n in numbers]

    for start in range(0, len(rules), CHUNK):
        numbers = [n for n in range(start, min(start + CHUNK, len(rules))) if n not in progress.chosen]
        if numbers:
            before = _seconds()
            several = _apart(partial(choose, numbers)) or [
                each for n in numbers for each in _apart(partial(choose, [n])) or [_Choice((), 0, 0, 0)]
            ]
            progress.add(_seconds() - before, chosen={n: asdict(each) for n, each in zip(numbers, several, strict=True)})
            known = sum(len(each["chosen"]) for each in progress.chosen.values())
            say(f"{len(progress.chosen)} of {len(rules)} rules: {known} mutants to choose from")
    choices = [_Choice.read(progress.chosen[n]) for n in range(len(rules))]
    random = Random(seed)
    turns = [tried for turn in zip_longest(*(each.chosen for each in choices)) for tried in random.sample(turn, len(turn)) if tried]
    drawn = turns[:count]
    judged: list[Judged] = []
    try:
        for start in range(0, len(drawn), CHUNK):
            numbers = [n for n in range(start, min(start + CHUNK, len(drawn))) if n not in progress.judged]
            if numbers:
                before = _seconds()
                results = _together(rules, [drawn[n] for n in numbers], seed, cases)
                progress.add(_seconds() - before, judged={n: asdict(each) for n, each in zip(numbers, results, strict=True)})
            judged += [Judged(**progress.judged[n]) for n in range(start, min(start + CHUNK, len(drawn)))]
            proved = [each for each in judged if each.fate == "proved"]
            say(f"{len(judged)} of {len(drawn)}: {len(proved)} proved, {sum(bool(each.difference) for each in proved)} of them wrong")
    except KeyboardInterrupt:
        say(f"interrupted after {len(judged)} of {len(drawn)}, which are kept")
    return _tally(rules, choices, drawn[: len(judged)], judged)


def _chosen(rule: Rule | MergeRule, number: int, share: int, seed: int) -> _Choice:
    """Return mutants of a rule in turns: one that random instances refute, one that they do not."""
    every = list(sites(rule))
    Random(f"{rule.name} {seed}").shuffle(every)
    false: list[Tried] = []
    open_: list[Tried] = []
    texts: set[str] = set()
    stillborn = idle = 0
    for site in every[: PATIENCE * share]:
        if len(false) + len(open_) >= share and min(len(false), len(open_)) >= share // 2:
            break
        mutant = made(rule, site)
        if mutant is None or mutant.text in texts:
            stillborn += 1
            continue
        texts.add(mutant.text)
        looked = seen(mutant, seed)
        if not looked.instances:
            idle += 1
        else:
            (false if looked.difference else open_).append((number, site.number, bool(looked.difference)))
    turns = [each for pair in zip_longest(false, open_) for each in pair if each is not None]
    return _Choice(tuple(turns), len(every), stillborn, idle)


def _together(rules: Sequence[Rule | MergeRule], chunk: Sequence[Tried], seed: int, cases: int) -> list[Judged]:
    """Judge mutants in one process; if it dies, each gets a process of its own, and a mutant whose process dies is not proved."""

    def judge(tried: Tried) -> Judged:
        number, position, false = tried
        mutant = made(rules[number], sites(rules[number])[position])
        assert mutant is not None
        return judged(mutant, seed, cases, false=false)

    judgements = _apart(lambda: [judge(tried) for tried in chunk])
    if judgements is None and len(chunk) == 1:
        number, position, false = chunk[0]
        site = sites(rules[number])[position]
        return [Judged(f"{rules[number].name}~{position}: {site.change}", site.change, "slow", false)]
    return judgements if judgements is not None else [each for tried in chunk for each in _together(rules, [tried], seed, cases)]


def _apart(task: Callable[[], list[Result]]) -> list[Result] | None:
    """Return the result of a task in a process of its own; None if that dies."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(task()))
    process.start()
    sender.close()
    try:
        result: list[Result] = receiver.recv()
        return result
    except EOFError:
        return None
    except KeyboardInterrupt:
        process.terminate()
        raise
    finally:
        process.join()


KEPT_FATES: tuple[Literal["rejected", "slow", "proved"], ...] = ("rejected", "slow", "proved")
"""The possible fates of a mutant that random tests do not refute."""


def _tally(rules: Sequence[Rule | MergeRule], choices: Sequence[_Choice], drawn: Sequence[Tried], judged: Sequence[Judged]) -> Tally:
    fates = Counter(each.fate for each in judged)
    proved = [each for each in judged if each.fate == "proved"]
    mutated = {number for number, _, _ in drawn}
    by_change: dict[str, dict[str, int]] = {}
    for change in sorted({each.change for each in judged}):
        mutants = [each for each in judged if each.change == change]
        counts: Counter[str] = Counter(each.fate for each in mutants)
        by_change[change] = {
            "mutants": len(mutants), "false": sum(each.false for each in mutants), **{fate: counts[fate] for fate in KEPT_FATES},
        }  # fmt: skip
    return Tally(
        rules=len(rules), sites=sum(each.sites for each in choices), mutated=len(mutated), mutants=len(drawn),
        stillborn=sum(each.stillborn for each in choices), idle=sum(each.idle for each in choices),
        false=sum(each.false or bool(each.difference) for each in judged), rejected=fates["rejected"], slow=fates["slow"],
        proved=len(proved), compared=sum(each.compared for each in proved),
        wrong=tuple(f"{each.name}\n{each.difference}" for each in proved if each.difference),
        proved_names=tuple(each.name for each in proved), by_change=by_change,
        without=tuple(rule.name for number, rule in enumerate(rules) if number not in mutated),
    )  # fmt: skip
