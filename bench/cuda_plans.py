"""List, for described GPUs, which plans cuDNN builds for the convolutions of the bench's networks; no GPU is needed or asked.

    python -m bench.cuda_plans [MODEL ...] [--batch N ...] [--record [FOLDER]]

Each convolution and transposed convolution is planned channels first and channels last, in float32 without tensor cores and in TF32.
A plan counts where it is built, not where an engine is only named. A model whose batch is its own is listed at that. Ctrl-C ends a run
early; what is listed by then is recorded. Nothing says how fast a plan is: that takes a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.inputs import parse_shapes
from bench.models import MODELS
from bench.record import RESULTS, origin, record
from egraph.onnx import importer
from egraph.tensor import Node, placeholder, walk
from egraph.tensor.ops import apply
from lower.calls.call import LibraryCall
from lower.targets.cuda import cudnn
from runtime.devices.cuda.cudnn import engine_plans, is_installed, with_packed
from runtime.devices.cuda.gpus import GPUS
from runtime.plan import Buffer

NETWORKS = ("infogan", "dcgan", "fsrcnn", "gcn_block", "resnet18", "csrnet")
"""The networks of the published comparison that have convolutions."""
PRECISIONS = ("float32", "tf32")
LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True)
class Row:
    """The plans of one convolution on one GPU: those that were built, their workspace, or the library's message."""

    model: str
    convolution: str
    gpu: str
    layout: str
    precision: str
    plans: int
    favourite: str
    workspace_bytes: int
    refusal: str


def convolutions(name: str, batch: int) -> list[tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]]:
    """Return the distinct convolutions of a network: operator, attributes, sizes of data and of weights."""
    graph = importer.load(MODELS[name].make(batch), shapes=parse_shapes(MODELS[name].shapes)).graph
    distinct: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {}
    for node in walk(graph.roots):
        if node.op in ("Conv", "ConvTranspose"):
            data, weights = (operand.type.sizes for operand in node.inputs)
            distinct.setdefault(f"{node.op}{node.attributes}{data}{weights}", (node.op, dict(node.attributes), data, weights))
    return list(distinct.values())


def _in_layout(op: str, attributes: dict[str, Any], data: tuple[int, ...], weights: tuple[int, ...], layout: str) -> Node:
    if attributes["layout"] != layout:
        data = (data[0], *data[2:], data[1]) if layout == "NHWC" else (data[0], data[-1], *data[1:-1])
    leaves = placeholder(0, _float32(data)), placeholder(1, _float32(weights), constant=True)
    return apply(op, *leaves, **{**attributes, "layout": layout})


def _float32(sizes: tuple[int, ...]) -> Any:
    from egraph.tensor import TensorType

    return TensorType("float32", sizes)


def shown(op: str, attributes: dict[str, Any], data: tuple[int, ...], weights: tuple[int, ...]) -> str:
    """Return a convolution in one line."""
    extras = [f"{key[0]}{'x'.join(map(str, attributes[key]))}" for key in ("strides", "dilations") if set(attributes[key]) != {1}]
    extras += [f"p{'x'.join(map(str, attributes['pads']))}"] if any(attributes["pads"]) else []
    extras += [f"g{attributes['group']}"] if attributes["group"] > 1 else []
    return " ".join([op, "x".join(map(str, data)), "*", "x".join(map(str, weights)), *extras])


def rows(name: str, batch: int) -> Iterator[Row]:
    """Yield a network's rows."""
    for op, attributes, data, weights in convolutions(name, batch):
        for layout in LAYOUTS:
            implementation = "cudnn.convolution" if op == "Conv" else "cudnn.deconvolution"
            call = cudnn.match(_in_layout(op, attributes, data, weights, layout), implementation)
            for gpu in GPUS.values():
                for precision in PRECISIONS:
                    key = name, shown(op, attributes, data, weights), gpu.name, layout, precision
                    if not isinstance(call, LibraryCall):
                        yield Row(*key, 0, "", 0, str(call))
                        continue
                    buffers = [Buffer("float32", each.window.shape, each.window.strides, "arena") for each in call.arguments]
                    output = Buffer("float32", call.destination.shape, call.destination.strides, "arena")
                    plans = engine_plans(call.spec(), with_packed(call.spec(), buffers), output, gpu, precision)
                    if isinstance(plans, str):
                        yield Row(*key, 0, "", 0, plans)
                    else:
                        knobs = ", ".join(f"{knob} {value}" for knob, value in plans[0].knobs.items())
                        yield Row(*key, len(plans), f"engine {plans[0].engine} ({knobs})", plans[0].workspace_bytes, "")


def page(rows: Sequence[Row], where: dict[str, Any]) -> str:
    """Return the table: of each convolution the plans in strict float32 and in TF32, channels first and last, by GPU."""
    libraries = f"cuDNN {version('nvidia-cudnn-cu13')}, cudnn-frontend {version('nvidia-cudnn-frontend')}"
    lines = [
        "# Convolution plans of cuDNN for described GPUs", "",
        f"`{where['command']}`, {where['date']}, commit {where['commit']}, {libraries}. **Nothing ran on a GPU**, and nothing was timed:",
        "plans were listed and built for descriptions of the devices. A cell has the plans in float32 without tensor cores / in TF32.",
        *([] if where["complete"] else ["The run was ended early: what is below it had listed by then."]), "",
        f"| network | convolution | {' | '.join(f'{gpu} {layout}' for gpu in GPUS for layout in LAYOUTS)} |",
        f"|---|---|{'---|' * len(GPUS) * len(LAYOUTS)}",
    ]  # fmt: skip
    by_key = {(row.model, row.convolution, row.gpu, row.layout, row.precision): row for row in rows}
    for model, convolution in dict.fromkeys((row.model, row.convolution) for row in rows):
        cells = [
            " / ".join(str(by_key[model, convolution, gpu, layout, precision].plans) for precision in PRECISIONS)
            for gpu in GPUS for layout in LAYOUTS
        ]  # fmt: skip
        lines.append(f"| {model} | {convolution} | {' | '.join(cells)} |")
    words = Counter(row.refusal for row in rows if row.refusal)
    lines += ["", *(f"* {count} rows without a plan: {text}" for text, count in words.most_common())]
    without = {(r.model, r.convolution, r.gpu, r.precision) for r in rows} - {
        (r.model, r.convolution, r.gpu, r.precision) for r in rows if r.plans
    }
    lines.append(f"* Convolutions without any plan in either layout: {len(without)} of GPU and precision.")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cuda_plans", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=NETWORKS, help=f"networks (default: {' '.join(NETWORKS)})")
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="batch sizes (default 1)")
    parser.add_argument("--record", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write cuda_plans.json and cuda_plans.md")
    arguments = parser.parse_args()
    if not is_installed():
        print("cuDNN and its frontend are not installed, so nothing can be listed: pip install 'einsat[cuda]'")
        return 2
    measured: list[Row] = []
    complete = True
    try:
        for batch, name in itertools.product(arguments.batch, arguments.models):
            if batch == 1 or batch in MODELS[name].batches:
                measured += rows(name, batch)
                print(f"{name}, batch {batch}: {len(measured)} rows", flush=True)
    except KeyboardInterrupt:
        complete = False
    where = origin(1, ["python", "-m", "bench.cuda_plans", *sys.argv[1:]], complete=complete)
    text = page(measured, where)
    print(text)
    if arguments.record:
        record(arguments.record, "cuda_plans", where, measured, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
