"""The documentation is executed: files are written, changes applied and commands run, and the output must be as documented.

Blocks, in the order of a section:
* ``python``, ``c``: a first comment line with a path makes it a file; without one, Python is run.
* ``diff``: applied to the copy of the project that the section works on.
* ``console``: lines after ``$`` are commands; the other lines must appear in their output, in this order, ``...`` being a gap.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from egraph.derive.registry import DERIVATIONS
from egraph.optimize.admission import PARTIAL
from egraph.rules import RULES
from tests.pages import PACKAGES
from tests.pages import PAGES as GENERATED
from tests.support.paths import ROOT

TUTORIALS = ("docs/writing-rules.md", "docs/rules-tutorial.md", "docs/derivations.md", "docs/partial.md")
FOLDERS = ("egraph", "verify", "lower", "runtime", "tests", "docs")
OTHER_OPTIONS = {"--into", "--strict", "--update-golden"}
"""Options of other tools that the pages name."""
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?:#|/\*) ([\w./-]+\.\w+)(?: \*/)?$")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))))


@dataclass(frozen=True)
class Section:
    """A part of a page that is executed separately, with its code blocks."""

    page: str
    title: str
    blocks: tuple[tuple[str, str], ...]


def sections(page: str) -> list[Section]:
    """Return the recipes of a page: each second-level section separately, or a tutorial as a whole."""
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = [text.removeprefix("# ")] if page in TUTORIALS else re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return [Section(page, part.splitlines()[0], tuple(FENCE.findall(part))) for part in parts]


def copy_of_project(folder: Path) -> Path:
    """Return a copy of the project with its and its libraries' bytecode, which is valid for files of the same time and size."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
        bytecode = Path(sys.pycache_prefix or "none", *(ROOT / name).parts[1:])
        if bytecode.exists():
            shutil.copytree(bytecode, Path(folder, "bytecode", *(folder / name).parts[1:]))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for library in sorted({Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib")}):  # one may be inside the other
        kept, shared = (Path(place, *library.parts[1:]) for place in (sys.pycache_prefix or folder / "none", folder / "bytecode"))
        if not shared.exists():
            kept.mkdir(parents=True, exist_ok=True)
            shared.parent.mkdir(parents=True, exist_ok=True)
            shared.symlink_to(kept)
    return folder


def run(command: str | list[str], folder: Path, python: str = sys.executable) -> str:
    """Return a command's output; ``python`` runs the copy in a folder, or is a fork of a process that has imported the project."""
    is_copy = python == sys.executable
    environment = {
        **os.environ,
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder if is_copy else ROOT),
        **({"PYTHONPYCACHEPREFIX": str(folder / "bytecode")} if is_copy else {}),
        "XDG_DATA_HOME": str(folder / ".data"),
        "COLUMNS": "120",
    }
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    output = done.stdout + done.stderr
    assert "Traceback" not in output, f"{command}\n{output}"
    assert isinstance(command, str) or done.returncode == 0, output
    return output


def execute(language: str, text: str, folder: Path, python: str = sys.executable) -> None:
    """Execute one block."""
    first, _, rest = text.partition("\n")
    named = FILE.match(first)
    match language:
        case "python" | "c" if named:
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest, encoding="utf-8")
        case "python":
            run([python, "-c", text], folder, python)
        case "diff":
            (folder / "change.diff").write_text(text, encoding="utf-8")
            run(["git", "apply", "change.diff"], folder)
        case "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                output = run(command, folder, python)
                assert_in_order(expected, output, command)


def assert_in_order(expected: str, output: str, command: str) -> None:
    position = 0
    for line in expected.splitlines():
        if line.strip() in ("", "..."):
            continue
        found = output.find(line.strip(), position)
        assert found >= 0, f"$ {command}\n{line!r} is not in its output (from there on):\n{output[position:]}"
        position = found + len(line.strip())


RECIPES = [
    section
    for page in ("CONTRIBUTING.md", *TUTORIALS)
    for section in sections(page)
    if any(language in ("python", "console", "diff") for language, _ in section.blocks)
]


@pytest.mark.parametrize("section", RECIPES, ids=lambda section: f"{Path(section.page).stem}: {section.title}")
def test_recipes_do_what_they_say(section: Section, tmp_path: Path, stand_in: str) -> None:
    """A recipe changes a copy of the project; a tutorial has its own files, and its commands run as forks."""
    is_tutorial = section.page in TUTORIALS
    folder = tmp_path if is_tutorial else copy_of_project(tmp_path)
    for language, text in section.blocks:
        assert not is_tutorial or language != "diff", "a tutorial changes nothing of the project"
        execute(language, text, folder, stand_in if is_tutorial else sys.executable)


def test_every_recipe_is_executed() -> None:
    recipes = [section.title for section in RECIPES if section.page == "CONTRIBUTING.md"]
    assert recipes == ["Add a rule", "Add an operator", "Add a library", "Add a device"]
    assert all(any(section.page == page for section in RECIPES) for page in TUTORIALS)


def test_a_promise_that_is_not_kept_is_noticed(tmp_path: Path) -> None:
    execute("console", "$ echo one && echo two\none\n...\ntwo\n", tmp_path)
    with pytest.raises(AssertionError, match="'one' is not in its output"):
        execute("console", "$ echo one && echo two\ntwo\none\n", tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in LINK.findall(FENCE.sub("", text)):
        if target.startswith("http"):
            continue
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {target}, which is not there"
        if anchor and path.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {"#" + re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page} links to {target}{anchor}"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse prints options in another way")
@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == GENERATED[name](), "make docs writes it anew"


def test_every_module_is_listed_in_some_folder() -> None:
    """A new package needs a heading; a package of one docstring-less __init__.py needs none."""
    folders = {str(path.parent.relative_to(ROOT)) for package in FOLDERS[:4] for path in (ROOT / package).rglob("*.py")}
    assert folders == set(PACKAGES), "name the folder in tests/pages.py"


def test_options_named_in_the_pages_exist() -> None:
    """Every --option that the pages name is an option of a command."""
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / "docs/command-line.md").read_text(encoding="utf-8"))) | OTHER_OPTIONS
    for path in (ROOT / "bench").glob("*.py"):
        known |= set(re.findall(r'add(?:_argument)?\("(--[a-z-]+)"', path.read_text(encoding="utf-8")))
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / page).read_text(encoding="utf-8")))
        assert named <= known, f"{page} names {sorted(named - known)}, which no command has"


def test_rules_named_in_commands_exist() -> None:
    """A rule named after --why-not or --skip-rule is shipped or defined on the same page."""
    shipped = {rule.name for rule in (*RULES, *DERIVATIONS, *PARTIAL)}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"python -m .*--(?:why-not|skip-rule) ([a-z]\w+)", text))
        assert named <= shipped | set(re.findall(r"^def (\w+)", text, flags=re.MULTILINE)), f"{page}: {sorted(named - shipped)}"


@pytest.mark.parametrize("page", [*PAGES, "bench/results/README.md"])
def test_code_named_in_the_pages_exists(page: str) -> None:
    """`package.module.name` can be imported, and `folder/file` exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    packages = "egraph|verify|lower|runtime|bench|tests"
    written = {named[1] for _, block in FENCE.findall(text) if (named := FILE.match(block.partition("\n")[0]))}
    for name in sorted(set(re.findall(rf"`((?:{packages})(?:\.\w+)+)[`(:]", text))):
        module, *members = name.split(".")
        while members and is_module(f"{module}.{members[0]}"):
            module = f"{module}.{members.pop(0)}"
        assert not members or attrgetter(".".join(members))(import_module(module)) is not None, f"{page} names {name}"
    for path in sorted(set(re.findall(rf"`((?:{packages}|docs)/[\w./]+)`", text))):
        assert (ROOT / path).exists() or path in written, f"{page} names {path}"


def is_module(name: str) -> bool:
    return (ROOT / f"{name.replace('.', '/')}.py").exists() or (ROOT / name.replace(".", "/")).is_dir()
