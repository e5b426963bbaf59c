"""Models of the benchmark quantised by onnxruntime's own quantiser: dynamic, static pairs (QDQ), quantised operators (QOperator), and
products by weights of four or eight bits in blocks (MatMulNBits).

    python -m bench.quantised --record                    all of them beside onnxruntime, into bench/results/quantised.md
    python -m bench.quantised --only resnet18_qdq         one, shown and not recorded
    python -m bench.quantised --list                      their names

Weights are random, static forms are calibrated on random inputs. Every model is optimised for a short time from an empty database,
then timed in turns with onnxruntime, which runs the same quantised model.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from bench.builder import Builder
from bench.command import write
from bench.environment import environment
from bench.inputs import feeds_for
from bench.models import MODELS, BenchModel
from bench.record import RESULTS
from bench.row import Request, measure_row
from bench.table import table

Form: TypeAlias = Literal["dynamic", "QDQ", "QOperator", "4 bits", "8 bits"]
OLDEST_OPSET = 13
"""The first opset in which pairs have a scale for each channel."""
OLDEST_IR = 8
"""The oldest file format whose opset can be raised if weights are not inputs."""
CALIBRATION_INPUTS = 4
"""Random inputs from which the ranges of static forms are taken."""


@dataclass(frozen=True)
class Recipe:
    """What is quantised, in which form, and whether its activations are signed bytes."""

    source: str
    form: Form
    signed: bool = False


RECIPES: Mapping[str, Recipe] = {
    "bert_base_dynamic": Recipe("bert_base", "dynamic"),
    "gcn_block_dynamic": Recipe("gcn_block", "dynamic"),
    "resnet18_qdq": Recipe("resnet18", "QDQ"),
    "resnet18_qdq_signed": Recipe("resnet18", "QDQ", signed=True),
    "resnet18_qoperator": Recipe("resnet18", "QOperator"),
    "squeezenet_qdq": Recipe("squeezenet", "QDQ"),
    "shufflenet_qoperator": Recipe("shufflenet", "QOperator"),
    "inception_v1_qdq": Recipe("inception_v1", "QDQ"),
    "bert_base_4_bits": Recipe("bert_base", "4 bits"),
    "feed_forward_4_bits": Recipe("feed_forward", "4 bits"),
    "feed_forward_8_bits": Recipe("feed_forward", "8 bits"),
}
BLOCK = 32
"""Weights that share a scale in the forms with blocks."""
LAYERS, WIDTH, INNER = 4, 1024, 2816


def feed_forward(batch: int) -> onnx.ModelProto:
    """The gated feed-forward blocks of a decoder, for one token per sequence: they read most of the bytes of a decoder's step."""
    b = Builder("feed_forward")
    x = b.input("x", (batch, WIDTH))
    for _ in range(LAYERS):
        normal = b.node("LayerNormalization", x, b.weight(WIDTH, scale=1.0), b.weight(WIDTH, scale=0.1), axis=-1)
        gate, up = (b.linear(normal, WIDTH, INNER, bias=False) for _ in range(2))
        active = b.node("Mul", b.node("Mul", gate, b.node("Sigmoid", gate)), up)
        x = b.node("Add", x, b.linear(active, INNER, WIDTH, bias=False))
    return b.model(x)


SOURCES: Mapping[str, BenchModel] = {**MODELS, "feed_forward": BenchModel("feed_forward", feed_forward)}


def in_blocks(model: onnx.ModelProto, bits: int) -> onnx.ModelProto:
    """Return a model whose products by matrices have weights of a few bits, as onnxruntime quantises them."""
    from onnxruntime.capi import _pybind_state as native

    quantise = {4: native.quantize_matmul_4bits, 8: native.quantize_matmul_8bits}[bits]
    matrices = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) == 2}
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in matrices:
            continue
        name, weight = node.input[1], numpy_helper.to_array(matrices[node.input[1]])
        rows, columns = weight.shape
        blocks, names = -(-rows // BLOCK), [f"{name}_{part}" for part in ("bytes", "scales", "zeros")]
        packed = np.zeros((columns, blocks, BLOCK * bits // 8), np.uint8)
        scales, zeros = np.zeros((columns, blocks), np.float32), np.zeros((columns, -(-blocks * bits // 8)), np.uint8)
        whole = np.pad(weight, ((0, blocks * BLOCK - rows), (0, 0)))
        quantise(packed, whole, scales, zeros, BLOCK, columns, rows, False)
        known = {tensor.name for tensor in model.graph.initializer}
        made = zip(names, (packed, scales, zeros), strict=True)
        model.graph.initializer.extend(numpy_helper.from_array(array, each) for each, array in made if each not in known)
        product = helper.make_node(
            "MatMulNBits", [node.input[0], *names], [*node.output], name=node.name, domain="com.microsoft", K=rows, N=columns, bits=bits,
            block_size=BLOCK,
        )  # fmt: skip
        node.CopyFrom(product)
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def quantised(recipe: Recipe, batch: int) -> onnx.ModelProto:
    """Return a model as onnxruntime's quantiser writes it."""
    from onnxruntime import quantization as q

    model = SOURCES[recipe.source].make(batch)
    if recipe.form.endswith("bits"):
        return in_blocks(model, int(recipe.form.split()[0]))
    if model.opset_import[0].version < OLDEST_OPSET:
        model.ir_version = max(model.ir_version, OLDEST_IR)
        model = version_converter.convert_version(model, OLDEST_OPSET)
    with TemporaryDirectory(prefix="einsat-") as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantised.onnx"
        onnx.save(model, source)
        logging.disable(logging.WARNING)  # it advises to prepare models by another of its tools
        try:
            if recipe.form == "dynamic":
                q.quantize_dynamic(source, target)
            else:
                feeds = iter([feeds_for(model, {}, seed) for seed in range(CALIBRATION_INPUTS)])

                class Reader(q.CalibrationDataReader):  # type: ignore[misc]
                    def get_next(self) -> dict[str, np.ndarray] | None:
                        return next(feeds, None)

                kind = q.QuantType.QInt8 if recipe.signed else q.QuantType.QUInt8
                q.quantize_static(source, target, Reader(), quant_format=q.QuantFormat[recipe.form], per_channel=True,
                                  activation_type=kind, weight_type=q.QuantType.QInt8)  # fmt: skip
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(target)


QUANTISED: Mapping[str, BenchModel] = {
    name: BenchModel(name, partial(quantised, recipe), group="quantised") for name, recipe in RECIPES.items()
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quantised", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="A,B", help="only these models")
    parser.add_argument("--list", action="store_true", help="print the models' names")
    parser.add_argument("--record", action="store_true", help="write bench/results/quantised.json and .md as rows are measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where --record writes (default: bench/results)")
    parser.add_argument("--budget", default="25s", help="seconds to optimise each model, as of egraph.optimize (default: 25s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="timing budget of an engine and model (default: 3)")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a row is given up (default: 240)")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(QUANTISED))
        return 0
    names = options.only.split(",") if options.only else [*QUANTISED]
    if unknown := [name for name in names if name not in QUANTISED]:
        parser.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(QUANTISED)}")
    shown = [*(("--only", options.only) if options.only else ()), "--record"]
    where = environment(options.threads, ["python -m bench.quantised", *shown])
    request = Request(("einsat", "onnxruntime"), options.threads, options.seconds, options.limit, False, ("--budget", options.budget))
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    try:
        for name in names:
            rows[name, 1] = row = measure_row(QUANTISED[name], 1, request)
            told = row.get("error") or {engine: round(time_us) for engine, time_us in row["median_us"].items()}
            print(f"{name}: {told} ({row['seconds']:.0f} s)", file=sys.stderr, flush=True)
            if options.record:
                listed = list(rows.values())
                write(options.results / "quantised", listed, where, table(listed, where))
    except KeyboardInterrupt:
        print("interrupted: the rows that were measured are kept", file=sys.stderr)
        return 130
    print(table(list(rows.values()), where))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
