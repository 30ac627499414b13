"""`shardbeam export`: writes a dataset as COCO or YOLO. Needs no Beam and no TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from shardbeam.pipelines.cli.commands import ExportArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.cli.tables import PLAIN, cell_text, make_table, render_table
from shardbeam.pipelines.failures import UsageError, blaming, machine_error
from shardbeam.pipelines.interrupts import delay_interrupts, say_when_interrupted
from shardbeam.pipelines.overlap import check_apart, check_outside_datasets
from shardbeam.pipelines.own_folders import FOLDER_INSIDE, folder_inside
from shardbeam.readers.export.base import MARK, Layout
from shardbeam.readers.export.coco import CocoLayout
from shardbeam.readers.export.images import ImageReader, Losses, find_classes
from shardbeam.readers.export.yolo import YoloLayout
from shardbeam.readers.open.images import read_images
from shardbeam.readers.open.stored_dataset import (
    StoredDataset,
    StoredSplit,
    dataset_name,
    open_dataset,
    read_feature_map,
)
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.map_ahead import map_many
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.text import Mark, counted, escape
from shardbeam.transforms.staging.lease import FolderLock
from shardbeam.transforms.storage.base import is_uri

_LAYOUTS: dict[str, type[Layout]] = {"coco": CocoLayout, "yolo": YoloLayout}
# Where an earlier export is while it is replaced. No command removes it.
_EARLIER = ".earlier-export"
# Syncing several files at a time is faster than one after another.
_SYNCED_AT_A_TIME = 16
# Corrections that change an image's pixels.
_CHANGED_PIXELS = (
    Correction.IMAGE_CONVERTED,
    Correction.IMAGE_RESIZED,
    Correction.ORIENTATION_APPLIED,
)


def run_export(arguments: ExportArguments) -> None:
    """Writes the images and annotations of a dataset.

    Files are written into a hidden folder inside the output, and moved up when all of them are
    complete.

    Raises:
        UsageError: The output may not be written.
        InputError: The dataset cannot be read or exported.
        RunError: The disk is full, or fails.
        LeaseError: Another command writes to the output.
    """
    layout = _LAYOUTS[arguments.format]
    if arguments.task not in (None, *layout.TASKS):
        raise UsageError(f"--task: not with --format {arguments.format}")
    output = _check_output(arguments.output, overwrite=arguments.overwrite)
    dataset = open_dataset(arguments.path)
    check_apart(output, name="--output", inputs=[dataset.path])
    names = [each.name for each in dataset.splits] if arguments.split is None else [arguments.split]
    splits = [dataset.find_split(name) for name in names]
    losses = Losses()
    mark = Mark(MARK.removeprefix("Shardbeam "), dataset_name(arguments.path)).text
    try:
        with folder_inside(output) as folder, FolderLock(output):
            # Another export may have ended since the output was checked.
            _check_output(arguments.output, overwrite=arguments.overwrite)
            new = os.path.join(folder, "export")
            os.mkdir(new)
            writer, exported = _export(
                dataset,
                splits,
                layout=layout,
                folder=new,
                mark=mark,
                losses=losses,
                task=arguments.task,
            )
            _sync(new)
            with delay_interrupts():
                _publish(new, output, layout=layout, overwrite=arguments.overwrite)
                say_when_interrupted(f"interrupted; the export is complete: {output}")
    except OSError as error:
        raise machine_error(error, path=output) from error
    _note_changed_pixels(dataset, splits, losses=losses)
    _print(exported, losses=losses, title=writer.title, output=arguments.output)


def _check_output(output: str, *, overwrite: bool) -> str:
    """Returns the real path of a folder that may be written.

    Raises:
        UsageError: It may not be written.
    """
    if is_uri(output):
        raise UsageError(f"--output: {output}: expected a folder on disk; copy the export from it")
    check_outside_datasets(output, name="--output")
    path = os.path.realpath(output)
    with blaming(f"--output: {output}"):
        if not os.path.lexists(path):
            return path
        if not os.path.isdir(path):
            raise UsageError(f"--output: {output} is not a folder; name another one")
        if os.path.lexists(os.path.join(path, _EARLIER)):
            raise UsageError(
                f"--output: {output} holds an export that another command is replacing, or was "
                f"replacing when it was killed; then its folder {_EARLIER} holds what was moved "
                "away: move that back up, or export into a new folder"
            )
        # A command that was killed may have left its folder.
        if all(name.startswith(FOLDER_INSIDE) for name in os.listdir(path)):
            return path
        if not any(layout.wrote(path) for layout in _LAYOUTS.values()):
            raise UsageError(
                f"--output: {output} holds other files than a finished export of Shardbeam; "
                "name a new or an empty folder"
            )
    if not overwrite:
        raise UsageError(
            f"--output: {output} holds an export; name another folder, or replace it, with "
            "everything in it, with --overwrite"
        )
    return path


def _export(
    dataset: StoredDataset,
    splits: Sequence[StoredSplit],
    *,
    layout: type[Layout],
    folder: str,
    mark: str,
    losses: Losses,
    task: str | None,
) -> tuple[Layout, list[str]]:
    """Writes a dataset into an empty folder.

    Returns:
        What has written it, and a line with the counts of each split.
    """
    feature_map = read_feature_map(dataset)
    declared = feature_map.class_names
    manifest = dataset.manifest
    if manifest is not None:
        written = {spec.key for spec in manifest.features}
    else:
        # Programs write the same keys in all Examples, mostly.
        first = next(read_images(splits[0], feature_map=feature_map), None)
        written = set() if first is None else set(first.features)
    defaults = {name: key for key, name in feature_map.keys.items()}
    keys = {defaults.get(key, key) for key in written}
    if manifest is not None:
        layout.check(keys, dataset=dataset.path, task=task)
    num_bytes = sum(split.num_bytes for split in splits)
    counters.shard_bytes.expect(num_bytes if declared else 2 * num_bytes)
    if all(split.examples is not None for split in splits):
        counters.exported.expect(sum(split.examples or 0 for split in splits))
    classes = find_classes(
        (picture for split in splits for picture in read_images(split, feature_map=feature_map)),
        feature_map=feature_map,
        declared=declared,
    )
    writer = layout(
        folder=folder,
        dataset=dataset.path,
        mark=mark,
        splits=[split.name for split in splits],
        classes=classes,
        losses=losses,
        known_keys=keys,
        task=task,
    )
    reader = ImageReader(
        path=dataset.path, feature_map=feature_map, classes=classes, losses=losses, keys=writer.keys
    )
    exported = []
    for split in splits:
        writer.begin(split.name)
        images = objects = 0
        for image in reader.read(read_images(split, feature_map=feature_map)):
            objects += writer.add(image)
            images += 1
            counters.exported.add()
        counts = f"{counted(images, 'image')}, {counted(objects, 'object')}"
        exported.append(f"{escape(split.name)}: {counts}\n")
    writer.finish()
    return writer, exported


def _sync(folder: str) -> None:
    """Waits until all files are on the disk, so that a power cut leaves no empty ones."""
    paths = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    for _ in map_many(_sync_file, paths, threads=_SYNCED_AT_A_TIME):
        pass


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(new: str, output: str, *, layout: type[Layout], overwrite: bool) -> None:
    """Moves a complete export up, in the place of an earlier one.

    The earlier one is moved into a folder that no command removes, its marked entry first, and the
    marked entry of the new one comes last. So a kill never leaves what looks finished, and the
    earlier export is still there. After any other failure, it is where it was.

    Args:
        new: The folder of the complete export.
        output: The folder that it is moved into.
        layout: Its layout.
        overwrite: Whether an earlier export may be there.

    Raises:
        OSError: A file cannot be moved.
    """
    aside = os.path.join(output, _EARLIER)
    earlier = None
    if overwrite:
        earlier = next((each for each in _LAYOUTS.values() if each.wrote(output)), None)
    if earlier is not None:
        os.mkdir(aside)
    moved: list[tuple[str, str]] = []
    try:
        if earlier is not None:
            _move(output, aside, names=earlier.ENTRIES[::-1], moved=moved)
        _move(new, output, names=layout.ENTRIES, moved=moved)
    except BaseException:
        _move_back(moved)
        if earlier is not None:
            with contextlib.suppress(OSError):
                os.rmdir(aside)
        raise
    if earlier is not None:
        # The folder of the new one is removed, also if this command is killed.
        os.rename(aside, os.path.join(new, "earlier"))


def _move(source: str, target: str, *, names: Sequence[str], moved: list[tuple[str, str]]) -> None:
    """Moves files and folders into a folder that has none of these names.

    Args:
        source: The folder that they are in.
        target: The folder that they are moved into.
        names: Their names; names that are not there are skipped.
        moved: `(old path, new path)` is added for each.
    """
    for name in names:
        paths = os.path.join(source, name), os.path.join(target, name)
        # An export without images has no folder for them.
        with contextlib.suppress(FileNotFoundError):
            os.rename(*paths)
            moved.append(paths)


def _move_back(moved: Sequence[tuple[str, str]]) -> None:
    """Undoes moves, except where another command has put something in the meantime."""
    for old, new in reversed(moved):
        with contextlib.suppress(OSError):
            if not os.path.lexists(old):
                os.rename(new, old)


def _note_changed_pixels(
    dataset: StoredDataset, splits: Sequence[StoredSplit], *, losses: Losses
) -> None:
    """Counts the images whose pixels the build has changed."""
    manifest = dataset.manifest
    known = manifest.splits if manifest is not None else {}
    for split in splits:
        corrections = known[split.name].outcome.corrections if split.name in known else {}
        for correction in _CHANGED_PIXELS:
            losses.note(
                f"original pixels of images ({correction.value})",
                count=corrections.get(correction.value, 0),
            )


def _print(lines: Sequence[str], *, losses: Losses, title: str, output: str) -> None:
    text = f"{''.join(lines)}wrote {escape(output)} ({title})\n"
    if losses.counts:
        table = make_table(numbers=["count"])
        table.add_column("lost or changed")
        table.add_column("for example")
        for what, count in losses.counts.most_common():
            # Both texts may hold names from the data.
            table.add_row(f"{count:,}", cell_text(what), cell_text(losses.first.get(what, "")))
        text += f"\n{render_table(table, layout=PLAIN)}"
    write_stdout(text)
