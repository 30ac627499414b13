"""No command ends with a traceback because stdout or stderr is closed, full or unread."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.builds import build
from tests.support.dataset import COMMAND, TIMEOUT_S, coco_words, run, without_progress

CLOSED, FULL, HEAD = ">&-", ">/dev/full", "| head -0"
NO_SPACE = "; stdout: No space left on device"


class Ended(NamedTuple):
    exit_code: int
    stderr: str


@pytest.fixture(scope="module")
def dataset(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("streams") / "out"
    build(*coco_words(shapes, "")[1:-2], output=output)
    return output


def run_in_shell(words: list[str], *redirections: str, cwd: Path) -> Ended:
    """Runs the installed command; a pipe does not hide its exit code."""
    script = f'set -o pipefail; "$0" "$@" {" ".join(redirections)}'
    ended = subprocess.run(
        ["bash", "-c", script, COMMAND, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert ended.stdout == ""
    return Ended(ended.returncode, without_progress(ended.stderr))


@pytest.mark.parametrize(
    ("redirection", "cause", "flags"),
    [
        pytest.param(CLOSED, "", (), marks=pytest.mark.slow),
        (FULL, NO_SPACE, ("--json",)),
        pytest.param(HEAD, "", ("--json",), marks=pytest.mark.slow),
        pytest.param(FULL, NO_SPACE, (), marks=pytest.mark.slow),
    ],
)
def test_a_build_says_that_it_is_committed(
    redirection: str, cause: str, flags: tuple[str, ...], shapes: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = coco_words(shapes, output, *flags)
    for what in ("committed", "unchanged"):
        ended = run_in_shell(words, redirection, cwd=tmp_path)
        assert ended.exit_code == 0
        last = ended.stderr.splitlines()[-1]
        assert last == f"shardbeam: {what}: {output}{cause}"
        words.append("--if-changed")
    assert run("verify", str(output)).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("redirection", [FULL, CLOSED])
def test_a_refusal_keeps_its_exit_code(redirection: str, shapes: Path, tmp_path: Path) -> None:
    words = coco_words(shapes, tmp_path / "out", "--set", "expect.min_images=1000")
    ended = run_in_shell(words, redirection, cwd=tmp_path)
    assert ended.exit_code == 3
    assert ended.stderr.splitlines()[-1].startswith("shardbeam: error: refused, nothing committed")


@pytest.mark.parametrize(
    "redirection", [HEAD, *(pytest.param(each, marks=pytest.mark.slow) for each in (CLOSED, FULL))]
)
def test_damage_keeps_its_exit_code(redirection: str, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "out")
    (tmp_path / "out" / "labels.txt").write_text("x")
    ended = run_in_shell(["verify", "out", "--quick"], redirection, cwd=tmp_path)
    assert ended == (5, "shardbeam: error: damaged: out: 1 problem\n")


OTHERS = (
    "--help",
    "--version",
    "formats",
    "show {}",
    "stats {}",
    "verify {} --quick",
    "diff {} {}",
)


# All of them print with `write_stdout`; `show` ends early where nobody reads.
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=() if line in ("--help", "show {}") else pytest.mark.slow)
        for line in OTHERS
    ],
)
def test_other_commands(line: str, dataset: Path, tmp_path: Path) -> None:
    words = [word.format(dataset) for word in line.split()]
    for redirection in (CLOSED, HEAD):
        assert run_in_shell(words, redirection, cwd=tmp_path) == (0, "")
    full = run_in_shell(words, FULL, cwd=tmp_path)
    assert full == (1, "shardbeam: error: stdout: No space left on device\n")


@pytest.mark.parametrize(
    "redirection",
    [
        "<&- >&- 2>&-",
        *(
            pytest.param(some, marks=pytest.mark.slow)
            for some in ("2>/dev/full", "2>&-", ">&- 2>&-")
        ),
    ],
)
def test_without_stderr_the_exit_code_is_the_same(
    redirection: str, shapes: Path, tmp_path: Path
) -> None:
    # The next opened file must not take the place of a closed stream.
    words = coco_words(shapes, tmp_path / "out", "--json", "--processes", "2")
    quiet = "" if ">&- 2" in redirection else ">/dev/null"
    assert run_in_shell(words, redirection, quiet, cwd=tmp_path) == (0, "")
    assert run("verify", str(tmp_path / "out")).exit_code == 0
    assert run_in_shell(["show", "none"], redirection, quiet, cwd=tmp_path) == (1, "")
