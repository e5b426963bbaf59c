"""List, export, import and make measurements of kernels; say how near the cores are."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from runtime.devices.cpu.passing import line_ns
from runtime.profile.database import Database
from runtime.profile.jobs import measure_archive

EXAMPLES = """examples:
  python -m runtime.profile list
  python -m runtime.profile export measured.jsonl --device 'cpu | ...'
  python -m runtime.profile import measured.jsonl
  python -m runtime.profile measure jobs.zip --output measured.jsonl
  python -m runtime.profile cores
"""
ROUNDS = 20
PAUSE_SECONDS = 0.1


def parser() -> argparse.ArgumentParser:
    main = argparse.ArgumentParser(
        prog="python -m runtime.profile", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    main.add_argument("--database", type=Path, metavar="PATH", help="the database file (default: in the user's data directory)")
    commands = main.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print each measurement: median, spread, implementation, kernel")
    listing.add_argument("--device", metavar="KEY", help="only this device, as the lines of export name it")
    export = commands.add_parser("export", help="write measurements as JSON lines ('-' for standard output)")
    export.add_argument("file", help="the file to write, or '-'")
    export.add_argument("--device", metavar="KEY", help="only this device, as the lines of export name it")
    importing = commands.add_parser("import", help="add measurements from JSON lines ('-' for standard input)")
    importing.add_argument("file", help="a file that export wrote, or '-'")
    measure = commands.add_parser("measure", help="time the kernels of a job archive on this machine")
    measure.add_argument("archive", type=Path, help="what runtime.profile.jobs.write_archive packed, from Python")
    measure.add_argument("--threads", type=int, default=0, metavar="N", help="threads a kernel (default: all cores)")
    measure.add_argument("--output", type=Path, metavar="FILE", help="also write what was measured as JSON lines")
    cores = commands.add_parser("cores", help="print how near the cores are: what writing takes after another core has read")
    cores.add_argument("--threads", type=int, default=0, metavar="N", help="how many cores (default: all)")
    return main


def cores_told(threads: int | None) -> str:
    """Look for two seconds, since a virtual machine's cores move; return the median and the quartiles."""
    found: list[float] = []
    for _ in range(ROUNDS):
        if (time_ns := line_ns(threads)) is None:
            return "one thread passes nothing between cores"
        found.append(time_ns)
        time.sleep(PAUSE_SECONDS)
    first, middle, third = statistics.quantiles(found, n=4)
    return f"a line that another core has read takes {middle:.1f} ns to write (quartiles {first:.1f} and {third:.1f})"


def run(arguments: argparse.Namespace) -> int:
    if arguments.command == "cores":
        print(cores_told(arguments.threads or None))
        return 0
    database = Database.open(arguments.database, read_only=arguments.command in ("list", "export"))
    if arguments.command == "import" and not database.writable:
        raise ValueError(f"nothing was imported: {database.place} cannot be written; name another file with --database PATH before import")
    match arguments.command:
        case "list":
            for record in database.records(arguments.device):
                time = f"{record.median_us:10.1f} us" if record.median_us is not None else f"{record.status:>13}"
                spread = f"{record.spread:6.1%}" if record.spread is not None else "     -"
                print(f"{time} {spread}  {record.implementation:20} {record.fragment}  {record.message}".rstrip())
        case "export":
            lines = "".join(record.to_line() + "\n" for record in database.records(arguments.device))
            if arguments.file == "-":
                sys.stdout.write(lines)
            else:
                Path(arguments.file).write_text(lines)
        case "import":
            text = sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text()
            added, skipped = database.import_lines(text.splitlines())
            print(f"{added} measurements added, {skipped} skipped")
        case "measure":
            records = measure_archive(arguments.archive, database, threads=arguments.threads)
            if arguments.output:
                arguments.output.write_text("".join(record.to_line() + "\n" for record in records))
            print(f"{len(records)} kernels measured, {sum(record.status != 'ok' for record in records)} without a time")
    return 0


def main() -> int:
    try:
        return run(parser().parse_args())
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what was measured is in the database", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
