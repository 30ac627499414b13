"""The command finds its own packages in a folder with packages of the same names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dataset import (
    check_whole,
    coco_words,
    finish,
    read_dataset,
    run,
    start,
)

PACKAGES = ("configs", "pipelines", "readers", "transforms")
WORKERS = ("--processes", "3")
SHARDS = ("--set", "output.num_shards=4")

# Image names and labels, a line each; what a user could write.
FORMAT = '''\
"""Images listed in a text file: `file name, label`."""

import dataclasses
import os

from shardbeam.configs.keys import Location
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.core.records import ImageAnnotations, encode_annotations


@dataclasses.dataclass
class Line:
    key: str
    label: str


class ListFormat(Format):
    kinds = frozenset({Kind.CLASSIFICATION})
    images: Location
    annotations: list[Location]
    separator: str = ","

    def annotation_files(self):
        return self.annotations

    def read_annotations(self, *, storage, file_index):
        uri = self.annotations[file_index]
        lines = [
            Line(*(word.strip() for word in line.split(self.separator)))
            for line in storage.read(uri).decode().splitlines()
        ]
        for label in {line.label for line in lines}:
            yield Category(name=label, origin=uri)
        for position, line in enumerate(lines):
            yield AnnotationEntry(
                key=line.key,
                annotations=encode_annotations(
                    ImageAnnotations(image_id=str(position), labels=(line.label,))
                ),
                file_index=file_index,
                position=position,
            )
'''
CONFIG = """\
name: listed
splits:
  train:
    format: ./my_format.py:ListFormat
    images: {images}
    annotations: [labels.txt]
    separator: ;
output: {{path: out, num_shards: 3}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project with packages, and a plain folder, of the same names as ours."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "mine.py").write_text(f"NAME = 'my {package}'\n")
        if package != "configs":
            (tmp_path / package / "__init__.py").touch()
    return tmp_path


@pytest.mark.slow
def test_packages_of_the_same_names(folder: Path, shapes: Path, tmp_path: Path) -> None:
    expected = tmp_path / "expected"
    assert run(*coco_words(shapes, expected, *SHARDS)).exit_code == 0
    result = finish(start(*coco_words(shapes, folder / "out", *SHARDS, *WORKERS), cwd=folder))
    assert (result.exit_code, result.stderr.count("Error")) == (0, 0)
    # A worker process that found the wrong ones would have ended, with a warning.
    assert "has ended" not in result.stderr
    assert read_dataset(folder / "out") == read_dataset(expected)


def test_a_program_imports_its_own_and_ours(folder: Path) -> None:
    lines = [f"from {package} import mine as m; print(m.NAME)" for package in PACKAGES]
    program = "\n".join(
        ["import shardbeam", *lines, "print(shardbeam.Format, shardbeam.load_config)"]
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    *own, ours = result.stdout.splitlines()
    assert own == [f"my {package}" for package in PACKAGES]
    assert "shardbeam.transforms.formats.base.Format" in ours


def test_a_format_of_ones_own(folder: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "my_format.py").write_text(FORMAT)
    (folder / "config.yaml").write_text(CONFIG.format(images=shapes / "images"))
    (folder / "labels.txt").write_text(
        "".join(f"{number:012}.jpg; {'odd' if number % 2 else 'even'}\n" for number in range(1, 41))
    )
    result = finish(start("build", "config.yaml", cwd=folder))
    assert result.exit_code == 0, result.stderr
    listed = read_dataset(folder / "out")
    assert check_whole(listed)
    assert listed["labels.txt"] == b"even\nodd\n"

    result = finish(start("build", "config.yaml", "--overwrite", *WORKERS, cwd=folder))
    assert result.exit_code == 0, result.stderr
    assert read_dataset(folder / "out") == listed

    # Its code decides the bytes, too.
    monkeypatch.chdir(folder)
    again = ("build", "config.yaml", "--if-changed")
    assert run(*again).exit_code == 0
    (folder / "my_format.py").write_text(f"{FORMAT}\n# Another comment.\n")
    assert run(*again).exit_code == 2
