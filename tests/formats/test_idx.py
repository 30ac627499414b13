"""MNIST's idx files: which are read, that pixels stay the same, and what is refused."""

from __future__ import annotations

import gzip
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.idx import IdxFormat
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.storage import limits
from tests.support.archive_files import write_files, write_tar, write_zip
from tests.support.builds import build
from tests.support.dataset import run
from tests.support.idx_files import idx_bytes, write_idx

_IMAGES, _LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TWO = np.arange(70, dtype=np.uint8).reshape(2, 5, 7)


@pytest.mark.parametrize("packed", [False, True])
def test_idx(packed: bool, tmp_path: Path) -> None:
    written = write_idx(tmp_path / "set", packed=packed)

    # Damages are tried on files that are parsed alone.
    found = check_format(IdxFormat(root=str(tmp_path / "set")), damages=0)

    assert Counter(found.splits.values()) == {"train": 30, "test": 12}
    assert found.annotations[f"{_IMAGES}/00017"].labels == ("7",)
    assert {(each.name, each.source_id) for each in found.categories} == {
        (str(label), label) for label in range(10)
    }
    built = build("idx", "--root", tmp_path / "set", output=tmp_path / "out")
    for split, name, count in (("train", "train", 30), ("test", "t10k", 12)):
        wanted = np.frombuffer(written[f"{name}-images-idx3-ubyte"], np.uint8, offset=16)
        examples = built.by_key(split)
        assert len(examples) == count
        for key, example in examples.items():
            number = int(key.rpartition("/")[2])
            shown = np.asarray(example.picture)
            assert shown.shape == (5, 7), "one channel"
            assert (shown == wanted.reshape(count, 5, 7)[number]).all()
            assert example.image_labels == [(str(number % 10), number % 10)]


def test_raw_files_and_packed_ones_are_one_set(tmp_path: Path) -> None:
    write_idx(tmp_path / "packed", packed=True)
    write_idx(tmp_path / "both", packed=True)
    write_idx(tmp_path / "both")
    # As a well-known download has them: once more, in a folder of the file's name.
    for name, data in write_idx(tmp_path / "x").items():
        twice = {name.replace("-idx", ".idx"): data, f"{name}/{name}": data}
        write_files(tmp_path / "dots", twice)

    reports = [
        check_format(IdxFormat(root=str(tmp_path / name)), damages=0) for name in ("packed", "both")
    ]

    assert reports[0].annotations == reports[1].annotations
    assert reports[0].splits == reports[1].splits
    made = IdxFormat(root=str(tmp_path / "dots")).resolve()
    assert len([*made.warnings()]) == 4
    assert len(check_format(made, damages=0).annotations) == 42


def test_a_tar_is_read_in_place(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {f"mnist/{k}": v for k, v in write_idx(tmp_path / "x").items()})
    built = build("idx", "--root", tmp_path / "a.tar", output=tmp_path / "out")
    assert len(built.by_key("train")) == 30


def test_several_sets_and_emnists_mapping(tmp_path: Path) -> None:
    root = tmp_path / "gzip"
    write_idx(root, of_set="emnist-letters-", packed=True)
    write_idx(root, of_set="emnist-digits-", packed=True)
    lines = [f"{label} {64 + label} {96 + label}\n" for label in range(1, 10)]
    (root / "emnist-letters-mapping.txt").write_text("".join(lines))

    with pytest.raises(InputError, match="several sets: emnist-digits, emnist-letters; name one"):
        IdxFormat(root=str(root)).resolve()
    found = check_format(IdxFormat(root=str(root), subset="emnist-letters"), damages=0)

    assert found.annotations[f"emnist-letters-{_IMAGES}/00011"].labels == ("A",)
    # Label 0 is in no line.
    assert Counter(reject.detail for reject in found.rejects) == {
        "the label is 0, which is none of 9 classes": 5
    }


def test_names_of_classes(tmp_path: Path) -> None:
    write_idx(tmp_path / "set")
    (tmp_path / "names.txt").write_text("".join(f"class {i}\n" for i in range(10)))
    made = IdxFormat(root=str(tmp_path / "set"), classes=str(tmp_path / "names.txt"))
    assert check_format(made, damages=0).annotations[f"{_IMAGES}/00003"].labels == ("class 3",)


def _header(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def _pack(data: bytes) -> bytes:
    # Without a time, so that names of tests are the same in all processes.
    return gzip.compress(data, mtime=0)


_PACKED = _pack(idx_bytes(_TWO))


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        (b"", "expected an idx file of bytes in 3 dimensions \\(magic 2051\\), got nothing"),
        (b"\0\0\x08\x03\0", "expected an idx file of bytes"),
        (idx_bytes(_TWO)[:-1], "announces 86 bytes, but it has 85: the file is truncated"),
        (idx_bytes(_TWO) + b"x", "announces 86 bytes, but it has 87"),
        (_header(0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "but it has 16"),
        (_header(0x0803, 0, 5, 7), "0 items of 5 x 7: nothing to read"),
        (_header(0x0803, 2, 0, 7), "2 items of 0 x 7: nothing to read"),
        # 32-bit values, and four dimensions.
        (_header(0x0C03, 2, 5, 7) + bytes(280), "expected an idx file of bytes .* got 00000c03"),
        (_header(0x0804, 2, 5, 7, 1) + bytes(70), "expected an idx file of bytes .* got 00000804"),
        (b"<html>not found</html>", "HTML or XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (idx_bytes(_TWO[:1]), "holds 1 images, but its labels are 2"),
        (_PACKED[:-9], "cannot be decompressed: Compressed file ended"),
        (_PACKED[:-8] + bytes(8), "cannot be decompressed: CRC check failed"),
        (b"\x1f\x8b" + bytes(40), "cannot be decompressed: Unknown compression method"),
        (_pack(idx_bytes(_TWO)[:-1]), "announces 86 bytes, but it holds 85"),
        # Bombs: more than the header announces, and a header that announces too much.
        (_pack(idx_bytes(_TWO) + bytes(50 << 20)), "announces 86 bytes, but it holds more"),
        (_pack(_header(0x0803, 2, 2**31, 7)), "more than 1,073,741,824 are not unpacked"),
    ],
)
def test_bad_files_are_refused(images: bytes, problem: str, tmp_path: Path) -> None:
    labels = idx_bytes(np.zeros(2, np.uint8))
    write_files(tmp_path, {_IMAGES: images, _LABELS: labels})

    with pytest.raises(InputError, match=problem) as caught:
        check_format(IdxFormat(root=str(tmp_path)), damages=0)
    assert caught.value.uri == f"{tmp_path}/{_IMAGES}"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.txt": b"x"}, "no train-images-idx3-ubyte or t10k-images-idx3-ubyte here"),
        ({_IMAGES: idx_bytes(_TWO)}, "there are no labels to it"),
        ({_LABELS: idx_bytes(_TWO[:, 0, 0])}, "there are no images to it"),
        ({_IMAGES: idx_bytes(_TWO), _LABELS: b"x"}, "expected an idx file of bytes in 1 dim"),
        (
            {_IMAGES: b"ab", f"b/{_IMAGES}": b"a", _LABELS: b"x"},
            f"{_IMAGES} and b/{_IMAGES} differ in length",
        ),
        (
            {
                **{f"e-{_IMAGES}": idx_bytes(_TWO), f"e-{_LABELS}": idx_bytes(_TWO[:, 0, 0])},
                "e-mapping.txt": b"0 48\n0 49\n",
            },
            "expected a label that is new",
        ),
    ],
)
def test_bad_sets_are_refused(files: dict[str, bytes], problem: str, tmp_path: Path) -> None:
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=problem):
        IdxFormat(root=str(tmp_path)).resolve()


def test_packed_files_in_archives_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "x", packed=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    write_tar(tmp_path / "a.tar", files)
    write_zip(tmp_path / "a.zip", files)
    for name, problem in (("a.tar", "compressed twice"), ("a.zip", "inside a zip archive")):
        with pytest.raises(InputError, match=problem):
            check_format(IdxFormat(root=str(tmp_path / name)), damages=0)


def test_a_long_packed_file_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, packed=True)
    monkeypatch.setattr(limits, "GZIP_BYTES", 100)
    with pytest.raises(InputError, match="decompress it first: gunzip"):
        check_format(IdxFormat(root=str(tmp_path)), damages=0)


def test_init_recognizes_idx_files_by_their_content(tmp_path: Path) -> None:
    write_idx(tmp_path / "set", packed=True)
    made = run("init", str(tmp_path / "set"), exit_code=0)
    assert "idx: 2 idx files; splits train, test" in made.stderr
    for path in (tmp_path / "set").iterdir():
        path.write_text("/annex/objects/MD5E-s26421880--8d4f")
    assert "no dataset is recognized here" in run("init", str(tmp_path / "set")).stderr
