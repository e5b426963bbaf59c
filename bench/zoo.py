"""Image networks of a zoo, one of each family, that nothing was tuned for: built by timm, exported by torch, random weights.

    python -m bench.zoo                       lists them
    python -m bench.zoo rexnet_100 out.onnx   exports one
    python -m bench.run --list zoo            times them beside the peers

Needs timm, torchvision, torch and onnxscript (``pip install -e '.[zoo]'``). The names are timm's: small networks of 26 of its 98 families,
written down before any of them was run. A LeViT was among them, whose activations overflow with random weights, in onnxruntime too.
Exports are kept in the user's cache, under a hash of this file and of the versions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

import onnx

from bench.models import BenchModel
from bench.unseen import Network, bench_model, cached, exported, list_or_export, pictures

VERSIONS = ("timm", "torch", "onnxscript", "onnx")
SOURCES = ("zoo.py", "unseen.py", "unit_scale.py")
NAMES = (
    "convit_tiny", "crossvit_9_240", "davit_tiny", "dla34", "efficientformer_l1", "efficientvit_m2", "fastvit_t8", "gcvit_xxtiny",
    "hardcorenas_a", "hiera_tiny_224", "inception_next_tiny", "maxvit_pico_rw_256", "mixer_s16_224", "mvitv2_tiny",
    "nfnet_l0", "rdnet_tiny", "regnetz_b16", "res2net50_14w_8s", "rexnet_100", "skresnet18", "starnet_s1", "tiny_vit_5m_224",
    "twins_svt_small", "volo_d1_224", "vovnet39a", "xception41",
)  # fmt: skip


def built(name: str) -> Network:
    """Return a network with random weights, and a picture of the size that it is made for."""
    import timm

    module = timm.create_model(name, pretrained=False, exportable=True).eval()
    return module, pictures(module.default_cfg["input_size"][-1])


def network(name: str) -> onnx.ModelProto:
    """Return a network of the list, from the cache where it is there."""
    return cached("zoo", SOURCES, VERSIONS, name, partial(exported, partial(built, name)))


ZOO: Mapping[str, BenchModel] = {name: bench_model(name, network) for name in NAMES}


def main() -> int:
    return list_or_export("bench.zoo", __doc__, ZOO, network)


if __name__ == "__main__":
    sys.exit(main())
