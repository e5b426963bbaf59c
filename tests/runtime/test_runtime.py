"""Test sessions and artefacts: feeds, outputs, threads, damaged files, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lower.plan_text import parse_plan
from runtime import Session
from runtime.devices.cpu import openmp
from runtime.devices.cpu.native import build as native_build
from runtime.errors import ArtefactError, ExecutionError, InvalidArgument
from runtime.executable import Executable
from runtime.plan import Buffer, Plan
from runtime.run import main
from runtime.weights import Weights
from tests.support.paths import ROOT
from tests.support.plans import draw, matmul_relu, save


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made, weights = matmul_relu()
    return Session(save(tmp_path / "m.einsat", made, weights), threads=1)


def expected(session: Session, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x @ session.artefact.weights["w"], 0))


def test_session_mirrors_onnxruntime(session: Session, tmp_path: Path) -> None:
    x = draw(4, 6)
    [y] = session.run(None, {"x": x})
    np.testing.assert_allclose(y, expected(session, x), rtol=1e-5, atol=1e-5)
    [port] = session.get_inputs()
    assert (port.name, port.type, port.shape) == ("x", "tensor(float)", [4, 6])
    assert [p.name for p in session.get_outputs()] == ["y"]
    assert session.get_providers() == ["EinsatExecutionProvider"]
    (tmp_path / "m.opt.onnx").write_bytes(b"")
    np.testing.assert_array_equal(Session(tmp_path / "m.opt.onnx", threads=1).run(["y"], {"x": x})[0], y)


def test_outputs_are_fresh_and_inputs_untouched(session: Session) -> None:
    x, other = draw(4, 6), draw(4, 6)
    before = x.copy()
    [first] = session.run(None, {"x": x})
    kept = first.copy()
    [second] = session.run(None, {"x": other})
    session.run_native(3)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(x, before)
    assert not np.shares_memory(first, second)
    target = np.empty_like(first)
    [got] = session.run(None, {"x": x}, out={"y": target})
    assert got is target
    np.testing.assert_array_equal(target, kept)


def test_strided_dlpack_and_output_interchange(session: Session) -> None:
    wide = draw(8, 12)
    strided = wide[::2, ::2]
    assert not strided.flags.c_contiguous
    [y] = session.run(None, {"x": strided})
    np.testing.assert_allclose(y, expected(session, strided), rtol=1e-5, atol=1e-5)

    class Foreign:
        """Tensor of another framework, which supports only DLPack."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    [again] = session.run(None, {"x": Foreign(np.ascontiguousarray(strided))})
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(np.from_dlpack(y), y)


def test_wrong_feeds_are_refused_in_onnxruntimes_words(session: Session) -> None:
    x = draw(4, 6)
    with pytest.raises(InvalidArgument, match=r"Required inputs \(\['x'\]\) are missing from input feed \(\['z'\]\)"):
        session.run(None, {"z": x})
    with pytest.raises(InvalidArgument, match="Invalid input name: z"):
        session.run(None, {"x": x, "z": x})
    with pytest.raises(InvalidArgument, match="Invalid output name:q"):
        session.run(["q"], {"x": x})
    with pytest.raises(InvalidArgument, match=r"Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"):
        session.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(InvalidArgument, match="Invalid rank for input: x Got: 1 Expected: 2"):
        session.run(None, {"x": x[0]})
    with pytest.raises(InvalidArgument, match=r"index: 0 Got: 5 Expected: 4(.|\n)*--shape x:5,6"):
        session.run(None, {"x": draw(5, 6)})
    with pytest.raises(InvalidArgument, match="index: 0 Got: 3 Expected: 4\n index: 1 Got: 2 Expected: 6"):
        session.run(None, {"x": draw(3, 2)})
    with pytest.raises(InvalidArgument, match=r"output y is float32\[4, 5\], the array given is float32\[1, 4, 5\]"):
        session.run(None, {"x": x}, out={"y": np.empty((1, 4, 5), np.float32)})
    with pytest.raises(InvalidArgument, match="threads must be at least 1"):
        Session(session.artefact.folder, threads=0)


def test_a_closed_session_says_so(session: Session) -> None:
    with session:
        pass
    with pytest.raises(ExecutionError, match="closed"):
        session.run(None, {"x": draw(4, 6)})
    made, weights = matmul_relu()
    executable = Executable(made, weights, threads=1)
    executable.close()
    executable.close()
    for call in (lambda: executable.run({"x": draw(4, 6)}), lambda: executable.run_native(1)):
        with pytest.raises(ExecutionError, match="closed"):
            call()


def test_many_threads_may_share_a_session(session: Session) -> None:
    inputs = [draw(4, 6) for _ in range(8)]
    wanted = [session.run(None, {"x": x})[0] for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(30):
            if not np.array_equal(session.run(None, {"x": inputs[index]})[0], wanted[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_several_sessions_and_thread_counts_agree(tmp_path: Path) -> None:
    made, weights = matmul_relu(rows=200)
    folder = save(tmp_path / "m.einsat", made, weights)
    x = draw(200, 6)
    before = openmp.get_threads()
    one, two = Session(folder, threads=1), Session(folder, threads=2)
    np.testing.assert_allclose(one.run(None, {"x": x})[0], two.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    one.close()
    assert two.run(None, {"x": x})[0].shape == (200, 5)
    assert openmp.get_threads() == before


def test_timing_and_profile(session: Session) -> None:
    times = session.run_native(5)
    assert len(times) == 5 and all(0 < t < 1e9 for t in times)
    profile = session.profile(3)
    assert [name for name, _ in profile] == ["multiply", "activate"] and all(us > 0 for _, us in profile)
    assert session.executable.implementations[1].startswith("jit")


def test_outputs_that_are_inputs_weights_or_each_other_do_not_alias() -> None:
    made = parse_plan("""plan {
      %0 = input 'x' : float32[3]
      %1 = weight 'w' : float32[3]
      %2 = output 'y' : float32[3]
      copy 'c' (%0) -> (%2) {}
      input 'x' : float32[3] = %0
      output 'same' : float32[3] = %0
      output 'constant' : float32[3] = %1
      output 'y' : float32[3] = %2
      output 'again' : float32[3] = %2
    }""")
    x, w = draw(3), draw(3)
    got = Executable(made, {"w": w}).run({"x": x})
    np.testing.assert_array_equal(np.stack([got["same"], got["y"], got["again"]]), np.stack([x, x, x]))
    np.testing.assert_array_equal(got["constant"], w)
    arrays = [x, w, *got.values()]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_an_output_that_is_a_part_of_its_area_is_read_where_it_lies() -> None:
    made = parse_plan("""plan {
      %0 = input 'x' : float32[3]
      %1 = output 'y' : float32[3] offset=2
      copy 'c' (%0) -> (%1) {}
      input 'x' : float32[3] = %0
      output 'y' : float32[3] = %1
    }""")
    x = draw(3)
    np.testing.assert_array_equal(Executable(made, {}).run({"x": x})["y"], x)


def test_damaged_artefacts_are_refused(tmp_path: Path) -> None:
    made, weights = matmul_relu()
    with pytest.raises(ArtefactError, match="no such file"):
        Session(tmp_path / "absent.einsat")
    (tmp_path / "lone.opt.onnx").write_bytes(b"")
    with pytest.raises(ArtefactError, match=r"has no artefact folder lone\.einsat"):
        Session(tmp_path / "lone.opt.onnx")
    folder = save(tmp_path / "m.einsat", made, weights)
    whole = (folder / "weights.safetensors").read_bytes()
    for damaged in (whole[:-4], whole[:20], b"", b"\xff" * 40):
        (folder / "weights.safetensors").write_bytes(damaged)
        with pytest.raises(ArtefactError, match="weights"):
            Session(folder)
    (folder / "weights.safetensors").write_bytes(whole.replace(b"[6, 5]", b"[6, 4]"))
    with pytest.raises(ArtefactError, match="tensor 'w' does not fit its data"):
        Session(folder)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(ArtefactError, match="the weight 'w' is missing"):
        Session(folder)
    save(tmp_path / "n.einsat", made, weights)
    (tmp_path / "n.einsat" / "dispatch.so").write_bytes(b"no library")
    with pytest.raises(ArtefactError, match="dispatcher cannot be loaded"):
        Session(tmp_path / "n.einsat")
    (tmp_path / "n.einsat" / "dispatch.so").write_bytes(native_build.build_openmp().read_bytes())
    with pytest.raises(ArtefactError, match="interface 0"):
        Session(tmp_path / "n.einsat")
    (folder / "plan.json").write_text(made.to_json().replace('"version":1', '"version":9'))
    with pytest.raises(ArtefactError, match="version 9"):
        Session(folder)
    (folder / "plan.json").write_text("{")
    with pytest.raises(ArtefactError, match="cannot be used"):
        Session(folder)


def test_models_outside_of_the_artefact_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.onnx").write_bytes(b"")
    artefact = Session(save(tmp_path / "m.einsat", *matmul_relu())).artefact
    for name in ("../secret.onnx", str(tmp_path / "secret.onnx"), "absent.onnx"):
        with pytest.raises(ArtefactError, match="there is no model"):
            artefact.model(name)


def test_windows_that_leave_their_area_are_refused() -> None:
    made, weights = matmul_relu()
    with pytest.raises(ArtefactError, match="of an arena of 16"):
        Executable(Plan(made.buffers, made.steps, made.inputs, made.outputs, arena_bytes=16), weights)
    with pytest.raises(ArtefactError, match="of a weight of 20"):
        Executable(made, {"w": weights["w"][:1]})
    negative = Plan((Buffer("float32", (3,), (-1,), "arena"),), (), (), (), arena_bytes=64)
    with pytest.raises(ArtefactError, match="begins before"):
        Executable(negative, {})


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    made, weights = matmul_relu()
    read = Weights(save(tmp_path / "m.einsat", made, weights) / "weights.safetensors")
    np.testing.assert_array_equal(read["w"], weights["w"])
    assert not read["w"].flags.writeable and list(read) == ["w"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, weights = matmul_relu()
    folder = str(save(tmp_path / "m.einsat", made, weights))
    assert main([folder, "--repeat", "3", "--threads", "1", "--profile"]) == 0
    shown = capsys.readouterr().out
    assert "y: float32[4, 5]" in shown and "latency: median" in shown and "multiply" in shown
    np.save(tmp_path / "x.npy", np.ones((4, 6), np.float32))
    assert main([folder, "--inputs", str(tmp_path / "x.npy"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["outputs"]["y"]["max"] == pytest.approx(float(np.maximum(weights["w"].sum(0), 0).max()), rel=1e-5)
    np.savez(tmp_path / "x.npz", x=np.ones((4, 7), np.float32))
    assert main([folder, "--inputs", str(tmp_path / "x.npz")]) == 2
    told = capsys.readouterr().err
    assert "the input 'x' is 4,7 in the file, the model takes 4,6" in told and "--shape" in told and "x.npz" in told


def test_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """A session needs only numpy and oneDNN. The artefact contains its libraries, so no compiler is needed."""
    made, weights = matmul_relu()
    folder = save(tmp_path / "m.einsat", made, weights)
    native_build.copy_into(folder)
    code = f"""
import sys
blocked = ("egglog", "z3", "tvm", "tvm_ffi", "onnx", "onnxruntime", "ml_dtypes", "egraph", "lower", "ziglang", "platformdirs")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError("blocked " + name)
sys.meta_path.insert(0, Block())
import numpy as np
from runtime import Session
x = np.ones((4, 6), np.float32)
print(float(Session({str(folder)!r}, threads=1).run(None, {{"x": x}})[0].sum()))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EINSAT_CACHE": str(tmp_path / "empty"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(4 * np.maximum(weights["w"].sum(0), 0).sum()), rel=1e-5)
    assert not (tmp_path / "empty").exists()
