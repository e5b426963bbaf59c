"""Records that runs keep, so that a repeated search measures and extracts nothing, and the same command does not saturate.

The profile database holds the choices, the times, and the number of checked inputs. A memo is only a shortcut: it holds the program that
they lead to, as long as the model, the options, the libraries and the sources of this project are the same. It is in the user's cache,
beside the compiled kernels.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import cast

from egraph import __version__
from egraph.errors import EinsatError
from egraph.optimize.gate import sources_digest
from egraph.optimize.options import Options
from egraph.optimize.outcome import Kind, Outcome, Refused
from egraph.optimize.output import write_beside
from egraph.rule import MergeRule, Rule
from egraph.tensor import Graph, Program, walk
from egraph.tensor.text import TextError, format_program, parse_program
from runtime.cache import cache_folder
from runtime.profile import CheckRow, Database, SearchRow
from runtime.profile.versions import library_version

BUDGETS = ("budget_seconds", "checks")
"""Options that do not change the search: a larger budget continues the same one."""
ELSEWHERE = (*BUDGETS, "tolerance", "inputs")
"""Options that are not part of a search's key: the tolerance decides only which derivations are used, which the key names separately, and
inputs decide only what is timed after the search.
"""


@dataclass(frozen=True)
class Earlier:
    """A search that an earlier run made for the same model, rules and options, on the same device."""

    iterations: int
    unmeasured: int
    """Number of the chosen kernels that it had no time to measure."""
    budget_seconds: float
    """Its budget, or 0 if none of its programs was timed, so that the same command searches on."""
    choices: str
    """The chosen kernels, as texts of :mod:`egraph.tensor.text`."""
    refused: tuple[Refused, ...] = ()
    looks: tuple[int, ...] = ()
    """The looks at the clock at which time ended the saturation, see :class:`egraph.engine.saturate.Saturation`."""

    def describe(self) -> str:
        """Return a one-line description."""
        unmeasured = f", {self.unmeasured} of the chosen kernels unmeasured" if self.unmeasured else ""
        effort = f"{self.budget_seconds:g} s budget{unmeasured}" if self.budget_seconds else f"its programs were not timed{unmeasured}"
        return f"the search of an earlier run is used ({effort}); a larger --budget or --again continues it"


def search_key(graph: Graph, rules: Sequence[Rule | MergeRule], options: Options, more: Sequence[str] = ()) -> str:
    """Return the key of a search: a hash of model, rules, options and ``more``. An equal search need not be measured again."""
    parts = [f"{name}={node.digest}" for name, node in graph.outputs] + [f"{rule.name}|{rule.text}" for rule in rules]
    stored = {name: value for name, value in options.stored().items() if name not in ELSEWHERE}
    parts += [__version__, repr(sorted(stored.items())), *more]
    return f"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"


def read_search(database: Database, device: str, key: str) -> Earlier | None:
    """Return the search that is recorded under a key, or None if there is none."""
    row = database.find(SearchRow, device, key)
    if row is None or any(len(parts) != 4 for parts in row.refused):
        return None
    refused = tuple(Refused(cast(Kind, kind), *fields) for kind, *fields in row.refused)
    return Earlier(row.iterations, row.unmeasured, row.budget_seconds, row.choices, refused, row.looks)


def usable_search(database: Database, device: str, key: str, options: Options) -> Earlier | None:
    """Return the same search of an earlier run, or None if there is none or this run is to search on."""
    earlier = read_search(database, device, key)
    searches_on = earlier and not options.frozen and (options.again or earlier.budget_seconds < options.budget_seconds)
    return None if searches_on else earlier


def write_search(database: Database, device: str, key: str, earlier: Earlier) -> None:
    """Record a search; it replaces one of a smaller budget."""
    refused = tuple(astuple(row) for row in earlier.refused)
    counts = earlier.iterations, earlier.unmeasured, earlier.budget_seconds
    database.put(SearchRow(device, key, *counts, earlier.choices, refused, earlier.looks))


def read_checked(database: Database, device: str, model_digest: str) -> int | None:
    """Return the number of inputs that a model's results were compared on if there was no time for all, else None."""
    row = database.find(CheckRow, device, model_digest)
    return row.inputs if row is not None and row.inputs else None


def write_checked(database: Database, device: str, model_digest: str, inputs: int | None) -> None:
    """Record the number of inputs that a model's results were compared on (None: all), so that the same command compares as many."""
    if inputs is not None or read_checked(database, device, model_digest) is not None:
        database.put(CheckRow(device, model_digest, inputs or 0))


LIBRARIES = ("egglog", "onnx", "onnxruntime", "onednn-cpu-gomp", "apache-tvm", "ortools", "numpy")


def environment() -> dict[str, str]:
    """Return the versions of Einsat, Python and the libraries."""
    return {"einsat": __version__, "python": platform.python_version(), **{name: library_version(name) for name in LIBRARIES}}


SOURCES = ("egraph", "lower", "runtime", "verify")
"""Sources that determine the program of a search."""
SUFFIXES = (".py", ".c", ".h", ".json", ".j2")


@dataclass(frozen=True)
class Memo:
    """The result of a run. ``program``: the shipped program, not folded, or None if the model was kept unchanged."""

    outcome: Outcome
    program: Program | None
    search_key: str
    choices: str
    """A digest of the search's choice."""
    contenders: tuple[tuple[str, str], ...]
    """Name and digest of all contenders of the race, in the order in which ties are decided."""


def memo_path(model_digest: str, device: str, options: Options) -> Path | None:
    """Return the path of a command's memo, or None if it has user's rules, because these files may contain anything."""
    if options.rule_files:
        return None
    stored = {name: value for name, value in options.stored().items() if name not in BUDGETS}
    sources = sources_digest(SOURCES, SUFFIXES)
    text = repr((model_digest, options.model.name, device, sorted(stored.items()), sorted(environment().items()), sources))
    return cache_folder() / "programs" / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def choices_digest(choices: str) -> str:
    return hashlib.sha256(choices.encode()).hexdigest()[:32]


def write_memo(path: Path, memo: Memo) -> None:
    """Write a memo; a failure to write is ignored."""
    content = {
        "outcome": memo.outcome.to_manifest(), "program": memo.program and format_program(memo.program),
        "search_key": memo.search_key, "choices": memo.choices, "contenders": memo.contenders,
    }  # fmt: skip
    try:
        write_beside(path, json.dumps(content, separators=(",", ":")))
    except EinsatError:
        return


def read_memo(path: Path, graph: Graph) -> Memo | None:
    """Return the memo in a file about a model, or None if there is none or it cannot be read."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        program = _program(raw["program"], graph) if raw["program"] else None
        contenders = tuple((str(name), str(digest)) for name, digest in raw["contenders"])
        return Memo(Outcome.from_manifest(raw["outcome"]), program, raw["search_key"], raw["choices"], contenders)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TextError):
        return None


def _program(text: str, graph: Graph) -> Program:
    program = parse_program(text, graph.tensors)
    for node in walk(program.graph.roots):
        if node.op == "Constant":
            graph.tensors[node.string("digest")]  # a KeyError if the model has other weights
    return replace(program, graph=replace(program.graph, tensors=graph.tensors))
