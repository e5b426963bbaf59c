"""Look into an artefact: its kernels, where each comes from and why, and why a rule did not apply.

    python -m egraph.inspect model.einsat
    python -m egraph.inspect model.einsat --why conv1
    python -m egraph.inspect model.einsat --why-not merge_convs --at conv1 --model model.onnx
    python -m egraph.inspect model.onnx --text
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egraph.errors import EinsatError, ModelError
from egraph.inspect.sizes import read_sizes, sizes_json, sizes_text
from egraph.optimize.outcome import KernelRow, Outcome, read_outcome
from egraph.optimize.stitched import Stitched, picture
from runtime.artefact import find_folder
from runtime.sizes import main_folder

if TYPE_CHECKING:  # slow to import, and only --why-not needs it
    from egraph.rule import MergeRule, Rule


def kernels_table(outcome: Outcome) -> str:
    """Return the kernels with time, operations, traffic and origin, one per line."""
    lines = [f"{outcome.model}: {outcome.status}, {len(outcome.kernels)} kernels, {outcome.device}"]
    if outcome.unsafe_rules:
        lines.append(f"unsafe: rules without a proof were in use: {', '.join(outcome.unsafe_rules)}")
    lines += outcome.rule_notes
    if outcome.status == "unchanged":
        lines.append("onnxruntime executes the model unchanged; the kernels of the unoptimised program are:")
    lines.append(outcome.subnormals_text)
    if outcome.precision_text:
        lines.append(outcome.precision_text)
    lines.append(f"{'#':>4} {'time us':>9} {'Mflop':>9} {'kbytes':>9} {'flop/byte':>9}  kernel")
    for number, row in enumerate(outcome.kernels or outcome.before):
        time = f"{'' if row.is_measured else '~'}{row.time_us:.1f}"
        numbers = f"{number:>4} {time:>9} {row.flops / 1e6:>9.2f} {row.size_bytes / 1e3:>9.1f} {row.intensity:>9.2f}"
        source = f"  from {', '.join(row.source_nodes)}" if row.source_nodes else ""
        lines.append(f"{numbers}  {row.name}  [{row.implementation}]{source}")
        if row.rules:
            lines.append(f"{'':>46}by {', '.join(row.rules)}")
    for stitched in outcome.stitched:
        lines += picture(stitched)
    return "\n".join(lines)


def find_kernels(rows: Sequence[KernelRow], node: str) -> list[KernelRow]:
    """Return kernels by number, by source node, or by the operators in their name."""
    if node.isdecimal() and int(node) < len(rows):
        return [rows[int(node)]]
    return [row for row in rows if node in row.source_nodes] or [row for row in rows if node in row.name.split(" + ")]


def why(outcome: Outcome, node: str) -> dict[str, Any]:
    """Return the kernels at a node, the rules that led to them, and the kernels of the program before."""
    rows = find_kernels(outcome.kernels or outcome.before, node)
    if not rows:
        names = sorted({name for row in outcome.kernels or outcome.before for name in row.source_nodes})
        if not names:
            raise ModelError("nothing is computed: every output is an input or a constant", fix="do without --why")
        raise ModelError(f"no kernel comes from {node!r}", fix=f"give a kernel's number or one of: {', '.join(names[:20])}")
    rules_by_name = {rule.name: rule for rule in outcome.rules}
    applied = dict.fromkeys(rule for row in rows for rule in row.rules)
    numbers = {number for number, row in enumerate(outcome.kernels) if row in rows}
    sources = {name for row in rows for name in row.source_nodes}
    return {
        "kernels": [asdict(row) for row in rows],
        "rules": [asdict(rules_by_name[name]) for name in applied if name in rules_by_name],
        "derived": [asdict(entry) for entry in outcome.derived if numbers & set(entry.kernels)],
        "stitched": [asdict(entry) for entry in outcome.stitched if numbers & {entry.kernel, *(part.kernel for part in entry.parts)}],
        "before": [asdict(row) for row in outcome.before if sources & set(row.source_nodes)],
    }


def why_text(explanation: dict[str, Any]) -> str:
    from egraph.inspect.derivation import derivation_text
    from egraph.optimize.outcome import Derived

    lines = []
    for row in explanation["kernels"]:
        lines += [f"{row['name']}  [{row['implementation']}]  {row['time_us']:.1f} us", f"  {row['fragment']}"]
        lines += [f"  from {', '.join(row['source_nodes'])}"] if row["source_nodes"] else []
        lines += [f"  equal to it by {', then '.join(row['steps'])}"] if row["steps"] else []
    for rule in explanation["rules"]:
        lines.append(f"rule {rule['name']} ({rule['verdict']}, {rule['rounding']}): {rule['equation']}")
    for entry in explanation["derived"]:
        lines += derivation_text(Derived(**entry))
    for entry in explanation["stitched"]:
        lines += picture(Stitched.from_json(entry))
    if not explanation["rules"]:
        lines.append("no rule made these nodes: they are as in the input, fused where the kernel shows several")
    lines.append("before:")
    lines += [f"  {row['name']}  {row['time_us']:.1f} us  {row['fragment']}" for row in explanation["before"]]
    return "\n".join(lines)


def find_rule(outcome: Outcome, artefact: Path, name: str, files: Sequence[Path]) -> Rule | MergeRule:
    """Return a rule of the given files, a shipped one, or one of the artefact's rule files, which are executed for that."""
    from egraph.errors import RuleError
    from egraph.optimize.artefact import RULES
    from egraph.rewrite.file import load_rules
    from egraph.rules import rule_named

    def of_files(paths: Sequence[Path]) -> Rule | MergeRule | None:
        return next((each for path in paths for each in load_rules(path) if each.name == name), None)

    if rule := of_files(files):
        return rule
    try:
        return rule_named(name)
    except RuleError as error:
        used = outcome.options.get("rule_files", ())
        if not used or files:
            raise
        fix = f"the run also read rules from {', '.join(used)}: give the file with --rules FILE"
        try:
            rule = of_files(sorted((find_folder(artefact) / RULES).glob("*.py")))
        except RuleError as unreadable:  # it may import modules that are not here
            raise RuleError(unreadable.what, where=unreadable.where, fix=fix) from error
        if rule is None:
            raise RuleError(error.what, where=error.where, fix=fix) from error
        return rule


def _gated(rule: Rule | MergeRule, where: Path) -> Rule | MergeRule:
    """Return the rule with the gate's admission, so that a match outside its proof is refused with that reason."""
    from egraph.optimize.admission import admitted
    from egraph.rules import RULES

    (gated,) = admitted([rule], unsafe=True, where={} if any(rule is each for each in RULES) else {rule.name: where})
    return gated


def why_not(
    outcome: Outcome, artefact: Path, rule_name: str, node_name: str, model: Path | None, rule_files: Sequence[Path] = ()
) -> dict[str, Any]:
    """Try a rule at a node of the input model and return the reason if it does not apply."""
    from egraph.inspect.derivation import derivation_rule, explain_derivation
    from egraph.inspect.match import explain, nodes_named
    from egraph.onnx import importer
    from egraph.tolerance import Tolerance

    path = model or main_folder(artefact).resolve().parent / outcome.model
    if not path.is_file():
        raise ModelError(f"the input model {path} is needed and is not there", fix="--model PATH says where it is")
    graph = importer.load(path, shapes={name: tuple(sizes) for name, sizes in outcome.options["shapes"].items()}).graph
    nodes = nodes_named(graph, node_name)
    if not nodes:
        names_of_nodes = sorted({name for names in graph.origins.values() for name in names})
        raise ModelError(f"the model has no node {node_name!r}", fix=f"give one of: {', '.join(names_of_nodes[:20])}")
    skipped = rule_name in outcome.options["skip_rules"]
    if deriving := derivation_rule(rule_name):
        tolerance = Tolerance(**outcome.options["tolerance"])
        attempts = [explain_derivation(deriving, rule_name, node, graph, tolerance) for node in nodes]
        used = sum(rule.uses for rule in outcome.rules if rule_name == rule.name or rule.name.startswith(f"{rule_name} "))
        skipped = skipped or deriving.name in outcome.options["skip_rules"] or not outcome.options.get("derivations", True)
    else:
        rule = _gated(find_rule(outcome, artefact, rule_name, rule_files), path)
        attempts = [asdict(explain(rule, node, graph)) for node in nodes]
        used = {r.name: r.uses for r in outcome.rules}.get(rule_name, 0)
    best = min(attempts, key=lambda e: (not e["applies"], -e["matched_operators"]))
    return {**best, "uses_in_this_artefact": used, "skipped": skipped}


def why_not_text(attempt: dict[str, Any]) -> str:
    lines = [f"{attempt['rule']} at {attempt['node']}: {attempt['matched_operators']} of {attempt['pattern_operators']} operators match"]
    lines.append(("it applies here: " if attempt["applies"] else "it does not apply here: ") + attempt["reason"])
    if attempt["skipped"]:
        lines.append("it was left out of this run by --skip-rule or --no-derivations")
    elif attempt["applies"] and not attempt["uses_in_this_artefact"]:
        lines.append("no shipped kernel uses it: another program was cheaper")
    return "\n".join(lines)


def text(path: Path) -> str:
    """Return a model's graph as text, or the program and the plan of an artefact."""
    from egraph.onnx import importer
    from egraph.optimize.artefact import PROGRAM_TEXT
    from egraph.optimize.stages import format_result
    from egraph.tensor.text import format_graph
    from runtime.artefact import Artefact
    from runtime.errors import ArtefactError

    if path.suffix == ".onnx":
        return format_graph(importer.load(path).graph)
    try:
        artefact = Artefact.open(path)
    except ArtefactError as error:
        raise ModelError(error.what, where=error.where, fix=error.fix) from error
    return (artefact.folder / PROGRAM_TEXT).read_text(encoding="utf-8") + format_result(artefact.plan)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m egraph.inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artefact", type=Path, help="model.einsat, or the model.opt.onnx beside it; with --text also any model.onnx")
    parser.add_argument("--why", metavar="NODE", help="explain the kernel of a node (a kernel's number or a source node's name)")
    parser.add_argument("--why-not", metavar="RULE", help="explain why a rule did not apply at the node given by --at")
    parser.add_argument("--at", metavar="NODE", help="a node of the input model, by its name")
    parser.add_argument("--model", type=Path, help="the input model (default: beside the artefact)")
    help_text = "a rule file (default: those that the artefact keeps); repeatable"
    parser.add_argument("--rules", type=Path, action="append", default=[], metavar="FILE", help=help_text)
    parser.add_argument("--text", action="store_true", help="print the graph of a model, or the program and the plan of an artefact")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """Return the text to print."""
    artefact: Path = arguments.artefact
    is_model = arguments.text and artefact.suffix == ".onnx"
    sizes = None if is_model else read_sizes(artefact)
    if sizes is not None:
        last = find_folder(artefact) / sizes.buckets[-1].folder
        if not (arguments.text or arguments.why or arguments.why_not):
            if arguments.json:
                return json.dumps(sizes_json(artefact, sizes))
            program = f"\n\n{kernels_table(read_outcome(last))}" if len(sizes.buckets) == 1 else ""
            return sizes_text(artefact, sizes) + program
        if len(sizes.buckets) > 1:
            fix = f"name one of its folders, for example {last}"
            raise ModelError("the artefact has a program for each of several sizes", where=str(artefact), fix=fix)
        artefact = last
    if arguments.text:
        return text(artefact).removesuffix("\n")
    outcome = read_outcome(artefact)
    if arguments.why_not:
        if not arguments.at:
            raise ModelError("--why-not needs the place to look at", fix="--why-not RULE --at NODE")
        refused = why_not(outcome, artefact, arguments.why_not, arguments.at, arguments.model, arguments.rules)
        return json.dumps(refused) if arguments.json else why_not_text(refused)
    if arguments.why:
        explanation = why(outcome, arguments.why)
        return json.dumps(explanation) if arguments.json else why_text(explanation)
    return json.dumps(outcome.to_manifest()) if arguments.json else kernels_table(outcome)


def main() -> int:
    try:
        print(run(build_parser().parse_args()))
    except EinsatError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    return 0

