"""The contender that anyone would write: `json.load`, a loop, protobuf, a digest and checksums.

`python -m benchmarks.plain_script IMAGES ANNOTATIONS OUTPUT SHARDS`. It writes the same Examples as
Shardbeam, one shard after another, and checks nothing.
"""

from __future__ import annotations

import collections
import hashlib
import json
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from shardbeam.transforms.examples.example_pb2 import Example


def main() -> None:
    images, annotations, output = map(Path, sys.argv[1:4])
    num_shards = int(sys.argv[4])
    document = json.loads(annotations.read_bytes())
    names = {category["id"]: category["name"] for category in document["categories"]}
    objects = collections.defaultdict(list)
    for annotation in document["annotations"]:
        objects[annotation["image_id"]].append(annotation)
    for shard in range(num_shards):
        name = f"plain-train.tfrecord-{shard:05d}-of-{num_shards:05d}"
        with open(output / name, "wb") as file:
            for image in document["images"][shard::num_shards]:
                data = (images / image["file_name"]).read_bytes()
                record = _encode(image, objects[image["id"]], names=names, data=data)
                length = struct.pack("<Q", len(record))
                file.write(length + _checksum(length) + record + _checksum(record))


def _encode(
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    *,
    names: Mapping[int, str],
    data: bytes,
) -> bytes:
    width, height = image["width"], image["height"]
    boxes = [annotation["bbox"] for annotation in annotations]
    ids = [annotation["category_id"] for annotation in annotations]
    texts = {
        "encoded": [data],
        "format": [b"jpeg"],
        "filename": [image["file_name"].encode()],
        "source_id": [str(image["id"]).encode()],
        "key/sha256": [hashlib.sha256(data).hexdigest().encode()],
        "object/class/text": [names[category_id].encode() for category_id in ids],
    }
    integers = {
        "height": [height],
        "width": [width],
        "object/class/label": ids,
        "object/is_crowd": [annotation["iscrowd"] for annotation in annotations],
    }
    floats = {
        "object/bbox/xmin": [max(x / width, 0.0) for x, _, _, _ in boxes],
        "object/bbox/ymin": [max(y / height, 0.0) for _, y, _, _ in boxes],
        "object/bbox/xmax": [min((x + across) / width, 1.0) for x, _, across, _ in boxes],
        "object/bbox/ymax": [min((y + down) / height, 1.0) for _, y, _, down in boxes],
        "object/area": [annotation["area"] for annotation in annotations],
    }
    example = Example()
    feature = example.features.feature
    for key, text in texts.items():
        feature[f"image/{key}"].bytes_list.value.extend(text)
    for key, integer in integers.items():
        feature[f"image/{key}"].int64_list.value.extend(integer)
    for key, number in floats.items():
        feature[f"image/{key}"].float_list.value.extend(number)
    return example.SerializeToString()


def _checksum(data: bytes) -> bytes:
    # Masked, as a record's checksums are: see tensorflow/core/lib/hash/crc32c.h.
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


if __name__ == "__main__":
    main()
