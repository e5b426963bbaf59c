"""List, for described GPUs, the plan that cuDNN prefers for each convolution of the benchmark's networks; no GPU is needed.

    python -m bench.cuda_plans                                 all models of both lists, at all their batch sizes
    python -m bench.cuda_plans MODEL ... [--batch N ...] [--record [FOLDER]] [--add]

Each convolution and transposed convolution is planned channels first and channels last, in float32 without tensor cores and in TF32.
A plan counts only if it can be built and needs no more workspace than programs give it; a named engine is not enough. Without a plan, the
library's message is kept. The models of ``bench.unseen`` are included if torch is installed. With ``--add``, earlier plans of this version
of cuDNN are kept. Ctrl-C ends a run early; the plans made so far are recorded. Plans are not timed: that takes a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.cuda_kernels import unseen
from bench.environment import commit
from bench.inputs import parse_shapes
from bench.models import MODELS, BenchModel
from bench.record import RESULTS, opening, origin, record
from egraph.errors import EinsatError
from egraph.onnx import importer
from egraph.tensor import Node, TensorType, placeholder, walk
from egraph.tensor.ops import apply
from lower.calls.call import LibraryCall
from lower.targets.cuda import cudnn
from runtime.devices.cuda.cudnn import EnginePlan, favourite_plan, is_installed, with_packed
from runtime.devices.cuda.gpus import GPUS
from runtime.plan import Buffer

PRECISIONS = ("float32", "tf32")
LAYOUTS = ("NCHW", "NHWC")
IMPLEMENTATIONS = {"Conv": "cudnn.convolution", "ConvTranspose": "cudnn.deconvolution"}
LIBRARIES = ("nvidia-cudnn-cu13", "nvidia-cudnn-frontend")
NONE = "none"
"""The text of a cell without a plan."""


@dataclass(frozen=True)
class Convolution:
    """A convolution to plan: the operator, its attributes, and the sizes of data and weights."""

    op: str
    attributes: Mapping[str, Any]
    data: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def text(self) -> str:
        """Return the convolution in one line."""
        values = self.attributes
        extras = [f"{key[0]}{_by(values[key])}" for key in ("strides", "dilations") if set(values[key]) != {1}]
        extras += [f"p{_by(values['pads'])}"] if any(values["pads"]) else []
        extras += [f"o{_by(values['output_padding'])}"] if any(values.get("output_padding", ())) else []
        extras += [f"g{values['group']}"] if values["group"] > 1 else []
        return " ".join([self.op, _by(self.data), "*", _by(self.weights), *extras])

    def in_layout(self, layout: str) -> Node:
        """Return the convolution over placeholders, with data stored channels first or channels last."""
        data = self.data
        if self.attributes["layout"] != layout:
            data = (data[0], *data[2:], data[1]) if layout == "NHWC" else (data[0], data[-1], *data[1:-1])
        leaves = placeholder(0, TensorType("float32", data)), placeholder(1, TensorType("float32", self.weights), constant=True)
        return apply(self.op, *leaves, **{**self.attributes, "layout": layout})


@dataclass(frozen=True)
class Cell:
    """The plan of one convolution on one GPU, in one layout and precision, or the library's message."""

    gpu: str
    layout: str
    precision: str
    plan: str
    """The engine with its workspace and its knobs; empty without a plan."""
    refusal: str


@dataclass(frozen=True)
class Row:
    """A convolution, the models that contain it, and the plans that the library prefers."""

    convolution: str
    models: tuple[str, ...]
    cells: tuple[Cell, ...]
    commit: str = ""
    """The commit at which it was planned."""

    def refusals(self) -> dict[tuple[str, str], str]:
        """Return the library's messages, by GPU and precision, where no layout has a plan."""
        missing: dict[tuple[str, str], str] = {}
        for gpu in GPUS:
            for precision in PRECISIONS:
                cells = [cell for cell in self.cells if (cell.gpu, cell.precision) == (gpu, precision)]
                if not any(cell.plan for cell in cells):
                    missing[gpu, precision] = "; ".join(dict.fromkeys(f"{cell.layout}: {cell.refusal}" for cell in cells))
        return missing


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def convolutions(model: BenchModel, batch: int) -> tuple[list[Convolution], int]:
    """Return the distinct float convolutions of a model, and how many others have other types or unknown sizes."""
    graph = importer.load(model.operators(batch), shapes=parse_shapes(model.shapes)).graph
    distinct: dict[str, Convolution] = {}
    others = 0
    for node in walk(graph.roots):
        if node.op not in IMPLEMENTATIONS:
            continue
        types = [operand.type for operand in node.inputs]
        if all(type.is_static and type.dtype == "float32" for type in types):
            made = Convolution(node.op, dict(node.attributes), types[0].sizes, types[1].sizes)
            distinct.setdefault(made.text, made)
        else:
            others += 1
    return list(distinct.values()), others


def planned(convolution: Convolution) -> tuple[Cell, ...]:
    """Plan a convolution for every GPU."""
    cells = []
    for layout in LAYOUTS:
        call = cudnn.match(convolution.in_layout(layout), IMPLEMENTATIONS[convolution.op])
        for gpu in GPUS.values():
            for precision in PRECISIONS:
                plan: EnginePlan | str = str(call)
                if isinstance(call, LibraryCall):
                    buffers = [Buffer("float32", each.window.shape, each.window.strides, "arena") for each in call.arguments]
                    output = Buffer("float32", call.destination.shape, call.destination.strides, "arena")
                    plan = favourite_plan(call.spec(), with_packed(call.spec(), buffers), output, gpu, precision)
                text, refusal = ("", plan) if isinstance(plan, str) else (plan.text, "")
                cells.append(Cell(gpu.name, layout, precision, text, refusal))
    return tuple(cells)


def page(rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """Return the table of each convolution's engines in strict float32 and in TF32, channels first and last, by GPU."""
    libraries = ", ".join(f"{name} {where['libraries'][name]}" for name in LIBRARIES if name in where["libraries"])
    commits = [row.commit for row in rows]
    lines = [
        "# Convolution plans of cuDNN for described GPUs", "", *opening(where, ()),
        f"{libraries}. **Nothing ran on a GPU**, and nothing was timed: plans were built for descriptions of the devices.",
        "A cell names the engine of the library's first plan that fits, in float32 without tensor cores / in TF32, each convolution once;",
        f"*{NONE}*: there is no such plan, for the reason below.",
        *(f"Planned at commit {each}: {sum(row.commit == each for row in rows)} convolutions." for each in dict.fromkeys(commits)),
        *([] if where["complete"] else ["The run was ended early: what is below it had planned by then."]),
        *([] if where["unseen"] else ["The networks of `bench.unseen` are left out: torch, which exports them, is not installed."]),
        *(f"{name} is left out: {why}." for name, why in where["left_out"].items()),
        *_summary(rows), "",
        f"| convolution | models | {' | '.join(f'{gpu} {layout}' for gpu in GPUS for layout in LAYOUTS)} |",
        f"|---|---|{'---|' * len(GPUS) * len(LAYOUTS)}",
    ]  # fmt: skip
    for row in rows:
        by_key = {(cell.gpu, cell.layout, cell.precision): cell for cell in row.cells}
        cells = [
            " / ".join(_shown(by_key[gpu, layout, precision]) for precision in PRECISIONS) for gpu in GPUS for layout in LAYOUTS
        ]  # fmt: skip
        lines.append(f"| {row.convolution} | {', '.join(row.models)} | {' | '.join(cells)} |")
    lines += ["", "## Without a plan in either layout", ""]
    missing = [
        f"* {row.convolution} ({row.models[0]}), {gpu}, {precision}: {words}"
        for row in rows for (gpu, precision), words in row.refusals().items()
    ]  # fmt: skip
    words: dict[str, int] = {}
    for row in rows:
        for cell in row.cells:
            if cell.refusal:
                words[cell.refusal] = words.get(cell.refusal, 0) + 1
    lines += [*(missing or ["None."]), "", "## Cells without a plan, by the library's words", ""]
    lines += [f"* {count} cells: {text}" for text, count in sorted(words.items(), key=lambda pair: -pair[1])] or ["None."]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[Row]) -> list[str]:
    """Return, for each precision, the number of convolutions for which each GPU has a plan in one of the layouts."""
    lines = []
    for precision in PRECISIONS:
        counts = [f"{sum((gpu, precision) not in row.refusals() for row in rows)} on {gpu}" for gpu in GPUS]
        lines.append(f"With a plan in {precision}, of {len(rows)} convolutions: {', '.join(counts)}.")
    return lines


def _shown(cell: Cell) -> str:
    return cell.plan.partition("+")[0] or NONE


def on_record(folder: Path) -> list[Row]:
    """Return the rows recorded in a folder, if they were made with the installed libraries."""
    path = folder / "cuda_plans.json"
    recorded = json.loads(path.read_text()) if path.exists() else {}
    if recorded.get("libraries") != _libraries():
        return []
    return [
        Row(row["convolution"], tuple(row["models"]), tuple(Cell(**cell) for cell in row["cells"]), row["commit"])
        for row in recorded["rows"]
    ]  # fmt: skip


def _libraries() -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan models' convolutions."""
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_plans", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="models of bench.models or bench.unseen; all by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[], help="of their batch sizes these alone")
    parser.add_argument("--record", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write cuda_plans.json and cuda_plans.md")
    parser.add_argument("--add", action="store_true", help="keep what is on record of these versions, and plan what is not")
    options = parser.parse_args(arguments)
    if not is_installed():
        print("cuDNN and its frontend are not installed, so nothing can be planned: pip install 'einsat[cuda]'")
        return 2
    exported = unseen()
    every = {**MODELS, **exported}
    if missing := [name for name in options.models if name not in every]:
        parser.error(f"there is no {missing[0]}; python -m bench.models lists them")
    command = ["python", "-m", "bench.cuda_plans", *(arguments or sys.argv[1:])]
    now, started, is_complete = commit(), time.process_time(), False
    left_out: dict[str, str] = {}
    rows = {row.convolution: row for row in (on_record(options.record or RESULTS) if options.add else [])}

    def written() -> str:
        where = origin(1, command, libraries=_libraries(), unseen=bool(exported), complete=is_complete, left_out=left_out)
        listed = [row for row in rows.values() if row.models]
        text = page(listed, where)
        if options.record:
            record(options.record, "cuda_plans", where, listed, text)
        return text

    try:
        for model in (every[name] for name in options.models or every):
            for batch in (each for each in model.batches if not options.batch or each in options.batch):
                name = f"{model.name}, batch {batch}"
                try:
                    made, others = convolutions(model, batch)
                except (EinsatError, FileNotFoundError) as error:
                    left_out[name] = str(error)
                    continue
                if others:
                    left_out[name] = f"{others} convolutions, which compute with other types than float32 or with sizes that are not known"
                for convolution in made:
                    known = rows.get(convolution.text) or Row(convolution.text, (), planned(convolution), now)
                    rows[convolution.text] = replace(known, models=tuple(dict.fromkeys((*known.models, name))))
                print(f"{name}: {len(made)} convolutions, {len(rows)} so far ({time.process_time() - started:.0f} s)", flush=True)
                written()
        is_complete = True
    except KeyboardInterrupt:
        pass
    print(written())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
