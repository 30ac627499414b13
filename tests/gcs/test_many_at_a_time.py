"""In remote storage, a worker makes its requests for many shards at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardbeam.transforms.commit.moves import CommitBatch, move, prepare_output
from shardbeam.transforms.dataset.outcome import WriteProgress
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from tests.support import gcs_memory as memory
from tests.support.dataset import coco_words, run
from tests.support.manifests import make_manifest

OUTPUT = "memory://host/out"
FILES = 50
AT_A_TIME = 12
TIMEOUT_S = 20


class Meeting:
    """Lets nobody through until some are there at a time; one after the other, they wait in vain.

    Attributes:
        calls: How often `call` was called.
        has_met: Whether as many were there at a time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        self._function = function
        self._lock = threading.Lock()
        self._met = threading.Event()
        self._given_up = threading.Event()

    @property
    def has_met(self) -> bool:
        return self._met.is_set()

    def call(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # Whatever it stands for.
        with self._lock:
            self.calls += 1
            if self.calls >= AT_A_TIME and not self._given_up.is_set():
                self._met.set()
        if not self._given_up.is_set() and not self._met.wait(TIMEOUT_S):
            self._given_up.set()
        return self._function(*args, **options)


@pytest.fixture
def staging() -> Staging:
    memory.clear()
    return Staging(output=OUTPUT, plan="plan", run_id="run")


def meet(monkeypatch: pytest.MonkeyPatch, name: str) -> Meeting:
    original = getattr(MemoryFileSystem, name)
    meeting = Meeting(original)

    def call(system: MemoryFileSystem, path: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        # A file that is not there is asked for by itself.
        function = meeting.call if path in system.store else original
        return function(system, path, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, name, call)
    return meeting


def write_output(names: list[str]) -> None:
    for name in names:
        memory.write(f"{OUTPUT}/{name}", b"old")
    memory.write(f"{OUTPUT}/manifest.json", make_manifest(*names))


def test_an_old_dataset_is_deleted_many_files_at_a_time(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output([f"{number}.tfrecord" for number in range(FILES)])
    deletes = meet(monkeypatch, "rm_file")
    old = prepare_output([], metadata=[], staging=staging)
    move(CommitBatch(deletes=tuple(old)), staging=staging)
    assert deletes.has_met
    assert deletes.calls == FILES
    left = [name for name in memory.read_tree(OUTPUT) if not name.startswith(".staging/")]
    assert left == ["manifest.json"]


def test_staging_is_cleared_many_files_at_a_time(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(FILES):
        memory.write(staging.uri(f"shards/{number}/done"), b"")
    deletes = meet(monkeypatch, "rm_file")
    staging.clear()
    assert deletes.has_met
    assert not memory.read_tree(OUTPUT)


def test_progress_is_read_many_files_at_a_time_and_once(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(FILES):
        staging.write_progress(WriteProgress(number, True), shard_key=f"{number}")
    reads = meet(monkeypatch, "cat_file")
    seen: dict[str, tuple[str, WriteProgress]] = {}
    for _ in range(2):
        found = staging.read_progress(seen)
        assert sorted(progress.examples for progress in found) == list(range(FILES))
    assert reads.has_met
    assert reads.calls == FILES


def test_a_commit_moves_many_files_at_a_time(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.clear()
    moves = meet(monkeypatch, "cp_file")
    settings = ("--set", "output.num_shards=15", "--set", "rejects.max_ratio=1")
    run(*coco_words(shapes, OUTPUT, *settings), exit_code=0)
    assert moves.has_met
    # Shards, their indexes, and `dataset_info.json`.
    assert moves.calls == 2 * 15 + 1


def test_small_annotation_files_are_read_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.clear()
    for number in range(FILES):
        document = {"shapes": [], "imagePath": f"{number}.jpg"}
        memory.write(f"memory://host/in/{number}.json", json.dumps(document).encode())
        memory.write(f"memory://host/in/{number}.jpg", b"not read by a plan" * 20)
    reads = meet(monkeypatch, "cat_file")
    result = run("plan", "labelme", "--root", "memory://host/in", "--output", OUTPUT, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["splits"]["train"]["examples"] == FILES
    assert reads.has_met
    assert reads.calls == FILES


def test_objects_of_google_cloud_storage_are_deleted_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [
        StoredFile(path=str(number), uri=f"gs://bucket/x/{number}", size_bytes=0, version="7")
        for number in range(FILES)
    ]
    versions = []
    deletes = Meeting(lambda uri, *, version: not versions.append(version))  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        GcsStorage, "delete", lambda self, uri, *, version: deletes.call(uri, version=version)
    )
    assert storage_for("gs://bucket/x").delete_many(files)
    assert deletes.has_met
    assert versions == ["7"] * FILES


def test_files_on_disk_are_deleted_without_threads(tmp_path: Path) -> None:
    threads = []
    storage = storage_for(str(tmp_path))
    names = [tmp_path / str(number) for number in range(3)]
    for name in names:
        name.write_bytes(b"")
    storage.delete_many(storage.list(str(tmp_path)))
    assert not list(tmp_path.iterdir())
    assert [*storage.map_many(lambda _: threads.append(threading.current_thread()), "ab")]
    assert set(threads) == {threading.main_thread()}
