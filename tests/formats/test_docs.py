"""The pages on custom formats, archives, CIFAR and others are true."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.archive_files import write_files, write_tar, write_zip
from tests.support.cifar_files import write_cifar10
from tests.support.dataset import run
from tests.support.pages import blocks, commands
from tests.support.voc_files import small_voc

DOCS = "docs/reference/formats"


def run_commands(page: str, *, count: int) -> None:
    """Runs a page's commands in the current folder; all builds but the last are only planned."""
    found = commands(f"{DOCS}/{page}")
    assert len(found) == count
    for number, (_, command, *words) in enumerate(found, 1):
        is_planned = command == "build" and number < count
        run("plan" if is_planned else command, *words, exit_code=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder, in which the ready configs are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(PROJECT_ROOT / "configs")
    return tmp_path


@pytest.mark.slow
def test_a_format_of_ones_own(folder: Path, shapes: Path) -> None:
    module, kit = blocks(f"{DOCS}/custom.md", "python")
    (config,) = blocks(f"{DOCS}/custom.md", "yaml")
    (folder / "my_format.py").write_text(module, encoding="utf-8")
    (folder / "my_config.yaml").write_text(config, encoding="utf-8")
    (folder / "test_my_format.py").write_text(kit, encoding="utf-8")
    images = sorted((shapes / "images").iterdir())[:3]
    (folder / "images").mkdir()
    for image in images:
        shutil.copy(image, folder / "images")
    lines = [f"{image.name} 1 2 30 40 night heron\n{image.name} 5 6 7 8 cat" for image in images]
    (folder / "boxes.txt").write_text("\n".join(lines), encoding="utf-8")

    run_commands("custom.md", count=2)
    shown = run("show", "out", "--limit", "1").stdout
    assert "'night heron', 'cat'" in shown
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_format.py"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in result.stdout, result.stdout


def test_archives(folder: Path, shapes: Path) -> None:
    images = {f"train2017/{path.name}": path.read_bytes() for path in (shapes / "images").iterdir()}
    write_zip(folder / "train2017.zip", images)
    (folder / "annotations").mkdir()
    shutil.copy(
        shapes / "annotations" / "instances.json",
        folder / "annotations" / "instances_train2017.json",
    )
    inner = write_tar(folder / "n1.tar", {path[10:]: data for path, data in images.items()})
    write_tar(folder / "ILSVRC2012_img_train.tar", {"n1.tar": inner.read_bytes()})

    flowers = {f"train/{path[10:]}": data for path, data in images.items()}
    instances = (shapes / "annotations" / "instances.json").read_bytes()
    flowers["train/_annotations.coco.json"] = instances
    write_zip(folder / "flowers.v1.coco.zip", flowers)

    run_commands("archives.md", count=4)


def test_cifar(folder: Path) -> None:
    write_cifar10(folder / "cifar-10-batches-bin")

    run_commands("cifar.md", count=2)
    assert (folder / "out" / "test.tfrecords").exists()


@pytest.mark.parametrize(
    ("page", "sample", "name"),
    [
        ("cvat.md", "datumaro/cvat_dataset/for_images/export_project", "export"),
        ("labelme.md", "labelme/instance_segmentation/data_annotated", "data_annotated"),
    ],
)
def test_exports_of_tools(
    folder: Path, shared_data: Path, page: str, sample: str, name: str
) -> None:
    (folder / name).symlink_to(shared_data / sample)

    run_commands(page, count=1)


def test_several_sources(folder: Path, shapes: Path) -> None:
    (folder / "coco").mkdir()
    (folder / "coco" / "images").symlink_to(shapes / "images")
    (folder / "coco" / "instances.json").symlink_to(shapes / "annotations" / "instances.json")
    for name in ("voc", "voc_test"):
        write_files(folder / name, small_voc())
    (config,) = blocks(f"{DOCS}/README.md", "yaml")
    (folder / "config.yaml").write_text(config, encoding="utf-8")

    assert run("build", "config.yaml").exit_code == 0


def test_filename_label(folder: Path, shapes: Path) -> None:
    (folder / "flowers").mkdir()
    for index, image in enumerate(sorted((shapes / "images").iterdir())[:4]):
        # A name that all of the page's patterns match.
        shutil.copy(image, folder / "flowers" / f"{index}_rose-canon.jpg")

    run_commands("filename-label.md", count=3)
    assert (folder / "out" / "train.record").exists()


def test_webdataset(folder: Path, shapes: Path) -> None:
    image = next((shapes / "images").iterdir()).read_bytes()
    (folder / "shards").mkdir()
    for number in range(3):
        write_tar(folder / "shards" / f"{number:05}.tar", {"1.jpg": image, "1.cls": b"1"})
    (config,) = blocks(f"{DOCS}/webdataset.md", "yaml")
    (folder / "pairs.yaml").write_text(config, encoding="utf-8")

    (command,) = commands(f"{DOCS}/webdataset.md")
    _, _, *words = [word.replace("00331", "00002") for word in command]
    run("plan", *words, exit_code=0)
    run("build", "pairs.yaml", exit_code=0)


def test_tfrecord(folder: Path, shapes: Path) -> None:
    pytest.importorskip("array_record")
    (folder / "new").mkdir()
    (folder / "new" / "images").symlink_to(shapes / "images")
    annotations = folder / "new" / "instances.json"
    annotations.symlink_to(shapes / "annotations" / "instances.json")
    words = ("--images", "new/images", "--annotations", str(annotations), "--output", "made")
    split = ("--fractions", "train=0.8,val=0.2")
    assert run("build", "coco", *words, *split, "--set", "output.num_shards=2").exit_code == 0
    (folder / "old").mkdir()
    for path in (folder / "made").glob("*tfrecord*"):
        name, _, number = path.name.partition(".tfrecord-")
        shutil.copy(path, folder / "old" / f"{name.removeprefix('coco-')}-{number}")
    (config,) = blocks(f"{DOCS}/tfrecord.md", "yaml")
    (folder / "both.yaml").write_text(config, encoding="utf-8")

    run("plan", "both.yaml", exit_code=0)
    for _, *command in commands(f"{DOCS}/tfrecord.md"):
        run(*command, exit_code=0)
    assert list((folder / "out-array-record").glob("*.array_record-*"))
