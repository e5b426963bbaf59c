"""The tables of the profile database: one frozen row type each, whose fields are the columns.

Texts, whole numbers and floating-point numbers are columns of these types; a tuple is a column of JSON text. Rows that machines may share
(``SHARED``) also have a form as one JSON line.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

Status: TypeAlias = Literal["ok", "failed", "hung", "wrong"]
"""'wrong': the kernel ran, and computed something else than its fragment says."""
Value: TypeAlias = str | int | float
PLAN_MARK = "#"
"""Separates an implementation's text and the plan of its library; if the plan is empty, the record's message names the fastest one."""
LINE_FORMAT = "einsat-profile-2"
STRICT_SINCE = (3, 37)
"""The version of SQLite that first refuses values of other types than the column's."""
_HINTS: dict[type, dict[str, Any]] = {}


@dataclass(frozen=True)
class Row:
    """A row of the table ``TABLE``; the fields ``KEY`` identify it."""

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Return the types of the columns, by their names in order."""
        if cls not in _HINTS:
            hints = get_type_hints(cls)
            _HINTS[cls] = {field.name: hints[field.name] for field in fields(cls)}
        return _HINTS[cls]

    @property
    def key(self) -> tuple[Value, ...]:
        return tuple(getattr(self, name) for name in self.KEY)

    @property
    def objection(self) -> str:
        """Return why no row can have these values; '' if one can."""
        return ""

    def to_sql(self) -> tuple[Value, ...]:
        """Return the columns' values."""
        values = (getattr(self, name) for name in self.hints())
        return tuple(json.dumps(value, separators=(",", ":")) if isinstance(value, tuple) else value for value in values)

    @classmethod
    def from_sql(cls, values: Sequence[Any]) -> Row:
        """Return the row of the columns' values; raises ValueError if they are not of the columns' types."""
        hints = cls.hints()
        raw = {
            name: json.loads(value) if get_origin(hints[name]) is tuple else value for name, value in zip(hints, values, strict=True)
        }
        return cls.from_values(raw)

    @classmethod
    def from_values(cls, raw: dict[str, Any]) -> Row:
        """Return the row of values by column; raises ValueError if one is missing or of another type."""
        row = cls(**{name: _typed(name, hint, raw.get(name)) for name, hint in cls.hints().items()})
        if row.objection:
            raise ValueError(row.objection)
        return row

    def to_line(self) -> str:
        """Return the row as a JSON line, which ``read_line`` reads."""
        values = {name: getattr(self, name) for name in self.hints()}
        return json.dumps({"format": LINE_FORMAT, "table": self.TABLE, **values}, sort_keys=True)


class Timed(Row):
    """A timing: ``samples_us`` if its status is 'ok', else a ``message`` with the reason."""

    status: Status
    samples_us: tuple[float, ...]
    message: str

    @cached_property
    def median_us(self) -> float | None:
        return statistics.median(self.samples_us) if self.samples_us else None

    @property
    def spread(self) -> float | None:
        """Return (third quartile - first quartile) / median: 0 is steady."""
        if len(self.samples_us) < 4:
            return None
        first, middle, third = statistics.quantiles(self.samples_us, n=4)
        return (third - first) / middle if middle else None

    @property
    def objection(self) -> str:
        if any(not time_us >= 0.0 for time_us in self.samples_us):
            return "samples_us must be a list of non-negative numbers"
        return "" if (self.status == "ok") == bool(self.samples_us) else "exactly the status 'ok' has samples"


@dataclass(frozen=True)
class Record(Timed):
    """The time of one kernel on one device.

    ``generator``: hash of the sources of the code generator, or of a kernel in C; '' for code that is not ours, whose times do not depend
    on these sources.
    """

    TABLE = "kernel_times"
    KEY = ("device", "fragment", "implementation", "generator")
    device: str
    fragment: str
    implementation: str
    status: Status
    samples_us: tuple[float, ...] = ()
    message: str = ""
    generator: str = ""


@dataclass(frozen=True)
class RaceTime(Timed):
    """The latency of one contender of one race; only times of the same race are comparable."""

    TABLE = "races"
    KEY = ("device", "race", "contender")
    device: str
    race: str
    """Hash of all contenders and of what they were timed on."""
    contender: str
    """Hash of the program."""
    status: Status
    samples_us: tuple[float, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class SearchRow(Row):
    """What a search chose within its budget."""

    TABLE = "searches"
    KEY = ("device", "search")
    device: str
    search: str
    """Hash of the model, rules, options and the generator's sources."""
    iterations: int
    unmeasured: int
    """The number of chosen kernels that there was no time to measure."""
    budget_seconds: float
    choices: str
    """The chosen kernels, as the driver writes them."""
    refused: tuple[tuple[str, ...], ...]
    """Kernels that may not be used: kind, implementation, fragment, reason."""
    looks: tuple[int, ...]
    """Where time ended the saturation, in polls of the clock."""


@dataclass(frozen=True)
class CheckRow(Row):
    """The number of inputs on which a model's results were compared, if there was no time for all of them; else 0."""

    TABLE = "checks"
    KEY = ("device", "model")
    device: str
    model: str
    inputs: int


@dataclass(frozen=True)
class DerivationRow(Row):
    """The programs that one rule derives for one operator (or group), each with its verdict."""

    TABLE = "derivations"
    KEY = ("rule", "operator")
    rule: str
    operator: str
    sources: str
    """Hash of the sources that derivations and their proofs depend on."""
    seconds: float
    programs: str
    """The programs, as the driver writes them."""


@dataclass(frozen=True)
class ProofRow(Row):
    """Whether two fragments over the same placeholders were proved equal, at their own sizes."""

    TABLE = "proofs"
    KEY = ("left", "right", "rounding")
    left: str
    """The fragment's digest."""
    right: str
    rounding: str
    sources: str
    """Hash of the sources that the proof depends on."""
    open: str
    """What the prover could not show; empty if they are equal."""
    seconds: float


TABLES: tuple[type[Row], ...] = (Record, RaceTime, SearchRow, CheckRow, DerivationRow, ProofRow)
SHARED: tuple[type[Row], ...] = (Record, RaceTime)
"""Measurements: what ``export`` writes and ``import`` reads."""


def read_line(line: str) -> Row:
    """Parse a line of an export; raises ValueError with the reason if it is not one of this version."""
    raw = json.loads(line)
    if not isinstance(raw, dict) or raw.get("format") != LINE_FORMAT:
        format_number = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        raise ValueError(f"format {format_number!r} is not {LINE_FORMAT!r}")
    for kind in SHARED:
        if raw.get("table") == kind.TABLE:
            return kind.from_values(raw)
    raise ValueError(f"table {raw.get('table')!r} is none of {', '.join(kind.TABLE for kind in SHARED)}")


def read_lines(path: Path) -> list[str]:
    """Return the lines of an export, which may be compressed (``.gz``); raises OSError or UnicodeDecodeError if it cannot be read."""
    if path.suffix != ".gz":
        return path.read_text(encoding="utf-8").splitlines()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def create(kind: type[Row]) -> str:
    """Return the SQL that creates a row type's table."""
    columns = [f'"{name}" {_sql_type(hint)} NOT NULL' for name, hint in kind.hints().items()]
    key = ", ".join(f'"{name}"' for name in kind.KEY)
    strict = ", STRICT" if sqlite3.sqlite_version_info >= STRICT_SINCE else ""
    return f"CREATE TABLE IF NOT EXISTS {kind.TABLE} ({', '.join(columns)}, PRIMARY KEY ({key})) WITHOUT ROWID{strict}"


def _sql_type(hint: Any) -> str:
    return {int: "INTEGER", float: "REAL"}.get(hint, "TEXT")


def _typed(name: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_typed(name, get_args(hint)[0], each) for each in value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if get_origin(hint) is Literal and value in get_args(hint):
        return value
    if hint in (str, int) and type(value) is hint:
        return cast(Any, value)
    raise ValueError(f"{name} is missing or has the wrong type: {value!r}")
