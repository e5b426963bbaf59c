"""The profile database: what each kernel costs on each device, and the other results of runs.

>>> database = Database.in_memory()
>>> database.put(Record("cpu", "Relu(%0:float32[8])", "tvm", "ok", (1.0, 3.0, 2.0)))
>>> database.get("cpu", "Relu(%0:float32[8])", "tvm").median_us
2.0

Every ``put`` commits, so a crash or Ctrl-C loses no measurement; WAL lets several processes share the file. A file that cannot be
read or written never stops the caller: the database warns once and works in memory.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from runtime.profile.tables import TABLES, Record, Row, Value, create, read_line

SCHEMA_VERSION = 2
"""Version of the tables' schema; version 1 had one table for everything."""
BUSY_SECONDS = 10.0
"""Seconds to wait for another process's write."""
OLD_KERNEL_TIMES = "implementation NOT IN ('search', 'check', 'end to end', 'derivation')"
"""Condition that selects the kernel times among the rows of version 1's only table."""
OLD_GENERATOR = re.compile(r", generated code (\d+)(?= \|)")
OLD_DEVICE_PARTS = re.compile(r", (apache-tvm [^,|]+?|generated code \d+)(?=,| \|)")
"""Version 1 named the compiler and the generator's revision within the device, for all kernels."""

R = TypeVar("R", bound=Row)
Memory: TypeAlias = dict[tuple[type[Row], tuple[Value, ...]], Row]
Warn: TypeAlias = Callable[[str], None]


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


class Database:
    """Rows by their types and keys. ``writable`` is False when new ones live only in memory."""

    def __init__(self, connection: sqlite3.Connection | None, *, writable: bool, place: str, warn: Warn) -> None:
        self._connection, self.writable, self.place, self._warn = connection, writable, place, warn
        self._memory: Memory = {}
        self._source: Database | None = None
        """The database whose connection this one uses: it must not be closed before."""
        self._keys: dict[type[Row], frozenset[tuple[Value, ...]]] = {}
        """The keys of each type in the file, as of its version ``_version_read``, because most lookups are of keys that are not there."""
        self._timed: set[tuple[Value, ...]] = set()
        """Keys of kernels that have a time, without the hash of their code: those of this process, and those read from the file."""
        self._version_read = -1

    @staticmethod
    def in_memory() -> Database:
        return Database(None, writable=False, place="memory", warn=warn_on_stderr)

    @staticmethod
    def open(path: Path | None = None, *, read_only: bool = False, warn: Warn = warn_on_stderr) -> Database:
        """Open (or create) the file; a file that cannot be used is reported through ``warn`` and replaced by memory.

        From a file of version 1, the kernel times are migrated and the rest is dropped.
        """
        file = path or default_path()
        if read_only and not file.exists():
            warn(f"profile database {file} does not exist: nothing is known about this device")
            return Database(None, writable=False, place=str(file), warn=warn)
        if not read_only:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                return _with_finalizer(Database(_connect(file, "rwc", warn), writable=True, place=str(file), warn=warn))
            except (OSError, sqlite3.Error) as error:
                problem = error
        try:
            connection = _connect(file, "ro", warn)
        except (OSError, sqlite3.Error) as error:
            warn(f"profile database {file} cannot be used ({error}): working in memory; move the file away or pass --database PATH")
            return Database(None, writable=False, place=str(file), warn=warn)
        if not read_only:
            warn(f"profile database {file} cannot be written ({problem}): new measurements are kept in memory only")
        return _with_finalizer(Database(connection, writable=False, place=str(file), warn=warn))

    def scratch(self) -> Database:
        """Return a database that knows all that this one does; rows that are put into it are not seen by others."""
        other = Database(self._connection, writable=False, place=self.place, warn=self._warn)
        other._memory, other._timed, other._source = dict(self._memory), set(self._timed), self
        return other

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, device: str, fragment: str, implementation: str, generator: str = "") -> Record | None:
        """Return a kernel's time."""
        return self.find(Record, device, fragment, implementation, generator)

    def has_times(self, device: str, fragment: str, implementation: str) -> bool:
        """Return whether a kernel may have a time, whatever its code."""
        key = (device, fragment, implementation)
        return key in self._timed or not self._has_read_keys(Record) or key in self._timed

    def find(self, kind: type[R], *key: Value) -> R | None:
        """Return the row of a type with a key."""
        if (kind, key) not in self._memory and self._may_have(kind, key):
            where = " AND ".join(f'"{name}" = ?' for name in kind.KEY)
            if row := next(self._select(kind, f"WHERE {where}", key), None):
                self._memory[kind, key] = row
        remembered = self._memory.get((kind, key))
        return remembered if isinstance(remembered, kind) else None

    def _may_have(self, kind: type[Row], key: tuple[Value, ...]) -> bool:
        """Return whether the file has a row of this key, which another process may have written by now."""
        return not self._has_read_keys(kind) or key in self._keys.get(kind, ())

    def _has_read_keys(self, kind: type[Row]) -> bool:
        """Read the keys of a type that the file has by now; return whether that was possible."""
        if self._connection is None:
            return True
        try:
            version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            if version != self._version_read:
                self._keys, self._version_read = {}, version
            if kind not in self._keys:
                columns = ", ".join(f'"{name}"' for name in kind.KEY)
                self._keys[kind] = frozenset(self._connection.execute(f"SELECT {columns} FROM {kind.TABLE}"))
                if kind is Record:
                    self._timed |= {key[:-1] for key in self._keys[kind]}
        except sqlite3.Error:
            return False  # reading the row reports the error
        return True

    def put(self, row: Row) -> None:
        """Keep a row, replacing an older one of the same key; committed at once."""
        self._memory[type(row), row.key] = row
        if isinstance(row, Record):
            self._timed.add(row.key[:-1])
        if not self.writable or self._connection is None:
            return
        try:
            _insert(self._connection, row)
        except sqlite3.Error as error:
            self.writable = False
            self._warn(f"profile database {self.place} cannot be written ({error}): new measurements are kept in memory only")

    def rows(self, kind: type[R]) -> Iterator[R]:
        """Yield all rows of a type, sorted by key."""
        rows = {row.key: row for row in self._select(kind, "", ())}
        rows |= {key: row for (of, key), row in self._memory.items() if of is kind and isinstance(row, kind)}
        for key in sorted(rows):
            yield rows[key]

    def records(self, device: str | None = None) -> Iterator[Record]:
        """Yield all kernel times (of one device), sorted by key."""
        return (record for record in self.rows(Record) if device in (None, record.device))

    def devices(self, beginning: str) -> dict[str, int]:
        """Return how many kernel times there are of each device whose key begins so."""
        return Counter(record.device for record in self.rows(Record) if record.device.startswith(beginning))

    def import_lines(self, lines: Iterable[str]) -> tuple[int, int]:
        """Add exported lines; return (added, skipped). A bad line is skipped with a warning."""
        added = skipped = 0
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                self.put(read_line(line))
                added += 1
            except ValueError as error:
                skipped += 1
                self._warn(f"line {number} skipped: {error}")
        return added, skipped

    def _select(self, kind: type[R], where: str, values: tuple[Value, ...]) -> Iterator[R]:
        if self._connection is None:
            return
        columns = ", ".join(f'"{name}"' for name in kind.hints())
        try:
            rows = self._connection.execute(f"SELECT {columns} FROM {kind.TABLE} {where}", values).fetchall()
        except sqlite3.Error as error:
            self._warn(f"profile database {self.place} cannot be read ({error}): working in memory")
            self.close()
            return
        for values in rows:
            try:
                row = kind.from_sql(values)
            except (ValueError, TypeError) as error:
                self._warn(f"profile database {self.place}: a row of {kind.TABLE} is unreadable and skipped ({error})")
                continue
            if isinstance(row, kind):
                yield row


def _with_finalizer(database: Database) -> Database:
    """Return a database whose file is closed when nothing refers to it any more, if ``close`` was not called."""
    if database._connection is not None:
        weakref.finalize(database, _close, database._connection)
    return database


def _close(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.ProgrammingError):  # another thread made it
        connection.close()


def _insert(connection: sqlite3.Connection, row: Row) -> None:
    placeholders = ", ".join("?" * len(row.hints()))
    connection.execute(f"INSERT OR REPLACE INTO {row.TABLE} VALUES ({placeholders})", row.to_sql())


def _connect(path: Path, mode: Literal["rwc", "ro"], warn: Warn) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        version = _version(connection)
        if version not in (0, 1, SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"its version is {version}, this program writes {SCHEMA_VERSION}")
        if mode == "rwc":
            _enter_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            if version != SCHEMA_VERSION:
                _create(connection, path, warn)
        elif version == 1:
            warn(f"profile database {path} is of an earlier version: it is read now and rewritten by a run that may write")
            return _upgraded_copy(connection, path)
        for kind in TABLES:
            connection.execute(f"SELECT count(*) FROM (SELECT {', '.join(kind.KEY)} FROM {kind.TABLE} LIMIT 1)").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _create(connection: sqlite3.Connection, path: Path | str, warn: Warn) -> None:
    """Create the tables, and move the contents of version 1 into them; if interrupted, nothing is changed."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # another process may have done so meanwhile
        if version != SCHEMA_VERSION:
            for kind in TABLES:
                connection.execute(create(kind))
            if version == 1:
                kept, forgotten = _take_over(connection)
                warn(
                    f"profile database {path} was of an earlier version: {kept} kernel times are taken over, "
                    f"{forgotten} searches, races and derivations are made anew when they are needed"
                )
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _take_over(connection: sqlite3.Connection) -> tuple[int, int]:
    """Fill the table of kernel times from version 1's only table, and drop that; return how many rows are kept and dropped."""
    columns = "device, fragment, implementation, status, samples_us, message"
    rows = connection.execute(f"SELECT {columns} FROM measurements WHERE {OLD_KERNEL_TIMES}").fetchall()
    count = int(connection.execute("SELECT count(*) FROM measurements").fetchone()[0])
    kept = 0
    for values in rows:
        record = _old_record(values)
        if record is not None:
            _insert(connection, record)
            kept += 1
    connection.execute("DROP TABLE measurements")
    return kept, count - kept


def _old_record(values: tuple[Any, ...]) -> Record | None:
    """Return a kernel time of version 1; times of generated code keep the generator's revision that they were measured with."""
    device, fragment, implementation, status, samples_us, message = values
    try:
        revision = OLD_GENERATOR.search(device)
        generator = f"revision {revision[1]}" if revision and implementation == "tvm" else ""
        raw = {"fragment": fragment, "implementation": implementation, "status": status, "message": message, "generator": generator}
        row = Record.from_values({"device": OLD_DEVICE_PARTS.sub("", device), "samples_us": json.loads(samples_us), **raw})
    except (ValueError, TypeError):
        return None
    return row if isinstance(row, Record) else None


def _upgraded_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return a copy in memory, with the tables of this version, of a file of version 1 that may not be written."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    with closing(connection):
        connection.backup(copy)
    _create(copy, path, lambda text: None)
    return copy


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, waiting for other processes that are switching, because SQLite does not wait for these."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
