"""The user's own inputs: what a file must hold, the sizes it determines, and the comparison and timing of results on it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from egraph.errors import ModelError
from egraph.onnx.importer import load
from egraph.optimize.check import Disagreement, NoInputs, check
from egraph.optimize.options import Options
from egraph.optimize.race import Contender, race_key, recorded_race
from egraph.optimize.reference import Given, accepted, open_sizes, read, read_given
from egraph.tensor import Graph, TensorType, attributes, make
from egraph.tolerance import Tolerance
from runtime.errors import InvalidArgument
from runtime.feeds import FeedSpec
from runtime.input_file import Declared, read_inputs
from runtime.profile import Database, RaceTime
from runtime.worker import drawing
from tests.support.commands import build_model, command

X, Y = Declared("x", "float32", (2, 3)), Declared("y", "int64", ("n",))
GOOD: Mapping[str, np.ndarray] = {"y": np.arange(4), "x": np.ones((2, 3), np.float32)}
SPECS = (FeedSpec("x", "float32", (2, 3)),)


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, allow_pickle=True, **arrays)
    return path


def test_arrays_come_in_the_order_and_layout_of_the_model(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = read_inputs(saved(tmp_path / "a.npz", y=GOOD["y"], x=np.asfortranarray(values.astype(">f4"))), [X, Y])
    assert list(found) == ["x", "y"] and found["x"].flags.c_contiguous and found["x"].dtype == np.dtype(np.float32)
    assert (found["x"] == values).all()
    np.save(tmp_path / "one.npy", np.array(["a", "bc"]))
    strings = read_inputs(tmp_path / "one.npy", [Declared("s", "string", (2,))])["s"]
    assert strings.dtype == object and list(strings) == ["a", "bc"]
    np.save(tmp_path / "scalar.npy", np.float32(3))
    assert read_inputs(tmp_path / "scalar.npy", [Declared("s", "float32", ())])["s"].shape == ()


@pytest.mark.parametrize(
    ("change", "told", "fix"),
    [
        ({"y": None}, "no array for the input 'y'; it has x", "inputs x, y"),
        ({"z": np.ones(1)}, "the model has no input 'z'", "x, y"),
        ({"x": np.ones((2, 3))}, "'x' is float64 in the file, the model takes float32", "astype(np.float32)"),
        ({"x": np.ones((2, 4), np.float32)}, "'x' is 2,4 in the file, the model takes 2,3", "arrays of these sizes"),
        ({"x": np.ones(6, np.float32)}, "'x' is 6 in the file, the model takes 2,3", "arrays of these sizes"),
        ({"y": np.array(4)}, "'y' is a scalar in the file, the model takes n", "arrays of these sizes"),
        ({"x": np.array([1, "a"], object)}, "cannot be read", "np.savez"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_what_to_do(tmp_path: Path, change: dict[str, Any], told: str, fix: str) -> None:
    path = saved(tmp_path / "a.npz", **{name: array for name, array in {**GOOD, **change}.items() if array is not None})
    with pytest.raises(InvalidArgument, match=re.escape(told)) as caught:
        read_inputs(path, [X, Y])
    assert fix in caught.value.fix and caught.value.where == str(path)


def test_what_is_no_file_of_arrays_is_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path / "a.npz", **GOOD).read_bytes()
    for name, content in {"empty.npz": b"", "cut.npz": whole[: len(whole) // 2], "text.npy": b"1 2 3"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidArgument, match="cannot be read"):
            read_inputs(tmp_path / name, [X, Y])
    with pytest.raises(InvalidArgument, match="No such file"):
        read_inputs(tmp_path / "none.npz", [X])
    np.save(tmp_path / "one.npy", GOOD["x"])
    with pytest.raises(InvalidArgument, match="has the inputs x, y: one array is not enough"):
        read_inputs(tmp_path / "one.npy", [X, Y])


def inputs_of(**types: TensorType) -> Graph:
    nodes = tuple(make("Input", (), attributes(name=name), type) for name, type in types.items())
    return Graph("g", nodes, tuple((f"out_{node.string('name')}", node) for node in nodes), {})


def test_open_sizes_are_the_files(tmp_path: Path) -> None:
    model = build_model(tmp_path / "m.onnx", dynamic=True)
    file = saved(tmp_path / "a.npz", x=np.ones((3, 12), np.float32))
    told: list[str] = []
    options, imported, given = read(Options(model, inputs=(file,)), told.append)
    assert options.shapes == {"x": (3, 12)} and imported.graph.inputs[0].type.shape == (3, 12)
    assert told == ["sizes that the model leaves open are those of a.npz: --shape x:3,12"] and given.files == (file,)
    same, _, _ = read(Options(model, inputs=(file,), shapes={"x": (3, 12)}), told.append)
    assert same.shapes == {"x": (3, 12)} and len(told) == 1, "the flag says so already"
    with pytest.raises(ModelError, match="'x' is 3,12 in the file, the model takes 5,12") as caught:
        read(Options(model, inputs=(file,), shapes={"x": (5, 12)}), told.append)
    assert "leave --shape out" in caught.value.fix and "--inputs" in caught.value.where
    file = saved(tmp_path / "b.npz", x=np.ones((5, 12), np.float32))
    fixed, _, _ = read(Options(build_model(tmp_path / "f.onnx"), inputs=(file,)), told.append)
    assert fixed.shapes == {}, "the model itself says the sizes"


def test_files_have_to_agree(tmp_path: Path) -> None:
    graph = inputs_of(x=TensorType("float32", ("n", 2)), y=TensorType("float32", ("n",)))
    arrays = {"x": np.ones((3, 2), np.float32), "y": np.ones(3, np.float32)}
    one = saved(tmp_path / "one.npz", **arrays)
    assert open_sizes(read_given([one, one], graph, is_fixed=False), graph) == {"x": (3, 2), "y": (3,)}
    other = saved(tmp_path / "other.npz", x=np.ones((4, 2), np.float32), y=np.ones(4, np.float32))
    with pytest.raises(ModelError, match=r"'x' is 3,2 in one.npz and 4,2 in other.npz: a program is made for one set of sizes"):
        read_given([one, other], graph, is_fixed=False)
    torn = saved(tmp_path / "torn.npz", **{**arrays, "y": np.ones(5, np.float32)})
    with pytest.raises(ModelError, match="the size 'n' is 3 in the input 'x' and 5 in 'y'"):
        open_sizes(read_given([torn], graph, is_fixed=False), graph)


def given_of(*scales: float) -> Given:
    feeds = tuple({"x": np.full((2, 3), scale, np.float32)} for scale in scales)
    return Given(tuple(Path(f"{scale}.npz") for scale in scales), feeds)


def test_what_random_inputs_cannot_give_needs_the_users() -> None:
    """A model that refuses random inputs is compared only on the user's; one that refuses the user's is not optimized at all."""
    graph = inputs_of(x=TensorType("float32", (2, 3)))

    def run(names: None, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        if (feeds["x"] != feeds["x"][0, 0]).any():
            raise ValueError("not constant")
        if feeds["x"][0, 0] < 0:
            raise ValueError("negative")
        return [-feeds["x"]]

    heard: list[float] = []
    session = SimpleNamespace(run=run)
    found = accepted(session, graph, given_of(1, 2), 0, lambda feeds, outputs: heard.append(float(feeds["x"][0, 0])))
    assert not found.is_random and heard == [1, 2] and [spec.shape for spec in found.specs] == [(2, 3)]
    assert "on your inputs alone" in found.notes[0] and "not constant" in found.notes[0]
    with pytest.raises(NoInputs, match="not constant") as caught:
        accepted(session, graph, Given(), 0, lambda feeds, outputs: None)
    assert "--inputs" in caught.value.fix
    with pytest.raises(ModelError, match="on these inputs: negative") as refused:
        accepted(session, graph, given_of(1, -1), 0, lambda feeds, outputs: None)
    assert "-1.npz" in refused.value.where


def test_how_long_a_run_takes_is_not_told_by_the_first() -> None:
    runs: list[float] = []

    def run(names: None, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        runs.append(time.process_time())
        while time.process_time() - runs[-1] < (0.2 if len(runs) == 1 else 0.02):
            pass
        return [-feeds["x"]]

    graph = inputs_of(x=TensorType("float32", (2, 3)))
    asked = accepted(SimpleNamespace(run=run), graph, Given(), 0, lambda feeds, outputs: None)
    assert len(runs) == 2 and 0.02 <= asked.run_seconds < 0.1


@pytest.mark.parametrize(("files", "count", "goes_on", "given", "drawn"), [
    (1, 3, True, 1, 2), (2, 2, True, 2, 0), (3, 1, True, 3, 0), (3, 5, False, 3, 0), (0, 3, True, 0, 3), (0, 3, False, 0, 1),
])  # fmt: skip
def test_all_that_is_given_is_compared_then_random_inputs(files: int, count: int, goes_on: bool, given: int, drawn: int) -> None:
    own = given_of(*range(5, 5 + files))
    compared: list[np.ndarray] = []

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        compared.append(feeds["x"])
        return [2 * feeds["x"]]

    found = check(
        lambda feeds: [2 * feeds["x"]], {"m": run}, ["y"], SPECS,
        tolerance=Tolerance(), count=count, seed=0, given=own.named, goes_on=lambda inputs: goes_on,
    )  # fmt: skip
    assert (found.given, found.inputs - found.given) == (given, drawn) == (given, len(compared) - given)
    assert found.is_short == (given + drawn < count)
    assert all((ran == feeds["x"]).all() for ran, feeds in zip(compared, own.feeds, strict=False))
    alone = check(run, {"m": run}, ["y"], SPECS, tolerance=Tolerance(), count=count, seed=0, given=own.named, is_random=False)
    assert alone.inputs == alone.given == files


def test_how_many_inputs_is_told() -> None:
    def told(files: int, count: int) -> str:
        def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
            return [2 * feeds["x"]]

        own = given_of(*range(1, files + 1))
        return str(check(run, {"m": run}, ["y"], SPECS, tolerance=Tolerance(), count=count, seed=0, given=own.named))

    assert (told(0, 2), told(1, 3), told(2, 2)) == ("2 random inputs", "1 given and 2 random inputs", "2 given inputs")


def test_what_is_wrong_on_the_users_inputs_alone_is_found_and_named() -> None:
    def wrong(feeds: Mapping[str, Any]) -> Sequence[Any]:
        return [np.where(feeds["x"] > 50, 0, feeds["x"])]

    arguments: Any = ((lambda feeds: [feeds["x"]]), {"m": wrong}, ["y"], SPECS)
    assert check(*arguments, tolerance=Tolerance(), count=3, seed=0).inputs == 3
    with pytest.raises(Disagreement, match=r"the inputs of 99.npz"):
        check(*arguments, tolerance=Tolerance(), count=3, seed=0, given=given_of(1, 99).named)


def test_programs_are_timed_on_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=np.full((2, 3), 7, np.float32))
    request: dict[str, Any] = {"engine": "einsat", "feeds": [["x", "float32", [2, 3]]], "seed": 0}
    assert (drawing({**request, "inputs": str(path)})()["x"] == 7).all()
    assert (drawing({**request, "inputs": ""})()["x"] != 7).all() and (drawing(request)()["x"] != 7).all()


def test_times_on_other_inputs_are_other_times() -> None:
    database, contenders = Database.in_memory(), [Contender("one", "digest", "einsat", "")]
    one, other, none = given_of(1).raced, given_of(2).raced, Given().raced
    database.put(RaceTime("d", race_key(contenders, SPECS, one[1]), "digest", "ok", (3.0,)))
    raced = [recorded_race(contenders, SPECS, database=database, device="d", frozen=False, inputs=key) for key in (one, other, none)]
    assert [race and race.median_us("one") for race in raced] == [3.0, None, None]
    assert len({given_of(1).key, given_of(1, 2).key, given_of(2, 1).key, Given().key}) == 4


def test_the_command_compares_and_times_on_inputs_of_which_random_ones_are_none(tmp_path: Path) -> None:
    """The size for a Reshape is an input, and random values, 0 and 1, are no valid sizes."""
    ports = [helper.make_tensor_value_info(*port) for port in (("x", TensorProto.FLOAT, [4, 6]), ("sizes", TensorProto.INT64, [1]))]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Reshape", ["e", "sizes"], ["y"])]
    graph = helper.make_graph(nodes, "reshaped", ports, [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    arguments = (tmp_path / "m.onnx", "--threads", 1, "--budget", "2s", "--database", tmp_path / "p.sqlite", "--json")
    refused = command(*arguments)
    assert refused.returncode == 2 and "on random inputs" in refused.stderr and "--inputs FILE.npz" in refused.stderr
    file = saved(tmp_path / "real.npz", x=np.ones((4, 6), np.float32), sizes=np.array([24]))
    done = command(*arguments, "--inputs", file)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"] == {"given": 1, "random": 0}
    assert "on your inputs alone" in done.stderr and "on 1 given inputs" in done.stderr
    assert "on 1 given inputs. Times" in (tmp_path / "m.einsat" / "report.html").read_text()
    manifest = json.loads((tmp_path / "m.einsat" / "manifest.json").read_text())
    assert manifest["run"]["options"]["inputs"] == ["real.npz"] and manifest["run"]["inputs"] == {"given": 1, "random": 0}


def test_a_model_of_fixed_sizes_reads_a_single_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 12), np.float32))
    graph = load(build_model(tmp_path / "m.onnx")).graph
    given = read_given([tmp_path / "x.npy"], graph, is_fixed=False)
    assert list(given.feeds[0]) == ["x"] and open_sizes(given, graph) == {}
