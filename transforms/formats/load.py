"""Finds a format by the name that a config gives it."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import threading
from types import ModuleType

from shardbeam.configs.decoding import MsgpackDecoder
from shardbeam.configs.problem import ShardbeamError, did_you_mean
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.storage.base import nearest_path
from shardbeam.transforms.storage.find import storage_for

# {name: its class}, imported when it is needed.
_BUILT_IN = {
    "coco": "shardbeam.transforms.formats.coco.coco:CocoFormat",
    "lvis": "shardbeam.transforms.formats.coco.lvis:LvisFormat",
    "voc": "shardbeam.transforms.formats.voc.voc:VocFormat",
    "yolo": "shardbeam.transforms.formats.yolo.yolo:YoloFormat",
    "cvat": "shardbeam.transforms.formats.cvat.cvat:CvatFormat",
    "labelme": "shardbeam.transforms.formats.labelme.labelme:LabelMeFormat",
    "keras-txt": "shardbeam.transforms.formats.keras_txt:KerasTxtFormat",
    "via": "shardbeam.transforms.formats.via:ViaFormat",
    "label-studio": "shardbeam.transforms.formats.label_studio.label_studio:LabelStudioFormat",
    "open-images": "shardbeam.transforms.formats.open_images:OpenImagesFormat",
    "csv": "shardbeam.transforms.formats.table.csv:CsvFormat",
    "jsonl": "shardbeam.transforms.formats.table.jsonl:JsonLinesFormat",
    "parquet": "shardbeam.transforms.formats.table.parquet:ParquetFormat",
    "filename-label": "shardbeam.transforms.formats.filename_label:FilenameLabelFormat",
    "image-folder": "shardbeam.transforms.formats.image_folder:ImageFolderFormat",
    "masks": "shardbeam.transforms.formats.masks:MasksFormat",
    "images": "shardbeam.transforms.formats.images:ImagesFormat",
    "cifar10": "shardbeam.transforms.formats.cifar:Cifar10Format",
    "cifar100": "shardbeam.transforms.formats.cifar:Cifar100Format",
    "idx": "shardbeam.transforms.formats.idx:IdxFormat",
    "webdataset": "shardbeam.transforms.formats.webdataset:WebDatasetFormat",
    "huggingface": "shardbeam.transforms.formats.huggingface.huggingface:HuggingFaceFormat",
    "tfrecord": "shardbeam.transforms.formats.tfrecord.tfrecord:TFRecordFormat",
}

# A custom format.
_OWN = re.compile(r"[^:]+:[^\W\d]\w*")

# Worker threads ask at the same time, and a module must not be seen half imported.
_lock = threading.RLock()


class FormatError(ShardbeamError, ValueError):
    """A format cannot be found."""


def built_in_formats() -> dict[str, type[Format]]:
    """The classes of the built-in formats, by name."""
    return {name: find_format(name) for name in _BUILT_IN}


def is_format(name: str) -> bool:
    """Whether a text is the name of a built-in format, or looks like that of a custom format."""
    return name in _BUILT_IN or _OWN.fullmatch(name) is not None


def find_format(name: str) -> type[Format]:
    """Finds the class of a format.

    Args:
        name: A built-in format's name, or a custom subclass of `Format` as
            `package.module:Class` or `path/to/file.py:Class`.

    Raises:
        FormatError: There is no such format, or its module cannot be imported.
    """
    with _lock:
        return _load_class(_BUILT_IN.get(name, name))


def name_format(made: Format) -> str:
    """Returns the name that `find_format` takes: the one in the config, if there is one."""
    return made.format or f"{type(made).__module__}:{type(made).__qualname__}"


@functools.cache
def restore_format(name: str, keys: bytes) -> Format:
    """Makes a format in a worker, or returns the one made before of the same name and keys.

    Workers receive the name, and the keys as MessagePack: they could not unpickle an object whose
    class is in a user's file that they have not imported. So workers must be able to read that
    file, and its code runs in each of their processes.
    """
    return MsgpackDecoder(find_format(name)).decode(keys)


@functools.cache
def _load_class(name: str) -> type[Format]:
    module_name, colon, class_name = name.rpartition(":")
    if not colon:
        raise FormatError(
            f"unknown format {name!r}: expected {', '.join(_BUILT_IN)}, or a class of your own as "
            f"package.module:Class or path/to/file.py:Class{did_you_mean(name, known=_BUILT_IN)}"
        )
    try:
        if module_name.endswith(".py"):
            module = _import_file(os.path.abspath(module_name))
        else:
            module = importlib.import_module(module_name)
    except Exception as error:
        # A user's module may raise anything.
        raise FormatError(
            f"format {name!r}: {module_name} cannot be imported: {_in_words(error)}"
        ) from error
    format_class = getattr(module, class_name, None)
    if format_class is None:
        near = did_you_mean(class_name, known=_format_classes(module))
        raise FormatError(f"format {name!r}: {module_name} has no {class_name!r}{near}")
    if not (isinstance(format_class, type) and issubclass(format_class, Format)):
        raise FormatError(
            f"format {name!r}: {class_name} is not a subclass of {Format.__module__}.Format"
        )
    if format_class.kinds is Format.kinds:
        raise FormatError(f"format {name!r}: the class sets no `kinds`")
    return format_class


def _import_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        near = nearest_path(path, storage=storage_for(path))
        raise FileNotFoundError(f"there is no such file{near}")
    # This name cannot clash with that of another module.
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    module_name = f"_shardbeam_format_{digest[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python source file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it runs.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _format_classes(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Format) and value is not Format
    ]


def _in_words(error: Exception) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
