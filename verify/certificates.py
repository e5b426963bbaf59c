"""Certificates: verdicts of proofs, stored under a hash of everything that the proof depends on.

The certificates of the shipped rules are stored beside them, and a test keeps them current (``make prove`` rewrites them). The
certificates of a user's rules are in the user's data directory. If the hash differs, the certificate is ignored and the rule is
proved again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egraph.errors import RuleError
from egraph.rule import MergeRule, Rule, Verdict
from verify.budget import GENERAL_WORK
from verify.fingerprint import rule_key, verifier_key
from verify.proof import Proof

if TYPE_CHECKING:
    from verify.prove import Effort

SHIPPED = "certificates.json"
"""The file in the package ``egraph.rules``."""
FORMAT = 1
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Certificate:
    """The verdict on one rule, and the hash of the texts for which it holds."""

    name: str
    key: str
    verdict: Verdict
    scope: str
    covers: Mapping[str, Any] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    paths: int = 0
    tests: int = 0
    exact_tests: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def is_proved(self) -> bool:
        return self.verdict in ("proved", "proved for these sizes")

    @staticmethod
    def of(proof: Proof, key: str) -> Certificate:
        """Return the certificate of a proof made from texts with this hash."""
        return Certificate(
            proof.rule, key, proof.verdict, proof.scope, dict(proof.covers or {}), tuple(sorted(proof.facts)), proof.paths, proof.cases,
            proof.exact_cases, float(f"{proof.seconds:.2g}"), proof.brief_verdict,
        )  # fmt: skip

    def to_proof(self, rule: Rule | MergeRule) -> Proof:
        """Return the proof that was certified; open obligations are not stored."""
        return Proof(
            self.name, self.verdict, self.scope, self.seconds, self.tests, self.exact_tests, self.paths, rule.rounding,
            frozenset(self.facts), reason=self.reason, covers=self.covers,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "name"}

    @staticmethod
    def from_json(name: str, raw: Mapping[str, Any]) -> Certificate:
        return Certificate(name, **{**raw, "facts": tuple(raw["facts"])})


@dataclass(frozen=True)
class Certificates:
    """A file of certificates by rule name; ``verifier`` is the hash of the prover that made them."""

    verifier: str
    by_name: Mapping[str, Certificate]

    def current(self, rule: Rule | MergeRule) -> Certificate | None:
        """Return the certificate of a rule if it was made for the rule's current text."""
        certificate = self.by_name.get(rule.name)
        return certificate if certificate is not None and certificate.key == rule_key(rule) else None


def shipped_file() -> Path:
    """Return the file of the shipped rules' certificates."""
    return Path(str(resources.files("egraph.rules").joinpath(SHIPPED)))


def shipped() -> Certificates:
    """Return the certificates stored beside the shipped rules; raises RuleError if the file is damaged."""
    file = shipped_file()
    return parse(file.read_text(encoding="utf-8"), str(file)) if file.is_file() else Certificates("", {})


@lru_cache(maxsize=2)
def parse(text: str, where: str) -> Certificates:
    """Read certificates; the cached result must not be modified. Raises RuleError if the text is damaged."""
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']} is not {FORMAT}")
        return Certificates(raw["verifier"], {name: Certificate.from_json(name, each) for name, each in raw["rules"].items()})
    except (ValueError, KeyError, TypeError) as error:
        raise RuleError(f"the certificates cannot be read: {error}", where=where, fix="write them anew: make prove") from error


def format_certificates(certificates: Iterable[Certificate]) -> str:
    """Return certificates as the text of a file: one line per rule, in alphabetical order."""
    ordered = sorted(certificates, key=lambda certificate: certificate.name)
    lines = [f"{json.dumps(each.name)}: {json.dumps(each.to_json(), sort_keys=True)}" for each in ordered]
    body = ",\n".join(lines)
    return f'{{"format": {FORMAT}, "verifier": "{verifier_key()}", "rules": {{\n{body}\n}}}}\n'


def user_folder() -> Path:
    """Return the folder of the certificates of a user's rules."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("einsat")) / "certificates"


def certify(
    rules: Iterable[Rule | MergeRule],
    prover: Callable[[Rule | MergeRule], Proof],
    *,
    folder: Path | None = None,
    tell: Tell = lambda text: None,
) -> dict[str, Certificate]:
    """Return a certificate for every rule: the shipped one, the user's own, or that of a proof made now and stored in ``folder``.

    A shipped certificate is valid for any version of the prover, because a test of the project keeps them consistent.
    """
    shipped_certificates = shipped()
    certified: dict[str, Certificate] = {}
    for rule in rules:
        certificate = shipped_certificates.current(rule)
        if certificate is None:
            certificate = kept(rule, folder)
            if certificate is None:
                tell(f"proving {rule.name}")
                certificate = Certificate.of(prover(rule), rule_key(rule))
                keep(certificate, folder)
        certified[rule.name] = certificate
    return certified


def prove_shipped(names: Sequence[str], effort: Effort) -> list[Proof]:
    """Prove shipped rules that share a proof, in any process.

    Their certificates are stored, so that an interrupted `make prove` can continue. The general proof of a rule is limited by work, not
    time, so that the result is the same on every machine. A counterexample is returned as text, because nodes belong to their process.
    """
    return [_prove_shipped(name, effort) for name in names]


def _prove_shipped(name: str, effort: Effort) -> Proof:
    from egraph.rules import rule_named
    from runtime.garbage_collection import rare_collections
    from verify.prove import prove

    rule = rule_named(name)
    with rare_collections():
        proof = prove(rule, replace(effort, general_work=GENERAL_WORK))
    keep(Certificate.of(proof, rule_key(rule)))
    if proof.counterexample is None:
        return proof
    text = "\n".join((proof.reason, *proof.counterexample.lines(), proof.counterexample.script()))
    return replace(proof, counterexample=None, reason=text)


def _file(key: str, folder: Path | None) -> Path:
    return (folder or user_folder()) / f"{key}-{verifier_key()}.json"


def kept(rule: Rule | MergeRule, folder: Path | None = None) -> Certificate | None:
    """Return the user's certificate of a rule, made by this prover for its current text, if there is one."""
    key = rule_key(rule)
    try:
        certificate = Certificate.from_json(rule.name, json.loads(_file(key, folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: the rule is proved again
    return certificate if certificate.key == key else None


def keep(certificate: Certificate, folder: Path | None = None) -> None:
    """Store a certificate; if it cannot be written, the next run proves the rule again."""
    path = _file(certificate.key, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(certificate.to_json(), file, sort_keys=True)
        os.replace(name, path)
    except OSError:
        return
