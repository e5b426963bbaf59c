"""Compile C sources once, into the user's cache folder, with the C compiler that pip brings."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from runtime.cache import ANOTHER_FOLDER, cache_folder
from runtime.errors import LibraryMissing
from runtime.leftovers import PREFIX, owned_folder, remove_abandoned

SOURCE = Path(__file__).with_name("dispatch.c")
OPENMP_SOURCE = Path(__file__).with_name("openmp.c")
OPENMP_VERSIONS = (
    "OMP_1.0 { global: omp_*; local: *; }; GOMP_1.0 { global: GOMP_[!p]*; GOMP_parallel_*; }; GOMP_4.0 { global: GOMP_parallel; };"
    " EINSAT { global: einsat_*; };"
)
"""The symbol versions under which programs look for these functions."""
FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-sanitize=undefined", "-s", "-Wl,-Bsymbolic")
"""``-s`` strips paths of this machine, on which artefacts would depend otherwise. With ``-Bsymbolic`` a library calls its own functions
even if others have their names; PyTorch loads its libgomp for all libraries of the process."""
WITHOUT_RUNTIME = {"x86_64": ("-rtlib=none",)}
"""Flags of zig, by machine, for sources that do not need the compiler's runtime library, which zig builds for 5 s in an empty cache."""
ZIG_FOLDERS = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
"""Environment variables that name zig's caches. By default they lie in the home folder; if that cannot be written, zig hangs."""
INCLUDED = re.compile(rb'^#include "(.+)"', re.MULTILINE)
"""The name of a file that a source includes, relative to the source's folder."""
PATIENCE_SECONDS = 300.0
MESSAGE_CHARACTERS = 200
OLDEST_GLIBC = "2.17"
"""The newest glibc that is linked against, because artefacts travel to other machines."""


def compiler() -> list[str]:
    """Return the C compiler's command: pip's zig, else the system's."""
    if importlib.util.find_spec("ziglang") is not None:
        machine = platform.machine()
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{OLDEST_GLIBC}", *WITHOUT_RUNTIME.get(machine, ())]
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    fix = "pip install ziglang, or use an artefact that carries dispatch.so"
    raise LibraryMissing("no C compiler to build the dispatcher with", fix=fix)


def build_openmp() -> Path:
    """Return the stand-in for libgomp, under its name and symbol versions, for machines that have none."""
    return build(OPENMP_SOURCE, ("-lpthread", "-Wl,-soname,libgomp.so.1"), version_script=OPENMP_VERSIONS)


def copy_into(folder: Path) -> None:
    """Give an artefact the libraries that a machine without a compiler needs."""
    shutil.copyfile(build(), folder / "dispatch.so")
    shutil.copyfile(build_openmp(), folder / "openmp.so")


def source_digest(source: Path) -> str:
    """Return a hash of a C source and of all files that it includes by name."""
    return hashlib.sha256(b"\0".join(_texts(source))).hexdigest()[:16]


def _texts(source: Path) -> tuple[bytes, ...]:
    """Return the contents of a C source and of all files that it includes by name, each once."""
    texts = {source.resolve(): source.read_bytes()}
    waiting = list(texts)
    for path in waiting:
        for name in INCLUDED.findall(texts[path]):
            included = (path.parent / name.decode()).resolve()
            if included not in texts:
                texts[included] = included.read_bytes()
                waiting.append(included)
    return tuple(texts.values())


def build(source: Path = SOURCE, extra_flags: tuple[str, ...] = (), *, version_script: str = "") -> Path:
    """Return the shared library compiled from ``source``, compiling it unless the cache has it."""
    parts = [*_texts(source), *(flag.encode() for flag in FLAGS + extra_flags), version_script.encode(), platform.machine().encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    library = cache_folder() / f"{source.stem}-{key}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        _compile(source, library, extra_flags, version_script)
    except OSError as error:
        raise LibraryMissing(f"compiling {source.name} failed: {error}", where=str(library.parent), fix=ANOTHER_FOLDER) from error
    return library


def _compile(source: Path, library: Path, extra_flags: tuple[str, ...], version_script: str) -> None:
    """Compile in a temporary folder beside the library, and rename the result."""
    remove_abandoned(library.parent, f"{PREFIX}*")
    with owned_folder(library.parent, PREFIX) as folder:
        beside = folder / library.name
        command = [*compiler(), *FLAGS, *extra_flags, "-o", str(beside), str(source)]
        if version_script:
            versions = folder / "versions.map"
            versions.write_text(version_script)
            command.append(f"-Wl,--version-script={versions}")
        environment = {variable: str(cache_folder() / "zig") for variable in ZIG_FOLDERS} | dict(os.environ)
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise LibraryMissing(f"compiling {source.name} did not end", where=" ".join(command), fix=ANOTHER_FOLDER) from error
        if done.returncode != 0:
            raise LibraryMissing(
                f"compiling {source.name} failed with exit code {done.returncode}:\n{done.stderr.strip()[-MESSAGE_CHARACTERS:]}",
                where=" ".join(command), fix=f"{ANOTHER_FOLDER}, or report the message above",
            )  # fmt: skip
        os.replace(beside, library)
