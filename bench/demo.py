"""Optimise a real, trained model and show the result: ``make demo``; ``--into README.md`` pastes it between the marks.

The model tells which way up a line of text is; it is part of an OCR package (rapidocr-onnxruntime) that pip brings.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from bench.package_file import package_file

FOLDER = Path("demo")
MODEL = ("rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
NAME = "text_direction.onnx"
SHAPE = "x:1,3,48,192"
BEGIN, END = "<!-- demo -->", "<!-- end of demo -->"


def run(*arguments: str) -> tuple[int, str]:
    """Show a command and run it; return its exit code, and the command with its standard output as text."""
    shown = "$ " + shlex.join(["python", *arguments])
    print(f"\n{shown}", flush=True)
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [shown]
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.rstrip())
    return process.wait(), "\n".join(lines)


def paste(page: Path, text: str) -> None:
    """Put the text between the marks of a page."""
    before, _, following = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = following.partition(END)
    page.write_text(f"{before}{BEGIN}\n```\n{text}\n```\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.demo", description="Optimise a real, trained model.")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="also paste the result into this page")
    page = parser.parse_args().into
    FOLDER.mkdir(exist_ok=True)
    model = FOLDER / NAME
    shutil.copyfile(package_file(*MODEL), model)
    artefact = str(FOLDER / NAME.replace(".onnx", ".einsat"))
    code, shown = run("-m", "egraph.optimize", str(model), "--shape", SHAPE)
    if code == 0:
        if page is not None:
            paste(page, shown)
        code, _ = run("-m", "runtime.run", artefact, "--repeat", "200")
        print(f"\nThe report is a page to open in a browser: {artefact}/report.html")
        print(f"Where each kernel comes from: python -m egraph.inspect {artefact}")
    return code


if __name__ == "__main__":
    sys.exit(main())
