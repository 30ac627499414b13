"""How many processes write shards, by the runner and by the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.transforms import write_to_tfrecord
from shardbeam.transforms.dataset import helper_pool, shard_writers
from shardbeam.transforms.dataset.helper_process import HelperProcess
from shardbeam.transforms.dataset.shard_encoder import ShardEncoderSettings
from tests.dataset.test_shard_writers import helper_pids
from tests.pipelines.dataset import coco_words, run

SHARDS = ("--set", "output.num_shards=6")


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> list[ShardEncoderSettings]:
    """The helper processes that write, on a machine of four CPUs where any work is much."""
    started: list[ShardEncoderSettings] = []

    class Counted(HelperProcess):
        def configure(self, settings: ShardEncoderSettings) -> None:
            started.append(settings)
            super().configure(settings)

    monkeypatch.setattr(write_to_tfrecord, "usable_cpus", lambda: 4)
    monkeypatch.setattr(write_to_tfrecord, "_BYTES_PER_PROCESS", 1)
    monkeypatch.setattr(helper_pool, "HelperProcess", Counted)
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


@pytest.mark.parametrize(("flags", "expected"), [((), 3), (("--processes", "2"), 1)])
def test_they_start_before_there_is_work_for_them(
    flags: tuple[str, ...],
    expected: int,
    helpers: list[ShardEncoderSettings],
    shapes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[tuple[int, int]] = []

    class Watched(helper_pool.HelperPool):
        def prepare(self, count: int) -> None:
            prepared.append((count, len(helpers)))
            super().prepare(count)

    pool = Watched()
    for module in (write_to_tfrecord, shard_writers):
        monkeypatch.setattr(module, "helper_pool", pool)
    before = helper_pids()
    assert run(*coco_words(shapes, tmp_path / "out", *SHARDS, *flags)).exit_code == 0
    # As many as turn out to be needed, and before any of them is to write.
    assert prepared[-1] == (expected, 0)
    assert len(helpers) == expected
    assert helper_pids() == before


def test_a_look_at_what_would_be_written_starts_none(
    helpers: list[ShardEncoderSettings],
    shapes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(helper_pool.HelperPool, "prepare", lambda *_: pytest.fail("prepared"))
    words = coco_words(shapes, tmp_path / "out", *SHARDS)
    assert run("plan", *words[1:]).exit_code == 0
    assert not helpers


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
