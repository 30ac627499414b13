"""Selects Examples of a split by its index alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardbeam.configs.nearest import did_you_mean
from shardbeam.readers.open.arguments import is_encodable, shown
from shardbeam.transforms.core.errors import InputError

# The most objects of an Example, in the type of the index's column.
_MAX_OBJECTS = (1 << 31) - 1
# Wrong keys are compared with at most this many others, to suggest one.
_COMPARED = 10_000


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
                raise InputError(
                    uri=path, problem=f"no class {each!r}{did_you_mean(each, by_name)}"
                )
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
