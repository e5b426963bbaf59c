"""List, export, import and make measurements of kernels; measure the distance between cores."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from runtime.devices.cpu.core_distance import line_ns
from runtime.errors import ExecutionError
from runtime.profile.cluster import measure_on_cluster
from runtime.profile.database import Database
from runtime.profile.jobs import Measured, count_statuses, measure_archive, merge
from runtime.profile.tables import SHARED, TABLES, Record, read_lines
from runtime.runner import Cluster, open_runner, parse_runner

EXAMPLES = """examples:
  python -m runtime.profile list
  python -m runtime.profile export measured.jsonl --device 'cpu | ...'
  python -m runtime.profile import measured.jsonl
  python -m runtime.profile merge first.zip second.zip -o jobs.zip --most-mb 45
  python -m runtime.profile measure jobs.zip -o records.jsonl --seconds 600
  python -m runtime.profile measure jobs.zip -o records.jsonl --runner ray:auto --device 'cpu | ...'
  python -m runtime.profile cores
"""
MEGABYTE = 1e6
ROUNDS = 20
PAUSE_SECONDS = 0.1


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="python -m runtime.profile", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    main.add_argument("--database", type=Path, metavar="PATH", help="the database file (default: in the user's data directory)")
    commands = main.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print each measurement: median, spread, implementation, kernel")
    names = [kind.TABLE for kind in TABLES]
    listing.add_argument("--table", choices=names, default=names[0], help=f"what to list (default: {names[0]})")
    listing.add_argument("--device", metavar="KEY", help="only the device with this key, as in the lines of export")
    export = commands.add_parser("export", help="write measurements as JSON lines ('-' for standard output)")
    export.add_argument("file", help="the file to write, or '-'")
    export.add_argument("--device", metavar="KEY", help="only the device with this key, as in the lines that are written")
    importing = commands.add_parser("import", help="add measurements from JSON lines ('-' for standard input)")
    importing.add_argument("file", help="a file that export wrote, or '-'")
    merging = commands.add_parser("merge", help="merge several job archives into one, with each kernel once")
    merging.add_argument("archives", type=Path, nargs="+", metavar="ARCHIVE", help="archives that --export-jobs wrote, for one device")
    merging.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the archive to write")
    merging.add_argument(
        "--most-mb", type=float, default=math.inf, metavar="N",
        help="begin another archive (FILE-2, FILE-3, ...) if one would be larger than N million bytes",
    )  # fmt: skip
    measure = commands.add_parser("measure", help="time the kernels of a job archive on this machine; repeating the command resumes")
    measure.add_argument("archive", type=Path, help="an archive that python -m egraph.optimize --export-jobs wrote")
    measure.add_argument("-o", "--output", type=Path, metavar="FILE", help="append each record to this file as a JSON line")
    measure.add_argument("--seconds", type=float, default=math.inf, metavar="N", help="end after this time (default: when all is measured)")
    measure.add_argument(
        "--runner", type=parse_runner, metavar="ray[:ADDRESS]",
        help="measure on the machines of a Ray cluster (default: on this machine)",
    )  # fmt: skip
    measure.add_argument("--device", default="", metavar="KEY", help="with --runner: only on machines of this key (default: this one's)")
    measure.add_argument("-q", "--quiet", action="store_true", help="print nothing while measuring")
    cores = commands.add_parser("cores", help="print the distance between cores: the time to write a cache line that another core has read")
    cores.add_argument("--threads", type=int, default=0, metavar="N", help="how many cores (default: all)")
    return main


def describe_cores(threads: int | None) -> str:
    """Measure for two seconds, because a virtual machine's cores move; return the median and the quartiles."""
    times_ns: list[float] = []
    for _ in range(ROUNDS):
        if (time_ns := line_ns(threads)) is None:
            return "one thread passes nothing between cores"
        times_ns.append(time_ns)
        time.sleep(PAUSE_SECONDS)
    first, middle, third = statistics.quantiles(times_ns, n=4)
    return f"a line that another core has read takes {middle:.1f} ns to write (quartiles {first:.1f} and {third:.1f})"


def tell(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return the progress display of measuring: on standard error, unless it is to be quiet."""
    return (lambda text: None) if arguments.quiet else lambda text: print(text, file=sys.stderr)


def measured(arguments: argparse.Namespace, database: Database) -> Measured:
    """Measure an archive here, or on the cluster that is named."""
    archive, output, seconds = arguments.archive, arguments.output, arguments.seconds
    if not arguments.runner:
        if arguments.device:
            raise ValueError("--device chooses among the machines of a cluster: give --runner ray, too")
        return measure_archive(archive, database, output=output, seconds=seconds, tell=tell(arguments))
    with open_runner(arguments.runner) as runner:
        if not isinstance(runner, Cluster):
            raise ValueError(f"--runner {arguments.runner} measures nothing: kernels are timed one after another, or on a cluster (ray)")
        return measure_on_cluster(
            runner, archive, database, named_device=arguments.device, output=output, seconds=seconds, tell=tell(arguments)
        )


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "cores":
        print(describe_cores(arguments.threads or None))
        return 0
    if arguments.command == "merge":
        merged = merge(arguments.archives, arguments.output, MEGABYTE * arguments.most_mb)
        sizes = ", ".join(f"{path} ({path.stat().st_size / MEGABYTE:.1f} MB)" for path in merged.paths)
        print(f"wrote {sizes}: {merged.kernels} kernels, {merged.repeated} repeated ones left out")
        return 0
    database = Database.open(arguments.database, read_only=arguments.command in ("list", "export"))
    if arguments.command == "import" and not database.writable:
        raise ValueError(f"nothing was imported: {database.place} cannot be written; name another file with --database PATH before import")
    match arguments.command:
        case "list" if arguments.table != Record.TABLE:
            (kind,) = (kind for kind in TABLES if arguments.table == kind.TABLE)
            for row in database.rows(kind):
                if arguments.device in (None, getattr(row, "device", None)):
                    print("  ".join(map(str, row.to_sql())))
        case "list":
            for record in database.records(arguments.device):
                time_text = f"{record.median_us:10.1f} us" if record.median_us is not None else f"{record.status:>13}"
                spread = f"{record.spread:6.1%}" if record.spread is not None else "     -"
                print(f"{time_text} {spread}  {record.implementation:20} {record.fragment}  {record.message}".rstrip())
        case "export":
            rows = (row for kind in SHARED for row in database.rows(kind))
            text = "".join(row.to_line() + "\n" for row in rows if arguments.device in (None, row.key[0]))
            if arguments.file == "-":
                sys.stdout.write(text)
            else:
                Path(arguments.file).write_text(text)
        case "import":
            lines = sys.stdin.read().splitlines() if arguments.file == "-" else read_lines(Path(arguments.file))
            added, skipped = database.import_lines(lines)
            print(f"{added} measurements added, {skipped} skipped")
        case "measure":
            done = measured(arguments, database)
            without = count_statuses(done.records)
            print(f"{len(done.records)} kernels measured" + (f", without a time: {without}" if without else ""))
            if done.foreign:
                print(f"{done.foreign} kernels are code for another processor and are left out: export jobs on a machine like this one")
            if done.remaining:
                print(f"{done.remaining} kernels remain: the same command again goes on with them")
    return 0


def main() -> int:
    try:
        return run(parser().parse_args())
    except (OSError, ValueError, ExecutionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what was measured is kept; the same command again goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
