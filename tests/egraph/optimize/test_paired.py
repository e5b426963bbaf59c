"""The winner of a race: simulated machines that drift, and that are disturbed in bursts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from egraph.optimize.race import Contender, Race, doubt, is_decided, is_faster, middle, race, slowdown, still_ahead, still_running, winner
from egraph.policy import RacePolicy
from runtime.measure import Effort, Load, Timing, Worker
from runtime.profile import Database

RACES = 40
FACTORS: Mapping[str, Callable[[int, np.random.Generator], float]] = {
    "drifting": lambda turn, random: (1 + 0.01 * turn) * random.lognormal(0.0, 0.02),
    "bursty": lambda turn, random: random.lognormal(0.0, 0.02) * (random.uniform(1.3, 3.0) if random.random() < 0.1 else 1.0),
}
TWO_SPEEDS = "two speeds"
"""A virtual machine whose core is shared by a neighbour or not, in turn for some seconds: fourteen turns of 0.3 s."""
SPEEDS: Mapping[str, Callable[[int, np.random.Generator], float]] = {
    TWO_SPEEDS: lambda turn, random: random.lognormal(0.0, 0.02) * (1.35 if turn // 14 % 2 else 1.0),
}


@pytest.fixture(params=sorted(FACTORS))
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Time the contender's path as a number, multiplied by the machine's factor."""
    random, turns = np.random.default_rng(7), [0]
    paths: dict[int, str] = {}

    def load(self: Worker, what: Load) -> Timing:
        paths[id(self)] = what.path
        return Timing("ok")

    def timed(self: Worker, effort: Effort) -> Timing:
        turns[0] += 1
        return Timing("ok", (float(paths[id(self)]) * {**FACTORS, **SPEEDS}[request.param](turns[0] % 200, random),))

    for name, function in (("load", load), ("time", timed), ("start", lambda self, threads: None)):
        monkeypatch.setattr(Worker, name, function)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return str(request.param)


def _race(times_us: Mapping[str, float], policy: RacePolicy = RacePolicy(), seconds: float = 1000.0) -> Race:
    """Race contenders, each preferred to those after it."""
    contenders = [Contender(name, name, "einsat", str(time_us)) for name, time_us in times_us.items()]
    return race(
        contenders, (), failed={}, preferred=list(times_us), essential=contenders[0].name, threads=1, seed=0,
        database=Database.in_memory(), device="d", seconds=seconds, most_seconds=3 * seconds, policy=policy,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("right", "times_us"),
    [
        ("quick", {"original": 100.0, "quick": 94.0, "plain": 110.0}),
        ("quick", {"original": 100.0, "slow": 80.0, "quick": 72.0}),
        ("original", {"original": 100.0, "alike": 100.0, "too": 100.0}),
        ("simple", {"original": 100.0, "simple": 70.0, "derived": 70.0}),
    ],
)
def test_the_right_program_wins_on_a_noisy_machine(machine: str, right: str, times_us: Mapping[str, float]) -> None:
    won = sum(winner(list(times_us), _race(times_us).timings) == right for _ in range(RACES))
    assert won >= 0.95 * RACES


@pytest.fixture
def seconds_of_a_turn(machine: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """Let each turn take 0.3 s by the clock of races, with an additional error of 20 %; return the seconds."""
    clock, random, timed = [0.0], np.random.default_rng(5), Worker.time

    def timed_slowly(self: Worker, effort: Effort) -> Timing:
        clock[0] += 0.3
        (time_us,) = timed(self, effort).samples_us
        return Timing("ok", (time_us * random.lognormal(0.0, 0.2),))

    monkeypatch.setattr(Worker, "time", timed_slowly)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return 0.3


@pytest.mark.parametrize("machine", [*sorted(FACTORS), TWO_SPEEDS], indirect=True)
def test_few_noisy_rounds_find_a_much_faster_program_and_no_slower_one(seconds_of_a_turn: float) -> None:
    faster, slower = ({"original": 100.0, **{f"program {i}": time_us + i for i in range(5)}} for time_us in (82.0, 106.0))
    races = [[_race(times_us, seconds=40 * seconds_of_a_turn) for _ in range(RACES)] for times_us in (faster, slower)]
    shipped = [sum(winner(list(faster), raced.timings) != "original" for raced in group) for group in races]
    assert shipped[0] >= 0.9 * RACES and shipped[1] <= 0.1 * RACES


def test_the_original_and_the_fastest_go_on_alone_for_as_long_again_where_it_is_open_who_wins(seconds_of_a_turn: float) -> None:
    times_us = {"original": 100.0, **{f"program {i}": 92.0 + i for i in range(5)}}
    rounds = [[len(t.samples_us) for t in _race(times_us, seconds=40 * seconds_of_a_turn).timings.values()] for _ in range(RACES)]
    assert all(sum(each) <= 2 * 40 + 6 for each in rounds), "a race takes twice its time, and ends with a round"
    pairs = [sorted(each)[-3:] for each in rounds if sum(each) > 40 + 6]
    assert len(pairs) > RACES / 4 and all(third < second == first for third, second, first in pairs)


def test_a_race_ends_in_time_where_the_original_is_ahead(seconds_of_a_turn: float) -> None:
    times_us = {"original": 100.0, **{f"program {i}": 125.0 for i in range(5)}}
    assert all(len(_race(times_us, seconds=40 * seconds_of_a_turn).timings["original"].samples_us) <= 20 for _ in range(RACES))
    timings = {"original": Timing("ok", (1.0, 1.1, 1.0, 1.2)), "program": Timing("ok", (1.1, 1.0, 1.2, 1.1))}
    assert still_ahead(list(timings), timings, "original") == ()
    assert still_ahead(list(timings), timings, "program") == ("program", "original")
    assert still_ahead(["program"], timings, "program") == still_ahead(["late"], {"late": Timing("failed")}, "original") == ()


def test_who_is_slow_in_all_of_four_rounds_is_given_up_and_who_was_slowed_in_two_is_not() -> None:
    """A machine that is 1.6 times as slow in a third of the rounds slows one good program in nine in both of its first two."""
    slow_us, slowed_us = (160.0, 150.0, 155.0, 160.0), (160.0, 150.0, 80.0, 80.0)
    for rounds in range(1, 5):
        timings = {"original": Timing("ok", (100.0,) * rounds), "program": Timing("ok", slowed_us[:rounds])}
        assert still_running(list(timings), timings, rounds - 1, "original") == list(timings)
        timings["program"] = Timing("ok", slow_us[:rounds])
        assert still_running(list(timings), timings, rounds - 1, "original") == list(timings)[: 2 if rounds < 4 else 1]


def test_a_race_goes_on_while_it_is_undecided(machine: str) -> None:
    clear, close = ({"original": 100.0, "program": time_us} for time_us in (40.0, 97.0))
    rounds = [len(_race(times_us).timings["original"].samples_us) for times_us in (clear, close)]
    assert RacePolicy.least_rounds <= rounds[0] < rounds[1] <= RacePolicy.rounds


def test_one_program_that_was_a_little_faster_in_few_rounds_is_not_shipped() -> None:
    """A lead of 3 % in three rounds proves nothing on a machine whose times are off by as much."""
    timings = {"original": Timing("ok", (103.0, 99.0, 104.0)), "program": Timing("ok", (100.0, 100.0, 100.0))}
    assert winner(["original", "program"], timings) == "original" and not is_decided(["original", "program"], timings)
    timings["original"] = Timing("ok", (103.0, 102.9, 103.1) * 8)
    timings["program"] = Timing("ok", (100.0,) * 24)
    assert winner(["original", "program"], timings) == "program" and is_decided(["original", "program"], timings)
    assert winner(["original", "program"], timings, RacePolicy(noise=1.0)) == "original"


def test_a_machine_that_changes_between_rounds_is_slower_for_everyone() -> None:
    first = tuple(100.0 * 1.3**number for number in range(8))
    low, high = slowdown(first, tuple(1.1 * time_us for time_us in first))
    assert 0.05 < low < np.log(1.1) < high < 0.15
    assert (low, high) == slowdown(first, tuple(1.1 * time_us for time_us in first)), "the same rounds give the same verdict"


def test_who_has_no_time_or_was_given_up_does_not_win() -> None:
    timings = {"original": Timing("failed"), "early": Timing("ok", (1.0,)), "late": Timing("ok", (2.0, 2.0))}
    assert winner(list(timings), timings) == "late" and winner(["original"], timings) is None
    assert is_faster(timings["late"], timings["original"]) and not is_faster(timings["original"], timings["late"])
    assert winner(list(timings), {**timings, "early": replace(timings["early"], samples_us=(1.0, 1.0))}) == "early"


def test_who_was_given_up_is_compared_in_the_rounds_that_it_ran() -> None:
    """The machine became half as fast after two rounds, in which the dropped contender ran."""
    timings = {"original": Timing("ok", (1.0, 1.0, 2.0, 2.0, 2.0)), "slow": Timing("ok", (1.5, 1.5)), "none": Timing("failed")}
    raced = Race(timings)
    assert raced.median_us("original") == 2.0 and raced.median_us("slow") == 3.0 and raced.median_us("none") == np.inf


def test_the_verdict_at_the_end_asks_for_less_than_ending_early_does() -> None:
    timings = {"original": Timing("ok", (1.0,) * 6), "program": Timing("ok", (0.9, 0.95, 0.97, 0.91, 1.03, 0.96))}
    assert winner(list(timings), timings) == "program" and not is_decided(list(timings), timings)
    assert winner(list(timings), timings, RacePolicy(verdict=RacePolicy.confidence)) == "original"


def test_a_program_whose_times_were_disturbed_is_not_shipped_behind_the_original() -> None:
    """A preferred program that cannot be told from the fastest may be slower than the original: 0.96 times as fast was shipped."""
    disturbed = (75.0, 135.0, 80.0, 130.0, 78.0, 132.0)
    timings = {"original": Timing("ok", (100.0,) * 6), "preferred": Timing("ok", disturbed), "fastest": Timing("ok", (85.0,) * 6)}
    assert not is_faster(timings["fastest"], timings["preferred"])
    assert winner(list(timings), timings) == "fastest"
    timings["preferred"] = Timing("ok", (84.0, 87.0) * 3)
    assert winner(list(timings), timings) == "preferred", "it is ahead of the original, and the fastest does not beat it"


def test_the_middle_is_the_median_of_the_means_of_pairs() -> None:
    assert middle(np.array([[0.0, 1.0, 5.0], [3.0, 3.0, 3.0]])).tolist() == [1.75, 3.0], "of 0, 0.5, 1, 2.5, 3 and 5"
    assert middle(np.array([1.0, 4.0])) == 2.5, "of 1, 2.5 and 4"


def test_what_was_ahead_and_did_not_win_is_named_with_how_far_it_may_be_off() -> None:
    unsure = {"original": Timing("ok", (1.0, 1.3, 1.0, 1.2)), "program": Timing("ok", (0.85, 1.4, 0.85, 1.2)), "late": Timing("failed")}
    assert winner(list(unsure), unsure) == "original"
    text = doubt(list(unsure), unsure)
    assert text.startswith("program took 0.9") and "of original's time in 4 rounds" in text

    def bounds(told: str) -> list[float]:
        return [float(number) for number in told.split("may take ")[1].removesuffix(" of it").split(" to ")]

    (low, high), (lower, higher) = bounds(text), bounds(doubt(list(unsure), unsure, RacePolicy(verdict=RacePolicy.confidence)))
    assert lower < low < 0.95 < 1.0 < high < higher
    sure = {**unsure, "program": Timing("ok", (0.5, 0.6, 0.5, 0.6))}
    alike = {**unsure, "program": Timing("ok", (0.995, 1.29, 0.995, 1.19))}
    alone = {**unsure, "program": Timing("failed")}
    assert doubt(list(sure), sure) == doubt(list(alike), alike) == doubt(list(alone), alone) == ""
