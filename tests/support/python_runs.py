"""Runs a piece of code in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys

# Prints the modules that a command line imports, after what it prints itself.
LIST_MODULES = """\
import sys
from shardbeam.pipelines.cli import main
code = main(sys.argv[1:])
print("MODULES", *sorted(sys.modules))
sys.exit(code)
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def run_without_reader(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line whose stdout is a pipe that nothing reads."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        return subprocess.run(
            [sys.executable, "-c", LIST_MODULES, *words],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
