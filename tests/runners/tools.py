"""Finds programs that the tests of runners need, and that not every machine has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT

# Where `make runner-tools` puts what it builds and fetches.
TOOLS = PROJECT_ROOT / ".tools"


def find_tool(name: str) -> Path:
    """Finds a program: in `.tools/bin`, on the PATH, or where Go installs.

    Skips the test where there is none.
    """
    folders = [str(TOOLS / "bin"), os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not here; `make runner-tools` gets it")
    return Path(found)
