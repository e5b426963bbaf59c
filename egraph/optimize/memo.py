"""Keep the program of a search, so that the same command does not saturate again.

A shortcut and nothing more: the profile database says what was chosen and what was timed. A memo says which program that is,
as long as the model, the options, the libraries and the sources of this project are the same. It lies in the user's cache,
beside the compiled kernels.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from egraph.errors import EinsatError
from egraph.optimize.describe import environment
from egraph.optimize.gate import sources_digest
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.output import write_beside
from egraph.optimize.records import BUDGETS
from egraph.tensor import Graph, Program, walk
from egraph.tensor.text import TextError, format_program, parse_program
from runtime.cache import cache_folder

SOURCES = ("egraph", "lower", "runtime", "verify")
"""Everything that determines the program of a search."""
SUFFIXES = (".py", ".c", ".h", ".json", ".j2")


@dataclass(frozen=True)
class Memo:
    """What a run led to. ``program``: what was shipped, not folded; None where that is the model as it was given."""

    outcome: Outcome
    program: Program | None
    search_key: str
    choices: str
    """A digest of what the search chose."""
    contenders: tuple[tuple[str, str], ...]
    """Name and digest of all contenders of the race, in the order in which ties are decided."""


def memo_path(model_digest: str, device: str, options: Options) -> Path | None:
    """Return where the memo of a command lies; a user's rules are files that may be anything, so there is none with them."""
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
    """Return the memo in a file about a model, None where there is none or it cannot be read."""
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
            graph.tensors[node.string("digest")]  # a KeyError where the model has other weights
    return replace(program, graph=replace(program.graph, tensors=graph.tensors))
