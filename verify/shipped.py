"""Prove a shipped rule by its name, wherever a runner runs that, with a bounded processor time."""

from __future__ import annotations

import math
from dataclasses import replace

from egraph.rules import rule_named
from runtime.garbage_collection import rare_collections
from verify.certificates import Certificate, keep
from verify.fingerprint import rule_key
from verify.proof import Proof
from verify.prove import Effort, prove


def prove_shipped(name: str, effort: Effort, seconds: float) -> Proof:
    """Return the proof, and keep its certificate; beyond ``seconds`` of processor time the general proof is given up.

    So that an interrupted `make prove` goes on where it was. A counterexample travels as text, since nodes are objects of
    their process.
    """
    rule = rule_named(name)
    with rare_collections():
        proof = prove(rule, replace(effort, seconds=math.inf, general_seconds=seconds))
    keep(Certificate.of(proof, rule_key(rule)))
    if proof.counterexample is None:
        return proof
    text = "\n".join((proof.reason, *proof.counterexample.lines(), proof.counterexample.script()))
    return replace(proof, counterexample=None, reason=text)
