"""A runner that loses or doubles elements is found out, whichever edge of the graph they cross.

The faults are put into Beam's own shuffles and Flattens, and into the steps that read what no
shuffle brings. `SHARDBEAM_FAULTS=long` tries each fault on each edge of each dataset; otherwise
the faults take turns.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from PIL import Image

from shardbeam.transforms import (
    find_duplicates,
    join_annotations,
    list_images,
    read_annotations,
    write_shards,
)
from shardbeam.transforms.commit.moves import CommitBatch
from shardbeam.transforms.commit_dataset import CommitDataset
from shardbeam.transforms.core import counts
from shardbeam.transforms.core.records import ListedFile, Reject
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.formats.join import sources
from shardbeam.transforms.storage.archives import open as archives
from shardbeam.transforms.storage.base import ListingPart
from tests.support.archive_files import write_files, write_tar
from tests.support.builds import Build, build, coco_document
from tests.support.image_makers import plain_jpeg
from tests.support.voc_files import small_voc, voc_object, voc_xml

pytestmark = pytest.mark.faults

LONG = os.environ.get("SHARDBEAM_FAULTS") == "long"

BROKEN = b"no image"


class Dataset(NamedTuple):
    """A dataset, and the words of its build; `{data}` stands for its folder."""

    write: Callable[[Path], object]
    words: str


def write_table(folder: Path) -> None:
    rows = [f"{number}.jpg,{'ab'[number % 2]}" for number in range(6)]
    (folder / "table.csv").write_text("\n".join(["image,label", *rows]) + "\n")
    write_files(folder / "images", {f"{number}.jpg": plain_jpeg() for number in range(1, 6)})


def write_lines(folder: Path) -> None:
    rows = [json.dumps({"image": f"{number}.jpg", "label": "a"}) for number in range(3)]
    (folder / "lines.jsonl").write_text("\n".join(rows))
    write_files(folder / "images", {f"{number}.jpg": plain_jpeg() for number in range(3)})


def write_coco(folder: Path) -> None:
    names = [f"{number}.jpg" for number in range(6)]
    document = coco_document(dict.fromkeys(names, ({"bbox": [1, 1, 9, 9]},)), size=(32, 24))
    (folder / "coco.json").write_text(json.dumps(document))
    write_files(folder / "images", {name: plain_jpeg() for name in names[1:]})


def write_voc(folder: Path) -> None:
    xml = voc_xml(voc_object(xmin=1, ymin=1, xmax=9, ymax=9), size=(32, 24))
    more = {f"JPEGImages/{name}.jpg": plain_jpeg() for name in "cd"}
    more |= {f"Annotations/{name}.xml": xml for name in "cd"}
    lists = {
        "ImageSets/Main/train.txt": "a\nc\nmissing\n",
        "ImageSets/Main/val.txt": "b\nd\n",
    }
    write_files(folder, small_voc(**more, **lists))
    (folder / "SegmentationClass").mkdir()
    for name in "abcd":
        Image.new("P", (32, 24)).save(folder / "SegmentationClass" / f"{name}.png")


def write_webdataset(folder: Path) -> None:
    for tar in range(3):
        files = {
            f"{tar}{sample}.{extension}": data
            for sample in range(3)
            for extension, data in (("jpg", plain_jpeg()), ("cls", str(sample % 2)))
        }
        files[f"{tar}9.jpg"] = BROKEN
        write_tar(folder / f"{tar}.tar", files)


def write_folders(folder: Path) -> None:
    names = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(3)]
    write_files(folder, {**dict.fromkeys(names, plain_jpeg()), "stray.jpg": plain_jpeg()})


DATASETS = {
    "csv": Dataset(write_table, "--manifest {data}/table.csv --image-root {data}/images"),
    "coco": Dataset(write_coco, "--images {data}/images --annotations {data}/coco.json"),
    "voc": Dataset(write_voc, "--root {data} --semantic"),
    "jsonl": Dataset(write_lines, "--manifest {data}/lines.jsonl --image-root {data}/images"),
    "webdataset": Dataset(write_webdataset, "--tars {data}/*.tar"),
    "image-folder": Dataset(write_folders, "--images {data}"),
}
MANY = ("csv", "coco", "voc", "webdataset")
SOME = MANY if LONG else ("voc",)
# Where a dataset alone does not take a way of the graph.
EXACT = "--fractions train=0.5,test=0.5 --set stratify=true"
LIMIT = "--limit 3"


def is_join_value(side: int) -> Callable[[Any], bool]:
    def matches(element: Any) -> bool:  # noqa: ANN401  # Any element.
        return (
            isinstance(element, tuple)
            and len(element) == 2
            and all(isinstance(each, bytes) for each in element)
            # The value is a msgpack array of three, whose first item says what it is of.
            and element[1].startswith(bytes([0x93, side]))
        )

    return matches


def is_pair(*kinds: type | tuple[type, ...]) -> Callable[[Any], bool]:
    def matches(element: Any) -> bool:  # noqa: ANN401  # Any element.
        if not isinstance(element, tuple) or len(element) != 2:
            return False
        key, value = element
        names = key if isinstance(key, tuple) else (key,)
        return tuple(type(each) for each in names) == kinds[:-1] and isinstance(value, kinds[-1])

    return matches


def is_record(element: Any) -> bool:  # noqa: ANN401  # Any element.
    return is_pair(str, int, bytes)(element) and bool(element[1])


def is_part(*kinds: type) -> Callable[[Any], bool]:
    def matches(element: Any) -> bool:  # noqa: ANN401  # Any element.
        return isinstance(element, tuple) and tuple(map(type, element)) == kinds

    return matches


def is_a(kind: type) -> Callable[[Any], bool]:
    return lambda element: isinstance(element, kind)


class Edge(NamedTuple):
    """What crosses a shuffle or a Flatten, and how a message names it."""

    crosses: Callable[[Any], bool]
    name: str


EDGES = {
    "archives": Edge(is_part(str, int, str), counts.FOLDERS),
    "parts of listings": Edge(is_part(str, int, ListingPart), counts.FOLDERS),
    "parts of files": Edge(is_part(str, int, int, int), counts.FILES),
    "listed files": Edge(is_a(ListedFile), counts.FILES),
    "images": Edge(is_join_value(0), counts.IMAGES),
    "masks": Edge(is_join_value(1), counts.MASKS),
    "entries": Edge(is_join_value(2), counts.ENTRIES),
    "classes": Edge(is_pair(type(None), tuple), counts.CUT),
    "points": Edge(is_pair(str, bytes), counts.CUT),
    "end points": Edge(is_pair(str, bytes, type(None)), "points where exact splits end"),
    "places": Edge(is_pair(str, tuple), counts.SAMPLED),
    "records": Edge(is_record, counts.RECORDS),
    "shards": Edge(is_a(ShardResult), "shards"),
    "rejects": Edge(is_pair(str, str, Reject), counts.REJECTS),
    "statistics": Edge(is_pair(str, CountedStatistics), "statistics"),
    "rows": Edge(is_pair(int, int, tuple), "indexes of shards"),
    "moves": Edge(is_a(CommitBatch), "moves"),
}

# How often the first, the second, the third element and so on arrive.
FAULTS: dict[str, Callable[[int], int]] = {
    "drop one": lambda index: 0 if index == 0 else 1,
    "double one": lambda index: 2 if index == 0 else 1,
    "drop and double": lambda index: (0, 2)[index] if index < 2 else 1,
}


class Fault:
    """Loses or doubles elements that cross an edge; `hits` counts how often."""

    hits = 0
    seen = 0
    first: Any = None

    def __init__(self, crosses: Callable[[Any], bool], times: Callable[[int], int]) -> None:
        Fault.hits = Fault.seen = 0
        self.crosses = crosses
        self.times = times
        self.numbers = itertools.count()

    def put_before(self, monkeypatch: pytest.MonkeyPatch, *transforms: type[Any]) -> None:
        """Lets what goes into some transforms, of Beam's or ours, go through `spoil` before."""
        apply = beam.Pipeline.apply

        def faulty(
            pipeline: beam.Pipeline,
            transform: beam.PTransform[Any, Any],
            inputs: beam.pvalue.PValue | None = None,
            label: str | None = None,
        ) -> object:
            if isinstance(transform, transforms) and isinstance(inputs, beam.pvalue.PCollection):
                spoil = beam.FlatMap(self.spoil).with_output_types(inputs.element_type)
                inputs = inputs | f"Fault{next(self.numbers)}" >> spoil
            return apply(pipeline, transform, inputs, label)

        monkeypatch.setattr(beam.Pipeline, "apply", faulty)

    def spoil(self, element: Any) -> Iterator[Any]:  # noqa: ANN401  # Any element.
        times = 1
        # If the second element equals the first, doubling it makes up for the first.
        if self.crosses(element) and not (Fault.seen == 1 and element == Fault.first):
            if Fault.seen == 0:
                Fault.first = element
            times = self.times(Fault.seen)
            Fault.seen += 1
            Fault.hits += times != 1
        for _ in range(times):
            yield element


CASES = [
    ("jsonl", "", "parts of files"),
    *(("csv", "", edge) for edge in ("images", "entries")),
    *(("csv", EXACT, edge) for edge in ("points", "end points", "classes")),
    ("csv", LIMIT, "places"),
    *(("coco", "", edge) for edge in ("images", "entries", "rows")),
    *(("voc", "", edge) for edge in ("listed files", "masks")),
    *(("webdataset", "", edge) for edge in ("archives", "listed files", "images")),
    *(("image-folder", "", edge) for edge in ("records", "rejects")),
]
OF_ALL = ("records", "shards", "rejects", "statistics", "moves")


def faults() -> Iterator[Any]:
    seen: set[str] = set()
    for number, edge in enumerate(OF_ALL):
        for place, dataset in enumerate(MANY):
            if LONG or place == number % len(MANY):
                CASES.append((dataset, "", edge))
    for number, (dataset, more, edge) in enumerate(CASES):
        for place, fault in enumerate(FAULTS):
            if LONG or place == number % len(FAULTS):
                yield pytest.param(
                    *(dataset, more, edge, fault),
                    id=f"{dataset}-{edge}-{fault}",
                    # An edge that a dataset before it crosses, too.
                    marks=pytest.mark.slow if edge in seen and not LONG else (),
                )
        seen.add(edge)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Build]:
    def make(dataset: str, more: str) -> Build:
        folder = tmp_path / "data"
        folder.mkdir()
        DATASETS[dataset].write(folder)
        words = f"{dataset} {DATASETS[dataset].words} {more}".format(data=folder).split()
        return build(
            *words,
            *("--set", "rejects.max_ratio=1", "--set", "output.num_shards=2"),
            output=tmp_path / "out",
            exit_code=1,
        )

    return make


@pytest.mark.parametrize(("dataset", "more", "edge", "fault"), list(faults()))
def test_what_a_runner_loses_or_doubles_is_refused(
    dataset: str,
    more: str,
    edge: str,
    fault: str,
    make: Callable[[str, str], Build],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty = Fault(EDGES[edge].crosses, FAULTS[fault])
    faulty.put_before(
        monkeypatch,
        *(beam.GroupByKey, beam.Reshuffle, beam.CombinePerKey),
        *([CommitDataset] if edge == "shards" else []),
    )
    result = make(dataset, more)
    assert Fault.hits
    check_refused(result, f"{EDGES[edge].name}: ")


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_of_a_listing(
    fault: str, make: Callable[[str, str], Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing on disk that comes in parts, as a long one of object storage does."""
    begin_root = archives.begin_root

    def begin(root: str, *, open_archives: bool) -> Iterator[Any]:
        del open_archives
        yield ListingPart(root=root)
        yield ListingPart(root=f"{root}/..")

    monkeypatch.setattr(list_images, "storage_for", lambda _: SimpleNamespace(is_remote=True))
    monkeypatch.setattr(sources, "begin_root", begin)
    monkeypatch.setattr(
        sources, "list_root_part", lambda part: begin_root(part.root, open_archives=False)
    )
    faulty = Fault(EDGES["parts of listings"].crosses, FAULTS[fault])
    faulty.put_before(monkeypatch, beam.Reshuffle)
    result = make("coco", "")
    assert Fault.hits
    check_refused(result, counts.FOLDERS)


@pytest.mark.parametrize(
    ("dataset", "more", "step", "edge"),
    [
        ("coco", "", list_images._ListFn, counts.FOLDERS),
        ("coco", "", read_annotations._ReadFn, counts.FILES),
        ("jsonl", "", read_annotations._SplitFn, counts.FILES),
        ("jsonl", "", read_annotations._ReadFn, counts.FILES),
        # Each key makes a record here; these passes give nothing for others.
        ("jsonl", EXACT, join_annotations._PointFn, counts.CUT),
        ("jsonl", LIMIT, join_annotations._PlaceFn, counts.SAMPLED),
        ("voc", "", list_images._ListFn, counts.FOLDERS),
        ("image-folder", "", list_images._ListFn, counts.FOLDERS),
        ("voc", "", read_annotations._ReadListedFn, counts.FILES),
        ("webdataset", "", list_images._ExpandFn, counts.FOLDERS),
        ("webdataset", "", list_images._ListFn, counts.FOLDERS),
        ("webdataset", "", read_annotations._ReadListedFn, counts.FILES),
        # The first key may have an image, or only an entry.
        *((dataset, "", join_annotations._JoinFn, "") for dataset in SOME),
        *((dataset, "", write_shards._WriteShardFn, "shards") for dataset in SOME),
        ("coco", "", find_duplicates, "indexes of shards"),
    ],
)
def test_a_bundle_that_is_lost_with_its_counts_is_refused(
    dataset: str,
    more: str,
    step: Any,  # noqa: ANN401  # A DoFn, or a module with a function.
    edge: str,
    make: Callable[[str, str], Build],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "_pack_shard" if step is find_duplicates else "process"
    process = getattr(step, name)
    lost: list[object] = []

    @functools.wraps(process)
    def lose_one(*element: object, **inputs: object) -> Iterator[Any]:
        if not lost:
            lost.append(element)
            return iter(())
        found: Iterator[Any] = process(*element, **inputs)
        return found

    monkeypatch.setattr(step, name, lose_one)
    result = make(dataset, more)
    assert lost
    check_refused(result, edge)


def test_lost_counts_are_noticed(
    make: Callable[[str, str], Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Fault(is_a(InputCounts), FAULTS["drop one"])
    faulty.put_before(monkeypatch, beam.CombineGlobally)
    result = make("coco", "")
    assert Fault.hits
    check_refused(result, "")


def check_refused(result: Build, edge: str) -> None:
    said = result.summary.get("message") or result.stderr
    assert "the runner lost or doubled elements, nothing was committed: " in said
    assert f" {edge}" in " ".join(said.split("\n"))
    assert not (result.output / "dataset_info.json").exists()
