"""Compares what a command shows with golden files, one for each screen."""

from __future__ import annotations

import os
from pathlib import Path

SCREENS = Path(__file__).parents[1] / "pipelines" / "screens"


def check_screen(name: str, shown: str) -> None:
    """Compares a screen with its golden file; with SHARDBEAM_WRITE_SCREENS=1 it writes the file."""
    path = SCREENS / f"{name}.txt"
    shown = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    if os.environ.get("SHARDBEAM_WRITE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")
