"""Fixtures for tests against fake-gcs-server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbeam.transforms.storage import failures
from tests.support.dataset import Tree, coco_words, read_dataset, run
from tests.support.gcs_server import NAME, VARIABLE, ProxiedGcs, find_server, running_server

SHARDS = 5
# Settings of the dataset `expected`.
SETTINGS = ("--set", f"output.num_shards={SHARDS}", "--set", "rejects.max_ratio=1")

_bucket_numbers = itertools.count()


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[ProxiedGcs]:
    program = find_server()
    if program is None:
        pytest.skip(
            f"{NAME} is not here: neither on PATH, nor in ~/go/bin, nor named by {VARIABLE}"
        )
    with running_server(program) as server:
        yield server


@pytest.fixture
def gcs(gcs_server: ProxiedGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProxiedGcs]:
    """The server, with fresh counts and no faults, as the storage behind `gs://`."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.proxy.host)
    monkeypatch.setattr(failures, "_INITIAL_WAIT_S", 0.01)
    monkeypatch.setattr(failures, "_MAX_WAIT_S", 0.05)
    monkeypatch.setattr(failures, "DEADLINE_S", 20.0)
    gcs_server.proxy.reset()
    yield gcs_server
    gcs_server.proxy.reset()


@pytest.fixture
def bucket(gcs: ProxiedGcs) -> str:
    """The URI of an empty bucket."""
    return gcs.make_bucket(f"bucket-{os.getpid()}-{next(_bucket_numbers)}")


@pytest.fixture
def source(gcs: ProxiedGcs, bucket: str, shapes: Path) -> str:
    """The URI of the sample in the bucket."""
    gcs.write_folder(f"{bucket}/in", shapes)
    gcs.proxy.reset()
    return f"{bucket}/in"


@pytest.fixture(scope="session")
def expected(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The dataset that `SETTINGS` make of the sample, built on disk."""
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(shapes, output, *SETTINGS)).exit_code == 0
    return read_dataset(output)
