"""The number of processes that write shards, by runner and by flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.transforms import write_shards
from shardbeam.transforms.core import resources
from shardbeam.transforms.shards import processes
from shardbeam.transforms.shards.processes import WriterPool
from shardbeam.transforms.shards.writer import ShardSettings
from tests.support.dataset import coco_words, run

SHARDS = ("--set", "output.num_shards=6")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), 3),
        (("--processes", "1"), 0),
        (("--processes=9",), 5),
        (("--direct_num_workers=2", "--processes=2"), 1),
    ],
)
def test_processes(
    flags: tuple[str, ...],
    expected: int,
    shapes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine of four CPUs where any work is much."""
    started: set[int] = set()

    class Counted(WriterPool):
        def __init__(self, settings: ShardSettings, *, workers: int) -> None:
            started.add(workers)
            super().__init__(settings, workers=0)

    monkeypatch.setattr(resources, "usable_cpus", lambda: 4)
    monkeypatch.setattr(resources, "_BYTES_PER_PROCESS", 1)
    monkeypatch.setattr(write_shards, "WriterPool", Counted)
    assert run(*coco_words(shapes, tmp_path / "out", *SHARDS, *flags)).exit_code == 0
    assert started == {expected}


def test_a_look_at_what_would_be_written_starts_none(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WorkerProcess", lambda *_, **__: pytest.fail("started"))
    words = coco_words(shapes, tmp_path / "out", *SHARDS, "--processes", "3")
    assert run("plan", *words[1:]).exit_code == 0
