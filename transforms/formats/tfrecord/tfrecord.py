"""TFRecord files of `tf.train.Example`: of Shardbeam, or of anyone with TFOD keys.

Files of other containers are read if a manifest of Shardbeam lists them.

TFOD is the TF Object Detection API, whose keys object_detection/dataset_tools/
create_coco_tf_record.py writes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.containers.tfrecord import is_tfrecord_head, is_tfrecord_name
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.errors import InputError, reading
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedImage
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.decode.feature_map import FeatureMap, StoredKeys
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.names import is_hidden
from shardbeam.transforms.formats.numbered_files import check_complete
from shardbeam.transforms.formats.recognition import (
    FOLDERS,
    STORED,
    Folder,
    Recognized,
    split_in,
)
from shardbeam.transforms.formats.tfrecord.examples import (
    DATASET_INFO,
    MANIFEST,
    Layout,
    ListedShard,
    how_to_convert,
    read_layout,
)
from shardbeam.transforms.storage.base import Storage, join_uri, nearest_path
from shardbeam.transforms.storage.find import storage_for

# How TFDS begins its keys of annotations; it has no fixed ones.
_OF_TFDS = ("objects/", "bbox", "label", "faces/", "annotations/", "segmentation")
# How `dataset_info.json` names containers that Shardbeam writes, and TFDS with no manifest beside.
_FILE_FORMAT = re.compile(rb'"fileFormat"\s*:\s*"(webdataset|hf_parquet|array_record)"')


class TFRecordFormat(Format, frozen=True, kw_only=True):
    """TFRecord files: of Shardbeam, or of anyone with the keys of the TF Object Detection API.

    An image stays where it is: its record says which bytes of the TFRecord file it has. So does one
    in a dataset of Shardbeam in another container, unless that compresses it.

    Attributes:
        tfrecords: The files, folders of them, or patterns; after `resolve`, the files.
        _masks: Whether objects have masks even if no Example has some.
        _keys: The keys of the Examples.
        _feature_maps: `{folder: how the Examples in its files are read}`, each a `FeatureMap` in
            MessagePack, because the digest of a plan takes no mapping whose keys are integers.
        _splits: `{file: its split}`, if each file belongs to one.
        _listed: `{file: what the manifest of its dataset says about it}`.
        _source: Only Examples that the index gives this source are read; the index gives their
            keys, too. Empty to read all.
        _unpack_into: A folder on disk, where Examples of containers that compress images are
            unpacked; empty to refuse these.
    """

    SUMMARY = "TFRecord files of tf.train.Example, of Shardbeam or with TFOD keys"
    ROOTS = ()
    FILES = ("tfrecords",)
    # Corners in fractions.
    box_reading = BoxReading()

    tfrecords: Annotated[
        list[Location],
        msgspec.Meta(min_length=1),
        named("TFRecord file, folder of them, or pattern", metavar="PATH"),
    ]
    _masks: bool = False
    _keys: StoredKeys = StoredKeys()
    _feature_maps: Mapping[str, bytes] = {}
    _splits: Mapping[str, str] = {}
    _listed: Mapping[str, ListedShard] = {}
    _source: str = ""
    _unpack_into: str = ""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The groups of keys that the Examples have."""
        kinds = frozenset(self._keys.kinds)
        return kinds | {Kind.INSTANCE_MASKS} if self._masks and Kind.DETECTION in kinds else kinds

    @property
    def single_label(self) -> bool:
        """Whether a manifest says that every Example has exactly one label."""
        return self._keys.single_label

    @property
    def raw_images(self) -> bool:
        """Whether the Examples hold bare pixels."""
        return self._keys.raw

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes TFRecord files, by their names and by the length of the first record.

        It also recognizes datasets of Shardbeam in other containers.
        """
        if MANIFEST in folder.files and DATASET_INFO in folder.files:
            named = _FILE_FORMAT.search(folder.head(DATASET_INFO))
            if named is not None:
                return Recognized(
                    what=f"dataset of Shardbeam ({named[1].decode()})",
                    sources={"": {"tfrecords": [folder.uri("")]}},
                    rank=STORED,
                )
        files = [path for path, file in folder.files.items() if _is_one(path) and file.whole]
        if not files or not is_tfrecord_head(folder.head(files[0])):
            return None
        what = counted(len(files), "TFRecord file")
        try:
            check_complete(files, folder=folder.uri(""), flag="--tfrecords")
        except InputError as error:
            return Recognized(what=what, problem=str(error), rank=FOLDERS)
        return Recognized(
            what=what,
            sources=folder.shards_by_split(files, key="tfrecords"),
            # Next to images and their annotations, they are most likely made from these.
            rank=FOLDERS,
        )

    def resolve(self) -> TFRecordFormat:
        """Finds the files, and the keys of their Examples.

        Raises:
            InputError: A folder holds no TFRecord file, or lacks one that its manifest lists or the
                numbers of the others announce; a file cannot be read, or the Examples hold no
                images.
        """
        # Imported here, because it imports NumPy and Pillow, which the help does not need.
        from shardbeam.transforms.formats.tfrecord.examples import find_keys

        layouts: dict[str, Layout] = {}
        found = {path: _find(path, layouts=layouts) for path in self.tfrecords}
        files = list(dict.fromkeys(file for path in self.tfrecords for file in found[path]))
        for folder in {*map(_folder, files)} - layouts.keys():
            layouts[folder] = read_layout(folder)
        whole = {_folder(file) for path in found for file in found[path] if file != path}
        for folder in whole:
            _check_whole(folder, layout=layouts[folder], files=set(files))
        for path in found:
            if found[path] != [path]:
                below = [file.removeprefix(path.rstrip("/") + "/") for file in found[path]]
                check_complete(below, folder=path, flag="--tfrecords")
        listed = {
            file: layouts[_folder(file)].shards[name]
            for file in files
            for name in [posixpath.basename(file)]
            if name in layouts[_folder(file)].shards
        }
        for file, shard in listed.items():
            if not self._unpack_into and not find_container(shard.container).stores_images:
                problem = f"{shard.container} files do not store images in one piece, so that a "
                problem += "build cannot read them where they lie"
                raise InputError(uri=file, problem=f"{problem}; {how_to_convert(file)}")
        splits = {
            file: listed[file].split if file in listed else split_in(posixpath.basename(file))
            for file in files
        }
        return msgspec.structs.replace(
            self,
            tfrecords=files,
            _keys=find_keys({file: layouts[_folder(file)] for file in files}),
            _feature_maps={
                folder: msgspec.msgpack.encode(layout.feature_map)
                for folder in sorted({*map(_folder, files)})
                for layout in [layouts[folder]]
            },
            _splits=splits if all(splits.values()) else {},
            _listed=listed,
        )

    def warnings(self) -> Iterable[str]:
        """Names the keys that are not carried over."""
        for key, why in self._keys.left_out.items():
            yield f"{key} is not carried over: {why}"
        keys = [extra.spec.key for extra in self._keys.extras]
        if foreign := [key for key in keys if key.startswith(_OF_TFDS)]:
            yield (
                f"{', '.join(foreign)}: not read as boxes or classes, but written unchanged under "
                "the same keys; boxes and classes are read from the keys of the TF Object "
                "Detection API, such as image/object/bbox/xmin"
            )
        if not self._keys.kinds:
            yield (
                f"{self.tfrecords[0]}: the Examples hold no annotation that is read, so that the "
                "dataset has images without classes, boxes, captions or masks"
            )

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits that the names of all files, or the manifest, say."""
        return tuple(dict.fromkeys(self._splits.values()))

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares the keys that are carried over."""
        return self._keys.extras

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category | ListedImage]:
        """Lists the images of a TFRecord file, with their annotations.

        Raises:
            InputError: The file cannot be read, is truncated, damaged or compressed, is not a
                TFRecord file of Examples, or not what the manifest of its dataset lists.
        """
        from shardbeam.transforms.formats.tfrecord.tfrecord_file import ExampleReader

        uri = self.tfrecords[file_index]
        reader = ExampleReader(
            keys=self._keys,
            masks=Kind.INSTANCE_MASKS in self.kinds,
            feature_map=MsgpackDecoder(FeatureMap).decode(self._feature_maps[_folder(uri)]),
            source=self._source,
            split=self._splits.get(uri, ""),
            listed=self._listed.get(uri),
            unpack_into=self._unpack_into,
        )
        yield from reader.read(storage.find(uri), file_index=file_index)


def _folder(uri: str) -> str:
    return posixpath.dirname(uri)


def _check_whole(folder: str, *, layout: Layout, files: Collection[str]) -> None:
    """Checks that a dataset's folder has all shards that its manifest lists."""
    for name in layout.shards:
        if join_uri(folder, name) not in files:
            raise InputError(
                uri=folder,
                problem=f"lacks {name}, which its manifest lists; copy it from where the dataset "
                f"is whole, or repair it with `shardbeam verify {folder} --repair CONFIG.yaml`",
            )


def _is_one(path: str) -> bool:
    return is_tfrecord_name(posixpath.basename(path)) and not is_hidden(path)


def _find(path: str, *, layouts: dict[str, Layout]) -> list[str]:
    """Returns a file itself, or the shards of a folder, sorted: TFRecord files, and listed ones.

    Args:
        path: The file or folder.
        layouts: The layout of each folder below it that has a manifest is added.

    Raises:
        InputError: Nothing is there, or it cannot be read.
    """
    storage = storage_for(path)
    with reading(path):
        if storage.stat(path) is not None:
            return [path]
        listed = list(storage.list(path))
    for file in listed:
        if posixpath.basename(file.path) == MANIFEST and not is_hidden(file.path):
            layouts[_folder(file.uri)] = read_layout(_folder(file.uri))
    found = sorted(
        file.uri
        for file in listed
        for layout in [layouts.get(_folder(file.uri))]
        if _is_one(file.path)
        or (layout is not None and posixpath.basename(file.uri) in layout.shards)
    )
    if not found:
        problem = f"there is no such file or folder{nearest_path(path, storage=storage)}"
        if listed:
            problem = f"no TFRecord file found, it holds {listed[0].path!r}; name the files if "
            problem += "their names do not end in .tfrecord, .tfrec or .record"
        elif storage.is_folder(path):
            problem = "the folder is empty"
        raise InputError(uri=path, problem=problem)
    return found
