"""Random Pascal VOC files, most of them broken in some way."""

from __future__ import annotations

import math
from random import Random

from shardbeam.transforms.core.records import AnnotationEntry, decode_annotations
from shardbeam.transforms.formats.voc import VocFormat
from tests.fuzz.outcome import read_or_refuse

_PATH = "Annotations/a.xml"
_PIECES = (
    *(b"<annotation>", b"</annotation>", b"<object>", b"</object>", b"<bndbox>", b"</bndbox>"),
    *(b"<name>dog</name>", b"<name/>", b"<xmin>1</xmin>", b"<size>", b"<width>nan</width>"),
    *(b'<!DOCTYPE a [<!ENTITY e "x">]>', b"&e;", b"&amp;", b"&#0;", b"&#xD800;", b"&#x1F600;"),
    *(b'<?xml version="1.0" encoding="gbk"?>', b'<?xml version="1.0" encoding="utf-16"?>'),
    *(b'<?xml version="1.0" encoding="x"?>', b'<?xml version="1.0" encoding="cp500"?>'),
    *(
        b"<![CDATA[",
        b"]]>",
        b"<!--",
        b"-->",
        b"\0",
        b"\xff",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"1e999",
    ),
)
_NUMBERS = (
    *("0", "1", "-3", "12.5", "1e3", "", " 7 ", "nan"),
    *("inf", "1_0", "x", "٣", "1e999", "9" * 400),
)
_FLAG_KEYS = ("image/object/truncated", "image/object/difficult")
_FLAGS = ("0", "1", "", "Unspecified", "true", "-1", "0.5")


def fuzz_voc(random: Random) -> None:
    """Reads one random file, and checks that it gives annotations or an error with its place."""
    data = _document(random)
    if random.random() < 0.4:
        data = _mutated(data, random=random)
    source = VocFormat(root="data")
    read = read_or_refuse(lambda: list(source.read_listed(data, path=_PATH, root=0)), uri=_PATH)
    if read is None:
        return
    *categories, entry = read
    assert isinstance(entry, AnnotationEntry)
    found = decode_annotations(entry.annotations)
    assert all(0 <= side < 2**31 for side in (found.width, found.height))
    assert len(categories) == len({item.label for item in found.objects})
    for item in found.objects:
        assert item.label
        assert all(map(math.isfinite, item.bbox))
        assert {item.attributes.get(key, 1) for key in _FLAG_KEYS} == {1}


def _document(random: Random) -> bytes:
    parts = ["<annotation>"]
    if random.random() < 0.8:
        pixels = ("0", "640", "") if random.random() < 0.9 else _NUMBERS
        sides = [f"<{side}>{random.choice(pixels)}</{side}>" for side in ("width", "height")]
        parts += ["<size>", *sides, "</size>"]
    for _ in range(random.randrange(4)):
        parts.append("<object>")
        parts += [
            f"<{tag}>{random.choice(values)}</{tag}>"
            for tag, values in (
                ("name", ("dog", "a b", "dog", "\n x\n", "é", "cat", "")),
                ("pose", ("Left", "")),
                ("truncated", _FLAGS),
                ("difficult", _FLAGS),
            )
            if random.random() < 0.95
        ]
        if random.random() < 0.9:
            numbers = _NUMBERS[:5] if random.random() < 0.9 else _NUMBERS
            corners = [
                f"<{corner}>{random.choice(numbers)}</{corner}>"
                for corner in ("xmin", "ymin", "xmax", "ymax")
                if random.random() < 0.97
            ]
            parts += ["<bndbox>", *corners, "</bndbox>"]
        if random.random() < 0.2:
            parts.append("<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>")
        parts.append("</object>")
    return "".join([*parts, "</annotation>"]).encode()


def _mutated(data: bytes, *, random: Random) -> bytes:
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(data) + 1)
        choice = random.randrange(5)
        if choice == 0:
            data = data[:at] + random.choice(_PIECES) + data[at:]
        elif choice == 1:
            data = data[:at] + data[at + random.randrange(20) :]
        elif choice == 2:
            data = data[:at]
        elif choice == 3:
            data = data[:at] + random.randbytes(random.randrange(1, 4)) + data[at + 1 :]
        else:
            data = random.choice(_PIECES) + data
    return data
