"""Says why `shardbeam init` recognizes nothing in a folder, and what would help."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterator

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import DECODING_ERRORS, InputError
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.text import counted, show_name
from shardbeam.transforms.formats.annotation_file import decode_json, decode_row, foreign_content
from shardbeam.transforms.formats.coco.coco_file import describe_results
from shardbeam.transforms.formats.names import foreign_name
from shardbeam.transforms.formats.recognition import Folder, without_split
from shardbeam.transforms.formats.sibling_folders import find_siblings
from shardbeam.transforms.formats.table.csv import CsvFormat
from shardbeam.transforms.formats.yolo.data_file import parse_data_yaml
from shardbeam.transforms.storage.archives.open import list_root

# The most that an error shows: members of a file, folders, characters of a line.
_MEMBERS = 8
_FOLDERS = 3
_COLUMNS = 200
_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_IMAGES_IN_ROWS = (".parquet", ".arrow")
_TFRECORD = (".tfrecord", ".tfrecords")
# Files that an error describes, and the names in them.
_DOCUMENTS = 2
# Longer JSON files are not decoded to find out whether they are damaged.
_JSON_BYTES = 16 << 20
_MEMBER = re.compile(rb'"([^"\\\n]{1,40})"\s*:')
# {tool: members of its JSON files}, none of which is read.
_TOOLS = {
    "CreateML": {"image", "annotations", "coordinates"},
    "Label Studio (JSON-MIN)": {"annotation_id", "annotator", "lead_time"},
    "SageMaker": {"source-ref"},
    "Labelbox": {"data_row", "projects"},
    "Labelbox (before 2023)": {"Labeled Data", "External ID"},
    "Supervisely": {"geometryType", "classTitle"},
    "Supervisely (meta.json)": {"classes", "title", "shape", "color"},
    "datasets (Hugging Face)": {"file_name", "objects"},
    "PaliGemma": {"image", "prefix", "suffix"},
}
_OTHER_EXPORT = "export as COCO, YOLO or Pascal VOC instead (docs/guide/from-your-tool.md)"
_TABLE_INSTEAD = (
    "convert it to COCO, or write a table with a row per box (docs/reference/formats/csv.md)"
)
# {tool: what helps, where the tool has no such exports}
_INSTEAD = {
    "Label Studio (JSON-MIN)": "export as JSON (docs/reference/formats/label-studio.md)",
    "SageMaker": _TABLE_INSTEAD,
    "Labelbox": _TABLE_INSTEAD,
    "Labelbox (before 2023)": _TABLE_INSTEAD,
    "KITTI": f"{_TABLE_INSTEAD}: its 5th to 8th fields are left, top, right and bottom",
    "WIDER FACE": f"{_TABLE_INSTEAD}: its lines are left, top, width and height",
    "DOTA": "convert it to YOLO's oriented boxes (`convert_dota_to_yolo_obb` of Ultralytics), or "
    "export these from Roboflow",
}
# {layout: the beginning of a file of labels of one image, or of all}
_LABEL_FILES = {
    "WIDER FACE": re.compile(
        rb"[^\n]+\.jpe?g[ \t\r]*\n[0-9]+[ \t\r]*\n([0-9]+[ \t]+){9}[0-9]", re.I
    ),
    "KITTI": re.compile(rb"[A-Za-z][\w-]*( -?[0-9.]+){14}[ \t\r]*(\n|\Z)"),
    "DOTA": re.compile(
        rb"((imagesource|gsd)[^\n]*\n)*(-?[0-9.]+[ \t]+){8}[^\s0-9]\S*[ \t]+[0-9][ \t\r]*(\n|\Z)"
    ),
}
_CELL_ENDS = re.compile(r"[\n\t,;|\"]")
# Cells of a table that are looked at.
_CELLS = 500
_ELEMENT = re.compile(rb"<([A-Za-z_][\w.-]{0,40})")


def suggest_zip(folder: Folder) -> str:
    """Names one of the zips that hold all images; empty if there are not several."""
    zips = [*folder.in_zips()]
    if not zips:
        return ""
    return (
        f"the images are in {len(zips)} zips: `shardbeam init {folder.uri(zips[0])}` looks into one"
    )


def explain_unrecognized(folder: Folder) -> str:
    """Says why nothing is recognized in a folder, and what would help; empty if unknown."""
    if tars := folder.named(".tar"):
        return f"name an archive of images itself: shardbeam init {folder.uri(tars[0])}"
    if packed := folder.named(*_PACKED):
        return f"init does not look into {packed[0]}; unpack it if it holds annotations or images"
    if unread := describe_tool(folder) or _describe_data_yaml(folder):
        return unread
    if not folder.images:
        if packed := folder.named(*_IMAGES_IN_ROWS):
            return f"no column of {packed[0]} holds images, or names images that are here"
        if packed := [path for path in folder.named(*_TFRECORD) if not folder.files[path].whole]:
            return f"TFRecord files in an archive, such as {packed[0]}, are not read: unpack it"
        # Other zips count as folders.
        for path in folder.named(".zip"):
            try:
                next(list_root(folder.location(path)), None)
            except InputError as error:
                return f"{path}: {error.problem}"
        return "there are no images in it"
    if documents := folder.few(".json", ".jsonl", ".xml"):
        return "; ".join(
            (
                *(_describe_document(path, folder=folder) for path in documents[:_DOCUMENTS]),
                "the formats that are known, and their keys: `shardbeam formats`",
            )
        )
    table, flags = CsvFormat.suggest_flags(folder)
    if table:
        head = folder.head(table)
        columns = head.decode("utf-8", "replace").partition("\n")[0].strip()
        if problem := CsvFormat.problem_of(table, folder=folder) or _describe_cells(head):
            return f"{table}: {problem}"
        return (
            f"the columns of {table} are not known, or name other images: {columns[:_COLUMNS]}; "
            f"say what they are: `shardbeam build csv {shlex.join(flags)} --output "
            f"tfrecords/{folder.dataset_name()}`"
        )
    others = [path for path in folder.files if path not in set(folder.images)]
    seen = f"init knows no format of {others[0]}" if others else "there are only images"
    if siblings := find_siblings(folder.images):
        parent = shlex.quote(folder.uri(siblings.parent))
        return (
            f"{seen}; if {list_classes(siblings.classes)} are classes: `shardbeam init {parent} "
            "--format image-folder`"
        )
    folders = sorted({path.rpartition("/")[0] for path in folder.images})
    where = ", ".join(f"{name}/" for name in folders[:_FOLDERS]) if folders != [""] else "it"
    return (
        f"{seen}, and the images lie directly in {where}: if they have classes, put the images of "
        "each class into a folder, at least two"
    )


def describe_damaged(folder: Folder, *, read: Collection[str]) -> Iterator[str]:
    """Names files that look like those that are read, but are empty, damaged, or no UTF-8 text.

    Args:
        folder: The folder.
        read: The paths of the annotation files that are read.
    """
    names = {without_split(path) for path in read}
    extensions = {os.path.splitext(path)[1].lower() for path in read} - {""}
    for path in folder.few(*extensions) if extensions else ():
        is_json = path.lower().endswith(".json")
        if path in read or not (is_json or without_split(path) in names):
            continue
        if problem := _describe_damage(path, folder=folder):
            yield f"not read: {path}: {problem}"


def _describe_damage(path: str, *, folder: Folder) -> str:
    size_bytes = folder.files[path].size_bytes
    if not size_bytes:
        return folder.unreadable(path) or "the file is empty"
    if problem := foreign_content(folder.head(path)):
        return problem
    if path.lower().endswith(".json") and size_bytes <= _JSON_BYTES:
        data = folder.head(path, size_bytes=size_bytes)
        try:
            decode_json(data, decoder=JsonDecoder(object), uri=path)
        except InputError as error:
            return f"{error.place}: {error.problem}" if error.place else error.problem
    return ""


def describe_tool(folder: Folder) -> str:
    """Names the tool or the layout of files that no format reads, and what helps; or empty."""
    found: dict[str, str] = {}
    for path in folder.few(".json", ".jsonl", ".ndjson", ".manifest")[:_DOCUMENTS]:
        names = {name.decode(errors="replace") for name in _MEMBER.findall(folder.head(path))}
        found = {tool: path for tool, members in _TOOLS.items() if members <= names} | found
    for path in _first_texts(folder):
        head = folder.head(path)
        found = {it: path for it, pattern in _LABEL_FILES.items() if pattern.match(head)} | found
    for tool, path in found.items():
        return f"{path} is a file of {tool}, which is not read: {_INSTEAD.get(tool, _OTHER_EXPORT)}"
    return ""


def _first_texts(folder: Folder) -> Iterator[str]:
    """Yields the first text files of each folder; those that are named like boxes come first."""
    for _, paths in itertools.groupby(folder.named(".txt"), os.path.dirname):
        yield from sorted(paths, key=lambda path: "bbx" not in path)[:_DOCUMENTS]


def _describe_data_yaml(folder: Folder) -> str:
    """Says what a `data.yaml` of YOLO's lacks; empty if there is none."""
    for path in folder.few(".yaml", ".yml")[:_DOCUMENTS]:
        try:
            data = parse_data_yaml(folder.head(path), uri=path)
        except InputError:
            continue
        if data.names and data.splits:
            lacks = "labels (labels/*.txt)" if folder.images else "images and labels (labels/*.txt)"
            return (
                f"{path} names {counted(len(data.names), 'class', 'classes')} of YOLO, whose "
                f"{lacks} are not in this folder: copy them beside it, or export the dataset again"
            )
    return ""


def _describe_row(head: bytes) -> str:
    """Describes why the first line of a file is not JSON; empty if it is, or is too long."""
    line, end, _ = head.partition(b"\n")
    try:
        decode_row(line if end else b"0", decoder=JsonDecoder(object))
    except DECODING_ERRORS as error:
        return f"line 1: {error}"
    return ""


def _describe_cells(head: bytes) -> str:
    """Describes a cell of a table that is a URL or an image instead of a path; empty if none is."""
    for cell in _CELL_ENDS.split(head.decode("utf-8", "replace"), maxsplit=_CELLS)[:_CELLS]:
        if problem := foreign_name(cell.strip()):
            return f"{show_name(cell.strip())}: {problem}"
    return ""


def _describe_document(path: str, *, folder: Folder) -> str:
    """Describes a JSON or XML file that no format recognizes: what it is, as far as that shows."""
    head = folder.head(path)
    problem = foreign_content(head.removeprefix(b"<") if path.endswith(".xml") else head)
    problem = problem or describe_results(head)
    if path.lower().endswith(".jsonl"):
        problem = problem or _describe_cells(head) or _describe_row(head)
    elif path.lower().endswith(".json"):
        problem = problem or _describe_damage(path, folder=folder)
    if problem:
        return f"{path}: {problem}"
    pattern = _ELEMENT if path.lower().endswith(".xml") else _MEMBER
    names = dict.fromkeys(name.decode(errors="replace") for name in pattern.findall(head))
    listed = ", ".join([*names][:_MEMBERS]) or "nothing that is known"
    return f"init looked into {path} and found {listed}, in no format that names these images"
