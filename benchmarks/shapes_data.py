"""The pictures that the contenders turn into a dataset: Shardbeam's own sample, made once."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SHARDBEAM = str(Path(sys.executable).with_name("shardbeam"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images and their COCO annotations.

    Attributes:
        images: The images' folder.
        annotations: The instances file.
        count: How many images.
    """

    images: Path
    annotations: Path
    count: int

    def num_bytes(self) -> int:
        """Adds up the images' sizes."""
        return sum(path.stat().st_size for path in self.images.iterdir())

    def read_all(self) -> None:
        """Reads all files once, so that whoever comes next finds them in the page cache."""
        for path in (self.annotations, *self.images.iterdir()):
            path.read_bytes()


def make_shapes(data: Path, *, images: int) -> Dataset:
    """Makes the sample, unless it is there from an earlier time.

    Args:
        data: Folder of all the benchmarks' data.
        images: How many.
    """
    folder = data / f"shapes-{images}"
    if not folder.exists():
        partial = _fresh_folder(data / f"shapes-{images}.partial")
        command = [SHARDBEAM, "sample", "shapes", "--images", str(images), "--output", str(partial)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        partial.rename(folder)
    return _dataset(folder, count=images)


def take_first(dataset: Dataset, *, images: int) -> Dataset:
    """Makes a smaller dataset of the first images of a larger one, as hard links."""
    source = dataset.images.parent
    folder = source.with_name(f"{source.name}-first-{images}")
    if not folder.exists():
        partial = _fresh_folder(folder.with_name(f"{folder.name}.partial"))
        document = json.loads(dataset.annotations.read_bytes())
        document["images"] = document["images"][:images]
        kept = {image["id"] for image in document["images"]}
        document["annotations"] = [
            annotation for annotation in document["annotations"] if annotation["image_id"] in kept
        ]
        smaller = _dataset(partial, count=images)
        smaller.images.mkdir()
        smaller.annotations.parent.mkdir()
        smaller.annotations.write_text(json.dumps(document))
        for image in document["images"]:
            os.link(dataset.images / image["file_name"], smaller.images / image["file_name"])
        partial.rename(folder)
    return _dataset(folder, count=images)


def _dataset(folder: Path, *, count: int) -> Dataset:
    return Dataset(
        images=folder / "images", annotations=folder / "annotations/instances.json", count=count
    )


def _fresh_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
