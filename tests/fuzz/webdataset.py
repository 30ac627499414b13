"""Broken WebDataset tars: every outcome is samples and rejects, or an error with file and place."""

from __future__ import annotations

import io
import json
import random
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ListedImage,
    decode_annotations,
)
from shardbeam.transforms.formats.webdataset import WebDatasetFormat
from shardbeam.transforms.storage.archives import list_root
from tests.fuzz.outcome import FOLDER, read_or_refuse

_KEYS = ("0", "0", "1", "a/1", "ü", "", ".x", "a b", "x\udcff", "long" * 40)
_EXTENSIONS = (
    *("jpg", "jpg", "png", "cls", "cls", "txt"),
    *("json", "json", "seg.png", "JPG", "", "npy"),
)
_TEXTS = (
    *(b"", b"7", b"cat", b"\xff", b"-1", b"9" * 5000, b"a\nb", b"\xef\xbb\xbf3", b"\0", b"null"),
    *(b"[[", b"{}", b'{"label": 1e400}', b'{"label": [], "label": "a"}', b'{"label": "\\ud800"}'),
    *(b"[" * 3000, b'{"caption": {}}', b'{"n": ' + b"9" * 30 + b"}", b'{"\\ud800": 1}'),
)
_VALUES: tuple[object, ...] = (
    *(None, 1, 1.5, True, "a", "ö\n", [], ["a", 2], {}),
    *(2**63, -(2**70), 1e300, float("nan")),
)


def fuzz_webdataset(random: random.Random) -> str:
    """Reads one random, partly broken tar."""
    data = bytearray(_tar(random))
    for _ in range(random.choice((0, 0, 1, 3))):
        at = random.randrange(len(data))
        data[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder, "0.tar")
        path.write_bytes(data)
        return _outcome(str(path))


def _outcome(tar: str) -> str:
    source = WebDatasetFormat(tars=[tar], fields={"n": "int", "f": "float", "s": "string"})
    ((name, file),) = list_root(tar, open_archives=False)
    items = read_or_refuse(
        lambda: list(source.read_container(file, path=name, root=0)), uri=tar, place="byte "
    )
    if items is None:
        return "refused"
    images = Counter(item.key for item in items if isinstance(item, ListedImage))
    labels = {item.name for item in items if isinstance(item, Category)}
    entries: Counter[str] = Counter()
    for item in items:
        if not isinstance(item, AnnotationEntry):
            continue
        item.key.encode()
        entries[item.key] += item.defect is None
        if item.defect is None:
            assert item.key in images
            annotations = decode_annotations(item.annotations)
            assert labels.issuperset(annotations.labels)
        else:
            assert item.detail.startswith("0.tar, sample ")
            assert tar not in item.detail
    assert max(entries.values(), default=0) <= 1
    return "samples"


def _tar(random: random.Random) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for _ in range(random.randrange(4)):
            key = random.choice(_KEYS)
            for _ in range(random.randrange(5)):
                extension = random.choice(_EXTENSIONS)
                member = tarfile.TarInfo(f"{key}.{extension}" if extension else key)
                if random.random() < 0.05:
                    member.type, member.linkname = tarfile.SYMTYPE, "1.jpg"
                content = _content(random)
                member.size = len(content) if member.isreg() else 0
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _content(random: random.Random) -> bytes:
    if random.random() < 0.5:
        return random.choice(_TEXTS)
    names = ("label", "caption", "n", "f", "s", "more")
    document = {name: random.choice(_VALUES) for name in names if random.random() < 0.5}
    return json.dumps(document, ensure_ascii=random.random() < 0.5).encode()
