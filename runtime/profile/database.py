"""The profile database: what each kernel costs on each device, measured once and kept.

>>> database = Database.in_memory()
>>> database.put(Record("cpu", "Relu(%0:float32[8])", "tvm", "ok", (1.0, 3.0, 2.0)))
>>> database.get("cpu", "Relu(%0:float32[8])", "tvm").median_us
2.0

Every ``put`` commits, so a crash or Ctrl-C loses nothing that was measured; WAL lets several processes share the
file. A file that cannot be read or written never stops the caller: it warns once and works in memory.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

Status: TypeAlias = Literal["ok", "failed", "hung", "wrong"]
"""'wrong': it ran, and computed something else than its fragment says."""
SCHEMA_VERSION = 1
LINE_FORMAT = "einsat-profile-1"
BUSY_SECONDS = 10.0

CREATE = """
CREATE TABLE IF NOT EXISTS measurements (
    device TEXT NOT NULL, fragment TEXT NOT NULL, implementation TEXT NOT NULL,
    status TEXT NOT NULL, samples_us TEXT NOT NULL, median_us REAL, spread REAL, message TEXT NOT NULL,
    PRIMARY KEY (device, fragment, implementation)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Record:
    """One measured kernel (or whole program). ``message`` says why a kernel that is not 'ok' has no time."""

    device: str
    fragment: str
    implementation: str
    status: Status
    samples_us: tuple[float, ...] = ()
    message: str = ""

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

    def to_line(self) -> str:
        values = {name: getattr(self, name) for name in ("device", "fragment", "implementation", "status", "samples_us", "message")}
        return json.dumps({"format": LINE_FORMAT, **values}, sort_keys=True)

    @staticmethod
    def from_line(line: str) -> Record:
        """Parse a line of an export; raises ValueError with the reason when it is not one of this version."""
        raw = json.loads(line)
        if not isinstance(raw, dict) or raw.get("format") != LINE_FORMAT:
            found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise ValueError(f"format {found!r} is not {LINE_FORMAT!r}")
        texts = [text for name in ("device", "fragment", "implementation", "message") if isinstance(text := raw.get(name), str)]
        samples = raw.get("samples_us")
        if len(texts) != 4 or raw.get("status") not in get_args(Status):
            raise ValueError("a field is missing or has the wrong type")
        if not isinstance(samples, list) or not all(isinstance(s, int | float) and s >= 0 for s in samples):
            raise ValueError("samples_us must be a list of non-negative numbers")
        if (raw["status"] == "ok") != bool(samples):
            raise ValueError("exactly the status 'ok' has samples")
        return Record(texts[0], texts[1], texts[2], raw["status"], tuple(map(float, samples)), texts[3])


def default_path() -> Path:
    """Return ``einsat/profile.sqlite`` in the user's data directory."""
    try:
        from platformdirs import user_data_dir
    except ImportError:  # the runtime alone needs only numpy
        base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
        return Path(base) / "einsat" / "profile.sqlite"
    return Path(user_data_dir("einsat")) / "profile.sqlite"


def warn_on_stderr(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


Key: TypeAlias = tuple[str, str, str]


class Database:
    """Records by (device, fragment, implementation). ``writable`` is False when new ones live only in memory."""

    def __init__(self, connection: sqlite3.Connection | None, *, writable: bool, place: str, warn: Callable[[str], None]) -> None:
        self._connection, self.writable, self.place, self._warn = connection, writable, place, warn
        self._memory: dict[Key, Record] = {}

    @staticmethod
    def in_memory() -> Database:
        return Database(None, writable=False, place="memory", warn=warn_on_stderr)

    @staticmethod
    def open(path: Path | None = None, *, read_only: bool = False, warn: Callable[[str], None] = warn_on_stderr) -> Database:
        """Open (or create) the file; what cannot be used is said through ``warn`` and replaced by memory."""
        place = path or default_path()
        if read_only and not place.exists():
            warn(f"profile database {place} does not exist: nothing is known about this device")
            return Database(None, writable=False, place=str(place), warn=warn)
        if not read_only:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                return Database(_connect(place, "rwc"), writable=True, place=str(place), warn=warn)
            except (OSError, sqlite3.Error) as error:
                problem = error
        try:
            connection = _connect(place, "ro")
        except (OSError, sqlite3.Error) as error:
            warn(f"profile database {place} cannot be used ({error}): working in memory; move the file away or pass --database PATH")
            return Database(None, writable=False, place=str(place), warn=warn)
        if not read_only:
            warn(f"profile database {place} cannot be written ({problem}): new measurements are kept in memory only")
        return Database(connection, writable=False, place=str(place), warn=warn)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, device: str, fragment: str, implementation: str) -> Record | None:
        key = (device, fragment, implementation)
        if key not in self._memory:
            for record in self._select("WHERE device = ? AND fragment = ? AND implementation = ?", key):
                self._memory[key] = record
        return self._memory.get(key)

    def put(self, record: Record) -> None:
        """Keep a measurement, replacing an older one of the same key; committed at once."""
        self._memory[record.device, record.fragment, record.implementation] = record
        if not self.writable or self._connection is None:
            return
        row = (
            record.device, record.fragment, record.implementation, record.status,
            json.dumps(record.samples_us), record.median_us, record.spread, record.message,
        )  # fmt: skip
        try:
            self._connection.execute("INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            self.writable = False
            self._warn(f"profile database {self.place} cannot be written ({error}): new measurements are kept in memory only")

    def records(self, device: str | None = None) -> Iterator[Record]:
        """Yield all records (of one device), sorted by key."""
        found = {(r.device, r.fragment, r.implementation): r for r in self._select("", ())}
        found |= self._memory
        for key in sorted(found):
            if device in (None, key[0]):
                yield found[key]

    def import_lines(self, lines: Iterable[str]) -> tuple[int, int]:
        """Add exported lines; return (added, skipped). A bad line is skipped with a warning."""
        added = skipped = 0
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                self.put(Record.from_line(line))
                added += 1
            except ValueError as error:
                skipped += 1
                self._warn(f"line {number} skipped: {error}")
        return added, skipped

    def _select(self, where: str, values: tuple[str, ...]) -> Iterator[Record]:
        if self._connection is None:
            return
        query = f"SELECT device, fragment, implementation, status, samples_us, message FROM measurements {where}"
        try:
            rows = self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self._warn(f"profile database {self.place} cannot be read ({error}): working in memory")
            self.close()
            return
        for device, fragment, implementation, status, samples, message in rows:
            try:
                yield Record(device, fragment, implementation, status, tuple(json.loads(samples)), message)
            except (ValueError, TypeError) as error:
                self._warn(f"profile database {self.place}: a record is unreadable and skipped ({error})")


def _connect(path: Path, mode: Literal["rwc", "ro"]) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"its version is {version}, this program writes {SCHEMA_VERSION}")
        if mode == "rwc":
            _enter_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(CREATE)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("SELECT count(*) FROM (SELECT 1 FROM measurements LIMIT 1)").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; SQLite does not wait for another process that is switching, so we do."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
