"""Test the estimates of unmeasured kernels, the order in which kernels are measured, and the treatment of kernels that hang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egraph.optimize.measuring import Job, Measurer
from egraph.policy import CostPolicy
from egraph.tensor import OPAQUE, Candidate, ENode, Graph, Implementation, Node, Program, TensorType, attributes, make
from egraph.tensor.ops import apply
from lower.compile import CompileOptions
from lower.cost.model import CostModel, family, jobs, without_twins
from lower.cost.rounding import EXPECTED_SHARE
from lower.roofline import DeviceSpeed, work
from lower.targets import lowering
from runtime.measure import Timing, Worker
from runtime.profile import Database, Record
from tests.support.fragments import leaf
from tests.support.implementations import GENERATED, PRODUCT


def _product(first: int = 0, columns: int = 32) -> Node:
    return apply("MatMul", leaf(first, 8, 16), leaf(first + 1, 16, columns, constant=True))


def _candidate(fragment: Node, implementation: Implementation = PRODUCT, covered: int = 1) -> Candidate:
    return Candidate(fragment, (0, 1), (ENode("MatMul", (), ()),) * covered, implementation)


PLAIN = _candidate(_product())
FUSED = _candidate(apply("Relu", apply("Add", leaf(0, 8, 32), _product(1))), covered=3)
WIDE = _candidate(_product(columns=64))


def _model(**times_us: float) -> CostModel:
    database = Database.in_memory()
    model = CostModel(database, "here", DeviceSpeed())
    for name, time_us in times_us.items():
        database.put(Record("here", *model.key({"plain": PLAIN, "fused": FUSED, "wide": WIDE}[name]), "ok", (time_us,)))
    return model


def test_a_family_is_one_operator_over_what_it_reads() -> None:
    assert family(PLAIN) == family(FUSED) != family(WIDE)
    assert family(_candidate(PLAIN.fragment, Implementation.parse("onednn.other"))) != family(PLAIN)
    assert family(_candidate(apply("Transpose", _product(), perm=(1, 0)))) != family(PLAIN)
    assert family(_candidate(apply("Add", _product(), _product(2)))) is None  # two products: neither determines the family
    assert family(_candidate(apply("Relu", leaf(0, 4)))) is None


def test_a_family_of_operators_below_each_other_is_what_the_last_of_them_computes() -> None:
    def chained(below: Node) -> Node:
        return apply("MatMul", below, leaf(2, 32, 4, constant=True))

    plain = _candidate(chained(_product()))
    assert family(_candidate(apply("Relu", plain.fragment))) == family(plain) is not None
    assert family(_candidate(chained(apply("Relu", _product())))) != family(plain) != family(PLAIN)


def _transposed(x: Node, *perm: int) -> Node:
    return apply("Transpose", x, perm=perm)


def _attention(q: Node, k: Node, v: Node, mask: Node | None = None) -> Node:
    scores = apply("MatMul", q, _transposed(k, *range(k.type.rank - 2), k.type.rank - 1, k.type.rank - 2))
    scores = scores if mask is None else apply("Add", scores, mask)
    return apply("MatMul", apply("Softmax", scores, axis=scores.type.rank - 1), v)


def test_attention_of_the_same_sizes_and_steps_is_a_family() -> None:
    """The views through which operands are read or the result is written do not matter, nor do factors of queries and keys."""

    def part(at: int) -> Node:
        cut = apply("Slice", leaf(0, 1, 9, 36), starts=(0, 0, 12 * at), ends=(1, 9, 12 * at + 12), steps=(1, 1, 1))
        return _transposed(apply("Reshape", cut, shape=(1, 9, 3, 4)), 0, 2, 1, 3)

    model, blocks = _model(), Implementation.parse("attention.blocks", PRODUCT.target)
    q, k, v = (leaf(at, 3, 9, 4) for at in range(3))
    plain = _candidate(_attention(q, k, v), blocks)
    scaled = _candidate(_attention(apply("Mul", q, leaf(3)), apply("Div", k, leaf(3)), v), blocks)
    of_one = _candidate(_transposed(_attention(part(0), part(1), part(2)), 0, 2, 1, 3), blocks)
    assert model.family(plain) == model.family(scaled) == model.family(of_one) is not None
    for other in (
        _candidate(_attention(q, k, v, leaf(3, 9, 9)), blocks), replace(plain, implementation=blocks.in_precision("bf16")),
        *(_candidate(_attention(*(leaf(at, *shape) for at, shape in enumerate(shapes))), blocks)
          for shapes in (((2, 9, 4),) * 3, ((3, 8, 4), (3, 9, 4), (3, 9, 4)), ((3, 9, 4), (3, 8, 4), (3, 8, 4)),
                         ((3, 9, 5), (3, 9, 5), (3, 9, 4)), ((3, 9, 4), (3, 9, 4), (3, 9, 5)))),
    ):  # fmt: skip
        assert model.family(other) not in (model.family(plain), None)
    model.file(Record("here", *model.key(scaled), "ok", (70.0,)))
    model.look_up({1: (plain, scaled)})
    assert model.estimate_us(plain) == pytest.approx(70.0, abs=0.1)


def test_a_kernel_that_rounds_is_estimated_by_its_twin_in_float32() -> None:
    """The estimate is an expected share of the time of the float32 kernel or of a relative.

    Once some kernels are measured in the precision, their share is used.
    """
    shapes = [_candidate(_product(columns=columns)) for columns in (32, 64, 96, 128)]
    lowered = [replace(one, implementation=one.implementation.in_precision("int8")) for one in shapes]
    model = _model()
    assert model.estimate_us(lowered[0]) == pytest.approx(model.expected_us(lowered[0]))
    for one in shapes:
        model.file(Record("here", *model.key(one), "ok", (100.0,)))
    model.look_up({1: (*shapes, *lowered)})
    assert model.estimate_us(lowered[0]) == pytest.approx(100.0 * EXPECTED_SHARE["int8"])
    fused = replace(FUSED, implementation=lowered[0].implementation)
    assert 100.0 * EXPECTED_SHARE["int8"] < model.estimate_us(fused) < 110.0 * EXPECTED_SHARE["int8"]
    for one, time_us in zip(lowered[:3], (80.0, 120.0, 130.0), strict=True):
        model.file(Record("here", *model.key(one), "ok", (time_us,)))
    model.look_up({1: (*shapes, *lowered)})
    assert model.estimate_us(lowered[3]) == pytest.approx(120.0)
    of_another = replace(PLAIN, implementation=Implementation.parse("products.matmul", PRODUCT.target))
    lower = replace(of_another, implementation=of_another.implementation.in_precision("int8"))
    slower = replace(PLAIN, implementation=Implementation.parse("onednn.convolution", PRODUCT.target))
    model.file(Record("here", *model.key(slower), "ok", (300.0,)))
    model.look_up({1: (slower,)})
    assert model.estimate_us(lower) == pytest.approx(100.0 * EXPECTED_SHARE["int8"]), "the fastest other one counts"
    model.file(Record("here", *model.key(of_another), "ok", (90.0,)))
    assert model.estimate_us(lower) == pytest.approx(90.0 * EXPECTED_SHARE["int8"]), "what one library gains says nothing of another"


def test_a_measured_relative_tells_more_than_arithmetic() -> None:
    model = _model(plain=70.0)
    model.look_up({1: (PLAIN, FUSED, WIDE)})
    more_bytes = model.work(FUSED.fragment).size_bytes - model.work(PLAIN.fragment).size_bytes
    assert model.estimate_us(FUSED) == pytest.approx(70.0 + more_bytes / (model.speed.memory_gigabytes_s * 1e3))
    assert model.estimate_us(WIDE) == model.speed.estimate_us(model.work(WIDE.fragment))
    assert model.has_relatives(FUSED) and not model.has_relatives(WIDE)
    small = _model(fused=0.001)
    small.look_up({1: (PLAIN, FUSED)})
    assert small.estimate_us(PLAIN) == 0.0005, "however many bytes fewer, half of its time at least"


def test_the_rate_of_contractions_follows_measured_ones_that_are_faster_than_expected() -> None:
    """A calibration in a slow moment of the machine must not make every contraction that is not measured look slow."""

    def large(columns: int) -> Candidate:
        return _candidate(apply("MatMul", leaf(0, 256, 256), leaf(1, 256, columns, constant=True)))

    model, unmeasured = CostModel(Database.in_memory(), "here", DeviceSpeed()), large(1024)
    calibrated, before_us = model.speed.contraction_gigaflops_s, model.estimate_us(unmeasured)

    def measured(columns: int, times_faster: float) -> None:
        candidate = large(columns)
        model.file(Record("here", *model.key(candidate), "ok", (model.expected_us(candidate) / times_faster,)))
        model.look_up({1: (candidate,)})

    measured(512, 3.0)
    measured(544, 4.0)
    measured(8, 100.0)  # too small to tell the rate
    assert model.estimate_us(unmeasured) == before_us, "two kernels are no evidence"
    measured(576, 0.2)
    assert model.speed.contraction_gigaflops_s == pytest.approx(3.0 * calibrated), "the median of three"
    assert model.estimate_us(unmeasured) - model.speed.launch_us == pytest.approx((before_us - model.speed.launch_us) / 3.0)
    assert model.speculative().estimate_us(unmeasured) == model.estimate_us(unmeasured)
    for columns in range(640, 1000, 32):
        measured(columns, 0.1)
    assert model.speed.contraction_gigaflops_s == calibrated, "slow kernels prove nothing: the rate is never below the calibrated one"
    assert model.estimate_us(unmeasured) == before_us


def test_the_plainest_of_each_family_is_measured_first_and_only_where_none_is() -> None:
    assert jobs(_model(), {1: (FUSED, PLAIN), 2: (WIDE,)}) == [WIDE, PLAIN]
    assert jobs(_model(fused=70.0), {1: (FUSED, PLAIN), 2: (WIDE,)}) == [WIDE]
    assert jobs(_model(wide=1e-3), {1: (FUSED, PLAIN, WIDE)}) == []  # too slow to compete with the wide one


def test_onnxruntime_s_own_kernels_are_met_like_a_library_s() -> None:
    """Regression: estimated like generated kernels, they were preferred to a library's whenever time ran out, and took 50 times as long."""
    model, opaque = CostModel(Database.in_memory(), "here", DeviceSpeed()), replace(PLAIN, implementation=OPAQUE)
    roofline_us = model.speed.kernel_us(PLAIN, model.work(PLAIN.fragment))
    assert model.cost_us(opaque) == CostPolicy.opaque * roofline_us > roofline_us
    model.caution = 4.0
    assert model.cost_us(opaque) == 4.0**CostPolicy.library_caution * CostPolicy.opaque * roofline_us


def test_caution_is_greatest_about_libraries() -> None:
    model = _model()
    generated = _candidate(PLAIN.fragment, GENERATED)
    careless = model.cost_us(PLAIN), model.cost_us(generated)
    model.caution = 4.0
    assert model.cost_us(generated) == 4.0 * careless[1]
    assert model.cost_us(PLAIN) == 4.0**CostPolicy.library_caution * careless[0]


def test_what_failed_is_not_believed_to_be_unknown() -> None:
    model = _model()
    model.file(Record("here", *model.key(PLAIN), "failed", (), "no"))
    assert model.cost_us(PLAIN) > 1e8 and model.is_settled(PLAIN) and not model.has_relatives(FUSED)


def test_a_kernel_that_hangs_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timings = iter([Timing("hung"), Timing("hung"), Timing("hung"), Timing("ok", (3.0,))])
    monkeypatch.setattr(Measurer, "_timing", lambda *_: next(timings))
    monkeypatch.setattr("egraph.optimize.measuring.compile_batch", lambda programs, *_: [tmp_path for _ in programs])
    database = Database.in_memory()
    measurer = Measurer(database, "here", CompileOptions(threads=1), Worker())
    hangs, slept = (Job(one.fragment, PRODUCT, name) for one, name in ((PLAIN, "hangs"), (WIDE, "slept")))
    for job in (hangs, hangs, slept, slept):
        measurer.measure([job], lambda: 1.0, lambda _: None)
    found = [database.get("here", name, PRODUCT.text) for name in ("hangs", "slept")]
    assert [record and record.status for record in found] == ["hung", "ok"]
    assert measurer.measured == 4


def test_nothing_is_filed_after_the_first_hang() -> None:
    database = Database.in_memory()
    measurer = Measurer(database, "here", CompileOptions(threads=1), Worker())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Measurer, "_timing", lambda *_: Timing("hung"))
        patch.setattr("egraph.optimize.measuring.compile_batch", lambda programs, *_: [Path() for _ in programs])
        measurer.measure([Job(PLAIN.fragment, PRODUCT, "hangs")], lambda: 1.0, lambda _: None)
    assert database.get("here", "hangs", PRODUCT.text) is None


def test_a_program_takes_its_kernels_and_the_call() -> None:
    model = _model()
    model.speed = DeviceSpeed(call_us=7.0)
    assert model.program_us(Program(Graph("empty", (), (), {}), (), 30.0)) == 37.0


def test_large_constants_are_timed_apart_where_weights_come_from_memory() -> None:
    model = _model(plain=70.0)
    large = _candidate(apply("MatMul", leaf(0, 8, 128), leaf(1, 128, 1024, constant=True)))
    model.weights_from_memory = True
    assert model.cost_us(PLAIN) == 70.0 and model.device_of(PLAIN.fragment) == "here"
    assert model.device_of(large.fragment) == "here, weights from memory"
    model.database.put(Record("here", *model.key(large), "ok", (5.0,)))
    assert model.record(large) is None
    model.file(Record(model.device_of(large.fragment), *model.key(large), "ok", (9.0,)))
    assert model.cost_us(large) == 9.0


def test_of_kernels_that_run_alike_the_plainest_stays() -> None:
    """Kernels run alike if they have the same operands, in any order, and the same implementation."""
    turned = _candidate(apply("Transpose", apply("Transpose", _product(), perm=(1, 0)), perm=(1, 0)), covered=3)
    generated = _candidate(PLAIN.fragment, GENERATED)
    other = Candidate(PLAIN.fragment, (0, 2), PLAIN.covered, PRODUCT)
    exchanged = Candidate(turned.fragment, (1, 0), turned.covered, PRODUCT)
    assert without_twins(_model(), {1: (turned, exchanged, generated, other, PLAIN)}) == {1: (PLAIN, generated, other)}


def test_times_of_generated_kernels_hold_for_equal_code_and_those_of_libraries_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    database, generated = Database.in_memory(), _candidate(PLAIN.fragment, GENERATED)
    first = CostModel(database, "here", DeviceSpeed())
    for one in (PLAIN, generated):
        first.file(Record("here", *first.key(one), "ok", (7.0,), generator=first.code_digest(one)))
    assert first.cost_us(PLAIN) == first.cost_us(generated) == 7.0
    assert CostModel(database, "here", DeviceSpeed()).cost_us(generated) == 7.0
    monkeypatch.setattr(type(lowering().generator.compiler), "code_digest", lambda *_: "another")
    other = CostModel(database, "here", DeviceSpeed())
    assert other.cost_us(PLAIN) == 7.0 and not other.is_settled(generated)


def test_the_code_of_a_kernel_that_has_no_time_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On some targets the digest of a kernel's code is the digest of its text, which has to be generated first."""
    asked: list[Node] = []

    def asking(_: object, fragment: Node, __: Implementation) -> str:
        asked.append(fragment)
        return "1"

    monkeypatch.setattr(type(lowering().generator.compiler), "code_digest", asking)
    model, generated = CostModel(Database.in_memory(), "here", DeviceSpeed()), _candidate(PLAIN.fragment, GENERATED)
    assert not model.is_settled(generated) and not asked
    model.file(Record("here", *model.key(generated), "ok", (7.0,), generator="1"))
    assert CostModel(model.database, "here", DeviceSpeed()).is_settled(generated) and asked == [generated.fragment]


def _resized(x: Node, mode: str, factor: int) -> Node:
    sizes = (*x.type.sizes[:2], *(factor * size for size in x.type.sizes[2:]))
    scales = (1.0, 1.0, float(factor), float(factor))
    return apply(
        "Resize", x, mode=mode, scales=scales, sizes=sizes, coordinate_mode="half_pixel", cubic_coeff_a=-0.75, exclude_outside=0,
        nearest_mode="round_prefer_floor",
    )  # fmt: skip


def test_elements_that_are_read_several_times_are_computed_as_often() -> None:
    """What is fused before an interpolation is computed for each read, gates also for each channel.

    Regression: a kernel of 22 operators, among them gates before an interpolation, was estimated at 34 us and took 3,760. A GLPN ran 1.6
    times as fast as onnxruntime, and 2.0 times without this kernel.
    """
    x, gate = leaf(0, 1, 64, 32, 32), leaf(1, 1, 1, 32, 32)
    elements = 64 * 32 * 32
    gated = apply("Mul", x, apply("Sigmoid", gate))
    evaluations = {"nearest": 4, "linear": 4 * 4, "cubic": 4 * 16}
    for mode, count in evaluations.items():
        products, functions = elements * (count - 1), elements * count - 32 * 32
        assert work(_resized(gated, mode, 2)).repeated == products + 16 * functions, mode
        assert work(_resized(x, mode, 2)).repeated == work(gated).repeated == 0.0
    window: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NCHW"}
    pooled = work(apply("MaxPool", apply("Relu", x), **window))
    assert pooled.repeated == elements / 4 * 9 - elements, "each window computes its elements"
    speed = DeviceSpeed()
    fused_us, parts_us = speed.estimate_us(work(_resized(gated, "linear", 2))), 0.0
    for part in (gated, _resized(x, "linear", 2)):
        parts_us += speed.estimate_us(work(part))
    assert fused_us > 1.5 * parts_us


def test_only_what_is_computed_where_it_is_read_is_computed_again() -> None:
    """Sums are stored inside a kernel; of a part of a concatenation, only its share is computed."""
    x = leaf(0, 1, 8, 16, 16)
    ordered = apply("Softmax", apply("Exp", x), axis=3)
    assert work(_resized(ordered, "linear", 2)).repeated == 0.0
    sums = apply("Reshape", apply("ReduceMax", apply("Relu", x), axes=(1,)), shape=(1, 1, 16, 16))
    assert work(_resized(apply("Tanh", sums), "nearest", 2)).repeated == 16 * 3 * 256, "only what follows the sums"
    joined = apply("Concat", apply("Relu", x), leaf(1, 1, 24, 16, 16), axis=1)
    assert work(_resized(joined, "nearest", 2)).repeated == 3 * 8 * 256
    twice = _resized(_resized(apply("Relu", x), "linear", 2), "linear", 2)
    assert work(twice).repeated == (16 * 16 - 1) * 8 * 256, "one interpolation of another"
    values = apply("Relu", x)
    for modes in (("linear", "nearest"), ("nearest", "linear")):
        both = work(apply("Add", *(_resized(values, mode, 2) for mode in modes)))
        assert both.repeated == (16 - 1) * 8 * 256, "what several operators read is computed as often as the most demanding one asks"
    fewer = apply(
        "Resize", values, mode="nearest", scales=(1.0, 1.0, 0.5, 0.5), sizes=(1, 8, 8, 8), coordinate_mode="half_pixel",
        cubic_coeff_a=-0.75, exclude_outside=0, nearest_mode="round_prefer_floor",
    )  # fmt: skip
    half = make("Constant", (), attributes(digest="half"), TensorType("float32", ()))
    assert work(_resized(apply("Mul", x, half), "nearest", 2)).repeated == 3 * 8 * 256, "a constant is not computed"
    assert work(fewer).repeated == 0.0, "elements that are not read make up for none"


def test_of_an_operand_counts_what_is_read() -> None:
    """Only the three rows of 112 that are read count, once per read if the first row is mirrored. A sum reads all rows."""
    x, row_bytes = leaf(0, 112, 112, 32), 112 * 32 * 4
    rows = apply("Slice", x, starts=(2, 0, 0), ends=(5, 112, 32), steps=(1, 1, 1))
    mirrored = apply("Expression", x, text="{i0<3,i1<112,i2<32} [0<=i0-1 ? $0[i0-1,i1,i2] : $0[-i0+1,i1,i2]]")
    summed = apply("Expression", x, text="{i0<3,i1<112,i2<32} sum(r0<109) $0[i0+r0,i1,i2]")
    counts = [work(each).size_bytes // row_bytes for each in (rows, mirrored, summed, apply("Relu", rows), apply("Add", rows, rows))]
    assert counts == [3 + 3, 3 + 2 * 3, 3 + 112, 3 + 3, 3 + 3]
