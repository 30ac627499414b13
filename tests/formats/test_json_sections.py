"""A long JSON file is read from disk with the same outcome as a short one from memory."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category, ImageAnnotations
from shardbeam.transforms.formats.annotation_file import decode_json
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.coco.coco_file import CocoFile, CocoImage, read_entries
from shardbeam.transforms.formats.coco.lvis import LvisFormat
from shardbeam.transforms.formats.parsing import json_sections
from shardbeam.transforms.formats.parsing.json_sections import (
    TextInMemory,
    TextOnDisk,
    find_sections,
)
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.disk_file import DiskFile
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.builds import build
from tests.support.coco_reading import (
    URI,
    BytesOnDisk,
    annotation,
    document,
    image,
    peak_bytes,
    read_coco,
    read_content,
)
from tests.support.dataset import read_dataset
from tests.support.format_samples import SAMPLES, FormatSample, SharedData
from tests.support.making import make_format
from tests.support.odd_samples import ODD_SAMPLES, OddSample

_COCO: list[FormatSample | OddSample] = [
    *(sample for sample in SAMPLES if sample.format_name in ("coco", "lvis")),
    *(sample for sample in ODD_SAMPLES if sample.name.startswith("coco")),
]
_PANOPTIC: dict[str, Any] = {"panoptic": URI, "panoptic_masks": "m", "_masks": True}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_sections, "_PIECE_BYTES", 100)
    monkeypatch.setattr(json_sections, "_STEP_BYTES", 70)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.slow
def test_real_files(shared_data: Path) -> None:
    files = sorted(shared_data.rglob("*.json"))
    read = 0
    for file in files:
        for source in (
            CocoFormat(images="i", annotations=[URI], _masks=True),
            CocoFormat(images="i", annotations=[URI], tasks=["detection", "keypoints", "captions"]),
            CocoFormat(images="i", annotations=[URI], tasks=["semantic"]),
            make_format("coco", images="i", **_PANOPTIC),
            LvisFormat(images="i", annotations=[URI], _masks=True),
        ):
            try:
                read_content(source, file.read_bytes())
            except InputError:
                continue
            read += 1
    assert len(files) > 20
    assert read > 30


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(
            each, marks=() if each.name == "coco-masks" else pytest.mark.slow, id=each.name
        )
        for each in _COCO
    ],
)
def test_shards_have_the_same_bytes(
    sample: FormatSample | OddSample,
    tmp_path: Path,
    find_shared_data: SharedData,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = sample.place(tmp_path / "data", shared_data=find_shared_data)
    build(*sample.command(data), output=tmp_path / "in memory")
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 0)
    opened: list[TextOnDisk] = []

    class Recording(TextOnDisk):
        def __init__(self, file: DiskFile) -> None:
            super().__init__(file)
            opened.append(self)

    monkeypatch.setattr("shardbeam.transforms.formats.parsing.json_sections.TextOnDisk", Recording)
    build(*sample.command(data), output=tmp_path / "on disk")
    assert opened
    assert read_dataset(tmp_path / "on disk") == read_dataset(tmp_path / "in memory")


_TEXTS = st.sampled_from(
    [
        *("", "a", "é", "}, {", "]", '"', "\\", "\\\\", '\\"', '"annotations": [', "[[{", "]}]}"),
        *('"', '\\" , "annotations": [', "\ud800", "😀", "Y_y\x7f", "annotations", "images"),
    ]
)
_VALUES = st.recursive(
    st.integers(0, 9) | st.none() | st.booleans() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_ANNOTATIONS = st.builds(
    lambda changes, extra: annotation(**changes) | extra,
    st.fixed_dictionaries(
        {"id": st.integers(1, 4), "image_id": st.sampled_from([7, 8, "7", "x", 9])},
        optional={
            "caption": _TEXTS,
            "bbox": st.sampled_from([None, [], [1, 2, 3], [1, 2, 3, 4.5]]),
            "segmentation": st.sampled_from(
                [[], [[1, 2, 3, 4, 5, 6]], {"counts": "]}", "size": []}]
            ),
            "keypoints": st.sampled_from([[1, 2, 2], [1]]),
        },
    ),
    st.dictionaries(_TEXTS.filter(bool), _VALUES, max_size=1),
)
_IMAGES = st.builds(
    image,
    id=st.sampled_from([7, 8, "7", "x"]),
    file_name=st.sampled_from(["a.jpg", "b.jpg", "\ud800.jpg", "]}.jpg"]),
)
_MEMBERS = st.one_of(
    st.tuples(st.just("images"), st.lists(_IMAGES, max_size=3)),
    st.tuples(st.just("annotations"), st.lists(_ANNOTATIONS, max_size=5)),
    st.tuples(st.just("annotations"), _VALUES),
    st.tuples(st.just("categories"), st.just([{"id": 18, "name": "dog"}])),
    st.tuples(_TEXTS, _VALUES),
)


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    """Draws COCO files, most of them good, with their members in any order."""
    members: list[tuple[str, Any]] = [
        ("images", draw(st.lists(_IMAGES, min_size=1, max_size=3))),
        ("annotations", draw(st.lists(_ANNOTATIONS, max_size=6))),
        ("categories", [{"id": 18, "name": "dog"}]),
        *draw(st.lists(_MEMBERS, max_size=2)),
    ]
    members = draw(st.permutations(members))
    if draw(st.integers(0, 9)) == 0:
        members.pop()
    indent = draw(st.sampled_from([None, None, 0, 1]))
    is_ascii = draw(st.booleans())
    texts = []
    for key, value in members:
        written = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
        texts.append(f"{json.dumps(key, ensure_ascii=is_ascii)}{draw(_SPACES)}:{written}")
    text = f"{draw(_SPACES)}{{{','.join(texts)}{draw(_SPACES)}}}{draw(_SPACES)}"
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        data = draw(_damaged(data))
    return draw(st.sampled_from([b"", b"", codecs.BOM_UTF8])) + data


_SPACES = st.sampled_from(["", "", " ", "\n", "\t\r\n  "])


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Cuts, removes, doubles or writes some bytes."""
    begin, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    pieces = [
        *(b"", b",", b"]", b"[", b"}", b"{", b'"', b"\\"),
        *(b"\xff", b"\xc3", b"\0", b"x", b"\x0b"),
    ]
    written = draw(st.sampled_from([*pieces, b'"annotations":[', b"\\ud800", data[begin:end]]))
    is_short = draw(st.booleans())
    return data[:begin] + written + (data[end if not is_short else begin + 1 :])


_SOURCES: list[Format] = [
    CocoFormat(images="i", annotations=[URI], tasks=["detection"]),
    CocoFormat(images="i", annotations=[URI], tasks=["detection"], _masks=True),
    CocoFormat(images="i", annotations=[URI], tasks=["detection", "keypoints", "captions"]),
    make_format("coco", images="i", **_PANOPTIC),
    LvisFormat(images="i", annotations=[URI]),
]


@settings(max_examples=150)
@given(
    data=_files(),
    source=st.sampled_from(_SOURCES),
    piece_bytes=st.integers(1, 40) | st.sampled_from([400, 10_000]),
)
@example(b'{"images": [], "annotations": [}', _SOURCES[0], 1)
@example(b'{"images": [], "annotations": [\x0b]}', _SOURCES[0], 3)
@example(b'{"images": [], "annotations": {"annotations": []}}', _SOURCES[0], 2)
@example(b'{"images": [], "annot\\u0061tions": [{"image_id": 1}]}', _SOURCES[0], 2)
@example(b'["annotations", [1 2]]', _SOURCES[0], 2)
# A piece ends behind "2.".
@example(b'{"images": [], "annotations": [{"bbox": [10, 2.5], "id" 3}]}', _SOURCES[0], 44)
# A piece ends between the halves of a pair of surrogates.
@example(b'{"images": [], "annotations": ["\\ud83d\\ude00"]}', _SOURCES[0], 38)
def test_any_text(data: bytes, source: Format, piece_bytes: int) -> None:
    """Entries, defects, corrections and errors with their places are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_sections, "_PIECE_BYTES", piece_bytes)
        patch.setattr(json_sections, "_TOKEN_BYTES", 12)
        patch.setattr(json_sections, "_STEP_BYTES", piece_bytes)
        with contextlib.suppress(InputError):
            # It compares the two.
            read_content(source, data)


@given(
    document=st.dictionaries(_TEXTS, _VALUES, max_size=3),
    entries=st.lists(_VALUES, max_size=6),
    indent=st.sampled_from([None, 0, 1]),
    is_first=st.booleans(),
    piece_bytes=st.integers(1, 30),
)
def test_the_sections_and_the_entries(
    document: dict[str, Any],
    entries: list[Any],
    indent: int | None,
    is_first: bool,
    piece_bytes: int,
) -> None:
    """As `json` decodes them, in pieces of any length, even of one byte."""
    document = {key.replace("\ud800", "\ufffd"): value for key, value in document.items()}
    document.pop("annotations", None)
    whole = (
        {"annotations": entries, **document} if is_first else {**document, "annotations": entries}
    )
    data = json.dumps(whole, indent=indent).encode()
    replaced = json.loads(json.dumps(entries).replace("\\ud800", "\\ufffd"))
    for text in (TextInMemory(data), BytesOnDisk(data).text()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_sections, "_PIECE_BYTES", piece_bytes)
            sections = find_sections(text, arrays=("annotations",), uri=URI)

            assert sections.keys() == {key for key, value in whole.items() if value is not None}
            found = sections["annotations"]
            assert found is not None
            assert [json.loads(bytes(each)) for each in found] == replaced
            assert len(found) == len(replaced)
        backwards = range(len(replaced))[::-1]
        assert [json.loads(bytes(each)) for each in found.texts(backwards)] == replaced[::-1]


_CHANGES: dict[str, Callable[[Path], object]] = {
    "replaced": lambda file: file.write_bytes(b"{}"),
    "truncated": lambda file: os.truncate(file, 100),
    "another content": lambda file: file.write_bytes(file.read_bytes().replace(b"dog", b"cat")),
    "longer": lambda file: os.truncate(file, file.stat().st_size + 1),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_that_changes_is_an_error(
    change: Callable[[Path], object],
    is_open: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After it was scanned, or after the first entry."""
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 0)
    file = tmp_path / "instances.json"
    rows = [annotation(id=k, image_id=7 + k % 2, caption="A dog.") for k in range(10)]
    content = document(images=[image(), image(id=8, file_name="b.jpg")], annotations=rows)
    file.write_text(json.dumps(content), encoding="utf-8")
    os.utime(file, (1, 1))
    if is_open:
        source = CocoFormat(images="i", annotations=[str(file)], tasks=["captions"])
        entries: Iterator[AnnotationEntry | Category] = source.read_annotations(
            storage=LocalStorage(), file_index=0
        )
        next(entries)
        change(file)
    else:
        opened = CocoFile(str(file), storage=LocalStorage(), image_type=CocoImage)
        change(file)
        entries = read_entries(
            opened,
            lambda image, rows: (ImageAnnotations(image_id=""), 0),
            key_of=str,
            join_of=str,
            file_index=0,
        )

    with pytest.raises(InputError, match="was changed while it was read; run the same command"):
        list(entries)


def test_a_file_with_another_name_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is replaced by a rename stays the one that was opened."""
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 0)
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(document()), encoding="utf-8")
    source = CocoFormat(images="i", annotations=[str(file)], tasks=["captions"])
    entries = source.read_annotations(storage=LocalStorage(), file_index=0)
    first = next(entries)
    (tmp_path / "new").write_text("{}", encoding="utf-8")
    (tmp_path / "new").rename(file)

    assert isinstance(first, AnnotationEntry)
    assert first.key == "a.jpg"


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 0)
    monkeypatch.setattr(limits, "ANNOTATION_BYTES", 100)
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(document()), encoding="utf-8")
    source = CocoFormat(images="i", annotations=[str(file)])

    with pytest.raises(InputError, match="has more than 100 bytes"):
        list(source.read_annotations(storage=LocalStorage(), file_index=0))


def test_memory_does_not_grow_with_the_annotations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is held of an annotation are two numbers."""
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 0)
    monkeypatch.setattr(json_sections, "_PIECE_BYTES", 1 << 12)
    file = tmp_path / "instances.json"
    polygon = [[float(number) for number in range(400)]]
    rows = [annotation(id=k, image_id=7 + k % 100, segmentation=polygon) for k in range(2_000)]
    images = [image(id=7 + k, file_name=f"{k}.jpg") for k in range(100)]
    file.write_text(json.dumps(document(images=images, annotations=rows)), encoding="utf-8")
    del rows
    source = CocoFormat(images="i", annotations=[str(file)], tasks=["detection"], _masks=True)
    assert file.stat().st_size > 4_000_000
    assert peak_bytes(source) < file.stat().st_size / 4


def test_the_error_of_a_long_file_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the piece with the error is decoded again."""
    monkeypatch.setattr(json_sections, "_PIECE_BYTES", 2_000)
    data = json.dumps(document(annotations=[annotation(id=k) for k in range(1_000)])).encode()
    decoded: list[int] = []

    def recording(data: bytes, **options: Any) -> Any:  # noqa: ANN401
        decoded.append(len(data))
        return decode_json(data, **options)

    for broken in (data[:-500], data.replace(b'"id": 900', b'"id" 900')):
        with pytest.raises(InputError) as raised:
            read_coco(broken)
        with monkeypatch.context() as patch:
            patch.setattr(json_sections, "decode_json", recording)
            with pytest.raises(InputError) as again:
                find_sections(BytesOnDisk(broken).text(), arrays=("annotations",), uri=URI)
        assert str(again.value) == str(raised.value)
        assert max(decoded) < 5_000 < len(broken)
