"""Read the command line into ``Options``; imports little, so that ``--help`` is fast."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from egraph.errors import ModelError
from egraph.optimize.options import ANY, DEFAULT_BUCKETS, OFFERED, Choice, Options, SizeRequest, choice_text, is_several
from egraph.policy import Policy
from egraph.tolerance import ROUNDED_TOLERANCE, Tolerance
from runtime.cores import default_threads, usable_cores
from runtime.devices import DESCRIBED, HOST, NAMES

EXAMPLES = """examples:
  python -m egraph.optimize model.onnx                          write model.opt.onnx and model.einsat/ beside the model
  python -m egraph.optimize model.onnx --shape x:1,3,224,224    fix the sizes of a dynamic input
  python -m egraph.optimize model.onnx --shape N=1 --shape H=640/* --shape W=640/*   plan for 640 x 640; onnxruntime runs other sizes
  python -m egraph.optimize model.onnx --shape ids:1,32..512 --buckets 6   plan for six sizes from 32 to 512; the session picks
  python -m egraph.optimize model.onnx --shape batch=1/8 --shape seq=1/32..512   sizes by the names that the model gives them
  python -m egraph.optimize model.onnx --constant rate=16000    replace an input by a constant, and take the branch that it chooses
  python -m egraph.optimize model.onnx --budget 5m --threads 2  search longer, for two threads
  python -m egraph.optimize model.onnx --precision auto --tolerance 1e-2   round to bf16 where that is faster, within 1e-2
  python -m egraph.optimize model.onnx --precision int8 --inputs real.npz --tolerance 2e-2   compute in bytes, in the ranges of your inputs
  python -m egraph.optimize model.onnx --rules mine.py --json   add your own rules; print one JSON object
  python -m egraph.optimize model.onnx --inputs real.npz        check and time on your own inputs, then check on random ones
  python -m egraph.optimize model.onnx --to saturated.txt       write the e-graph as text and end
  python -m egraph.optimize --from saturated.txt --to selected.txt   run one stage alone on the text of another
  python -m egraph.optimize model.onnx --export-jobs jobs.zip   write the kernels to measure, for another process or machine
  python -m egraph.optimize model.onnx --import-profiles records.jsonl   use what was measured there
  python -m egraph.optimize model.onnx --target cuda:h100       for a GPU that may be absent here: by estimates, checked without it
  python -m egraph.optimize model.onnx --policy extract.share=0.1   tune a stage; --policy help lists what can be tuned
  python -m egraph.optimize --list-rules                        show every rule with its equation and verdict

sizes: --shape sets dynamic sizes, and replaces fixed ones if every node allows that: the shapes that the file states for intermediate
values are ignored. An initializer that the file also lists as an input becomes an input if --shape names it; others are constants. If the
model and --shape leave only the batch open (the first axis of inputs of two axes or more), a batch of 1 is planned, and onnxruntime runs
other batches.

several sizes: 32..512 is a range, of which --buckets sizes are planned, including both ends; 32/64/128 plans each of these; 1/32..512
does both; 1/* plans 1 and accepts any other size. NAME=SIZES sets a size that the model names, in all inputs that have it. One artefact
holds all plans and their weights once; a session picks a plan by its inputs. A size in between is padded to the next plan if that is proved
to be right and is faster; onnxruntime runs all other sizes, also those outside the range. An axis with a single number accepts only that.
The budget is for all sizes together. python -m egraph.inspect says which size goes where.

your own inputs: results are compared on every --inputs file, and then on random inputs, up to --check N in all. Programs are timed on the
first file. Sizes that the model and --shape leave open are taken from the files, which must agree. Kernels are measured on random data. If
several sizes are planned, each file is used for its own size; a file of a size that is not planned is used to check the artefact.

exit codes: 0 done (faster, or nothing faster was found and the input was kept), 2 usage or bad input,
3 the check failed (nothing is written), 130 interrupted (nothing is written; measurements are kept)
"""


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``x:1,3,224,224`` or ``x:1x3x224x224``; the name may contain colons, and ``x:`` alone is a scalar."""
    name, separator, sizes = text.rpartition(":")
    parts = [part for part in re.split(r"[,x]", sizes) if part] if sizes else []
    if not separator or not name or not re.fullmatch(r"(\d+([,x]\d+)*)?", sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:SIZES, for example x:1,3,224,224 or x:1x3x224x224")
    return name, tuple(int(part) for part in parts)


def parse_constant(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse ``rate=16000`` or ``axes=0,1``; return the name and the numbers, whose type depends on the model."""
    name, separator, numbers = text.rpartition("=")
    parts = tuple(part.strip() for part in numbers.split(","))
    if not separator or not name or not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER, for example rate=16000, or NAME=NUMBER,NUMBER,...")
    return name, parts


def parse_sizes(text: str) -> tuple[str, str, tuple[Choice, ...]]:
    """Parse ``x:1,32..512``, ``seq=8/32..512`` or ``batch=1/*``; return the name, the separator, and the sizes of each axis."""
    parsed = re.fullmatch(r"(.+)([:=])([^:=]*)", text, re.DOTALL)
    name, kind, sizes = parsed.groups() if parsed else ("", "", "")
    if kind != "=" and not re.search(r"\.\.|/|\*", sizes):
        name, numbers = parse_shape(text)
        return name, ":", tuple((range(number, number + 1),) for number in numbers)
    choices = tuple(_choice(part, text) for part in sizes.split(","))
    if kind == "=" and len(choices) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} gives the size {name!r} {len(choices)} times: give an input its sizes as NAME:SIZES")
    return name, kind, choices


def _choice(part: str, text: str) -> Choice:
    """Parse the sizes of one axis, for example ``1/32..512`` or ``1/*``."""
    spans = []
    for span in part.split("/"):
        if span == "*":
            spans.append(ANY)
            continue
        parsed = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", span)
        if not parsed:
            raise argparse.ArgumentTypeError(f"{span!r} in {text!r} is no size and no range; write x:1,32..512 or seq=1/32..512")
        low, high = int(parsed[1]), int(parsed[2] or parsed[1])
        if high < low:
            raise argparse.ArgumentTypeError(f"the range {span} in {text!r} is empty: write {high}..{low}")
        if parsed[2] and not low:
            raise argparse.ArgumentTypeError(f"the range {span} in {text!r} begins at 0: begin at 1, and name 0 by itself (0/1..{high})")
        spans.append(range(low, high + 1))
    if not any(spans):
        raise argparse.ArgumentTypeError(f"{part} in {text!r} plans no size: give a number beside it, for example 1/*")
    return tuple(spans)


def parse_seconds(text: str) -> float:
    """Parse ``60``, ``60s``, ``5m`` or ``1h``."""
    parsed = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    seconds = float(parsed[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[parsed[2]] if parsed else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, for example 60s or 5m")
    return seconds


def parse_tolerance(text: str) -> Tolerance:
    """Parse ``relative`` or ``relative,absolute``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 2 or not all(math.isfinite(value) and value >= 0 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not RELATIVE or RELATIVE,ABSOLUTE, for example 1e-4,1e-6")
    return Tolerance(*values)


def _path(text: str) -> Path:
    """Parse a path; an empty one, for example of an unset variable, is refused because it would be the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m egraph.optimize",
        description="Read an ONNX model and write an equal one that runs faster on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=_path, nargs="?", help="the ONNX model to optimise")
    add = parser.add_argument_group("what to do").add_argument
    add("-o", "--output", type=_path, metavar="OUT", help="a folder, or the new model's name ending in .onnx (default: beside the model)")
    add("--device", default=HOST, choices=NAMES, help="what to optimise for; on reference and cuda, costs are estimates (default: cpu)")
    help_text = "optimise for a GPU that may be absent here: costs are estimates, and the program is executed and checked without it"
    add("--target", dest="device", choices=DESCRIBED, default=argparse.SUPPRESS, help=help_text)
    add("--threads", type=_at_least(1), metavar="N", help="threads that the program will use (default: one per usable core)")
    help_text = "sizes of an input, or a size that the model names (NAME=SIZE); several sizes: 32..512, 32/64, see below; repeatable"
    add("--shape", type=parse_sizes, action="append", default=[], metavar="NAME:SIZES", help=help_text)
    help_text = "replace an input by a constant, and take the branches that it chooses; repeatable"
    add("--constant", type=parse_constant, action="append", default=[], metavar="NAME=NUMBER", help=help_text)
    help_text = f"how many sizes of a range to plan, including both ends (default: {DEFAULT_BUCKETS})"
    add("--buckets", type=_at_least(2), metavar="N", help=help_text)
    add("--budget", type=parse_seconds, default=55.0, metavar="TIME", help="time for the whole run (default: 55s)")
    add("--max-nodes", type=_at_least(1), default=50_000, metavar="N", help="maximum number of e-nodes (default: 50000)")
    add("--finalists", type=_at_least(1), default=4, metavar="K", help="how many programs to time end to end (default: 4)")
    add("--seed", type=_at_least(0), default=0, metavar="N", help="seed of every random choice (default: 0)")
    help_text = "set a tuning parameter, for example extract.share=0.1; repeatable; '--policy help' lists and explains all of them"
    add("--policy", action="append", default=[], metavar="STAGE.FIELD=VALUE", help=help_text)
    group = parser.add_argument_group("one stage alone", "Nothing is measured; costs come from the profile database, or are estimates.")
    add = group.add_argument
    add("--from", dest="source", type=_path, metavar="FILE", help="start from the text of a stage that --dump-dir or --to wrote")
    help_text = "write the result of this stage and end: a file called imported.txt, saturated.txt, selected.txt or plan.txt"
    add("--to", dest="to", type=_path, metavar="FILE", help=help_text)
    add = parser.add_argument_group("rules").add_argument
    add("--rules", type=_path, action="append", default=[], metavar="FILE", help="a Python file with RULES = (...); repeatable")
    add("--skip-rule", action="append", default=[], metavar="NAME", help="do not use this rule; repeatable")
    add("--no-derivations", action="store_true", help="use listed rules only; derive no programs from single operators")
    add("--partial", action="store_true", help="also derive programs that differ in some places, with kernels that correct them")
    add("--list-rules", action="store_true", help="print every rule and exit")
    add("--unsafe-rules", action="store_true", help="also load rules that are not proved; every report names them")
    add(
        "--allow",
        choices=["exact", "reassociate", "finite"],
        default="finite",
        help="what rules may change: 'exact' nothing, 'reassociate' rounding, 'finite' also the results for infinities and NaN (default)",
    )
    add(
        "--keep-subnormals",
        action="store_true",
        help="compute with subnormal numbers (below 1.2e-38, in float64 2.2e-308) as IEEE 754 says; by default they count as zero, which "
        "can be many times faster ('--allow exact' implies this option)",
    )
    add(
        "--precision",
        choices=list(OFFERED),
        default="fp32",
        help="the format to which products and convolutions may round their operands (sums stay float32): 'fp32' does not round (default); "
        "'bf16' and, on GPUs, 'tf32' and 'fp16' (infinite beyond 65504) round wherever that is faster; 'auto' rounds to tf32 or bf16 if "
        "--tolerance allows it, and on processors with AMX also to two bf16 numbers each (bf16x3: an error of about 1e-5); 'int8' also "
        "rounds to bytes, in products by weights, within the ranges of your --inputs; a program that exceeds --tolerance on the inputs of "
        "the check is never written",
    )
    group = parser.add_argument_group("checking and measuring")
    add = group.add_argument
    help_text = "accepted error: REL of the largest output plus ABS (default: 1e-4,1e-6, or 1e-2,1e-6 if --precision is not fp32)"
    add("--tolerance", type=parse_tolerance, metavar="REL[,ABS]", help=help_text)
    add(
        "--inputs",
        type=_path,
        action="append",
        default=[],
        metavar="FILE",
        help="your own inputs to compare and time on: .npz with arrays by input name, or .npy for the only input; repeatable",
    )
    add("--check", type=_at_least(1), default=3, metavar="N", help="inputs to compare on: all of yours, then random ones (default: 3)")
    add("--database", type=_path, metavar="PATH", help="the profile database (default: in the user's data directory)")
    help_text = "first add the records of this file, written by python -m runtime.profile, to the profile database; repeatable"
    add("--import-profiles", type=_path, action="append", default=[], metavar="FILE", help=help_text)
    help_text = "write the kernels that the search would measure to this archive and end; python -m runtime.profile measure times them"
    add("--export-jobs", type=_path, metavar="FILE.zip", help=help_text)
    either = group.add_mutually_exclusive_group().add_argument
    either("--frozen", action="store_true", help="measure nothing: use the profile database as it is")
    either("--again", action="store_true", help="search again even if an earlier search had this --budget or a larger one")
    add = parser.add_argument_group("output").add_argument
    add("--report", type=_path, metavar="OUT.html", help="also write the report here (it is always in the artefact)")
    add("--dump-dir", type=_path, metavar="DIR", help="also write every stage's result there, as text: imported.txt, saturated.txt, ...")
    add("--json", action="store_true", help="print one JSON object on standard output")
    add("-v", "--verbose", action="count", default=0, help="print more")
    add("-q", "--quiet", action="store_true", help="print nothing while working")
    return parser


def to_options(arguments: argparse.Namespace) -> Options:
    """Return the options; raises ModelError for errors that argparse cannot detect."""
    if arguments.model is None and arguments.source is None:
        raise ModelError("no model was given", fix="python -m egraph.optimize model.onnx (or --list-rules, --help)")
    if arguments.source and (arguments.model or not (arguments.to or arguments.export_jobs) or arguments.source.suffix != ".txt"):
        fix = "python -m egraph.optimize --from saturated.txt --to selected.txt"
        raise ModelError("--from takes a stage's text in the place of a model, and needs --to or --export-jobs", where="--from", fix=fix)
    if arguments.to and arguments.export_jobs:
        raise ModelError("--to and --export-jobs write one file each and end: give one of them", where="--export-jobs")
    if arguments.export_jobs and arguments.again:
        raise ModelError("--export-jobs exports what no one has measured yet: --again does not go with it", where="--export-jobs")
    if arguments.to and (arguments.output or arguments.report or arguments.dump_dir or arguments.json):
        raise ModelError("--to writes one file and prints nothing: -o, --report, --dump-dir and --json do not go with it", where="--to")
    cores = usable_cores()
    if (arguments.threads or 1) > cores:
        raise ModelError(
            f"--threads {arguments.threads} is more than the {cores} processors that this process may use: nothing could be timed",
            where="--threads", fix=f"give --threads {cores} or fewer, or leave the option out",
        )  # fmt: skip
    shapes, request = _size_request(arguments)
    return Options(
        model=arguments.model or arguments.source,
        output=arguments.output,
        device=arguments.device,
        threads=arguments.threads or default_threads(),
        shapes=shapes,
        constants=_constants(arguments),
        size_request=request,
        budget_seconds=arguments.budget,
        max_nodes=arguments.max_nodes,
        finalists=arguments.finalists,
        rule_files=tuple(arguments.rules),
        skip_rules=tuple(arguments.skip_rule),
        derivations=not arguments.no_derivations,
        partial=arguments.partial,
        unsafe_rules=arguments.unsafe_rules,
        allow=arguments.allow,
        keep_subnormals=arguments.keep_subnormals,
        tolerance=arguments.tolerance or (ROUNDED_TOLERANCE if OFFERED[arguments.precision] else Tolerance()),
        precision=arguments.precision,
        inputs=tuple(arguments.inputs),
        checks=arguments.check,
        database=arguments.database,
        frozen=arguments.frozen,
        again=arguments.again,
        seed=arguments.seed,
        report=arguments.report,
        dump_folder=arguments.dump_dir,
        profiles=tuple(arguments.import_profiles),
        policy=Policy().changed(arguments.policy),
        json=arguments.json,
        verbosity=-1 if arguments.quiet else arguments.verbose,
    )


def _constants(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the numbers of inputs that become constants; raises ModelError."""
    constants: dict[str, tuple[str, ...]] = {}
    for name, numbers in arguments.constant:
        if constants.setdefault(name, numbers) != numbers:
            raise ModelError(f"--constant gives the input {name!r} twice, and not the same", where="--constant", fix="give each input once")
    if constants and arguments.source:
        fix = "give --constant where the text is written"
        raise ModelError("a stage's text has no inputs that could become constants", where="--constant", fix=fix)
    return constants


def _size_request(arguments: argparse.Namespace) -> tuple[dict[str, tuple[int, ...]], SizeRequest]:
    """Return the inputs with one size for each axis, and the sizes that need the model to be resolved; raises ModelError."""
    choices_by_name: dict[tuple[str, str], tuple[Choice, ...]] = {}
    for name, kind, choices in arguments.shape:
        before = choices_by_name.setdefault((name, kind), choices)
        if before != choices:
            name_of_size = f"input {name!r}" if kind == ":" else f"size {name!r}"
            conflict = f"as {','.join(map(choice_text, before))} and as {','.join(map(choice_text, choices))}"
            raise ModelError(f"--shape gives {name_of_size} twice, {conflict}", fix="give each input and each size once")
    shapes = {
        name: tuple(choice[0].start for choice in choices)
        for (name, kind), choices in choices_by_name.items() if kind == ":" and not any(map(is_several, choices))
    }  # fmt: skip
    request = SizeRequest(
        {name: choices for (name, kind), choices in choices_by_name.items() if kind == ":" and name not in shapes},
        {name: choices[0] for (name, kind), choices in choices_by_name.items() if kind == "="},
        arguments.buckets or DEFAULT_BUCKETS,
    )
    if arguments.buckets and not any(len(span) > 1 for choices in choices_by_name.values() for choice in choices for span in choice):
        fix = "give a range, for example --shape x:1,32..512, or drop --buckets: of a list, every size is planned"
        raise ModelError("--buckets says how many sizes of a range are planned, and there is no range", where="--buckets", fix=fix)
    if request.names and arguments.source:
        raise ModelError("a stage's text has no names of sizes left", where="--shape", fix="give --shape where the text is written")
    if request.plans_several:
        single = {
            "--to": arguments.to, "--export-jobs": arguments.export_jobs, "--dump-dir": arguments.dump_dir, "--report": arguments.report
        }  # fmt: skip
        for option, value in single.items():
            if value:
                raise ModelError(f"{option} is for one size, and --shape gives several", where=option, fix="run it for one of the sizes")
    return shapes, request


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return build_parser().parse_args(argv)
