"""Runs commands of the `shardbeam` that PYTHONPATH leads to, for `tests.same_bytes`.

It is a program of its own, because it also runs with an older checkout: it imports nothing else of
the tests, and nothing of the product but its entry point.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TypedDict


class Outcome(TypedDict):
    """What a command has left.

    Attributes:
        exit_code: Its exit code.
        stderr: The end of what it wrote to stderr.
        files: The SHA-256 of each file of its output, by path.
    """

    exit_code: int
    stderr: str
    files: dict[str, str]


def main() -> None:
    """Runs each build into the same folder, and writes the outcomes as JSON."""
    builds, output, outcomes = map(Path, sys.argv[1:])
    # Imported once, because it takes longest; each build then runs in a fork of this process.
    import apache_beam  # noqa: F401

    found = {
        name: _run([*words, "--output", str(output)], output=output)
        for name, words in json.loads(builds.read_text()).items()
    }
    outcomes.write_text(json.dumps(found))


def _run(words: list[str], *, output: Path) -> Outcome:
    with tempfile.TemporaryFile() as stderr:
        process = os.fork()
        if process == 0:
            os.dup2(stderr.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            _become(words)
        _, status = os.waitpid(process, 0)
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
    files = {
        str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.rglob("*"))
        if path.is_file() and "runs" not in path.relative_to(output).parts
    }
    shutil.rmtree(output, ignore_errors=True)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "stderr": text[-1000:],
        "files": files,
    }


def _become(words: list[str]) -> None:
    """Runs a command, and ends this process with its exit code."""
    from shardbeam.__main__ import console

    code: object = 1
    sys.argv = ["shardbeam", *words]
    try:
        console()
    except SystemExit as ended:
        code = ended.code or 0
    except Exception:
        logging.exception("the command ended with an exception")
    sys.stdout.flush()
    sys.stderr.flush()
    # Not `sys.exit`, which would go on in the fork with what its parent has to do next.
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
