"""Prove a shipped rule by its name, in a process of its own."""

from __future__ import annotations

from dataclasses import replace

from egraph.rules import rule_named
from verify.proof import Proof
from verify.prove import Effort, prove


def prove_shipped(name: str, effort: Effort) -> Proof:
    """Return the proof; a counterexample travels as text, since nodes are objects of their process."""
    proof = prove(rule_named(name), effort)
    if proof.counterexample is None:
        return proof
    text = "\n".join((proof.reason, *proof.counterexample.lines(), proof.counterexample.script()))
    return replace(proof, counterexample=None, reason=text)
