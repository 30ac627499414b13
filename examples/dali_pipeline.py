"""A DALI pipeline on the CPU. DALI reads shards by index files (`shardbeam index --idx`)."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["nvidia-dali-cuda120==2.4.0"]
# ///

import sys
from pathlib import Path

import numpy as np
from nvidia.dali import fn, pipeline_def, tfrecord, types

import shardbeam

PATH, INDEX = sys.argv[1:]
shards = sorted(map(str, Path(PATH).glob("*-train.tfrecord-*")))
SIDES = ("xmin", "ymin", "xmax", "ymax")


@pipeline_def(batch_size=8, num_threads=2, device_id=None, seed=0)
def detection():
    example = fn.readers.tfrecord(
        path=shards,
        index_path=[f"{INDEX}/{Path(shard).name}.idx" for shard in shards],
        features={
            "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
            "image/object/class/label": tfrecord.VarLenFeature([], tfrecord.int64, 0),
            **{
                f"image/object/bbox/{side}": tfrecord.VarLenFeature([], tfrecord.float32, 0.0)
                for side in SIDES
            },
        },
        random_shuffle=True,
        name="Reader",
    )
    images = fn.decoders.image(example["image/encoded"], output_type=types.RGB)
    images = fn.resize(images, size=(128, 128))
    boxes = fn.stack(*(example[f"image/object/bbox/{side}"] for side in SIDES), axis=1)
    return images, boxes, example["image/object/class/label"]


pipeline = detection()
pipeline.build()
size = pipeline.epoch_size("Reader")
counts = np.zeros(1 + max(shardbeam.class_names(PATH)), int)
for _ in range(size // 8):
    images, boxes, labels = pipeline.run()
    assert images.as_array().shape == (8, 128, 128, 3)
    for index in range(8):
        assert boxes.at(index).shape == (len(labels.at(index)), 4)
        counts += np.bincount(labels.at(index), minlength=len(counts))
print(f"read: {size} images, objects by class {counts.tolist()}")
