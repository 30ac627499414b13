from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    decode_annotations,
)
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.join.merge_entries import merge_annotations
from shardbeam.transforms.formats.open_images import OpenImagesFormat
from tests.support.making import make_format
from tests.support.stored import StoredFiles
from tests.support.table_reading import read_parts

BOX_HEADER = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,"
    "IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
)
BOX = "c,xclick,/m/3,0.7,0.7,0.8,0,0.5,1,0,1,0,-1"
LABEL_HEADER = "ImageID,Source,LabelName,Confidence"
BOXES, LABELS = "data/boxes.csv", "data/labels.csv"


class Read:
    """The content of files that a format reads in parts of some size."""

    def __init__(
        self,
        boxes: str | bytes | None = None,
        labels: str | bytes | None = None,
        *,
        classes: str | None = None,
        chunk_bytes: int = 1 << 20,
    ) -> None:
        contents = {BOXES: boxes, LABELS: labels}
        files = {
            uri: content.encode() if isinstance(content, str) else content
            for uri, content in contents.items()
            if content is not None
        }
        self.format = OpenImagesFormat(
            images="i",
            boxes=[BOXES] if boxes is not None else [],
            image_labels=[LABELS] if labels is not None else [],
            classes=classes,
        )
        files |= {} if classes is None else {classes: Path(classes).read_bytes()}
        items = [
            item
            for file_index in range(len(files))
            for item in read_parts(
                self.format,
                storage=StoredFiles(files),
                file_index=file_index,
                chunk_bytes=chunk_bytes,
            )
        ]
        self.entries = [item for item in items if isinstance(item, AnnotationEntry)]
        self.categories = [item for item in items if isinstance(item, Category)]

    def images(self) -> dict[str, ImageAnnotations]:
        """Joins the entries."""
        parts = defaultdict(list)
        for entry in sorted(self.entries, key=lambda entry: (entry.file_index, entry.position)):
            if entry.defect is None:
                parts[entry.key].append(decode_annotations(entry.annotations))
        return {
            key: self.format.reconcile(merge_annotations(several)) if several[1:] else several[0]
            for key, several in parts.items()
        }

    def image(self) -> ImageAnnotations:
        (image,) = self.images().values()
        return image

    def defects(self) -> list[tuple[str, str]]:
        """Key and detail of the entries that cannot be used."""
        bad = [entry for entry in self.entries if entry.defect is not None]
        assert {entry.defect for entry in bad} <= {Reason.ANNOTATION_MALFORMED}
        return [(entry.key, entry.detail) for entry in bad]


def test_a_box() -> None:
    read = Read(f"{BOX_HEADER}\n{BOX}\n")
    image = read.image()
    assert (image.image_id, image.normalized, image.labels) == ("c", True, ())
    (item,) = image.objects
    assert (item.label, item.bbox) == ("/m/3", (0.7, 0.0, 0.8, 0.5))
    # 0 is the features' default.
    assert item.attributes == {
        "image/object/confidence": 0.7,
        "image/object/occluded": 1,
        "image/object/group_of": 1,
        "image/object/inside": -1,
    }
    assert read.categories == [Category(name="/m/3", origin=BOXES)]
    assert [entry.position for entry in read.entries] == [len(BOX_HEADER) + 1]


@pytest.mark.parametrize(
    ("path", "role", "key", "join"),
    [
        ("train/aa.jpg", Role.IMAGE, "train/aa.jpg", "aa"),
        ("aa.b.jpg", Role.IMAGE, "aa.b.jpg", "aa.b"),
        # These are left out, and must not make the stem `aa` ambiguous.
        ("aa.csv", Role.IMAGE, "aa.csv", "aa.csv"),
        (".aa.jpg", Role.IMAGE, ".aa.jpg", ".aa.jpg"),
    ],
)
def test_images_are_joined_by_id(path: str, role: Role, key: str, join: str) -> None:
    place = OpenImagesFormat(images="i", boxes=["a"]).place(path, root=0)
    assert (place.role, place.key, place.join) == (role, key, join)


@pytest.mark.parametrize(
    "content",
    [
        f"{BOX_HEADER}\r\n{BOX}\r\n",
        f"\ufeff{BOX_HEADER}\n{BOX}",
        f"{BOX_HEADER}\n\n{BOX}\n \n",
        f"{BOX_HEADER},XClick1X,Note\n{BOX},0.1,\n",
        f'{BOX_HEADER},Note\n{BOX},"a, b ""c"""\n',
        f"{BOX_HEADER.lower()}\n{BOX.replace(',', ' , ')}\n",
        "IsInside,YMax,YMin,XMax,XMin,Confidence,LabelName,ImageID,IsGroupOf,IsOccluded,IsTruncated,"
        "IsDepiction\n-1,0.5,0,0.8,0.7,0.7,/m/3,c,1,1,0,0\n",
    ],
)
def test_forms_of_one_file(content: str) -> None:
    assert Read(content).images() == Read(f"{BOX_HEADER}\n{BOX}\n").images()


def test_image_labels() -> None:
    read = Read(
        None,
        f"{LABEL_HEADER}\na,verification,/m/0,1\na,machine,/m/1,0.6\na,verification,/m/2,0\n"
        "b,verification,/m/0,0\n",
    )
    images = read.images()
    assert (images["a"].labels, images["a"].label_confidences) == (("/m/0", "/m/1"), (1.0, 0.6))
    assert images["a"].values == {
        "image/class/absent/label": ("/m/2",),
        "image/class/absent/text": ("/m/2",),
    }
    assert (images["b"].labels, images["b"].values["image/class/absent/label"]) == ((), ("/m/0",))
    assert [category.name for category in read.categories] == ["/m/0", "/m/1", "/m/2"]


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 30])
@pytest.mark.parametrize(
    ("confidences", "labels", "absent"),
    [
        (("0", "0.8"), (), ("/m/0",)),
        (("1", "0"), (), ("/m/0",)),
        (("0.5", "0.8"), (("/m/0", 0.8),), ()),
        (("0.8", "0.5", "0.6"), (("/m/0", 0.8),), ()),
    ],
)
def test_what_was_verified_to_be_absent_is_no_label_whoever_else_says_so(
    confidences: Sequence[str],
    labels: Sequence[tuple[str, float]],
    absent: Sequence[str],
    chunk_bytes: int,
) -> None:
    rows = [f"a,source,/m/0,{confidence}" for confidence in confidences]
    image = Read(None, "\n".join([LABEL_HEADER, *rows]), chunk_bytes=chunk_bytes).image()
    assert tuple(zip(image.labels, image.label_confidences, strict=True)) == tuple(labels)
    assert image.values.get("image/class/absent/label", ()) == tuple(absent)
    assert image.values.get("image/class/absent/text", ()) == tuple(absent)


OPEN_QUOTE = 'a quote does not end in its line; a row is one line, with "" for a quote in a cell'
BAD_BOXES = {
    "c,s,/m/3,0.7,0.7,0.8,0,x,1,0,1,0,0": "XMin, YMin, XMax, YMax: expected numbers",
    "c,s,/m/3,0.7,0.7,0.8,0,,1,0,1,0,0": "XMin, YMin, XMax, YMax: expected numbers",
    "c,s,/m/3,0.7,nan,0.8,0,1,1,0,1,0,0": "fractions of the image's sides, got nan, 0.0, 0.8, 1.0",
    "c,s,/m/3,0.7,0.7,320,0,0.5,1,0,1,0,0": "image's sides, got 0.7, 0.0, 320.0, 0.5",
    "c,s,/m/3,1.5,0.7,0.8,0,0.5,1,0,1,0,0": "Confidence: expected 0 to 1, got 1.5",
    "c,s,/m/3,?,0.7,0.8,0,0.5,1,0,1,0,0": "Confidence: expected a number",
    "c,s,/m/3,1,0.7,0.8,0,0.5,2,0,1,0,0": "occluded: expected 0, 1 or -1",
    "c,s,,1,0.7,0.8,0,0.5,1,0,1,0,0": "LabelName: expected a label",
    "c,s,/m/3,1,0.7": "expected 13 cells, got 5",
    "c,s,/m/3,1,0.7,0.8,0,0.5,1,0,1,0,0,0": "expected 13 cells, got 14",
    'c,"s,/m/3,1,0.7,0.8,0,0.5,1,0,1,0,0': OPEN_QUOTE,
}


@pytest.mark.parametrize("row", BAD_BOXES)
def test_a_bad_row_is_a_reject_with_its_place_and_the_others_are_kept(row: str) -> None:
    read = Read(f"{BOX_HEADER}\n{BOX}\n{row}\n{row}\n{BOX}\n")
    ((key, detail),) = read.defects()
    place = len(f"{BOX_HEADER}\n{BOX}\n")
    assert key == "c"
    assert detail.startswith(f"boxes.csv: byte {place}: ")
    assert BAD_BOXES[row] in detail
    assert detail.endswith(", and 1 more rows")
    assert len(read.image().objects) == 2


@pytest.mark.parametrize("row", [b",s,/m/0,1", b"\xff,s,/m/0,1", b"a\0,s,/m/0,1", b",,,"])
def test_each_row_without_an_id_is_a_reject_by_its_place(row: bytes) -> None:
    header = f"{LABEL_HEADER}\n".encode()
    read = Read(None, header + row + b"\n" + row)
    begins = len(header), len(header + row) + 1
    assert [key for key, _ in read.defects()] == [f"labels.csv: byte {begin}" for begin in begins]
    assert all(detail.startswith(f"{key}: ImageID: ") for key, detail in read.defects())
    assert read.images() == {}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: the columns ImageID, LabelName, XMin, YMin, XMax, YMax are missing"),
        (
            "ImageID,LabelName\n",
            "XMin, YMin, XMax, YMax are missing; those that are there: ImageID",
        ),
        (f"{BOX_HEADER},xmin\n", "the column XMin occurs twice"),
        (f"{BOX}\n", "are missing"),
        (BOX_HEADER.encode("utf-16-le"), "UTF-16"),
    ],
)
def test_a_file_of_something_else_is_an_error(content: str | bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        Read(content)
    assert raised.value.uri == BOXES


# Classes


def classes_file(folder: Path, content: str) -> str:
    (folder / "classes.csv").write_bytes(content.encode())
    return str(folder / "classes.csv")


@pytest.mark.parametrize(
    "content",
    [
        '/m/3,Cat\n/m/0,"Dog, or so"\n',
        '\ufeffLabelName,DisplayName\r\n/m/3,Cat\r\n\r\n/m/0,"Dog, or so"\r\n',
        "/m/3,Cat\n/m/0,Dog, or so",
    ],
)
def test_classes_give_names_and_ids(tmp_path: Path, content: str) -> None:
    uri = classes_file(tmp_path, content)
    read = Read(
        f"{BOX_HEADER}\n{BOX}\n", f"{LABEL_HEADER}\nc,s,/m/0,1\n", classes=uri, chunk_bytes=40
    )
    assert read.categories == [
        Category(name="Cat", source_id=1, origin=uri),
        Category(name="Dog, or so", source_id=2, origin=uri),
    ]
    image = read.image()
    assert ([item.label for item in image.objects], image.labels) == (["Cat"], ("Dog, or so",))
    labels_only = Read(None, f"{LABEL_HEADER}\n", classes=uri)
    assert [category.source_id for category in labels_only.categories] == [0, 1]


def test_labels_that_the_classes_do_not_name_are_left_out_and_counted(tmp_path: Path) -> None:
    uri = classes_file(tmp_path, "/m/9,Bird\n")
    read = Read(f"{BOX_HEADER}\n{BOX}\n", f"{LABEL_HEADER}\nc,s,/m/0,1\n", classes=uri)
    image = read.image()
    assert (image.objects, image.labels) == ((), ())
    assert image.corrections == {
        "object_of_excluded_label_dropped": 1,
        "excluded_label_dropped": 1,
    }


def test_classes_of_one_name_stay_apart(tmp_path: Path) -> None:
    uri = classes_file(tmp_path, "/m/3,Bat\n/m/4,Bat\n/m/5,\n")
    names = [category.name for category in Read(f"{BOX_HEADER}\n", classes=uri).categories]
    assert names == ["Bat (/m/3)", "Bat (/m/4)", "/m/5"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "names no classes"),
        ("LabelName,DisplayName\n", "names no classes"),
        ("/m/0,Cat\n/m/0,Dog\n", "line 2: '/m/0' occurs twice"),
        ("/m/0\n", "line 1: expected a label and a name"),
        (",Cat\n", "line 1: expected a label and a name"),
        ('/m/0,"Cat\n/m/1,Dog\n', f"line 1: {OPEN_QUOTE}"),
        ("/m/0,Cat\x85s\n", "line 1: expected a name of one line"),
        ("/m/0,Cat\n".encode("utf-16").decode("latin-1"), "no classes|expected|NUL"),
    ],
)
def test_bad_classes_are_an_error(tmp_path: Path, content: str, problem: str) -> None:
    uri = classes_file(tmp_path, content)
    with pytest.raises(InputError, match=problem) as raised:
        OpenImagesFormat(images="i", boxes=["a"], classes=uri).resolve()
    assert raised.value.uri == uri


def test_settings_are_checked() -> None:
    with pytest.raises(Problem, match="boxes: missing; open-images needs boxes or image_labels"):
        make_format("open-images", images="i")
    with pytest.raises(Problem, match="boxes: expected a list"):
        make_format("open-images", images="i", boxes=1)
    with pytest.raises(Problem, match=r"image_labels\[0\]: expected a path or URI"):
        make_format("open-images", images="i", image_labels=[1])


# Against the standard library's reader

FRACTIONS = st.sampled_from(["0", "1", "0.25", "0.123456", "1e-3", ".5", "-0.02", "1.01"])
BOX_CELLS = {
    "ImageID": st.sampled_from(["a", "b", "ö-1", "c c"]),
    "LabelName": st.sampled_from(["/m/0", "/m/1", 'with "quotes", commas']),
    "Confidence": st.sampled_from(["1", "0.5", "0"]),
    **dict.fromkeys(("XMin", "XMax", "YMin", "YMax"), FRACTIONS),
    "IsOccluded": st.sampled_from(["0", "1", "-1"]),
    "IsInside": st.sampled_from(["0", "1", "-1"]),
}


@given(
    rows=st.lists(st.fixed_dictionaries(BOX_CELLS), max_size=12),
    columns=st.permutations(sorted(BOX_CELLS)),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    chunk_bytes=st.integers(5, 300),
)
def test_boxes_come_back_whatever_the_parts(
    rows: list[dict[str, str]], columns: list[str], quoting: Literal[0, 1], chunk_bytes: int
) -> None:
    file = io.StringIO()
    writer = csv.writer(file, quoting=quoting)
    writer.writerows([columns, *([row[column] for column in columns] for row in rows)])
    read = Read(file.getvalue(), chunk_bytes=chunk_bytes)
    assert read.defects() == []
    expected = defaultdict(list)
    for row in rows:
        box = tuple(float(row[side]) for side in ("XMin", "YMin", "XMax", "YMax"))
        values = [float(row[column]) for column in ("IsOccluded", "IsInside", "Confidence")]
        expected[row["ImageID"]].append((row["LabelName"], box, values))
    # The value of a missing attribute.
    defaults = {"occluded": 0, "inside": 0, "confidence": 1}
    assert expected == {
        key: [
            (
                item.label,
                item.bbox,
                [item.attributes.get(f"image/object/{name}", defaults[name]) for name in defaults],
            )
            for item in image.objects
        ]
        for key, image in read.images().items()
    }
    assert {category.name for category in read.categories} == {row["LabelName"] for row in rows}


def test_rows_of_one_image_are_one_entry() -> None:
    rows = "".join(f"{name},{BOX.partition(',')[2]}\n" for name in "aaabba")
    read = Read(f"{BOX_HEADER}\n{rows}")
    assert [
        (entry.key, len(decode_annotations(entry.annotations).objects)) for entry in read.entries
    ] == [("a", 3), ("b", 2), ("a", 1)]
