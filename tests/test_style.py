"""The limits that keep the library readable; each failure names the place."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "workflow"
MODULES = sorted([*LIBRARY.rglob("*.py"), *(ROOT / "scripts").glob("*.py")])
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 5
MAX_SCRIPT_LINES = 80


def _functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _places(check):
    return [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in _functions(path)
        if check(node)
    ]


def test_no_module_is_longer_than_its_limit():
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: n for path, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_scripts_are_thin():
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "scripts").glob("*.py")}
    assert {name: n for name, n in lengths.items() if n > MAX_SCRIPT_LINES} == {}


def test_every_function_fits_a_screen():
    assert _places(lambda node: node.end_lineno - node.lineno >= MAX_FUNCTION_LINES) == []


def test_functions_take_few_positional_arguments():
    def is_long(node):
        names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
        return len([name for name in names if name not in ("self", "cls")]) > MAX_POSITIONAL

    assert _places(is_long) == []


@pytest.mark.parametrize("kind", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_nothing_is_left_for_later(kind):
    assert [path.name for path in MODULES if kind in path.read_text()] == []


def test_each_script_rule_has_the_script_of_its_name():
    rules = "\n".join(path.read_text() for path in (LIBRARY / "rules").glob("*.smk"))
    made = set(re.findall(r"^(?:rule|checkpoint) (\w+):", rules, re.M))
    assert {path.stem for path in (ROOT / "scripts").glob("*.py")} - made == set()


def test_any_selection_of_test_folders_can_be_collected_together():
    """Pytest knows a test module by its file's name alone, and every conftest by the same one."""
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    names = Counter(path.name for path in paths)
    assert [name for name, count in names.items() if count > 1] == []
    users = [path.name for path in paths if re.search(r"^(from|import) conftest\b", path.read_text(), re.M)]
    assert users == []


def test_the_engine_knows_nothing_of_client_servers_stats_or_report():
    forbidden = ("draftbench.client", "draftbench.servers", "draftbench.stats", "draftbench.report")
    users = [
        str(path.relative_to(ROOT))
        for path in (LIBRARY / "draftbench" / "engine").rglob("*.py")
        if any(name in path.read_text() for name in forbidden)
    ]
    assert users == []
