"""Judge corpora from the command line: print one line per entry and a summary, or JSON; an interrupt keeps the decisions so far."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence

from bench.corpora.judge import Judgement, Pains, Prover, judge_all
from bench.corpora.read import read_corpus
from bench.corpora.results import Found, summary, write
from egraph.errors import RuleError
from egraph.rule import Rule
from runtime.garbage_collection import rare_collections
from verify.budget import Exhausted, at_most
from verify.proof import Proof
from verify.prove import Effort, prove

FEW = 8
"""Up to this many entries are shown with all details."""
INTERRUPTED = 130
"""The exit code of an interrupted command, as shells expect it."""


def run(options: argparse.Namespace) -> int:
    """Judge what was asked for, print and write it; return the exit code."""
    try:
        corpora = {path: [entry for entry in read_corpus(path) if options.only in entry.name] for path in options.corpus}
    except RuleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    pains = Pains(tests=options.tests, seed=options.seed)
    prover = None if options.test_only else prover_of(pains, options.work)
    start = time.process_time()
    results: list[Found] = []
    interrupted = False
    with rare_collections():
        for path, entries in corpora.items():
            results.append(Found(path.stem, len(entries)))
            began = time.process_time()
            try:
                for judgement in judge_all(entries, prover, pains):
                    results[-1].judged.append(judgement)
                    _progress(results[-1], as_json=options.json)
            except KeyboardInterrupt:
                interrupted = True
            if not options.json:
                print(summary(results[-1], time.process_time() - began), flush=True)
            if interrupted:
                break
    seconds = time.process_time() - start
    if options.json:
        print(_as_json(results, seconds))
    if options.results is not None:
        write(options.results, results, seconds, _command(options))
    if interrupted:
        return INTERRUPTED
    return 1 if any(each.agrees is False for corpus in results for each in corpus.judged) else 0


def prover_of(pains: Pains, work: int) -> Prover:
    """Return a prover that abandons a rule after so much work; it runs no tests, because judging tests rules itself."""
    effort = Effort(tests=0, tries=pains.tries, seed=pains.seed, open_cases=1, applications=0)

    def prover(rule: Rule) -> Proof:
        try:
            with at_most(work):
                return prove(rule, effort)
        except Exhausted:
            return Proof(rule.name, "unknown", "", 0.0, 0, 0, 0, rule.rounding, reason=f"given up after {work} units of work")

    return prover


def _command(options: argparse.Namespace) -> str:
    """Return the command that was given, without the folders of the files."""
    given = [str(path.name) for path in options.corpus]
    given += ["--only", options.only] if options.only else []
    given += ["--test-only"] if options.test_only else []
    return f"python -m bench.corpora {' '.join(given)} --tests {options.tests} --seed {options.seed} --work {options.work}"


def _progress(result: Found, *, as_json: bool) -> None:
    if as_json:
        if sys.stderr.isatty():
            print(f"\r{result.name}: {len(result.judged)} of {result.entries}", end="", file=sys.stderr, flush=True)
        return
    width = len(str(result.entries))
    lines = _lines(result.judged[-1], verbose=result.entries <= FEW)
    print("\n".join([f"{len(result.judged):{width}}/{result.entries} {next(lines)}", *lines]), flush=True)


def _lines(judgement: Judgement, *, verbose: bool) -> Iterator[str]:
    agreement = {True: "", False: "  DISAGREES with the corpus", None: ""}[judgement.agrees]
    guard = f"  if {judgement.guard}" if judgement.guard else ""
    same = f"  as {judgement.repeats}" if judgement.repeats else f"  {1e3 * judgement.seconds:.0f} ms"
    yield f"{judgement.entry.name:24} {judgement.decision}{guard}{same}{agreement}"
    if verbose or judgement.agrees is False:
        yield from (f"    {line}" for line in (judgement.entry.text, judgement.note, *judgement.reason.splitlines()) if line)
    elif judgement.decision in ("unknown", "not expressible") and judgement.reason:
        yield f"    {judgement.reason.splitlines()[0][:160]}"


def _as_json(results: Sequence[Found], seconds: float) -> str:
    entries = [{"corpus": corpus.name, **each.to_json()} for corpus in results for each in corpus.judged]
    total = Found("", sum(corpus.entries for corpus in results), [each for corpus in results for each in corpus.judged])
    return json.dumps({"entries": entries, "summary": total.counts, "cpu_seconds": round(seconds, 2)}, indent=1)
