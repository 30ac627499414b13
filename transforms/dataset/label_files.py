"""Label files: for the TF Object Detection API, and for people."""

from __future__ import annotations

from shardbeam.transforms.core.labels import LabelMap

# Of Unicode's category Cc, and its separators of lines and paragraphs.
_CONTROL_CHARACTERS = [chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029)]
_LINE_ESCAPES = str.maketrans(
    {char: char.encode("unicode_escape").decode() for char in _CONTROL_CHARACTERS}
)
_PBTXT_ESCAPES = str.maketrans(
    {char: "".join(f"\\{byte:03o}" for byte in char.encode()) for char in _CONTROL_CHARACTERS}
    | {"\\": "\\\\", '"': '\\"'}
)


def label_map_pbtxt(label_map: LabelMap) -> bytes:
    """Renders `label_map.pbtxt`, in id order.

    The text form of the TF Object Detection API's `StringIntLabelMap`
    (`object_detection/protos/string_int_label_map.proto`). That API takes 0 for the background
    and ids for 32-bit integers.
    """
    items = [
        f'item {{\n  name: "{name.translate(_PBTXT_ESCAPES)}"\n  id: {label_id}\n}}\n'
        for name, label_id in labels_by_id(label_map)
    ]
    return "\n".join(items).encode()


def labels_txt(label_map: LabelMap) -> bytes:
    """Renders `labels.txt`: a name a line, in id order, its control characters as escapes."""
    return "".join(f"{label_line(name)}\n" for name, _ in labels_by_id(label_map)).encode()


def label_line(name: str) -> str:
    r"""Writes a name in one line: a line feed as `\n`, and so on."""
    return name.translate(_LINE_ESCAPES)


def labels_by_id(label_map: LabelMap) -> list[tuple[str, int]]:
    """Returns `(name, id)` of every label, in id order."""
    return sorted(label_map.ids.items(), key=lambda label: label[1])
