"""`shardbeam show --findings --predictions`: the labels that a model disagrees with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shardbeam.pipelines.cli.logging import write_json, write_stdout
from shardbeam.pipelines.cli.reader_commands import ShowArguments
from shardbeam.pipelines.cli.tables import cell_text, make_table, render_table, stdout_layout
from shardbeam.transforms.core.text import escape

if TYPE_CHECKING:
    from shardbeam.readers.open.find_findings import FoundImage
    from shardbeam.readers.predictions.find_by_predictions import PredictedImage

_ONLY_AS_GOOD = (
    "These lists are only as good as the model, which must not have seen the pictures in training."
)

# Fields of an image that the lists of other findings have, or that only programs inside need.
_NOT_PRINTED = ("source", "place")


def show_predictions(arguments: ShowArguments, *, limit: int) -> None:
    """Prints the images whose labels a model disagrees with, the likeliest errors first.

    Args:
        arguments: The arguments of `show`.
        limit: How many of each kind are printed.

    Raises:
        InputError: The dataset or the predictions cannot be read.
    """
    # Imported here, as numpy and pyarrow take a while.
    from shardbeam.readers.open.find_findings import strongest_images
    from shardbeam.readers.open.stored_dataset import open_dataset
    from shardbeam.readers.predictions.find_by_predictions import find_by_predictions

    assert arguments.predictions is not None
    dataset = open_dataset(arguments.path)
    found, notes = find_by_predictions(dataset, uri=arguments.predictions, split=arguments.split)
    if isinstance(arguments.findings, str):
        found = [each for each in found if each.kind == arguments.findings]
    if arguments.all:
        print_keys(found)
        return
    if arguments.limit is not None or not arguments.json:
        found = strongest_images(iter(found), limit=limit)
    if arguments.json:
        rows = [
            {key: value for key, value in each.items() if key not in _NOT_PRINTED}
            for each in msgspec.to_builtins(found)
        ]
        write_json({"path": dataset.path, "findings": rows, "notes": notes})
        return
    lines = "".join(f"{escape(line)}\n" for line in (*notes, _ONLY_AS_GOOD))
    write_stdout("\n".join([*_render(found), lines]))


def print_keys(found: Iterable[FoundImage]) -> None:
    """Prints the keys of images, each once, as long as there is a reader."""
    for key in dict.fromkeys(each.key for each in found):
        if not write_stdout(f"{escape(key)}\n"):
            return


def _render(found: Iterable[PredictedImage]) -> Iterable[str]:
    """Renders a table for each kind, in the order of kinds."""
    from shardbeam.readers.predictions.find_by_predictions import PREDICTED_KINDS

    by_kind: dict[str, list[PredictedImage]] = {}
    for each in found:
        by_kind.setdefault(each.kind, []).append(each)
    for kind, title in PREDICTED_KINDS.items():
        if images := by_kind.get(kind):
            table = make_table(title, "split", "label", "prediction", numbers=["example", "margin"])
            for each in images:
                table.add_row(
                    cell_text(each.key),
                    cell_text(each.split),
                    cell_text(each.label or "(none)"),
                    cell_text(f"{each.predicted} {each.score:.2f}"),
                    f"{each.number:,}",
                    f"{each.margin:.2f}",
                )
            yield f"{kind}\n{render_table(table, layout=stdout_layout())}"
