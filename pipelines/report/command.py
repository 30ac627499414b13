"""`shardbeam report`: reads a dataset, and writes a page about it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import msgspec

from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.commands import ReportArguments
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.figure import Classes
from shardbeam.pipelines.logs import escape, write_stdout
from shardbeam.pipelines.own_files import Mark, check_replaceable, dataset_name
from shardbeam.pipelines.report.changes import find_changes
from shardbeam.pipelines.report.charts import load_statistics, make_charts
from shardbeam.pipelines.report.duplicates import read_duplicates
from shardbeam.pipelines.report.facts import read_facts
from shardbeam.pipelines.report.page import Report, render_page
from shardbeam.pipelines.report.rejects import draw_rejects
from shardbeam.pipelines.report.sample import Sample, sample_pictures
from shardbeam.pipelines.report.thumbnails import Thumbnail, draw_thumbnail
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.dataset.read.dataset import StoredDataset, open_dataset
from shardbeam.transforms.dataset.read.legend import read_legend
from shardbeam.transforms.dataset.read.pictures import read_pictures
from shardbeam.transforms.examples.decode import Picture
from shardbeam.transforms.storage.find import storage_for

MAX_BYTES = 10_000_000
_BEGINNING = b"<!doctype html>\n<!-- "
# Longer sides of thumbnails, in pixels; they are tried in turn until the page is small enough.
_SIDES = (1024, 800, 640, 512, 400, 320, 256, 200, 160, 128, 96, 64)
# The longer side of the thumbnails of duplicates, in pixels.
_PAIR_SIDE = 240
_MAX_KEYS_BYTES = 10_000_000


def run_report(arguments: ReportArguments) -> None:
    """Writes the page of a dataset.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: The page cannot be written to its path, a key is not in the dataset, or a folder
            of images does not exist.
    """
    output = arguments.output
    check_replaceable(
        output,
        flag="--output",
        start=_BEGINNING,
        mark=Mark("report", dataset_name(arguments.path)),
        overwrite=arguments.overwrite,
    )
    keys = _read_keys(arguments.keys) if arguments.keys else None
    dataset = open_dataset(arguments.path)
    for folder in arguments.images:
        storage = storage_for(folder)
        if next(storage.list(folder), None) is None:
            problem = "the folder is empty" if storage.is_folder(folder) else "nothing is there"
            raise UsageError(f"--images: {folder}: {problem}")
    # The pictures of the gallery are read twice: the dataset, and the chosen ones.
    counters.shard_bytes.expect(2 * sum(split.num_bytes for split in dataset.splits))
    page = make_page(
        dataset,
        examples=arguments.examples,
        keys=keys,
        roots=arguments.images,
        previous=arguments.previous,
    )
    # The manifest of an older dataset may hold passwords.
    data = hide_passwords(page).encode()
    try:
        storage_for(output).replace(output, data)
    except OSError as error:
        raise UsageError(f"--output: {output}: {error.strerror or error}") from error
    write_stdout(f"wrote {escape(output)}, {len(data):,} bytes\n")


def make_page(
    dataset: StoredDataset,
    *,
    examples: int,
    keys: Collection[str] | None = None,
    roots: Sequence[str] = (),
    previous: str | None = None,
) -> str:
    """Makes the page of a dataset, of at most 10 MB; the same dataset gives the same page.

    Thumbnails are as large as the page has room for. If even the smallest do not fit, the last ones
    are left out, and the page says so.

    Args:
        dataset: The dataset.
        examples: How many pictures the gallery shows at most.
        keys: If given, the gallery shows the pictures with these keys, and no others.
        roots: Folders to search for rejected images.
        previous: An earlier dataset, to show what has changed since.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: A key is not in the dataset.
    """
    facts = read_facts(dataset)
    legend = read_legend(dataset)
    classes = Classes(legend.class_names, numbered_maps=legend.numbered_maps)
    sample = sample_pictures(
        [dataset.find_split(split.name) for split in dataset.splits],
        read=functools.partial(read_pictures, legend=legend),
        read_map=functools.partial(_read_map, classes=classes),
        limit=examples,
        keys=keys,
    )
    if keys is not None:
        _check_found(keys, sample=sample)
    rejects = draw_rejects(facts.listed_rejects, roots=roots)
    statistics = load_statistics(dataset, legend=legend)
    duplicates = (
        None
        if facts.duplicates is None
        else read_duplicates(dataset, counts=facts.duplicates, legend=legend)
    )
    report = Report(
        facts=facts,
        duplicates=duplicates,
        changes=None if previous is None else find_changes(previous, dataset),
        charts=make_charts(
            {split.name: statistics[split.name] for split in dataset.splits},
            manifest=dataset.read_manifest(),
        ),
        classes=classes,
        sample=sample,
        thumbnails=(),
        reject_pictures=rejects,
    )
    return _fit_page(report)


def _fit_page(report: Report) -> str:
    pictures, classes = report.sample.pictures, report.classes
    report = report._replace(
        pairs=[
            [
                draw_thumbnail(_without_masks(picture), max_side=_PAIR_SIDE, classes=classes)
                for picture in group.pictures
            ]
            for group in (report.duplicates.groups if report.duplicates else ())
        ]
    )
    thumbnails: list[Thumbnail] = []
    sides = list(_SIDES)
    while sides:
        side = sides.pop(0)
        thumbnails = []
        num_bytes = 0
        for picture in pictures:
            thumbnails.append(draw_thumbnail(picture, max_side=side, classes=classes))
            counters.pictures.add()
            num_bytes += thumbnails[-1].num_bytes
            if num_bytes > MAX_BYTES:
                break
        else:
            page = render_page(report._replace(thumbnails=thumbnails))
            if len(page.encode()) <= MAX_BYTES:
                return page
        # Bytes grow with pixels: skip the sides that are certainly too large.
        share = len(thumbnails) / len(pictures) if pictures else 0
        sides = [smaller for smaller in sides if smaller**2 <= 1.2 * share * side**2] or sides[-1:]
    while True:
        thumbnails = thumbnails[: len(thumbnails) * 9 // 10]
        if not thumbnails and report.duplicates is not None:
            half = len(report.pairs) // 2
            duplicates = report.duplicates._replace(groups=report.duplicates.groups[:half])
            report = report._replace(duplicates=duplicates, pairs=report.pairs[:half])
        page = render_page(report._replace(thumbnails=thumbnails))
        if len(page.encode()) <= MAX_BYTES or not (thumbnails or report.pairs):
            return page


def _without_masks(picture: Picture) -> Picture:
    objects = tuple(msgspec.structs.replace(item, mask=b"") for item in picture.objects)
    return msgspec.structs.replace(picture, objects=objects, class_map=b"", instance_map=b"")


def _read_map(picture: Picture, *, classes: Classes) -> Collection[str]:
    return classes.name_map(picture.class_map, size=(picture.width, picture.height))


def _read_keys(path: str) -> frozenset[str]:
    """Reads a file of keys, one per line.

    Raises:
        UsageError: The file cannot be read, or has no keys.
    """
    try:
        data = storage_for(path).read(path, size_bytes=_MAX_KEYS_BYTES + 1)
        if len(data) > _MAX_KEYS_BYTES:
            raise UsageError(f"--keys: {path}: has more than {_MAX_KEYS_BYTES:,} bytes")
        keys = frozenset(filter(None, data.decode("utf-8-sig").splitlines()))
    except OSError as error:
        raise UsageError(f"--keys: {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--keys: {path}: not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    if not keys:
        raise UsageError(f"--keys: {path}: no keys; expected one on each line")
    return keys


def _check_found(keys: Collection[str], *, sample: Sample) -> None:
    missing = sorted(set(keys) - {picture.key for picture in sample.pictures})
    if missing:
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        raise UsageError(f"--keys: no Example of the dataset has the key {missing[0]!r}{more}")
