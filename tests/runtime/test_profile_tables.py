"""Each kind of row has its own table; files of version 1 are converted once; writers may be killed."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.profile import CheckRow, Database, DerivationRow, ProofRow, RaceTime, Record, SearchRow
from runtime.profile.tables import TABLES, Row, read_line, read_lines
from tests.support.paths import ROOT

ROWS: tuple[Row, ...] = (
    Record("cpu", "Relu(%0:float32[8])", "tvm", "ok", (3.0, 1.0), "", "1234"),
    RaceTime("cpu", "race", "program", "failed", (), "it did not compile"),
    SearchRow("cpu", "search", 18, 3, 60.0, "[]", (("slow", "onednn.softmax", "Softmax(%0)", "a reference"),), (4, 7)),
    CheckRow("cpu", "model", 2),
    DerivationRow("winograd", "Conv{}(%0, $1)", "sources", 0.5, "[]"),
    ProofRow("left", "right", "exact", "sources", "", 0.25),
)
DEVICE = "cpu | a processor | 2 cores | onednn-cpu-gomp 3.7{}, onnxruntime 1.2{} | threads=2 evicted"
OLD = ", apache-tvm 0.25.post1", ", generated code 5"
NEW = "", ""


def test_every_table_keeps_its_rows(tmp_path: Path) -> None:
    with closing(Database.open(tmp_path / "p.sqlite")) as database:
        for row in ROWS:
            database.put(row)
    assert tuple(map(type, ROWS)) == TABLES
    with closing(Database.open(tmp_path / "p.sqlite", read_only=True)) as database:
        for row in ROWS:
            assert database.find(type(row), *row.key) == row
            assert list(database.rows(type(row))) == [row]
            assert database.find(type(row), *row.key[:-1], "another") is None
        assert list(database.records()) == [ROWS[0]]


def test_lines_may_be_compressed(tmp_path: Path) -> None:
    lines = [row.to_line() for row in ROWS[:2]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    assert read_lines(tmp_path / "a.jsonl") == read_lines(tmp_path / "a.jsonl.gz") == lines
    (tmp_path / "b.jsonl.gz").write_text("\n".join(lines))
    with pytest.raises(OSError, match="gzip"):
        read_lines(tmp_path / "b.jsonl.gz")


def test_columns_refuse_values_of_other_types(tmp_path: Path) -> None:
    Database.open(tmp_path / "p.sqlite").close()
    with closing(sqlite3.connect(tmp_path / "p.sqlite")) as connection, pytest.raises(sqlite3.IntegrityError, match="INTEGER"):
        connection.execute("INSERT INTO checks VALUES ('cpu', 'model', 'two')")


def test_a_damaged_row_is_skipped(tmp_path: Path) -> None:
    warnings: list[str] = []
    database = Database.open(tmp_path / "p.sqlite", warn=warnings.append)
    for fragment in ("a", "b"):
        database.put(Record("cpu", fragment, "tvm", "ok", (1.0,)))
    with closing(sqlite3.connect(tmp_path / "p.sqlite")) as connection:
        connection.execute("UPDATE kernel_times SET samples_us = '[1.0, null]' WHERE fragment = 'a'")
        connection.commit()
    assert [record.fragment for record in Database.open(tmp_path / "p.sqlite", warn=warnings.append).records()] == ["b"]
    assert len(warnings) == 1 and "kernel_times" in warnings[0] and "samples_us" in warnings[0]


def test_only_measurements_are_exported() -> None:
    for row in ROWS[:2]:
        assert read_line(row.to_line()) == row
    for row in ROWS[2:]:
        with pytest.raises(ValueError, match="is none of kernel_times, races"):
            read_line(row.to_line())


def test_times_of_another_generator_are_others() -> None:
    database = Database.in_memory()
    database.put(ROWS[0])
    device, fragment, implementation, generator = map(str, ROWS[0].key)
    assert database.get(device, fragment, implementation) is None
    assert database.get(device, fragment, implementation, "4321") is None
    assert database.get(device, fragment, implementation, generator) == ROWS[0]


def test_a_scratch_database_keeps_things_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    database = Database.open(path)
    database.put(ROWS[0])
    scratch = database.scratch()
    scratch.put(ROWS[3])
    assert [list(scratch.rows(type(row))) for row in (ROWS[0], ROWS[3])] == [[ROWS[0]], [ROWS[3]]]
    assert not list(database.rows(CheckRow)) and not list(Database.open(path).rows(CheckRow))


def write_version_1(path: Path) -> None:
    """Write a file of version 1, which has one table for everything."""
    rows = [
        (DEVICE.format(*OLD), "Relu(%0)", "tvm", "ok", "[2.0]", ""),
        (DEVICE.format(*OLD), "MatMul(%0, $1)", "onednn.matmul", "failed", "[]", "no such primitive"),
        (DEVICE.format(*OLD) + ", weights from memory", "MatMul(%0, $1)", "onednn.matmul", "ok", "[9.0]", ""),
        (DEVICE.format(*NEW), "search 12", "search", "ok", "[18.0, 3.0, 60.0]", "{}"),
        (DEVICE.format(*NEW), "check 12", "check", "ok", "[2.0]", ""),
        (DEVICE.format(*NEW), "race 12 34", "end to end", "ok", "[70.0]", ""),
        ("derivations", "winograd Conv", "derivation", "ok", "[1e6]", "{}"),
        (DEVICE.format(*NEW), "Exp(%0)", "tvm", "ok", "damaged", ""),
    ]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE measurements (device TEXT, fragment TEXT, implementation TEXT, status TEXT, samples_us TEXT, "
            "median_us REAL, spread REAL, message TEXT, PRIMARY KEY (device, fragment, implementation)) WITHOUT ROWID"
        )
        connection.executemany("INSERT INTO measurements VALUES (?, ?, ?, ?, ?, NULL, NULL, ?)", rows)
        connection.execute("PRAGMA user_version = 1")


TAKEN_OVER = [
    Record(DEVICE.format(*NEW), "MatMul(%0, $1)", "onednn.matmul", "failed", (), "no such primitive"),
    Record(DEVICE.format(*NEW), "Relu(%0)", "tvm", "ok", (2.0,), "", "revision 5"),
    Record(DEVICE.format(*NEW) + ", weights from memory", "MatMul(%0, $1)", "onednn.matmul", "ok", (9.0,)),
]


def test_kernel_times_of_an_earlier_version_are_taken_over_once(tmp_path: Path) -> None:
    path, warnings = tmp_path / "p.sqlite", list[str]()
    write_version_1(path)
    with closing(Database.open(path, warn=warnings.append)) as database:
        assert list(database.records()) == TAKEN_OVER
        assert not any(list(database.rows(kind)) for kind in TABLES[1:])
    (told,) = warnings
    assert "3 kernel times are taken over, 5 searches, races and derivations are made anew" in told
    with closing(Database.open(path, warn=warnings.append)) as database:
        assert list(database.records()) == TAKEN_OVER and warnings == [told]


def test_an_earlier_version_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    path, warnings = tmp_path / "p.sqlite", list[str]()
    write_version_1(path)
    before = path.read_bytes()
    with closing(Database.open(path, read_only=True, warn=warnings.append)) as database:
        assert list(database.records()) == TAKEN_OVER and len(warnings) == 1
        database.put(replace(TAKEN_OVER[0], fragment="Exp(%0)"))
    assert path.read_bytes() == before


def test_an_interrupted_migration_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.sqlite"
    write_version_1(path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("runtime.profile.database._insert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Database.open(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM measurements").fetchone() == (8,)
    with closing(Database.open(path, warn=lambda text: None)) as database:
        assert list(database.records()) == TAKEN_OVER


def _migrate_and_write(path: Path, name: str) -> None:
    with closing(Database.open(path, warn=lambda text: None)) as database:
        for number in range(40):
            database.put(CheckRow("cpu", f"{name} {number}", 1))


def test_processes_migrate_and_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    write_version_1(path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_migrate_and_write, args=(path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    with closing(Database.open(path)) as database:
        assert len(list(database.rows(CheckRow))) == 120 and list(database.records()) == TAKEN_OVER


WRITER = """
import itertools, signal, sys
from pathlib import Path
from runtime.profile import CheckRow, Database
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
database = Database.open(Path(sys.argv[1]))
for number in itertools.count():
    database.put(CheckRow("cpu", f"{number:08}", number))
    print(number, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_a_killed_writer_wrote_is_there(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "p.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            writer.stdout.readline()
        writer.send_signal(how)
        told = [int(line) for line in writer.stdout.read().split("\n")[:-1] if line]
    last = told[-1] if told else 49
    started = time.monotonic()
    with closing(Database.open(path)) as database:
        numbers = [row.inputs for row in database.rows(CheckRow)]
        database.put(CheckRow("cpu", "another", 1))
        assert database.writable and time.monotonic() - started < 5.0
    assert numbers == list(range(len(numbers))) and len(numbers) in (last + 1, last + 2)


def test_a_reader_sees_what_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    reader, writer = Database.open(path), Database.open(path)
    assert reader.find(CheckRow, "cpu", "model") is None
    writer.put(CheckRow("cpu", "model", 3))
    assert reader.find(CheckRow, "cpu", "model") == CheckRow("cpu", "model", 3)


def test_a_line_names_its_table() -> None:
    raw = json.loads(ROWS[1].to_line())
    assert raw["table"] == "races" and raw["race"] == "race"
    with pytest.raises(ValueError, match="contender is missing"):
        read_line(json.dumps({name: value for name, value in raw.items() if name != "contender"}))
