"""`shardbeam report`: the content of the page, and content that it must not have."""

from __future__ import annotations

import base64
import gc
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from shardbeam.pipelines.commands import report as command
from shardbeam.readers.open.images import (
    Place,
    PlacedExamples,
    StoredExample,
    read_with_places,
)
from shardbeam.readers.open.stored_dataset import StoredSplit
from shardbeam.readers.report import duplicate_cards, gallery, thumbnails
from shardbeam.readers.report.duplicate_cards import find_twins
from shardbeam.readers.report.thumbnails import Thumbnail
from shardbeam.transforms.containers.base import Container, find_container
from shardbeam.transforms.dataset.findings import KINDS as KINDS_IN_ORDER
from shardbeam.transforms.dataset.findings import OF_SIMILAR_PICTURES
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.storage.base import StoredFile
from tests.readers.report.hostile import HOSTILE_TEXTS, hostile_features, write_hostile
from tests.support.builds import Build, build
from tests.support.dataset import MIXED_SETTINGS, last_run, run, write_mixed
from tests.support.image_makers import photograph
from tests.support.manifests import list_again
from tests.support.map_files import panoptic_words, write_maps, write_numbered_maps
from tests.support.planted import KINDS
from tests.support.tfrecords import draw_image, make_example, write_tfrecord


class _Parser(HTMLParser):
    """Collects a page's elements, their attributes, and all of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.raw: dict[str, str] = {}
        self.texts: list[str] = []
        self._raw = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._raw = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._raw = ""

    def handle_data(self, data: str) -> None:
        if self._raw:
            self.raw[self._raw] = self.raw.get(self._raw, "") + data
        else:
            self.texts.append(data)


def report(path: Path, output: Path, *words: str) -> str:
    result = run("report", str(path), "--output", str(output), *words)
    assert (result.exit_code, result.stderr) == (0, "")
    page = output.read_text(encoding="utf-8")
    assert result.stdout == f"wrote {output}, {len(page.encode()):,} bytes\n"
    return page


def parse(page: str) -> _Parser:
    parser = _Parser()
    # Names may be broken there.
    parser.feed(page.replace("<wbr>", ""))
    parser.close()
    return parser


def keys(page: str) -> list[str]:
    return re.findall(r'<p class="key"><bdi>(.*?)</bdi>', page.replace("<wbr>", ""))


@pytest.fixture(scope="module")
def mixed(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Rejects and corrections of several kinds."""
    folder = tmp_path_factory.mktemp("mixed")
    source = write_mixed(shapes, folder / "source")
    return build(
        *("coco", "--images", source / "images", "--name", "mixed", *MIXED_SETTINGS),
        *("--annotations", source / "annotations" / "instances.json"),
        *("--set", "image.max_side=100", "--set", "unannotated=reject"),
        output=folder / "out",
    )


def test_what_the_dataset_says_of_itself(mixed: Build, tmp_path: Path) -> None:
    page = report(mixed.output, tmp_path / "page.html")
    texts = " ".join(" ".join(parse(page).texts).split())
    for reject in mixed.rejects():
        assert reject["key"] in texts
        assert reject["reason"] in texts
    manifest = mixed.manifest
    assert manifest["inputs"]["fingerprint"] in texts
    assert manifest["checksum"] in texts
    images, version = manifest["inputs"]["images"], manifest["shardbeam"]
    assert f"Built from {images} images (coco) by Shardbeam {version} on " in texts
    assert all(f"Version of {name} {value}" in texts for name, value in manifest["codecs"].items())
    assert json.dumps(manifest["config"]["fractions"], indent=2)[2:20].split()[0] in texts
    for split, entry in manifest["splits"].items():
        assert f"{split} {entry['outcome']['examples']}" in texts
        assert all(code in texts for code in entry["outcome"]["corrections"])
        assert all(shard["crc32c"] in texts for shard in entry["shards"])
    assert "image_resized" in texts
    corrections = section(page, "corrections")
    named = (mixed.output / "corrections" / "train.jsonl").read_text().splitlines()
    line = next(line for line in map(json.loads, named) if line["what"] == "image_resized")
    cells = [
        line["key"],
        "train",
        *(json.dumps(line[name]).replace(" ", "") for name in ("from", "to")),
    ]
    row = "".join(f"<td><bdi>{cell}</bdi></td>" for cell in cells[1:])
    assert f'<tr><th scope="row"><bdi>{cells[0]}</bdi></th>{row}</tr>' in corrections
    assert re.search(r"image_<wbr>resized</code> <small>\((the first )?[0-9]", corrections)
    assert len(keys(section(page, "gallery"))) == sum(
        mixed.counts(split)["examples"] for split in manifest["splits"]
    )
    record = last_run(mixed.output)
    day, time = record["finished_at"][:16].split("T")
    assert f" by Shardbeam {manifest['shardbeam']} on {day} at {time} UTC" in texts
    # Nothing else differs from run to run.
    assert record["started_at"] not in page
    assert record["host"] not in texts


def test_same_dataset_same_bytes(mixed: Build, tmp_path: Path) -> None:
    copy = tmp_path / "another name"
    shutil.copytree(mixed.output, copy, ignore=shutil.ignore_patterns("runs"))
    first = report(mixed.output, tmp_path / "first.html")
    second = report(copy, tmp_path / "second.html")
    assert re.sub(r" on \d{4}-\d\d-\d\d at \d\d:\d\d UTC", "", first, count=1) == second


def section(page: str, name: str) -> str:
    """The part of a page with a heading."""
    text = page[page.index(f'<section id="{name}"') :]
    return text[: text.index("</section>")]


def test_bars_are_as_long_as_their_counts(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    captions = {"cat": b"a", "dog": b"a dog is here"}
    for split, labels in (("a", ["cat", "cat", "dog"]), ("b", ["cat", "dog", "dog", "dog"])):
        records = [
            make_example({"image/class/text": [label.encode()], "image/caption": captions[label]})
            for label in labels
        ]
        write_tfrecord(folder / f"{split}.tfrecord", *records)
    page = report(folder, tmp_path / "page.html")
    bars = re.compile(r'<rect class="(\w+)" (?:x="([\d.]+)%" )?width="([\d.]+)%"')
    # Side by side for each class, and the longest one is as wide as the chart.
    found = bars.findall(section(page, "classes"))
    assert found == [
        *(("s0", "", "33.33"), ("s1", "", "100.00")),
        *(("s0", "", "66.67"), ("s1", "", "33.33")),
    ]
    # Stacked: three captions of one word and four of four words.
    words = section(page, "sizes").partition("Captions by words")[2].partition("</table>")[0]
    assert bars.findall(words) == [
        *(("s0", "0.00", "50.00"), ("s1", "50.00", "25.00")),
        *(("s0", "0.00", "25.00"), ("s1", "25.00", "75.00")),
    ]


def test_what_is_worth_a_look_comes_first_with_its_pictures(planted: Build, tmp_path: Path) -> None:
    page = report(planted.output, tmp_path / "page.html")
    check_harmless(page)
    assert re.findall(r'<section id="(\w+)"', page)[0] == "look"
    kinds = re.split('<details class="finding [a-z]+" id="look-', section(page, "look"))[1:]
    shown = {kind[: kind.index('"')]: kind for kind in kinds}
    for kind in KINDS.values():
        assert sorted(keys(shown[kind])) == sorted(key for key in KINDS if KINDS[key] == kind)
        # The boxes in question have a halo, and others are faint.
        boxes = {"duplicate_box": 2, "same_box": 2, "large_box": 1, "tiny_box": 1, "thin_box": 1}
        assert shown[kind].count('class="halo"') == boxes.get(kind, 0)
        assert ('class="layer-boxes faint' in shown[kind]) == (kind not in boxes)
        # The picture itself is in the page once.
        card = re.search(r'<use href="#pc([0-9]+)"', shown[kind])
        assert card is not None
        assert page.count(f'id="pc{card[1]}"') == 1
        assert f'data-kinds="{kind}"' in page
    assert "cat + dog" in shown["same_box"]
    assert "25 to 1" not in shown["thin_box"]
    assert "28 to 1" in shown["thin_box"]
    # The same pictures are in the gallery, which has all of them.
    assert "All 20 Examples." in page
    assert "data:image" not in section(page, "look")


def test_ignored_findings_and_pictures_that_are_not_chosen(planted: Build, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(planted.output, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["config"]["findings"] = {"ignore": ["tiny_box"]}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    page = report(copy, tmp_path / "page.html", "--examples", "3")
    assert "tiny_box" not in page[: page.index('<section id="files"')]
    # What is worth a look is chosen before all others.
    assert len(keys(section(page, "gallery"))) == 3
    assert set(keys(section(page, "gallery"))) <= KINDS.keys()


def test_the_index_and_the_shards_give_the_same_gallery(mixed: Build, tmp_path: Path) -> None:
    by_index = report(mixed.output, tmp_path / "page.html", "--examples", "9")
    copy = tmp_path / "copy"
    shutil.copytree(mixed.output, copy, ignore=shutil.ignore_patterns("index"))
    by_shards = report(copy, tmp_path / "page.html", "--examples", "9", "--overwrite")
    assert section(by_shards, "gallery").count('<li class="card') == 9
    found = set(keys(section(by_index, "look")))
    assert not found
    assert keys(section(by_index, "gallery")) == keys(section(by_shards, "gallery"))


def test_only_the_pictures_that_are_shown_are_read(
    mixed: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []
    read = PlacedExamples.read

    def note(self: PlacedExamples, place: Place, **more: Any) -> StoredExample:  # noqa: ANN401
        places.append(place)
        return read(self, place, **more)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a whole shard is read")

    monkeypatch.setattr(PlacedExamples, "read", note)
    monkeypatch.setattr(command, "read_with_places", fail)
    page = report(mixed.output, tmp_path / "page.html", "--examples", "5")
    assert len(places) == len(set(places)) == 5 == len(keys(section(page, "gallery")))


@pytest.mark.parametrize("maps", ["semantic", "panoptic", "numbered"])
def test_classes_of_maps_come_from_the_index(
    maps: str, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = {"semantic": write_maps, "numbered": write_numbered_maps}
    words = write[maps](tmp_path / "in") if maps in write else panoptic_words(shapes)
    built = build(*words, output=tmp_path / "out")
    splits: list[str] = []

    def note(split: StoredSplit) -> Iterator[StoredExample]:
        splits.append(split.name)
        return read_with_places(split)

    monkeypatch.setattr(command, "read_with_places", note)
    page = report(built.output, tmp_path / "page.html", "--examples", "3")
    names = {"semantic": "cat", "panoptic": "grass", "numbered": "class 2"}
    assert f">{names[maps]}<" in section(page, "gallery")
    # Numbers are not in the index.
    assert (splits == []) == (maps != "numbered")

    # The maps of an older dataset are decoded, and give the same page.
    for path in (built.output / "index").iterdir():
        newer = ["map_classes", "crop_hashes", "class_objects"]
        parquet.write_table(parquet.read_table(path).drop_columns(newer), path)
    list_again(built.output)
    splits.clear()
    older = report(built.output, tmp_path / "page.html", "--examples", "3", "--overwrite")
    assert sorted(splits) == sorted(built.summary["splits"])
    assert older == page


@pytest.mark.parametrize("container", ["webdataset", "hf_parquet"])
def test_a_file_that_is_checked_as_a_whole_is_read_once(
    container: str, mixed: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_records = report(mixed.output, tmp_path / "page.html", "--examples", "9")
    converted = str(tmp_path / "converted")
    words = ("--container", container, "--output", converted)
    assert run("convert", str(mixed.output), *words).exit_code == 0
    reader, files = find_container(container), []
    read = type(reader).read

    def note(self: Container, file: StoredFile, **more: Any) -> Iterator[tuple[int, bytes]]:  # noqa: ANN401
        files.append(file.uri)
        return read(self, file, **more)

    monkeypatch.setattr(type(reader), "read", note)
    page = report(Path(converted), tmp_path / "converted.html", "--examples", "9")
    assert keys(section(page, "gallery")) == keys(section(by_records, "gallery"))
    assert len(files) == len(set(files)) > 1


def test_pictures_are_not_kept(
    mixed: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a picture is drawn, those before it are gone."""
    alive: list[int] = []

    def fit(picture: Picture, **more: Any) -> Thumbnail:  # noqa: ANN401
        alive.append(sum(type(each) is Picture for each in gc.get_objects()))
        return thumbnails.fit_thumbnail(picture, **more)

    monkeypatch.setattr(gallery, "fit_thumbnail", fit)
    report(mixed.output, tmp_path / "page.html", "--examples", "8")
    assert len(alive) == 8
    # The picture, and its copy for drawing.
    assert max(alive) <= 2


def test_a_dataset_without_a_name_is_called_like_its_folder(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.jpg").write_bytes(draw_image("JPEG", width=30, height=20))
    words = ("image-folder", "--images", tmp_path / "images")
    built = build(*words, output=tmp_path / "cats of today" / "1.0.0")
    page = report(built.output, tmp_path / "page.html")
    assert "<title>cats of today ·" in page
    # It still replaces its own earlier page.
    report(built.output, tmp_path / "page.html")


@pytest.fixture(scope="module")
def repeated(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Pictures that occur twice: in two classes, and compressed again."""
    folder = tmp_path_factory.mktemp("repeated")
    files = sorted((shapes / "class_folders").rglob("*.jpg"))[:12]
    for name in ("cat", "dog", "owl"):
        (folder / "images" / name).mkdir(parents=True)
    for number, file in enumerate(files):
        shutil.copy(file, folder / "images" / "cat" / f"{number}.jpg")
    for number in (2, 5, 7):
        shutil.copy(files[number], folder / "images" / "dog" / f"{number}.jpg")
    Image.open(files[9]).save(folder / "images" / "owl" / "9.jpg", quality=60)
    return build(
        *("image-folder", "--images", folder / "images", "--fractions", "train=0.5,test=0.5"),
        *("--set", "output.num_shards=3"),
        output=folder / "out",
    )


def test_duplicates_are_side_by_side(repeated: Build, tmp_path: Path) -> None:
    counts = repeated.manifest["duplicates"]
    assert [counts[key] for key in ("groups", "contradictions", "near_contradictions")] == [4, 3, 1]
    page = report(repeated.output, tmp_path / "page.html")
    check_harmless(page)
    duplicates = section(page, "duplicates")
    assert duplicates.count("<strong") == 8 + 3 + 1 + counts["leaks"]
    assert (
        "3 with different labels of equal files, 1 with different classes of nearly equal"
        in duplicates
    )
    look = section(page, "look")
    kinds = re.findall('<details class="finding ([a-z]+)" id="look-([a-z_]+)"', look)
    assert [each for each in kinds if each[1].endswith("contradiction")] == [
        ("bad", "contradiction"),
        ("odd", "near_contradiction"),
    ]
    contradictions = look[look.index('id="look-contradiction"') :]
    contradictions = contradictions[: contradictions.index("</details>")]
    assert "3 groups" in contradictions
    # Two pairs, side by side.
    shown = keys(contradictions)
    assert {tuple(sorted(pair)) for pair in zip(shown[::2], shown[1::2], strict=True)} <= {
        (f"cat/{number}.jpg", f"dog/{number}.jpg") for number in (2, 5, 7)
    }
    assert len(shown) == 4
    if counts["leaks"]:
        assert "in another split, too" in look
    groups = duplicates.split('<p class="pair-title">')[1:]
    names_of = [set(keys(group)) for group in groups]
    wanted = [{f"cat/{number}.jpg", f"dog/{number}.jpg"} for number in (2, 5, 7)]
    assert sorted(map(sorted, names_of)) == sorted(
        map(sorted, [*wanted, {"cat/9.jpg", "owl/9.jpg"}])
    )
    for group, names in zip(groups, names_of, strict=True):
        assert len(re.findall('href="data:image/jpeg;base64,', group)) == 2
        assert ("different labels" in group) == ("owl/9.jpg" not in names)
        assert ("different classes" in group) == ("owl/9.jpg" in names)
        splits = re.findall(r"<strong><bdi>(.*?)</bdi></strong>", group)
        assert ("in several splits" in group) == (len(set(splits)) > 1)
    # Harmful findings come first.
    assert "different labels" in groups[0]
    assert "owl/9.jpg" in names_of[-1]


def test_contradictions_in_a_large_group_are_shown(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    rows = ["image,label,xmin,ymin,xmax,ymax"]
    # Each has another box; only `left` and `right` are the same file.
    for number, name in enumerate(("a", "b", "c", "d", "e", "f", "left", "right")):
        quality = 40 + 7 * min(number, 6)
        photograph(width=160, height=120).save(images / f"{name}.jpg", quality=quality)
        rows.append(f"{name}.jpg,cat,0.1,0.1,0.5,{0.5 + number / 100}")
    (tmp_path / "boxes.csv").write_text("\n".join(rows) + "\n")
    words = ("csv", "--manifest", tmp_path / "boxes.csv", "--image-root", images)
    built = build(*words, output=tmp_path / "out")
    assert (built.exit_code, built.manifest["duplicates"]["contradictions"]) == (0, 1)
    listed = parquet.read_table(tmp_path / "out" / "duplicates.parquet").column("key").to_pylist()
    assert not {"left.jpg", "right.jpg"} <= set(listed[:4]), "shown by chance"
    page = report(built.output, tmp_path / "page.html")
    (group,) = page.split('<p class="pair-title">')[1:]
    shown = keys(group)
    assert len(shown) == 4
    assert set(shown[:2]) == {"left.jpg", "right.jpg"}
    assert '<p class="hint">and 4 more</p>' in group
    # A dataset of an older version has fewer columns.
    path = tmp_path / "out" / "duplicates.parquet"
    table = parquet.read_table(path)
    renamed = ["classes" if name == "classes_digest" else name for name in table.column_names]
    for older in (
        table.rename_columns(renamed),
        table.drop(["classes_digest", "near_contradiction"]),
    ):
        parquet.write_table(older, path)
        list_again(built.output)
        assert report(built.output, tmp_path / "older.html") == page


@pytest.mark.parametrize("groups", [40, 0])
def test_a_card_shows_the_other_picture_of_its_finding(
    groups: int, planted: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicate_cards, "_GROUPS", groups)
    (tmp_path / "keys.txt").write_text("again.jpg\ntwice.jpg\n")
    page = report(
        planted.output, tmp_path / "page.html", "--keys", str(tmp_path / "keys.txt"), "--overwrite"
    )
    (twin,) = re.findall('<div class="twin">.*?</li>', page, re.DOTALL)
    assert "with objects of other classes" in twin
    assert "0.jpg" in twin
    # Without a place on the page to refer to, it is drawn in the card.
    assert ("<use href=" in twin, '<image id="pt' in twin) == (groups > 0, groups == 0)
    links = re.findall('href="#(.*?)"', twin)
    assert len(links) == (2 if groups else 0)
    assert all(f'id="{each}"' in page for each in links)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Key, split, file, labels, classes, same_picture, and perhaps unequal_objects.
        (["a train 1 x p 0", "b train 1 y p 0", "c test 2 x p 0"], {"a": "b", "b": "a", "c": "a"}),
        (["a train 1 x p 0", "b train 2 x p 0", "c test 1 x p 0"], {"a": "c", "b": "c", "c": "a"}),
        (
            ["a train 1 x p 64", "b train 2 y p 64", "c test 3 z p 60"],
            {"a": "c", "b": "c", "c": "a"},
        ),
        (["a train 1 x p 0", "b train 2 y q 0"], {"a": "b", "b": "a"}),
        (["a train 1 x p 0", "b train 2 x p 0"], {}),
        (
            ["a train 1 x p 0 8", "d train 2 y p 0 8", "e train 3 z p 0 8"],
            {"a": "e", "d": "e", "e": "a"},
        ),
        # The third one has no class in common with the others, which is another kind.
        (["a train 1 x p 0 8", "d train 2 y p 0 8", "c train 3 z p 0 8"], {"a": "d", "d": "a"}),
    ],
)
def test_the_most_telling_twin_is_found(rows: list[str], expected: dict[str, str]) -> None:
    names = "key", "split", "sha256", "labels", "classes_digest", *OF_SIMILAR_PICTURES
    members: list[dict[str, Any]] = [
        {**dict(zip(names, [*row.split(), "0"], strict=False)), "shard": 0, "row": number}
        for number, row in enumerate(rows)
    ]
    for member in members:
        member.update({kind: int(member[kind]) or None for kind in OF_SIMILAR_PICTURES})
    classes = {"c": {1: 1}, "d": {2: 2}, "e": {2: 9}}
    places = {each["key"]: Place(each["split"], each["row"] + 1, 0, 0, 1) for each in members}
    found = find_twins(
        [members],
        shown={(each["split"], 0, each["row"]): places[each["key"]] for each in members},
        find_place=lambda row: places[row["key"]],
        find_classes=lambda row: classes.get(row["key"], {2: 1}),
        ignored=(),
    )
    keys = {place: key for key, place in places.items()}
    assert {
        key: keys[found[place.split, place.number].place]
        for key, place in places.items()
        if (place.split, place.number) in found
    } == expected


def test_duplicates_that_cannot_be_read(repeated: Build, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(repeated.output, folder)
    table = parquet.read_table(folder / "duplicates.parquet")
    beyond = pa.array([9999] * len(table), pa.int32())
    place = table.schema.get_field_index("row")
    for damage, problem in (
        (lambda path: path.write_bytes(b"PAR1"), "not a Parquet file"),
        (lambda path: parquet.write_table(table.drop(["split"]), path), "a column is missing"),
        (
            lambda path: parquet.write_table(table.set_column(place, "row", beyond), path),
            "is in no shard",
        ),
        (lambda path: path.unlink(), "is missing"),
    ):
        damage(folder / "duplicates.parquet")
        list_again(folder)
        words = ("report", str(folder), "--output", str(tmp_path / "page.html"))
        assert problem in run(*words, exit_code=1).error


def test_changes_since_an_earlier_dataset(mixed: Build, repeated: Build, tmp_path: Path) -> None:
    words = ["--previous", str(repeated.output), "--examples", "1"]
    page = report(mixed.output, tmp_path / "page.html", *words)
    check_harmless(page)
    texts = " ".join(parse(section(page, "changes")).texts)
    before, now = (
        {split: built.counts(split)["examples"] for split in built.summary["splits"]}
        for built in (repeated, mixed)
    )
    # Not one has the same key: all are added or removed.
    assert f"train {before['train']} {now['train']} {now['train']} {before['train']} " in texts
    assert f"test {before['test']} 0 0 {before['test']} " in texts
    assert f"validation 0 {now['validation']} {now['validation']} 0 " in texts
    assert f" {sum(now.values())} images added, {sum(before.values())} removed; " in texts
    # In the sentence about images and about classes, in the table's head, and of 10 examples each.
    assert texts.count("added") == texts.count("removed") == 2 + 1 + 10
    same = ["--previous", str(mixed.output), "--examples", "1"]
    page = report(mixed.output, tmp_path / "page.html", *same)
    assert ": <bdi>nothing changed</bdi>.</p>" in page


def test_rejects_are_drawn_where_their_images_are_named(mixed: Build, tmp_path: Path) -> None:
    images = mixed.output.parent / "source" / "images"
    plain = parse(report(mixed.output, tmp_path / "page.html"))
    folders = ("--images", str(tmp_path), "--images", str(images))
    drawn = parse(report(mixed.output, tmp_path / "drawn.html", *folders))
    assert plain.tags["img"] == 0
    # The others have no bytes, are cut off, or missing.
    sources = [value for tag, name, value in drawn.attributes if (tag, name) == ("img", "src")]
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    twice = {each["key"] for each in mixed.rejects() if each["reason"] == "duplicate_image_id"}
    shown = {value for tag, name, value in drawn.attributes if (tag, name) == ("img", "alt")}
    assert shown == {f"the rejected {key}" for key in (twice - {"other.png"}) | {"unannotated.jpg"}}
    assert len(sources) == len(shown) == 2


@pytest.mark.parametrize("key", ["../secret.jpg", "/etc/secret.jpg", "a/../../secret.jpg", "a\0b"])
def test_rejects_lead_nowhere_else(key: str, mixed: Build, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(mixed.output, folder)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "other.jpg").touch()
    (tmp_path / "secret.jpg").write_bytes(draw_image("JPEG", width=8, height=8))
    for path in (folder / "rejects").iterdir():
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        path.write_text("".join(json.dumps({**line, "key": key}) + "\n" for line in lines))
    page = report(folder, tmp_path / "page.html", "--images", str(tmp_path / "images"))
    assert parse(page).tags["img"] == 0


def test_examples_and_keys(mixed: Build, tmp_path: Path) -> None:
    every = report(mixed.output, tmp_path / "page.html")
    some = keys(report(mixed.output, tmp_path / "page.html", "--examples", "7"))
    assert len(some) == 7
    assert set(some) < set(keys(every))
    wanted = sorted(keys(every))[3:6]
    (tmp_path / "keys.txt").write_text("\ufeff" + "\r\n".join([*wanted, "", wanted[0]]), "utf-8")
    named = report(mixed.output, tmp_path / "page.html", "--keys", str(tmp_path / "keys.txt"))
    assert sorted(keys(named)) == wanted


def test_the_policy_knows_the_pages_own_style_and_script_alone(
    mixed: Build, tmp_path: Path
) -> None:
    parser = parse(report(mixed.output, tmp_path / "page.html"))
    (policy,) = [
        value for _, name, value in parser.attributes if name == "content" and "src" in value
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    digests = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in parser.raw.items()
    }
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": f"'sha256-{digests['style']}'",
        "script-src": f"'sha256-{digests['script']}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def check_harmless(page: str) -> _Parser:
    parser = parse(page)
    assert (parser.tags["script"], parser.tags["style"]) == (1, 1)
    assert not {"iframe", "object", "embed", "base", "foreignobject"} & parser.tags.keys()
    for tag, name, value in parser.attributes:
        assert not name.startswith("on"), (tag, name, value)
        assert name != "style"
        if name in ("href", "src", "action", "xlink:href"):
            assert value.startswith(("#", "data:image/", "data:,")), (tag, name, value)
    return parser


def test_hostile_texts(tmp_path: Path) -> None:
    page = report(write_hostile(tmp_path), tmp_path / "page.html")
    parser = check_harmless(page)
    assert "\0" not in page
    assert "\u202e" not in page
    assert "7 * 7" in page
    assert len(keys(page)) == len(HOSTILE_TEXTS)
    shown = "\n".join(parser.texts)
    for text in ("</script><img src=x onerror=pwned=1>", "<!--", "臉書🙂", r"\u202egnp.exe\u2066"):
        assert text in shown
    # Very long ones are cut.
    assert "x" * 400 in shown
    assert "x" * 500 not in shown


def test_the_page_stays_small(tmp_path: Path) -> None:
    """Noise, which compresses badly, and very many objects."""
    count = 2000
    more = {f"image/object/bbox/{side}": [0.25] * count for side in ("xmin", "ymin")} | {
        f"image/object/bbox/{side}": [0.75] * count for side in ("xmax", "ymax")
    }
    noise = {"image/encoded": draw_image("JPEG", width=1100, height=800)}
    many = {"image/encoded": draw_image("JPEG", width=30, height=20), **more}
    write_tfrecord(
        tmp_path / "a.tfrecord",
        *[make_example(noise | {"image/filename": b"%d" % number}) for number in range(25)],
        *[make_example(many | {"image/object/class/text": [b"y" * 90] * count})] * 3,
    )
    page = report(tmp_path / "a.tfrecord", tmp_path / "page.html")
    assert command.MAX_BYTES / 4 < len(page.encode()) <= command.MAX_BYTES
    assert page.count('<li class="card item"') == 28
    assert "and 1,700 more" in page


def test_what_has_no_room_is_left_out(
    repeated: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(repeated.output, tmp_path / "page.html")
    for most in (95_000, 75_000):
        monkeypatch.setattr(command, "MAX_BYTES", most)
        page = report(repeated.output, tmp_path / "page.html")
        assert len(page.encode()) <= most < len(whole.encode())
    assert "do not fit on a page of 15 MB" in page
    assert page.count('class="pair"') < whole.count('class="pair"') == 4


def test_very_many_splits(tmp_path: Path) -> None:
    """Files with names of their own are splits of their own."""
    record = make_example({"image/class/text": [b"cat"], "image/class/label": [1]})
    for number in range(300):
        write_tfrecord(tmp_path / f"part {number:03}.tfrecord", record)
    page = report(tmp_path, tmp_path / "page.html")
    assert "and 100 more" in page
    assert "all splits" not in page
    assert len(page) < 500_000


@pytest.mark.parametrize(
    ("features", "shown"),
    [
        ({"n": 1}, "no image"),
        ({"n": 1}, "example 1"),
        ({"image/encoded": b"none"}, "the image cannot be drawn"),
        ({"image/encoded": 3}, "image/encoded holds no bytes"),
        ({"image/object/bbox/xmin": [0.5]}, "a side of the boxes is missing"),
        ({}, "no image"),
        (hostile_features("a") | {"image/object/bbox/xmin": [float("nan")]}, "not a number"),
        (hostile_features("a") | {"image/object/bbox/xmin": [3e38]}, "beyond the image"),
        # Far keypoints are moved nearer: browsers read no path with such numbers.
        (
            hostile_features("a")
            | {
                f"image/object/keypoint/{key}": [value]
                for key, value in (("x", 3e38), ("y", -3e38), ("visibility", 2))
            },
            "M96 -72h0",
        ),
        (hostile_features("a") | {"image/object/bbox/xmax": [-1.0]}, "ends before it begins"),
        (hostile_features("a") | {"image/object/bbox/xmax": [0.5, 0.6]}, "2 values for 1 objects"),
        (hostile_features("a") | {"image/object/mask": [b"none"]}, "a mask cannot be drawn"),
    ],
)
def test_examples_of_anyones(features: dict[str, object], shown: str, tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", make_example(features))
    page = report(path, tmp_path / "page.html")
    check_harmless(page)
    assert shown in page
    assert len(keys(page)) == 1


def test_an_empty_file(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord")
    assert "The dataset has no Examples." in report(path, tmp_path / "page.html")


def test_a_folder_of_tfds(tmp_path: Path) -> None:
    record = make_example({"image": draw_image("PNG", width=20, height=10), "label": 3})
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    write_tfrecord(folder / "digits-train.tfrecord-00000-of-00001", record, record)
    info = {
        "name": "digits",
        "version": "1.0.0",
        "description": "Digits & letters.",
        "citation": "@article{x}",
        "splits": [{"name": "train", "shardLengths": ["2"], "numBytes": "9"}],
        "moduleName": "elsewhere",
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    page = report(folder, tmp_path / "page.html")
    texts = " ".join(" ".join(parse(page).texts).split())
    assert "digits 1.0.0 Digits & letters." in texts
    assert "@article{x}" in texts
    assert keys(page) == ["example 1", "example 2"]
    assert page.count('href="data:image/jpeg;base64,') == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", "{}{"),
        ("rejects/train.jsonl", "[]\n"),
        ("rejects/train.jsonl", None),
        ("dataset_info.json", "[]"),
    ],
)
def test_damaged_files(name: str, content: str | None, mixed: Build, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(mixed.output, folder)
    assert (folder / name).exists()
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    words = ("report", str(folder), "--output", str(tmp_path / "page.html"))
    assert f"{folder / name}: " in run(*words, exit_code=1).error


def test_a_shard_that_ends_early(planted: Build, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(planted.output, copy)
    (shard,) = copy.glob("*.tfrecord*")
    # The index says where the Examples begin.
    last = parquet.read_table(next((copy / "index").iterdir())).column("offset").to_pylist()[-1]
    shard.write_bytes(shard.read_bytes()[:last])
    output = tmp_path / "page.html"
    result = run("report", str(copy), "--output", str(output), exit_code=1)
    assert f"{shard}: byte {last}: the file ends before this Example" in result.error
    assert not output.exists()


def test_findings_without_an_index(planted: Build, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(planted.output, copy, ignore=shutil.ignore_patterns("index"))
    # Duplicates are found by the index.
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "duplicates": None}))
    page = report(copy, tmp_path / "page.html")
    assert "only the pictures of the gallery are searched for examples" in page
    # Objects are looked at while pictures are drawn; what only the index knows is counted.
    assert keys(section(page, "look")) == [
        key for kind in KINDS_IN_ORDER for key in KINDS if KINDS[key] == kind and "box" in kind
    ]
    assert "train 1 (5.00%)" in section(page, "look")
