"""The contender that Beam's documentation leads to: images encoded in a Map, then shuffled.

`python -m benchmarks.naive_beam IMAGES ANNOTATIONS OUTPUT SHARDS` prints images a second as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import apache_beam as beam
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.coco_json import AnnotatedImage, read_coco
from shardbeam.pipelines.runners.options import LocalRunner


def encode(image: AnnotatedImage) -> bytes:
    """Reads an image and serializes its Example."""

    def bytes_feature(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    def integers(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def floats(values: list[float]) -> tf.train.Feature:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    feature = {
        "image/encoded": bytes_feature(Path(image.path).read_bytes()),
        "image/format": bytes_feature(b"jpeg"),
        "image/filename": bytes_feature(os.path.basename(image.path).encode()),
        "image/height": integers([image.height]),
        "image/width": integers([image.width]),
        "image/object/bbox/xmin": floats([box.xmin for box in image.boxes]),
        "image/object/bbox/ymin": floats([box.ymin for box in image.boxes]),
        "image/object/bbox/xmax": floats([box.xmax for box in image.boxes]),
        "image/object/bbox/ymax": floats([box.ymax for box in image.boxes]),
        "image/object/class/label": integers([box.category_id for box in image.boxes]),
    }
    serialized: bytes = tf.train.Example(
        features=tf.train.Features(feature=feature)
    ).SerializeToString()
    return serialized


def main() -> None:
    images, annotations, output = map(Path, sys.argv[1:4])
    num_shards = int(sys.argv[4])
    started_s = time.monotonic()
    annotated, _ = read_coco(images=images, annotations=annotations)
    options = PipelineOptions([])
    # The runner that Shardbeam uses: the comparison is of the graphs.
    with beam.Pipeline(runner=LocalRunner(options=options), options=options) as pipeline:
        (
            pipeline
            | beam.Create(annotated)
            | beam.Map(encode)
            | beam.io.WriteToTFRecord(str(output / "naive.tfrecord"), num_shards=num_shards)
        )
    print(json.dumps({"images_per_s": len(annotated) / (time.monotonic() - started_s)}))


if __name__ == "__main__":
    main()
