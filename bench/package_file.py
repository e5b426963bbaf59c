"""Find files of installed packages: trained models, photographs."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package_file(package: str, file: str) -> Path:
    """Return a data file of an installed package without importing the package."""
    specification = importlib.util.find_spec(package)
    if specification is None or not specification.submodule_search_locations:
        raise FileNotFoundError(f"{package} is not installed: pip install 'einsat[bench]'")
    return Path(next(iter(specification.submodule_search_locations))) / file
