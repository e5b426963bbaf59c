"""Generated rules are compared with a list of rules that others found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.generated import compare, main, read_list
from verify.generate.run import Settings, generate
from verify.random_testing import check_rule


def _listed(name: str, verdict: str, left: object, right: object, ranks: dict[str, int], size: int = 2) -> dict[str, object]:
    return {
        "id": name, "verdict": verdict, "n_src_ops": size, "n_dst_ops": size, "equations": [{"lhs_tree": left, "rhs_tree": right}],
        "variables": [{"name": variable, "rank": rank} for variable, rank in ranks.items()],
    }  # fmt: skip


def test_comparison_with_a_list(tmp_path: Path) -> None:
    """True rules within reach are derived; a concatenation that is right only for grouped convolutions is set apart."""
    conv = ["conv2d", 1, 1, 0, 0]
    a, b, c, d = ("?a", "?b", "?c", "?d")
    matrices, images = dict.fromkeys("abc", 2), dict.fromkeys("abcd", 4)
    apart, together = ["concat", 1, [*conv, a, c], [*conv, b, d]], [*conv, ["concat", 1, a, b], ["concat", 0, c, d]]
    rules = [
        _listed("associative", "sound", ["matmul", ["matmul", a, b], c], ["matmul", a, ["matmul", b, c]], matrices),
        _listed("relu", "sound", ["relu", ["relu", ["relu", a]]], ["relu", a], images, 3),
        _listed("other operators", "sound", ["relu", ["ewmul", a, b]], ["relu", ["ewmul", b, a]], matrices),
        _listed("grouped", "sound", apart, together, images),
        _listed("false", "UNSOUND even for ungrouped", ["relu", ["ewadd", a, b]], ["ewadd", ["relu", a], ["relu", b]], matrices),
    ]  # fmt: skip
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"rules": rules}))
    generated = generate(Settings(("matmul", "relu", "concat")), lambda rule: check_rule(rule, cases=12, tries=1000).passed or None)
    result = compare(read_list(path), [equation for equation, _ in generated.equations], generated.rules, generated.settings.operators, 2)
    assert result.derived == ("associative", "relu") and result.missing == () and result.beyond == ("other operators",)
    assert result.false_but_derived == () and 0 < result.new < result.of


def test_a_file_that_is_no_list_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.json"), "--ops", "add"]) == 2
    assert "not a list of substitutions" in capsys.readouterr().err


def test_the_command_prints_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commutes = _listed("commutes", "sound", ["ewadd", "?a", "?b"], ["ewadd", "?b", "?a"], {"a": 2, "b": 2}, 1)
    (tmp_path / "list.json").write_text(json.dumps({"rules": [commutes]}))
    assert main([str(tmp_path / "list.json"), "--ops", "add", "--depth", "1"]) == 0
    assert "1 are within reach: 1 follow (100 %)" in capsys.readouterr().out
