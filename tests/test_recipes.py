"""Each recipe of CONTRIBUTING is applied to a copy of the project, which builds a dataset."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import PROJECT_ROOT
from tests.support.archive_files import write_files
from tests.support.image_makers import plain_jpeg

FOLDERS = ("configs", "pipelines", "readers", "shardbeam", "transforms")
COCO = {
    "images": [{"id": 1, "file_name": "cat/1.jpg", "date_captured": "2013-11-14 11:18:45"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}],
    "categories": [{"id": 1, "name": "cat"}],
}
INPUT: dict[str, bytes | str] = {
    "images/cat/1.jpg": plain_jpeg(),
    "images/dog/2.jpg": plain_jpeg((40, 30)),
    "coco.json": json.dumps(COCO),
}
NAMED = ("NAME", "SCHEME")

FORMAT = '''
from typing import Annotated

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.records import ImageAnnotations
from shardbeam.transforms.formats.base import Format, Kind


class Initials(Format, frozen=True, kw_only=True):
    """The class is the first letter of the name."""

    SUMMARY = "the first letter of the name"
    kinds = frozenset({Kind.CLASSIFICATION})

    images: Annotated[Location, named("folder of the images", metavar="DIR")]

    def annotate_listed(self, key: str) -> ImageAnnotations:
        return ImageAnnotations(image_id=key, labels=(key[0],))
'''

SCHEME = '''
import msgspec

from shardbeam.transforms.storage.local import LocalStorage


class DemoStorage(LocalStorage):
    """Files of this machine under `demo://`."""

    def list(self, root):
        for file in super().list(root.removeprefix("demo://")):
            yield msgspec.structs.replace(file, uri=f"demo://{file.uri}")

    def stat(self, uri):
        return super().stat(uri.removeprefix("demo://"))

    def read(self, uri, **options):
        return super().read(uri.removeprefix("demo://"), **options)


STORAGE = DemoStorage
'''

COMMAND = """
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.readers.open.stored_dataset import open_dataset


def run_names(arguments):
    for split in open_dataset(arguments.path).splits:
        write_stdout(f"{split.name} has {len(split.shards)} shard\\n")
"""

ARGUMENTS = '''class NamesArguments(DatasetArguments, frozen=True, kw_only=True):
    """`names`."""

    RUN = "commands.names:run_names"
    USAGE = "shardbeam names PATH"
    HELP = "Prints the names of a dataset's splits."


class TopArguments('''

CONTAINER = '''
import contextlib

from shardbeam.transforms.containers.base import Container
from shardbeam.transforms.storage.find import storage_for


class HexLines(Container):
    """A record a line, in hexadecimal digits."""

    suffix = ".hex"
    tfds_name = "hex"

    @contextlib.contextmanager
    def writer(self, file, *, schema):
        def write(example):
            offset = file.size_bytes
            file.write(example.data.hex().encode(), b"\\n")
            return offset

        yield write

    def read(self, file, *, start=0, see=None):
        offset = start
        for line in storage_for(file.uri).read(file.uri, offset=start).splitlines():
            yield offset, bytes.fromhex(line.decode())
            offset += len(line) + 1

    def describe_place(self, place):
        return f"byte {place}"


CONTAINER = HexLines()
'''


class Recipe(NamedTuple):
    """The additions and changes of a recipe, and the expected result.

    Attributes:
        title: Its row in CONTRIBUTING.
        name: What is added; stands where the row says NAME or SCHEME.
        added: Content of new files.
        changed: `{file: {text: what replaces it}}`.
        words: The build's command line; `{in}` stands for the folder of the input.
        shown: What the command must print of the dataset, as a regular expression.
        shards: Names of the shards.
        command: The command that shows the dataset.
    """

    title: str
    name: str
    added: Mapping[str, str]
    changed: Mapping[str, Mapping[str, str]]
    words: str
    shown: str
    shards: str = "images-train.tfrecord-00000-of-00001"
    command: str = "show"


RECIPES = (
    Recipe(
        "a format",
        "initials",
        {"transforms/formats/initials.py": FORMAT},
        {
            "transforms/formats/base.py": {
                '    "coco":': '    "initials": "shardbeam.transforms.formats.initials:Initials",\n'
                '    "coco":'
            }
        },
        "initials --images {in}/images",
        "'c'",
    ),
    Recipe(
        "an Example key",
        "",
        {},
        {
            "transforms/examples/encode/image_features.py": {
                '("image/height", FeatureKind.INT64),': '("image/height", FeatureKind.INT64),\n'
                '            one_value("image/pixels", FeatureKind.INT64),',
                '"image/width": [image.width],': '"image/width": [image.width],\n'
                '        "image/pixels": [image.width * image.height],',
            },
        },
        "image-folder --images {in}/images",
        r"image/pixels.*\b1200\b",
    ),
    Recipe(
        "a field of COCO's images as an Example key",
        "",
        {},
        {
            "transforms/formats/coco/coco_file.py": {
                "    file_name: str\n": '    file_name: str\n    date_captured: str = ""\n'
            },
            "transforms/formats/coco/annotations.py": {
                "stuff=tuple(self.stuff),": "stuff=tuple(self.stuff),\n"
                '            values={"image/date_captured": (image.date_captured,)},',
            },
            "transforms/formats/coco/coco.py": {
                "    def resolve(self) -> CocoFormat:": "    def extra_features(self):\n"
                '        spec = one_value("image/date_captured", FeatureKind.BYTES)\n'
                "        return [ExtraFeature(spec)]\n\n"
                "    def resolve(self) -> CocoFormat:",
                "\nfrom shardbeam.transforms.formats.base import": "\n"
                "from shardbeam.transforms.examples.features import (\n"
                "    ExtraFeature,\n    FeatureKind,\n    one_value,\n)\n"
                "from shardbeam.transforms.formats.base import",
            },
        },
        "coco --images {in}/images --annotations {in}/coco.json",
        "2013-11-14 11:18:45",
    ),
    Recipe(
        "a storage scheme",
        "demo",
        {"transforms/storage/demo.py": SCHEME},
        {},
        "image-folder --images demo://{in}/images",
        "'cat'",
    ),
    Recipe(
        "a container",
        "hex_lines",
        {"transforms/containers/hex_lines.py": CONTAINER},
        {},
        "image-folder --images {in}/images --set output.container=hex_lines",
        "'cat'",
        "images-train.hex-00000-of-00001",
    ),
    Recipe(
        "a statistic",
        "",
        {},
        {
            "transforms/dataset/collectors/statistics.py": {
                '    "widths": _SIDES,': '    "widths": _SIDES,\n    "sides": _SIDES,',
                "    widths: ByName = {}": "    widths: ByName = {}\n    sides: ByName = {}",
                "formats: Counter[str] = Counter()": "formats: Counter[str] = Counter()\n"
                "        sides: Counter[int] = Counter()",
                "widths[width] += count": "widths[width] += count\n"
                "            sides[max(width, height)] += count",
                'widths=_histogram("widths", widths),': 'widths=_histogram("widths", widths),\n'
                '            sides=_histogram("sides", sides),',
            },
            "readers/report/histograms.py": {
                '"Images by width in px"),': '"Images by width in px"),\n'
                '    Histogram("sides", "longer side in px", "Images by longer side in px"),'
            },
        },
        "image-folder --images {in}/images",
        "longer side in px",
        command="stats",
    ),
    Recipe(
        "a statistic of pixels",
        "",
        {},
        {
            "transforms/images/measures.py": {
                "\ndef _darkness(": "\ndef _mean(image: GrayImage) -> int:\n"
                "    return int(image.pixels.mean())\n\n\ndef _darkness(",
                "    Measure(LOW_CONTRAST, 1, _flatness),": ""
                "    Measure(LOW_CONTRAST, 1, _flatness),\n"
                '    Measure("brightness", 1, _mean, column="uint8"),',
            },
            "transforms/dataset/collectors/statistics.py": {
                '    "widths": _SIDES,': '    "widths": _SIDES,\n    "brightness": (0, 64, 128),',
                "    widths: ByName = {}": "    widths: ByName = {}\n    brightness: ByName = {}",
                "        self._labels = 0": "        self._labels = 0\n"
                "        self._brightness: Counter[int] = Counter()",
                "        names = object_names(values)": "        names = object_names(values)\n"
                '        if "brightness" in item.known:\n'
                '            self._brightness[item.known["brightness"]] += 1',
                'widths=_histogram("widths", widths),': 'widths=_histogram("widths", widths),\n'
                '            brightness=_histogram("brightness", self._brightness),',
            },
            "readers/report/histograms.py": {
                '"Images by width in px"),': '"Images by width in px"),\n'
                '    Histogram("brightness", "mean brightness", "Images by mean brightness"),'
            },
        },
        "image-folder --images {in}/images",
        "mean brightness",
        command="stats",
    ),
    Recipe(
        "a command",
        "names",
        {"pipelines/commands/names.py": COMMAND},
        {
            "pipelines/cli/commands.py": {
                "class TopArguments(": ARGUMENTS,
                '    "sample": SampleArguments,': '    "sample": SampleArguments,\n'
                '    "names": NamesArguments,',
                "  sample    draw": "  names     print the names of the splits\n  sample    draw",
            }
        },
        "image-folder --images {in}/images",
        "train has 1 shard",
        command="names",
    ),
    Recipe(
        "the names of shards",
        "",
        {},
        {"transforms/dataset/shard_names.py": {'"-SSSSS-of-NNNNN"': '"_SSSSS_of_NNNNN"'}},
        "image-folder --images {in}/images",
        "'cat'",
        "images-train.tfrecord_00000_of_00001",
    ),
)


def _rows() -> dict[str, list[set[str]]]:
    """The table of CONTRIBUTING: `{title: the files that are written, those that change}`."""
    text = (PROJECT_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Recipes\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|(.*?)\|(.*?)\|$", section, re.MULTILINE)
    return {
        title: [set(re.findall(r"`(\S+)`", cell)) for cell in cells]
        for title, *cells in rows
        if title != "to add or change"
    }


# One process for two commands: most of their time is that of the imports.
COMMANDS = """
import json, sys
from shardbeam.pipelines.cli.main import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
"""


def _shardbeam(project: Path, *lines: list[str]) -> str:
    result = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(lines)],
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_recipe_is_tried() -> None:
    assert [recipe.title for recipe in RECIPES] == list(_rows())


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(each, marks=pytest.mark.slow if number else (), id=each.title)
        for number, each in enumerate(RECIPES)
    ],
)
def test_recipe(recipe: Recipe, tmp_path: Path) -> None:
    written, changed = _rows()[recipe.title]
    assert {re.sub("|".join(NAMED), recipe.name, file) for file in written} == set(recipe.added)
    assert changed == set(recipe.changed)
    project = tmp_path / "project"
    for folder in FOLDERS:
        # Files that another process writes at the moment.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(PROJECT_ROOT / folder, project / folder, symlinks=True, ignore=ignored)
    write_files(project, recipe.added)
    for path, replaced in recipe.changed.items():
        text = (project / path).read_text(encoding="utf-8")
        for old, new in replaced.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (project / path).write_text(text, encoding="utf-8")
    given = write_files(tmp_path / "in", INPUT)
    output = tmp_path / "out"

    words = recipe.words.replace("{in}", str(given)).split()
    build = ["build", *words, "--set", "name=images", "--output", str(output)]
    shown = _shardbeam(project, build, [recipe.command, str(output)])

    assert [path.name for path in output.glob("images-*")] == [recipe.shards]
    assert re.search(recipe.shown, shown)
