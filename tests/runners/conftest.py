"""Fixtures for the tests of runners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_beam.utils import retry

from shardbeam.pipelines.commands.sample import write_shapes
from shardbeam.pipelines.runners import dataflow
from tests.gcs.conftest import bucket, gcs, gcs_server
from tests.runners.cloud import Cloud
from tests.runners.dataflow_service import dataflow_service
from tests.support.dataset import write_mixed
from tests.support.gcs_server import FakeGcs

__all__ = ["bucket", "gcs", "gcs_server"]


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few images with something of everything: each test puts them into storage."""
    folder = tmp_path_factory.mktemp("few")
    write_shapes(output=folder / "in", images=12, seed=0, width=160, height=120, workers=1)
    return write_mixed(folder / "in", folder / "mixed")


@pytest.fixture
def cloud(
    gcs: FakeGcs, bucket: str, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    gcs.write_folder(bucket, mixed)
    monkeypatch.setattr(dataflow, "_POLL_S", 0.05)
    # Beam asks for a job that is not found for ten minutes.
    monkeypatch.setattr(retry.Clock, "sleep", lambda clock, seconds: None)
    with dataflow_service() as (service, flags):
        yield Cloud(gcs=gcs, bucket=bucket, service=service, flags=flags)
