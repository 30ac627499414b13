"""Label files: for the TF Object Detection API, and for people."""

from __future__ import annotations

from shardbeam.transforms.core.labels import LabelMap

_CONTROL_CHARACTERS = {chr(code): f"\\{code:03o}" for code in [*range(32), 127]}
_ESCAPES = str.maketrans(_CONTROL_CHARACTERS | {"\\": "\\\\", '"': '\\"'})


def label_map_pbtxt(label_map: LabelMap) -> bytes:
    """Renders `label_map.pbtxt`, in id order.

    The text form of the TF Object Detection API's `StringIntLabelMap`
    (`object_detection/protos/string_int_label_map.proto`). That API takes 0 for the background
    and ids for 32-bit integers.
    """
    items = [
        f'item {{\n  name: "{name.translate(_ESCAPES)}"\n  id: {label_id}\n}}\n'
        for name, label_id in labels_by_id(label_map)
    ]
    return "\n".join(items).encode()


def labels_txt(label_map: LabelMap) -> bytes:
    """Renders `labels.txt`: a name a line, in id order."""
    return "".join(f"{name}\n" for name, _ in labels_by_id(label_map)).encode()


def labels_by_id(label_map: LabelMap) -> list[tuple[str, int]]:
    """Returns `(name, id)` of every label, in id order."""
    return sorted(label_map.ids.items(), key=lambda label: label[1])
