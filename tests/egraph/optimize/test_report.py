"""The report is one self-contained page with the results of the run."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Literal
from xml.etree import ElementTree

import pytest

from egraph.errors import ModelError
from egraph.inspect.command import why
from egraph.optimize.outcome import Derived, Finalist, Growth, KernelRow, Offered, Outcome, RuleUse
from egraph.optimize.report import MOST_BOXES, arrange, boxes, draw, format_count, format_size, format_time, growth_chart, render


def row(number: int, *operands: int, rules: tuple[str, ...] = ()) -> KernelRow:
    return KernelRow(
        name=f"Conv + Relu {number}", implementation="onednn.convolution" if number % 2 else "tvm", fragment="Relu(Conv(%0, $1))",
        shape="float32[1,8,4,4]", time_us=10.0 + number, is_measured=True, flops=2e6, size_bytes=4096, roofline_share=0.5, rules=rules,
        source_nodes=(f"node<{number}>",), operands=operands,
    )  # fmt: skip


def outcome(status: Literal["faster", "unchanged"] = "faster") -> Outcome:
    return Outcome(
        model="net<1>.onnx", device="cpu | some processor | threads=2", threads=2, status=status,
        latency_us={"onnxruntime": 1500.0, "unoptimized": 3000.0, "optimized": 1000.0 if status == "faster" else 1500.0},
        max_rel_err=2.5e-7, worst_output="y",
        rules=(RuleUse("merge_convs", "tested only", 1, "conv(x, w_i) = conv(x, [w])_i", "reassociates"),),
        growth=(Growth(10, 8, 5, 0.1), Growth(40, 20, 50, 0.2)),
        rule_statistics=({"rule": "relu_twice", "matches": 3, "unions": 1, "e_nodes": 2},),
        stop_reason="saturated", search_seconds=0.3, extract_method="cp-sat", extract_optimal=True, extract_seconds=0.1,
        kernels=(row(0), row(1, 0), row(2, 0, rules=("merge_convs",)), row(3, 1, 2)) if status == "faster" else (),
        before=tuple(row(i, *((i - 1,) if i else ())) for i in range(6)),
        finalists=(Finalist("unoptimized", "a" * 32, 6, 2900.0, 3000.0), Finalist("program 1", "b" * 32, 4, 900.0, 1000.0),
                   Finalist("program 2", "c" * 32, 4, 950.0, None, "failed to compile")),
        shipped="program 1" if status == "faster" else "onnxruntime", memory={"arena_bytes": 1 << 20, "weights_bytes": 3 << 20},
        environment={"einsat": "0"}, options={"threads": 2, "shapes": {}, "skip_rules": []},
        kernel_counts={"library": 2, "eoperator": 2, "opaque": 0},
    )  # fmt: skip


class Page(HTMLParser):
    """A parser that collects tags, and fails on tags that are not closed in order."""

    VOID = ("meta", "br", "hr", "img", "input", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [f"{name}={value}" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID and tag not in ("tr", "td", "th"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("tr", "td", "th") and tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("status", ["faster", "unchanged"])
def test_the_page_is_whole_and_needs_nothing_else(status: Literal["faster", "unchanged"]) -> None:
    text = render(outcome(status))
    page = Page(text)
    assert not page.open and not page.links
    assert not re.search(r"https?://|@import|url\(|<script", text)
    assert "net&lt;1&gt;.onnx" in text and "<1>" not in text


def test_the_page_says_what_was_found() -> None:
    text = render(outcome())
    tried = ("relu_twice", "40 e-nodes", "failed to compile", "1.0 MiB")
    for told in ("1.50× faster", "merge_convs", "tested only", "conv(x, w_i)", "2.5e-07", *tried):
        assert told in text, told
    kept = render(outcome("unchanged"))
    assert "the model is kept as it was" in kept and "× faster" not in kept


def test_the_manifest_gives_the_same_page_back() -> None:
    made = outcome()
    again = Outcome.from_manifest(json.loads(json.dumps(made.to_manifest())))
    assert render(again) == render(made)


def test_the_manifest_leaves_out_what_differs_from_run_to_run() -> None:
    made = outcome()
    later = dataclasses.replace(made, seconds_total=9.0, search_seconds=9.0, extract_seconds=9.0, files=("/elsewhere",))
    assert later.to_manifest() == made.to_manifest()


@pytest.mark.parametrize(
    ("offered", "kernels", "told"),
    [
        (Offered(), (), ""),
        (Offered(7), (1, 2), "7 programs proved equal; 2 kernels come from them"),
        (Offered(7), (), "7 programs proved equal; the fastest program found has none of them"),
        (Offered(7, is_compared=False), (), "7 programs proved equal; time ended before they were compared"),
    ],
)
def test_what_came_of_derivations_is_said(offered: Offered, kernels: tuple[int, ...], told: str) -> None:
    derived = tuple(Derived("winograd", "bilinear", "conv", (), (number,)) for number in kernels)
    made = dataclasses.replace(outcome(), offered=offered, derived=derived)
    assert made.derivations_text == (f"derivations: {told}" if told else "")
    assert told in render(made) and made.to_json().get("derived_programs", {}) == (dataclasses.asdict(offered) if told else {})
    assert Outcome.from_manifest(json.loads(json.dumps(made.to_manifest()))).derivations_text == made.derivations_text


def test_boxes_stand_below_their_operands_and_apart() -> None:
    rows = [row(0), row(1, 0), row(2, 0), row(3, 1, 2), row(4, 0, 3)]
    placed = arrange(boxes(rows))
    for here in placed:
        assert all(placed[operand].y < here.y for operand in here.box.operands)
    corners = {(p.x, p.y) for p in placed}
    assert len(corners) == len(rows)
    assert arrange(boxes(rows)) == placed


def test_long_programs_are_gathered_into_chains() -> None:
    rows = [row(0), *(row(i, i - 1) for i in range(1, MOST_BOXES + 40))]
    (only,) = boxes(rows)
    assert only.title.startswith(f"{len(rows)} kernels") and only.time_us == sum(r.time_us for r in rows)


def test_a_chain_ends_where_a_result_is_read_twice() -> None:
    length = MOST_BOXES + 1
    rows = [row(0), *(row(i, i - 1) for i in range(1, length)), row(length, 3), row(length + 1, length - 1, length)]
    drawn = boxes(rows)
    assert len(drawn) == 4
    assert drawn[-1].operands == (1, 2)


def test_the_drawing_is_well_formed() -> None:
    tree = ElementTree.fromstring(draw(outcome().kernels))
    assert len(tree.findall("g")) == 4 and len(tree.findall("path")) == 4
    assert ElementTree.fromstring(growth_chart(outcome().growth)).tag == "svg"
    assert growth_chart(()) == ""


def test_numbers_read_well() -> None:
    assert [format_time(t) for t in (0.5, 999.0, 1500.0, 2.5e6)] == ["0.5 µs", "999.0 µs", "1.50 ms", "2.50 s"]
    assert format_time(None) == format_time(float("inf")) == "-"
    assert (format_count(12), format_count(3.2e9)) == ("12 ", "3.2 G")
    assert (format_size(100), format_size(1536)) == ("100 B", "1.5 KiB")


def test_rates_follow_from_time_and_work() -> None:
    one = row(0)
    assert one.gigaflops_s == pytest.approx(2e6 / 10e-6 / 1e9)
    assert one.gigabytes_s == pytest.approx(4096 / 10e-6 / 1e9)
    assert one.intensity == pytest.approx(2e6 / 4096)


def test_a_program_without_kernels_has_nothing_to_explain() -> None:
    with pytest.raises(ModelError, match=r"every output is an input or a constant"):
        why(dataclasses.replace(outcome(), kernels=(), before=()), "0")
    assert why(outcome(), "node<1>")["kernels"]


def test_json_lists_all_finalists_with_their_times_or_why_they_have_none() -> None:
    rows = [tuple(finalist.values()) for finalist in outcome().to_json()["finalists"]]
    assert rows == [
        ("unoptimized", False, 2900.0, 3000.0, ""),
        ("program 1", True, 900.0, 1000.0, ""),
        ("program 2", False, 950.0, None, "failed to compile"),
    ]
