"""How many processes write shards, by the runner and by the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.dataset import coco_words, run
from transforms import shard_writers, write_to_tfrecord
from transforms.helper_process import HelperProcess
from transforms.shard_encoder import ShardEncoderSettings

SHARDS = ("--set", "output.num_shards=6")


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> list[ShardEncoderSettings]:
    """The helper processes that are started, on a machine of four CPUs where any work is much."""
    started: list[ShardEncoderSettings] = []

    class Counted(HelperProcess):
        def __init__(self, settings: ShardEncoderSettings) -> None:
            started.append(settings)
            super().__init__(settings)

    monkeypatch.setattr(write_to_tfrecord, "usable_cpus", lambda: 4)
    monkeypatch.setattr(write_to_tfrecord, "_BYTES_PER_PROCESS", 1)
    monkeypatch.setattr(shard_writers, "HelperProcess", Counted)
    return started


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), 3),
        (("--processes", "1"), 0),
        (("--processes", "3"), 2),
        (("--processes=9",), 5),
        (("--direct_running_mode=multi_threading",), 0),
        (("--direct_running_mode=multi_threading", "--processes=2"), 1),
        (("--direct_num_workers=2",), 0),
    ],
)
def test_processes(
    flags: tuple[str, ...],
    expected: int,
    helpers: list[ShardEncoderSettings],
    shapes: Path,
    tmp_path: Path,
) -> None:
    assert run(*coco_words(shapes, tmp_path / "out", *SHARDS, *flags)).exit_code == 0
    assert len(helpers) == expected


def test_threads_are_shared_out_among_processes(
    helpers: list[ShardEncoderSettings], shapes: Path, tmp_path: Path
) -> None:
    for number, (flags, threads) in enumerate(
        [((), 3), (("--processes", "3"), 4), (("--threads", "7"), 7)]
    ):
        helpers.clear()
        assert run(*coco_words(shapes, tmp_path / str(number), *SHARDS, *flags)).exit_code == 0
        assert {settings.threads for settings in helpers} == {threads}


def test_no_processes_are_refused(shapes: Path, tmp_path: Path) -> None:
    result = run(*coco_words(shapes, tmp_path / "out", "--processes", "0"))
    assert result.exit_code == 2
    assert "--processes" in result.stderr
