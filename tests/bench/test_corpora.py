"""Rule corpora of other systems are read, and each statement is judged correctly."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bench.corpora.__main__ import main
from bench.corpora.entries import Entry, renamed
from bench.corpora.judge import Judgement, Pains, judge, judge_all
from bench.corpora.linear import Affine, System
from bench.corpora.read import read_corpus
from bench.corpora.statements import infer_ranks
from bench.corpora.taso_operators import same_pad
from bench.corpora.terms import Application, Term, names, parse
from egraph.errors import RuleError
from egraph.rule import Binding, Mismatch, Rule
from egraph.tensor import TensorType
from runtime.garbage_collection import ALLOCATIONS, rare_collections
from tests.support.paths import CORPORA
from verify.proof import Proof
from verify.prove import Effort, prove
from verify.random_binding import Refused

DATA = CORPORA


def test_terms_are_read_from_text() -> None:
    term = parse("(concat 1 (relu ?x) ?y)")
    assert term == Application("concat", (1, Application("relu", ("?x",)), "?y"))
    assert names([term]) == ("?x", "?y")
    for text in ("(relu ?x", "(relu ?x))", "", "(1 2)"):
        with pytest.raises(RuleError):
            parse(text)


def test_ranks_follow_from_operators() -> None:
    left = parse("(ewadd (conv2d 1 1 0 0 ?x ?w) (smul ?y ?s))")
    assert infer_ranks((left,)) == {"?x": 4, "?w": 4, "?y": 4, "?s": 0}
    assert infer_ranks((parse("(relu ?x)"),)) == {"?x": None}


SAME_PADS = [(5, 3, 1, 1), (5, 2, 1, 1), (4, 3, 2, 1), (5, 3, 2, 1), (4, 1, 2, 0), (7, 1, 2, 0)]


@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), SAME_PADS)
def test_same_padding_is_symmetric(size: int, kernel: int, stride: int, pad: int) -> None:
    assert same_pad(size, kernel, stride) == pad


def test_linear_systems_are_solved_at_random() -> None:
    """Every draw satisfies the equations, and different draws give different solutions."""
    kinds = set()
    for seed in range(40):
        system = System(Random(seed))
        a, b, c, d = (system.unknown((1, 2, 3, 5)) for _ in range(4))
        try:
            system.equate(a + b, c + d)
            system.equate(a * 2, c * 3)
            values = system.draw()
        except Refused:
            continue
        drawn = tuple(system.value(x, values) for x in (a, b, c, d))
        assert drawn[0] + drawn[1] == drawn[2] + drawn[3] and 2 * drawn[0] == 3 * drawn[2] and min(drawn) >= 1
        kinds.add(drawn)
    assert len(kinds) > 3
    system = System(Random(0))
    with pytest.raises(Refused):
        system.equate(Affine(2), Affine(3))


@pytest.mark.parametrize("name", ["taso", "tensat"])
def test_false_entries_are_refuted_and_no_other(name: str) -> None:
    """With random tests alone, false rules have counterexamples and preconditions, and true ones have none."""
    decisions = set()
    for entry in read_corpus(DATA / f"{name}.json"):
        if "axiom" in entry.name:
            continue
        judgement = judge(entry, None, Pains(tests=24))
        assert judgement.agrees in (True, None), (entry.name, entry.text, judgement)
        decisions.add(judgement.decision)
        if judgement.decision == "refuted":
            assert "left" in judgement.reason and judgement.guard, entry.name
        else:
            assert judgement.decision == "tested only", (entry.name, judgement.reason)
    assert decisions == {"refuted", "tested only"}


def test_false_axioms_are_known() -> None:
    axioms = [entry for entry in read_corpus(DATA / "tensat.json") if "axiom" in entry.name]
    decisions = {entry.name: judge(entry, None, Pains(tests=8, guards=0)).decision for entry in axioms}
    assert {name for name, decision in decisions.items() if decision == "refuted"} == {
        "axiom enlarge-convolution-kernel", "axiom concatenation-and-conv.-1",
    }  # fmt: skip


def test_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{", "{}"):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(RuleError):
            read_corpus(tmp_path / "c.json")
    with pytest.raises(RuleError, match="does not exist"):
        read_corpus(tmp_path / "missing.json")


def test_an_ill_typed_term_is_refused() -> None:
    """The sides of a statement follow TASO's typing, which is narrower than Einsat's because nothing broadcasts."""
    entry = next(e for e in read_corpus(DATA / "taso.json") if e.name == "taso-121")
    (rule,) = entry.readings[0].rules(False, ())
    assert rule.draw is not None
    binding = next(b for b in _bindings(rule.draw) if len({t.sizes for t in b.types.values()}) == 1)
    left, right = rule.apply(binding)
    assert left.type == right.type
    shapes = {"?v7": (2, 2, 2, 2), "?v8": (1, 1, 1, 1)}
    narrow = replace(binding, types={**binding.types, **{name: TensorType("float32", shape) for name, shape in shapes.items()}})
    with pytest.raises(Mismatch, match="one shape"):
        rule.apply(narrow)


def _bindings(draw: Callable[[Random], Binding]) -> Iterator[Binding]:
    random = Random(0)
    while True:
        try:
            yield draw(random)
        except Refused:
            continue


def prover(rule: Rule) -> Proof:
    return prove(rule, Effort(tests=0, open_cases=1, applications=0))


def judged(name: str, *entries: str) -> dict[str, Judgement]:
    """Judge some entries of an excerpt, or all of them, with the prover."""
    chosen = [entry for entry in read_corpus(DATA / f"{name}.json") if not entries or entry.name in entries]
    return {entry.name: judge(entry, prover) for entry in chosen}


def test_true_entries_are_proved() -> None:
    """Entries with several outputs, constants, splits, average pools as convolutions and identity kernels are proved."""
    judgements = judged("taso", "taso-000", "taso-063", "taso-070", "taso-121")
    judgements |= judged("tensat", "taso-full-090", "taso-full-101", "taso-full-880")
    decisions = {name: judgement.decision for name, judgement in judgements.items()}
    assert decisions.pop("taso-070") == "proved where the right side is well-typed"
    assert set(decisions.values()) == {"proved"}, decisions


def test_false_entries_are_proved_under_their_precondition() -> None:
    judgements = judged("taso", "taso-098", "taso-127")
    assert {judgement.guard for judgement in judgements.values()} == {"every convolution is ungrouped"}
    assert all(judgement.decision == "refuted" and judgement.agrees for judgement in judgements.values())


def test_what_must_be_rejected_is_rejected() -> None:
    """An entry that is not refuted is accepted only under a stated precondition."""
    judgements = judged("rejected")
    assert len(judgements) > 8
    for judgement in judgements.values():
        assert judgement.agrees or judgement.decision == "not expressible", judgement
        assert judgement.decision == "refuted" or judgement.guard or judgement.reason, judgement


def test_informal_statements_are_read() -> None:
    """Attributes that a statement omits are arbitrary; the precondition that makes the statement true is found."""
    judgements = judged("xla")
    inexpressible = {name for name, judgement in judgements.items() if judgement.decision == "not expressible"}
    assert inexpressible == {"tr-xla-divmod-rule06"}
    assert all(judgement.agrees for name, judgement in judgements.items() if name not in inexpressible), judgements
    assert judgements["tr-xla-reverse-rule01"].guard == "the reversed axis has one element"
    assert judgements["tr-xla-divmod-rule06"].reason


def test_what_a_statement_leaves_out_is_not_judged(tmp_path: Path) -> None:
    """If a statement does not define its right side, it is not expressible rather than false."""
    corpus = tmp_path / "c.json"
    rules = [
        {"id": "padded", "lhs": "Add(A, B)", "rhs": "Slice(Add(A, B))", "status": "proven"},
        {"id": "unknown", "lhs": "Sort(A)", "rhs": "A", "status": "refuted"},
        {"id": "counted", "lhs": "Iota", "rhs": "0", "status": "proven"},
    ]
    corpus.write_text(json.dumps({"rules": rules}))
    judgements = [judge(entry, prover) for entry in read_corpus(corpus)]
    assert len(judgements) == len(rules)
    for judgement in judgements:
        assert judgement.decision == "not expressible" and judgement.reason, judgement


def test_operands_of_a_convolution_are_exchanged(tmp_path: Path) -> None:
    """Exchanged operands of a convolution are both reversed, and batch and output channels swap; a relu on one side makes this false."""
    corpus = tmp_path / "c.json"
    left = "Conv(input, weights, ...)"
    rules = [
        {"id": "exchanged", "lhs": left, "rhs": "Conv(weights, input, ...) with swapped dilations", "status": "proven"},
        {"id": "rectified", "lhs": f"Relu({left})", "rhs": "Conv(weights, input, ...)", "status": "refuted"},
    ]
    corpus.write_text(json.dumps({"rules": rules}))
    exchanged, rectified = (judge(entry, prover) for entry in read_corpus(corpus))
    assert exchanged.decision == "proved where the right side is well-typed" and rectified.decision == "refuted"


def test_the_command_compares_with_the_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DATA / "taso.json"), "--only", "taso-12", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = [(entry["id"], entry["verdict"], entry["agrees"]) for entry in report["entries"]]
    assert rows == [("taso-121", "proved", True), ("taso-127", "refuted", True)]
    assert report["summary"] == {"proved": 1, "refuted": 1}
    assert main([str(DATA / "nothing.json")]) == 2


def test_what_is_said_twice_is_judged_once() -> None:
    """An entry that repeats an earlier one takes its verdict and names it; the prover runs only for the others."""
    first, second = read_corpus(DATA / "taso.json")[:2]
    again = replace(first, name="again")
    asked: list[str] = []

    def prover(rule: Rule) -> Proof:
        asked.append(rule.name)
        return prove(rule, Effort(tests=0))

    judgements = list(judge_all((first, again, second), prover))
    assert [each.entry.name for each in judgements] == [first.name, "again", second.name]
    assert judgements[1].decision == judgements[0].decision and judgements[1].repeats == first.name and not judgements[2].repeats
    assert not any(name.startswith("again") for name in asked) and any(name.startswith(second.name) for name in asked)
    assert first.meaning and first.meaning != second.meaning


def equations(tmp_path: Path, *pairs: tuple[str, str]) -> tuple[Entry, ...]:
    """Return the entries of a corpus of equations, written as s-expressions."""

    def tree(term: Term) -> object:
        return [term.operator, *map(tree, term.arguments)] if isinstance(term, Application) else term

    rules = [{"id": str(n), "lhs_tree": tree(parse(left)), "rhs_tree": tree(parse(right))} for n, (left, right) in enumerate(pairs)]
    (tmp_path / "c.json").write_text(json.dumps({"full_taso_equations": rules}))
    return read_corpus(tmp_path / "c.json")


def test_entries_that_differ_by_names_say_the_same(tmp_path: Path) -> None:
    """Renaming operands of equal rank gives the same rule; one name in two places, or another rank, gives a different rule."""

    def pair(left: str, right: str) -> tuple[str, str]:
        a, b, c, d, e, f = (*left, *right)
        return f"(concat 1 (conv2d 1 1 0 0 {a} {b}) (conv2d 1 1 0 0 {a} {c}))", f"(conv2d 1 1 0 0 {d} (concat 0 {e} {f}))"

    names = ("abc", "abc"), ("bca", "bca"), ("acb", "acb"), ("abb", "abb"), ("abc", "acb")
    first, other_names, swapped, *others = equations(tmp_path, *(pair(*each) for each in names))
    assert first.meaning == other_names.meaning == swapped.meaning
    assert len({first.meaning, *(other.meaning for other in others)}) == 3
    assert len({entry.meaning for entry in equations(tmp_path, ("(relu input_1)", "input_1"), ("(relu input_7)", "input_7"))}) == 2
    first_judgement, second_judgement = judge_all((first, other_names), None, Pains(tests=24))
    assert first_judgement.decision == second_judgement.decision == "refuted" and second_judgement.repeats == "0"
    assert second_judgement.guard == first_judgement.guard == "every convolution is ungrouped"


def test_names_in_a_precondition_are_those_of_its_entry() -> None:
    """If two rules differ only in operand names, the guard found for one is reported for the other in the other's names."""
    first = next(entry for entry in read_corpus(DATA / "taso.json") if entry.name == "taso-127")
    names = {"?v7": "?x", "?v8": "?y"}
    assert renamed("(conv2d ?v7 ?v8), ?v77 have equal sizes", names) == "(conv2d ?x ?y), ?v77 have equal sizes"
    assert len(first.names) > 1 and all(name in first.text for name in first.names)


def test_padding_is_any_function_of_the_sizes_where_that_is_enough(tmp_path: Path) -> None:
    """Rules that depend on the padding are proved by its definition, false ones are refuted, and all others fork no path for it."""
    merged = ("(conv2d 2 2 0 0 a b)", "(conv2d 2 2 0 0 a (merge b 2))")
    of_one = ("(poolmax 1 1 2 2 0 a)", "(poolmax 1 1 2 2 1 a)")
    false = ("(poolmax 3 3 2 2 0 a)", "(poolmax 3 3 2 2 1 a)"), ("(poolmax 3 3 2 2 0 a)", "(poolavg 3 3 2 2 0 a)")
    decisions = [judge(entry, prover).decision for entry in equations(tmp_path, merged, of_one, *false)]
    assert decisions == ["proved where the right side is well-typed", "proved", "refuted", "refuted"]
    rule = equations(tmp_path, merged)[0].readings[0].rules(True, ())[0]
    assert prove(rule, Effort(tests=0)).paths < 8


def test_collections_are_rare_while_a_corpus_is_judged_and_no_longer() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] == ALLOCATIONS
    assert gc.get_threshold() == before
