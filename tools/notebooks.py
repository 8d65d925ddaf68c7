"""The scripts of examples/ as notebooks with what they show: ``python tools/notebooks.py FOLDER``. Needs the extra ``docs``.

The scripts are the source: what stands between two blank lines is a cell, ``main`` is unfolded, and a cell that ends with a result
of the package shows it. Nothing else of a notebook is kept anywhere.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHOWN = ("fo.plan", "fo.what_if", "fo.growth", "fo.schedule")
"""Calls whose results a notebook shows as pages and tables."""


def statements(source: str) -> Iterator[ast.stmt]:
    """What a script does, without its docstring, those of ``main`` in its place."""
    for one in ast.parse(source).body[1:]:
        if isinstance(one, ast.FunctionDef) and one.name == "main":
            yield from one.body
        elif not isinstance(one, ast.If) and getattr(one, "module", "") != "__future__":
            yield one


def cells(source: str) -> list[str]:
    """The code cells of a script."""
    lines, found, shown = source.splitlines(), [""], False
    for one in statements(source):
        first = one.lineno - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        if shown or not lines[first - 1] or lines[first - 1].startswith("def main"):
            found.append("")
        found[-1] += textwrap.dedent("\n".join(lines[first : one.end_lineno])) + "\n"
        shown = isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and ast.unparse(one.value.func) in SHOWN
        if shown:
            found[-1] += ast.unparse(one.targets[0])
    return [cell.strip() for cell in found if cell]


def notebook(script: Path, run: bool) -> Any:
    """The notebook of a script, run in its folder or not.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        A cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    source = script.read_text(encoding="utf-8").replace("Path(__file__).with_name(", "Path(")
    told = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    new = nbformat.v4
    parts = [new.new_markdown_cell(f"## {script.stem}\n\n{told}"), *map(new.new_code_cell, cells(source))]
    made = new.new_notebook(cells=parts)
    if not run:
        return made
    place = {"metadata": {"path": str(script.parent)}}
    return NotebookClient(made, timeout=600, record_timing=False, resources=place).execute()


def page(made: Any) -> str:
    """A notebook as a part of a page: code, and what it shows."""
    parts = []
    for cell in made.cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
            parts.append(data.get("text/html") or f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def write(folder: Path, run: bool = True) -> str:
    """Write every notebook into a folder, and give the page that shows all, which is to lie beside it."""
    import nbformat

    folder.mkdir(parents=True, exist_ok=True)
    shown = "# Notebooks\n\nThe [scripts](examples.md) as notebooks, run when this site was built.\n"
    for script in sorted(EXAMPLES.glob("*.py")):
        made = notebook(script, run)
        nbformat.write(made, folder / f"{script.stem}.ipynb")
        shown += f"\n{page(made)}\n[{script.stem}.ipynb]({folder.name}/{script.stem}.ipynb)\n"
    return shown


if __name__ == "__main__":
    write(Path(sys.argv[1]))
