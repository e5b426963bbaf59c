"""Test the GPU of this machine: clear errors if there is none, and otherwise the same programs as on the recorded device."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from runtime import Session
from runtime.devices.cuda import cupy_driver, kernels
from runtime.devices.cuda.kernels import Kernel, Launch
from runtime.errors import ArtefactError, ExecutionError, LibraryMissing
from tests.runtime.test_cuda_recorded import TWICE, X, chain, opened
from tests.runtime.test_devices import model
from tests.support.commands import module_command


def gpu_is_missing() -> str:
    """Return why there is no GPU here, or '' if there is one."""
    try:
        cupy_driver.library()
    except ExecutionError as error:
        return error.what
    return ""


def test_without_a_gpu_the_commands_end_with_one_message(tmp_path: Path) -> None:
    if not gpu_is_missing():
        pytest.skip("there is a GPU")
    onnx.save(model(), tmp_path / "m.onnx")
    target = f"egraph.optimize {tmp_path / 'm.onnx'} --target cuda:h100 --budget 20s --threads 1 --database {tmp_path / 'p.sqlite'} -q"
    done = module_command(*target.split())
    assert done.returncode == 0, done.stderr
    assert "estimated, nothing was timed on cuda:h100" in done.stdout and "speed" not in done.stdout
    commands = {
        f"egraph.optimize {tmp_path / 'm.onnx'} --device cuda --budget 20s -q": 2, f"runtime.run {tmp_path / 'm.einsat'}": 2,
        f"runtime.run {tmp_path / 'm.einsat'} --on cuda:h100": 0,
    }  # fmt: skip
    for command, code in commands.items():
        done = module_command(*command.split())
        assert done.returncode == code, (command, done.stderr)
        assert "Traceback" not in done.stderr
        if code == 2:
            assert "CuPy" in done.stderr and "fix:" in done.stderr and "--target cuda:h100" in done.stderr
        else:
            assert "is not timed" in done.stdout
    with Session(tmp_path / "m.einsat", on="cuda:h100") as session:
        assert session.executable.device.is_timed is False


def test_missing_driver_device_and_memory_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test CuPy's errors without a driver, without a device, and without memory."""

    def fail(*_: object) -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    runtime = SimpleNamespace(getDeviceCount=fail, runtimeGetVersion=lambda: 13000, memGetInfo=lambda: (5, 10))
    fake = SimpleNamespace(__version__="14.2", cuda=SimpleNamespace(runtime=runtime, Stream=lambda non_blocking: None, Memory=fail))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with pytest.raises(ExecutionError, match=r"no CUDA driver.*CuPy 14.2, CUDA runtime 13000"):
        cupy_driver.library()
    runtime.getDeviceCount = lambda: 0
    with pytest.raises(ExecutionError, match="finds no CUDA device"):
        cupy_driver.library()
    runtime.getDeviceCount = lambda: 1
    with pytest.raises(ExecutionError, match="no 7 bytes for arena: 5 of 10 bytes are free"):
        cupy_driver.CupyDriver().allocate(7, "arena")
    monkeypatch.setattr(cupy_driver, "architecture", lambda: "sm_90")
    monkeypatch.setattr(cupy_driver, "device_name", lambda: "NVIDIA H100")
    other = Kernel(TWICE.text, TWICE.launches, "sm_80", 10, b"code")
    with pytest.raises(ArtefactError, match="has code for sm_80, and this GPU is NVIDIA H100"):
        cupy_driver.CupyDriver().load("twice", other)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(LibraryMissing, match="CuPy cannot be loaded"):
        cupy_driver.library()


def test_the_file_of_kernels_is_read_as_it_was_written(tmp_path: Path) -> None:
    kernel = Kernel("text", (Launch("a", (1, 2, 3), (4, 5, 6), 7, ("in0", "out")),), "sm_90", 8, b"\0code")
    kernels.write(tmp_path / kernels.FILE, {"k": kernel})
    assert kernels.read(tmp_path / kernels.FILE) == {"k": kernel}
    (tmp_path / kernels.FILE).write_text("{")
    with pytest.raises(ArtefactError, match="cannot be read"):
        kernels.read(tmp_path / kernels.FILE)


@pytest.mark.gpu
def test_a_program_runs_on_the_gpu(tmp_path: Path) -> None:
    if missing := gpu_is_missing():
        pytest.skip(missing)
    assert importlib.util.find_spec("cupy")
    kernels.write(tmp_path / kernels.FILE, {"twice": TWICE})
    from runtime import Executable

    on_gpu, recorded = Executable(chain(), {}, kernels=tmp_path / kernels.FILE), opened(chain(), tmp_path)
    for factor in (1, 2, 3):
        np.testing.assert_array_equal(on_gpu.run({"x": factor * X})["y"], recorded.run({"x": factor * X})["y"])
