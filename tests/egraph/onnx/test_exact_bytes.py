"""References of products of bytes are exact even on processors on which onnxruntime's sums saturate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from egraph.onnx import importer
from egraph.onnx.exact_bytes import exact_file, separate_file, with_exact_bytes
from egraph.optimize import check_noise
from egraph.optimize.artefact import save_unchanged
from egraph.optimize.check_noise import open_exported, open_onnxruntime
from runtime import Session, opaque, processor
from runtime.opaque import EXACT_BYTES

HEADER = '<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]> products '
SCALES = "<float s = {1}, uint8 z = {0}, float t = {1}, int8 y = {0}, float u = {8192}, uint8 v = {128}>"
PRODUCTS = {
    "MatMulInteger": "(uint8[4,512] a, int8[512,16] b) => (int32[4,16] c) { c = MatMulInteger(a, b) }",
    "QLinearMatMul": f"(uint8[4,512] a, int8[512,16] b) => (uint8[4,16] c) {SCALES} {{ c = QLinearMatMul(a, s, z, b, t, y, u, v) }}",
    "pairs": f"""(uint8[4,512] a, int8[512,16] b) => (uint8[4,16] c) {SCALES} {{
        d = DequantizeLinear(a, s, z) e = DequantizeLinear(b, t, y) f = MatMul(d, e) c = QuantizeLinear(f, u, v) }}""",
    "QLinearConv": f"(uint8[1,512,2,2] a, int8[16,512,1,1] b) => (uint8[1,16,2,2] c) {SCALES} "
    "{ c = QLinearConv(a, s, z, b, t, y, u, v) }",
    "QGemm": f"(uint8[4,512] a, int8[512,16] b) => (uint8[4,16] c) {SCALES} {{ c = com.microsoft.QGemm(a, s, z, b, t, y, , u, v) }}",
    "MatMulIntegerToFloat": f"(uint8[4,512] a, int8[512,16] b) => (uint8[4,16] c) {SCALES} {{"
    " d = com.microsoft.MatMulIntegerToFloat(a, b, s, t, z, y) c = QuantizeLinear(d, u, v) }",
    "behind an operator without a known type": f"(uint8[4,512] a, int8[512,16] b) => (uint8[4,16] c) {SCALES} {{"
    " d = com.microsoft.QLinearLeakyRelu<alpha=1.0>(a, s, z, s, z) c = QLinearMatMul(d, s, z, b, t, y, u, v) }",
}


@pytest.mark.parametrize("optimise", [True, False])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_of_bytes_do_not_saturate(tmp_path: Path, name: str, is_constant: bool, optimise: bool) -> None:
    if name == "pairs" and optimise and not is_constant:
        pytest.skip("onnxruntime fuses these into a product that saturates")
    model, random = parser.parse_model(HEADER + PRODUCTS[name]), np.random.default_rng(0)
    a, b = random.integers(0, 256, (4, 512)).astype(np.uint8), random.integers(-128, 128, (512, 16)).astype(np.int8)
    sums = a.astype(np.int64) @ b.astype(np.int64)
    expected = sums if name == "MatMulInteger" else np.clip(np.rint(sums / 8192) + 128, 0, 255)
    weights, x = b, a
    if name == "QLinearConv":
        weights, x = b.T.reshape(16, 512, 1, 1), a.T.reshape(1, 512, 2, 2)
        expected = expected.T.reshape(1, 16, 2, 2)
    feeds = {"a": x, "b": weights}
    if is_constant:
        model.graph.initializer.append(numpy_helper.from_array(feeds.pop("b"), "b"))
        del model.graph.input[1]
    onnx.save(model, tmp_path / "model.onnx")
    for source in (tmp_path / "model.onnx", model.SerializeToString()):
        np.testing.assert_array_equal(open_onnxruntime(source, 1, optimise=optimise).run(None, feeds)[0], expected)


@pytest.mark.parametrize("optimise", [True, False])
def test_sums_of_bytes_do_not_saturate_in_a_graph_that_is_opened(optimise: bool) -> None:
    """Large constants of signed bytes become unsigned ones, wherever they are stored, so that sums do not saturate."""
    model, random = parser.parse_model(HEADER + PRODUCTS["MatMulInteger"]), np.random.default_rng(0)
    a, b = random.integers(0, 256, (4, 512)).astype(np.uint8), random.integers(-128, 128, (512, 16)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(b, "b"))
    del model.graph.input[1]
    session = open_exported(importer.load(model).graph, 1, optimise=optimise)
    assert not hasattr(session, "constants"), "on a processor whose sums are exact anyway nothing else shows"
    (sums,) = session.run(None, {"a": a})
    np.testing.assert_array_equal(sums, a.astype(np.int64) @ b.astype(np.int64))


QUANTISES_ITSELF = {
    "DynamicQuantizeMatMul": "(float[4,512] a) => (float[4,16] c) { c = com.microsoft.DynamicQuantizeMatMul(a, b, s, z) }",
    "DynamicQuantizeLSTM": "(float[5,4,512] a) => (float[5,1,4,4] c) "
    "{ c = com.microsoft.DynamicQuantizeLSTM<hidden_size=4>(a, w, r, , , , , , s, z, s, z) }",
}


@pytest.mark.parametrize("name", QUANTISES_ITSELF)
def test_products_of_what_onnxruntime_quantises_do_not_saturate(name: str) -> None:
    """Signed weights give the same result as unsigned weights, whose sums are exact everywhere."""
    random = np.random.default_rng(0)
    a = random.uniform(0, 1, (5, 4, 512) if "LSTM" in name else (4, 512)).astype(np.float32)
    weights = {"b": (512, 16), "w": (1, 512, 16), "r": (1, 4, 16)}
    bytes_by_name = {
        each: random.integers(0, 256, shape).astype(np.uint8) for each, shape in weights.items() if f" {each}," in QUANTISES_ITSELF[name]
    }
    scale = np.full(1 if "LSTM" in name else (), 1e-4, np.float32)
    results = []
    for dtype, shift in ((np.uint8, 0), (np.int8, 128)):
        model = parser.parse_model(HEADER + QUANTISES_ITSELF[name])
        constants = {each: (value.astype(np.int64) - shift).astype(dtype) for each, value in bytes_by_name.items()}
        for each, value in (constants | {"s": scale, "z": np.full(scale.shape, 128 - shift, dtype)}).items():
            model.graph.initializer.append(numpy_helper.from_array(value, each))
        results.append(open_onnxruntime(model.SerializeToString(), 1, optimise=False).run(None, {"a": a})[0])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_other_models_stay_as_they_are() -> None:
    plain = parser.parse_model(HEADER + "(float[4,5] a, float[5,6] b) => (float[4,6] c) { c = MatMul(a, b) }").SerializeToString()
    assert exact_file(plain) is plain
    signed = parser.parse_model(HEADER + "(int8[4,5] a, int8[5,6] b) => (int32[4,6] c) { c = MatMulInteger(a, b) }")
    assert [node.op_type for node in with_exact_bytes(signed).graph.node] == ["MatMulInteger"]


@pytest.mark.parametrize("is_node", [False, True])
def test_constants_that_several_products_read_are_separated(is_node: bool, tmp_path: Path) -> None:
    """A constant that two products read is copied for each, because onnxruntime's exact option refuses shared constants."""
    model = parser.parse_model(
        HEADER + "(uint8[4,8] a) => (int32[4,8] c, int32[4,8] d) { c = MatMulInteger(a, b, , z) d = MatMulInteger(a, b, , z) }"
    )
    b, z, a = (np.arange(64, dtype=np.int8).reshape(8, 8), np.array(3, np.int8), np.arange(32, dtype=np.uint8).reshape(4, 8))
    for name, value in (("b", b), ("z", z)):
        tensor = numpy_helper.from_array(value, name)
        if is_node:
            model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensor))
        else:
            model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "model.onnx")
    save_unchanged(importer.load(model).graph, tmp_path / "model.onnx", tmp_path / "kept")
    separate = separate_file(model.SerializeToString())
    for content in (separate, (tmp_path / "kept" / "opaque" / "0.onnx").read_bytes()):
        first, second = (list(node.input) for node in onnx.load_from_string(content).graph.node if node.op_type == "MatMulInteger")
        assert first[:1] == second[:1] and not set(first[1:]) & (set(second[1:]) - {""})
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT_BYTES)
    sums = a.astype(np.int64) @ (b.astype(np.int64) - 3)
    for result in (*onnxruntime.InferenceSession(separate, options).run(None, {"a": a}),
                   *open_onnxruntime(model.SerializeToString(), 1).run(None, {"a": a}),
                   *Session(tmp_path / "kept").run(None, {"a": a})):  # fmt: skip
        np.testing.assert_array_equal(result, sums)
    assert separate_file(separate) is separate


def test_convolutions_of_signed_bytes_open_although_the_option_refuses_them(tmp_path: Path) -> None:
    scales = "<float s = {1}, int8 z = {0}, float t = {1}, int8 y = {0}, float u = {8192}, int8 v = {0}>"
    text = f"(int8[1,512,2,2] a, int8[16,512,1,1] b) => (int8[1,16,2,2] c) {scales} {{ c = QLinearConv(a, s, z, b, t, y, u, v) }}"
    model, random = parser.parse_model(HEADER + text), np.random.default_rng(0)
    a, b = (random.integers(-128, 128, sizes).astype(np.int8) for sizes in ((1, 512, 2, 2), (16, 512, 1, 1)))
    model.graph.initializer.append(numpy_helper.from_array(b, "b"))
    del model.graph.input[1]
    sums = np.einsum("oi,nihw->nohw", b[:, :, 0, 0].astype(np.int64), a.astype(np.int64))
    onnx.save(model, tmp_path / "model.onnx")
    save_unchanged(importer.load(model).graph, tmp_path / "model.onnx", tmp_path / "kept")
    for result in (*open_onnxruntime(tmp_path / "model.onnx", 1).run(None, {"a": a}), *Session(tmp_path / "kept").run(None, {"a": a})):
        np.testing.assert_array_equal(result, np.clip(np.rint(sums / 8192), -128, 127))


@pytest.mark.parametrize(
    ("cpuinfo", "saturates"),
    [("flags\t: avx2 avx512_vnni", False), ("flags\t: avx2 avx_vnni", False), ("flags\t: avx2 avx512f", True), ("Features\t: asimd", True)],
)
def test_the_option_is_set_where_sums_would_saturate(monkeypatch: pytest.MonkeyPatch, cpuinfo: str, saturates: bool) -> None:
    """The exact option is set only if sums would saturate.

    Otherwise onnxruntime's own kernels are exact, and twice as slow with the option.
    """
    entries: list[tuple[str, str]] = []
    monkeypatch.setattr(processor, "cpuinfo", lambda: ("processor\t: 0", cpuinfo))
    monkeypatch.setattr(opaque, "x86_flags", processor.x86_flags.__wrapped__)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda model, options, providers: "session")
    assert opaque.open_session(b"", SimpleNamespace(add_session_config_entry=lambda *entry: entries.append(entry))) == "session"
    assert entries == ([EXACT_BYTES] if saturates else [])


@pytest.mark.parametrize("saturates", [False, True])
def test_signed_bytes_become_unsigned_where_sums_would_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saturates: bool) -> None:
    """Signed bytes become unsigned only if sums would saturate, because otherwise onnxruntime would leave its fast kernels."""
    constant = "<int8[3,4] b = {1,2,3,4,5,6,7,8,9,10,11,12}>"
    proto = parser.parse_model(HEADER + f"(uint8[2,3] a) => (int32[2,4] y) {constant} {{ y = MatMulInteger(a, b) }}")
    onnx.save(proto, path := tmp_path / "model.onnx")
    opened: list[str | bytes] = []
    monkeypatch.setattr(check_noise, "saturates", lambda: saturates)
    monkeypatch.setattr(check_noise, "open_session", lambda model, options: opened.append(model))
    open_onnxruntime(path, 1)
    open_onnxruntime(proto.SerializeToString(), 1)
    unsigned = with_exact_bytes(proto).SerializeToString()
    assert unsigned != proto.SerializeToString()
    assert opened == ([unsigned, unsigned] if saturates else [str(path), proto.SerializeToString()])
