"""Broken CIFAR folders: every outcome is images and rejects, or an error with the file."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from shardbeam.transforms.core.records import AnnotationEntry, ListedImage, decode_annotations
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.cifar import Cifar10Format, Cifar100Format
from shardbeam.transforms.images.check import CIFAR_BYTES
from shardbeam.transforms.storage.archives import list_root
from tests.fuzz.outcome import FOLDER, read_or_refuse

_FILES = (
    *("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin", "batches.meta.txt"),
    *("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt", "data_batch_1"),
)
_NAMES = ("cat", "dog", "", " ", "\u2028", "ü", "\0", "a\rb", "x" * 300)


def fuzz_cifar(random: random.Random) -> str:
    """Reads one random, partly broken folder."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as root:
        is_cifar100 = random.random() < 0.5
        files = _FILES[4:] if is_cifar100 else _FILES[:4]
        for name in random.sample(files, random.randrange(1, 4)):
            is_names = name.endswith(".txt")
            content = _names(random) if is_names else _batch(random, label_bytes=1 + is_cifar100)
            Path(root, name).write_bytes(content)
        coarse = random.random() < 0.5
        images = read_or_refuse(
            lambda: _read(root, is_cifar100=is_cifar100, coarse=coarse), uri=root
        )
    if images is None:
        return "refused"
    return "images" if images else "no images"


def _read(root: str, *, is_cifar100: bool, coarse: bool) -> int:
    source = (
        Cifar100Format(root=root, coarse=coarse) if is_cifar100 else Cifar10Format(root=root)
    ).resolve()
    features = {extra.spec.key for extra in source.extra_features()}
    images = 0
    for path, file in list_root(root):
        if source.place(path, root=0).role is not Role.CONTAINER:
            continue
        items = list(source.read_container(file, path=path, root=0))
        listed = [item for item in items if isinstance(item, ListedImage)]
        entries = [item for item in items if isinstance(item, AnnotationEntry)]
        assert [image.key for image in listed] == [entry.key for entry in entries]
        for image, entry in zip(listed, entries, strict=True):
            assert image.image.size_bytes == CIFAR_BYTES
            assert image.image.offset + CIFAR_BYTES <= file.size_bytes
            assert entry.split in source.predefined_splits()
            if entry.defect is None:
                annotations = decode_annotations(entry.annotations)
                assert len(annotations.labels) == 1
                assert set(annotations.values) == features
            else:
                assert entry.detail
        images += len(listed)
    return images


def _batch(random: random.Random, *, label_bytes: int) -> bytes:
    records = []
    for _ in range(random.choice((0, 1, 2, 3, 3, 3))):
        labels = bytes(random.choice((0, 1, 9, 10, 19, 20, 99, 255)) for _ in range(label_bytes))
        records.append(labels + bytes(CIFAR_BYTES))
    data = b"".join(records)
    return data[: random.choice((*[len(data)] * 8, 1, 3073))]


def _names(random: random.Random) -> bytes:
    names = [f"class {index}" for index in range(random.choice((0, 2, 10, 20, 100, 300)))]
    for _ in range(random.choice((0, 0, 1, 3))):
        names.insert(random.randrange(len(names) + 1), random.choice(_NAMES))
    data = random.choice(("\n", "\r\n")).join(names).encode()
    return random.choice((b"", b"", b"\xef\xbb\xbf", b"\xff")) + data
