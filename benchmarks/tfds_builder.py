"""The contender from tensorflow-datasets: a builder of one's own, without Beam.

`python -m benchmarks.tfds_builder IMAGES ANNOTATIONS OUTPUT SHARDS` prints images a second as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow_datasets as tfds

from benchmarks.coco_json import read_coco


class Shapes(tfds.core.GeneratorBasedBuilder):
    """Images as they are, with their boxes and labels."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, images: Path, annotations: Path, data_dir: Path) -> None:
        self._annotated, self._categories = read_coco(images=images, annotations=annotations)
        super().__init__(data_dir=data_dir)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    # Given a path it stores the file's own bytes.
                    "image": tfds.features.Image(encoding_format="jpeg"),
                    "image/filename": tfds.features.Text(),
                    "objects": tfds.features.Sequence(
                        {
                            "bbox": tfds.features.BBoxFeature(),
                            "label": tfds.features.ClassLabel(
                                names=list(self._categories.values())
                            ),
                        }
                    ),
                }
            ),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for image in self._annotated:
            name = os.path.basename(image.path)
            yield (
                name,
                {
                    "image": image.path,
                    "image/filename": name,
                    "objects": [
                        {
                            "bbox": tfds.features.BBox(
                                ymin=box.ymin, xmin=box.xmin, ymax=box.ymax, xmax=box.xmax
                            ),
                            "label": self._categories[box.category_id],
                        }
                        for box in image.boxes
                    ],
                },
            )


def main() -> None:
    images, annotations, output = map(Path, sys.argv[1:4])
    num_shards = int(sys.argv[4])
    started_s = time.monotonic()
    builder = Shapes(images=images, annotations=annotations, data_dir=output)
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False, num_shards=num_shards)
    )
    num_examples = builder.info.splits["train"].num_examples
    print(json.dumps({"images_per_s": num_examples / (time.monotonic() - started_s)}))


if __name__ == "__main__":
    main()
