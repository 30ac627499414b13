"""No text from data controls a terminal, fakes a line or becomes markup, whatever the command."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardbeam.pipelines.cli.commands import COMMANDS
from shardbeam.pipelines.cli.logging import configure_logging, write_traceback
from shardbeam.pipelines.cli.summary import render_text
from shardbeam.pipelines.cli.tables import Layout
from shardbeam.pipelines.result import BuildResult
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.outcome import Reuse, SplitOutcome, Status
from tests.support.dataset import Run, run
from tests.support.image_makers import photograph, save
from tests.support.tfrecords import make_example, write_tfrecord
from tests.support.watching import bare_root

# No slash, so that it can be the name of a file.
BEGIN = "\x1b[2J\x1b]0;x\x07\u202eabc\u2066"
HOSTILE = f"{BEGIN}\r\nFAKE: <img src=x onerror=1> `c` | $x$ \u2028FAKE: \x9b2J"
# Every text of JSON and most of a TFRecord file may be more hostile than a name of a file.
MORE = f"{HOSTILE} \n# FAKE: [red]b </b> [/red] ![](http://x.y/z)"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in a folder, both with hostile texts; others of it, and one of other programs."""
    folder = tmp_path_factory.mktemp("hostile") / HOSTILE
    write_coco(folder / "in")
    write_coco(folder / "other", name=f"3{MORE}")
    build(folder, "out")
    build(folder, "changed", inputs="other")
    (folder / "config.yaml").write_text(json.dumps(make_config(folder, "new")))
    (folder / "refused.yaml").write_text(
        json.dumps({**make_config(folder, "new"), "rejects": {"max_ratio": 0}})
    )
    shutil.copytree(folder / "out", folder / "damaged")
    (folder / "damaged" / "labels.txt").unlink()
    foreign = folder / "foreign"
    foreign.mkdir()
    write_tfrecord(foreign / f"{HOSTILE}-train.tfrecord", *map(make_example, foreign_features()))
    write_tfrecord(foreign / f"{HOSTILE}-test.tfrecord", *map(make_example, foreign_features()))
    assert run("index", str(foreign), "--output", str(folder / "index")).exit_code == 0
    classes = folder / "classes"
    for name in ("a", HOSTILE):
        (classes / name).mkdir(parents=True)
        (classes / name / f"{HOSTILE}.jpg").write_bytes(save(photograph(seed=len(name)), "JPEG"))
    return folder


def build(folder: Path, name: str, *, inputs: str = "in") -> None:
    path = folder / "building.yaml"
    path.write_text(json.dumps(make_config(folder, name, inputs=inputs)))
    result = run("build", str(path))
    check(result)
    assert result.exit_code == 0, result


def write_coco(folder: Path, *, name: str = f"2{MORE}") -> None:
    images = folder / "images" / HOSTILE
    images.mkdir(parents=True)
    for number in range(4):
        (images / f"{number}{HOSTILE}.jpg").write_bytes(save(photograph(seed=number), "JPEG"))
    (images / f"bad{HOSTILE}.jpg").write_bytes(MORE.encode())
    keys = [f"{HOSTILE}/{name}{HOSTILE}.jpg" for name in (*range(4), "bad")]
    document = {
        "info": {"description": MORE, "url": MORE, "contributor": MORE},
        "licenses": [{"id": 1, "name": MORE, "url": MORE}],
        "images": [
            {"id": number, "file_name": key, "license": 1, "coco_url": MORE, "flickr_url": MORE}
            for number, key in enumerate([*keys, f"missing{HOSTILE}.jpg", MORE])
        ],
        "annotations": [
            {
                "id": number,
                "image_id": number % 6,
                "category_id": number % 2 + 1,
                "bbox": [10, 10, 1000, 20],
                "attributes": {MORE: MORE},
            }
            for number in range(8)
        ],
        "categories": [
            {"id": 1, "name": MORE, "supercategory": MORE, "keypoints": [MORE], "skeleton": []},
            {"id": 2, "name": name, "supercategory": MORE},
        ],
    }
    (folder / f"{HOSTILE}.json").write_text(json.dumps(document))


def make_config(folder: Path, output: str, *, inputs: str = "in") -> Json:
    return {
        "name": "hostile",
        "description": f"{MORE}\n\n{MORE}",
        "card": {"license": MORE, "source": MORE},
        "source": {
            "format": "coco",
            "images": str(folder / inputs / "images"),
            "annotations": [str(folder / inputs / f"{HOSTILE}.json")],
        },
        "fractions": {"train": 0.5, "test": 0.5},
        "rejects": {"max_ratio": 1},
        "output": {"path": str(folder / output)},
    }


def foreign_features() -> list[Json]:
    data = MORE.encode()
    return [
        {
            "image/encoded": save(photograph(seed=number), "JPEG"),
            "image/filename": b"%d%b" % (number, data),
            "image/source_id": data,
            "image/format": data,
            "image/class/text": [data],
            "image/class/label": [number],
            "image/caption": [data, data],
            "image/object/bbox/xmin": [0.1],
            "image/object/bbox/ymin": [0.1],
            "image/object/bbox/xmax": [0.9],
            "image/object/bbox/ymax": [0.9],
            "image/object/class/text": [data],
            "image/object/class/label": [1],
            MORE: [data],
        }
        for number in range(2)
    ]


def check(result: Run) -> None:
    """Checks that no text has an effect on a terminal, or is a line of its own."""
    for text in result[1:]:
        check_text(text)


def check_text(text: str) -> None:
    for line in text.split("\n"):
        assert escape(line) == line, ascii(line)
        assert not line.startswith(("FAKE", "# FAKE")), ascii(text)
    # What looks like markup of Rich is shown as it is.
    assert "FAKE: b" not in text


# {command: command lines}; `{}` is the folder.
LINES: dict[str, list[str]] = {
    "build": [
        "build {}/config.yaml",
        "build {}/refused.yaml",
        "build {}/config.yaml --json",
        "build {}/config.yaml --log-format=json",
        "build {}/config.yaml --set output.path={}/out",
        "build {}/none.yaml",
        "build coco --images {}/in/images --annotations {}/none.json --output {}/new",
        "build image-folder --images {}/classes --output {}/new --verbose",
        "build tfrecord --tfrecords {}/foreign --output {}/new",
    ],
    "plan": ["plan {}/config.yaml", "plan {}/config.yaml --json", "plan {}"],
    "init": ["init {}/classes", "init {}/in", "init {}/foreign", "init {}/none"],
    "formats": ["formats", "formats {}/x.py:Y", "formats {}"],
    "show": [
        "show {}/{d}",
        "show {}/{d} --json",
        "show {}/{d} --image 1",
        "show {}/{d} --image 99",
        "show {}/{d} --split {}",
        "show {}/{d} --key {}",
        "show {}/{d} --image 1 --output {}/new.svg",
        "show {}/{d} --rejects",
        "show {}/{d} --corrections",
        "show {}/{d} --findings",
        "show {}/{d} --findings same_box --all",
        "show {}/{d} --findings --index {}/index",
    ],
    "stats": ["stats {}/{d}", "stats {}/{d} --recount", "stats {}/{d} --json"],
    "report": [
        "report {}/{d} --output {}/new.html --images {}/in/images --previous {}/changed",
        "report {}/{d} --output {}/config.yaml",
    ],
    "diff": [
        "diff {}/{d} {}/changed",
        "diff {}/{d} {}/foreign",
        "diff {}/{d} {}/changed --json",
        "diff {}/{d} {}",
    ],
    "verify": [
        "verify {}/{d}",
        "verify {}/damaged",
        "verify {}/damaged --json",
        "verify {}/damaged --repair {}/none.yaml",
    ],
    "index": ["index {}/{d} --output {}/new", "index {}/{d} --output {}/config.yaml"],
    "convert": [
        "convert {}/{d} --container hf_parquet --output {}/new",
        "convert {}/{d} --container webdataset --output {}/new",
        "convert {}/{d} --container {} --output {}/new",
    ],
    "export": [
        "export {}/{d} --format coco --output {}/new",
        "export {}/{d} --format yolo --output {}/new",
    ],
    "unpack": ["unpack {}/{d} --to {}/new", "unpack {} --to {}/new"],
    "sample": [
        "sample shapes --images 1 --width 64 --height 64 --workers 1 --output {}/new",
        "sample shapes --images 1 --output {}/in",
    ],
}


def test_every_command_is_tried() -> None:
    assert set(LINES) == set(COMMANDS)


def words_of(line: str, *, folder: Path, dataset: str) -> list[str]:
    words = line.replace("{d}", dataset).split()
    return [word.replace("{}", str(folder)) for word in words]


CASES = [
    (line, dataset)
    for lines in LINES.values()
    for line in lines
    for dataset in (("out", "foreign") if "{d}" in line else ("",))
]


@pytest.mark.parametrize(("line", "dataset"), CASES)
def test_no_command_prints_a_text_as_it_is(line: str, dataset: str, folder: Path) -> None:
    try:
        with bare_root():
            result = run(*words_of(line, folder=folder, dataset=dataset))
        check(result)
        if "--json" in line or "json" in line:
            assert result.stdout.isascii()
    finally:
        for path in folder.glob("new*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(params=["COMMITTED", "APPROVED", "REFUSED", "FAILED"])
def hostile_result(request: pytest.FixtureRequest) -> BuildResult:
    """A result all of whose texts are hostile."""
    codes = {MORE: 1}
    counts = SplitOutcome(rejected=codes, excluded=codes, corrections=codes, unannotated=1)
    return BuildResult(
        status=Status[request.param],
        splits={MORE: counts, "b": counts},
        sources={MORE: 3, "[red]b": 2},
        message=escape(MORE),
        warnings=(MORE,),
        notes=(MORE,),
        rejects=MORE,
        corrections=MORE,
        output=MORE,
        latest=MORE,
        reuse=Reuse(previous=MORE),
        num_classes=2,
        classes=(MORE, "a"),
    )


@pytest.mark.parametrize("columns", [40, 10_000])
def test_no_summary_prints_a_text_as_it_is(hostile_result: BuildResult, columns: int) -> None:
    check_text(render_text(hostile_result, layout=Layout(columns=columns, styled=False)))


def test_messages_of_several_lines_keep_names_in_their_lines(folder: Path) -> None:
    result = run("build", str(folder / "refused.yaml"), "--json")
    message = json.loads(result.stdout)["message"]
    check_text(message)
    assert "not_an_image" in message


def test_the_data_card_shows_texts_as_they_are(folder: Path) -> None:
    card = (folder / "out" / "README.md").read_text()
    assert all(each.isprintable() or each == "\n" for each in card)
    assert r"\\x1b\[2J" in card
    assert r"\\u202eabc" in card
    assert not re.search(r"^#* *FAKE: <|(?<!\\)<img(?![^`]*`)", card, re.MULTILINE)
    header = card.split("---\n")[1]
    assert yaml.safe_load(header)["license_name"] == " ".join(map(escape, MORE.split()))


def test_an_honest_description_stays(tmp_path: Path) -> None:
    config = {
        "name": "a",
        "description": "犬　と 猫\n\nL'été\u00a0!",
        "source": {"format": "image-folder", "images": str(tmp_path / "in")},
        "fractions": {"train": 1.0},
        "output": {"path": str(tmp_path / "out")},
    }
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "1.jpg").write_bytes(save(photograph(), "JPEG"))
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    assert run("build", str(tmp_path / "config.yaml")).exit_code == 0
    assert f"\n\n{config['description']}\n\n" in (tmp_path / "out" / "README.md").read_text()


def test_logs_and_tracebacks_show_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root(), configure_logging():
        logging.getLogger("shardbeam.x").warning("%s is odd", MORE)
        try:
            raise ValueError(MORE)
        except ValueError as error:
            logging.getLogger("mine").warning(MORE, exc_info=error)
            write_traceback(type(error), error, None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"WARNING shardbeam.x: {escape(MORE)} is odd"
    assert all(escape(line) == line for line in lines)
