"""Read what a run found out from the artefact that it made."""

from __future__ import annotations

import json
from pathlib import Path

from egraph.errors import ModelError
from egraph.optimize.outcome import Outcome
from runtime.artefact import MANIFEST, find_folder
from runtime.errors import ArtefactError


def read_outcome(artefact: Path) -> Outcome:
    """Return what the run that made the artefact found out."""
    try:
        path = find_folder(artefact) / MANIFEST
    except ArtefactError as error:
        raise ModelError(error.what, where=error.where, fix=error.fix) from error
    try:
        return Outcome.from_manifest(json.loads(path.read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{artefact} is not an artefact of this version: {error}", fix="optimise the model again") from error
