"""The engine is small enough to be read in an afternoon, and stays so."""

import ast
from pathlib import Path

import draftbench.engine

MAX_CODE_LINES = 2000


def code_lines(source: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documented.update(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        1 for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in documented
    )


def test_a_docstring_a_comment_and_a_blank_line_are_not_code():
    assert (
        code_lines(
            '"""Module."""\n\n# why\nx = 1\n\n\ndef f():\n    """One.\n\n    Two.\n    """\n    return x\n'
        )
        == 3
    )


def test_the_engine_has_at_most_2000_lines_of_code():
    package = Path(draftbench.engine.__path__[0])
    sizes = {str(path.relative_to(package)): code_lines(path.read_text()) for path in package.rglob("*.py")}
    assert sum(sizes.values()) <= MAX_CODE_LINES, sizes
