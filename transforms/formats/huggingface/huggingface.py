"""Datasets of the Hugging Face Hub: Parquet, Arrow (`save_to_disk`), and image folders with tables.

An image in a row stays where it is: its record says which bytes of the file it has.
"""

from __future__ import annotations

import functools
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxFormatKey, BoxReading, BoxUnitsKey
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedImage
from shardbeam.transforms.core.text import counted, show_name
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.huggingface.columns import (
    IMAGE_NAMES,
    Columns,
    NoImagesError,
    class_lists,
)
from shardbeam.transforms.formats.huggingface.files import DataFile, find_files, is_metadata
from shardbeam.transforms.formats.mask_values import (
    MaskClassesKey,
    MaskReading,
    MaskValuesKey,
    decide_mask_values,
    given_values,
    ids_of_classes,
    read_first_maps,
)
from shardbeam.transforms.formats.names import is_image_name, normalize_key
from shardbeam.transforms.formats.parsing.table_columns import (
    column_feature,
    first_of,
    join_names,
)
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.formats.table.csv import CsvFormat
from shardbeam.transforms.formats.table.jsonl import JsonLinesFormat
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.transforms.formats.table.table import TableFormat

# Maps that decide what their values mean.
_MAPS = 50
# Bytes of a table whose images are sought.
_NAMES_BYTES = 64 << 10
# Files that may divide a dataset into configs and splits.
_DESCRIPTIONS = ("README.md", "state.json", "dataset_infos.json", "manifest.json")


class HuggingFaceFormat(Format, frozen=True, kw_only=True):
    """A dataset of the Hugging Face Hub, as it is downloaded or as `datasets` writes it.

    Attributes:
        data: The folder of the dataset, or its files.
        config_name: The config to read, if there are several.
        image_column: The column of images.
        mask_column: The column of images whose pixels are class ids.
        object_column: The column of structs of objects, if it has no usual name.
        class_name: The class of all objects, if rows give them none.
        mask_classes: `{class id: name}` of the classes of maps.
        mask_values: `{value of a pixel: class id, or ignore}`, if values are no class ids.
        columns: `{column: type}` of columns whose types should not be inferred, such as `int?` or
            `list[int]`.
        _files: The files; `resolve` finds them.
        _columns: What their columns are; `resolve` finds it.
        _folder: The folder of the images that tables name.
        _map_classes: `{value: class}` of maps, as `id2label.json` says.
        _mask_reading: How maps are read.
        _notes: How boxes are read, if their numbers decided it, and what contradicts README.md.
    """

    SUMMARY = "Hugging Face datasets: Parquet, save_to_disk, imagefolder"
    ROOTS = ("data",)
    UNANNOTATED = "drop"

    data: Annotated[
        list[Location],
        msgspec.Meta(min_length=1),
        named("folder of the dataset, file or pattern", metavar="PATH"),
    ]
    config_name: Annotated[str, named("config to read, if there are several")] | None = None
    image_column: Annotated[str, named("column of the images")] | None = None
    mask_column: Annotated[str, named("column of images whose pixels are class ids")] | None = None
    label_column: Annotated[str, named("column with the labels")] | None = None
    caption_column: Annotated[str, named("column with the captions")] | None = None
    object_column: Annotated[str, named("column of the objects, structs with boxes")] | None = None
    class_name: Annotated[str, named("class of the objects, if rows give none")] | None = None
    box_format: BoxFormatKey | None = None
    box_units: BoxUnitsKey | None = None
    mask_classes: MaskClassesKey = {}
    mask_values: MaskValuesKey = {}
    columns: dict[str, str] = {}
    _masks: bool = False
    _files: tuple[DataFile, ...] = ()
    _columns: Columns = Columns()
    _folder: str = ""
    _map_classes: Mapping[str, str] = {}
    _mask_reading: MaskReading = MaskReading()
    _notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # The table refuses wrong types of columns.
        self._table(["table"])

    def _table(self, files: Sequence[str]) -> TableFormat:
        kind = CsvFormat if self._files and self._files[0].kind == "csv" else JsonLinesFormat
        return kind(
            manifest=[*files],
            image_column=self.image_column,
            label_column=self.label_column,
            caption_column=self.caption_column,
            image_root=["/"],
            box_format=self.box_format,
            box_units=self.box_units,
            columns=self.columns,
        )

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """What the columns hold."""
        columns = self._columns
        objects = columns.objects
        return present_kinds(
            {
                Kind.DETECTION: objects is not None or columns.table.boxes,
                Kind.CLASSIFICATION: columns.table.label and not columns.table.boxes,
                Kind.CAPTIONS: columns.table.caption,
                Kind.SEMANTIC: columns.mask,
                Kind.INSTANCE_MASKS: self._masks and objects is not None and objects.segmentation,
            }
        )

    @property
    def box_reading(self) -> BoxReading | None:
        """As the keys or the first boxes say, if there are objects."""
        if self._columns.objects is None:
            return None
        return BoxReading(self._columns.objects.box_format, has_keys=True)

    def resolve(self) -> HuggingFaceFormat:
        """Finds the files, and what their columns are.

        Raises:
            InputError: There are no files, they cannot be read, or their images have no places.
            Problem: There are several configs or columns of images, or the order of the numbers of
                boxes is not known, and no key says it.
        """
        # Imported here, because it imports pyarrow, which the help does not need.
        from shardbeam.transforms.formats.huggingface.reading import first_maps, resolve_columns

        found = find_files(self.data, config_name=self.config_name)
        made = msgspec.structs.replace(
            self,
            _files=tuple(found.files),
            _folder=found.folder if found.files[0].names_images else "",
            _map_classes=found.map_classes,
        )
        table = made._table([file.uri for file in found.files])
        columns, notes = resolve_columns(
            found, table=table, mask_column=self.mask_column, object_column=self.object_column
        )
        reading = MaskReading()
        if columns.mask and self.mask_values:
            reading = given_values(self.mask_values)
        elif columns.mask:
            classes = ids_of_classes(made._map_names)
            maps = first_maps(found.files[0], column=columns.mask, number=_MAPS)
            reading = decide_mask_values(
                read_first_maps(maps), declared=lambda: {*classes.values()}, classes=classes
            )
        elif self.mask_values or self.mask_classes:
            key = "mask_values" if self.mask_values else "mask_classes"
            raise Problem((key,), "there is no column of maps; mask_column names one")
        objects = columns.objects
        if objects is not None and not objects.label and self.class_name is None:
            where = objects.column or objects.box
            raise Problem(
                ("class_name",),
                f"missing: the objects in {where} have no class; say which all have, such as "
                "class_name: face (--class-name face)",
            )
        return msgspec.structs.replace(
            made, _columns=columns, _notes=tuple(notes), _mask_reading=reading
        )

    @property
    def _map_names(self) -> Mapping[str, str]:
        """`{value: class}` of maps, by the key or else by `id2label.json`."""
        return self.mask_classes or self._map_classes

    def warnings(self) -> Iterator[str]:
        """Says what is read as what, as far as it was not declared, and what is not read."""
        columns = self._columns
        yield from self._notes
        if self._mask_reading.said:
            yield self._mask_reading.said
        if columns.not_read:
            yield f"not read: the columns {join_names(columns.not_read)}, of images or bytes"
        if columns.boxed:
            first = columns.boxed[0]
            yield (
                f"not read as objects: {join_names(columns.boxed)}, with boxes; object_column: "
                f"{first} (--object-column {shlex.quote(first)}) reads "
                f"{'it' if len(columns.boxed) == 1 else 'one of them'}"
            )
        if not self.kinds:
            yield (
                "no column was recognized as classes, captions or objects; these are written as "
                f"features of images: {join_names(columns.table.columns)}; label_column and "
                "caption_column name others"
            )
        yield from columns.table.notes

    def declared_categories(self) -> Iterator[Category]:
        """Returns the classes of ClassLabel columns, and of maps."""
        for names in class_lists(self._columns):
            for number, name in enumerate(names):
                yield Category(name=name, source_id=number, origin=self.data[0])
        if self._columns.mask:
            for name, number in ids_of_classes(self._map_names).items():
                yield Category(name=name, source_id=number, origin=self.data[0])

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits of the files.

        Raises:
            Problem: Only some of them have one.
        """
        splits = [*dict.fromkeys(file.split for file in self._files)]
        if splits == [""]:
            return ()
        if "" in splits:
            without = next(file.path for file in self._files if not file.split)
            named_splits = ", ".join(filter(None, splits))
            raise Problem(
                ("data",),
                f"some files are of the splits {named_splits}, and {without} names none: name the "
                "files of each split in `splits` of a config",
            )
        return splits

    def split_listed(self, key: str) -> str:
        """Returns the split of the innermost folder of a table that an image is in."""
        folders = {posixpath.dirname(file.path): file.split for file in self._files}
        folder = posixpath.dirname(key)
        while folder and folder not in folders:
            folder = posixpath.dirname(folder)
        return folders.get(folder, "")

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares a feature for each other column, and each other field of objects."""
        columns, objects = self._columns, self._columns.objects
        of_objects = {} if objects is None else objects.columns
        return [
            *(
                column_feature(name, column, per_object=bool(columns.table.boxes))
                for name, column in columns.table.columns.items()
            ),
            *(
                column_feature(objects.key(name), column, per_object=True)
                for name, column in of_objects.items()
                if objects is not None
            ),
        ]

    def roots(self) -> tuple[str, ...]:
        """Returns the folder of the images that tables name, if they do."""
        return (self._folder,) if self._folder else ()

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by its path below the folder."""
        key = normalize_key(path)
        is_image = is_image_name(key)
        return Place(role=Role.IMAGE if is_image else Role.OTHER, key=key, join=key)

    def move_down(self, below: str) -> str:
        """Says to move the tables, beside which images have their names."""
        return f"move the table into {below}/"

    def annotation_files(self) -> Sequence[str]:
        """Returns the files."""
        return [file.uri for file in self._files]

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category | ListedImage]:
        """Lists the images of a file with their annotations, or reads a table.

        Raises:
            InputError: The file cannot be read, is damaged, or differs from the first one.
        """
        from shardbeam.transforms.formats.huggingface.reading import EntryReader

        reader = EntryReader(
            self._table(self.annotation_files()),
            file=self._files[file_index],
            columns=self._columns,
            class_name=self.class_name or "",
            masks=Kind.INSTANCE_MASKS in self.kinds,
            mask_values=self._mask_reading.values,
        )
        yield from reader.read(file_index=file_index, storage=storage)

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes Parquet and Arrow files with images, and tables `metadata` of image files."""
        files = _outside(folder, folder.named(".parquet", ".arrow"))
        tables = _outside(folder, filter(is_metadata, folder.files)) if folder.images else []
        if not files and not tables:
            return None
        what = counted(len(tables or files), "table" if tables else "file")
        if apart := _find_packed(folder, tables or files) or _find_apart(folder, tables):
            # Other formats of tables read images in archives and in other folders.
            if tables and any(kind.recognize(folder) for kind in (CsvFormat, JsonLinesFormat)):
                return None
            return Recognized(what=what, problem=apart)
        # A folder in an archive is not listed.
        named = [it for it in tables or files if not folder.files[it].whole] or [""]
        keys: dict[str, object] = {"data": [*map(folder.uri, named)]}
        data = [*map(folder.location, named)]
        try:
            made = _resolve_first(cls(data=data), keys=keys, has_files=bool(folder.images))
        except NoImagesError:
            return None
        except Problem as problem:
            # Of keys that `init` would write, a config that is written by hand needs all.
            known = [f"set {key} to {value}; " for key, value in keys.items() if key != "data"]
            text = f"{''.join(known)}{'.'.join(map(str, problem.path))}: {problem.text}"
            return Recognized(what=what, sources={"": keys}, problem=text)
        except InputError as error:
            return Recognized(what=what, problem=str(error))
        objects = made._columns.objects
        if objects is not None:
            keys["box_format"] = objects.box_format
            keys["box_units"] = "fraction" if objects.normalized else "px"
        return Recognized(what=what, sources={"": keys}, notes=tuple(made.warnings()))


def _resolve_first(
    made: HuggingFaceFormat, *, keys: dict[str, object], has_files: bool
) -> HuggingFaceFormat:
    """Finds out what the columns are, and adds the keys that name those of other types or names.

    Raises:
        NoImagesError: No column holds images.
        InputError: As `resolve`.
        Problem: As `resolve`.
    """
    # Imported here, as in `resolve`.
    from shardbeam.transforms.formats.huggingface.reading import columns_of_pictures

    try:
        resolved = made.resolve()
    except NoImagesError:
        first = find_files(made.data, config_name=None).files[0]
        # Bytes beside files of images may be smaller versions of these.
        if has_files or first.names_images:
            raise
        pictures = columns_of_pictures(first.uri, storage=storage_for(first.uri))
        if not pictures:
            raise
        if len(pictures) > 1:
            raise Problem(
                ("image_column",),
                f"missing: the columns {join_names(pictures)} hold images; name one "
                f"(--image-column {shlex.quote(pictures[0])}), and in mask_column one whose pixels "
                "are class ids",
            ) from None
        keys["image_column"] = pictures[0]
        made = msgspec.structs.replace(made, image_column=pictures[0])
        resolved = made.resolve()
    boxed = resolved._columns.boxed
    if len(boxed) == 1:
        keys["object_column"] = boxed[0]
        resolved = msgspec.structs.replace(made, object_column=boxed[0]).resolve()
    return resolved


def _outside(folder: Folder, paths: Iterable[str]) -> list[str]:
    """Returns the files that are in no archive; if all are in archives, all."""
    every = [*paths]
    return [path for path in every if folder.files[path].whole] or every


def _find_apart(folder: Folder, tables: Sequence[str]) -> str:
    """Says why no image lies where tables of an `imagefolder` name it; empty if some may."""
    for path in tables:
        extension = posixpath.splitext(path)[1]
        kinds: Mapping[str, type[TableFormat]] = {".csv": CsvFormat, ".jsonl": JsonLinesFormat}
        kind = kinds.get(extension)
        names = [] if kind is None else _first_names(kind, folder.location(path))
        beside = (posixpath.join(posixpath.dirname(path), normalize_key(it)) for it in names)
        if names and folder.files.keys().isdisjoint(beside):
            images = folder.find_images(names, near=path)
            if images is not None and images.match == "path":
                return (
                    f"{path} names images beside it, such as {show_name(names[0])}, which are in "
                    f"{images.folder}/: move {path} there"
                )
    return ""


def _find_packed(folder: Folder, paths: Sequence[str]) -> str:
    """Says which archive has to be unpacked; empty if none has to.

    Files in one archive can be named, with the images beside them.
    """
    packed = [path for path in paths if not folder.files[path].whole]
    archives = [*dict.fromkeys(folder.uri(folder.zip_of(path)) for path in packed)]
    if not packed and folder.images and not any(folder.files[it].whole for it in folder.images):
        image = folder.images[0]
        return f"{paths[0]} names images in an archive, such as {image}: unpack " + folder.uri(
            folder.zip_of(image)
        )
    if len(archives) > 1:
        return f"{' and '.join(archives[:2])} are archives: unpack them, or name one of them"
    for path in folder.files if packed else ():
        if posixpath.basename(path) in _DESCRIPTIONS and not folder.files[path].whole:
            return (
                f"{path} may say what is in an archive, where it is not read: unpack " + archives[0]
            )
    return ""


def _first_names(kind: type[TableFormat], uri: str) -> list[str]:
    """Returns the names of images in the first rows of a table; nothing if it cannot be read."""
    table = kind(manifest=[uri], image_root=["/"])
    try:
        names, rows = table.first_rows(uri, storage=storage_for(uri), size_bytes=_NAMES_BYTES)
    except InputError:
        return []
    column = first_of(IMAGE_NAMES, names)
    return [str(row[column]) for row in rows if row.get(column)]
