"""Images, and for each a mask of the same name, whose pixels are classes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import BACKGROUND_NAMES
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageRef,
    MaskRole,
    MaskValues,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.mask_values import (
    MaskClassesKey,
    MaskReading,
    MaskValuesKey,
    check_mask_keys,
    decide_mask_values,
    first_maps,
    given_values,
    ids_of_classes,
    read_first_maps,
    show_colours,
)
from shardbeam.transforms.formats.masks.class_tables import (
    ClassTable,
    is_class_table,
    read_class_table,
)
from shardbeam.transforms.formats.masks.naming import (
    Naming,
    find_pairs,
    holds_objects,
    is_voc_folder,
)
from shardbeam.transforms.formats.names import is_hidden, listing_exclusion, normalize_key
from shardbeam.transforms.formats.parsing.root_files import RootFiles, relative_path
from shardbeam.transforms.formats.recognition import MASKS, Folder, Recognized
from shardbeam.transforms.formats.split_folders import TopFolderFormat, sort_tops, top_folder
from shardbeam.transforms.storage.base import Storage

_EXPECTED = (
    "expected images/ and masks/, or a.jpg beside a_mask.png, or the folder of the masks in "
    "semantic_masks"
)


class MasksFormat(TopFolderFormat, frozen=True, kw_only=True):
    """Images and masks of classes, matched by their names.

    Attributes:
        images: Root folder of the images, and of the masks if `semantic_masks` is None.
        semantic_masks: A folder of PNGs whose pixels are classes, named like the images.
        mask_classes: `{class id: name}` of the classes of maps.
        mask_values: `{value of a pixel: class id, or ignore}`, if values are no class ids.
        _naming: How masks are named.
        _table: The classes, and the file that names them.
        _table_uri: That file, or the archive that holds it; empty if no file names the classes.
        _reading: How the masks' pixels are read.
    """

    SUMMARY = "images and masks of classes, matched by their names"
    kinds = frozenset({Kind.SEMANTIC})
    ROOTS = ("images", "semantic_masks")
    # Perhaps nobody has drawn their masks yet.
    UNANNOTATED = "drop"

    images: Annotated[Location, named("root folder of the images and masks", metavar="DIR")]
    semantic_masks: (
        Annotated[Location, named("folder of PNGs whose pixels are class ids", metavar="DIR")]
        | None
    ) = None
    mask_classes: MaskClassesKey = {}
    mask_values: MaskValuesKey = {}
    _naming: Naming = Naming()
    _table: ClassTable = ClassTable()
    _table_uri: str = ""
    _reading: MaskReading = MaskReading()

    def __post_init__(self) -> None:
        check_mask_keys(classes=self.mask_classes, values=self.mask_values, key="")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes masks of which at least half have an image."""
        zips = {folder.zip_of(path) for path in folder.images}
        if len(zips) != 1:
            return None
        root = zips.pop()
        paths = [path.removeprefix(f"{root}/" if root else "") for path in folder.images]
        naming, joins = find_pairs(paths)
        masks = [path for path in paths if naming.is_mask(path) and naming.join_mask(path)]
        if not joins or 2 * len(joins) < len(masks):
            return None
        notes = []
        if any("/ImageSets/" in f"/{path}" for path in folder.named(".txt")):
            notes.append("not read: the lists in ImageSets; `voc` with `semantic: true` reads them")
        return Recognized(
            what=counted(len(masks), "mask"),
            sources={"": {"images": folder.uri(root)}},
            notes=notes,
            rank=MASKS,
        )

    def resolve(self) -> MasksFormat:
        """Finds out how masks are named, which splits there are, and what pixels mean.

        Raises:
            InputError: There are no masks of these images, none of the first masks can be read, or
                a file of classes cannot be.
            Problem: Most images have several masks, files name the classes differently, or nothing
                says what the values of pixels mean.
        """
        pictures, tables = self._list(0)
        masks: list[str] | None = None
        if self.semantic_masks is not None:
            masks, more = self._list(1)
            tables |= more
        naming, joins = find_pairs(pictures, masks=masks)
        if not joins:
            problem = f"no image has a mask: {_EXPECTED}"
            if masks and pictures:
                problem = f"no mask is named like an image: {min(masks)!r}, {min(pictures)!r}"
            raise InputError(uri=self.semantic_masks or self.images, problem=problem)
        several = [sorted(paths) for paths in joins.values() if len(paths) > 1]
        if 2 * len(several) > len(joins):
            raise Problem(
                ("semantic_masks",),
                f"most images have several masks, such as {' and '.join(min(several)[:2])}: name "
                "the folder of those that count",
            )
        table, uri = self._read_classes(tables)
        found = msgspec.structs.replace(
            self,
            _naming=naming,
            **sort_tops(map(top_folder, joins)).fields(),
            _table=table,
            _table_uri=uri,
        )
        return msgspec.structs.replace(found, _reading=found._read_first_masks())

    def _list(self, root: int) -> tuple[list[str], dict[str, ImageRef]]:
        """Lists the pictures below a root, and the files that may name classes."""
        pictures: list[str] = []
        tables: dict[str, ImageRef] = {}
        for path, file in RootFiles(self.roots()[root]).walk():
            if listing_exclusion(path) is None and not self._is_of_masks(path, root=root):
                pictures.append(path)
            elif is_class_table(path) and not is_hidden(path):
                tables[path] = file
        return pictures, tables

    def _is_of_masks(self, path: str, *, root: int) -> bool:
        """Whether a file below the root of the images is below that of the masks, too."""
        return root == 0 and f"/{path}".startswith(self._inner)

    @functools.cached_property
    def _inner(self) -> str:
        masks = self.semantic_masks and relative_path(self.semantic_masks, root=self.images)
        return f"/{masks}/" if masks else "//"

    def _read_classes(self, tables: Mapping[str, ImageRef]) -> tuple[ClassTable, str]:
        """Reads the classes, and finds the file that names them."""
        if self.mask_classes:
            return ClassTable(ids_of_classes(self.mask_classes)), ""
        read = ((read_class_table(path, file=file), file) for path, file in sorted(tables.items()))
        found = [(table, file.uri) for table, file in read if table is not None]
        # A file with colours says more than one without.
        found.sort(key=lambda each: not each[0].colours)
        for table, _ in found[1:]:
            first = found[0][0]
            if table.ids != first.ids or table.colours not in ((), first.colours):
                raise Problem(
                    ("mask_classes",),
                    f"missing: {first.path} and {table.path} do not name the same classes; remove "
                    "one of them, or name the classes here: {1: NAME, 2: NAME}",
                )
        return found[0] if found else (ClassTable(), "")

    def _read_first_masks(self) -> MaskReading:
        """Finds out what the masks' pixels mean."""
        if self.mask_values:
            return given_values(self.mask_values)
        ids, colours, name = self._table.ids, self._table.colours, self._table.path
        # Listed once: a folder in the cloud may hold a million.
        first = first_maps(self._masks())
        if colours and show_colours(first, colours=[each for each, _ in colours]):
            return MaskReading(
                MaskValues(colours, are_colours=True),
                f"the masks have the colours of {name}: each pixel is the class of its colour",
            )
        in_voc_colours = any(self._role(path) is MaskRole.VOC_CLASS for path, _ in first)
        maps = read_first_maps(first, voc_colours=in_voc_colours)
        if not maps.number:
            hint = ""
            if not colours and show_colours(first, colours=()):
                hint = "; to read colours, name them in a class_dict.csv (name,r,g,b) in the root"
            raise InputError(
                uri=self.semantic_masks or self.images,
                problem=f"none of the first masks can be read: {maps.problem}{hint}",
            )
        declared = {
            number
            for class_name, number in ids.items()
            if number or class_name.casefold() not in BACKGROUND_NAMES
        }
        return decide_mask_values(maps, declared=lambda: declared, classes=ids)

    def _masks(self) -> Iterator[tuple[str, ImageRef]]:
        """Lists the masks."""
        root = len(self.roots()) - 1
        for path, file in RootFiles(self.roots()[root]).walk():
            if self.place(path, root=root).role is Role.MASK:
                yield path, file

    def _role(self, path: str) -> MaskRole:
        is_voc = is_voc_folder(f"{self.semantic_masks or ''}/{path}")
        return MaskRole.VOC_CLASS if is_voc else MaskRole.SEMANTIC

    def warnings(self) -> Iterator[str]:
        """Says how masks are read, and warns of classes without names."""
        if self._reading.said:
            yield self._reading.said
        elif not self._table.ids:
            yield (
                "the masks' classes have no names: name them with mask_classes: {1: NAME, 2: NAME},"
                " or in an id2label.json in the root"
            )

    def declared_categories(self) -> Iterator[Category]:
        """Returns the classes of the masks."""
        for name, class_id in self._table.ids.items():
            yield Category(name=name, source_id=class_id, origin=self._table.path or "mask_classes")

    def annotation_files(self) -> Sequence[str]:
        """Returns the file that names the classes, if there is one."""
        return (self._table_uri,) if self._table_uri else ()

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes of the file."""
        yield from self.declared_categories()

    def join_text(self, key: str) -> str:
        """Returns the text that joins an image to its mask."""
        return self._naming.join_image(key)

    def place(self, path: str, *, root: int) -> Place:
        """Distinguishes images and masks by their roots, or by their folders and names."""
        key = normalize_key(path)
        if is_class_table(key) or holds_objects(key) or self._is_of_masks(key, root=root):
            return Place(role=Role.OTHER)
        is_picture = listing_exclusion(path) is None
        if root == 1 or (is_picture and self.semantic_masks is None and self._naming.is_mask(key)):
            join = self._naming.join_mask(key) if is_picture else ""
            if not join:
                return Place(role=Role.OTHER)
            mask, values = self._role(key), self._reading.values
            return Place(role=Role.MASK, key=key, join=join, mask=mask, values=values)
        return Place(role=Role.IMAGE, key=key, join=self.join_text(key))
