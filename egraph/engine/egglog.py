"""Drive egglog: the only module that imports it, through ``egglog.bindings`` and generated text.

An operator of arity n is a constructor ``(Op_Conv_2 label x y)`` whose first column numbers its attributes. Every class that Python made
has a handle ``(Ref k)``. Rows are passed in ``input`` files, one per arity, because a top-level action costs egglog 100 us and a row of a
file 3 us. Matches are read through ``freeze()``. Only commands that egglog 13.2 and 14 share are used, and they are parsed one at a time,
because 13.2 takes quadratic time on long texts.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egglog.bindings import EGraph, Value

PRELUDE = (
    "(sort T)",
    "(constructor Ref (i64) T)",
    "(relation IsConstant (T))",
    "(ruleset load)",
    "(ruleset tidy)",
    "(ruleset clear)",
    "(relation In_union (i64 i64))",
    "(rule ((In_union a b)) ((union (Ref a) (Ref b)) (delete (In_union a b))) :ruleset load)",
    "(relation In_constant (i64))",
    "(rule ((In_constant a)) ((IsConstant (Ref a)) (delete (In_constant a))) :ruleset load)",
)


def bindings() -> Any:
    """Return ``egglog.bindings`` without its package, which imports a code formatter and takes four times as long."""
    name = "egglog.bindings"
    package = None if name in sys.modules else importlib.util.find_spec("egglog")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder) / f"bindings{suffix}"
            spec = importlib.util.spec_from_file_location(name, path) if path.exists() else None
            if spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module  # it can be loaded only once per process: later imports get this module
                spec.loader.exec_module(module)
                return module
    return importlib.import_module(name)


@dataclass(frozen=True)
class Query:
    """A rule's left side: egglog facts, and the class and label variables whose values a match contains."""

    facts: tuple[str, ...]
    classes: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A read-out: every handle's class (as its smallest handle), and new matches by query name."""

    classes: Mapping[int, int]
    matches: Mapping[str, list[tuple[tuple[int, ...], tuple[int, ...]]]]


class Engine:
    """An e-graph held by egglog."""

    def __init__(self) -> None:
        self._egraph: EGraph = bindings().EGraph()
        self._folder = tempfile.TemporaryDirectory(prefix="einsat-")
        self._operators: dict[tuple[str, int], int] = {}
        self._arities: set[int] = set()
        self._queries: dict[str, Query] = {}
        for command in PRELUDE:
            self._run(command)

    def _run(self, command: str) -> None:
        self._egraph.run_program(*self._egraph.parse_program(command))

    def operator(self, op: str, arity: int) -> str:
        """Return the constructor of ``op`` with ``arity`` operands; its first use declares it."""
        name = f"Op_{op}_{arity}"
        if (op, arity) not in self._operators:
            code = self._operators[op, arity] = len(self._operators)
            operands = " ".join(f"x{i}" for i in range(arity))
            if arity not in self._arities:
                self._arities.add(arity)
                self._run(f"(relation In_{arity} ({'i64 ' * (arity + 3)}))")
            self._run(f"(constructor {name} (i64 {'T ' * arity}) T)")
            references = " ".join(f"(Ref x{i})" for i in range(arity))
            row = f"(In_{arity} k {code} label {operands})"
            self._run(f"(rule ({row}) ((union (Ref k) ({name} label {references})) (delete {row})) :ruleset load)")
            for i in range(arity):  # x = x * 1 computes nothing, and matches through it would multiply without end
                term = f"({name} label {operands})"
                self._run(f"(rule ((= x{i} {term})) ((subsume {term})) :ruleset tidy)")
        return name

    def query(self, name: str, query: Query) -> None:
        """Register a left side under ``name``; its matches are found by ``match`` and read by ``read``."""
        self._queries[name] = query
        columns = " ".join((*query.classes, *query.labels))
        sorts = " ".join(["T"] * len(query.classes) + ["i64"] * len(query.labels))
        self._run(f"(relation Match_{name} ({sorts}))")
        self._run(f"(ruleset Rules_{name})")
        self._run(f"(rule ({' '.join(query.facts)}) ((Match_{name} {columns})) :ruleset Rules_{name})")
        self._run(f"(rule ((Match_{name} {columns})) ((delete (Match_{name} {columns}))) :ruleset clear)")

    def insert(
        self,
        nodes: Iterable[tuple[int, str, int, Sequence[int]]],
        unions: Iterable[tuple[int, int]],
        constants: Iterable[int],
    ) -> None:
        """Insert e-nodes (handle, operator, label, operand handles), unions of handles, and constant handles."""
        tables: dict[str, list[str]] = {}
        for handle, op, label, operands in nodes:
            self.operator(op, len(operands))
            row = (handle, self._operators[op, len(operands)], label, *operands)
            tables.setdefault(f"In_{len(operands)}", []).append("\t".join(map(str, row)))
        tables["In_union"] = [f"{a}\t{b}" for a, b in unions]
        tables["In_constant"] = [str(a) for a in constants]
        for table, rows in tables.items():
            if rows:
                path = Path(self._folder.name) / "rows.tsv"
                path.write_text("\n".join(rows) + "\n")
                self._run(f'(input {table} "{path}")')
        self._run("(run load 1)")
        self._run("(run tidy 1)")

    def match(self, name: str) -> None:
        """Find the matches of one query that are new since its last run."""
        self._run(f"(run Rules_{name} 1)")

    def read(self) -> Picture:
        """Read classes and pending matches, and clear the latter."""
        functions = self._egraph.freeze().functions
        number = self._egraph.value_to_i64
        first: dict[Value, int] = {}
        pairs: list[tuple[int, Value]] = []
        for row in functions["Ref"].rows:
            handle, value = number(row.inputs[0]), row.output
            pairs.append((handle, value))
            first[value] = min(handle, first.get(value, handle))
        matches: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        for name, query in self._queries.items():
            width = len(query.classes)
            rows = (row.inputs for row in functions[f"Match_{name}"].rows)
            matches_of_pattern = [(tuple(first[v] for v in row[:width]), tuple(number(v) for v in row[width:])) for row in rows]
            if matches_of_pattern:
                matches[name] = matches_of_pattern
        if matches:
            self._run("(run clear 1)")
        return Picture({handle: first[value] for handle, value in pairs}, matches)

    def close(self) -> None:
        """Free the e-graph and its temporary folder."""
        del self._egraph  # freed here, because egglog refuses to free it in another thread, where the garbage collector may run
        self._folder.cleanup()
