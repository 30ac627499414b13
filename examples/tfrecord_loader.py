"""The package `tfrecord` reads shards without TensorFlow, in parts for several workers."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["tfrecord==1.14.6"]
# ///

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from tfrecord.reader import tfrecord_loader

import shardbeam

PATH, INDEX = sys.argv[1:]
KEYS = {
    "image/encoded": "byte",
    "image/object/bbox/xmin": "float",
    "image/object/class/label": "int",
}
WORKERS = 2

counts = np.zeros(1 + max(shardbeam.class_names(PATH)), int)
images = 0
for shard in sorted(Path(PATH).glob("*-train.tfrecord-*")):
    for worker in range(WORKERS):
        # The index file says where a worker's part begins and ends.
        part = tfrecord_loader(str(shard), f"{INDEX}/{shard.name}.idx", KEYS, (worker, WORKERS))
        for example in part:
            pixels = np.asarray(Image.open(io.BytesIO(example["image/encoded"])))
            assert pixels.shape == (128, 128, 3)
            counts += np.bincount(example["image/object/class/label"], minlength=len(counts))
            images += 1
print(f"read: {images} images, objects by class {counts.tolist()}")
