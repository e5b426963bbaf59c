"""Networks that nothing was tuned for: built from configurations and exported by torch's current exporter, random weights.

    python -m bench.unseen                    lists them
    python -m bench.unseen vit out.onnx       exports one
    python -m bench.run --list unseen         times them beside the peers

Needs torch, transformers and onnxscript (``pip install -e '.[unseen]'``). The quantised ones are made of others by onnxruntime's
own quantiser. Exports are kept in the user's cache, under a hash of this file, of the networks and of the versions.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from platformdirs import user_cache_dir

from bench.inputs import feeds_for
from bench.models import BenchModel
from bench.unit_scale import unit_scale

Network = tuple[Any, tuple[Any, ...]]
"""A torch module in evaluation mode and example inputs."""
VERSIONS = ("torch", "transformers", "onnxscript", "onnx", "onnxruntime")
SOURCES = ("unseen.py", "torch_networks.py", "unit_scale.py")
SPREAD = 0.1
"""The standard deviation of drawn biases, and of drawn factors about 1."""
WORDS = 128
"""Tokens of a sentence."""


def pictures(size: int = 224) -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 3, size, size),)


def tokens(count: int = WORDS) -> tuple[Any, ...]:
    import torch

    return (torch.randint(0, 1000, (1, count)),)


def configured(kind: str, part: str, inputs: Callable[[], tuple[Any, ...]], result: str | tuple[str, ...], **values: Any) -> Network:
    """Return a model of transformers made from its configuration; ``result`` names the outputs that are kept."""
    import transformers

    nested = {name: value() if callable(value) else value for name, value in values.items()}
    model = getattr(transformers, kind + part)(getattr(transformers, f"{kind}Config")(**nested))
    return own("Outputs", model, (result,) if isinstance(result, str) else result, inputs=inputs)


def own(name: str, *arguments: Any, inputs: Callable[[], tuple[Any, ...]]) -> Network:
    """Return a network of ``bench.torch_networks``."""
    from bench import torch_networks

    return getattr(torch_networks, name)(*arguments).eval(), inputs()


def recurrent(cell: str) -> Network:
    import torch

    return own("Tagger", getattr(torch.nn, cell), inputs=partial(tokens, 64))


def graph(name: str) -> Network:
    import torch

    return own(name, inputs=lambda: (torch.randn(200, 128), torch.randn(200, 200)))


def speech(samples: int = 16_000) -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, samples),)


def spectrum(frames: int = 1000) -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 80, frames),)


def normal(*sizes: int) -> tuple[Any, ...]:
    import torch

    return (torch.randn(*sizes),)


def residual_backbone() -> Any:
    import transformers

    return transformers.ResNetConfig(out_features=["stage4"])


LAST, POOLED = "last_hidden_state", "pooler_output"
SMALL = {"vocab_size": 8000, "use_cache": False}
NETWORKS: Mapping[str, Callable[[], Network]] = {
    "vit": partial(
        configured, "ViT", "Model", pictures, LAST, hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536
    ),
    "convnext": partial(configured, "ConvNext", "Model", pictures, POOLED),
    "swin": partial(configured, "Swin", "Model", pictures, POOLED),
    "mobilenet_v2": partial(configured, "MobileNetV2", "Model", pictures, POOLED),
    "mobilevit": partial(configured, "MobileViT", "Model", partial(pictures, 256), POOLED),
    "regnet": partial(
        configured, "RegNet", "Model", pictures, POOLED,
        layer_type="y", embedding_size=32, hidden_sizes=[48, 120, 336, 888], depths=[2, 5, 13, 1], groups_width=24,
    ),
    "efficientnet": partial(
        configured, "EfficientNet", "Model", pictures, POOLED,
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280,
    ),
    "segformer": partial(configured, "Segformer", "ForSemanticSegmentation", partial(pictures, 256), "logits"),
    "unet": partial(own, "EncoderDecoder", inputs=partial(pictures, 160)),
    "dilated_context": partial(own, "DilatedContext", inputs=partial(pictures, 192)),
    "detr": partial(
        configured, "Detr", "ForObjectDetection", partial(pictures, 256), ("logits", "pred_boxes"),
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=residual_backbone,
        encoder_layers=3, decoder_layers=3,
    ),
    "yolos": partial(
        configured, "Yolos", "Model", partial(pictures, 256), LAST,
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768, image_size=[256, 256],
    ),
    "one_stage_detector": partial(own, "OneStageDetector", inputs=partial(pictures, 256)),
    "distilbert": partial(configured, "DistilBert", "Model", tokens, LAST),
    "mpnet": partial(configured, "MPNet", "Model", tokens, LAST, num_hidden_layers=6),
    "t5_encoder": partial(configured, "T5", "EncoderModel", tokens, LAST),
    "deberta": partial(
        configured, "DebertaV2", "Model", partial(tokens, 64), LAST,
        num_hidden_layers=4, hidden_size=384, num_attention_heads=6, intermediate_size=1536, vocab_size=8000,
        relative_attention=True, position_buckets=32,
    ),
    "gpt2": partial(configured, "GPT2", "LMHeadModel", tokens, "logits", n_layer=6, use_cache=False),
    "grouped_queries": partial(
        configured, "Llama", "Model", tokens, LAST,
        hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2, **SMALL,
    ),
    "single_key_head": partial(
        configured, "Qwen2", "Model", tokens, LAST,
        hidden_size=448, intermediate_size=1216, num_hidden_layers=6, num_attention_heads=7, num_key_value_heads=1, **SMALL,
    ),
    "wav2vec2": partial(configured, "Wav2Vec2", "Model", speech, LAST, num_hidden_layers=4),
    "whisper_encoder": partial(configured, "Whisper", "ForAudioClassification", spectrum, "logits", max_source_positions=500),
    "lstm": partial(recurrent, "LSTM"),
    "gru": partial(recurrent, "GRU"),
    "mamba": partial(configured, "Mamba", "Model", partial(tokens, 64), LAST, hidden_size=256, num_hidden_layers=4, **SMALL),
    "graph_convolution": partial(graph, "GraphConvolutions"),
    "graph_attention": partial(graph, "GraphAttention"),
    "pvt_v2": partial(configured, "PvtV2", "Model", pictures, LAST),
    "poolformer": partial(configured, "PoolFormer", "Model", pictures, LAST),
    "levit": partial(configured, "Levit", "Model", pictures, POOLED),
    "focalnet": partial(configured, "FocalNet", "Model", pictures, POOLED),
    "cvt": partial(configured, "Cvt", "Model", pictures, LAST),
    "mobilenet_v1": partial(configured, "MobileNetV1", "Model", pictures, POOLED),
    "convnextv2": partial(
        configured, "ConvNextV2", "Model", pictures, POOLED, hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2]
    ),
    "swinv2": partial(
        configured, "Swinv2", "Model", partial(pictures, 256), POOLED, image_size=256, window_size=8, depths=[2, 2, 2, 2]
    ),
    "swin2sr": partial(
        configured, "Swin2SR", "ForImageSuperResolution", partial(pictures, 64), "reconstruction",
        image_size=64, embed_dim=60, depths=[2, 2], num_heads=[6, 6], upscale=2, upsampler="pixelshuffledirect",
    ),
    "dinov2": partial(
        configured, "Dinov2", "Model", pictures, LAST, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, image_size=224
    ),
    "beit": partial(
        configured, "Beit", "Model", pictures, LAST,
        hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, use_relative_position_bias=True,
    ),
    "bit": partial(configured, "Bit", "Model", pictures, POOLED, depths=[2, 2, 2, 2], hidden_sizes=[128, 256, 512, 1024]),
    "textnet": partial(configured, "TextNet", "Model", partial(pictures, 320), POOLED),
    "albert": partial(
        configured, "Albert", "Model", tokens, LAST,
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, embedding_size=128, num_hidden_layers=4,
    ),
    "squeezebert": partial(configured, "SqueezeBert", "Model", tokens, LAST, num_hidden_layers=4),
    "mobilebert": partial(configured, "MobileBert", "Model", tokens, LAST, num_hidden_layers=8),
    "modernbert": partial(
        configured, "ModernBert", "Model", tokens, LAST,
        hidden_size=384, intermediate_size=576, num_hidden_layers=8, num_attention_heads=6, vocab_size=8000,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    ),
    "convbert": partial(configured, "ConvBert", "Model", tokens, LAST, num_hidden_layers=4),
    "fnet": partial(configured, "FNet", "Model", tokens, LAST, num_hidden_layers=4),
    "roformer": partial(configured, "RoFormer", "Model", tokens, LAST, num_hidden_layers=4, vocab_size=8000, embedding_size=768),
    "xlnet": partial(configured, "XLNet", "Model", tokens, LAST, n_layer=4, d_model=512, n_head=8, d_inner=2048, vocab_size=8000),
    "gpt_neox": partial(
        configured, "GPTNeoX", "Model", tokens, LAST,
        hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, **SMALL,
    ),
    "bloom": partial(configured, "Bloom", "Model", tokens, LAST, hidden_size=512, n_layer=6, n_head=8, **SMALL),
    "opt": partial(
        configured, "OPT", "Model", tokens, LAST,
        hidden_size=512, num_hidden_layers=6, ffn_dim=2048, num_attention_heads=8, word_embed_proj_dim=512, **SMALL,
    ),
    "gemma2": partial(
        configured, "Gemma2", "Model", tokens, LAST,
        hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2, head_dim=64, **SMALL,
    ),
    "mamba2": partial(
        configured, "Mamba2", "Model", partial(tokens, 64), LAST,
        hidden_size=256, num_hidden_layers=3, num_heads=8, head_dim=64, state_size=64, n_groups=1, chunk_size=64, **SMALL,
    ),
    "conformer": partial(
        configured, "Wav2Vec2Conformer", "Model", speech, LAST,
        num_hidden_layers=3, hidden_size=256, num_attention_heads=4, intermediate_size=1024,
    ),
    "ast": partial(
        configured, "AST", "Model", partial(normal, 1, 512, 128), POOLED,
        max_length=512, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
    ),
    "patchtst": partial(
        configured, "PatchTST", "Model", partial(normal, 1, 512, 7), LAST,
        context_length=512, patch_length=16, patch_stride=8, num_input_channels=7, d_model=128, num_hidden_layers=3,
        num_attention_heads=16, ffn_dim=256,
    ),
}  # fmt: skip
"""Every network by its name."""
QUANTISED: Mapping[str, tuple[str, str]] = {
    "distilbert_dynamic": ("distilbert", "dynamic"),
    "lstm_dynamic": ("lstm", "dynamic"),
    "mobilenet_v2_qdq": ("mobilenet_v2", "QDQ"),
    "regnet_qoperator": ("regnet", "QOperator"),
}
"""Quantised networks: of which network, and in which of onnxruntime's forms."""


def draw_constants(module: Any) -> None:
    """Draw the parameters that a network begins with as one number throughout: biases of 0, factors of 1, layer scales of 1e-6.

    Trained ones are none of these. With a layer scale of 1e-6 a block adds nothing to the output, and its roundings are not seen.
    """
    import torch

    for parameter in module.parameters():
        if parameter.numel() > 1 and parameter.min() == parameter.max():
            noise = SPREAD * torch.randn_like(parameter)
            parameter.data = noise if parameter.max() == 0 else 1 + noise


def exported(make: Callable[[], Network]) -> onnx.ModelProto:
    """Return a network as torch's exporter writes it, no parameter constant, activations scaled to unit size."""
    import torch

    torch.manual_seed(0)
    module, inputs = make()
    draw_constants(module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, on what is not ours to change
        logging.disable(logging.WARNING)
        try:
            program = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
        finally:
            logging.disable(logging.NOTSET)
    model: onnx.ModelProto = program.model_proto
    return unit_scale(model, feeds_for(model, {}))


def quantised(name: str, form: str) -> onnx.ModelProto:
    """Return a network quantised by onnxruntime; static forms are calibrated on random inputs."""
    from onnxruntime import quantization as q

    with TemporaryDirectory(prefix="einsat-") as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantised.onnx"
        model = network(name)
        onnx.save(model, source)
        if form == "dynamic":
            q.quantize_dynamic(source, target)
        else:
            feeds = iter([feeds_for(model, {}, seed) for seed in range(4)])

            class Reader(q.CalibrationDataReader):  # type: ignore[misc]
                def get_next(self) -> dict[str, np.ndarray] | None:
                    return next(feeds, None)

            q.quantize_static(source, target, Reader(), quant_format=q.QuantFormat[form], per_channel=True)
        return onnx.load(target)


def network(name: str) -> onnx.ModelProto:
    """Return a network of the list, from the cache where it is there."""
    made = partial(quantised, *QUANTISED[name]) if name in QUANTISED else partial(exported, NETWORKS[name])
    return cached("unseen", SOURCES, VERSIONS, name, made)


def cached(
    listed: str, sources: Sequence[str], packages: Sequence[str], name: str, make: Callable[[], onnx.ModelProto]
) -> onnx.ModelProto:
    """Return a network of a list, made once for these sources beside this file and these versions of packages."""
    folder = Path(__file__).parent
    texts = [(folder / source).read_bytes() for source in sources] + [metadata.version(package).encode() for package in packages]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]
    path = Path(user_cache_dir("einsat")) / listed / digest / f"{name}.onnx"
    if not path.exists():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_path = path.with_suffix(".partial")
        onnx.save(made, partial_path)
        partial_path.replace(path)
    return onnx.load(path)


def bench_model(name: str, make_network: Callable[[str], onnx.ModelProto] = network) -> BenchModel:
    def make(batch: int) -> onnx.ModelProto:
        if batch != 1:
            raise ValueError(f"{name} is exported at batch 1 alone")
        return make_network(name)

    return BenchModel(name, make, group="unseen")


UNSEEN: Mapping[str, BenchModel] = {name: bench_model(name) for name in (*NETWORKS, *QUANTISED)}


def main() -> int:
    return list_or_export("bench.unseen", __doc__, UNSEEN, network)


def list_or_export(module: str, description: str | None, models: Mapping[str, BenchModel], make: Callable[[str], onnx.ModelProto]) -> int:
    """Run the command line of a list: print its networks, or export one."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=[*models], metavar="NAME", help="the network to export")
    parser.add_argument("output", nargs="?", type=Path, help="where to write it")
    arguments = parser.parse_args()
    if arguments.name is None:
        print("\n".join(models))
    elif arguments.output is None:
        parser.error(f"say where to write it: python -m {module} NAME out.onnx")
    else:
        onnx.save(make(arguments.name), arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
