"""Products with times for both a library and a generated kernel are compared, whatever is fused to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu_products
from runtime.profile import Record

DEVICE = "cuda:h100 | measured | some GPU"
CONV = "Conv{{dilations=(1, 1),group=1,layout='{}',pads=(1, 1, 1, 1),strides=(1, 1)}}(%0:float32[1,{}], $1:float32[32,64,3,3])"
NCHW, NHWC = CONV.format("NCHW", "64,7,7"), CONV.format("NHWC", "7,7,64")


def test_the_fastest_kernels_that_hold_a_product_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        Record(DEVICE, NCHW, "cudnn.convolution", "ok", (40.0, 42.0, 41.0), "", ""),
        Record(DEVICE, NHWC, "cudnn.convolution#4+0:TILE=1", "ok", (30.0,), "", ""),
        Record(DEVICE, NHWC, "cudnn.convolution@tf32", "ok", (3.0,), "", ""),
        Record(DEVICE, f"Relu({NCHW})", "cuda", "ok", (10.0,), "", "text"),
        Record(DEVICE, NCHW, "cuda", "failed", (), "why", "text"),
        Record(DEVICE, "MatMul(%0:float32[64,64], $1:float32[64,64])", "cublas.matmul", "ok", (5.0,), "", ""),
        Record(DEVICE, "Relu(%0:float32[64])", "cuda", "ok", (1.0,), "", "text"),
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(record.to_line() + "\n" for record in records))
    assert gpu_products.main([str(path), "--date", "2026-01-02", "--record", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "cuda_products.json").read_text())["rows"]
    assert (row["rows"], row["columns"], row["summed"]) == (49, 32, 576) and row["times_us"] == {"cudnn": 30.0, "generated": 10.0}
    page = capsys.readouterr().out
    assert "geometric mean of 1: **3.00**" in page and "| Conv | 1 x [49, 576] [576, 32] | 10.0 us | 30.0 us |  | 3.00 |" in page
    path.write_text(records[0].to_line() + "\n")
    with pytest.raises(SystemExit):
        gpu_products.main([str(path), "--date", "2026-01-02"])
