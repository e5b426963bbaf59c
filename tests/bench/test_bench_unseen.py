"""The list of unseen networks is known without torch; the networks are exported if torch is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import onnx
import pytest

from bench.models import MODELS
from bench.unseen import NETWORKS, QUANTISED, UNSEEN, draw_constants, network

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "onnxscript"))


def test_the_list_names_each_network_once_and_needs_no_torch() -> None:
    assert len(UNSEEN) >= 24 and not set(UNSEEN) & set(MODELS)
    assert {source for source, _ in QUANTISED.values()} <= set(NETWORKS)
    code = "import sys, bench.run, bench.unseen; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("module", "listed"), [("bench.unseen", "graph_attention"), ("bench.zoo", "rexnet_100")])
def test_a_network_that_is_not_listed_is_refused_with_the_list(module: str, listed: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "nothing", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and listed in done.stderr
    only = subprocess.run([sys.executable, "-m", module, listed], capture_output=True, text=True, check=False)
    assert only.returncode == 2 and f"python -m {module} NAME out.onnx" in only.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="torch, transformers and onnxscript are not installed")
def test_a_network_is_exported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network is exported once and then cached; its constant parameters are replaced by drawn ones."""
    drawn = Mock(wraps=draw_constants)
    monkeypatch.setattr("bench.unseen.draw_constants", drawn)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = network("graph_attention")
    onnx.checker.check_model(model)
    assert drawn.call_count == 1
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.onnx")}
    assert network("graph_attention") == model and {path: path.stat().st_mtime_ns for path in kept} == kept


def test_no_parameter_of_a_network_is_constant() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
    torch.nn.init.zeros_(module[1].bias)
    scale = torch.nn.Parameter(torch.full((64,), 1e-6))
    module.register_parameter("scale", scale)
    weight = module[1].weight.detach().clone()
    draw_constants(module)
    assert all(parameter.min() < parameter.max() for parameter in module.parameters())
    assert abs(float(scale.detach().mean()) - 1) < 0.1 and abs(float(module[1].bias.detach().mean())) < 0.1
    assert torch.equal(module[1].weight.detach(), weight)
