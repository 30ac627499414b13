"""Without `rejects.max_ratio`, a few damaged pictures may be rejected from a small dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.archive_files import Files, write_files
from tests.support.builds import Build, Json, build, build_config, write_coco
from tests.support.dataset import read_tree, run
from tests.support.example_builders import write_png
from tests.support.image_makers import photograph, save

JPEGS = [save(photograph(seed=seed), "JPEG") for seed in range(40)]
CUT = JPEGS[7][:-40]
CLASSES = ("cat", "dog", "lynx", "never")
IMAGES: Files = {f"images/{number:02}.jpg": data for number, data in enumerate(JPEGS)}


def coco(folder: Path, *, classes: dict[int, int], box: tuple[int, ...] = (5, 5, 20, 20)) -> Json:
    """Writes 40 images with an object each; the eighth has its own class, and its own box."""
    write_files(folder, IMAGES)
    annotations = [
        {
            "id": number + 1,
            "image_id": number,
            "category_id": classes.get(number, 1 + number % 2),
            "bbox": list(box) if number == 7 else [5, 5, 20, 20],
        }
        for number in range(40)
    ]
    document = {
        "images": [
            {"id": number, "file_name": f"{number:02}.jpg", "width": 64, "height": 48}
            for number in range(40)
        ],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)],
    }
    path = write_coco(folder / "coco.json", document)
    return {"format": "coco", "images": f"{folder}/images", "annotations": [str(path)]}


def build_one(source: Json, folder: Path, *, exit_code: int = 0, **config: Any) -> Build:  # noqa: ANN401  # Any config.
    config = {"splits": {"train": source}, **config}
    return build_config(config, folder=folder, exit_code=exit_code)


NAMED = "rejected from split 'train': 07.jpg ("


@pytest.mark.parametrize("data", [CUT, b"", b"no image"])
def test_one_damaged_picture_of_forty_is_named(data: bytes, tmp_path: Path) -> None:
    source = coco(tmp_path, classes={})
    (tmp_path / "images/07.jpg").write_bytes(data)
    built = build_one(source, tmp_path)
    assert len(built.examples()) == 39
    (line,) = [line for line in built.summary["warnings"] if line.startswith(NAMED)]
    (reject,) = built.rejects()
    assert line == f"{NAMED}{reject['reason']}: {reject['detail']})"
    assert built.summary["tolerated"] == ""
    # Manifests always said how many are allowed.
    assert built.manifest["config"]["rejects"] == {"max_ratio": 0.01}
    exact = {"rejects": {"max_ratio": 0.01}}
    (tmp_path / "again").mkdir()
    again = build_one(source, tmp_path / "again", exit_code=3, **exact)
    assert "rejects.max_ratio allows 1.00%" in again.summary["message"]


def test_a_class_may_not_lose_its_only_picture(tmp_path: Path) -> None:
    source = coco(tmp_path, classes={7: 3})
    (tmp_path / "images/07.jpg").write_bytes(CUT)
    built = build_one(source, tmp_path, exit_code=3)
    assert "but not all images of class lynx\n" in built.summary["message"]
    # Its classes are written under other names, or not at all.
    build_one(source, tmp_path, labels={"merge": {"cat": ["lynx"]}, "ids": "contiguous"})
    (tmp_path / "else").mkdir()
    build_one(source, tmp_path / "else", labels={"exclude": ["lynx"]})


def test_a_class_may_not_lose_its_only_object(tmp_path: Path) -> None:
    built = build_one(coco(tmp_path / "kept", classes={}, box=(5, 5, 0, 9)), tmp_path)
    assert built.reasons() == {("07.jpg", "objects_lost"): 1}
    (tmp_path / "lost").mkdir()
    source = coco(tmp_path / "lost", classes={7: 3}, box=(5, 5, 0, 9))
    built = build_one(source, tmp_path / "lost", exit_code=3)
    assert "but not all images of class lynx\n" in built.summary["message"]


@pytest.mark.parametrize("are_colours", [False, True])
def test_a_class_may_not_lose_its_only_map(are_colours: bool, tmp_path: Path) -> None:
    values = np.zeros((48, 64), np.uint8)
    values[:20, :30] = 1
    rare = np.where(values, 2, 0).astype(np.uint8)
    table = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0]], np.uint8)
    files = dict(IMAGES)
    for number in range(40):
        indices = rare if number == 7 else values
        files[f"masks/{number:02}.png"] = write_png(table[indices] if are_colours else indices)
    files["images/07.jpg"] = CUT
    if are_colours:
        files["masks/class_dict.csv"] = "name,r,g,b\nbackground,0,0,0\nroad,255,0,0\nsky,0,255,0\n"
    write_files(tmp_path, files)
    source: Json = {"format": "masks", "images": f"{tmp_path}/images"}
    source["semantic_masks"] = f"{tmp_path}/masks"
    if not are_colours:
        source["mask_classes"] = {1: "road", 2: "sky"}
    built = build_one(source, tmp_path, exit_code=3)
    assert "but not all images of class sky\n" in built.summary["message"]
    (tmp_path / "masks/08.png").write_bytes((tmp_path / "masks/07.png").read_bytes())
    build_one(source, tmp_path)


def test_a_source_may_not_lose_its_only_picture(tmp_path: Path) -> None:
    files = {f"one/{'ab'[number % 2]}/{number}.jpg": data for number, data in enumerate(JPEGS)}
    write_files(tmp_path, {**files, "two/a/x.jpg": CUT})
    sources = [
        {"format": "image-folder", "images": f"{tmp_path}/{name}"} for name in ("one", "two")
    ]
    built = build_config({"splits": {"train": sources}}, folder=tmp_path, exit_code=3)
    assert "but not all images of source 'train/1'\n" in built.summary["message"]
    write_files(tmp_path, {"two/a/y.jpg": JPEGS[0]})
    built = build_config({"splits": {"train": sources}}, folder=tmp_path)
    (line,) = [line for line in built.summary["warnings"] if line.startswith("rejected from")]
    assert line.startswith("rejected from split 'train': a/x.jpg of train/1 (truncated: ")


def test_chance_does_not_decide_what_is_allowed(tmp_path: Path) -> None:
    folders = {f"{'ab'[number % 2]}/{number:02}.jpg": data for number, data in enumerate(JPEGS)}
    write_files(tmp_path / "d", {**folders, "b/07.jpg": CUT})
    words = ("image-folder", "--images", str(tmp_path / "d"), "--fractions", "a=0.7,b=0.3")
    hit: set[str] = set()
    for seed in range(4):
        built = build(*words, "--seed", str(seed), "--overwrite", output=tmp_path / "out")
        hit |= {name for name, split in built.summary["splits"].items() if split["rejected"]}
        # A ratio of the config counts in each split.
        ratio = max(split["reject_ratio"] for split in built.summary["splits"].values())
        exact = ("--set", "rejects.max_ratio=0.03", "--overwrite", "--seed", str(seed))
        refused = build(*words, *exact, output=tmp_path / "exact", exit_code=None)
        assert (refused.exit_code == 3) == (ratio > 0.03)
    assert hit == {"a", "b"}


def test_shards_that_are_copied_say_which_classes_were_lost(tmp_path: Path) -> None:
    source = coco(tmp_path, classes={7: 3})
    (tmp_path / "images/07.jpg").write_bytes(CUT)
    tolerant = build_one(source, tmp_path, rejects={"max_ratio": 0.03})
    path = tmp_path / "next.yaml"
    config = {"name": "pictures", "splits": {"train": source}}
    path.write_text(json.dumps({**config, "output": {"path": str(tmp_path / "next")}}))
    result = run("build", str(path), "--reuse", str(tolerant.output), "--json", exit_code=3)
    summary = json.loads(result.stdout)
    assert summary["reuse"]["copied_shards"] == 1
    assert "but not all images of class lynx\n" in summary["message"]


def test_a_dataset_is_not_replaced_by_what_is_left_of_it(tmp_path: Path) -> None:
    """The config of `init` was made before most images were copied."""
    data = tmp_path / "d"
    coco(data, classes={})
    for number in range(1, 40):
        (data / f"images/{number:02}.jpg").unlink()
    config, output = tmp_path / "d.yaml", tmp_path / "out"
    assert "a build will be refused: " in run("init", str(data), "--output", str(config)).stderr
    words = ("build", str(config), "--set", f"output.path={output}", "--overwrite")
    assert run(*words).exit_code == 3
    write_files(data, IMAGES)
    run(*words, exit_code=0)
    before = read_tree(output)
    for number in range(1, 40):
        (data / f"images/{number:02}.jpg").write_bytes(JPEGS[number][:-40])
    assert run(*words).exit_code == 3
    after = read_tree(output)
    assert {path: after.get(path) for path in before} == before


def test_a_tolerance_that_lets_much_go_comes_first(tmp_path: Path) -> None:
    source = coco(tmp_path, classes={})
    for number in range(3):
        (tmp_path / f"images/{number:02}.jpg").write_bytes(CUT)
    words = ("--images", source["images"], "--annotations", source["annotations"][0])
    command = ("build", "coco", *words, "--output", str(tmp_path / "out"), "--overwrite")
    line = "split 'train': 3 of 40 inputs rejected (7.50%); rejects.max_ratio allows it\n"
    tolerant = ("--set", "rejects.max_ratio=0.08")
    assert run(*command, *tolerant, exit_code=0).stdout.startswith(line)
    # So does what finds the dataset unchanged.
    again = run(*command[:-1], *tolerant, "--if-changed", exit_code=0).stdout
    assert again.startswith(line)
    assert "unchanged: " in again
