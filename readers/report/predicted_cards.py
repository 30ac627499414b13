"""Draws the images whose labels a model disagrees with: the label, and what the model predicts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from shardbeam.readers.open.find_findings import strongest_images
from shardbeam.readers.open.images import Place
from shardbeam.readers.predictions.find_by_predictions import (
    BADLY_PLACED,
    MISSING_OBJECT,
    PREDICTED_KINDS,
    WRONG_CLASS,
    PredictedImage,
    Predictions,
)
from shardbeam.readers.report.cards import make_card
from shardbeam.readers.report.figure import BoxShape, shorten
from shardbeam.readers.report.shown_findings import Evidence, FindingShown
from shardbeam.readers.report.styles import LINES, Classes
from shardbeam.readers.report.thumbnails import fit_thumbnail
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject

# At most this many pictures of each kind are drawn, and more keys are listed.
DRAWN, _KEYS = 20, 1000
_SIDE = 480
_NAME_CHARACTERS = 24
# The label's line is solid, the prediction's dashed and twice as wide.
_SOLID = 0
_DASHED = next(n for n, line in enumerate(LINES) if line.width > 1 and line.dash)
_WHAT = {
    WRONG_CLASS: "The model is surer of another class than of the label's. Sorted by how much.",
    MISSING_OBJECT: "The model sees an object where no label is. Sorted by its score, less how "
    "much the nearest label overlaps it (IoU).",
    BADLY_PLACED: "The label and the model have the same class, and boxes that differ. Sorted by "
    "the model's score, less how much both overlap (IoU).",
}


class PredictionsShown(NamedTuple):
    """What the page shows of predictions.

    Attributes:
        kinds: For each kind the first pictures, with the label and the prediction in words, and the
            keys of more of them in lines.
        notes: What was compared, and what was left out.
        has_boxes: Whether a picture has a box of the model.
    """

    kinds: Sequence[FindingShown]
    notes: Sequence[str]
    has_boxes: bool


def choose_drawn(predictions: Predictions) -> list[PredictedImage]:
    """Chooses the pictures to draw: the first of each kind, each image once."""
    return strongest_images(iter(predictions.found), limit=DRAWN)


def draw_predictions(
    predictions: Predictions,
    drawn: Sequence[PredictedImage],
    *,
    read: Callable[[Place], Picture],
    classes: Classes,
    room: int,
) -> PredictionsShown:
    """Draws the first pictures of each kind.

    Args:
        predictions: All that was found.
        drawn: The pictures to draw.
        read: Reads a picture.
        classes: The dataset's classes.
        room: How many bytes the pictures may have together.

    Raises:
        InputError: An Example cannot be read.
    """
    share = room / max(1, len(drawn))
    kinds = [
        FindingShown(
            kind,
            "odd",
            title,
            advice=_WHAT[kind],
            pictures=[
                _draw(
                    each, read(each.place), name=f"m{place}-{number}", classes=classes, room=share
                )
                for number, each in enumerate(each for each in drawn if each.kind == kind)
            ],
            lines=list(_keys(predictions, kind)),
        )
        for place, (kind, title) in enumerate(PREDICTED_KINDS.items())
    ]
    return PredictionsShown(
        [each for each in kinds if each.pictures],
        predictions.notes,
        has_boxes=any(each.box is not None for each in drawn),
    )


def _keys(predictions: Predictions, kind: str) -> Iterator[str]:
    keys = dict.fromkeys(each.key for each in predictions.found if each.kind == kind)
    # A key with line ends names no image in a file of keys.
    return itertools.islice((key for key in keys if key.splitlines() == [key]), _KEYS)


def _draw(
    found: PredictedImage, picture: Picture, *, name: str, classes: Classes, room: float
) -> Evidence:
    objects = [*picture.objects]
    # Those in question come first, because only the first objects of an image are drawn.
    shown = [] if found.object is None else [objects.pop(found.object)]
    label = len(shown) - 1 if shown else None
    predicted = None
    if found.box is not None:
        predicted = len(shown)
        shown.append(_predicted_object(found, picture))
    picture = msgspec.structs.replace(picture, objects=(*shown, *objects))
    thumbnail = fit_thumbnail(picture, room=room, classes=classes, max_side=_SIDE)
    given, told = (shorten(each, _NAME_CHARACTERS) for each in (found.label, found.predicted))
    texts = {label: f"label: {given}", predicted: f"model: {told} {found.score:.0%}"}
    lines = {label: _SOLID, predicted: _DASHED}

    def restyle(box: BoxShape) -> BoxShape:
        return box._replace(
            text=texts.get(box.number, ""),
            style=box.style._replace(line=lines.get(box.number, _SOLID)),
        )

    figure = thumbnail.figure
    figure = figure._replace(boxes=tuple(map(restyle, figure.boxes)), poses=())
    card = make_card(picture, thumbnail._replace(figure=figure), classes=classes, name=name)
    words = f"label {found.label}" if found.label else "no label"
    iou = "" if found.iou is None else f", IoU {found.iou:.2f}"
    return Evidence(card, f"{words}; model {found.predicted} {found.score:.0%}{iou}")


def _predicted_object(found: PredictedImage, picture: Picture) -> PictureObject:
    assert found.box is not None
    left, top, width, height = found.box
    across, down = max(1, picture.width), max(1, picture.height)
    return PictureObject(
        label=found.predicted,
        box=(left / across, top / down, (left + width) / across, (top + height) / down),
        attributes={"predicted with": f"{found.score:.0%}"},
    )
