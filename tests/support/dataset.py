"""Runs the command, in this process or in another, and reads the folder that it leaves."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import google_crc32c

from shardbeam.pipelines.cli import progress
from shardbeam.pipelines.cli.main import main
from shardbeam.transforms.dataset.file_names import RUN_FILE, RUNS_FOLDER
from shardbeam.transforms.staging.lease import FolderLock

COMMAND = Path(sys.executable).with_name("shardbeam")
# Long enough for a process on a busy machine.
TIMEOUT_S = 120
_ABORT_TIMEOUT_S = 20

# The progress that a command writes every ten seconds.
_STEPS = "|".join(("starting", "writing", "committing", *(each.words for each in progress._STEPS)))
_PROGRESS = re.compile(rf"^shardbeam: ({_STEPS})\b.*\n", re.MULTILINE)

# Settings that suit `write_mixed`.
MIXED_SETTINGS = (
    *("--fractions", "train=0.7,validation=0.3"),
    *("--set", "output.num_shards=5"),
    *("--set", "rejects.max_ratio=1"),
    *("--set", "unannotated=keep"),
)

# Files by their path below a folder, `/`-separated.
Tree = dict[str, bytes]


class Run(NamedTuple):
    """The result of a command.

    Attributes:
        exit_code: Its exit code.
        stdout: Its output on stdout.
        stderr: Its output on stderr.
    """

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """What the only line that the command has printed says, an error."""
        assert (self.exit_code != 0, self.stdout) == (True, ""), self
        (line,) = self.stderr.splitlines()
        assert line.startswith("shardbeam: error: ")
        return line.removeprefix("shardbeam: error: ")


def coco_words(shapes: Path | str, output: Path | str, *more: str) -> list[str]:
    """The command line that builds the sample dataset."""
    return [
        *("build", "coco", "--images", f"{shapes}/images"),
        *("--annotations", f"{shapes}/annotations/instances.json"),
        *("--output", str(output), *more),
    ]


def write_mixed(shapes: Path, folder: Path) -> Path:
    """Writes the sample with rejects of each kind and an excluded file.

    Returns:
        `folder`.
    """
    for name in ("images", "annotations"):
        shutil.copytree(shapes / name, folder / name)
    images = sorted((folder / "images").iterdir())
    images[0].unlink()
    images[1].write_bytes(images[1].read_bytes()[:-500])
    images[2].write_bytes(b"")
    (folder / "images" / "notes.txt").write_text("no image")
    shutil.copy(images[3], folder / "images" / "unannotated.jpg")
    path = folder / "annotations" / "instances.json"
    document = json.loads(path.read_bytes())
    document["images"].append(document["images"][4])
    document["images"].append({**document["images"][5], "file_name": "other.png"})
    path.write_text(json.dumps(document))
    return folder


def run(*words: str, exit_code: int | None = None) -> Run:
    """Runs the command in this process, without the lines of progress that a slow machine adds.

    Args:
        words: The command line.
        exit_code: What the exit code must be; None for any.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        mock.patch.object(progress, "_LINE_EVERY_S", math.inf),
    ):
        found = main(words)
    result = Run(found, stdout.getvalue(), without_progress(stderr.getvalue()))
    assert exit_code in (None, found), result
    return result


def start(
    *words: str, cwd: Path, command: Sequence[str | Path] = (COMMAND,)
) -> subprocess.Popen[str]:
    """Starts the installed command in a session of its own, without a PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [*command, *words],
        cwd=cwd,
        # See `finish`.
        env={**environment, "PYTHONFAULTHANDLER": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, timeout_s: float = TIMEOUT_S) -> Run:
    """Waits for a command that was started, and leaves out its lines of progress.

    Raises:
        TimeoutError: It has not ended in time; the message has the stacks of its threads.
    """
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            process.send_signal(signal.SIGABRT)
            stdout, stderr = process.communicate(timeout=_ABORT_TIMEOUT_S)
            raise TimeoutError(f"{error}\n{stdout}\n{stderr}") from None
        except BaseException:
            process.kill()
            raise
    return Run(process.returncode, stdout, without_progress(stderr))


def without_progress(stderr: str) -> str:
    """Leaves out the lines of progress that a slow machine adds."""
    return _PROGRESS.sub("", stderr)


def read_tree(folder: Path) -> Tree:
    """Reads all files below a folder; returns nothing if there is no folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def dataset_files(tree: Tree) -> Tree:
    """Leaves out staged files and files that may differ from run to run."""
    return {
        path: data for path, data in tree.items() if not path.startswith(("runs/", ".staging/"))
    }


def read_dataset(folder: Path) -> Tree:
    """Reads the files that must be equal in every run, and checks that staging is empty."""
    assert not (folder / ".staging").exists()
    return dataset_files(read_tree(folder))


def last_run(folder: Path) -> dict[str, Any]:
    """Reads the record of the run that committed last."""
    record: dict[str, Any] = json.loads(run_records(folder)[-1].read_bytes())
    return record


@contextlib.contextmanager
def held(output: Path) -> Iterator[None]:
    """Holds an output as another run does."""
    lock = FolderLock(str(output))
    assert lock.take() or lock.take()
    try:
        yield
    finally:
        lock.release()


def run_records(folder: Path) -> list[Path]:
    """Finds the records of the runs that committed, the oldest first."""
    files = sorted((folder / "runs").iterdir())
    return [file for file in files if RUN_FILE.fullmatch(f"{RUNS_FOLDER}/{file.name}")]


def check_whole(tree: Mapping[str, bytes]) -> bool:
    """Returns whether readers see a dataset; if so, checks that it is complete.

    Every file of the manifest must exist with its size and checksum, and `dataset_info.json`,
    which is not in the manifest, must list the same shards.
    """
    if "dataset_info.json" not in tree:
        return False
    manifest = json.loads(tree["manifest.json"])
    shards = {name: split["shards"] for name, split in manifest["splits"].items()}
    listed = [(file["path"], file["size_bytes"], file["crc32c"]) for file in manifest["files"]] + [
        (shard["path"], shard["num_bytes"], shard["crc32c"])
        for split in shards.values()
        for shard in split
    ]
    for path, size_bytes, crc32c in listed:
        data = tree[path]
        assert (len(data), f"{google_crc32c.value(data):08x}") == (size_bytes, crc32c), path
    info = json.loads(tree["dataset_info.json"])
    assert {split["name"]: list(map(int, split["shardLengths"])) for split in info["splits"]} == {
        name: [shard["examples"] for shard in split] for name, split in shards.items()
    }
    return True
