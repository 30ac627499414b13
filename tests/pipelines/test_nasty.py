"""Each bad file, name and annotation has the outcome of a table, and nothing is lost."""

from __future__ import annotations

import builtins
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.builds import Build, Json, build
from tests.support.image_makers import photograph, save
from tests.support.nasty_files import (
    EXAMPLE,
    JPEG,
    Outcome,
    count_files,
    make_nasty_folder,
)

SECRET = save(photograph(seed=99), "JPEG")


def check_outcomes(built: Build, expected: dict[str, list[Outcome]]) -> None:
    """Compares what became of every input with what should; exclusions are counted only."""
    outcomes = [(key, outcome) for key, each in expected.items() for outcome in each]
    excluded = Counter(rule.value for _, rule in outcomes if isinstance(rule, Exclusion))
    rejected = Counter(
        (key, reason.value) for key, reason in outcomes if isinstance(reason, Reason)
    )
    written = sorted(key for key, outcome in outcomes if outcome == EXAMPLE)
    assert sorted(example.key for example in built.examples()) == written
    assert built.reasons() == rejected
    counts = built.counts()
    assert counts["excluded"] == excluded
    assert counts["rejected"] == Counter(reason for _, reason in rejected.elements())
    assert counts["examples"] == len(written)


def test_every_file_of_a_nasty_folder_ends_as_the_table_says(tmp_path: Path) -> None:
    root = tmp_path / "images"
    expected = make_nasty_folder(root)
    built = build(
        "image-folder",
        *("--images", root),
        *("--set", "rejects.max_ratio=1"),
        output=tmp_path / "out",
    )
    check_outcomes(built, expected)
    counts = built.counts()
    assert counts["unlisted"] == 0
    assert counts["listed"] == count_files(root) == sum(map(len, expected.values()))
    written, rejected = counts["examples"], sum(counts["rejected"].values())
    assert written + rejected + sum(counts["excluded"].values()) == counts["listed"]
    assert counts["reject_ratio"] == rejected / (written + rejected)
    for example in built.examples():
        # Whatever the file was: what is stored can be decoded, and is what the Example says.
        picture = example.picture
        picture.load()
        assert picture.size == example.size
        assert picture.format is not None
        assert picture.format.lower().encode() == example.features["image/format"][0]
        assert picture.mode in ("RGB", "L")
    labels = {label for example in built.examples() for label, _ in example.image_labels}
    assert labels == {"cat", "wolf", "\N{DOG FACE} d\u00f6g"}


# {file_name: (key, outcome)} of annotated files in the nasty folder.
ANNOTATED: dict[str, tuple[str, Outcome]] = {
    # Files that an annotation names are read, whatever their names.
    "cat/good.jpg": ("cat/good.jpg", EXAMPLE),
    "cat/notes.txt": ("cat/notes.txt", Reason.NOT_AN_IMAGE),
    "cat/no_extension": ("cat/no_extension", EXAMPLE),
    "cat/.hidden.jpg": ("cat/.hidden.jpg", EXAMPLE),
    "outside.jpg": ("outside.jpg", EXAMPLE),
    # Other spellings of listed keys.
    "./cat//-rf.jpg": ("cat/-rf.jpg", EXAMPLE),
    "cat/e\u0301.jpg": ("cat/\u00e9.jpg", EXAMPLE),
    # Bad files stay bad.
    "cat/zero.jpg": ("cat/zero.jpg", Reason.ZERO_BYTE),
    "cat/damaged.jpg": ("cat/damaged.jpg", Reason.JPEG_DAMAGED),
    "cat/dangling.jpg": ("cat/dangling.jpg", Reason.IMAGE_UNREADABLE),
    "cat/pipe.jpg": ("cat/pipe.jpg", Reason.IMAGE_UNREADABLE),
}
# {file_name: (key, outcome)} of entries that name no file of the listing, whatever they name.
UNLISTED: dict[str, tuple[str, Reason]] = {
    "cat/absent.jpg": ("cat/absent.jpg", Reason.MISSING_IMAGE),
    "cat": ("cat", Reason.MISSING_IMAGE),
    "CAT/good.jpg": ("CAT/good.jpg", Reason.MISSING_IMAGE),
    "cat\\good.jpg": ("cat\\good.jpg", Reason.MISSING_IMAGE),
    "cat/../cat/good.jpg": ("cat/../cat/good.jpg", Reason.MISSING_IMAGE),
    "../secret.jpg": ("../secret.jpg", Reason.MISSING_IMAGE),
    "../../../../../../../etc/passwd": ("../../../../../../../etc/passwd", Reason.MISSING_IMAGE),
    "/etc/passwd": ("/etc/passwd", Reason.MISSING_IMAGE),
    "file:///etc/passwd": ("file:/etc/passwd", Reason.MISSING_IMAGE),
    "https://example.com/a.jpg": ("https:/example.com/a.jpg", Reason.MISSING_IMAGE),
    "cat/nul\0.jpg": ("cat/nul\\x00.jpg", Reason.UNREADABLE_NAME),
    "cat/half\ud83d.jpg": ("cat/half\ufffd.jpg", Reason.MISSING_IMAGE),
    # The listed name of a linked folder that is left out.
    "outside/": ("outside", Reason.MISSING_IMAGE),
    "": ("image_id=24", Reason.UNREADABLE_NAME),
}
# (key, outcome) of what contradicts the entries above; `nasty_coco` says how.
CONTRADICTIONS: list[tuple[str, Reason]] = [
    ("cat/nowhere.jpg", Reason.DUPLICATE_IMAGE_ID),
    ("cat/good.jpg", Reason.DUPLICATE_IMAGE_ID),
    ("image_id=unknown", Reason.UNKNOWN_IMAGE_ID),
    ("image_id=-5", Reason.UNKNOWN_IMAGE_ID),
]


def nasty_coco(*secrets: str) -> Json:
    """A COCO document on the nasty folder: each name once, then what contradicts it."""
    names = [*ANNOTATED, *UNLISTED, *secrets]
    images: list[Json] = [
        {"id": number, "file_name": name, "width": 96, "height": 64}
        for number, name in enumerate(names)
    ]
    images += [
        # The first image's id again: for another file, for a missing one, for the same.
        {"id": 0, "file_name": "cat/link.jpg"},
        {"id": 0, "file_name": "cat/nowhere.jpg"},
        {"id": 0, "file_name": "cat/good.jpg"},
        # The first image's file under another id does not save it.
        {"id": "other", "file_name": "cat/good.jpg"},
        {"id": 1000, "file_name": "cat/good.PNG", "width": 1000, "height": 1000},
    ]
    annotations: list[Json] = [
        {"id": number, "image_id": image_id, "category_id": 1, "bbox": [1, 2, 30, 40]}
        for number, image_id in enumerate([*range(len(names)), "unknown", -5, -5, "other"])
    ]
    annotations.append(
        {"id": 10_000, "image_id": 1000, "category_id": 1, "bbox": [500, 500, 100, 100]}
    )
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cat"}],
    }


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All paths that are opened by Python code, or read by a storage."""
    paths: list[str] = []

    def recording(original: Callable[..., Any], *, position: int) -> Callable[..., Any]:
        def record(*arguments: object, **options: object) -> object:
            paths.append(str(arguments[position]))
            return original(*arguments, **options)

        return record

    monkeypatch.setattr(builtins, "open", recording(open, position=0))
    monkeypatch.setattr(LocalStorage, "read", recording(LocalStorage.read, position=1))
    return paths


def test_every_entry_of_a_nasty_annotation_file_ends_as_the_table_says(
    tmp_path: Path, opened: list[str]
) -> None:
    root = tmp_path / "images"
    expected = make_nasty_folder(root)
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(SECRET)
    secrets = (str(secret), str(root / "cat" / "good.jpg"))
    annotations = tmp_path / "annotations.json"
    annotations.write_text(json.dumps(nasty_coco(*secrets)))

    # Its file is 64 x 48 pixels, far from what `nasty_coco` says.
    annotated = dict(ANNOTATED.values()) | {"cat/good.PNG": Reason.SIZE_MISMATCH}
    annotated["cat/good.jpg"] = Reason.DUPLICATE_IMAGE_ID
    for key, outcome in annotated.items():
        expected[key][0] = outcome
    expected["cat/link.jpg"] = [Reason.DUPLICATE_IMAGE_ID]
    unlisted = [*UNLISTED.values(), *CONTRADICTIONS]
    unlisted += [(path, Reason.MISSING_IMAGE) for path in secrets]
    for key, reason in unlisted:
        expected.setdefault(key, []).append(reason)

    del opened[:]
    built = build(
        "coco",
        *("--images", root, "--annotations", annotations),
        *("--set", "rejects.max_ratio=1", "--set", "unannotated=keep"),
        output=tmp_path / "out",
    )
    check_outcomes(built, expected)
    counts = built.counts()
    assert counts["listed"] == count_files(root)
    assert counts["unlisted"] == len(unlisted)
    written, rejected = counts["examples"], sum(counts["rejected"].values())
    inputs = counts["listed"] + counts["unlisted"]
    assert written + rejected + sum(counts["excluded"].values()) == inputs
    assert counts["reject_ratio"] == rejected / (written + rejected)
    with_boxes = {example.key for example in built.examples() if example.boxes}
    assert with_boxes == {key for key, outcome in annotated.items() if outcome == EXAMPLE}
    read = [example.key for example in built.examples()]
    read += [reject["key"] for reject in built.rejects() if reject["stage"] == "encode"]
    assert counts["unannotated"] == len([key for key in read if key not in annotated])

    ours = (f"{root}/", f"{built.output}/", str(annotations))
    assert str(annotations) in opened
    assert str(root / "outside.jpg") in opened
    assert not [
        path
        for path in opened
        if "passwd" in path or (path.startswith(str(tmp_path)) and not path.startswith(ours))
    ]
    assert all(example.encoded != SECRET for example in built.examples())


def test_a_reject_shows_nothing_of_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("5ecretKey = 12345678901234567890\n")
    root = tmp_path / "images"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(JPEG)
    (root / "cat" / "link.jpg").symlink_to(secret)
    built = build("image-folder", "--images", root, output=tmp_path / "out", exit_code=3)
    assert built.reasons() == {("cat/link.jpg", Reason.NOT_AN_IMAGE.value): 1}
    shown = json.dumps(built.rejects()) + json.dumps(built.summary) + built.stderr
    text = secret.read_bytes()
    for size in (3, 8):
        begin = text[:size]
        for leak in (begin.decode(), begin.hex(), begin.hex(" "), repr(begin)):
            assert leak not in shown


def test_files_that_change_after_the_listing_are_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "images"
    (root / "cat").mkdir(parents=True)
    names = ["rewritten", "grown", "deleted", "folder", "unchanged"]
    paths = {name: root / "cat" / f"{name}.jpg" for name in names}
    for path in paths.values():
        path.write_bytes(JPEG)
    list_files = LocalStorage.list

    def list_and_change(self: LocalStorage, listed: str) -> Iterator[StoredFile]:
        yield from list_files(self, listed)
        if listed == str(root):
            paths["rewritten"].write_bytes(JPEG)
            with paths["grown"].open("ab") as file:
                file.write(b"more")
            paths["deleted"].unlink()
            paths["folder"].unlink()
            paths["folder"].mkdir()

    monkeypatch.setattr(LocalStorage, "list", list_and_change)
    built = build(
        "image-folder",
        *("--images", root, "--set", "rejects.max_ratio=1"),
        output=tmp_path / "out",
    )
    assert list(built.by_key()) == ["cat/unchanged.jpg"]
    assert built.reasons() == {
        ("cat/deleted.jpg", "changed_since_listing"): 1,
        ("cat/folder.jpg", "image_unreadable"): 1,
        ("cat/grown.jpg", "changed_since_listing"): 1,
        ("cat/rewritten.jpg", "changed_since_listing"): 1,
    }
    assert built.counts()["listed"] == len(paths)
