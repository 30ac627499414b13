from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Coding, ListedImage
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.cifar import Cifar10Format
from shardbeam.transforms.formats.testing import FormatReport, check_format
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.image_bytes import read_bytes
from tests.support.archive_files import write_tar, write_zip
from tests.support.cifar_files import CIFAR10_NAMES, write_batch, write_cifar10, write_cifar100
from tests.support.making import make_format


def report(name: str, root: Path, **settings: object) -> FormatReport:
    return check_format(make_format(name, root=str(root), **settings))


def test_cifar10(tmp_path: Path) -> None:
    write_cifar10(tmp_path)

    found = report("cifar10", tmp_path)

    assert Counter(found.splits.values()) == {"train": 50, "test": 12}
    assert not found.rejects
    assert found.splits["data_batch_2.bin/00019"] == "train"
    assert found.splits["test_batch.bin/00000"] == "test"
    for key, each in found.annotations.items():
        assert each.labels == (CIFAR10_NAMES[int(key[-5:]) % 10],)
        assert each.image_id == key
    assert {(each.name, each.source_id) for each in found.categories} == {
        (name, class_id) for class_id, name in enumerate(CIFAR10_NAMES)
    }


@pytest.mark.parametrize("is_coarse", [False, True])
def test_cifar100(tmp_path: Path, is_coarse: bool) -> None:
    write_cifar100(tmp_path)

    found = report("cifar100", tmp_path, coarse=is_coarse)

    assert Counter(found.splits.values()) == {"train": 120, "test": 15}
    same = found.annotations["train.bin/00107"]
    # Image 107: superclass 7, class 7 as well; 45 has others.
    other = found.annotations["train.bin/00045"]
    if is_coarse:
        assert (same.labels, other.labels) == (("super 7",), ("super 5",))
        assert other.values == {
            "image/class/fine/label": (45,),
            "image/class/fine/text": ("fine 45",),
        }
    else:
        assert (same.labels, other.labels) == (("fine 7",), ("fine 45",))
        assert other.values == {
            "image/class/coarse/label": (5,),
            "image/class/coarse/text": ("super 5",),
        }
    assert len({each.name for each in found.categories}) == (20 if is_coarse else 100)


def test_images_are_byte_ranges(tmp_path: Path) -> None:
    pixels = write_cifar10(tmp_path)["data_batch_1.bin"]
    ((path, file),) = [
        listed for listed in list_root(str(tmp_path)) if listed[0] == "data_batch_1.bin"
    ]

    for coding, setting in ((Coding.CIFAR_PNG, "png"), (Coding.CIFAR_RAW, "raw")):
        source = Cifar10Format(root=str(tmp_path), pixels=setting).resolve()  # type: ignore[arg-type]
        assert source.raw_images is (setting == "raw")
        items = list(source.read_container(file, path=path, root=0))
        images = [item for item in items if isinstance(item, ListedImage)]
        assert len(images) == 30
        assert {image.image.coding for image in images} == {coding}
        for index in (0, 17, 29):
            planes = pixels[index].transpose(2, 0, 1).tobytes()
            assert read_bytes(images[index].image) == planes


def test_cifar_in_an_archive(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "plain")
    files = {
        f"cifar-10-batches-bin/{path.name}": path.read_bytes()
        for path in (tmp_path / "plain").iterdir()
    }

    found = report("cifar10", write_tar(tmp_path / "cifar.tar", files))
    plain = report("cifar10", tmp_path / "plain")

    assert {
        key.removeprefix("cifar-10-batches-bin/"): each.labels
        for key, each in found.annotations.items()
    } == {key: each.labels for key, each in plain.annotations.items()}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with pytest.raises(InputError, match="inside a zip archive cannot be read; unpack it"):
            report("cifar10", write_zip(tmp_path / "cifar.zip", files, method=method))


def test_without_names_classes_are_numbers(tmp_path: Path) -> None:
    write_batch(tmp_path / "test_batch.bin", labels=[(3,), (9,), (10,)])

    found = report("cifar10", tmp_path)

    assert set(found.splits.values()) == {"test"}
    made = make_format("cifar10", root=str(tmp_path)).resolve()
    assert list(made.predefined_splits()) == ["test"]
    assert [each.labels for each in found.annotations.values()] == [("3",), ("9",)]
    assert len(found.categories) == 10
    ((key, reason, detail),) = [
        (reject.key, reject.reason.value, reject.detail) for reject in found.rejects
    ]
    assert (key, reason) == ("test_batch.bin/00002", "annotation_malformed")
    assert detail == "the class label is 10, of 10 classes"


def test_names_decide_how_many_classes_there_are(tmp_path: Path) -> None:
    write_batch(tmp_path / "data_batch_1.bin", labels=[(11,)])
    (tmp_path / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(12)))

    found = report("cifar10", tmp_path)

    assert found.annotations["data_batch_1.bin/00000"].labels == ("class 11",)


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("data_batch_1.bin", Role.CONTAINER),
        ("deep/test_batch.bin", Role.CONTAINER),
        ("batches.meta.txt", Role.OTHER),
        ("data_batch_1", Role.OTHER),
        ("__MACOSX/data_batch_1.bin", Role.OTHER),
    ],
)
def test_roles_of_files(path: str, role: Role) -> None:
    assert Cifar10Format(root="root").place(path, root=0).role is role


@pytest.mark.parametrize("size_bytes", [0, 1, 3072, 3074, 2 * 3073 - 1])
def test_batches_of_another_length_stop_the_run(tmp_path: Path, size_bytes: int) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(size_bytes))

    with pytest.raises(InputError) as raised:
        report("cifar10", tmp_path)

    assert raised.value.uri == str(tmp_path / "test_batch.bin")
    assert f"got {size_bytes} bytes" in raised.value.problem


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("data_batch_1", b"\x80\x04", "expected the binary version"),
        ("batches.meta.txt", b"\xff", "expected UTF-8"),
        ("batches.meta.txt", b"cat\ndog\ncat", "the name 'cat' occurs 2 times"),
    ],
)
def test_what_is_no_cifar(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    if name == "batches.meta.txt":
        write_batch(tmp_path / "test_batch.bin", labels=[(1,)])
    (tmp_path / name).write_bytes(content)

    with pytest.raises(InputError, match=problem):
        report("cifar10", tmp_path)
