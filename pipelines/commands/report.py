"""`shardbeam report`: reads a dataset, and writes a page about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.cli.commands import ReportArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.failures import UsageError, blaming
from shardbeam.pipelines.overlap import check_replaceable, write_file
from shardbeam.readers.open.find_findings import list_kinds
from shardbeam.readers.open.images import PlacedExamples, read_with_places
from shardbeam.readers.open.stored_dataset import (
    StoredDataset,
    StoredSplit,
    dataset_name,
    open_dataset,
    read_feature_map,
)
from shardbeam.readers.predictions.find_by_predictions import Predictions, find_by_predictions
from shardbeam.readers.report.changes import find_changes
from shardbeam.readers.report.charts import count_statistics, make_charts
from shardbeam.readers.report.duplicate_cards import Duplicates, read_duplicates
from shardbeam.readers.report.facts import read_facts
from shardbeam.readers.report.gallery import Gallery
from shardbeam.readers.report.page import Report, render_card, render_page
from shardbeam.readers.report.predicted_cards import choose_drawn, draw_predictions
from shardbeam.readers.report.sampled_images import Sample, sample_by_index, sample_images
from shardbeam.readers.report.styles import Classes
from shardbeam.readers.report.thumbnails import draw_rejects
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.text import Mark, escape
from shardbeam.transforms.dataset.collectors.statistics import Statistics, merge_statistics
from shardbeam.transforms.dataset.findings import KINDS
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.storage.base import nearest_path
from shardbeam.transforms.storage.find import storage_for

MAX_BYTES = 15_000_000
_BEGINNING = b"<!doctype html>\n<!-- "
# If the caller gives no number of pictures, at most this many are shown.
_MOST_PICTURES = 1000
# Shares of the page's bytes: for the pictures of duplicates, for those of predictions, and for
# everything but the gallery's cards. If that takes more, groups of duplicates are left out.
_GROUPS_SHARE, _PREDICTED_SHARE, _FRAME_SHARE = 0.2, 0.2, 0.6
# Bytes that the links to a card or to a class take elsewhere in the page.
_LINKS_BYTES = 400
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
        inputs=filter(
            None,
            (
                arguments.path,
                arguments.keys,
                arguments.previous,
                arguments.predictions,
                *arguments.images,
            ),
        ),
    )
    if arguments.split is not None and arguments.predictions is None:
        raise UsageError("--split: only together with --predictions")
    keys = _read_keys(arguments.keys) if arguments.keys else None
    dataset = open_dataset(arguments.path)
    for folder in arguments.images:
        storage = storage_for(folder)
        if next(storage.list(folder), None) is None:
            near = nearest_path(folder, storage=storage)
            problem = (
                "the folder is empty" if storage.is_folder(folder) else f"nothing is there{near}"
            )
            raise UsageError(f"--images: {folder}: {problem}")
    page = make_page(
        dataset,
        examples=arguments.examples,
        keys=keys,
        roots=arguments.images,
        previous=arguments.previous,
        predictions=(
            find_by_predictions(dataset, uri=arguments.predictions, split=arguments.split)
            if arguments.predictions is not None
            else None
        ),
    )
    # The manifest of an older dataset may hold passwords.
    data = hide_passwords(page).encode()
    write_file(output, data, flag="--output")
    write_stdout(f"wrote {escape(output)}, {len(data):,} bytes\n")


def make_page(
    dataset: StoredDataset,
    *,
    examples: int | None = None,
    keys: Collection[str] | None = None,
    roots: Sequence[str] = (),
    previous: str | None = None,
    predictions: Predictions | None = None,
) -> str:
    """Makes the page of a dataset, of at most 15 MB; the same dataset gives the same page.

    Args:
        dataset: The dataset.
        examples: The gallery shows at most this many pictures, each as large as the page has room
            for. With None, it shows as many as fit at a size that shows details.
        keys: If given, the gallery shows the pictures with these keys, and no others.
        roots: Folders to search for rejected images.
        previous: An earlier dataset, to show what has changed since.
        predictions: What a model's predictions show about the dataset.

    Raises:
        InputError: The dataset cannot be read.
        UsageError: A key is not in the dataset.
    """
    facts = read_facts(dataset)
    feature_map = read_feature_map(dataset)
    manifest = dataset.manifest
    ignored = manifest.ignored_findings if manifest is not None else ()
    classes = Classes(feature_map.class_names, numbered_maps=feature_map.numbered_maps)
    splits = {split.name: dataset.find_split(split.name) for split in dataset.splits}
    is_ours = dataset.features is not None and feature_map.is_ours
    stored = read_statistics(dataset.path) if is_ours else None
    sample = _choose_images(
        dataset,
        splits=list(splits.values()),
        statistics=stored,
        feature_map=feature_map,
        classes=classes,
        kinds=[kind for kind in KINDS if kind not in ignored],
        limit=examples or _MOST_PICTURES,
        keys=keys,
    )
    if keys is not None:
        _check_found(keys, sample=sample)
    statistics = count_statistics(dataset, feature_map=feature_map) if stored is None else stored
    statistics = {name: statistics.get(name, Statistics()) for name in splits}
    charts = make_charts(statistics)
    by_frequency = sorted(sample.classes.items(), key=lambda item: (-item[1], item[0]))
    classes.number_found(name for name, _ in by_frequency)
    duplicates = Duplicates()
    if facts.duplicates is not None and facts.duplicates.groups:
        duplicates = read_duplicates(
            dataset,
            shown=[candidate.place for candidate in sample.chosen],
            ignored=ignored,
        )
    drawn = choose_drawn(predictions) if predictions is not None else []
    places = [
        *(each.place for each in drawn),
        *(candidate.place for candidate in sample.chosen),
        *(twin.place for twin in duplicates.twins.values()),
        *(place for group in duplicates.groups for place in group.places),
    ]
    gallery = Gallery(
        splits=splits,
        examples=PlacedExamples(splits, places),
        feature_map=feature_map,
        classes=classes,
        bars=charts.bars,
        ignored=ignored,
        twins=duplicates.twins,
    )
    report = Report(
        facts=facts,
        groups=list(gallery.draw_groups(duplicates.groups, room=int(_GROUPS_SHARE * MAX_BYTES))),
        changes=None if previous is None else find_changes(previous, dataset, render=render_card),
        charts=charts,
        total=merge_statistics(statistics.values()),
        kinds=list_kinds(statistics, manifest=manifest),
        classes=classes,
        sample=sample,
        is_number_given=examples is not None or keys is not None,
        reject_images=draw_rejects(facts.listed_rejects, roots=roots),
        predictions=predictions
        and draw_predictions(
            predictions,
            drawn,
            read=gallery.read_picture,
            classes=classes,
            room=int(_PREDICTED_SHARE * MAX_BYTES),
        ),
    )
    return _fill_page(report, gallery=gallery)


def _choose_images(
    dataset: StoredDataset,
    *,
    splits: Sequence[StoredSplit],
    statistics: Mapping[str, Statistics] | None,
    feature_map: FeatureMap,
    classes: Classes,
    kinds: Sequence[str],
    limit: int,
    keys: Collection[str] | None,
) -> Sample:
    """Chooses the pictures: by the indexes if they know enough, or else by reading all Examples.

    Raises:
        InputError: A shard cannot be read.
    """
    found = None
    if statistics is not None:
        sample = sample_by_index(
            dataset,
            splits,
            statistics=statistics,
            class_names=feature_map.class_names,
            kinds=kinds,
            limit=limit,
            keys=keys,
        )
        if sample is not None and not sample.lacks_maps:
            return sample
        found = sample.found if sample is not None else None
    counters.shard_bytes.expect(sum(split.num_bytes for split in splits))
    pictures = (
        (stored.place, stored.picture(split, feature_map=feature_map))
        for split in splits
        for stored in read_with_places(split)
    )

    def read_map(picture: Picture) -> Collection[str]:
        return classes.name_map(picture.class_map, size=(picture.width, picture.height))

    return sample_images(pictures, read_map=read_map, limit=limit, keys=keys, found=found)


def _fill_page(report: Report, *, gallery: Gallery) -> str:
    """Draws the pictures of the gallery, as many as the page has room for."""
    frame = len(render_page(report).encode())
    while frame > _FRAME_SHARE * MAX_BYTES and report.groups:
        report = report._replace(groups=report.groups[: len(report.groups) // 2])
        frame = len(render_page(report).encode())
    chosen = report.sample.chosen
    counters.pictures.expect(len(chosen))
    links = _LINKS_BYTES * (len(report.sample.classes) + len(chosen))
    room = MAX_BYTES - frame
    cards = gallery.draw(
        chosen,
        room=room - min(links, room // 10),
        is_number_given=report.is_number_given,
        groups=report.groups,
    )
    while True:
        report = report._replace(cards=sorted(cards, key=lambda card: (card.split, card.number)))
        page = render_page(report)
        excess = len(page.encode()) - MAX_BYTES
        if excess <= 0 or not (cards or report.groups):
            return page
        if cards:
            # Leave out the last cards, which are the least telling.
            cards = cards[: len(cards) * 9 // 10]
        else:
            report = report._replace(groups=report.groups[: len(report.groups) // 2])


def _read_keys(path: str) -> frozenset[str]:
    """Reads a file of keys, one per line.

    Raises:
        UsageError: The file cannot be read, or has no keys.
    """
    with blaming(f"--keys: {path}"):
        data = storage_for(path).read(path, size_bytes=_MAX_KEYS_BYTES + 1)
    if len(data) > _MAX_KEYS_BYTES:
        raise UsageError(f"--keys: {path}: has more than {_MAX_KEYS_BYTES:,} bytes")
    try:
        keys = frozenset(filter(None, data.decode("utf-8-sig").splitlines()))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--keys: {path}: not UTF-8: {error.reason} at byte {error.start}"
        ) from None
    if not keys:
        raise UsageError(f"--keys: {path}: no keys; expected one on each line")
    return keys


def _check_found(keys: Collection[str], *, sample: Sample) -> None:
    missing = sorted(set(keys) - {candidate.key for candidate in sample.chosen})
    if missing:
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        raise UsageError(f"--keys: no Example of the dataset has the key {missing[0]!r}{more}")
