from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedImage
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.recognition import Folder
from shardbeam.transforms.formats.testing import FormatReport, check_format
from shardbeam.transforms.formats.webdataset import WebDatasetFormat
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.image_bytes import read_bytes
from tests.support.archive_files import write_tar
from tests.support.image_makers import plain_jpeg
from tests.support.making import make_format


def report(*tars: Path | str, **settings: object) -> FormatReport:
    roots = [str(tar) for tar in tars]
    return check_format(make_format("webdataset", tars=roots, **settings))


def items(tar: Path) -> Iterator[ListedImage | AnnotationEntry | Category]:
    ((name, file),) = list_root(str(tar), open_archives=False)
    return WebDatasetFormat(tars=[str(tar)]).read_container(file, path=name, root=0)


def sample(**files: object) -> dict[str, bytes]:
    """The files of a sample by their extensions, `_` for a dot."""
    return {
        extension.replace("_", "."): content
        if isinstance(content, bytes)
        else content.encode()
        if isinstance(content, str)
        else json.dumps(content).encode()
        for extension, content in files.items()
    }


def shard(path: Path, samples: Mapping[str, Mapping[str, bytes]]) -> Path:
    return write_tar(
        path,
        [
            (f"{key}.{extension}", content)
            for key, files in samples.items()
            for extension, content in files.items()
        ],
    )


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_samples = st.dictionaries(
    st.integers(0, 99).map("{:05}".format),
    st.fixed_dictionaries(
        {},
        optional={
            "cls": st.integers(0, 9),
            "txt": _texts.filter(lambda text: text == text.strip("\r\n\ufeff")),
            "json": st.fixed_dictionaries({"similarity": st.floats(0, 1, width=32)}),
        },
    ),
    min_size=1,
    max_size=9,
)


@given(samples=_samples, order=st.randoms(use_true_random=False))
def test_samples_are_found_as_they_were_written(
    samples: dict[str, dict[str, object]],
    order: object,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("tars") / "a.tar"
    files = []
    for key, content in samples.items():
        parts = [("jpg", key.encode())]
        for extension, value in content.items():
            text = value if extension == "txt" else json.dumps(value)
            parts.append((extension, str(text).encode()))
        order.shuffle(parts)  # type: ignore[attr-defined]
        files += [(f"{key}.{extension}", data) for extension, data in parts]
    write_tar(path, files)

    found = report(path, fields={"similarity": "float"})

    assert not found.rejects
    assert sorted(found.annotations) == sorted(f"a.tar/{key}.jpg" for key in samples)
    for key, content in samples.items():
        annotations = found.annotations[f"a.tar/{key}.jpg"]
        assert annotations.image_id == key
        assert annotations.labels == ((str(content["cls"]),) if "cls" in content else ())
        assert annotations.captions == ((content["txt"],) if "txt" in content else ())
        similarity = content.get("json", {"similarity": None})["similarity"]  # type: ignore[index]
        assert annotations.values == ({} if similarity is None else {"similarity": (similarity,)})


def test_images_are_byte_ranges(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", {"x/1": sample(jpg=b"one"), "2": sample(PNG=b"two")})

    images = {item.key: item.image for item in items(path) if isinstance(item, ListedImage)}

    assert {key: read_bytes(image) for key, image in images.items()} == {
        "a.tar/x/1.jpg": b"one",
        "a.tar/2.PNG": b"two",
    }


@pytest.mark.parametrize(
    ("files", "labels", "captions"),
    [
        (sample(cls="7"), ("7",), ()),
        (sample(cls="007\n"), ("7",), ()),
        (sample(cls="night heron"), ("night heron",), ()),
        (sample(json={"label": 7}), ("7",), ()),
        (sample(json={"label": "cat"}), ("cat",), ()),
        (sample(json={"label": ["cat", "dog", "cat"]}), ("cat", "dog"), ()),
        (sample(cls="7", json={"label": 8}), ("7",), ()),
        (sample(txt="A cat,\non a mat.\n"), (), ("A cat,\non a mat.",)),
        (sample(txt=b"\xef\xbb\xbfA cat\r\n"), (), ("A cat",)),
        (sample(json={"caption": "A cat"}), (), ("A cat",)),
        (sample(json={"caption": ["A cat", "Cat"]}), (), ("A cat", "Cat")),
        (sample(txt="A cat", json={"caption": "No"}), (), ("A cat",)),
        (sample(json=rb'{"caption": "A\ud800cat"}'), (), ("A\ufffdcat",)),
        (sample(json={"label": None, "caption": None, "more": {}}), (), ()),
        (sample(seg_png=b"png", npy=b"\x93NUMPY", cls2="9"), (), ()),
    ],
)
def test_what_a_sample_says(
    tmp_path: Path, files: dict[str, bytes], labels: tuple[str, ...], captions: tuple[str, ...]
) -> None:
    path = shard(tmp_path / "a.tar", {"1": {"jpg": b"image", **files}})

    (annotations,) = report(path).annotations.values()

    assert (annotations.labels, annotations.captions) == (labels, captions)
    lone = files.get("json", b"").count(rb"\ud800")
    assert annotations.corrections.get("lone_surrogate_replaced", 0) == lone


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        (sample(cls=""), ".cls: expected a class's number or name, got ''"),
        (sample(cls="a\nb"), ".cls: expected a class's number or name"),
        (sample(cls=b"\xff"), ".cls: byte 0: expected UTF-8 text"),
        (sample(txt=b"ok\xff"), ".txt: byte 2: expected UTF-8 text"),
        (sample(json=b"{"), ".json: "),
        (sample(json=[1]), ".json: expected an object"),
        (sample(json={"label": 1.5}), ".json: label: expected text, got 1.5"),
        (sample(json={"label": True}), ".json: label: expected text, got True"),
        (sample(json={"caption": 3}), ".json: caption: expected text, got 3"),
        (sample(json=b'{"a":' * 5000), ".json: "),
        (sample(cls="1", CLS="2"), ".cls occurs twice"),
        (sample(json={"size": "big"}), ".json: size: expected int, got 'big'"),
        (sample(json={"size": 1.5}), ".json: size: expected int, got 1.5"),
        (sample(json={"size": True}), ".json: size: expected int, got True"),
    ],
)
def test_samples_that_are_malformed_are_rejects(
    tmp_path: Path, files: dict[str, bytes], detail: str
) -> None:
    path = shard(tmp_path / "a.tar", {"0": sample(jpg=b"0"), "1": {"jpg": b"1", **files}})

    found = report(path, fields={"size": "int"})

    ((key, reason, text),) = [(each.key, each.reason.value, each.detail) for each in found.rejects]
    assert (key, reason) == ("a.tar/1.jpg", "annotation_malformed")
    assert text.startswith(f"a.tar, sample '1': {detail}")
    assert list(found.annotations) == ["a.tar/0.jpg"]


def test_samples_without_an_image_and_with_two_are_rejects(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "a.tar",
        {
            "none": sample(cls="1", txt="?"),
            "two": sample(jpg=b"1", png=b"2", cls="1"),
            "masks": sample(left_png=b"1", right_png=b"2"),
            "good": sample(jpg=b"1", seg_png=b"2"),
        },
    )

    found = report(path)

    assert list(found.annotations) == ["a.tar/good.jpg"]
    assert [(each.key, each.reason.value, each.listed) for each in found.rejects] == [
        ("a.tar/masks", "missing_image", False),
        ("a.tar/none", "missing_image", False),
        ("a.tar/two.jpg", "ambiguous_stem", True),
        ("a.tar/two.png", "ambiguous_stem", True),
    ]


def test_files_of_a_sample_must_stand_together(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"1", "2.jpg": b"2", "1.cls": b"1"})

    found = report(path)

    ((key, reason, detail),) = [(e.key, e.reason.value, e.detail) for e in found.rejects]
    assert (key, reason) == ("a.tar/1", "missing_image")
    assert "must follow each other" in detail


def test_a_sample_that_comes_again_is_a_reject(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        [
            *[("1.jpg", b"1"), ("1.cls", b"1"), ("2.jpg", b"2")],
            *[("1.jpg", b"other"), ("1.cls", b"9"), ("2.png", b"other")],
        ],
    )

    found = report(path)

    # The first keeps its own label.
    assert {key: each.labels for key, each in found.annotations.items()} == {
        "a.tar/1.jpg": ("1",),
        "a.tar/2.jpg": (),
    }
    assert [(each.key, each.reason.value, each.listed) for each in found.rejects] == [
        ("a.tar/1.jpg", "duplicate_key", True),
        ("a.tar/2.png", "duplicate_key", True),
    ]


def test_tars_may_repeat_keys(tmp_path: Path) -> None:
    for name in ("x/0.tar", "y/0.tar", "y/1.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shard(tmp_path / name, {"1": sample(jpg=name, cls=name)})
    (tmp_path / "y" / "notes.json").write_text("{}")
    expected = {f"{name}/1.jpg": (name,) for name in ("x/0.tar", "y/0.tar", "y/1.tar")}

    def labels(*tars: str) -> dict[str, tuple[str, ...]]:
        found = report(*(f"{tmp_path}/{tar}" for tar in tars))
        assert not found.rejects
        return {key: each.labels for key, each in found.annotations.items()}

    assert labels("*/*.tar") == expected
    assert labels("x/0.tar", "y/[01].tar") == expected
    assert labels("x", "y") == expected
    assert labels("x/0.tar") == {"0.tar/1.jpg": ("x/0.tar",)}
    assert labels("y") == {"0.tar/1.jpg": ("y/0.tar",), "1.tar/1.jpg": ("y/1.tar",)}


def test_files_that_belong_to_no_sample_are_excluded(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        {"README": b"?", ".hidden.jpg": b"?", "__MACOSX/1.jpg": b"?", "./1.jpg": b"1"},
    )

    found = report(path)

    assert list(found.annotations) == ["a.tar/1.jpg"]
    assert found.excluded == {"hidden_file": 2, "not_an_image_name": 1}


def test_links_are_rejects(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, target in (("1.jpg", "2.jpg"), ("3.cls", "2.cls")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        image = tarfile.TarInfo("3.jpg")
        image.size = 1
        archive.addfile(image, io.BytesIO(b"3"))

    images = {item.key: item.image for item in items(path) if isinstance(item, ListedImage)}

    assert "link" in images["a.tar/1.jpg"].problem
    assert [each.key for each in report(path).rejects] == ["a.tar/3.jpg"]


def test_classes_are_declared_with_their_numbers(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "a.tar",
        {"1": sample(jpg=b"1", cls="7"), "2": sample(jpg=b"2", cls="cat"), "3": sample(jpg=b"3")},
    )

    assert [item for item in items(path) if isinstance(item, Category)] == [
        Category(name="7", source_id=7, origin=str(path)),
        Category(name="cat", source_id=None, origin=str(path)),
    ]


NUMBERS = {str(number): sample(jpg=b"1", cls=str(number)) for number in range(3, 9)}
NAMES = {str(number): sample(jpg=b"1", cls=f"class {number}") for number in range(3, 9)}
ODD_NAME = {"1": sample(jpg=b"1", cls="cat"), "2": sample(jpg=b"2", json={"label": [4, "dog"]})}
ODD_NUMBER = {"1": sample(jpg=b"1", cls="30")}


@pytest.mark.parametrize(
    ("tars", "numbered", "rejects"),
    [
        # One tar of odd samples alone, read first.
        ([ODD_NAME, NUMBERS], True, {"a.tar/1.jpg": "'1.cls'", "a.tar/2.jpg": "'2.json'"}),
        ([ODD_NUMBER | NAMES], False, {"a.tar/1.jpg": "'1.cls': the class '30' is a number"}),
        ([NAMES], False, {}),
        ([NUMBERS], True, {}),
    ],
)
def test_a_class_unlike_the_first_ones_costs_its_sample(
    tmp_path: Path,
    tars: list[dict[str, dict[str, bytes]]],
    numbered: bool,
    rejects: dict[str, str],
) -> None:
    for name, samples in zip("ab", tars, strict=False):
        shard(tmp_path / f"{name}.tar", samples)
    made = WebDatasetFormat(tars=[str(tmp_path)], _keeps_ids=True).resolve()

    found = check_format(made)

    assert made._numbered is numbered
    details = {each.key: each.detail for each in found.rejects}
    assert details.keys() == rejects.keys()
    for key, detail in rejects.items():
        assert f": {detail}" in details[key]
        assert "labels.ids: contiguous takes both" in details[key]


@pytest.mark.parametrize(
    ("samples", "keeps_ids"),
    [
        # With labels.ids: contiguous, all classes are names.
        (ODD_NAME | NUMBERS, False),
        # Nothing decides between the two.
        ({"1": sample(jpg=b"1")}, True),
        (NUMBERS | {f"{key} too": files for key, files in NAMES.items()}, True),
    ],
)
def test_classes_may_be_numbers_and_names(
    tmp_path: Path, samples: dict[str, dict[str, bytes]], keeps_ids: bool
) -> None:
    path = shard(tmp_path / "a.tar", samples)

    assert WebDatasetFormat(tars=[str(path)], _keeps_ids=keeps_ids).resolve()._numbered is None


def test_a_tar_that_cannot_be_read_does_not_end_the_look_at_classes(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar")
    shard(tmp_path / "b.tar", NUMBERS)

    made = WebDatasetFormat(tars=[str(tmp_path)], _keeps_ids=True).resolve()

    assert made._numbered


def test_types_of_fields(tmp_path: Path) -> None:
    document = {"i": 3, "f": 1, "b": True, "s": "ö", "n": None}
    path = shard(tmp_path / "a.tar", {"1": sample(jpg=b"1", json=document)})
    fields = {"i": "int", "f": "float", "b": "bool", "s": "string", "n": "int", "absent": "string"}

    (annotations,) = report(path, fields=fields).annotations.values()

    assert annotations.values == {"i": (3,), "f": (1.0,), "b": (1,), "s": ("ö",)}
    with pytest.raises(Problem, match=r"fields\.i: expected int, float, bool or string, got 'str'"):
        make_format("webdataset", tars=["a.tar"], fields={"i": "str"})


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("00000.tar", Role.CONTAINER),
        # To be refused, not overlooked.
        ("00000.tar.gz", Role.CONTAINER),
        ("00000.parquet", Role.OTHER),
        ("00000_stats.json", Role.OTHER),
        ("._00000.tar", Role.OTHER),
    ],
)
def test_roles_of_files(path: str, role: Role) -> None:
    assert WebDatasetFormat(tars=["folder"]).place(path, root=0).role is role


def test_a_dot_before_the_extension_is_explained(tmp_path: Path) -> None:
    files = {"22.05.jpg": plain_jpeg(), "22.05.cls": b"1"}
    tar = write_tar(tmp_path / "a.tar", files)
    (entry,) = [each for each in items(tar) if isinstance(each, AnnotationEntry)]
    assert "all that follows the first dot of a name" in entry.detail
    assert "'22.05.jpg' is a file '.05.jpg' of the sample '22'" in entry.detail
    found = WebDatasetFormat.recognize(Folder(str(tmp_path)))
    assert found is not None
    assert found.problem.startswith("a.tar: the extension is all that follows the first dot")


def test_a_pattern_of_init_matches_all_tars_of_a_split(tmp_path: Path) -> None:
    for name in ("test/1", "test/2", "train/1", "train/more/2", "val-1", "val-2"):
        path = tmp_path / f"{name}.tar"
        path.parent.mkdir(exist_ok=True)
        shard(path, {"1": sample(jpg=plain_jpeg(), cls=b"1")})

    found = WebDatasetFormat.recognize(Folder(str(tmp_path)))

    assert found is not None
    # A wildcard matches no slash, so that `train/*.tar` would be one of the two tars.
    expected = {
        "test": ["test/*.tar"],
        "train": ["train/1.tar", "train/more/2.tar"],
        "val": ["val-*.tar"],
    }
    assert found.sources == {
        split: {"tars": [str(tmp_path / path) for path in paths]}
        for split, paths in expected.items()
    }


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"objects": [], "caption": "x"}, ["and not objects: boxes"]),
        ({"bbox": [1], "url": "x"}, ["and not bbox: boxes", "in the first 2 samples, no"]),
        ({"label": 1, "url": "x"}, []),
        ({"url": "x"}, ["in the first 2 samples, no annotation is read"]),
    ],
)
def test_annotations_that_are_not_read_are_named(
    document: object, words: list[str], tmp_path: Path
) -> None:
    one = sample(jpg=plain_jpeg(), json=document)
    shard(tmp_path / "a.tar", {"1": one, "2": one})
    made = make_format("webdataset", tars=[str(tmp_path)])
    warnings = [*made.warnings()]
    assert [word in line for word, line in zip(words, warnings, strict=True)] == [True] * len(words)
