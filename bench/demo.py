"""Optimise a real, trained model and show what came out: ``make demo``.

The model tells which way up a line of text is; it is part of an OCR package (rapidocr-onnxruntime) that pip brings.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from bench.models import package_file

FOLDER = Path("demo")
MODEL = ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
NAME = "text_direction.onnx"
SHAPE = "x:1,3,48,192"


def run(*arguments: str) -> int:
    """Show a command, run it, and return its exit code."""
    print("\n$ " + shlex.join(["python", *arguments]), flush=True)
    return subprocess.run([sys.executable, *arguments], check=False).returncode


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    model = FOLDER / NAME
    shutil.copyfile(package_file(*MODEL), model)
    artefact = str(FOLDER / NAME.replace(".onnx", ".einsat"))
    code = run("-m", "egraph.optimize", str(model), "--shape", SHAPE)
    if code == 0:
        code = run("-m", "runtime.run", artefact, "--repeat", "200")
        print(f"\nThe report is a page to open in a browser: {artefact}/report.html")
        print(f"Where each kernel comes from: python -m egraph.inspect {artefact}")
    return code


if __name__ == "__main__":
    sys.exit(main())
