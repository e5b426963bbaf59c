"""Models as other exporters than torch's write them: Keras by tf2onnx, JAX by jax2onnx, scikit-learn by skl2onnx, Paddle; random weights.

    python bench/exporters.py                              lists them
    python bench/exporters.py keras models                 exports those of Keras into a folder
    python -m bench.run --models models/keras_gru.onnx     times one beside the peers

Each exporter has packages of its own, which may conflict with each other and with Einsat's: install them into an environment of their own
(``tensorflow-cpu tf2onnx``, ``jax2onnx flax``, ``scikit-learn skl2onnx``, ``paddlepaddle paddle2onnx packaging``), and run this file
there. It imports nothing of Einsat. Paddle's models leave the batch open: ``--shape x:1,3,224,224`` fixes it, for the peers too.
The models were chosen for what these exporters do differently: recurrences and distances as loops, layouts with channels last.
There is no KMeans: onnxruntime refuses what skl2onnx writes for a fixed number of rows (a bias of the wrong size).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOKENS, WORDS, CHANNELS = 64, 1000, 96
ROWS, FEATURES = 200, 40


def keras_text(name: str) -> Any:
    """Return a network over 64 token ids."""
    from keras import Model, activations
    from keras import layers as L

    ids = L.Input((TOKENS,), dtype="int32")
    x = L.Embedding(WORDS, CHANNELS, mask_zero=name == "masked_gru")(ids)
    if name == "gru":
        x = L.GRU(64)(L.GRU(64, return_sequences=True)(x))
    elif name == "both_ways_gru":
        x = L.GlobalMaxPooling1D()(L.Bidirectional(L.GRU(64, return_sequences=True))(x))
    elif name == "masked_gru":
        x = L.GRU(64)(x)
    elif name == "lstm_gru":
        x = L.GRU(128)(L.LSTM(96, return_sequences=True)(x))
    elif name == "simple_rnn":
        x = L.SimpleRNN(128)(x)
    else:
        for _ in range(3):
            x = L.LayerNormalization()(x + L.MultiHeadAttention(4, 24)(x, x, use_causal_mask=True))
            hidden = L.Dense(256, activation=lambda value: activations.gelu(value, approximate=True))(x)
            x = L.LayerNormalization()(x + L.Dense(CHANNELS)(hidden))
        x = L.GlobalAveragePooling1D()(x)
    return Model(ids, L.Dense(10, activation="softmax")(x))


def keras_picture(name: str) -> Any:
    """Return a network over pictures, films or sound, channels last."""
    from keras import Model, applications
    from keras import layers as L

    if name == "mobilenet_v3":
        return applications.MobileNetV3Small(weights=None, input_shape=(224, 224, 3))
    if name == "films":
        x = film = L.Input((16, 32, 32, 3))
        x = L.MaxPooling3D()(L.Conv3D(16, 3, padding="same", activation="relu")(x))
        return Model(film, L.Dense(7)(L.GlobalAveragePooling3D()(L.Conv3D(32, 3, padding="same", activation="swish")(x))))
    if name == "conv_lstm":
        film = L.Input((6, 24, 24, 4))
        return Model(film, L.Conv2D(1, 1)(L.ConvLSTM2D(8, 3, padding="same")(film)))
    sound = L.Input((2048, 1))
    x, shown = L.Conv1D(32, 2, padding="causal")(sound), []
    for distance in (1, 2, 4, 8, 16, 32):
        gate, value = (L.Conv1D(32, 2, dilation_rate=distance, padding="causal", activation=f)(x) for f in ("sigmoid", "tanh"))
        shown.append(L.Conv1D(32, 1)(L.Multiply()([gate, value])))
        x = L.Add()([x, shown[-1]])
    return Model(sound, L.Conv1D(64, 1, activation="softmax")(L.ReLU()(L.Add()(shown))))


def export_keras(build: Callable[[str], Any], name: str) -> Any:
    import keras
    import tensorflow
    import tf2onnx

    keras.utils.set_random_seed(1)
    model = build(name)
    spec = tensorflow.TensorSpec((1, *model.inputs[0].shape[1:]), model.inputs[0].dtype, name="x")
    function = tensorflow.function(lambda x: model(x, training=False))
    return tf2onnx.convert.from_function(function, input_signature=[spec], opset=17)[0]


def export_jax(_: object, name: str) -> Any:
    """Export a recurrence over 100 rows, as a scan over a cell of flax."""
    import jax
    from flax import nnx
    from jax2onnx import to_onnx

    cell = getattr(nnx, name)(32, 64, rngs=nnx.Rngs(0))

    def recurrence(x: Any) -> Any:
        zero = jax.numpy.zeros((1, 64), "float32")
        _, rows = jax.lax.scan(cell, (zero, zero) if "LSTM" in name else zero, x.transpose(1, 0, 2))
        return rows.transpose(1, 0, 2)

    return to_onnx(recurrence, [(1, 100, 32)], opset=18)


def export_sklearn(_: object, name: str) -> Any:
    """Export an estimator fitted to 600 random rows, for 200 rows."""
    import numpy
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn import gaussian_process, neighbors

    random = numpy.random.default_rng(0)
    x, y = random.standard_normal((600, FEATURES)).astype("float32"), random.integers(0, 4, 600)
    kinds = {
        "nearest_neighbours": neighbors.KNeighborsRegressor(5), "gaussian_process": gaussian_process.GaussianProcessRegressor(),
    }  # fmt: skip
    return to_onnx(kinds[name].fit(x, y), initial_types=[("X", FloatTensorType([ROWS, FEATURES]))], target_opset=18)


def paddle_layers(name: str) -> Any:
    """Return a network of Paddle's zoo, or of its layers."""
    from paddle import nn, vision

    class Recurrence(nn.Layer):  # type: ignore[misc]
        def __init__(self, kind: Any) -> None:
            super().__init__()
            self.rows, self.last = kind(32, 48, num_layers=2, direction="bidirect"), nn.Linear(96, 10)

        def forward(self, x: Any) -> Any:
            return self.last(self.rows(x)[0])

    if name in ("LSTM", "GRU"):
        return Recurrence(getattr(nn, name))
    if name == "transformer":
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, activation="gelu"), 3)
    return getattr(vision.models, name)()


def export_paddle(build: Callable[[str], Any], name: str) -> Any:
    """Export a network whose batch is open."""
    import onnx
    import paddle

    paddle.seed(0)
    shape = {"LSTM": (40, 32), "GRU": (40, 32), "transformer": (64, 128), "inception_v3": (3, 299, 299)}.get(name, (3, 224, 224))
    model = build(name)
    model.eval()
    with tempfile.TemporaryDirectory(prefix="einsat-") as folder:
        spec = paddle.static.InputSpec([-1, *shape], "float32", "x")
        paddle.onnx.export(model, f"{folder}/model", input_spec=[spec], opset_version=14)
        return onnx.load(f"{folder}/model.onnx")


MODELS: Mapping[str, tuple[Callable[..., Any], Callable[[str], Any] | None, str]] = {
    **{f"keras_{name}": (export_keras, keras_text, name)
       for name in ("gru", "both_ways_gru", "masked_gru", "lstm_gru", "simple_rnn", "causal_attention")},
    **{f"keras_{name}": (export_keras, keras_picture, name) for name in ("mobilenet_v3", "films", "conv_lstm", "dilated_sound")},
    **{f"jax_{name.lower()}": (export_jax, None, name) for name in ("LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell")},
    **{f"paddle_{name.lower()}": (export_paddle, paddle_layers, name)
       for name in ("mobilenet_v2", "mobilenet_v3_large", "shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "resnet18",
                    "resnext50_32x4d", "inception_v3", "LSTM", "GRU", "transformer")},
    **{f"sklearn_{name}": (export_sklearn, None, name) for name in ("nearest_neighbours", "gaussian_process")},
}  # fmt: skip
"""By name, which begins with the exporter's: what exports a model, what builds it first, and its name there."""


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, *MODELS, sep="\n")
        return 0
    chosen, folder = [name for name in MODELS if name.startswith(arguments[0])], Path(arguments[1])
    if not chosen:
        print(f"error: no model begins with {arguments[0]!r}\n  fix: one of {', '.join(MODELS)}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        export, build, own_name = MODELS[name]
        (folder / f"{name}.onnx").write_bytes(export(build, own_name).SerializeToString())
        print(folder / f"{name}.onnx", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
