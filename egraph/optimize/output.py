"""Write results beside their destination and rename them, so that the destination is always complete, old or new."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from egraph.errors import ModelError
from egraph.optimize.interruption import settle
from runtime.artefact import folder_beside
from runtime.leftovers import owned_folder, remove_abandoned

FULL = (errno.ENOSPC, errno.EDQUOT)
PARTIAL = ".partial"


@dataclass(frozen=True)
class Destination:
    """The places of the result: the standard ONNX file and the artefact folder, side by side."""

    model: Path
    artefact: Path


def destination(model: Path, output: Path | None) -> Destination:
    """Return the destination: beside the model, in a folder, or a given name ending in .onnx."""
    if output is not None and output.suffix == ".onnx" and not output.is_dir():
        target = Destination(output, folder_beside(output))
    else:
        folder = output if output is not None else model.parent
        target = Destination(folder / f"{model.stem}.opt.onnx", folder / f"{model.stem}.einsat")
    if target.model.exists() and model.exists() and target.model.samefile(model):
        raise ModelError(f"the output would replace the input {model}", fix="give -o another name")
    return target


@contextmanager
def staging(target: Destination) -> Iterator[Path]:
    """Yield a temporary folder on the output's own disk, which is removed afterwards in any case.

    Folders that were created for it are removed, too, if they are empty, as are the folders of killed runs in the same place.
    """
    stack = ExitStack()
    parent = target.model.parent.absolute()  # absolute, because workers run in another folder
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent, f".*{PARTIAL}")
        staged = stack.enter_context(owned_folder(parent, f".{target.model.stem}.", PARTIAL))
    except OSError as error:
        raise write_error(error, parent) from error
    try:
        yield staged
    except OSError as error:
        if error.errno in FULL:
            raise full_error(error, parent, Path(tempfile.gettempdir())) from error
        if error.errno in (errno.EFBIG, errno.EROFS):
            raise write_error(error, parent) from error
        raise
    finally:
        stack.close()
        with suppress(OSError):
            for empty in made:
                empty.rmdir()


def full_error(error: OSError, output: Path, temporary: Path) -> ModelError:
    """Return the message for a full disk; it names the folder with less space of the two that a run writes into."""
    if shutil.disk_usage(output).free <= shutil.disk_usage(temporary).free:
        return write_error(error, output)
    what = f"no space is left for temporary files in {temporary}"
    return ModelError(what, where=str(temporary), fix="free some space, or set the environment variable TMPDIR to another folder")


def write_error(error: OSError, folder: Path, *, option: str = "-o FOLDER") -> ModelError:
    """Return the message for a folder that cannot be written."""
    fix = f"write elsewhere with {option}"
    match error.errno:
        case errno.EFBIG:
            what, fix = "a file would become larger than this process may write", "raise the limit: ulimit -f unlimited"
        case errno.ENOSPC | errno.EDQUOT:
            what, fix = f"no space is left in {folder}", f"free some space, or {fix}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            what = f"the output folder {folder} cannot be written"
        case _:
            what = f"the output folder {folder} cannot be used: {error.strerror or error}"
    return ModelError(what, where=str(folder), fix=fix)


def check_report(path: Path) -> None:
    """Raise ModelError if a report could not be written; this is called before the search."""
    if path.is_dir():
        raise ModelError(f"the report {path} is a folder", where="--report", fix=f"give a file: --report {path / 'report.html'}")
    folder = path.absolute().parent
    existing = next(ancestor for ancestor in (folder, *folder.parents) if ancestor.exists())
    problem = errno.ENOTDIR if not existing.is_dir() else errno.EACCES if not os.access(existing, os.W_OK | os.X_OK) else 0
    if problem:
        raise write_error(OSError(problem, os.strerror(problem)), existing, option="--report FILE")


def publish(folder: Path, output: Destination) -> tuple[Path, ...]:
    """Move everything staged in ``folder`` to its destination, each file or folder by one rename.

    Standard files are moved first and the artefact last, because it names the hash of its model file. Ctrl-C is ignored from the first
    rename on.
    """
    written: list[Path] = []
    staged = sorted(folder.iterdir(), key=lambda path: (path.name == output.artefact.name, path.name))
    for path in sorted(folder.rglob("*")):
        _flush(path)
    settle()
    for source in staged:
        moved = output.model.parent / source.name
        if moved.is_dir() and not moved.is_symlink():
            old = folder / f"{source.name}.old"
            moved.rename(old)
            try:
                source.rename(moved)
            except BaseException:
                old.rename(moved)
                raise
        else:
            os.replace(source, moved)
        written.append(moved)
    return tuple(written)


def write_beside(path: Path, text: str, *, option: str = "-o FOLDER") -> None:
    """Write a text file completely or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise write_error(error, path.parent, option=option) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError as error:
        raise write_error(error, path.parent, option=option) from error
    finally:
        Path(name).unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file to the disk before it is renamed."""
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())
