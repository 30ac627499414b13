"""The data that benchmarks work on, made once and kept for the next time."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.coco_like import write_coco_like
from benchmarks.measure import SHARDBEAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images and their COCO annotations.

    Attributes:
        folder: What holds both.
        count: How many images.
    """

    folder: Path
    count: int

    @property
    def images(self) -> Path:
        """The images' folder."""
        return self.folder / "images"

    @property
    def annotations(self) -> Path:
        """The instances file."""
        return self.folder / "annotations" / "instances.json"

    def mean_image_bytes(self) -> float:
        """The images' size on the average."""
        return sum(path.stat().st_size for path in self.images.iterdir()) / self.count

    def read_all(self) -> None:
        """Reads all files once, so that whoever comes next finds them in the page cache."""
        for path in (self.annotations, *self.images.iterdir()):
            path.read_bytes()


def make_shapes(data: Path, *, images: int) -> Dataset:
    """Makes Shardbeam's sample.

    Args:
        data: Folder of all the benchmarks' data.
        images: How many.
    """

    def make(folder: Path) -> None:
        command = [SHARDBEAM, "sample", "shapes", "--images", str(images), "--output", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return Dataset(folder=make_once(data / f"shapes-{images}", make=make), count=images)


def take_first(dataset: Dataset, *, images: int) -> Dataset:
    """Makes a smaller dataset of the first images of a larger one, as hard links."""

    def make(folder: Path) -> None:
        document = json.loads(dataset.annotations.read_bytes())
        document["images"] = document["images"][:images]
        kept = {image["id"] for image in document["images"]}
        document["annotations"] = [
            annotation for annotation in document["annotations"] if annotation["image_id"] in kept
        ]
        smaller = Dataset(folder=folder, count=images)
        smaller.images.mkdir(parents=True)
        smaller.annotations.parent.mkdir()
        smaller.annotations.write_text(json.dumps(document))
        for image in document["images"]:
            os.link(dataset.images / image["file_name"], smaller.images / image["file_name"])

    folder = dataset.folder.with_name(f"{dataset.folder.name}-first-{images}")
    return Dataset(folder=make_once(folder, make=make), count=images)


def make_coco_like(data: Path, *, images: int) -> Dataset:
    """Makes a stand-in for COCO train2017.

    Args:
        data: Folder of all the benchmarks' data.
        images: How many; train2017 has 118,287.
    """

    def make(folder: Path) -> None:
        write_coco_like(folder, images=images)

    return Dataset(folder=make_once(data / f"coco-like-{images}", make=make), count=images)


def make_once(folder: Path, *, make: Callable[[Path], None]) -> Path:
    """Makes a folder of data, unless it is there.

    Args:
        folder: The folder.
        make: Fills a folder that is not there yet.

    Returns:
        `folder`.
    """
    # It appears under its name only once it is whole.
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as temporary:
            partial = Path(temporary) / folder.name
            make(partial)
            partial.rename(folder)
    return folder
