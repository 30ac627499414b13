"""Reads code and commands from the documentation's pages."""

from __future__ import annotations

import re
import shlex
import textwrap

from tests.conftest import PROJECT_ROOT


def blocks(page: str, language: str) -> list[str]:
    """Returns a page's code in one language; the page is named from the project's folder."""
    text = (PROJECT_ROOT / page).read_text(encoding="utf-8")
    # Each block with its end, which looks like the beginning of a block without a language. Blocks
    # in a list are indented.
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, name, code in found if name == language]


def commands(page: str) -> list[list[str]]:
    """Returns the words of each `shardbeam` command that a page shows."""
    return [
        shlex.split(line, comments=True)
        for block in blocks(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("shardbeam ")
    ]


def table_rows(page: str) -> list[list[str]]:
    """Returns the cells of each row of a page's tables, code without its backticks."""
    text = (PROJECT_ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.split(" | ")] for row in found]


def reading_rows() -> dict[str, str]:
    """Returns the expressions that the first page shows for libraries, by their module."""
    found = [code for _, code, *_ in table_rows("README.md") if "demo/" in code or "pairs" in code]
    return {code.partition(".")[0]: code for code in found}
