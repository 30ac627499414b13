"""`WriteToTFRecord` in a program's own pipeline, on a real Flink cluster, read by Beam."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.flink import TIMEOUT_S, FlinkCluster, flink_cluster
from tests.support.dataset import read_tree

pytestmark = [pytest.mark.runners, pytest.mark.timing]

# Its functions are those of `__main__`, which Beam sends to the workers.
PROGRAM = """
import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

import shardbeam

folder, images, *flags = sys.argv[1:]


def to_record(uri):
    return shardbeam.Record.of(
        Path(uri).name, image=uri, labels=["shape"], boxes=[("circle", 1, 1, 9, 9)]
    )


def write(uris):
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        _ = (
            pipeline
            | beam.Create(uris)
            | beam.Map(to_record)
            | shardbeam.WriteToTFRecord(f"{folder}/shapes", num_shards=3, max_reject_ratio=0.1)
        )


uris = sorted(map(str, Path(images).iterdir()))
write([*uris, f"{images}/missing.jpg"])
with beam.Pipeline("FnApiRunner") as pipeline:
    _ = (
        pipeline
        | beam.io.ReadFromTFRecord(f"{folder}/shapes-*")
        | beam.combiners.Count.Globally()
        | beam.Map(print)
    )
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    with flink_cluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


def run_program(folder: Path, shapes: Path, *flags: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(shapes / "images"), *flags],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_flink_writes_the_same_files(cluster: FlinkCluster, shapes: Path, tmp_path: Path) -> None:
    local = run_program(tmp_path / "local", shapes, "--runner=FnApiRunner")
    assert local.split() == ["40"]
    flink = run_program(tmp_path / "flink", shapes, *cluster.portable_flags())
    assert flink.split() == ["40"]
    assert read_tree(tmp_path / "flink") == read_tree(tmp_path / "local") != {}
