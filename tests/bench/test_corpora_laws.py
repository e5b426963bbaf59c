"""True and false laws of tensor operators, in the statement forms of rule corpora: no false one is proved."""

from __future__ import annotations

from bench.corpora.judge import Judgement, judge
from bench.corpora.read import read_corpus
from tests.support.paths import CORPORA
from verify.prove import Effort, prove

DATA = CORPORA
EFFORT = Effort(tests=0, open_cases=1, applications=0)


def judged(name: str) -> list[Judgement]:
    return [judge(entry, lambda rule: prove(rule, EFFORT)) for entry in read_corpus(DATA / f"{name}.json")]


def test_laws_are_told_from_what_only_looks_like_one() -> None:
    """Laws of slices, paddings, logic, selections, extrema, exponentials, roots, floors and products are proved if true, else refuted."""
    judgements = judged("laws")
    assert len(judgements) > 100
    for judgement in judgements:
        false = judgement.entry.claim == "refuted"
        assert (judgement.decision == "refuted") == false, (judgement.entry.text, judgement.decision, judgement.reason)
        assert false or judgement.decision.startswith("proved"), (judgement.entry.text, judgement.reason)


def test_informal_rewrites_are_judged() -> None:
    """A false rewrite of windows, layouts, activations or reductions is refuted, or proved under a guard that leaves its true cases."""
    judgements = judged("rewrites")
    assert len(judgements) > 60
    for judgement in judgements:
        if judgement.entry.expected == "sound":
            assert judgement.decision.startswith("proved"), (judgement.entry.text, judgement.reason)
        else:
            assert judgement.decision == "refuted" or judgement.guard, (judgement.entry.text, judgement.decision)
