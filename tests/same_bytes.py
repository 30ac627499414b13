"""Builds every sample with two versions of the code, and compares what both have written.

`make same-bytes COMMIT=<commit>` runs it, for changes of the code that must not change datasets.
It compares the exit codes and all files but those in `runs/`, which differ from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import NO_SHARED_DATA, PROJECT_ROOT, SHARED_DATA
from tests.support.archive_files import write_files
from tests.support.format_samples import SAMPLES
from tests.support.odd_samples import BAD_INPUTS, ODD_SAMPLES
from tests.support.run_builds import Outcome

# The other kinds of file that a dataset can be written as.
CONTAINERS = ("array_record", "webdataset", "hf_parquet")
PROGRAM = PROJECT_ROOT / "tests" / "support" / "run_builds.py"


def main() -> int:
    """Prints the differences; returns 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="the commit whose datasets are expected")
    base = parser.parse_args().base
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builds = dict(_place_samples(folder / "data"))
        (folder / "builds.json").write_text(json.dumps(builds))
        worktree = ("git", "-C", str(PROJECT_ROOT), "worktree")
        subprocess.run([*worktree, "add", "--quiet", "--detach", folder / "base", base], check=True)
        try:
            before = _run_builds(folder / "base", folder=folder)
        finally:
            subprocess.run([*worktree, "remove", "--force", folder / "base"], check=True)
        after = _run_builds(PROJECT_ROOT, folder=folder)
    differing = 0
    for name in builds:
        lines = list(_compare(before[name], after[name]))
        differing += bool(lines)
        if lines:
            print(name, *lines, sep="\n    ")
    print(f"{len(builds)} builds, {differing} of them differ")
    return 1 if differing else 0


def _place_samples(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Writes the inputs, and yields the name and the words after `shardbeam` of each build."""
    folder.mkdir()
    for number, sample in enumerate(SAMPLES):
        placed = sample.place(folder / f"sample-{number}", shared_data=_shared_data)
        words = ["build", *sample.command(placed)]
        yield sample.name, words
        for container in CONTAINERS:
            yield f"{sample.name}, {container}", [*words, "--set", f"output.container={container}"]
    for number, odd in enumerate(ODD_SAMPLES):
        yield odd.name, ["build", *odd.command(odd.place(folder / f"odd-{number}"))]
    for number, bad in enumerate(BAD_INPUTS):
        placed = write_files(folder / f"bad-{number}", bad.files)
        yield f"{bad.name} (ends the run)", ["build", *bad.command(placed)]


def _shared_data() -> Path:
    if not SHARED_DATA.is_dir():
        sys.exit(NO_SHARED_DATA)
    return SHARED_DATA


def _run_builds(checkout: Path, *, folder: Path) -> dict[str, Outcome]:
    """Runs all builds with the code of a checkout."""
    outcomes = folder / "outcomes.json"
    subprocess.run(
        [sys.executable, PROGRAM, folder / "builds.json", folder / "output", outcomes],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        check=True,
    )
    found: dict[str, Outcome] = json.loads(outcomes.read_text())
    return found


def _compare(before: Outcome, after: Outcome) -> Iterator[str]:
    if before["exit_code"] != after["exit_code"]:
        yield f"exit code {before['exit_code']}, now {after['exit_code']}: {after['stderr']}"
    old, new = before["files"], after["files"]
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            change = "new" if path not in old else "gone" if path not in new else "differs"
            yield f"{path}: {change}"


if __name__ == "__main__":
    sys.exit(main())
