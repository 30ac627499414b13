"""What `shardbeam init` makes of folders: classes, splits, masks, dates, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image, ImageDraw

from shardbeam.pipelines.commands import init as init_command
from tests.support.archive_files import write_files
from tests.support.dataset import Run, run
from tests.support.image_makers import jpegs, photograph, save

PAIRS = 4
Files = dict[str, bytes]
Colour = int | tuple[int, int, int]
# Draws the picture of a number, and returns the file.
Draw = Callable[[int], bytes]


def photo(number: int, *, size: tuple[int, int] = (48, 36)) -> bytes:
    return save(photograph(width=size[0], height=size[1], seed=number), "JPEG")


def gray(number: int) -> bytes:
    return save(photograph(width=48, height=36, seed=number).convert("L"), "PNG")


def small(number: int) -> bytes:
    return photo(number, size=(12, 9))


def mask(number: int, *, colours: Iterable[Colour] = (0, 1, 2)) -> bytes:
    """A map of a background and two circles."""
    background, *others = colours
    mode = "L" if isinstance(background, int) else "RGB"
    image = Image.new(mode, (48, 36), background)
    for place, colour in enumerate(others):
        left = 3 + number + 20 * place
        ImageDraw.Draw(image).ellipse((left, 8, left + 11, 19), fill=colour)
    return save(image, "PNG")


def black_white(number: int) -> bytes:
    return mask(number, colours=(0, 255))


def coloured(number: int) -> bytes:
    return mask(number, colours=((0, 0, 0), (200, 30, 60), (10, 220, 40)))


def quarter(number: int) -> bytes:
    return save(Image.new("L", (24, 18), number % 2), "PNG")


def depth(number: int) -> bytes:
    values = np.asarray(photograph(width=48, height=36, seed=number).convert("L"), np.uint16)
    return save(Image.fromarray(values * 64), "PNG")


def pairs(one: str, other: str, left: Draw = photo, right: Draw = mask) -> Files:
    """Pictures with the same names in two folders."""
    files: Files = {}
    for number in range(PAIRS):
        files |= {f"{one}/img{number}.jpg": left(number), f"{other}/img{number}.png": right(number)}
    return files


def pictures(*folders: str, number: int = 2) -> Files:
    """Pictures in folders, whose names differ from folder to folder."""
    return jpegs(
        *(
            f"{folder}/{folder.replace('/', '_')}{count}.jpg".lstrip("/")
            for folder in folders
            for count in range(number)
        )
    )


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, and no preview of rejects, for which the command runs a pipeline."""
    monkeypatch.setattr(init_command, "_foresee", lambda *_, **__: init_command._Foreseen(()))
    return tmp_path / "data"


def init(data: Path, files: Files, *words: str, exit_code: int = 0) -> Run:
    write_files(data, files)
    return run("init", str(data), *words, exit_code=exit_code)


def read_sources(result: Run) -> dict[str, object]:
    config = yaml.safe_load(result.stdout)
    sources = config.get("splits", {"": config.get("source")})
    assert isinstance(sources, dict)
    return sources


@pytest.mark.parametrize(
    ("files", "classes"),
    [
        (pictures("cat", "dog"), 2),
        (pictures("train/cat", "train/dog", "test/cat"), 2),
        (pictures("01", "02", "12"), 3),
        (pictures("2023", "2024"), 2),
        (pictures("1990/audi", "1990/bmw", "2000/audi"), 2),
        (pictures("cat/2024/01", "dog/2024/02"), 2),
        (pictures("n01440764", "n20240131"), 2),
        (pictures("glossy", "matte"), 2),
        (pictures("cat", "dog", number=50) | jpegs("a.jpg", "b.jpg"), 2),
        (pairs("glossy", "matte", right=photo), 2),
        (pairs("alpha", "beta", left=black_white, right=black_white), 2),
        (pairs("0", "1", left=black_white, right=black_white), 2),
        (pairs("NORMAL", "PNEUMONIA", left=gray, right=gray), 2),
        (pairs("photo", "drawn") | pairs("other", "more", right=photo), 4),
        (pairs("ann", "bob", right=photo), 2),
    ],
    ids=lambda value: (
        "-".join(sorted({path.rpartition("/")[0] for path in value}))
        if isinstance(value, dict)
        else ""
    ),
)
def test_what_stays_a_class(data: Path, files: Files, classes: int) -> None:
    told = init(data, files).stderr
    assert told.startswith(f"image-folder: {classes} folders of classes, {len(files)} images")


@pytest.mark.parametrize(
    ("other", "right"), [("left", photo), ("depth", depth), ("thumbnails", small)]
)
def test_two_views_that_are_read_as_classes_are_named(data: Path, other: str, right: Draw) -> None:
    told = init(data, pairs("rgb", other, right=right)).stderr
    one, two = sorted((other, "rgb"))
    assert f"{one} and {two} are read as classes, and have the same names" in told
    assert "/img0." in told


@pytest.mark.parametrize("splits", [("train",), ("train", "val")])
def test_a_split_without_classes_beside_splits_with_classes(
    data: Path, splits: tuple[str, ...]
) -> None:
    files = pictures(*(f"{split}/{name}" for split in splits for name in ("cat", "dog")), "test")
    result = init(data, files)
    expected = {split: {"format": "image-folder", "images": f"{data}/{split}"} for split in splits}
    expected["test"] = {"format": "images", "images": f"{data}/test"}
    assert read_sources(result) == expected
    assert "test/ has no folders of classes: its images are written without labels" in result.stderr
    # The command that names the format reads one source, so it cannot guess what test/ holds.
    refused = run("build", "image-folder", "--images", str(data), "--output", f"{data}/o")
    assert refused.exit_code == 1
    assert "images lie directly in test/" in refused.stderr


def test_the_build_calls_them_without_labels(tmp_path: Path) -> None:
    write_files(tmp_path / "d", pictures("train/cat", "train/dog", "test"))
    config = str(tmp_path / "d.yaml")
    told = run("init", str(tmp_path / "d"), "--output", config, exit_code=0).stderr
    assert "\n2 classes: cat, dog\n" in told

    built = run("build", config, "--set", f"output.path={tmp_path}/out", exit_code=0)

    assert (
        "2 of 2 images of test have no annotations and are written without labels" in built.stdout
    )
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text(encoding="utf-8"))
    assert {each["name"]: each["shardLengths"] for each in info["splits"]} == {
        "train": ["4"],
        "test": ["2"],
    }


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        (pictures("control", "test", "treated"), ["image-folder", "images"]),
        (pictures("control", "treated", "train", "test"), ["image-folder", "images"]),
        (pictures("cat/images", "dog/images"), ["image-folder", "images"]),
        (pictures("cat", "dog", "2024-01-03"), ["image-folder", "images"]),
        (pictures("cat/train", "cat/val", "dog/train", "dog/val"), ["image-folder", "images"]),
        (pairs("images", "seg", right=quarter), ["masks", "images"]),
        (pairs("images", "matte", right=gray), ["masks", "images"]),
        (pairs("photo", "drawn"), ["masks", "image-folder"]),
        (pairs("photo", "drawn", right=coloured), ["masks", "image-folder"]),
        (pairs("xray", "lungs", left=gray, right=black_white), ["masks", "image-folder"]),
        (
            pairs("train/photo", "train/drawn") | pairs("val/photo", "val/drawn"),
            ["masks", "image-folder"],
        ),
        (pairs("a/photo", "a/drawn"), ["masks", "image-folder"]),
        (pairs("images", "drawn"), ["masks", "images"]),
    ],
    ids=lambda value: (
        "-".join(sorted({path.rpartition("/")[0] for path in value}))
        if isinstance(value, dict)
        else ""
    ),
)
def test_what_is_asked_about(data: Path, files: Files, commands: list[str]) -> None:
    config = data.parent / "d.yaml"
    result = init(data, files, "--output", str(config), exit_code=1)
    assert not config.exists()
    for name in commands:
        assert f"`shardbeam init {data} --format {name}`" in result.stderr


@pytest.mark.parametrize(
    ("files", "inner"),
    [
        (pictures("train/cat", "train/dog", "extra"), "train"),
        (pictures("images/cat", "images/dog", "extra"), "images"),
        (pictures("train/images/cat", "train/images/dog", "val/images/cat"), "train/images"),
    ],
)
def test_classes_further_down_are_asked_about(data: Path, files: Files, inner: str) -> None:
    told = init(data, files, exit_code=1).stderr
    assert f"are cat, dog (in {data}/{inner}) classes?" in told
    answer = run("init", f"{data}/{inner}", "--format", "image-folder", exit_code=0)
    assert answer.stderr.startswith("image-folder: 2 folders of classes, 4 images")


def test_an_answer_settles_the_question(data: Path) -> None:
    init(data, pairs("photo", "drawn"), exit_code=1)
    masks = run("init", str(data), "--format", "masks", exit_code=0)
    assert read_sources(masks) == {
        "": {"format": "masks", "images": f"{data}/photo", "semantic_masks": f"{data}/drawn"}
    }
    classes = run("init", str(data), "--format", "image-folder", exit_code=0)
    assert read_sources(classes) == {"": {"format": "image-folder", "images": str(data)}}


@pytest.mark.parametrize("number", [1, 2])
def test_classes_in_one_folder_beside_a_few_pictures(data: Path, number: int) -> None:
    files = pictures("d/cat", "d/dog", number=12) | jpegs(*(f"{n}.jpg" for n in range(number)))
    told = init(data, files, exit_code=1).stderr
    assert f"all are in d: `shardbeam init {data}/d` looks there" in told


@pytest.mark.parametrize(
    "folder",
    [
        *("seg", "segs", "sem_seg", "segmentation", "segmentations", "SegmentationMask"),
        *("SegmentationMasks", "SegmentationClassAug", "SegmentationClassRaw", "stuffthingmaps"),
        *("gts", "lbl", "mask_rgb", "matte", "alpha"),
    ],
)
def test_other_names_of_folders_of_masks(data: Path, folder: str) -> None:
    told = init(data, pairs("images", folder)).stderr
    assert told.startswith(f"masks: {PAIRS} masks, {PAIRS} images; split")


def test_other_names_of_folders_of_masks_may_hold_a_split(data: Path) -> None:
    told = init(data, pairs("train", "train_seg") | pairs("val", "val_seg")).stderr
    assert told.startswith(f"masks: {2 * PAIRS} masks, {2 * PAIRS} images; splits train, val")


@pytest.mark.parametrize("masks", ["masks", "seg"])
@pytest.mark.parametrize("images", ["original", "data", "photos"])
def test_a_folder_of_masks_beside_images_under_another_name(
    data: Path, images: str, masks: str
) -> None:
    files = pairs(f"train/{images}", f"train/{masks}") | pairs(f"val/{images}", f"val/{masks}")
    told = init(data, files).stderr
    assert told.startswith(f"masks: {2 * PAIRS} masks, {2 * PAIRS} images; splits train, val")


def test_which_of_two_folders_has_the_masks_is_not_guessed(data: Path) -> None:
    files = pairs("original", "masks") | pairs("original", "overlay", right=photo)
    assert "are original, overlay classes?" in init(data, files, exit_code=1).stderr


@pytest.mark.parametrize(
    ("files", "date"),
    [
        (pictures("2023/01", "2023/02", "2024/01"), "2023/01"),
        (pictures("2024/01", "2024/02"), "2024/01"),
        (pictures("2024/03-15", "2024/0401"), "2024/03-15"),
        (pictures("photos/2024/01", "photos/2024/02"), "photos/2024/01"),
        (pictures("2024-01-03", "2024-02-11"), "2024-01-03"),
        (pictures("20240103", "20240211"), "20240103"),
        (pictures("2024_01_03 trip", "04.05.2024 party"), "04.05.2024 party"),
        (pictures("train/2023/05", "val/2024/06"), "train/2023/05"),
    ],
)
def test_dates_are_no_classes(data: Path, files: Files, date: str) -> None:
    told = init(data, files).stderr
    assert told.startswith(f"images: pictures without labels, {len(files)} images")
    assert f"folders such as {date} are dates, and are not read as classes" in told
    run("init", str(data), "--format", "images", exit_code=0)


def test_folders_of_classes_above_masks_are_named(data: Path) -> None:
    files: Files = {}
    for name in ("benign", "malignant"):
        files |= {f"{name}/{name}.png": gray(1), f"{name}/{name}_mask.png": black_white(1)}
    told = init(data, files).stderr
    assert told.startswith("masks: 2 masks, 2 images; split train")
    assert "not read: the names of the folders benign, malignant, in case" in told
    patients = pairs("patient_1/images", "patient_1/masks")
    patients |= pairs("patient_2/images", "patient_2/masks")
    assert "not read" not in init(data.parent / "patients", patients).stderr
