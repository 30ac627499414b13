"""The classes of a dataset: which are written, under which names and ids."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from shardbeam.configs.problem import did_you_mean
from shardbeam.configs.schema import LabelsConfig
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Category

# The files that name a dataset's classes.
LABEL_MAP = "label_map.pbtxt"
LABELS = "labels.txt"

# `{class name: pairs of keypoints that a line joins}`; keypoints are numbered as written, from 0.
Skeletons: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]

# Characters of a class's name; a longer text is a caption or damage.
MAX_CLASS_NAME = 1_000
# Classes of all sources; each takes 5 KB while a dataset is built.
MAX_CLASSES = 1_000_000
# The highest id up to which readers get a name for every id; above, labels are plain integers.
MAX_NUMBERED = 10_000
# Names listed in one error line.
NAMED_CLASSES = 10
# The greatest id in a label map of the TF Object Detection API (`StringIntLabelMapItem.id`).
_MAX_ID = (1 << 31) - 1
# Names that datasets give to a category 0 that stands for "no object", in lower case.
BACKGROUND_NAMES = frozenset({"background", "_background_", "__background__", "bg"})


class LabelSettings(LabelsConfig, frozen=True, kw_only=True):
    """The config's label settings, and the ids that the dataset's maps can hold.

    Attributes:
        map_ids: The smallest and the greatest id that pixels of the dataset's maps can hold; None
            where it has no maps.
        map_ids_hint: Another fix for ids that are too large, added to the error.
    """

    map_ids: tuple[int, int] | None = None
    map_ids_hint: str = ""


class WrittenLabel(NamedTuple):
    """A class as it is written.

    Attributes:
        name: Its name.
        id: Its id.
        text: Its name in UTF-8, as Examples hold it.
    """

    name: str
    id: int
    text: bytes


class LabelMap(msgspec.Struct, frozen=True, dict=True):
    """The classes of a dataset.

    Attributes:
        ids: `{written name: id}`; no two names have the same id.
        names: `{source name: written name}` of every class that is written.
        keypoints: Names of the keypoints of all classes, each once.
        keypoint_columns: `{source name: positions of the class's own keypoints in `keypoints`}`.
        stuff: Source names of the classes without countable objects.
        source_ids: `{source name: ids}` of all classes with an id, written or not; a class has
            several ids only where sources contradict each other.
        background: Source names of categories with id 0 that stand for the background and
            therefore are not classes.
        shifted_by: Source name of the class with id 0 that shifts the source's ids by one; empty
            where the ids stay as they are.
        left_out: Source names that the config leaves out, of classes with objects that cannot be
            read (`Category.lost`).
    """

    ids: dict[str, int]
    names: dict[str, str]
    keypoints: tuple[str, ...] = ()
    keypoint_columns: Mapping[str, tuple[int, ...]] = {}
    stuff: tuple[str, ...] = ()
    source_ids: Mapping[str, tuple[int, ...]] = {}
    background: tuple[str, ...] = ()
    shifted_by: str = ""
    left_out: tuple[str, ...] = ()

    @functools.cached_property
    def written(self) -> Mapping[str, WrittenLabel]:
        """`{source name: its written class}` of every class that is written."""
        labels = {
            name: WrittenLabel(name, number, name.encode()) for name, number in self.ids.items()
        }
        return {source_name: labels[name] for source_name, name in self.names.items()}

    def map_names(self) -> dict[int, str]:
        """Returns the names of the values in maps, `{id: written name}`.

        Empty where no source gives a class an id: the values are not class ids then.
        """
        return {number: name for name, number in self.ids.items()} if self.source_ids else {}

    def numbered_names(self) -> list[str]:
        """Returns a name for each id from 0 to the highest one, as readers' class labels need it.

        An id that no class has is named `unused <id>`. Empty if there are no classes, if ids are
        negative or above `MAX_NUMBERED`, or if a class has such a name itself.
        """
        if not self.ids or min(self.ids.values()) < 0 or max(self.ids.values()) > MAX_NUMBERED:
            return []
        of_id = {number: name for name, number in self.ids.items()}
        names = [of_id.get(number, f"unused {number}") for number in range(max(of_id) + 1)]
        return names if len(set(names)) == len(names) else []


def list_classes(names: Sequence[str], *, number: int | None = None) -> str:
    """Lists classes in one line: the first names, and how many more there are.

    Args:
        names: All names, or only the first ones.
        number: The number of classes, where `names` does not hold all of them.
    """
    first = names[:NAMED_CLASSES]
    more = (len(names) if number is None else number) - len(first)
    return f"{', '.join(first)}{f' and {more:,} more' if more else ''}"


def check_class_name(name: str, *, uri: str) -> None:
    """Refuses a class name that is too long to be one, such as a caption.

    Raises:
        InputError: The name is longer than `MAX_CLASS_NAME`.
    """
    if len(name) > MAX_CLASS_NAME:
        raise InputError(
            uri=uri,
            problem=f"class {name[:40]!r}... has a name of {len(name):,} characters; at most "
            f"{MAX_CLASS_NAME:,} are allowed (docs/reference/limits.md)",
        )


def build_label_map(
    *,
    categories: Iterable[Category],
    settings: LabelSettings,
    objects: bool,
    lost: Collection[str] = (),
) -> LabelMap:
    """Decides the name and id of every class that is written.

    Args:
        categories: The categories of all sources; their order and repetitions do not matter.
        settings: The config's rules.
        objects: Whether the labels are of objects, not of whole images.
        lost: Names of classes with objects that cannot be read. The settings may name them.

    Raises:
        InputError: The sources contradict each other on ids, the settings name an unknown class
            or leave no class, or a name is empty.
    """
    declared = set(categories)
    _check_names_in_settings({*lost, *(each.name for each in declared)}, settings=settings)
    backgrounds = _find_backgrounds(declared, settings=settings) if objects else set()
    ordered = sorted(declared - backgrounds, key=_source_order)
    names: dict[str, str] = {}
    kept = []
    for category in ordered:
        name = settings.written_name(category.name)
        if name is not None:
            if not name:
                raise InputError(
                    uri=category.origin,
                    problem="class '': expected a name; labels.merge can rename it",
                )
            names[category.name] = name
            kept.append(category)
    if ordered and not kept:
        raise _config_error("exclude" if settings.exclude else "include", "no class is left")

    shifted_by = ""
    if settings.ids == "source" and any(category.source_id is not None for category in kept):
        # All declared classes decide this, also those that are left out or do not occur.
        lowest = next(each for each in ordered if each.source_id is not None)
        if objects and lowest.source_id == 0 and settings.first_id != 0:
            # Object detection readers use 0 for the background.
            shifted_by = lowest.name
        ids = _source_ids(
            kept, names=names, settings=settings, shift=int(bool(shifted_by)), lowest=lowest
        )
    else:
        first = settings.first_id if settings.first_id is not None else int(objects)
        distinct = dict.fromkeys(names[category.name] for category in kept)
        ids = {name: class_id for class_id, name in enumerate(distinct, first)}
    _check_ids(ids, settings=settings)
    keypoints, keypoint_columns = _keypoints(kept)
    return LabelMap(
        ids=ids,
        names=names,
        keypoints=keypoints,
        keypoint_columns=keypoint_columns,
        stuff=tuple(sorted({category.name for category in kept if not category.is_thing})),
        source_ids=_ids_by_name(ordered),
        # Some exports give their dummy category the name of a real class.
        background=tuple(
            sorted(
                {each.name for each in backgrounds if settings.written_name(each.name) is not None}
                - {each.name for each in ordered}
            )
        ),
        shifted_by=shifted_by,
        left_out=tuple(sorted(name for name in lost if settings.written_name(name) is None)),
    )


def _find_backgrounds(
    categories: Collection[Category], *, settings: LabelSettings
) -> set[Category]:
    """Finds the categories with id 0 that stand for the background, unless the config keeps them.

    The config keeps a category that `labels.include` or `labels.merge` names; `labels.first_id: 0`
    keeps all of them.
    """
    if settings.ids == "source" and settings.first_id == 0:
        return set()
    asked = {*(settings.include or ()), *settings.merge, *settings.merged_names}
    names = {
        each.name
        for each in categories
        if each.source_id == 0
        and each.name not in asked
        and (each.is_background or each.name.casefold() in BACKGROUND_NAMES)
    }
    return {each for each in categories if each.source_id == 0 and each.name in names}


def written_skeletons(
    categories: Iterable[Category], *, label_map: LabelMap
) -> dict[str, tuple[tuple[int, int], ...]]:
    """Finds the lines to draw between the keypoints of each class.

    Only pictures use them. No Example depends on them, so they are not part of the label map.

    Args:
        categories: The categories of all sources.
        label_map: The classes that are written.

    Returns:
        `{written name: pairs of indexes into the label map's keypoints}` of classes with lines.
    """
    skeletons: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for category in categories:
        name = label_map.names.get(category.name)
        columns = label_map.keypoint_columns.get(category.name, ())
        for first, second in category.skeleton:
            if name is not None and max(first, second) < len(columns):
                skeletons[name].add((columns[first], columns[second]))
    return {name: tuple(sorted(skeletons[name])) for name in sorted(skeletons)}


def _ids_by_name(categories: Iterable[Category]) -> dict[str, tuple[int, ...]]:
    ids: defaultdict[str, set[int]] = defaultdict(set)
    for category in categories:
        if category.source_id is not None:
            ids[category.name].add(category.source_id)
    return {name: tuple(sorted(ids[name])) for name in sorted(ids)}


def _check_ids(ids: Mapping[str, int], *, settings: LabelSettings) -> None:
    for name, label_id in ids.items():
        if not -_MAX_ID - 1 <= label_id <= _MAX_ID:
            raise _config_error(
                "ids",
                f"class {name!r} has id {label_id}, and label_map.pbtxt and the index can hold "
                f"ids up to {_MAX_ID:,}; set labels.ids: contiguous",
            )
    if settings.map_ids is None:
        return
    smallest, greatest = settings.map_ids
    for name, label_id in ids.items():
        if not smallest <= label_id <= greatest:
            fix = "set labels.ids: contiguous"
            if label_id < smallest and settings.first_id is not None:
                fix = f"set labels.first_id: {smallest}, or remove that setting"
            elif settings.ids == "contiguous":
                fix = "change labels.first_id, labels.include or labels.merge"
            raise _config_error(
                "ids",
                f"class {name!r} has id {label_id}, and pixels of the maps can hold {smallest} to "
                f"{greatest}; {fix}{settings.map_ids_hint if label_id > greatest else ''}",
            )


def _keypoints(
    categories: Iterable[Category],
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Numbers the names of keypoints in the order of their categories.

    If sources list different numbers of keypoints for one class, the longest list is used, and it
    must begin with each of the others.

    Raises:
        InputError: Two sources list different keypoints for one class.
    """
    positions: dict[str, int] = {}
    longest: dict[str, Category] = {}
    for category in categories:
        if not category.keypoints:
            continue
        known = longest.setdefault(category.name, category)
        short, long = sorted((known, category), key=lambda each: len(each.keypoints))
        if long.keypoints[: len(short.keypoints)] != short.keypoints:
            raise InputError(
                uri=known.origin,
                problem=f"class {category.name!r} has the keypoints {', '.join(known.keypoints)} "
                f"here and {', '.join(category.keypoints)} in {category.origin}; name them alike "
                "and in the same order in both, or build two datasets",
            )
        longest[category.name] = long
        for name in category.keypoints:
            positions.setdefault(name, len(positions))
    columns = {
        name: tuple(positions[keypoint] for keypoint in category.keypoints)
        for name, category in longest.items()
    }
    return tuple(positions), columns


def _source_order(category: Category) -> tuple[bool, int, str, str]:
    return category.source_id is None, category.source_id or 0, category.name, category.origin


def _source_ids(
    categories: Sequence[Category],
    *,
    names: Mapping[str, str],
    settings: LabelSettings,
    shift: int,
    lowest: Category,
) -> dict[str, int]:
    if settings.first_id not in (None, (lowest.source_id or 0) + shift):
        raise _config_error(
            "first_id", "has no effect on the source's own ids; set labels.ids: contiguous"
        )
    declared: defaultdict[str, list[tuple[int, Category]]] = defaultdict(list)
    for category in categories:
        # Categories come in order of id: the first one of a name has the smallest id.
        if category.source_id is not None:
            declared[names[category.name]].append((category.source_id, category))

    ids: dict[str, int] = {}
    owners: dict[int, Category] = {}
    for name, ((smallest, first), *others) in declared.items():
        for other_id, other in others:
            if other_id != smallest and name not in settings.merge:
                raise InputError(
                    uri=first.origin,
                    problem=f"class {name!r} has id {smallest} here and id {other_id} in "
                    f"{other.origin}; set labels.ids: contiguous",
                )
        if smallest in owners:
            owner = owners[smallest]
            raise InputError(
                uri=owner.origin,
                problem=f"id {smallest} is {owner.name!r} here and {first.name!r} in "
                f"{first.origin}; set labels.ids: contiguous, or give both one name with "
                f"labels.merge",
            )
        ids[name] = smallest + shift
        owners[smallest] = first
    for category in categories:
        if names[category.name] not in ids:
            owner = owners[min(owners)]
            raise InputError(
                uri=category.origin,
                problem=f"class {category.name!r} has no id here, and {owner.name!r} has id "
                f"{owner.source_id} in {owner.origin}; set labels.ids: contiguous",
            )
    return ids


def _check_names_in_settings(source_names: Collection[str], *, settings: LabelSettings) -> None:
    for written, merged in settings.merge.items():
        for name in merged:
            _check_known(name, known=source_names, place=f"merge.{written}")
    written_names = {settings.merged_names.get(name, name) for name in source_names}
    for place, listed in (("include", settings.include or ()), ("exclude", settings.exclude)):
        for name in listed:
            _check_known(name, known=written_names, place=place)


def _check_known(name: str, *, known: Collection[str], place: str) -> None:
    if name not in known:
        raise _config_error(place, f"no class is named {name!r}{did_you_mean(name, known=known)}")


def _config_error(key: str, problem: str) -> InputError:
    return InputError(uri="config", place=f"labels.{key}", problem=problem)
