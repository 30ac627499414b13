from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.names import normalize_key
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.archive_files import Files, write_files, write_tar, write_zip


def _classes_file(folder: Path, content: str | bytes) -> str:
    file = folder / "classes.txt"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("cat/a.jpg", "cat"),
        ("cat/2024/05/a.jpg", "cat"),
        ("night heron/a b.JPG", "night heron"),
        ("臉書/a.png", "臉書"),
        ("0/a.webp", "0"),
    ],
)
def test_the_class_is_the_first_folder(key: str, label: str) -> None:
    source = ImageFolderFormat(images="i")

    assert source.kinds == {Kind.CLASSIFICATION}
    assert list(source.annotation_files()) == []
    assert source.annotate_listed(key) == ImageAnnotations(image_id=key, labels=(label,))


@pytest.mark.parametrize(
    ("key", "exclusion"),
    [
        ("cat/.hidden.jpg", Exclusion.HIDDEN_FILE),
        (".git/a.jpg", Exclusion.HIDDEN_FILE),
        ("cat/readme.md", Exclusion.NOT_AN_IMAGE_NAME),
        ("classes.txt", Exclusion.NOT_AN_IMAGE_NAME),
    ],
)
def test_rules_leave_files_out(key: str, exclusion: Exclusion) -> None:
    assert ImageFolderFormat(images="i").annotate_listed(key) is exclusion


@pytest.mark.parametrize("key", ["a.jpg", "/a.jpg", "/cat/a.jpg"])
def test_image_outside_of_all_folders_is_rejected(key: str) -> None:
    with pytest.raises(RejectedError) as raised:
        ImageFolderFormat(images="i").annotate_listed(key)

    assert raised.value.reason is Reason.NO_CLASS_FOLDER


def test_classes_file_gives_ids_and_leaves_other_folders_out(tmp_path: Path) -> None:
    uri = _classes_file(tmp_path, "dog\ncat\n")
    source = ImageFolderFormat(images="i", classes=uri)

    assert list(source.annotation_files()) == [uri]
    assert list(source.read_annotations(storage=LocalStorage(), file_index=0)) == [
        Category(name="dog", source_id=0, origin=uri),
        Category(name="cat", source_id=1, origin=uri),
    ]
    assert isinstance(source.annotate_listed("cat/a.jpg"), ImageAnnotations)
    assert source.annotate_listed("bird/a.jpg") is Exclusion.CLASS_NOT_LISTED
    assert source.annotate_listed("bird/a.txt") is Exclusion.NOT_AN_IMAGE_NAME


def test_classes_file_is_read_once(tmp_path: Path) -> None:
    uri = _classes_file(tmp_path, "cat\n")
    root = write_files(tmp_path / "images", {"cat/a.jpg": ""})
    source = ImageFolderFormat(images=str(root), classes=uri).resolve()
    Path(uri).unlink()

    assert isinstance(source.annotate_listed("cat/a.jpg"), ImageAnnotations)
    assert source.annotate_listed("dog/a.jpg") is Exclusion.CLASS_NOT_LISTED


@pytest.mark.parametrize(
    "content",
    [
        "night heron\ncat",
        "night heron\r\ncat\r\n",
        b"\xef\xbb\xbfnight heron\ncat\n",
        "\n  night heron\t\n\n\ncat\n\n",
    ],
)
def test_line_ends_blank_lines_and_byte_order_mark_mean_nothing(
    tmp_path: Path, content: str | bytes
) -> None:
    source = ImageFolderFormat(images="i", classes=_classes_file(tmp_path, content))

    declared = list(source.read_annotations(storage=LocalStorage(), file_index=0))

    assert [(item.name, item.source_id) for item in declared if isinstance(item, Category)] == [
        ("night heron", 0),
        ("cat", 1),
    ]


def test_names_are_composed_as_keys_are(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "café")
    source = ImageFolderFormat(images="i", classes=_classes_file(tmp_path, f"{decomposed}\n"))

    found = source.annotate_listed(normalize_key(f"{decomposed}/a.jpg"))

    assert isinstance(found, ImageAnnotations)
    assert found.labels == ("café",)


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        ("", "", "names no classes"),
        (" \n\r\n", "", "names no classes"),
        ("cat\n\ndog\ncat\n", "line 4", "'cat' is on line 1 already"),
        ("cat\na/b\n", "line 2", "expected the name of a class folder, got 'a/b'"),
        ("cat\n".encode("utf-16"), "line 1", "UTF-16 text: save it as UTF-8"),
        ("cat\n".encode("utf-16-le"), "line 1", "expected the name of a class folder"),
    ],
)
def test_bad_classes_file(tmp_path: Path, content: str | bytes, place: str, problem: str) -> None:
    uri = _classes_file(tmp_path, content)

    with pytest.raises(InputError) as raised:
        ImageFolderFormat(images="i", classes=uri).resolve()

    assert (raised.value.uri, raised.value.place) == (uri, place)
    assert problem in raised.value.problem


def test_a_command_names_the_split_where_there_are_no_folders_of_splits(tmp_path: Path) -> None:
    """The source's name, by which its Examples are in order, is then that of the split."""
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "a.jpg").touch()
    found = [
        ImageFolderFormat.predefines_splits({"images": str(root), "split_folders": asked})
        for root in (tmp_path, tmp_path / "train")
        for asked in (None, False, True)
    ]

    assert found == [True, False, True, False, False, True]


LAYOUTS: dict[str, dict[str, str]] = {
    "folders": {"Dogs/a.jpg": "", "Cats/a.jpg": "", "Großer Hund/b/a.jpg": "", "Yak": ""},
    "splits": {"train/Dogs/a.jpg": "", "val/Cats/a.jpg": "", "val/Großer Hund/a.jpg": ""},
}


def test_a_file_of_classes_that_have_no_folder_is_refused_with_the_folders_that_are_near(
    tmp_path: Path,
) -> None:
    root = write_files(tmp_path / "images", {"Dogs/a.jpg": "", "Cats/a.jpg": ""})
    (tmp_path / "classes.txt").write_text("Dog\nYak\n")
    source = ImageFolderFormat(images=str(root), classes=f"{tmp_path}/classes.txt")

    with pytest.raises(InputError, match=r"2 of 2 classes have no folder: 'Dog' \(did you mean"):
        source.resolve()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("archive", ["", "a.zip", "a.tar"])
@pytest.mark.parametrize(
    ("classes", "warning"),
    [
        ("Cats\nDogs\n", ""),
        # The letters of a file's names may be composed.
        (unicodedata.normalize("NFD", "Großer Hund") + "\nCats", ""),
        ("Dog\nCats", "1 of 2 classes have no folder: 'Dog' (did you mean 'Dogs'?)"),
        ("Yak\nDogs\nDog", "2 of 3 classes have no folder: 'Yak', 'Dog'"),
        (
            "Cats\n" + "\n".join(f"n{number:03}" for number in range(1000)),
            "1,000 of 1,001 classes have no folder: 'n000', 'n001', 'n002', 'n003', 'n004', "
            "'n005', 'n006', 'n007', 'n008', 'n009' and 990 more",
        ),
    ],
)
def test_classes_of_the_file_that_no_folder_has(
    tmp_path: Path, layout: str, archive: str, classes: str, warning: str
) -> None:
    root = tmp_path / (archive or "images")
    writers: dict[str, Callable[[Path, Files], Path]] = {"a.zip": write_zip, "a.tar": write_tar}
    writers.get(archive, write_files)(root, LAYOUTS[layout])
    uri = _classes_file(tmp_path, classes)

    found = list(ImageFolderFormat(images=str(root), classes=uri).resolve().warnings())

    assert found == ([f"{uri}: {warning}"] if warning else [])
    assert list(ImageFolderFormat(images=str(root)).resolve().warnings()) == []
