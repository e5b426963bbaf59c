"""Shared fixtures: golden text files (``--update-golden`` rewrites them), and what all tests of a process have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from runtime.cache import cache_folder
from runtime.devices.cpu.native import build as native_build

GOLDEN = Path(__file__).parent / "golden"

# Hundreds of commands are started: where no bytecode is written, each compiles all modules, in more time than most of them run.
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(__file__).parents[1] / "build" / "bytecode"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# zig takes eight seconds for its first library: a test that begins with an empty cache of ours need not begin with an empty one of zig's.
for variable in native_build.ZIG_FOLDERS:
    os.environ.setdefault(variable, str(cache_folder() / "zig"))

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("repeatable")  # the same draws each time; --hypothesis-profile random draws others, as `make fuzz` does


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden text files from what the code does now")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from tests.support.order import longest_first

    items[:] = longest_first(items)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return ``check(name, text)``: compare with tests/golden/<name>, or rewrite it under --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert path.read_text() == text, f"{name} changed: look at the difference, then run pytest --update-golden"

    return check


@pytest.fixture(autouse=True, scope="session")
def shared_process() -> Iterator[None]:
    """Collect garbage as rarely as commands do, and fork the processes that take seconds to start."""
    from runtime.garbage_collection import rare_collections
    from tests.support.child_server import child_servers

    with rare_collections(), child_servers():
        yield


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a program that stands for Python, as a fork of a process that has imported most of what is here."""
    from tests.support.child_server import write_stand_in

    return str(write_stand_in(tmp_path_factory.mktemp("python") / "python"))


@pytest.fixture
def forked_python(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands that the test, or what it calls, starts through ``sys.executable`` be forks; all of them have one hash seed."""
    monkeypatch.setattr(sys, "executable", stand_in)
