"""Plans for several sizes in one artefact: which plan runs, its results, what is stored, and what is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from egraph.errors import ModelError, TypeMismatch
from egraph.inspect.command import build_parser as inspect_parser
from egraph.inspect.command import run as inspect_run
from egraph.onnx import importer
from egraph.onnx.importer.sizes import UNKNOWN_SIZES
from egraph.optimize.arguments import parse, parse_sizes, to_options
from egraph.optimize.options import ANY
from egraph.optimize.padding import Padding, begins_alike
from egraph.optimize.size_plan import BATCH, size_plan, spread, with_open_batch, with_shapes
from egraph.tensor import Graph, Node, TensorType, placeholder
from egraph.tensor import attributes as make_attributes
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate, meaning
from runtime import Session
from runtime.errors import ExecutionError, InvalidArgument
from runtime.sizes import Size, Sizes
from tests.support.commands import command, files_below
from tests.support.forked import run_forked

QUICK = ("--no-derivations", "--finalists", 1, "--threads", 1)


def transformer(*, width: int = 32, layers: int = 2, vocabulary: int = 50) -> onnx.ModelProto:
    """Return attention layers over token numbers with a mask; ``batch`` and ``seq`` are open."""
    random = np.random.default_rng(3)
    constants: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        constants.append(numpy_helper.from_array((random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name))
        return name

    constants.append(numpy_helper.from_array(np.float32(1 / np.sqrt(width)), "scale"))
    constants.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
    nodes = [
        helper.make_node("Gather", [weight("embedding", vocabulary, width), "ids"], ["x0"]),
        helper.make_node("Unsqueeze", ["mask", "one"], ["bias"]),
    ]
    for layer in range(layers):
        x, y = f"x{layer}", f"x{layer + 1}"

        def apply(op: str, inputs: list[str], result: str, layer: int = layer, **values: object) -> str:
            nodes.append(helper.make_node(op, inputs, [f"{result}{layer}"], **values))
            return f"{result}{layer}"

        query, key, value = (apply("MatMul", [x, weight(f"{name}{layer}", width, width)], f"{name}_") for name in "qkv")
        turned = apply("Transpose", [key], "turned", perm=[0, 2, 1])
        scores = apply("Mul", [apply("MatMul", [query, turned], "raw"), "scale"], "scores")
        chances = apply("Softmax", [apply("Add", [scores, "bias"], "masked")], "chances", axis=-1)
        joined = apply("Add", [apply("MatMul", [chances, value], "mixed"), x], "joined")
        scale, shift = weight(f"scale{layer}", width), weight(f"shift{layer}", width)
        normal = apply("LayerNormalization", [joined, scale, shift], "normal", axis=-1)
        inner = apply("Relu", [apply("MatMul", [normal, weight(f"up{layer}", width, 4 * width)], "inner")], "active")
        nodes.append(helper.make_node("MatMul", [inner, weight(f"down{layer}", 4 * width, width)], [y]))
    graph = helper.make_graph(
        nodes, "transformer",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]),
         helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "seq"])],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, ["batch", "seq", width])], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def recurrent(time: str | int = "time") -> onnx.ModelProto:
    """Return a convolution over time, then a recurrent layer; ``time`` may be open or fixed."""
    random = np.random.default_rng(4)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], kernel_shape=[3], pads=[1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[2, 0, 1]),
        helper.make_node("GRU", ["c", "w", "r"], ["y", ""], hidden_size=6),
    ]
    graph = helper.make_graph(
        nodes, "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, time])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [time, 1, 1, 6])],
        [weight("k", 5, 4, 3), weight("w", 1, 18, 5), weight("r", 1, 18, 6)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tokens(length: int, batch: int = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(length)
    return {
        "ids": random.integers(0, 50, (batch, length)),
        "mask": np.where(random.random((batch, length)) < 0.2, -1e4, 0.0).astype(np.float32),
    }


def waves(length: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(length).standard_normal((1, 4, length)).astype(np.float32)}


def expected(model: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    results: list[np.ndarray] = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    return results


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Plan the transformer for three lengths; which of the programs beat onnxruntime depends on the machine."""
    folder = tmp_path_factory.mktemp("planned")
    model = folder / "m.onnx"
    onnx.save(transformer(), model)
    shared = (*QUICK, "--budget", "40s", "--database", folder / "p.sqlite", "--json", "-q", model)
    done = command("--shape", "batch=1", "--shape", "seq=8..64", "--buckets", 3, "-o", folder / "several", *shared)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(model=model, several=folder / "several", database=folder / "p.sqlite", found=json.loads(done.stdout))


def test_json_lists_what_was_planned_and_what_becomes_of_the_rest(planned: SimpleNamespace) -> None:
    found = planned.found
    assert [bucket["sizes"] for bucket in found["buckets"]] == [{"seq": 8}, {"seq": 22}, {"seq": 64}]
    assert all(bucket["max_rel_err"] < 1e-4 and bucket["inputs"]["random"] == 3 for bucket in found["buckets"])
    assert found["sizes"] == {"seq": "8..64"} and found["others"] == "onnxruntime" and not found["left_out"]
    between = {seq for gap in found["between"] for seq in numbers(gap["sizes"].removeprefix("seq="))}
    assert between == {*range(9, 22), *range(23, 64)}, "whatever is between goes somewhere"
    assert all(gap["runs"] == "onnxruntime" and gap["why"] for gap in found["between"]), "attention reads all rows"
    assert len(found["checked_between"]) == 1
    assert {Path(file).name for file in found["files"]} == {"m.opt.onnx", "m.einsat"}


def numbers(text: str) -> range:
    """Return the numbers of ``9..21`` or of ``9``."""
    low, _, high = text.partition("..")
    return range(int(low), int(high or low) + 1)


def test_a_session_picks_the_plan_of_its_inputs_and_leaves_the_rest_to_onnxruntime(planned: SimpleNamespace) -> None:
    with Session(planned.several / "m.opt.onnx", threads=1) as session:
        assert [argument.shape for argument in session.get_inputs()] == [[1, "seq"], [1, "seq"]]
        for length in (64, 8, 9, 22, 63, 1, 65, 100, 8):
            feeds = tokens(length)
            (result,) = session.run(None, feeds)
            np.testing.assert_allclose(result, expected(planned.model, feeds)[0], rtol=1e-4, atol=1e-5)
            ran = session.executable.plan
            is_planned = next(bucket["runs"] == "program" for bucket in planned.found["buckets"] if bucket["sizes"]["seq"] == length) \
                if length in (8, 22, 64) else False  # fmt: skip
            assert ran.inputs[0].shape == ((1, length) if is_planned else (1, "seq"))
            assert [step.kind for step in ran.steps] == ["onnxruntime"] or is_planned
        out = np.empty((1, 22, 32), np.float32)
        (result,) = session.run(["x2"], tokens(22), out={"x2": out})
        assert result is out
        assert session.profile(1) and session.run_native(1)
    with pytest.raises(ExecutionError, match="closed"):
        session.run(None, tokens(22))


def test_what_shape_fixed_is_refused_at_all_sizes(planned: SimpleNamespace) -> None:
    with Session(planned.several / "m.einsat", threads=1) as session:
        for length in (22, 23):
            with pytest.raises(InvalidArgument, match=r"(?s)index: 0 Got: 2 Expected: 1.*--shape ids:2"):
                session.run(None, tokens(length, batch=2))
        with pytest.raises(InvalidArgument, match="'mask'"):
            session.run(None, {"ids": tokens(22)["ids"]})


def test_a_size_is_one_number_in_all_inputs_that_have_it() -> None:
    sizes = Sizes((Size("batch", (("ids", 0), ("mask", 0)), "1/*"), Size("seq", (("ids", 1), ("mask", -1)), "4..9")), ())
    ids, mask = np.zeros((1, 4), np.int64), np.zeros((1, 1, 4), np.float32)
    assert sizes.point({"ids": ids, "mask": mask}) == (1, 4)
    assert sizes.point({"ids": ids.tolist(), "mask": mask}) == (1, 4), "what has no sizes of its own is an array first"
    assert sizes.point({"ids": ids, "mask": mask[..., 1:]}) is None and sizes.point({"ids": ids, "mask": mask.repeat(2, 0)}) is None
    assert sizes.point({"ids": ids}) is None and sizes.point({"ids": ids[0], "mask": mask}) is None


def test_weights_are_stored_once_and_mapped_once(tmp_path: Path) -> None:
    """All sizes share one weights file. The device is not timed, so every size has a program."""
    onnx.save(transformer(), model := tmp_path / "m.onnx")
    one, several = tmp_path / "one" / "m.einsat", tmp_path / "several" / "m.einsat"
    shared = (model, *QUICK, "--device", "reference", "--database", tmp_path / "p.sqlite", "-q")
    for folder, lengths in ((one, "64"), (several, "8..64")):
        done = command("--shape", "batch=1", "--shape", f"seq={lengths}", "-o", folder.parent, *shared)
        assert done.returncode == 0, done.stderr
    weights = [path for path in several.rglob("*") if path.suffix == ".safetensors"]
    assert weights == [several / "weights.safetensors"] == list(several.rglob("weights*"))
    assert weights[0].stat().st_size < 1.3 * (one / "weights.safetensors").stat().st_size
    assert (several / "original.onnx").stat().st_size < model.stat().st_size / 10, "its constants are those of the plans"
    with Session(several, threads=1) as session:
        assert not session._opened, "nothing is opened before it is needed"
        session.run(None, tokens(8))
        session.run(None, tokens(64))
        assert len(session._opened) == 2
        assert all(opened.artefact.weights is session.artefact.weights for opened in session._opened.values())


def test_the_standard_model_is_the_given_one(planned: SimpleNamespace) -> None:
    assert (planned.several / "m.opt.onnx").read_bytes() == planned.model.read_bytes()


def test_inspect_says_which_size_goes_where(planned: SimpleNamespace) -> None:
    def inspected(*arguments: object) -> str:
        return inspect_run(inspect_parser().parse_args([*map(str, arguments)]))

    artefact = planned.several / "m.einsat"
    told = inspected(artefact)
    assert "m.onnx: 3 planned sizes" in told and "seq (8..64): axis 1 of ids, axis 1 of mask" in told
    assert all(f"  seq={length} " in told for length in (8, 22, 64)) and "onnxruntime: there is no program for them" in told
    assert f"and at {next(iter(planned.found['checked_between']))}" in told
    assert all(f"{gap['sizes']} " in told and gap["why"] in told for gap in planned.found["between"])
    one = json.loads(inspected(artefact, "--json"))["buckets"][1]
    assert not list((artefact / "sizes").rglob("dispatch.so")) and (artefact / "dispatch.so").exists()
    assert one["sizes"] == {"seq": 22} and one["folder"] == "sizes/seq=22" and one["run"]["options"]["shapes"]["ids"] == [1, 22]
    assert "kernels, cpu" in inspected(artefact / "sizes/seq=22")
    with pytest.raises(ModelError, match=r"several sizes[^$]*sizes/seq=64"):
        inspected(artefact, "--why", "0")


def test_the_same_command_again_writes_the_same_bytes_and_searches_nothing(planned: SimpleNamespace) -> None:
    again = planned.several.parent / "again"
    done = command(
        planned.model, "--shape", "batch=1", "--shape", "seq=8..64", "--buckets", 3, "-o", again, *QUICK,
        "--budget", "40s", "--database", planned.database, "--json", is_forked=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr.count("the search of an earlier run is used") == 3, done.stderr
    before, after = files_below(planned.several), files_below(again)
    assert list(before) == list(after) and [name for name in before if before[name] != after[name]] == []


def test_a_recurrent_model_whose_file_fixes_the_size_takes_others(tmp_path: Path) -> None:
    """Each size of a list is planned, and the standard model has an open size although the file fixed it."""
    model, folder = tmp_path / "m.onnx", tmp_path / "out"
    onnx.save(recurrent(16), model)
    done = command(model, "--shape", "x:1,4,16/24", "-o", folder, *QUICK, "--budget", "30s", "--database", tmp_path / "p.sqlite", "-q")
    assert done.returncode == 0, done.stderr
    onnx.save(recurrent(), model)
    assert onnx.load(folder / "m.opt.onnx").graph.input[0].type.tensor_type.shape.dim[2].dim_param == "x_2"
    with Session(folder / "m.einsat", threads=1) as session:
        for length in (16, 24, 5, 30):
            np.testing.assert_allclose(session.run(None, waves(length))[0], expected(model, waves(length))[0], rtol=1e-4, atol=1e-5)
        sizes = session.artefact.sizes
        assert sizes is not None and [bucket.sizes for bucket in sizes.buckets] == [(16,), (24,)]


def test_inputs_of_the_user_count_for_their_size(tmp_path: Path) -> None:
    """The user's inputs at a planned size and between sizes are used; inputs that fit no size that --shape allows are refused."""
    onnx.save(transformer(layers=1), model := tmp_path / "m.onnx")
    for name, feeds in (("planned", tokens(6)), ("between", tokens(5)), ("wide", tokens(5, batch=2))):
        np.savez(tmp_path / name, ids=feeds["ids"], mask=feeds["mask"])
    np.savez(tmp_path / "torn", ids=tokens(5)["ids"], mask=tokens(6)["mask"])
    arguments = (model, "--shape", "batch=1", "--shape", "seq=4/6", "--device", "reference", "--database", tmp_path / "p.sqlite", *QUICK)
    given = ("--inputs", tmp_path / "planned.npz", "--inputs", tmp_path / "between.npz")
    done = command(*arguments, *given, "--json", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [bucket["inputs"]["given"] for bucket in found["buckets"]] == [0, 1] and "seq=5" in found["checked_between"]
    for name, told in (("wide", "the input 'ids' is 2,5 in the file"), ("torn", "have different ones")):
        done = command(*arguments, "--inputs", tmp_path / f"{name}.npz", "-o", tmp_path / "refused")
        assert done.returncode == 2 and told in done.stderr and not (tmp_path / "refused").exists(), done.stderr


def test_a_model_with_data_outside_keeps_all_of_it(tmp_path: Path) -> None:
    """Large constants move into the weights file; the standard model beside the artefact keeps the data file that it names."""
    (folder := tmp_path / "given").mkdir()
    onnx.save(transformer(layers=1), model := folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=100)
    out, before = tmp_path / "out", expected(model, tokens(5))
    done = command(
        model, "--shape", "batch=1", "--shape", "seq=4/6", "--device", "reference", "--database", tmp_path / "p.sqlite", *QUICK, "-o", out
    )
    assert done.returncode == 0, done.stderr
    (folder / "m.data").unlink()
    np.testing.assert_array_equal(expected(out / "m.opt.onnx", tokens(5))[0], before[0])
    with Session(out / "m.einsat", threads=1) as session:
        np.testing.assert_allclose(session.run(None, tokens(5))[0], before[0], rtol=1e-4, atol=1e-5)
    assert (out / "m.data").exists()


def test_sizes_for_which_no_time_is_left_are_left_out(tmp_path: Path) -> None:
    """All sizes share the budget, and the largest comes first; sizes without time are listed as left out."""
    model = tmp_path / "m.onnx"
    onnx.save(recurrent(), model)
    done = command(model, "--shape", "x:1,4,8..64", "--budget", "2s", "--database", tmp_path / "p.sqlite", "--json", "-q", *QUICK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["left_out"] and found["buckets"][-1]["sizes"] == {"time": 64}
    assert sorted(one["time"] for one in (*found["left_out"], *(b["sizes"] for b in found["buckets"]))) == [8, 16, 32, 64]
    with Session(tmp_path / "m.einsat", threads=1) as session:
        for length in (8, 64):
            np.testing.assert_allclose(session.run(None, waves(length))[0], expected(model, waves(length))[0], rtol=1e-4, atol=1e-5)


INTERRUPTED = """
import os, signal, sys
from egraph.optimize import __main__ as main
from egraph.optimize.progress import Progress
real, seen = Progress.stage, []
def stage(self, name):
    real(self, name)
    seen.append(name)
    if seen.count({stage!r}) == {times}:
        os.kill(os.getpid(), signal.SIGINT)
Progress.stage = stage
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.exit(main.main())
"""


@pytest.mark.parametrize(("stage", "times"), [("saturate", 2), ("put the sizes together", 1)])
def test_ctrl_c_after_the_first_size_leaves_nothing_behind(tmp_path: Path, stage: str, times: int) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(recurrent(), model)
    text = INTERRUPTED.format(stage=stage, times=times)
    arguments = (model, "--shape", "x:1,4,8/16", "-o", tmp_path / "out", "--budget", "20s", "--database", tmp_path / "p.sqlite", *QUICK)
    done = run_forked([*map(str, arguments)], os.environ, 120, script=text)
    assert done.returncode == 130 and "interrupted: nothing was written" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []


def test_a_size_inside_a_range_that_the_model_does_not_take_is_left_out(tmp_path: Path) -> None:
    """The model takes rows of seven: the ends of the range fit, but the size between them that was chosen for the user does not."""
    assert (middle := spread(range(7, 50), 3)[1]) % 7
    shape = numpy_helper.from_array(np.array([-1, 7], np.int64), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Tanh", ["r"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["size"]), ("y", [None, 7])))
    graph = helper.make_graph(nodes, "rows", [x], [y], [shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    options = ("--shape", "x:7..49", "--buckets", "3", "--budget", "30s", "--database", tmp_path / "p.sqlite", "--json", "-q")
    done = command(tmp_path / "m.onnx", *options, *QUICK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["left_out"] == [{"size": middle}] and [b["sizes"]["size"] for b in found["buckets"]] == [7, 49]


def test_each_planned_size_is_compared_with_the_model_in_float64(tmp_path: Path) -> None:
    """onnxruntime's STFT is less exact than the programs, so a comparison with its outputs alone would refuse each of them."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,N] x) => (float[1,M,201] y)
        <int64 step = {160}, int64 length = {400}, float[1] least = {1}>
        { s = STFT(x, step, , length) p = ReduceSumSquare <axes = [-1], keepdims = 0> (s) q = Add(p, least) y = Log(q) }""")
    onnx.save(model, tmp_path / "m.onnx")
    done = command(tmp_path / "m.onnx", "--shape", "x:1,4000/5600", "--threads", 1, "--budget", "30s", "--json", "-q")
    assert done.returncode == 0, done.stderr
    with Session(tmp_path / "m.einsat", threads=1) as session:
        for size, frames in ((4000, 23), (5600, 33)):
            x = np.random.default_rng(0).standard_normal((1, size), np.float32)
            windows = np.stack([x[0, k * 160 : k * 160 + 400].astype(np.float64) for k in range(frames)])
            exact = np.log(np.abs(np.fft.rfft(windows)) ** 2 + 1)
            (y,) = session.run(None, {"x": x})
            assert np.abs(y[0] - exact).max() < 1e-5 * np.abs(exact).max(), "it is a program's, and not onnxruntime's"


def test_planned_sizes_are_geometric_between_the_ends() -> None:
    assert spread(range(32, 513), 4) == (32, 80, 208, 512)
    assert spread(range(8, 65), 4) == (8, 16, 32, 64)
    assert spread(range(1, 4), 4) == (1, 2, 3) and spread(range(7, 8), 4) == (7,)
    for low, high, count in ((1, 100, 2), (3, 1000, 9), (31, 37, 5), (1, 9, 8)):
        found = spread(range(low, high + 1), count)
        assert found[0] == low and found[-1] == high and len(found) == count and list(found) == sorted(set(found))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("x:1,32..512", ("x", ":", ((range(1, 2),), (range(32, 513),)))),
        ("seq=1/32..512", ("seq", "=", ((range(1, 2), range(32, 513)),))),
        ("x:2x3", ("x", ":", ((range(2, 3),), (range(3, 4),)))),
        ("a=b:0/4", ("a=b", ":", ((range(1), range(4, 5)),))),
        ("s:", ("s", ":", ())),
        ("n=1/*", ("n", "=", ((range(1, 2), ANY),))),
        ("x:*/4,3", ("x", ":", ((ANY, range(4, 5)), (range(3, 4),)))),
    ],
)
def test_sizes_are_read(text: str, parsed: object) -> None:
    assert parse_sizes(text) == parsed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--shape", "x:1,4,9..2"), r"the range 9..2 in 'x:1,4,9..2' is empty: write 2..9"),
        (("--shape", "x:1,4,0..2"), r"begins at 0"),
        (("--shape", "x:1,4,2.."), r"is no size and no range"),
        (("--shape", "x:1,4,*"), r"\* in 'x:1,4,\*' plans no size: give a number beside it, for example 1/\*"),
        (("--shape", "time=4,5"), r"gives the size 'time' 2 times"),
        (("--shape", "tme=4..5"), r"(?s)no input has a size 'tme'.*use one of the names time"),
        (("--shape", "tme=4"), r"(?s)no input has a size 'tme'.*use one of the names time"),
        (("--shape", "y:4..5"), r"(?s)no input 'y'.*use one of its inputs: x"),
        (("--shape", "x:4..5"), r"(?s)has 3 axes, not 1.*x:1,4,time"),
        (("--shape", "x:1,4,8", "--buckets", "3"), r"(?s)there is no range.*give a range"),
        (("--shape", "time=8/16", "--buckets", "3"), r"(?s)there is no range"),
        (("--shape", "time=8/*", "--buckets", "3"), r"(?s)there is no range"),
        (("--shape", "x:1,4,8..16", "--buckets", "1"), r"at least 2"),
        (("--shape", "time=4..8", "--shape", "x:1,4,4..9"), r"(?s)'time' is given as 4..8 and as 4..9"),
        (("--shape", "time=4..8", "--shape", "time=4..9"), r"(?s)'time' twice, as 4..8 and as 4..9"),
        (("--shape", "time=1..900", "--buckets", "99"), r"(?s)99 combinations.*at most 64"),
        (("--shape", "time=4..8", "--report", "x.html"), r"--report is for one size"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((ModelError, SystemExit)) as raised:
        points(recurrent(), arguments)
    assert re.search(told, f"{raised.value} {capsys.readouterr().err}")


def points(model: onnx.ModelProto, arguments: tuple[str, ...]) -> tuple[dict[str, int], ...]:
    options = to_options(parse(["m.onnx", *arguments]))
    return size_plan(options, model).points(options.size_request.buckets)


def test_an_unknown_size_ends_the_command(tmp_path: Path) -> None:
    onnx.save(recurrent(), tmp_path / "m.onnx")
    done = command(tmp_path / "m.onnx", "--shape", "tme=4..5", "-o", tmp_path / "out")
    assert done.returncode == 2 and "no input has a size 'tme'" in done.stderr and not (tmp_path / "out").exists()


def asked(model: onnx.ModelProto, *texts: str) -> Any:
    arguments = [part for text in texts for part in ("--shape", text)]
    return size_plan(to_options(parse(["m.onnx", *arguments])), model)


def test_sizes_of_one_name_are_one_size() -> None:
    both = asked(transformer(), "batch=1/4", "seq=8..16")
    assert {varied.name: varied.axes for varied in both.varied} == {
        "batch": (("ids", 0), ("mask", 0)), "seq": (("ids", 1), ("mask", 1)),
    }  # fmt: skip
    assert both.shapes({"batch": 4, "seq": 9}) == {"ids": (4, 9), "mask": (4, 9)}
    assert len(both.points(3)) == 6
    assert asked(transformer(), "ids:1,8..16").inputs == {"ids": (1, "seq"), "mask": (1, "seq")}, "the mask follows"
    with pytest.raises(ModelError, match=r"(?s)the size 'batch' of the input 'ids' is open.*--shape batch=NUMBER"):
        asked(transformer(), "seq=8..16")


def test_one_size_by_name_is_that_of_all_inputs_that_have_it(tmp_path: Path) -> None:
    onnx.save(transformer(), tmp_path / "m.onnx")
    options = to_options(parse([str(tmp_path / "m.onnx"), "--shape", "batch=2", "--shape", "seq=5"]))
    assert not options.size_request.has_several and with_shapes(options).shapes == {"ids": (2, 5), "mask": (2, 5)}


def open_inputs(*shapes: tuple[str | int | None, ...]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, shape) for k, shape in enumerate(shapes)]
    node = helper.make_node("Identity", ["x0"], ["y"])
    return helper.make_model(helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")]))


@pytest.mark.parametrize(
    ("model", "arguments", "batches"),
    [
        (open_inputs(("N", 3, 8, 8)), (), {"N"}),
        (open_inputs((None, 3)), (), {"x0_0"}),
        (open_inputs(("N", 3), ("N",), (2, 2)), (), {"N"}),
        (open_inputs(("N", 3), ("M", 3)), (), {"N", "M"}),
        (open_inputs(("N", 3), ("M",)), (), set()),
        (open_inputs(("samples",)), (), set()),
        (open_inputs((4, "time")), (), set()),
        (open_inputs(("N", "N")), (), set()),
        (open_inputs(("N", 3), (3, "N")), (), set()),
        (open_inputs(("N", 3, "H", "W")), (), set()),
        (open_inputs(("N", 3, "H", "W")), ("--shape", "H=8", "--shape", "W=8..16"), {"N"}),
        (open_inputs(("N", 3, "H", "W")), ("--shape", "H=8"), set()),
        (open_inputs(("N", 3), ("N", "T")), ("--shape", "x1:2,5"), set()),
        (open_inputs(("N", 3)), ("--shape", "N=4/*"), set()),
        (open_inputs(("N", 3)), ("--inputs", "real.npz"), set()),
        (open_inputs((2, 3)), (), set()),
    ],
)
def test_a_batch_is_the_first_axis_alone(tmp_path: Path, model: onnx.ModelProto, arguments: tuple[str, ...], batches: set[str]) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    options = to_options(parse([str(tmp_path / "m.onnx"), *arguments]))
    names = with_open_batch(options).size_request.names
    assert {name for name, choice in names.items() if choice == BATCH} == batches
    assert {name: choice for name, choice in names.items() if name not in batches} == options.size_request.names


def test_inputs_of_unknown_rank_and_constants_leave_no_batch_open(tmp_path: Path) -> None:
    model = open_inputs(("N", 3), ("N", "T"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((2, 2), np.float32), "x1"))
    onnx.save(model, tmp_path / "m.onnx")
    options = to_options(parse([str(tmp_path / "m.onnx")]))
    assert with_open_batch(options).size_request.names == {"N": BATCH}, "an initializer that the file lists as an input is none"
    model.graph.input.append(helper.make_tensor_value_info("any", TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "m.onnx")
    assert with_open_batch(options) is options


def test_a_batch_that_is_left_open_is_planned_as_one(tmp_path: Path) -> None:
    onnx.save(transformer(layers=1), model := tmp_path / "m.onnx")
    arguments = (model, "--shape", "seq=4", "--report", tmp_path / "r.html", *QUICK, "--device", "reference")
    done = command(*arguments, "--database", tmp_path / "p.sqlite", "--json")
    assert done.returncode == 0, done.stderr
    assert "the batch is left open: --shape batch=1/* is taken" in done.stderr
    found = json.loads(done.stdout)
    assert found["sizes"] == {"batch": "1/*"} and [bucket["sizes"] for bucket in found["buckets"]] == [{"batch": 1}]
    assert {key: found[key] for key in ("status", "max_rel_err", "rules")} == {
        key: found["buckets"][0][key] for key in ("status", "max_rel_err", "rules")
    }, "what is said of a program of one size is said of the only one"
    assert {Path(file).name for file in found["files"]} == {"m.opt.onnx", "m.einsat"} and (tmp_path / "r.html").exists()
    with Session(tmp_path / "m.einsat", threads=1) as session:
        for batch, ran in ((1, 1), (3, "batch")):
            np.testing.assert_allclose(session.run(None, tokens(4, batch))[0], expected(model, tokens(4, batch))[0], rtol=1e-4, atol=1e-5)
            assert session.executable.plan.inputs[0].shape == (ran, 4)
        with pytest.raises(InvalidArgument):
            session.run(None, tokens(5, 1))
    shown, explained = (inspect_run(inspect_parser().parse_args([str(tmp_path / "m.einsat"), *why])) for why in ((), ("--why", "0")))
    assert "1 planned size, " in shown and "batch=1 " in shown and "one of them" not in shown
    assert re.search(r"m\.onnx: estimated, \d+ kernels", shown), "and its kernels are listed"
    assert "before:" in explained, "the only program is explained without its folder's name"
    done = command(*arguments, "--database", tmp_path / "p.sqlite")
    assert done.returncode == 0 and "planned: batch=1; other sizes: onnxruntime runs the model as it was given" in done.stdout
    assert "one kernel a node" in done.stdout, "the table is that of one size"
    done = command(model, "--shape", "seq=4", "--to", tmp_path / "imported.txt")
    assert done.returncode == 0 and "input 'ids' : int64[1,4]" in (tmp_path / "imported.txt").read_text(), done.stderr


def test_a_model_that_takes_no_batch_of_one_is_optimised_as_it_is(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> pairs (float[N,3] x) => (float[2,M] y) <int64[2] two = {2, -1}>
        { a = Relu(x) y = Reshape(a, two) }""")
    onnx.save(model, tmp_path / "m.onnx")
    done = command(tmp_path / "m.onnx", *QUICK, "--device", "reference", "--database", tmp_path / "p.sqlite", "--json")
    assert done.returncode == 0, done.stderr
    assert "the model does not take that: " in done.stderr
    printed = json.loads(done.stdout)
    assert "sizes" not in printed and printed["hints"] == [f"{UNKNOWN_SIZES}--shape x:N,3"]
    done = command(tmp_path / "m.onnx", *QUICK, "--device", "reference", "--database", tmp_path / "p.sqlite")
    assert f"{UNKNOWN_SIZES}--shape x:N,3" in done.stdout, "the table ends with what would do more"
    with Session(tmp_path / "m.einsat", threads=1) as session:
        x = np.array([[1, -2, 3], [-4, 5, 6]], np.float32)
        assert session.run(None, {"x": x})[0].tolist() == [[1, 0, 3], [0, 5, 6]]


def test_sizes_between_are_padded_where_that_is_proved(tmp_path: Path) -> None:
    """The batch is padded because its sequences do not affect each other. Any program pays on a device that is not timed."""
    onnx.save(transformer(layers=1), model := tmp_path / "m.onnx")
    done = command(
        model, "--shape", "seq=4/5", "--shape", "batch=1..6", "--buckets", 2, *QUICK,
        "--device", "reference", "--database", tmp_path / "p.sqlite", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(gap["sizes"], gap["runs"]) for gap in found["between"]] == [
        ("batch=2..5,seq=4", "batch=6,seq=4"), ("batch=2..5,seq=5", "batch=6,seq=5")
    ]  # fmt: skip
    assert set(found["checked_between"]) == {"batch=3,seq=4", "batch=3,seq=5"}
    with Session(tmp_path / "m.einsat", threads=1) as session:
        for batch, length, ran in ((3, 4, 6), (5, 5, 6), (1, 4, 1), (6, 5, 6), (7, 4, "batch"), (3, 6, "batch")):
            feeds = tokens(length, batch)
            (result,) = session.run(None, feeds)
            np.testing.assert_allclose(result, expected(model, feeds)[0], rtol=1e-4, atol=1e-5)
            assert session.executable.plan.inputs[0].shape == (ran, length if ran != "batch" else "seq")
            assert result.flags.c_contiguous and result.shape == (batch, length, 32)
        out = np.empty((2, 4, 32), np.float32)
        (result,) = session.run(["x1"], tokens(4, 2), out={"x1": out})
        assert result is out
        np.testing.assert_allclose(out, expected(model, tokens(4, 2))[0], rtol=1e-4, atol=1e-5)
        with pytest.raises(InvalidArgument, match="Invalid output name:y"):
            session.run(["y"], tokens(4, 2))
        with pytest.raises(InvalidArgument):
            session.run(None, {**tokens(4, 2), "more": np.zeros(1)})


def loaded(nodes: list[onnx.NodeProto], sizes: tuple[int, ...], constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Return the nodes from ``x`` to ``y`` as a graph at the given sizes."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [f"d{axis}" for axis in range(len(sizes))])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return importer.load(model, shapes={"x": sizes}).graph


def node(op: str, *inputs: str, **values: object) -> list[onnx.NodeProto]:
    return [helper.make_node(op, ["x", *inputs], ["y"], **values)]


def places(op: str, *inputs: str) -> list[onnx.NodeProto]:
    """Return nodes that add to each row a function of its index, which is constant once the size is known."""
    return [
        helper.make_node("Shape", ["x"], ["shape"], start=1, end=2),
        helper.make_node("Squeeze", ["shape"], ["length"]),
        helper.make_node("Range", ["zero", "length", "step"], ["range"]),
        helper.make_node(op, list(inputs), ["place"]),
        helper.make_node("Cast", ["place"], ["number"], to=1),
        helper.make_node("Unsqueeze", ["number", "one"], ["column"]),
        *node("Add", "column"),
    ]


@pytest.mark.parametrize(
    ("nodes", "is_proved"),
    [
        (node("Relu"), True),
        (node("MatMul", "w"), True),
        (node("Transpose", perm=[1, 0, 2]), True),
        (node("Softmax", axis=2), True),
        (node("ReduceMean", axes=[0]), True),
        (node("Concat", "x", axis=2), True),
        (node("Reshape", "split"), True),
        (node("Softmax", axis=1), False),
        (node("ReduceMean", axes=[1]), False),
        (node("ReduceSum", "one"), False),
        (node("Concat", "x", axis=1), False),
        (node("Reshape", "flat"), False),
        (node("Conv", "k", kernel_shape=[3], pads=[1, 1], auto_pad="NOTSET"), True),
        (node("CumSum", "zero"), True),
        (node("CumSum", "axis"), False),
        (node("Atan"), False),
        (node("Slice", "first", "last", "one"), True),
        (node("Slice", "behind", "last", "one"), False),
        (node("Mul", "c"), True),
        ([helper.make_node("Size", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["f"], to=1), *node("Add", "f")], False),
        (places("Identity", "range"), True),
        (places("Sub", "length", "range"), False),
    ],
)  # fmt: skip
def test_padding_is_proved_where_no_kept_row_reads_an_added_one(nodes: list[onnx.NodeProto], is_proved: bool) -> None:
    """The middle axis of [2, n, 6] is padded; for a convolution it is the batch axis of [n, 6, 8]."""
    constants = {
        "w": np.eye(6, dtype=np.float32), "k": np.ones((4, 6, 3), np.float32), "one": np.array([1]), "zero": np.array(0),
        "axis": np.array(1), "split": np.array([0, 0, 2, 3]), "flat": np.array([-1, 6]), "first": np.array([0]), "last": np.array([3]),
        "behind": np.array([-2]), "step": np.array(1), "c": np.ones((1, 1, 6), np.float32),
    }  # fmt: skip

    def at(size: int) -> Graph:
        sizes = (size, 6, 8) if nodes[0].op_type == "Conv" else (2, size, 6)
        return loaded(nodes, sizes, constants)

    refusal = Padding().refusal(at(5), at(7))
    assert bool(refusal) is not is_proved, refusal


@pytest.mark.parametrize("op", sorted(name for name, spec in OPS.items() if spec.category != "recurrence"))
def test_what_is_proved_of_an_operator_holds_in_numbers(op: str) -> None:
    """Grow all axes of one size, whatever they mean to the operator, and compare results if growing is proved to change nothing."""
    proved = 0
    for seed in range(40):
        random = Random(f"{op} {seed}")
        shapes, attributes = OPS[op].sample(random)
        dtypes = OPS[op].sample_dtypes or ("float32",) * len(shapes)
        sizes = sorted({size for shape in shapes for size in shape})
        if not sizes:
            continue
        size = random.choice(sizes)
        grown = [tuple(n + 2 if n == size else n for n in shape) for shape in shapes]
        chosen = random.randrange(len(shapes))
        grown = random.choice([grown, [g if i == chosen else s for i, (g, s) in enumerate(zip(grown, shapes, strict=True))]])
        try:
            small, large = (_applied(op, each, dtypes, attributes) for each in (shapes, grown))
        except TypeMismatch:
            continue
        if not begins_alike(meaning(small), meaning(large)):
            continue
        proved += 1
        generator = np.random.default_rng(seed)
        data = [
            generator.standard_normal(shape) if "float" in dtype else generator.integers(0, 2 if dtype == "bool" else 6, shape)
            for dtype, shape in zip(dtypes, grown, strict=False)
        ]
        full = dict(zip(large.inputs, data, strict=True))
        part = {node: array[tuple(map(slice, node.type.sizes))] for node, array in zip(small.inputs, data, strict=True)}
        with np.errstate(all="ignore"):
            (whole,), (kept,) = evaluate([large], full), evaluate([small], part)
        np.testing.assert_allclose(whole[tuple(map(slice, kept.shape))], kept, rtol=1e-9, err_msg=f"{op} {shapes} {grown} {attributes}")
    assert proved or op in UNPROVED


UNPROVED = frozenset({"Reshape", "Expand"})
"""Operators whose attributes name the sizes of their results, so nothing grows if they are equal."""


def _applied(op: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], attributes: Mapping[str, Any]) -> Node:
    operands = [placeholder(i, TensorType(dtype, shape)) for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))]
    return apply(op, *operands, attributes=make_attributes(**attributes))


def test_damaged_sizes_are_an_error_of_the_artefact(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text('{"version": 9}')
    with pytest.raises(ExecutionError, match="version 9 is not 1"):
        Sizes.read(tmp_path)
