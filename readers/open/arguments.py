"""Checks the arguments of `shardbeam.open` and its sequences, and selects Examples by `where`."""

from __future__ import annotations

import itertools
import operator
import os
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import is_uri

# The most objects of an Example, in the type of the index's column.
_MAX_OBJECTS = (1 << 31) - 1
# Wrong keys are compared with at most this many others, to suggest one.
_COMPARED = 10_000
# Classes that an error names.
_NAMED_CLASSES = 10


class Where(TypedDict, total=False):
    """Conditions on Examples; an Example that meets all of them keeps all its objects.

    Attributes:
        classes: Classes, by id or by name: an object, the image or its map has at least one of
            them.
        min_objects: The least number of objects.
        keys: Keys of images (`image/filename`), each of which must be there.
    """

    classes: Collection[int | str]
    min_objects: int
    keys: Collection[str]


_MAP_CLASSES = "map_classes"
# {condition: the columns of the index that it needs}
_COLUMNS = {
    "classes": ("classes", _MAP_CLASSES),
    "min_objects": ("objects",),
    "keys": ("key",),
}
# {condition: what its list holds}
_LISTS = {
    "classes": ("ids and names", (int, np.integer, str)),
    "keys": ("paths of images", (str,)),
}


def absolute_path(name: str, path: str | os.PathLike[str]) -> str:
    """Returns a path that is the same in another folder; a URI is returned as it is.

    Args:
        name: The argument.
        path: Its value.

    Raises:
        TypeError: It is neither a text nor a path.
        ValueError: It is empty, or no file can have this name.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name}: expected a path, got {shown(path)}")
    # An empty path would be the current folder.
    if not text or "\0" in text or not is_encodable(text, errors="surrogateescape"):
        raise ValueError(f"{name}: expected a path, got {shown(text)}")
    return text if is_uri(text) else os.path.abspath(text)


def check_flag(name: str, value: object) -> None:
    """Checks that the value of an argument is True or False.

    Raises:
        TypeError: It is not; a text such as `"no"` would count as True.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {shown(value)}")


def check_size(name: str, value: object) -> int:
    """Returns a number of bytes as an integer.

    Raises:
        TypeError: It is no integer.
        ValueError: It is below 1.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a number of bytes, got {shown(value)}")
    if value < 1:
        raise ValueError(f"{name}: expected at least 1 byte, got {shown(value)}")
    return int(value)


def check_keys(name: str, values: object) -> tuple[str, ...]:
    """Returns a list of keys as a tuple.

    Raises:
        TypeError: It is no list, or something in it is no text.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected a list of keys, got {shown(values)}")
    keys = tuple(values)
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"{name}: expected a list of keys, got {shown(key)} in it")
    return keys


def shown(value: object) -> str:
    """Returns a short text of one line for a wrong value."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:
        # Python writes no integers of more than 4,300 digits.
        return f"{type(value).__name__} of too many digits"


def is_encodable(text: str, *, errors: str = "strict") -> bool:
    """Returns whether a text has a form in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode(errors=errors)
    except UnicodeEncodeError:
        return False
    return True


def is_list(index: object) -> bool:
    """Returns whether an index of a sequence is a list, an array or a mask."""
    if isinstance(index, (str, bytes)):
        return False
    return isinstance(index, Sequence) or getattr(index, "ndim", 0) > 0


def as_number(index: object) -> int:
    """Returns the index of one item as an integer.

    Raises:
        TypeError: It is no integer. True and False are none, although Python and PyTorch count
            them as 1 and 0.
    """
    if type(index) is int:
        return index
    if hasattr(index, "dtype"):
        array = np.asarray(index)
        if array.ndim == 0 and array.dtype.kind in "iu":
            return int(array)
    elif isinstance(index, SupportsIndex) and not isinstance(index, bool):
        return operator.index(index)
    raise _no_index(index)


def as_numbers(indexes: Iterable[object], *, size: int) -> list[int]:
    """Returns the indexes of several items as integers.

    Args:
        indexes: A list or an array of integers, or a mask: an array of NumPy, PyTorch or another
            library with a boolean for each item of the sequence.
        size: The length of the sequence.

    Raises:
        TypeError: It is none of these, such as a list of booleans.
        IndexError: A mask has another length than the sequence.
    """
    if not hasattr(indexes, "dtype"):
        return [as_number(index) for index in indexes]
    array: npt.NDArray[Any] = np.asarray(indexes)
    if array.dtype == bool:
        if array.shape != (size,):
            raise IndexError(f"a mask of the shape {array.shape} for a sequence of {size:,} items")
        return np.flatnonzero(array).tolist()
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _no_index(indexes)
    return array.tolist()


def _no_index(index: object) -> TypeError:
    return TypeError(
        "expected an integer, a slice, a list of integers, or an array of integers or of a boolean "
        f"for each item (a mask), got {shown(index)}"
    )


def check_where(where: Where | None) -> Where:
    """Checks the types of conditions, and returns them; none if `where` is None.

    Raises:
        ValueError: A condition is unknown, or its value is of another type or out of range.
    """
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise ValueError(f"where: expected a dictionary of conditions, got {shown(where)}")
    value: Any
    for name, value in where.items():
        if name not in _COLUMNS:
            hint = did_you_mean(name, _COLUMNS) if isinstance(name, str) else ""
            raise ValueError(f"where: no condition {shown(name)}{hint}")
        if name == "min_objects":
            if not _is_one_of(value, int, np.integer) or not 0 <= value <= _MAX_OBJECTS:
                raise ValueError(
                    f"where: min_objects: expected a number from 0 to {_MAX_OBJECTS:,}, got "
                    f"{shown(value)}"
                )
            continue
        what, kinds = _LISTS[name]
        if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
            raise ValueError(f"where: {name}: expected a list of {what}, got {shown(value)}")
        for each in value:
            if not _is_one_of(each, *kinds):
                raise ValueError(
                    f"where: {name}: expected a list of {what}, got {shown(each)} in it"
                )
    return where


def _is_one_of(value: Any, *kinds: type) -> bool:  # noqa: ANN401
    return isinstance(value, kinds) and not isinstance(value, bool)


def where_columns(where: Where) -> list[str]:
    """Returns the columns of the index that conditions need."""
    return [column for name in where for column in _COLUMNS[name]]


def select(
    where: Where,
    *,
    tables: Sequence[pa.Table],
    class_names: Mapping[int, str],
    has_maps: bool,
    path: str,
    fix: str,
) -> npt.NDArray[np.int64]:
    """Returns the numbers of the Examples that meet all conditions, in order.

    Args:
        where: The conditions.
        tables: For each shard the columns that they need; older indexes lack some.
        class_names: `{id: name}`, where it is known.
        has_maps: Whether the dataset has maps whose values are ids of classes.
        path: The dataset, for errors.
        fix: What to do if the index lacks a column.

    Raises:
        InputError: The index lacks a column, or there is no such class or key.
    """
    for name, columns in _COLUMNS.items():
        for column in columns if name in where else ():
            is_needed = has_maps or column != _MAP_CLASSES
            if is_needed and any(column not in table.column_names for table in tables):
                problem = f"its index has no {column!r}, which where: {name} needs; {fix}"
                raise InputError(uri=path, problem=problem)
    chosen = np.ones(sum(table.num_rows for table in tables), bool)
    if "min_objects" in where:
        objects = _column(tables, "objects")
        enough = pc.fill_null(pc.greater_equal(objects, int(where["min_objects"])), False)
        chosen &= enough.to_numpy(zero_copy_only=False)
    if "keys" in where:
        keys = _column(tables, "key")
        # Half of a surrogate pair cannot be in a file, so no Example has a key with one.
        wanted = [key for key in where["keys"] if is_encodable(key)]
        found = pc.is_in(keys, value_set=pa.array(wanted, pa.string()))
        chosen &= found.to_numpy(zero_copy_only=False)
        _check_keys(where["keys"], found=keys.filter(found), keys=keys, path=path)
    if "classes" in where:
        ids = _class_ids(where["classes"], class_names=class_names, path=path)
        lists = [
            _column(tables, name)
            for name in _COLUMNS["classes"]
            if all(name in table.column_names for table in tables)
        ]
        if len(chosen) and all(each.null_count == len(each) for each in lists):
            raise InputError(uri=path, problem="its index knows no classes of its Examples")
        chosen &= np.any([_has_any(each, ids) for each in lists], axis=0)
    return np.flatnonzero(chosen)


def _column(tables: Sequence[pa.Table], name: str) -> pa.Array:
    return pa.concat_tables([table.select([name]) for table in tables])[name].combine_chunks()


def _has_any(classes: pa.ListArray, ids: Collection[int]) -> npt.NDArray[np.bool_]:
    """Returns for each list whether one of the ids is in it."""
    has = np.zeros(len(classes), bool)
    # No class of the index has a larger id.
    values = pa.array([each for each in ids if abs(each) < 1 << 31], pa.int32())
    found = pc.is_in(pc.list_flatten(classes), value_set=values)
    has[pc.list_parent_indices(classes).filter(found).to_numpy()] = True
    return has


def _class_ids(
    classes: Collection[int | str], *, class_names: Mapping[int, str], path: str
) -> set[int]:
    by_name: dict[str, list[int]] = {}
    for number, name in class_names.items():
        by_name.setdefault(name, []).append(number)
    ids: set[int] = set()
    for each in classes:
        if isinstance(each, str):
            if each not in by_name:
                known = ", ".join(map(repr, itertools.islice(by_name, _NAMED_CLASSES)))
                hint = did_you_mean(each, by_name) or (f"; the first are {known}" if known else "")
                raise InputError(uri=path, problem=f"no class {each!r}{hint}")
            ids.update(by_name[each])
        else:
            number = int(each)
            if class_names and number not in class_names:
                known = ", ".join(str(known) for known in sorted(class_names)[:10])
                problem = f"no class with the id {shown(number)}; the first ids are {known}"
                raise InputError(uri=path, problem=problem)
            ids.add(number)
    return ids


def _check_keys(wanted: Collection[str], *, found: pa.Array, keys: pa.Array, path: str) -> None:
    missing = set(wanted).difference(found.to_pylist())
    if missing:
        key = min(missing)
        more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        hint = did_you_mean(key, keys.slice(0, _COMPARED).to_pylist())
        raise InputError(uri=path, problem=f"no example with the key {key!r}{hint}{more}")
