"""Texts that would have an effect if a page did not escape them."""

from __future__ import annotations

from pathlib import Path

from tests.support.tfrecords import draw_image, make_example, write_tfrecord

HOSTILE_TEXTS = (
    "</script><img src=x onerror=pwned=1>",
    "<script>pwned=1</script>",
    "javascript:pwned=1",
    '"><svg onload=pwned=1>',
    "' onclick='pwned=1",
    "</style><style>*{display:none}</style>",
    "</template></dialog><iframe src=//example.com>",
    "{{ 7 * 7 }}{% raw %}",
    "<!--",
    "]]>",
    "&lt;b&gt;&amp;",
    "url(//example.com/x.png)",
    "\u202egnp.exe\u2066",
    "a\0b\x1b[2J\x7f",
    "line\nline\r\nline",
    "x" * 50_000,
    "臉書🙂",
    "data:text/html,<script>pwned=1</script>",
    'data:image/png;base64," onload=pwned=1',
)


def hostile_features(text: str) -> dict[str, object]:
    data = text.encode()
    return {
        "image/encoded": draw_image("JPEG", width=32, height=24),
        "image/format": data,
        "image/height": 24,
        "image/width": 32,
        "image/filename": data,
        "image/source_id": data,
        "image/class/text": [data],
        "image/class/label": [1],
        "image/caption": [data],
        "image/object/bbox/xmin": [0.1],
        "image/object/bbox/ymin": [0.1],
        "image/object/bbox/xmax": [0.9],
        "image/object/bbox/ymax": [0.9],
        "image/object/class/text": [data],
        "image/object/class/label": [1],
        "image/object/view": [data],
        text[:1000]: [data],
    }


def write_hostile(folder: Path) -> Path:
    """Writes a TFRecord file with one Example for each text."""
    records = [make_example(hostile_features(text)) for text in HOSTILE_TEXTS]
    return write_tfrecord(folder / "<b>hostile&.tfrecord", *records)
