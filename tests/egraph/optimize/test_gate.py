"""The gate of the e-graph and its certificates: a match without a proof does not enter, and stale proofs do not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from egraph.errors import RuleError
from egraph.optimize import admission as gate
from egraph.optimize.admission import admitted, choose_rules, notes, unproved
from egraph.optimize.gate import Admission, Gate, Ruling
from egraph.rewrite.law import Stated
from egraph.rule import Binding, Equation, Mismatch, Rule, Steps, Tensor, Verdict, Weight, require, rule
from egraph.rule_operators import concat, relu, slice_
from egraph.rules import RULES, rule_named
from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import apply
from runtime.profile import Database
from tests.support.commands import module_command
from tests.support.paths import ROOT
from verify.__main__ import summary
from verify.certificates import Certificate, Certificates, certify, format_certificates, parse, shipped
from verify.comparison import ASKED, FRACTION, MOST_TERMS, WHOLE, Comparison, compare_sides
from verify.fingerprint import rule_key, verifier_key
from verify.proof import Proof

FILE = """from egraph.rule import Equation, Tensor, rule
from egraph.rule_operators import relu


@rule(rounding="reassociates")
def my_associative(a: Tensor, b: Tensor, c: Tensor) -> Equation:
    '''(A B) C = A (B C)'''
    return (a @ b) @ c == a @ (b @ c)


@rule
def my_wrong(a: Tensor, b: Tensor) -> Equation:
    '''relu(a + b) = relu(a) + relu(b)'''
    return relu(a + b) == relu(a) + relu(b)


RULES = ({},)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def write(folder: Path, *names: str) -> Path:
    path = folder / "mine.py"
    path.write_text(FILE.format(", ".join(names)))
    return path


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the folder in which the command keeps its certificates, and its output for a true and a false rule."""
    folder = tmp_path_factory.mktemp("judged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        return folder, command(str(write(folder, "my_associative", "my_wrong")), "--cases", "16")


@pytest.fixture
def certified(own_folder: None, judged: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide a certificate of the true rule."""
    monkeypatch.setenv("XDG_DATA_HOME", str(judged[0]))


def proof(each: Rule, verdict: Verdict = "proved") -> Proof:
    return Proof(each.name, verdict, "all sizes", 0.1, 3, 1, 2, "exact", covers={"tree": {"rank of x": [[[1, 2], True]]}})


def twice(label: str = "relu") -> Rule:
    @rule
    def law(x: Tensor) -> Equation:
        """relu(relu(x)) = relu(x)"""
        assert label
        return relu(relu(x)) == relu(x)

    return law


# Keys


def test_a_key_depends_on_the_text_and_on_what_it_closes_over() -> None:
    assert rule_key(twice()) == rule_key(twice())
    assert rule_key(twice()) != rule_key(twice("other"))
    assert rule_key(twice()) != rule_key(replace(twice(), rounding="reassociates"))
    assert len({rule_key(each) for each in RULES}) == len(RULES)


def test_keys_are_the_same_in_every_process() -> None:
    code = "from egraph.rules import RULES; from verify.fingerprint import *; print([rule_key(r) for r in RULES[::9]], verifier_key())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[rule_key(each) for each in RULES[::9]]} {verifier_key()}\n"


HELPED = """import my_helper_of_rules
from egraph.rule import Steps, Tensor, require, rule

@rule
def mine(x: Tensor) -> Steps:
    '''-(-x) = x'''
    inner = -x
    yield -inner
    require(x.rank > my_helper_of_rules.limit, "more axes")
    yield x

RULES = (mine,)
"""


def test_a_key_depends_on_what_a_rule_uses_of_a_user_s_own_modules(tmp_path: Path) -> None:
    from egraph.rewrite.file import load_rules

    def key_with(helper: str) -> str:
        (tmp_path / "my_helper_of_rules.py").write_text(helper)
        path = tmp_path / "mine.py"
        path.write_text(HELPED)
        return rule_key(load_rules(path)[0])

    assert key_with("limit = 1\n") != key_with("limit = 2\n")
    assert key_with("limit = 1\nother = 1\n") == key_with("limit = 1\nother = 2\n")


# Certificates


def test_certificates_survive_a_file() -> None:
    each = twice()
    made = Certificate.of(proof(each), rule_key(each))
    read = parse(format_certificates([made]), "here")
    assert read.by_name == {each.name: made} and read.verifier == verifier_key()
    assert read.current(each) == made
    assert read.current(twice("other")) is None


DAMAGED = ("", "{}", '{"format": 99, "verifier": "", "rules": {}}', '{"format": 1, "verifier": "", "rules": {"a": {}}}')


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_told(text: str) -> None:
    with pytest.raises(RuleError, match="make prove"):
        parse(text, "here")


def test_a_user_s_rule_is_proved_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def prover(each: object) -> Proof:
        assert isinstance(each, Rule)
        asked.append(each.name)
        return proof(each)

    each = twice()
    told: list[str] = []
    first = certify([each], prover, folder=tmp_path, tell=told.append)
    assert certify([each], prover, folder=tmp_path) == first and asked == ["law"] and told == ["proving law"]
    certify([twice("other")], prover, folder=tmp_path)
    assert asked == ["law", "law"]
    for path in tmp_path.iterdir():
        path.write_text("damaged")
    certify([each], prover, folder=tmp_path)
    assert len(asked) == 3


def test_shipped_certificates_are_those_of_the_rules_that_ship() -> None:
    """Every shipped rule has a current certificate: `make prove` proves what changed and writes the file anew."""
    found = shipped()
    assert set(found.by_name) == {each.name for each in RULES}, "make prove"
    assert [each.name for each in RULES if found.current(each) is None] == [], "make prove"
    assert found.verifier == verifier_key(), "make prove"
    assert [name for name, each in found.by_name.items() if not each.is_proved] == []


# The gate


def certificates(monkeypatch: pytest.MonkeyPatch, *made: Certificate) -> None:
    monkeypatch.setattr(gate, "shipped", lambda: Certificates(verifier_key(), {each.name: each for each in made}))


def binding(*shape: int) -> Binding:
    return Binding({"x": TensorType("float32", shape)}, {})


def test_a_match_within_the_certificate_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    each = twice()
    certificates(monkeypatch, Certificate.of(proof(each), rule_key(each)))
    (found,) = admitted([each])
    assert found.verdict == "proved"
    monkeypatch.setattr("verify.application.equal_at_sizes", lambda *sides: pytest.fail("nothing is proved here"))
    assert isinstance(found, Rule) and found.apply(binding(3, 4))


def test_a_match_outside_the_certificate_is_proved_at_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    each = twice()
    certificates(monkeypatch, Certificate.of(proof(each), rule_key(each)))
    (found,) = admitted([each])
    assert isinstance(found, Rule) and found.apply(binding(2, 2, 2))
    assert found.apply(binding(2, 2, 2)) and isinstance(found.admits, Admission) and found.admits.proved_here == 1
    assert notes([found])[0] == "kinds of matches outside a certificate, proved at their own sizes: law 1"


def test_a_match_that_cannot_be_proved_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    @rule
    def law(x: Tensor, y: Tensor) -> Equation:
        """relu(x + y) = relu(x) + relu(y)"""
        return relu(x + y) == relu(x) + relu(y)

    certificates(monkeypatch)
    told: list[str] = []
    (found,) = admitted([law], tell=told.append)
    assert "1 shipped rules have no current certificate" in told[0]
    types = {"x": TensorType("float32", (2,)), "y": TensorType("float32", (2,))}
    assert isinstance(found, Rule)
    with pytest.raises(Mismatch, match="no proof covers it; at these sizes alone it could not be proved either"):
        found.apply(Binding(types, {}))


def test_matches_that_differ_in_a_side_or_in_a_number_are_judged_one_by_one() -> None:
    @rule
    def law(x: Tensor, w: Weight) -> Equation:
        """x w = w x"""
        return x * w == w * x

    x, w = (placeholder(number, TensorType("float32", (2,))) for number in range(2))
    once, found = Admission(law, covers=False), Binding({"x": x.type, "w": w.type}, {}, {"w": 1.0})
    product = apply("Mul", x, w)
    assert once([found], [product], [x]) == ""
    assert "could not be proved" in once([found], [product], [w])
    assert "could not be proved" in once([replace(found, numbers={"w": 2.0})], [product], [x])
    assert "could not be proved" in once([found], [apply("Add", x, w)], [x])
    assert once.proved_here == 1


def test_a_proof_at_the_gate_is_kept_for_all_runs_and_all_rewrites() -> None:
    """A proof made for a match of a rule is reused for a derived program and in the next run."""

    @rule
    def law(x: Tensor, w: Weight) -> Equation:
        """x w = w x"""
        return x * w == w * x

    x, w = (placeholder(number, TensorType("float32", (2,))) for number in range(2))
    product, turned, database = apply("Mul", x, w), apply("Mul", w, x), Database.in_memory()
    match, first = Binding({"x": x.type, "w": w.type}, {}), Gate(database)
    assert Admission(law, covers=False, gate=first)([match], [product], [turned]) == "" and first.proved_now == 1
    again = Gate(database, prover=lambda *sides: pytest.fail("nothing is proved again"))
    assert Admission(law, covers=False, gate=again)([match], [product], [turned]) == ""
    assert again.judge((product,), (turned,), "exact") == Ruling() and again.proved_now == 0


def test_a_proof_for_one_number_is_none_for_another_nor_for_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (placeholder(number, TensorType("float32", (2,))) for number in range(2))
    product, database = apply("Mul", x, w), Database.in_memory()
    for judge in (Gate(database).judge, Gate(database).judge):
        assert judge((product,), (x,), "exact", {1: 1.0}) == Ruling()
        assert "differ" in judge((product,), (x,), "exact", {1: 2.0}).reason
        assert "differ" in judge((product,), (x,), "exact").reason
    monkeypatch.setattr("egraph.optimize.gate.sources_key", lambda: "another prover")
    asked = Gate(database, prover=lambda *sides: "asked again")
    assert asked.judge((product,), (x,), "exact", {1: 1.0}).reason == "asked again"


def test_what_a_certificate_covers_is_compared_where_that_is_asked() -> None:
    x = placeholder(0, TensorType("float32", (2,)))
    unasked = Gate(prover=lambda *sides: pytest.fail("nothing is proved here"))
    assert unasked.judge((x,), (apply("Relu", x),), "exact", is_proved=True) == Ruling()
    assert "the sides differ" in unasked.judge((x,), (apply("Relu", x),), "exact", is_proved=True, is_compared=True).reason


def test_a_shipped_rule_without_a_proof_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    each = twice()
    certificates(monkeypatch, Certificate.of(proof(each, "unknown"), rule_key(each)))
    assert admitted([each]) == ()
    (found,) = admitted([each], unsafe=True)
    assert found.verdict == "unknown" and found.admits is None and unproved([found]) == ("law (unknown)",)


def test_a_user_s_rule_without_a_proof_is_an_error_unless_unsafe(tmp_path: Path) -> None:
    path = write(tmp_path, "my_wrong")
    with pytest.raises(RuleError, match=r"my_wrong is not proved \(refuted\).*--unsafe-rules|my_wrong is not proved") as caught:
        choose_rules([path], [], allow="finite", unsafe=False)
    assert "--unsafe-rules" in str(caught.value)
    rules = choose_rules([path], [], allow="finite", unsafe=True)
    assert "my_wrong (refuted)" in unproved(rules)


@pytest.mark.usefixtures("certified")
def test_a_user_s_proved_rule_is_used(tmp_path: Path) -> None:
    rules = choose_rules([write(tmp_path, "my_associative")], [], allow="finite", unsafe=False)
    found = next(each for each in rules if each.name == "my_associative")
    assert found.verdict == "proved"
    matrices = {name: TensorType("float32", (2, 2)) for name in "abc"}
    assert isinstance(found, Rule) and found.apply(Binding(matrices, {}))


def test_a_rule_that_does_otherwise_with_plain_sizes_is_caught_where_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law whose result depends on the plain sizes of a match, which no file can state, is still compared with its proof."""

    def sides(x: Tensor, y: Tensor) -> Steps:
        yield x - y
        require(x.rank == 1 and y.rank == 1, "vectors")
        yield y - x if isinstance(x.shape[0], int) and x.shape[0] > 500 else -(y - x)

    @rule(rounding="reassociates")
    def subtract_turned(x: Tensor, y: Tensor) -> Steps:
        """x - y = -(y - x), unless a plain size is large"""
        yield x - y
        yield -(y - x)

    monkeypatch.setattr("egraph.optimize.admission.load_rules", lambda path: (replace(subtract_turned, law=Stated(sides)),))
    found = next(each for each in choose_rules([Path("mine.py")], [], allow="finite", unsafe=False) if each.name == "subtract_turned")
    assert isinstance(found, Rule) and found.verdict == "proved"
    vectors = {size: Binding({name: TensorType("float32", (size,)) for name in "xy"}, {}) for size in (7, 1009)}
    assert found.apply(vectors[7])
    with pytest.raises(Mismatch, match="the sides differ"):
        found.apply(vectors[1009])


def test_the_gate_costs_little_in_saturation() -> None:
    """A match is judged once, by its types, because walking a certificate's tree takes microseconds."""
    import time

    each = rule_named("relu_twice")
    assert isinstance(each, Rule)
    tree = {"rank of x": [[[rank], {"a.axis": [[list(range(rank)), True]]}] for rank in range(1, 6)]}
    admission = Admission(each, tree)
    admission.covers = {"rank of x": [[[1, 2, 3, 4], True]]}
    many = [(one, each.apply(one)) for size in range(1, 400) for one in [binding(size, size)]]
    start = time.process_time()
    assert not any(admission([one], [left], [right]) for one, (left, right) in many)
    assert (time.process_time() - start) / len(many) < 1e-3


# The command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return module_command("verify", *arguments)


def test_the_command_prints_a_line_a_rule_and_says_what_is_wrong(judged: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = judged
    assert done.returncode == 1, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert first.startswith("my_associative   proved for all sizes, ranks 2 to ")
    assert first.endswith("also tested on 16 shapes, exact in F_p")
    assert second.startswith("my_wrong         refuted ")
    assert any("first difference at" in line for line in rest) and rest[-1].startswith("1 of 2 rules are proved")


def test_rules_without_a_proof_for_all_sizes_are_counted_apart() -> None:
    verdicts: tuple[Verdict, ...] = ("proved", "proved for these sizes", "refuted")
    told = summary([Proof("some_rule", verdict, "", 1.0, 0, 0, 0, "exact") for verdict in verdicts])
    assert told == "2 of 3 rules are proved, 1 of them application by application, 3.0 s"


@pytest.mark.usefixtures("certified")
def test_the_command_prints_json(tmp_path: Path) -> None:
    done = command(str(write(tmp_path, "my_associative", "my_wrong")), "--json", "--cases", "16", "--no-suggestions")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and (found["rules_total"], found["proved"]) == (2, 1)
    for each in found["rules"]:
        assert {"name", "verdict", "scope", "seconds", "tests"} <= set(each)
    with pytest.raises(AssertionError, match="the sides differ"):
        exec(found["rules"][1]["counterexample"], {"print": lambda *told: None})
    again = command(str(tmp_path / "mine.py"), "--rule", "my_associative", "--json", "--cases", "16")
    assert again.returncode == 0 and json.loads(again.stdout)["rules"][0]["seconds"] == float(f"{found['rules'][0]['seconds']:.2g}")


@pytest.mark.parametrize("arguments", [["nowhere.py"], [], ["--shipped", "--rule", "no_such_rule"]])
def test_what_cannot_be_used_is_exit_code_two(arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and "error:" in done.stderr and "fix:" in done.stderr


def test_help_answers_at_once() -> None:
    code = (
        "import sys, runpy; sys.argv = ['verify', '--help']\n"
        "try: runpy.run_module('verify', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('numpy', 'z3', 'onnx', 'egglog') if m in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "examples:" in done.stdout, done.stderr


def test_shipped_rules_are_proved_from_scratch() -> None:
    names = ("--rule", "relu_twice", "--rule", "transpose_nothing")
    done = command("--shipped", "--no-cache", "--json", *names, "--runner", "processes:1", "--cases", "8")
    assert done.returncode == 0, done.stderr
    assert [each["verdict"] for each in json.loads(done.stdout)["rules"]] == ["proved", "proved"]




# Comparisons beside proofs


def subtraction(size: int, *, wrong_at: int | None = None, stretch: int = 1) -> tuple[Node, Node]:
    """Return x - y and -(y - x), with ``stretch`` elements from position ``wrong_at`` on not negated."""
    x, y = (placeholder(number, TensorType("float32", (size,))) for number in range(2))
    good = apply("Neg", apply("Sub", y, x))
    if wrong_at is None:
        return apply("Sub", x, y), good
    cuts = [(good, 0, wrong_at), (apply("Sub", y, x), wrong_at, wrong_at + stretch), (good, wrong_at + stretch, size)]
    parts = [apply("Slice", each, starts=(low,), ends=(high,), steps=(1,)) for each, low, high in cuts]
    return apply("Sub", x, y), apply("Concat", *parts, axis=0)


@pytest.mark.parametrize("wrong_at", [1, 25, 998])
def test_one_wrong_element_of_a_small_result_is_seen(wrong_at: int) -> None:
    left, right = subtraction(1000, wrong_at=wrong_at)
    found = compare_sides([left], [right], {})
    assert f"differ at [{wrong_at}]" in found.reason and (found.positions, found.fraction) == (1000, 0.0)
    assert compare_sides([left], [subtraction(1000)[1]], {}) == Comparison("", 1000, 1000)


def test_of_a_large_result_positions_are_compared_and_the_bound_is_told() -> None:
    size = 2 * WHOLE
    left, right = subtraction(size)
    found = compare_sides([left], [right], {})
    assert not found.reason and ASKED <= found.positions < size and found.fraction <= FRACTION
    assert f"of {size:,} elements: a difference at {100 * found.fraction:.2g} % of them is missed" in str(found)
    assert compare_sides([left], [subtraction(size, wrong_at=size // 3, stretch=size // 1000)[1]], {}).reason


def test_a_wrong_row_of_a_large_result_is_seen() -> None:
    x = placeholder(0, TensorType("float32", (3, 1009, 401)))
    cuts = [(apply("Neg", x), 0, 770), (x, 770, 771), (apply("Neg", x), 771, 1009)]
    parts = [apply("Slice", each, starts=(0, low, 0), ends=(3, high, 401), steps=(1, 1, 1)) for each, low, high in cuts]
    assert ", 770, " in compare_sides([apply("Neg", x)], [apply("Concat", *parts, axis=1)], {}).reason


def test_long_sums_are_compared_at_fewer_positions_and_the_bound_says_so() -> None:
    """Long sums are compared at fewer positions, and the reported bound is weaker.

    For example, a convolution of 1,024 channels adds 9,216 products for an element: at 13,809 positions that took seconds beside a proof of
    0.2 s.
    """
    x = placeholder(0, TensorType("float32", (1, 1024, 30, 30)))
    weight = placeholder(1, TensorType("float32", (512, 1024, 3, 3)), constant=True)

    def conv(some: Node) -> Node:
        return apply("Conv", x, some, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, layout="NCHW")

    product = conv(weight)
    halves = [apply("Slice", weight, starts=(low, 0, 0, 0), ends=(low + 256, 1024, 3, 3), steps=(1, 1, 1, 1)) for low in (0, 256)]
    found = compare_sides([product], [apply("Concat", *(conv(half) for half in halves), axis=1)], {})
    assert not found.reason and 9216 * found.positions <= MOST_TERMS and 0.1 > found.fraction > FRACTION
    swapped = apply("Concat", *(conv(half) for half in halves[::-1]), axis=1)
    assert "differ" in compare_sides([product], [swapped], {}).reason


def test_roots_of_negative_numbers_are_compared_on_positive_ones() -> None:
    x = placeholder(0, TensorType("float32", (50,)))
    root = apply("Sqrt", x)
    assert not compare_sides([root], [root], {}).reason
    assert "differ" in compare_sides([apply("Log", x)], [apply("Log", apply("Abs", apply("Mul", x, x)))], {}).reason


def test_the_gate_says_what_it_compared_and_inspect_prints_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    each = twice()
    certificates(monkeypatch, Certificate.of(proof(each), rule_key(each)))
    (found,) = admitted([each], where={each.name: tmp_path})
    assert isinstance(found, Rule) and found.apply(binding(3, 4)) and found.apply(binding(2, 2, 2, 2))
    told = "kinds of matches compared on random operands: law 2; of the one with least certainty all 16 elements"
    assert notes([found])[-1] == told


@rule
def negative_power(x: Tensor) -> Steps:
    """-(-x) = x, false at one element of vectors of 50 and more"""
    inner = -x
    yield -inner
    n = x.shape[0]
    parts = (slice_(each, starts=(low,), ends=(high,), steps=(1,)) for each, low, high in ((x, 0, 25), (inner, 25, 26), (x, 26, n)))
    yield x if n < 50 else concat(*parts, axis=0)


def test_a_user_s_rule_is_held_to_the_whole_result_where_its_proof_was_deceived() -> None:
    deceived = Admission(negative_power, covers=True, tried=True)
    user = replace(negative_power, admits=deceived)
    assert user.apply(binding(49))
    with pytest.raises(Mismatch, match=r"the sides differ at \[25\]"):
        user.apply(binding(1000))


def test_a_single_number_made_of_a_large_tensor_is_compared() -> None:
    x = placeholder(0, TensorType("float32", (700, 700)))

    def single(node: Node, op: str) -> Node:
        return apply("Reshape", apply(op, node, axes=(0, 1)), shape=())

    turned = single(apply("Transpose", x, perm=(1, 0)), "ReduceSum")
    assert str(compare_sides([single(x, "ReduceSum")], [turned], {})) == "all 1 elements"
    assert "differ" in compare_sides([single(x, "ReduceSum")], [single(x, "ReduceMax")], {}).reason


def test_a_rule_and_its_mirror_image_are_compared_once() -> None:
    x = placeholder(0, TensorType("float32", (3, 4)))
    left, right = apply("Relu", apply("Transpose", x, perm=(1, 0))), apply("Transpose", apply("Relu", x), perm=(1, 0))
    gate = Gate()
    there = gate.judge([left], [right], "exact", is_compared=True)
    assert there.comparison is not None and not there.reason
    assert gate.judge([right], [left], "exact", is_compared=True).comparison is there.comparison
    assert gate.proved_now == 2, "each way is a statement of its own"


def test_short_proofs_are_enough_only_where_sides_are_compared_besides() -> None:
    asked: list[object] = []

    def prover(*sides: object) -> str:
        asked.append(sides[-1])
        return ""

    x = placeholder(0, TensorType("float32", (3, 4)))
    gate = Gate(prover=prover)
    gate.judge([apply("Neg", apply("Neg", x))], [apply("Relu", x)], "exact")
    assert gate.judge([apply("Relu", x)], [apply("Neg", apply("Neg", x))], "exact", is_compared=True).reason, "the comparison refutes"
    assert asked == [False, True]


def test_a_comparison_holds_for_the_numbers_that_it_was_made_with() -> None:
    x, c = placeholder(0, TensorType("float32", (3, 4))), placeholder(1, TensorType("float32", ()), constant=True)
    gate, scaled = Gate(), apply("Mul", x, c)
    assert not gate.judge([scaled], [x], "exact", {1: 1.0}, is_proved=True, is_compared=True).reason
    assert gate.judge([scaled], [x], "exact", {1: 2.0}, is_proved=True, is_compared=True).reason
