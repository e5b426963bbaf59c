"""A session that was opened before a fork continues in the child, with its own thread team and onnxruntime sessions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PARENT = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper
from runtime import Session
from runtime.errors import ArtefactError
from runtime.plan import Port, Step
from tests.support.plans import buffer, plan, save
from tests.support.plans import matmul_relu, model, opaque

kind, folder = sys.argv[1], Path(sys.argv[2]) / "m.einsat"
SIZE = 1 << 17
if kind == "library":
    made, weights = matmul_relu(rows=4000)
    x = np.random.default_rng(0).standard_normal((4000, 6), dtype=np.float32)
    expected = np.maximum(x @ weights["w"], 0)
    save(folder, made, weights)
else:
    x = np.linspace(0.5, 1.5, SIZE, dtype=np.float32)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE]) for name in "ab"]
    steps, buffers = [opaque("0", (0,), (1,), ["a"], ["b"])], [buffer((SIZE,), "input", "x"), buffer((SIZE,), "arena")]
    if kind == "both":
        steps.append(Step("onednn", "activate", (1,), (2,), {"primitive": "eltwise", "arguments": {"src": 0}, "algorithm": "relu"}))
        buffers.append(buffer((SIZE,), "output", "y"))
    else:
        buffers[1] = buffer((SIZE,), "output", "y")
    made = plan(buffers, steps, [Port("x", "float32", (SIZE,), 0)], [Port("y", "float32", (SIZE,), len(buffers) - 1)])
    save(folder, made, {}, {"opaque/0.onnx": model([helper.make_node("Exp", ["a"], ["b"])], ports[:1], ports[1:])})
    expected = np.exp(x)

def check(session, runs=20):
    for _ in range(runs):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)

def in_child(work, leave):
    child = os.fork()
    if child == 0:
        signal.alarm(40)
        work()
        leave(0)
    return child

session, fresh, closed = (Session(folder, threads=2) for _ in range(3))
check(session)
check(closed)
session.executable._lock.acquire()  # another thread runs it just now
children = [in_child(lambda: check(session), os._exit) for _ in range(3)]
session.executable._lock.release()
children.append(in_child(lambda: (check(fresh), check(Session(folder, threads=2))), os._exit))
# onnxruntime 1.32 hangs in every forked child that ends by sys.exit, with sessions or without
children.append(in_child(lambda: closed.close(), sys.exit if kind == "library" else os._exit))

def from_a_thread():
    workers = [threading.Thread(target=check, args=(session,)) for _ in range(3)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert os.waitpid(in_child(lambda: check(session), os._exit), 0)[1] == 0, "grandchild"

children.append(in_child(from_a_thread, os._exit))
check(session)
for child in children:
    assert os.waitpid(child, 0)[1] == 0, children.index(child)
check(session)
if kind != "library":
    (folder / "opaque" / "0.onnx").unlink()

    def gone():
        try:
            check(session)
        except ArtefactError as error:
            assert "Session" in str(error.fix), error.fix
        else:
            raise AssertionError("the file is gone")

    assert os.waitpid(in_child(gone, os._exit), 0)[1] == 0
"""


@pytest.mark.parametrize("kind", ["library", "onnxruntime", "both"])
def test_a_session_opened_before_a_fork_runs_in_the_child(tmp_path: Path, kind: str) -> None:
    """Test several children, a grandchild, threads in a child, and a child that only closes the session. The parent continues."""
    done = subprocess.run([sys.executable, "-c", PARENT, kind, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
