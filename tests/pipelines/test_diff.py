"""`shardbeam diff`: two datasets, as text and as JSON."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.pipelines.commands.diff import ComparedImage, render_text
from shardbeam.readers.compare import difference
from shardbeam.readers.compare.changes import Change, ChangeKind, Difference
from shardbeam.readers.compare.describe_changes import describe_image
from shardbeam.readers.compare.difference import ChangedImage
from shardbeam.readers.compare.image_changes import compare_images
from shardbeam.readers.report import changes
from shardbeam.transforms.containers.tfrecord import TFRecord
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.storage.base import StoredFile
from tests.support.archive_files import write_files
from tests.support.builds import Build, build, write_coco
from tests.support.dataset import run
from tests.support.manifests import list_again
from tests.support.screens import check_screen
from tests.support.tfrecords import draw_image

CAT, DOG = 1, 2
TIMES = "\N{MULTIPLICATION SIGN}"
# `{image: (class, box in pixels) of each of its objects}`
_Objects = Mapping[str, Sequence[tuple[int, list[int]]]]
OLD: _Objects = {
    "a.jpg": [(CAT, [10, 10, 20, 20]), (DOG, [50, 10, 20, 20])],
    "b.jpg": [(CAT, [10, 10, 20, 20])],
    "c.jpg": [(CAT, [10, 10, 20, 20])],
    "d.jpg": [(CAT, [10, 10, 20, 20]), (DOG, [50, 10, 20, 20])],
    "f.jpg": [],
    "g.jpg": [(CAT, [10, 10, 20, 20])],
    "e\x1b.jpg": [(CAT, [10, 10, 20, 20])],
}
NEW: _Objects = {
    **{key: objects for key, objects in OLD.items() if key != "e\x1b.jpg"},
    "a.jpg": [(DOG, [10, 10, 20, 20]), (DOG, [50, 10, 20, 20])],
    "b.jpg": [(CAT, [12, 10, 20, 20])],
    "c.jpg": [(CAT, [10, 10, 20, 20]), (DOG, [50, 10, 20, 20])],
    "d.jpg": [(CAT, [10, 10, 20, 20])],
    "h/e.jpg": [(CAT, [10, 10, 20, 20])],
}


def build_objects(
    folder: Path, objects: _Objects, *settings: str, names: Sequence[str] = ("cat", "dog")
) -> Build:
    """Builds images of 100x50 pixels with these objects, and other names of the two classes."""
    # The first letter of a name decides the pixels, except that of f.jpg.
    images = folder / "images"
    for key in objects:
        (images / key).parent.mkdir(parents=True, exist_ok=True)
        height = 50 + ord(key[-5] if key[-5] != "\x1b" else "e") % 20
        if key == "f.jpg" and objects is NEW:
            height += 40
        (images / key).write_bytes(draw_image("JPEG", width=100, height=height))
    document = {
        "images": [{"id": number, "file_name": key} for number, key in enumerate(objects)],
        "annotations": [
            {
                "id": 10 * number + place,
                "image_id": number,
                "category_id": label,
                "bbox": box,
                "iscrowd": 0,
                "area": box[2] * box[3],
            }
            for number, found in enumerate(objects.values())
            for place, (label, box) in enumerate(found)
        ],
        "categories": [{"id": key, "name": name} for key, name in enumerate(names, CAT)],
    }
    annotations = write_coco(folder / "coco.json", document)
    flags = ("--images", images, "--annotations", annotations, "--set", "output.num_shards=2")
    return build("coco", *flags, *settings, output=folder / "out")


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Build]:
    """A dataset of objects, and one of tars in which each image has changed in another way."""
    folder = tmp_path_factory.mktemp("boxes")
    return (
        build_objects(folder / "old", OLD),
        build_objects(folder / "new", NEW, "--set", "output.container=webdataset"),
    )


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Build]:
    """A dataset, and one with an image less, one more, one changed and one in another class."""
    folder = tmp_path_factory.mktemp("versions")
    images = folder / "images"
    names = ("cat/a.jpg", "cat/b.jpg", "dog/c.jpg", "dog/d\x1b.jpg")
    write_files(images, dict.fromkeys(names, draw_image("JPEG", width=20, height=10)))
    words = ("image-folder", "--images", images, "--name", "pets")
    old = build(*words, output=folder / "old")
    (images / "cat" / "a.jpg").unlink()
    (images / "cat" / "b.jpg").write_bytes(draw_image("JPEG", width=30, height=10))
    (images / "ant").mkdir()
    (images / "ant" / "e.jpg").write_bytes(draw_image("JPEG", width=40, height=10))
    new = build(*words, output=folder / "new")
    return old, new


def check_text(name: str, stdout: str) -> None:
    """Compares what is shown without the lengths of files, which depend on Pillow's version."""
    shown = re.sub(r"jpeg, [\d,.]+ (bytes|kB)", "jpeg, N bytes", stdout)
    check_screen(name, re.sub(r"(?m)^(train  (image )?bytes) .*", r"\1 N", shown))


def test_two_datasets_as_text(versions: tuple[Build, Build]) -> None:
    old, new = versions
    exit_code, stdout, stderr = run("diff", str(old.output), str(new.output))
    assert (exit_code, stderr) == (0, "")
    check_text("diff_classes", stdout)


def test_two_datasets_as_json(versions: tuple[Build, Build]) -> None:
    old, new = versions
    words = ["diff", "--json", str(old.output), str(new.output), "--limit", "1"]
    exit_code, stdout, _ = run(*words)
    assert (exit_code, stdout.count("\n")) == (0, 1)
    document = json.loads(stdout)
    assert (document["old"], document["new"]) == (str(old.output), str(new.output))
    assert document["same"] is False
    assert document["splits"]["train"]["removed"] == 1
    assert document["classes"]["ant"] == [None, 0]
    assert sorted(change["kinds"] for change in document["changes"]) == [
        ["added"],
        ["image"],
        ["other"],
        ["removed"],
    ]
    assert document["statistics"]["train"]["new"]["images_by_class"] == {
        "ant": 1,
        "cat": 1,
        "dog": 2,
    }


def changed_lines(stdout: str) -> dict[str, list[str]]:
    """Reads the lines about each image: `{key: lines}`."""
    tables = stdout.replace(TIMES, "x").split("\n\n")
    (table,) = (each for each in tables if "what changed" in each.split("\n")[0])
    heading, *rows = table.splitlines()
    place = heading.index("what changed")
    lines: dict[str, list[str]] = {}
    key = ""
    for row in rows:
        key = row[:place].removeprefix("train").strip() or key
        lines.setdefault(key, []).append(row[place:])
    return lines


def test_what_changed_in_each_image(boxes: tuple[Build, Build]) -> None:
    old, new = (str(built.output) for built in boxes)
    exit_code, stdout, stderr = run("diff", old, new)
    assert (exit_code, stderr) == (0, "")
    check_text("diff_objects", stdout)
    # And back: the other way around, from tars.
    assert changed_lines(run("diff", new, old).stdout)["c.jpg"] == ["dog removed at 50, 10, 20x20"]


def test_a_renamed_class_is_one_line(boxes: tuple[Build, Build], tmp_path: Path) -> None:
    old = boxes[0]
    line = "class 'cat' was renamed to 'tiger': 6 objects in 6 images"
    renamed = build_objects(tmp_path / "renamed", OLD, names=("tiger", "dog")).output
    text = run("diff", str(old.output), str(renamed)).stdout
    assert text.splitlines()[0] == f"no image changed; {line}"
    # No picture, no class with another id, and no count of a class is listed.
    assert "cat" not in text.removeprefix(f"no image changed; {line}")
    # Whatever else has changed is said in full: boxes moved, were added and removed.
    both = build_objects(tmp_path / "both", NEW, names=("tiger", "dog"))
    words = ("diff", str(old.output), str(both.output))
    document = json.loads(run(*words, "--json").stdout)
    assert document["summary"] == (
        "1 image renamed, 5 changed; class 'cat' was renamed to 'tiger': 4 objects in 4 images"
    )
    assert [(each["kind"], each["old"], each["new"]) for each in document["class_changes"]] == [
        ("renamed", "cat", "tiger"),
        ("other", "cat", "dog"),
    ]
    assert document["splits"]["train"]["labels"] == 4
    found = changed_lines(run(*words).stdout)
    assert found == changed_lines(run("diff", *(str(each.output) for each in boxes)).stdout)
    page = html.unescape(changes_section((old, both), tmp_path / "page.html"))
    assert document["summary"] in page
    assert "some of class 'cat' is 'dog' now: 1 object in 1 image" in page


def test_what_changed_as_json(boxes: tuple[Build, Build]) -> None:
    old, new = (str(built.output) for built in boxes)
    document = json.loads(run("diff", old, new, "--json").stdout)
    found = {each["key"]: each for each in document["examples"]}
    assert document["differing"] == len(found) == 5
    moved = found["b.jpg"]
    (change,) = moved["objects"]
    assert (moved["kinds"], moved["old_split"], moved["new_split"]) == (
        ["labels"],
        "train",
        "train",
    )
    assert change["kinds"] == ["box"]
    assert (change["old_class"], change["new_class"]) == ("cat", "cat")
    assert change["iou"] == pytest.approx(360 / 440, abs=1e-6)
    assert change["old_box"][0] == pytest.approx(0.1)
    assert change["new_box"][0] == pytest.approx(0.12)
    assert found["f.jpg"]["old_image"]["height"] + 40 == found["f.jpg"]["new_image"]["height"]
    assert found["a.jpg"]["same_objects"] == 1
    (renamed,) = (each for each in document["changes"] if "renamed" in each["kinds"])
    assert (renamed["old_key"], renamed["key"]) == ("e\x1b.jpg", "h/e.jpg")


def test_only_the_examples_that_are_compared_are_read(boxes: tuple[Build, Build]) -> None:
    old, new = (str(built.output) for built in boxes)
    read: list[bytes] = []
    read_all = TFRecord.read

    def read_some(
        self: TFRecord, file: StoredFile, *, start: int = 0
    ) -> Iterator[tuple[int, bytes]]:
        for place, record in read_all(self, file, start=start):
            # The file ends with the record.
            assert place + 16 + len(record) == file.size_bytes
            read.append(record)
            yield place, record

    with mock.patch.object(TFRecord, "read", read_some):
        for more, count in (([], 7), (["--examples", "2"], 4), (["--examples", "0"], 0)):
            read.clear()
            result = run("diff", old, new, *more)
            assert (result.exit_code, result.stderr) == (0, "")
            # These are of the old dataset; the new one has tars. The labels of two images differ
            # by their digests alone.
            assert len(read) == count
            assert ("5 images in both datasets differ: --examples 5" in result.stdout) == (
                more == ["--examples", "2"]
            )


def test_too_many_objects_are_not_compared(
    boxes: tuple[Build, Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference, "_MOST_OBJECTS", 1)
    found = changed_lines(run("diff", *(str(built.output) for built in boxes)).stdout)
    assert found["b.jpg"] == ["cat moved from 10, 10, 20x20 to 12, 10, 20x20 (IoU 0.82)"]
    assert found["d.jpg"][0] == "2 objects: too many to compare"
    assert found["d.jpg"][1].startswith("other values changed: image/object/")
    assert found["d.jpg"][1].endswith(" more")


def test_texts_of_data_are_escaped_and_cut() -> None:
    hostile = "\x1b[2J\u202e[red]" + "x" * 1000
    change = Change(key=hostile, kinds=(ChangeKind.RENAMED,), old_key=hostile, new_split=hostile)
    picture = Picture(key=hostile, labels=(hostile,), features={hostile: (1,)}, width=9, height=9)
    item = PictureObject(label=hostile, box=(-1e30, 0.0, 1e30, 0.5), attributes={hostile: 1})
    other = msgspec.structs.replace(item, attributes={hostile: 2})
    old, new = (msgspec.structs.replace(picture, objects=(each,)) for each in (item, other))
    new = msgspec.structs.replace(new, labels=(), captions=(hostile,), features={})
    changed = ChangedImage(change, old, new, compare_images(old, new))
    lines = list(describe_image(changed))
    assert len(lines) == 4
    text = render_text(
        Difference(old="a", new="b", splits={}, changes=(change,), notes=(hostile,)),
        {},
        [ComparedImage(change, changed.what, lines)],
    )
    assert not {"\x1b", "\u202e"} & set(text)
    assert r"\x1b[2J\u202e[red]" in text
    assert max(map(len, text.splitlines())) < 2500


def test_examples_that_are_not_where_the_index_says(
    boxes: tuple[Build, Build], tmp_path: Path
) -> None:
    for built in boxes:
        folder = tmp_path / built.output.parent.name
        shutil.copytree(built.output, folder)
        for path in (folder / "index").iterdir():
            table = parquet.read_table(path)
            place = table.schema.get_field_index("length")
            lengths = [length - 1 for length in table["length"].to_pylist()]
            column = table.schema.field("length")
            parquet.write_table(table.set_column(place, column, [lengths]), path)
        list_again(folder)
        result = run("diff", str(folder), str(boxes[0].output), exit_code=1)
        assert result.error.startswith(f"{folder}/")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Build]:
    """The same two datasets, with an Example for each object."""
    folder = tmp_path_factory.mktemp("single")
    old, new = (
        build_objects(folder / name, objects, "--set", "example_per=annotation")
        for name, objects in (("old", OLD), ("new", NEW))
    )
    return old, new


def test_objects_that_each_have_an_example(
    single: tuple[Build, Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = single
    result = run("diff", str(old.output), str(new.output))
    assert (result.exit_code, result.stderr) == (0, "")
    assert changed_lines(result.stdout) == {
        "a.jpg": ["cat to dog at 10, 10, 20x20"],
        "b.jpg": ["cat moved from 10, 10, 20x20 to 12, 10, 20x20 (IoU 0.82)"],
        "c.jpg": ["dog added at 50, 10, 20x20"],
        "d.jpg": ["dog removed at 50, 10, 20x20"],
    }
    # A part of an image's Examples does not show what was added or removed.
    monkeypatch.setattr(difference, "_MOST_EXAMPLES", 1)
    found = changed_lines(run("diff", str(old.output), str(new.output)).stdout)
    assert found.pop("b.jpg") == ["cat moved from 10, 10, 20x20 to 12, 10, 20x20 (IoU 0.82)"]
    assert {lines[0] for lines in found.values()} == {"2 objects: too many to compare"}
    lines = [line for lines in found.values() for line in lines]
    assert not any("added" in line or "removed" in line for line in lines)


def change_digests(built: Build, folder: Path) -> Path:
    """Copies a dataset as if another version had digested its labels."""
    shutil.copytree(built.output, folder)
    for path in (folder / "index").iterdir():
        table = parquet.read_table(path)
        place = table.schema.get_field_index("labels")
        digests = pa.array(["7" * 16] * len(table), pa.string())
        parquet.write_table(table.set_column(place, "labels", digests), path)
    list_again(folder)
    return folder


def counts(*words: str | Path) -> dict[str, int]:
    result = run("diff", *map(str, words), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    (found,) = json.loads(result.stdout)["splits"].values()
    return {name: found[name] for name in ("image", "labels", "other", "unchanged")}


def test_equal_examples_have_equal_labels(
    boxes: tuple[Build, Build], single: tuple[Build, Build], tmp_path: Path
) -> None:
    for number, (built, _) in enumerate((boxes, single)):
        older = change_digests(built, tmp_path / str(number))
        assert run("diff", str(older), str(built.output)).stdout.startswith("nothing changed\n\n")


@pytest.mark.parametrize("container", ["tfrecord", "hf_parquet"])
def test_labels_are_compared_where_only_their_digests_differ(
    container: str, boxes: tuple[Build, Build], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = change_digests(boxes[0], tmp_path / "older")
    # All Examples have another key, and one has another box.
    objects = {**OLD, "b.jpg": NEW["b.jpg"]}
    settings = ("--set", "features.constants={who: me}", "--set", f"output.container={container}")
    new = build_objects(tmp_path / "new", objects, *settings).output
    expected = {"image": 0, "labels": 1, "other": len(OLD) - 1, "unchanged": 0}
    assert counts(older, new) == counts(boxes[0].output, new) == expected
    # Without reading a shard, the digests decide.
    assert counts(older, new, "--examples", "0")["labels"] == len(OLD)
    monkeypatch.setattr(difference, "_MOST_READ", 4)
    assert counts(older, new)["labels"] == len(OLD) - 4 + 1
    notes = run("diff", str(older), str(new)).stdout
    assert "the labels of 3 more images were compared by their digests alone" in notes


def test_the_page_shows_pictures_before_and_after(
    boxes: tuple[Build, Build], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    section = changes_section(boxes, path)
    texts = html.unescape(re.sub("<[^>]*>", "", section)).replace(TIMES, "x")
    assert "All 5 images that are in both datasets and differ." in texts
    assert "cat moved from 10, 10, 20x20 to 12, 10, 20x20 (IoU 0.82)" in texts
    assert r"e\x1b.jpg to h/e.jpg" in texts
    # Two pictures each, and only the objects that have changed.
    assert section.count('<svg class="picture') == 10
    assert section.count('<rect class="layer-boxes') == 2 + 2 + 1 + 1
    # Texts of pictures take room, too: not only the thumbnails.
    thumbnails = sum(map(len, re.findall(r'href="(data:[^"]*)"', section)))
    monkeypatch.setattr(changes, "_MAX_BYTES", thumbnails)
    shorter = changes_section(boxes, path)
    assert 0 < shorter.count('<svg class="picture') < 10
    assert "cat moved from 10, 10, 20" in shorter


def changes_section(boxes: tuple[Build, Build], path: Path) -> str:
    """Writes a page with what has changed, and returns that part of it."""
    words = ["--previous", str(boxes[0].output), "--output", str(path), "--overwrite"]
    result = run("report", str(boxes[1].output), *words)
    assert (result.exit_code, result.stderr) == (0, "")
    page = path.read_text()
    section = page[page.index('<section id="changes"') :]
    return section[: section.index("</section>")]


def test_a_dataset_and_itself(versions: tuple[Build, Build], tmp_path: Path) -> None:
    path = str(versions[0].output)
    stdout = run("diff", path, path, exit_code=0).stdout
    assert stdout.startswith("nothing changed\n\nsplit ")
    copy = tmp_path / os.fsdecode(b"copy\xff")
    shutil.copytree(path, copy)
    (copy / "statistics.json").unlink()
    document = json.loads(run("diff", path, str(copy), "--json").stdout)
    assert (document["same"], document["changes"], document["statistics"]) == (True, [], {})
