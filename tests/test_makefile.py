"""`make` shows how far it is while it installs a lock file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from tests.conftest import PROJECT_ROOT
from tests.mutants import MODULES

LOCK = "requirements-base.lock"
# pip names the lines for other systems as it does, and installs nothing. The rest is made up.
PIP = """\
#!/bin/sh
case "$*" in *--editable*) exit 0; esac
"{python}" -m pip install --no-index "$@" 2>&1 | grep ^Ignoring
echo "Collecting a==1"
echo "  Downloading a-1.whl (1 kB)"
echo "Collecting b==1"
echo "  Using cached b-1.whl (2 kB)"
"""


def test_it_counts_the_packages_of_this_system_only(tmp_path: Path) -> None:
    for name in (LOCK, "pyproject.toml"):
        shutil.copy(PROJECT_ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    pip = tmp_path / "pip"
    pip.write_text(PIP.format(python=sys.executable), encoding="utf-8")
    pip.chmod(0o755)
    makefile = PROJECT_ROOT / "Makefile"
    run = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-f",
            makefile,
            "PYTHON=true",
            f"PIP={pip}",
            ".venv/.base",
        ],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
    )
    lines = [line for line in (tmp_path / LOCK).read_text("utf-8").splitlines() if "==" in line]
    pins = [Requirement(line.rstrip("\\ ")) for line in lines]
    number = sum(pin.marker is None or pin.marker.evaluate() for pin in pins)
    assert 50 < number < len(pins)
    assert run.stdout.splitlines()[1:] == [
        f"  1 of {number}: a==1 (1 kB)",
        f"  2 of {number}: b==1 (2 kB)",
    ]


def test_the_modules_of_the_mutants_and_their_tests_are_there() -> None:
    paths = [f"{name.replace('.', '/')}.py" for name in MODULES]
    paths += [f"tests/{name}" for names in MODULES.values() for name in names]
    assert [path for path in paths if not (PROJECT_ROOT / path).is_file()] == []
