"""How the lines of keras-yolo3 become boxes, and what becomes of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.keras_txt import KerasTxtFormat, split_line
from shardbeam.transforms.formats.testing import FormatReport, check_format
from tests.support.archive_files import write_files
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg

_CLASSES = {"_classes.txt": "dog\nnight heron\n"}


def _report(folder: Path, text: str | bytes, *images: str, **keys: object) -> FormatReport:
    write_files(folder, {"a.txt": text, **_CLASSES, **dict.fromkeys(images, b"x")})
    made = KerasTxtFormat(images=str(folder), annotations=[f"{folder}/a.txt"], **keys)  # type: ignore[arg-type]
    return check_format(made)


@pytest.mark.parametrize(
    ("line", "path", "words"),
    [
        ("a.jpg 1,2,3,4,0 5,6,7,8,1", "a.jpg", ["1,2,3,4,0", "5,6,7,8,1"]),
        ("my dog, 1 .jpg\t1,2,3,4,0  5,6,7,8,1", "my dog, 1 .jpg", ["1,2,3,4,0", "5,6,7,8,1"]),
        ("E:\\my data\\x.JPG", "E:/my data/x.JPG", []),
        # The first of two names in a row is one of a folder.
        ("a.jpg b.jpg 1,2,3,4,0", "a.jpg b.jpg", ["1,2,3,4,0"]),
        # A line end is missing.
        ("a.jpg 1,2,3,4,0 b.jpg 1,2,3,4,0", "a.jpg", ["1,2,3,4,0", "b.jpg", "1,2,3,4,0"]),
        ("a.jpg 1,2,3 5,6,7,8,1", "a.jpg", ["1,2,3", "5,6,7,8,1"]),
        ("a.jpg 1, 2, 3, 4, 0", "a.jpg", ["1,", "2,", "3,", "4,", "0"]),
    ],
)
def test_lines_are_split_where_the_boxes_begin(line: str, path: str, words: list[str]) -> None:
    assert split_line(line) == (path, words)


def test_keras_txt(tmp_path: Path) -> None:
    text = (
        "\ufeffa b.jpg 1,2,30,40,1 1,2,30,40,1 -5.5,6,7e0,8.,0\r\n\r\n"
        f"c.jpg\n{tmp_path}/d.png 1,2,3,4,1\n"
    )

    found = _report(tmp_path, text, "a b.jpg", "c.jpg", "d.png", "e.png")

    assert not found.rejects
    assert {
        key: [(it.label, it.bbox) for it in each.objects] for key, each in found.annotations.items()
    } == {
        "a b.jpg": [("night heron", (1, 2, 30, 40)), ("dog", (-5.5, 6, 7, 8))],
        "c.jpg": [],
        "d.png": [("night heron", (1, 2, 3, 4))],
    }
    assert found.annotations["a b.jpg"].corrections == {"duplicate_annotation_dropped": 1}
    # `a.txt` and `_classes.txt` are no images, and `e.png` has no line.
    assert found.excluded["unannotated"] == 1
    assert {(each.name, each.source_id) for each in found.categories} == {
        ("dog", 1),
        ("night heron", 2),
    }


def test_lines_of_one_image_add_up(tmp_path: Path) -> None:
    text = "a.jpg 1,2,3,4,0\nb.jpg 1,2,3,4,0\na.jpg 1.0,2,3,4,0 5,6,7,8,1\nb.jpg 1,2,3,x,0\n"

    found = _report(tmp_path, text, "a.jpg", "b.jpg")

    assert [each.bbox for each in found.annotations["a.jpg"].objects] == [
        (1, 2, 3, 4),
        (5, 6, 7, 8),
    ]
    # An image of which a line cannot be read is not written with the others.
    assert [reject.key for reject in found.rejects] == ["b.jpg"]


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b"a.jpg 1,2,3,4", "annotation_malformed", "expected x1,y1,x2,y2,class, got '1,2,3,4'"),
        (b"a.jpg 1,2,3,4,dog", "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        (b"a.jpg 1,2,3,4,-1", "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        (b"a.jpg 1,2,3,4,1.5", "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        (b"a.jpg nan,2,3,4,0", "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        (b"a.jpg 1_0,2,3,4,0", "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        ("a.jpg 1,2,3,٣,0".encode(), "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        (b"a.jpg 1,2,3,1e999,0", "annotation_malformed", "expected pixels, got '1,2,3,1e999,0'"),
        (b"a.jpg 1,2,3,4,2", "annotation_malformed", "_classes.txt names 2 classes, from 0 up"),
        (b"a.jpg 1,2,3,4,999999999", "annotation_malformed", "_classes.txt names 2 classes"),
        (b"a.jpg 1,2,3,4,0 b.jpg", "annotation_malformed", "expected x1,y1,x2,y2,class, got"),
        (b"a.jpg \xff", "annotation_malformed", "expected x1,y1,x2,y2,class, got '\\udcff'"),
        (b"1,2,3,4,0", "annotation_malformed", "expected path x1,y1,x2,y2,class"),
        (b"\xff\xfe.jpg 1,2,3,4,0", "unreadable_name", "the name is not valid Unicode"),
        (b"a\0.jpg 1,2,3,4,0", "unreadable_name", "the name holds a NUL character"),
        (b"../../etc/a.jpg 1,2,3,4,0", "outside_roots", "the image lies in none"),
        (b"/etc/a.jpg 1,2,3,4,0", "outside_roots", "the image lies in none"),
        (b"http://x/a.jpg 1,2,3,4,0", "outside_roots", "the image lies in none"),
    ],
)
def test_a_bad_line_is_a_reject_of_its_image(
    line: bytes, reason: str, detail: str, tmp_path: Path
) -> None:
    found = _report(tmp_path, b"b.jpg 1,2,3,4,0\n" + line + b"\n", "a.jpg", "b.jpg")

    assert [*found.annotations] == ["b.jpg"]
    (reject,) = found.rejects
    assert reject.reason.value == reason
    assert reject.detail.startswith(f"a.txt: byte 16: {detail}"), reject.detail
    is_named = line.startswith(b"a.jpg")
    assert (reject.key == "a.jpg") is is_named is reject.listed


def test_foreign_paths_are_joined_by_their_ends(tmp_path: Path) -> None:
    text = "E:\\data\\Train\\a.JPG 1,2,3,4,0\n/home/x/train/b.jpg 1,2,3,4,1\n"

    found = _report(tmp_path, text, "train/a.jpg", "train/b.jpg", "val/b.jpg", match="suffix")

    assert [*found.annotations] == ["train/a.jpg", "train/b.jpg"]
    assert not found.rejects


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "no file names the classes: looked for _classes.txt and classes.txt beside it"),
        ({"_classes.txt": ""}, "the file names no classes"),
        ({"_classes.txt": "dog\n\ncat"}, "expected a class name, the line is empty"),
        ({"model_data/a_classes.txt": "dog", "b_classes.txt": "cat"}, "name different classes"),
    ],
)
def test_classes_that_are_not_certain(files: dict[str, str], problem: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "a.jpg 1,2,3,4,0\n", **files})
    made = KerasTxtFormat(images=str(tmp_path), annotations=[f"{tmp_path}/a.txt"])

    with pytest.raises((InputError, Problem), match=problem):
        made.resolve()


def test_names_of_classes_are_found(tmp_path: Path) -> None:
    for path in ("_classes.txt", "classes.txt", "voc_classes.txt", "model_data/x_classes.txt"):
        folder = tmp_path / path.replace("/", "-")
        write_files(folder, {"a.txt": "a.jpg 1,2,3,4,1\n", "a.jpg": "x", path: "dog\ncat"})
        made = KerasTxtFormat(images=str(folder), annotations=[f"{folder}/a.txt"])
        (cat,) = check_format(made, damages=0).annotations["a.jpg"].objects
        assert cat.label == "cat"


def test_init_reads_roboflows_folders_also_beside_many_text_files(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {}
    for split in ("train", "valid"):
        names = [f"{number} x.jpg" for number in range(40)]
        lines = [f"{name} 1,2,3,4,{number % 2}" for number, name in enumerate(names)]
        lines[3] = f"{names[3]} 1,2,3"
        files[f"{split}/_annotations.txt"] = "\n".join(lines)
        files[f"{split}/_classes.txt"] = "dog\ncat"
        files |= {f"{split}/{name}": plain_jpeg() for name in names}
        files |= {f"{split}/{name[:-4]}.md.txt": "nothing" for name in names}
    write_files(tmp_path / "set", files)

    made = run("init", str(tmp_path / "set"), "--output", str(tmp_path / "set.yaml"), exit_code=0)

    assert "keras-txt: 2 annotation files, 80 images; splits train, valid" in made.stderr
    words = ["build", str(tmp_path / "set.yaml"), "--output", str(tmp_path / "out")]
    built = run(*words, "--max-ratio", "0.025", exit_code=0)
    assert "annotation_malformed" in built.stdout


def test_init_says_what_is_missing(tmp_path: Path) -> None:
    write_files(tmp_path, {"2007_train.txt": "E:\\x\\a.jpg 1,2,3,4,0\n", "b.jpg": plain_jpeg()})

    assert (
        "none of the images that 2007_train.txt names is there" in run("init", str(tmp_path)).stderr
    )
    write_files(tmp_path, {"a.jpg": plain_jpeg()})
    assert "no file names the classes" in run("init", str(tmp_path)).stderr
    write_files(tmp_path, {"model_data/voc_classes.txt": "dog"})
    made = run("init", str(tmp_path), exit_code=0)
    assert "match: name" in made.stdout
