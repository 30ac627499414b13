"""Writes Pascal VOC files."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.support.archive_files import Files
from tests.support.image_makers import plain_jpeg


def voc_xml(
    *objects: dict[str, object], size: tuple[object, object] | None = (640, 480), **more: object
) -> bytes:
    """Writes an annotation file; the corners of a box are fields of their object."""
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = "another name.jpg"
    if size is not None:
        element = ElementTree.SubElement(root, "size")
        for side, pixels in zip(("width", "height"), size, strict=True):
            ElementTree.SubElement(element, side).text = str(pixels)
    for fields in objects:
        element = ElementTree.SubElement(root, "object")
        box = None
        for tag, value in fields.items():
            parent = element
            if tag in ("xmin", "ymin", "xmax", "ymax"):
                box = ElementTree.SubElement(element, "bndbox") if box is None else box
                parent = box
            ElementTree.SubElement(parent, tag).text = str(value)
    for tag, value in more.items():
        ElementTree.SubElement(root, tag).text = str(value)
    return ElementTree.tostring(root, encoding="utf-8")


def voc_object(**fields: object) -> dict[str, object]:
    """Returns the fields of an object; a field with the value `...` is left out."""
    known = {"name": "dog", "xmin": 10, "ymin": 20, "xmax": 30, "ymax": 40}
    return {tag: value for tag, value in (known | fields).items() if value is not ...}


def small_voc(**more: bytes | str) -> Files:
    """A dataset of two splits, with one image each."""
    return {
        "JPEGImages/a.jpg": plain_jpeg(),
        "JPEGImages/b.jpg": plain_jpeg(),
        "Annotations/a.xml": voc_xml(voc_object(pose="Left", difficult=1), size=(32, 24)),
        "Annotations/b.xml": voc_xml(size=(32, 24)),
        "ImageSets/Main/train.txt": "a\n",
        "ImageSets/Main/val.txt": "b\n",
        **more,
    }
