"""`shardbeam show`. Neither Beam nor TensorFlow is needed."""

from __future__ import annotations

import itertools
import posixpath
import sys
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from shardbeam.configs.keys import flag_name
from shardbeam.pipelines.cli.commands import PredictedKind, ShowArguments
from shardbeam.pipelines.cli.logging import write_json, write_stdout
from shardbeam.pipelines.cli.tables import (
    PLAIN,
    Layout,
    add_rest,
    cell_text,
    make_table,
    render_table,
    stdout_layout,
)
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.overlap import check_replaceable, write_file
from shardbeam.readers.open.images import StoredExample, find_key, read_with_places
from shardbeam.readers.open.read_rejects import (
    StoredReject,
    count_corrections,
    find_lines,
    read_lines,
    spread,
)
from shardbeam.readers.open.stored_dataset import (
    StoredDataset,
    StoredSplit,
    dataset_name,
    open_dataset,
    read_feature_map,
)
from shardbeam.readers.report.describe_values import describe_values, feature_to_json
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.core.text import Mark, cut, describe_value, escape
from shardbeam.transforms.dataset.findings import KINDS
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import feature_values

if TYPE_CHECKING:
    from shardbeam.readers.open.find_findings import FoundImage

# Keys of an Example that are printed; JSON has all.
_FEATURES = 200
_USUAL_KEYS = ("image/", "annotation/")
# What JSON says about an Example besides its features.
_PICTURE_FACTS = ("split", "number", "shard", "key", "problems")
# Examples, and lines of rejects, that are shown by default.
_EXAMPLES, _LINES = 3, 20
# Images of each kind of finding, and findings about classes, that are shown by default.
_FINDINGS, _CLASS_FINDINGS = 10, 50
_NO_SPLIT = "(no split)"
# {ending of a name: the first bytes of each file with a picture}
_BEGINNINGS = {
    ".svg": b'<svg xmlns="http://www.w3.org/2000/svg" class="file"',
    ".html": b"<!doctype html>\n<!-- Shardbeam picture",
}
_ONLY_AS_GOOD = (
    "These lists are only as good as the model, which must not have seen the pictures in training."
)
# Fields of predicted images that other lists have too, or that only programs inside need.
_NOT_PRINTED = ("source", "place")


class _Shown(NamedTuple):
    """An Example to show, and where it is."""

    split: StoredSplit
    stored: StoredExample

    def title(self) -> str:
        split, place = self.split, self.stored.place
        of = "" if split.examples is None else f" of {split.examples:,}"
        shard = posixpath.basename(split.shards[place.shard].uri)
        return f"{split.name}, example {place.number:,}{of}, in {shard}"

    def picture(self, feature_map: FeatureMap) -> Picture:
        return self.stored.picture(self.split, feature_map=feature_map)


def run_show(arguments: ShowArguments) -> None:
    """Prints Examples, rejects or corrections on stdout, or draws a picture into a file.

    Raises:
        UsageError: The flags do not go together, or the picture cannot be written there.
        InputError: There is nothing to show, or a file to show is missing or damaged.
    """
    _check_flags(arguments)
    for is_asked, show in (
        (arguments.rejects, _show_rejects),
        (arguments.corrections, _show_corrections),
        (arguments.predictions is not None, _show_predictions),
        (arguments.findings, _show_findings),
    ):
        if is_asked:
            show(arguments)
            return
    dataset = open_dataset(arguments.path)
    # Tables show Examples as they are stored.
    is_read = arguments.output is not None or arguments.json or arguments.key is not None
    feature_map = read_feature_map(dataset) if is_read else FeatureMap()
    if arguments.output is not None:
        mark = Mark("picture", dataset_name(dataset.path))
        check_replaceable(
            arguments.output,
            flag="--output",
            start=_BEGINNINGS[_ending(arguments.output)],
            mark=mark,
            overwrite=arguments.overwrite,
            inputs=[arguments.path],
        )
        (found, *_) = _find(arguments, dataset=dataset, feature_map=feature_map)
        _draw(found, feature_map=feature_map, path=arguments.output, mark=mark)
    elif arguments.json:
        _print_json(arguments, dataset=dataset, feature_map=feature_map)
    else:
        _print_tables(arguments, dataset=dataset, feature_map=feature_map)


def _check_flags(arguments: ShowArguments) -> None:
    given = {
        flag_name(field.name): getattr(arguments, field.name) != field.default
        for field in msgspec.structs.fields(ShowArguments)
    }
    lists = "--rejects", "--corrections", "--findings"
    for one, other in (
        ("--image", "--key"),
        *itertools.combinations(lists, 2),
        ("--all", "--limit"),
        ("--all", "--json"),
        ("--predictions", "--index"),
        *itertools.product(lists, ("--image", "--key", "--output")),
        ("--output", "--json"),
        ("--output", "--limit"),
        ("--image", "--limit"),
    ):
        if given[one] and given[other]:
            raise UsageError(f"{other}: not together with {one}")
    for flag in ("--all", "--index", "--predictions"):
        if given[flag] and not given["--findings"]:
            raise UsageError(f"{flag}: only together with --findings")
    if isinstance(arguments.findings, str):
        is_predicted = arguments.findings in typing.get_args(PredictedKind)
        if is_predicted and not given["--predictions"]:
            raise UsageError(f"--findings {arguments.findings}: only together with --predictions")
        if given["--predictions"] and not is_predicted:
            raise UsageError(
                f"--predictions: they show {', '.join(typing.get_args(PredictedKind))}, not "
                f"{arguments.findings}"
            )
    if arguments.output is not None and _ending(arguments.output) not in _BEGINNINGS:
        raise UsageError(
            f"--output: expected a name that ends in .svg or .html, got {arguments.output!r}; a "
            "browser opens either, and can print it"
        )


def _find(
    arguments: ShowArguments, *, dataset: StoredDataset, feature_map: FeatureMap
) -> Iterator[_Shown]:
    """Yields the Examples that the arguments ask for; at least one.

    Raises:
        InputError: There is no such Example.
    """
    split = dataset.find_split(arguments.split or dataset.splits[0].name)
    if arguments.key is not None:
        splits = [split]
        if arguments.split is None:
            splits = [dataset.find_split(each.name) for each in dataset.splits]
        places = find_key(arguments.key, dataset=dataset, splits=splits, feature_map=feature_map)
        for found_in, number in places[: arguments.limit]:
            yield from _read(found_in, first=number, limit=1)
        return
    first = arguments.image or 1
    limit = (arguments.limit or _EXAMPLES) if arguments.image is None else 1
    found = _read(split, first=first, limit=limit)
    if (one := next(found, None)) is None:
        raise _no_example(first, split=split, path=dataset.path)
    yield from itertools.chain([one], found)


def _read(split: StoredSplit, *, first: int, limit: int) -> Iterator[_Shown]:
    for stored in itertools.islice(read_with_places(split, first=first), limit):
        yield _Shown(split, stored)


def _no_example(number: int, *, split: StoredSplit, path: str) -> InputError:
    last = sum(1 for _ in read_with_places(split)) if split.examples is None else split.examples
    if not last:
        return InputError(uri=path, problem=f"no records in split {split.name!r}")
    return InputError(
        uri=path,
        problem=f"no example {number:,} in split {split.name!r}, which has {last:,}; the last one "
        f"is --image {last}",
    )


def _draw(shown: _Shown, *, feature_map: FeatureMap, path: str, mark: Mark) -> None:
    # Imported here, as Pillow takes a while.
    from shardbeam.readers.report.picture_file import render_picture_file

    drawn = render_picture_file(
        shown.picture(feature_map),
        feature_map=feature_map,
        mark=mark,
        as_page=_ending(path) == ".html",
    )
    write_file(path, drawn.content.encode(), flag="--output")
    size = f"{drawn.width} \N{MULTIPLICATION SIGN} {drawn.height} pixels"
    write_stdout(f"wrote {escape(path)}, {size}: {escape(shown.title())}\n")


def _ending(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def _print_tables(
    arguments: ShowArguments, *, dataset: StoredDataset, feature_map: FeatureMap
) -> None:
    layout = stdout_layout()
    chosen = arguments.image is not None or arguments.key is not None
    if not chosen:
        # Fail before anything is printed if the split is missing or incomplete.
        dataset.find_split(arguments.split or dataset.splits[0].name)
        if not write_stdout(f"{_render_splits(dataset, layout=layout)}\n"):
            return
    separator = ""
    for shown in _find(arguments, dataset=dataset, feature_map=feature_map):
        table = render_example(shown.stored.example, layout=layout)
        if not write_stdout(f"{separator}{escape(shown.title())}\n{table}"):
            return
        separator = "\n"


def render_example(example: Example, *, layout: Layout = PLAIN) -> str:
    """Renders an Example as a table: one line for each key, with kind, count and values."""
    table = make_table("key", "kind", numbers=["count"])
    table.add_column("values", overflow="fold")
    features = example.features.feature
    # If there are too many keys, the usual ones are shown.
    keys = sorted(features)
    if len(keys) > _FEATURES:
        keys.sort(key=lambda key: not key.startswith(_USUAL_KEYS))
    for key in keys[:_FEATURES]:
        kind, values = feature_values(features[key])
        table.add_row(
            cell_text(key),
            "none" if kind is None else kind.value,
            f"{len(values):,}",
            Text(describe_values(values)),
        )
    add_rest(table, len(keys) - _FEATURES)
    return render_table(table, layout=layout)


def _render_splits(dataset: StoredDataset, *, layout: Layout) -> str:
    table = make_table("split", numbers=["shards", "examples", "bytes"])
    for split in dataset.splits:
        table.add_row(
            Text(escape(split.name)),
            f"{len(split.shards):,}",
            "?" if split.examples is None else f"{split.examples:,}",
            decimal(split.num_bytes),
        )
    return render_table(table, layout=layout)


def _print_json(
    arguments: ShowArguments, *, dataset: StoredDataset, feature_map: FeatureMap
) -> None:
    examples = []
    for shown in _find(arguments, dataset=dataset, feature_map=feature_map):
        picture = shown.picture(feature_map)
        stored = shown.stored.example.features.feature
        features = {key: feature_to_json(stored[key]) for key in sorted(picture.features)}
        facts = {name: getattr(picture, name) for name in _PICTURE_FACTS}
        examples.append({**facts, "features": features})
    splits = [
        {
            "name": split.name,
            "shards": len(split.shards),
            "examples": split.examples,
            "bytes": split.num_bytes,
        }
        for split in dataset.splits
    ]
    write_json({"path": dataset.path, "splits": splits, "examples": examples})


def _show_rejects(arguments: ShowArguments) -> None:
    limit = arguments.limit or _LINES
    shown: list[StoredReject] = []
    counts: Counter[tuple[str, str]] = Counter()
    for file in find_lines(arguments.path, what="rejects").files:
        for reject in read_lines(file.uri, StoredReject):
            if arguments.split in (None, reject.split):
                counts[reject.split, reject.reason] += 1
                if len(shown) < limit:
                    shown.append(reject)
    by_reason = [
        {"split": split, "reason": reason, "rejects": number}
        for (split, reason), number in sorted(counts.items())
    ]
    if arguments.json:
        write_json({"path": arguments.path, "counts": by_reason, "rejects": shown})
        return
    summary = make_table("split", "reason", numbers=["rejects"])
    for each in by_reason:
        _add_row(summary, *each.values())
    table = make_table("split", "reason", "key", "detail", numbers=[])
    for reject in shown:
        _add_row(table, reject.split, reject.reason, reject.key, reject.detail)
    _write_lines(summary, table, what="rejects", total=counts.total())


def _show_corrections(arguments: ShowArguments) -> None:
    folder, files = find_lines(arguments.path, what="corrections")
    named = [
        line
        for file in files
        for line in read_lines(file.uri, Corrected)
        if arguments.split in (None, line.split)
    ]
    totals = {
        (split, what): count
        for split, outcome in count_corrections(folder).items()
        for what, count in outcome.corrections.items()
        if arguments.split in (None, split)
    }
    by_kind = Counter((line.split, line.what) for line in named)
    shown = spread(named, limit=arguments.limit or _LINES)
    counts = [
        {"split": split, "what": what, "corrections": totals.get((split, what)), "named": number}
        for (split, what), number in sorted({**dict.fromkeys(totals, 0), **by_kind}.items())
    ]
    if arguments.json:
        write_json({"path": arguments.path, "counts": counts, "corrections": shown})
        return
    summary = make_table("split", "correction", numbers=["count", "named"])
    for each in counts:
        _add_row(summary, *each.values())
    table = make_table("split", "correction", "key", "from", "to", numbers=[])
    for line in shown:
        changed = map(describe_value, (line.before, line.after))
        _add_row(table, line.split, line.what, line.key, *changed)
    _write_lines(summary, table, what="corrections", total=len(named))


def _add_row(table: Table, split: object, *values: object) -> None:
    """Adds a row about a split, which may have no name; a missing number is a question mark."""
    table.add_row(
        cell_text(str(split) or _NO_SPLIT),
        *(
            cell_text(each) if isinstance(each, str) else "?" if each is None else f"{each:,}"
            for each in values
        ),
    )


def _write_lines(summary: Table, table: Table, *, what: str, total: int) -> None:
    """Prints how many rejects or corrections there are of each kind, and some of them."""
    if not summary.rows:
        write_stdout(f"no {what}\n")
        return
    layout = stdout_layout()
    tables = [render_table(each, layout=layout) for each in (summary, table) if each.rows]
    if total > len(table.rows):
        tables.append(f"{total - len(table.rows):,} more: --limit {total} shows all\n")
    write_stdout("\n".join(tables))


def _show_findings(arguments: ShowArguments) -> None:
    # Imported here, as pyarrow takes a while.
    from shardbeam.readers.open.find_findings import (
        list_kinds,
        list_warnings,
        read_findings,
        strongest_images,
    )
    from shardbeam.transforms.commit.runs import read_last_run
    from shardbeam.transforms.dataset.statistics_file import read_statistics

    dataset = open_dataset(arguments.path)
    manifest = dataset.manifest
    kinds = list(KINDS)
    if manifest is not None:
        kinds = [kind for kind in kinds if kind not in manifest.ignored_findings]
    if isinstance(arguments.findings, str):
        kinds = [arguments.findings]
    names = [split.name for split in dataset.splits]
    if arguments.split is not None:
        names = [dataset.find_split(arguments.split).name]
    found = read_findings(dataset, splits=names, kinds=kinds, indexes=arguments.index)
    if arguments.all:
        _print_keys(found)
        return
    # Programs get all of them.
    most = sys.maxsize if arguments.json else _FINDINGS
    shown = strongest_images(found, limit=arguments.limit or most)
    shown.sort(key=lambda each: kinds.index(each.kind))
    # Other programs write no statistics.
    statistics = None if dataset.features is None else read_statistics(dataset.path)
    of_classes = [
        each
        for each in list_kinds(statistics or {}, manifest=manifest)
        if each.text and each.kind in kinds and (arguments.split in (None, each.split))
    ]
    warnings: Sequence[str] = ()
    # Warnings are of no kind, and most are of all splits.
    if manifest is not None and arguments.findings is True and arguments.split is None:
        warnings = list_warnings(read_last_run(dataset.path, manifest=manifest))
    if arguments.json:
        found_all = {"findings": shown, "classes": of_classes, "warnings": warnings}
        write_json({"path": dataset.path, **found_all})
    else:
        tables = _render_findings(shown)
        lines = "".join(
            f"{each.kind}: {escape(cut(each.text))}\n" for each in of_classes[:_CLASS_FINDINGS]
        )
        if len(of_classes) > _CLASS_FINDINGS:
            lines += f"... and {len(of_classes) - _CLASS_FINDINGS:,} more (--json has all)\n"
        warned = "".join(f"warning of the build: {escape(line)}\n" for line in warnings)
        write_stdout("\n".join(filter(None, [tables, lines + warned])) or "no findings\n")


def _render_findings(found: Iterable[FoundImage]) -> str:
    """Renders images with findings, sorted by kind, as a table for each kind."""
    # Imported here, as numpy takes a while.
    from shardbeam.readers.report.cards import describe_strength

    tables = []
    for kind, images in itertools.groupby(found, key=lambda each: each.kind):
        table = make_table(KINDS[kind], "split", numbers=["example"])
        table.add_column("how far", overflow="fold")
        for each in images:
            table.add_row(
                cell_text(each.key),
                cell_text(each.split),
                f"{each.number:,}",
                describe_strength(kind, each.strength),
            )
        tables.append(f"{kind}\n{render_table(table, layout=stdout_layout())}")
    return "\n".join(tables)


def _show_predictions(arguments: ShowArguments) -> None:
    """Prints the images whose labels a model disagrees with, the likeliest errors first."""
    # Imported here, as numpy and pyarrow take a while.
    from shardbeam.readers.open.find_findings import strongest_images
    from shardbeam.readers.predictions.find_by_predictions import (
        PREDICTED_KINDS,
        find_by_predictions,
    )

    assert arguments.predictions is not None
    dataset = open_dataset(arguments.path)
    found, notes = find_by_predictions(dataset, uri=arguments.predictions, split=arguments.split)
    if isinstance(arguments.findings, str):
        found = [each for each in found if each.kind == arguments.findings]
    if arguments.all:
        _print_keys(found)
        return
    if arguments.limit is not None or not arguments.json:
        found = strongest_images(iter(found), limit=arguments.limit or _FINDINGS)
    if arguments.json:
        rows = [
            {key: value for key, value in each.items() if key not in _NOT_PRINTED}
            for each in msgspec.to_builtins(found)
        ]
        write_json({"path": dataset.path, "findings": rows, "notes": notes})
        return
    tables = []
    # They come in the order of their kinds.
    for kind, images in itertools.groupby(found, key=lambda each: each.kind):
        numbers = ["example", "margin"]
        table = make_table(PREDICTED_KINDS[kind], "split", "label", "prediction", numbers=numbers)
        for each in images:
            table.add_row(
                cell_text(each.key),
                cell_text(each.split),
                cell_text(each.label or "(none)"),
                cell_text(f"{each.predicted} {each.score:.2f}"),
                f"{each.number:,}",
                f"{each.margin:.2f}",
            )
        tables.append(f"{kind}\n{render_table(table, layout=stdout_layout())}")
    lines = "".join(f"{escape(line)}\n" for line in (*notes, _ONLY_AS_GOOD))
    write_stdout("\n".join([*tables, lines]))


def _print_keys(found: Iterable[FoundImage]) -> None:
    """Prints the keys of images, each once, as long as there is a reader."""
    for key in dict.fromkeys(each.key for each in found):
        if not write_stdout(f"{escape(key)}\n"):
            return
