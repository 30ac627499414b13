"""Runs a piece of code in another interpreter."""

from __future__ import annotations

import subprocess
import sys

# Prints the modules that a command line imports, after what it prints itself.
LIST_MODULES = """\
import sys
from shardbeam.pipelines.cli.main import main
code = main(sys.argv[1:])
print("MODULES", *sorted(sys.modules))
sys.exit(code)
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
