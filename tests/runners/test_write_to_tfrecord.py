"""`WriteToTFRecord` in a program's own pipeline, on a real Flink cluster, read by Beam."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

import shardbeam
from shardbeam.transforms.examples.example_pb2 import Example
from tests.runners.flink import FlinkCluster, flink_cluster
from tests.support.dataset import read_tree
from tests.support.local_pipeline import local_pipeline

pytestmark = pytest.mark.runners


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    with flink_cluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


def to_record(uri: str) -> shardbeam.Record:
    name = Path(uri).name
    return shardbeam.Record.of(name, image=uri, labels=["shape"], boxes=[("circle", 1, 1, 9, 9)])


def write(pipeline: beam.Pipeline, images: list[str], folder: Path) -> None:
    written = (
        pipeline
        | "Images" >> beam.Create(images)
        | beam.Map(to_record)
        | shardbeam.WriteToTFRecord(f"{folder}/shapes", num_shards=3, max_reject_ratio=0.1)
    )
    names = [f"{folder}/shapes-0000{index}-of-00003" for index in range(3)]
    assert_that(written.files, equal_to(names), label="Files")


def to_name(data: bytes) -> str:
    name: bytes = Example.FromString(data).features.feature["image/filename"].bytes_list.value[0]
    return name.decode()


def test_flink_writes_the_same_files(cluster: FlinkCluster, shapes: Path, tmp_path: Path) -> None:
    files = sorted((shapes / "images").iterdir())
    # One is missing.
    images = [str(file) for file in (*files, tmp_path / "missing.jpg")]
    with local_pipeline() as pipeline:
        write(pipeline, images, tmp_path / "local")
    options = PipelineOptions([*cluster.portable_flags()])
    with beam.Pipeline(options=options) as pipeline:
        write(pipeline, images, tmp_path / "flink")
    assert read_tree(tmp_path / "flink") == read_tree(tmp_path / "local") != {}
    with local_pipeline() as pipeline:
        examples = pipeline | beam.io.ReadFromTFRecord(f"{tmp_path}/flink/shapes-*")
        names = [file.name for file in files]
        assert_that(examples | beam.Map(to_name), equal_to(names))
