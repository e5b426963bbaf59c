"""The files of an artefact: find the folder, read the plan, open weights and libraries if they are present."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runtime.errors import ArtefactError
from runtime.plan import Plan
from runtime.sizes import ORIGINAL, Sizes, main_folder
from runtime.weights import Weights

PLAN, WEIGHTS, DISPATCHER, MANIFEST = "plan.json", "weights.safetensors", "dispatch.so", "manifest.json"
KERNELS = ("kernels.so", "kernels.json")
"""Files of generated kernels; an artefact has one, which its device reads."""
SUFFIX, MODEL_SUFFIX = ".einsat", ".opt.onnx"


@dataclass(frozen=True)
class Artefact:
    """An opened artefact folder."""

    folder: Path
    plan: Plan
    weights: Mapping[str, np.ndarray]
    kernels: Path | None
    dispatcher: Path | None
    sizes: Sizes | None = None
    """The planned sizes, if the artefact has plans for several."""

    @staticmethod
    def open(path: Path, weights: Mapping[str, np.ndarray] | None = None) -> Artefact:
        """Open ``model.einsat/`` or the ``model.opt.onnx`` beside it. ``weights``: arrays that are mapped already."""
        folder = find_folder(path)
        try:
            plan = Plan.from_json((folder / PLAN).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            fix = "give the folder model.einsat that the optimiser wrote"
            raise ArtefactError(f"there is no {PLAN}", where=str(folder), fix=fix) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtefactError(f"{PLAN} cannot be used: {error}", where=str(folder), fix="optimise the model again") from error
        main = main_folder(folder)
        if weights is None:
            weights = Weights(main / WEIGHTS) if (main / WEIGHTS).exists() else {}
        kernels = next((folder / name for name in KERNELS if (folder / name).exists()), None)
        return Artefact(folder, plan, weights, kernels, _existing(main / DISPATCHER), Sizes.read(folder))

    def at(self, folder: str) -> Artefact:
        """Return the artefact of one of several sizes, which shares the weights, or of the model as it was given."""
        if folder == ORIGINAL:
            return replace(self, sizes=None)
        path = (self.folder / folder).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ArtefactError(f"a size names a folder outside of the artefact: {folder!r}", where=str(self.folder))
        return Artefact.open(path, self.weights)

    def model(self, name: str) -> str:
        """Return the path of an onnxruntime step's model; a name that leaves the folder is refused."""
        return str(self._file(name, "model"))

    def library(self, name: str) -> Path:
        """Return the path of a library that the artefact carries; a name that leaves the folder is refused."""
        return self._file(name, "library")

    def _file(self, name: str, kind: str) -> Path:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
            raise ArtefactError(f"there is no {kind} {name!r}", where=str(self.folder), fix="optimise the model again")
        return path

    def manifest(self) -> Mapping[str, object]:
        """Return the manifest, empty when there is none."""
        path = self.folder / MANIFEST
        contents: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return contents


def find_folder(path: Path) -> Path:
    """Return the artefact folder that ``path`` is or lies beside."""
    if path.is_dir():
        return path
    if not path.exists():
        fix = "check the path; python -m egraph.optimize writes artefacts"
        raise ArtefactError("there is no such file or folder", where=str(path), fix=fix)
    folder = folder_beside(path)
    if not folder.is_dir():
        raise ArtefactError(
            f"{path.name} has no artefact folder {folder.name} beside it", where=str(path),
            fix="keep both together, or run the ONNX file with onnxruntime",
        )  # fmt: skip
    return folder


def folder_beside(model: Path) -> Path:
    """Return where the artefact of a standard model lies: ``m.einsat`` beside ``m.opt.onnx`` and beside ``m.onnx``."""
    stem = model.name.removesuffix(MODEL_SUFFIX) if model.name.endswith(MODEL_SUFFIX) else model.stem
    return model.with_name(stem + SUFFIX)


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None
