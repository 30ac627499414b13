"""What the pages show: their code, and the commands in it."""

from __future__ import annotations

import re
import shlex

from tests.conftest import PROJECT_ROOT


def blocks(page: str, language: str) -> list[str]:
    """The code in a language that a page, named from the project's folder, shows."""
    text = (PROJECT_ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """The words of each `shardbeam` command that a page shows."""
    return [
        shlex.split(line, comments=True)
        for block in blocks(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("shardbeam ")
    ]
