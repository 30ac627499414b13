"""Draws the pictures of the page one after another, and keeps none of them in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from shardbeam.readers.open.images import Place, PlacedExamples
from shardbeam.readers.open.stored_dataset import StoredSplit
from shardbeam.readers.report.cards import Card, Twin, make_card, make_notes
from shardbeam.readers.report.charts import Bars
from shardbeam.readers.report.duplicate_cards import FoundTwin, Group
from shardbeam.readers.report.page import render_card, render_drawing
from shardbeam.readers.report.sampled_images import Candidate
from shardbeam.readers.report.styles import Classes
from shardbeam.readers.report.thumbnails import MOST_OBJECTS, fit_thumbnail
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.dataset.example_findings import Finding
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.shards.count import count_example

# If the caller gives no number of pictures, each has room for at least this many bytes; those with
# findings are larger.
_PICTURE_BYTES, _FINDING_BYTES = 20_000, 40_000
# The longer side of a twin that is shown nowhere else, and the most bytes of it.
_TWIN_SIDE, _TWIN_BYTES = 240, 12_000
# Pictures of duplicates are smaller: they are compared, and there are up to 160.
_PAIR_SIDE = 480


class Gallery(NamedTuple):
    """What the pictures of a page have in common.

    Attributes:
        splits: `{name: split}`, in the order of the dataset.
        examples: Reads the Examples that are shown.
        feature_map: How the Examples are to be read.
        classes: The dataset's classes.
        bars: The bars of the page's charts.
        ignored: Kinds of findings that the dataset's config ignores.
        twins: `{(split, number): the image that shows what is wrong with it}`.
    """

    splits: Mapping[str, StoredSplit]
    examples: PlacedExamples
    feature_map: FeatureMap
    classes: Classes
    bars: Bars
    ignored: Collection[str] = ()
    twins: Mapping[tuple[str, int], FoundTwin] = {}

    def draw(
        self,
        chosen: Sequence[Candidate],
        *,
        room: int,
        is_number_given: bool,
        groups: Sequence[Group] = (),
    ) -> list[Card]:
        """Draws pictures until there is no more room.

        Args:
            chosen: The pictures, the most telling first.
            room: How many bytes their cards may have together.
            is_number_given: Whether the number of pictures matters more than their size.
            groups: The groups of duplicates on the page, whose pictures twins are not drawn again.

        Returns:
            The cards that there is room for, in the same order.

        Raises:
            InputError: An Example cannot be read.
        """
        shown: list[Card] = []
        drawn = {card.place: card for group in groups for card in group.cards}
        for number, candidate in enumerate(chosen):
            # There may be no room at all, if the rest of the page is too long already.
            share = max(0.0, room / (len(chosen) - number))
            if not is_number_given:
                share = max(share, _FINDING_BYTES if candidate.kinds else _PICTURE_BYTES)
            card = self._draw(candidate, room=share, name=f"c{number}")
            html = render_card(card)
            twin = self._draw_twin(self.twins.get(card.place), drawn=drawn, name=f"t{number}")
            counters.pictures.add()
            room -= len(html.encode()) + (len(twin.card.html.encode()) if twin else 0)
            if room < 0:
                break
            drawn[card.place] = _without_texts(card, html=html)
            shown.append(drawn[card.place]._replace(twin=twin))
        return shown

    def _draw_twin(
        self, twin: FoundTwin | None, *, drawn: Mapping[tuple[str, int], Card], name: str
    ) -> Twin | None:
        """Draws the twin of an image small, unless it is on the page already."""
        if twin is None:
            return None
        card = drawn.get(twin.place[:2])
        if card is not None:
            return Twin(twin.words, card._replace(html=Markup()))
        card = self._draw_small(twin.place, room=_TWIN_BYTES, name=name, side=_TWIN_SIDE)
        return Twin(twin.words, _without_texts(card, html=render_drawing(card)))

    def _draw(self, candidate: Candidate, *, room: float, name: str) -> Card:
        split = self.splits[candidate.place.split]
        stored = self.examples.read(candidate.place)
        statistics, findings = count_example(
            stored.example, num_bytes=stored.place.length, feature_map=self.feature_map
        )
        picture, odd = _odd_objects_first(
            stored.picture(split, feature_map=self.feature_map),
            [each for each in findings if each.kind not in self.ignored],
        )
        of_index = [each for each in candidate.kinds if each[0] not in self.ignored]
        return make_card(
            picture,
            fit_thumbnail(picture, room=room, classes=self.classes),
            classes=self.classes,
            name=name,
            split=list(self.splits).index(split.name),
            notes=make_notes(odd, of_index),
            bars=self.bars.of_picture(statistics, candidate.classes),
            found=candidate.classes,
        )

    def draw_groups(self, groups: Sequence[Group], *, room: int) -> Iterator[Group]:
        """Draws groups of duplicates.

        Args:
            groups: The groups.
            room: How many bytes their pictures may have together.

        Raises:
            InputError: An Example cannot be read.
        """
        share = room / max(1, sum(len(group.places) for group in groups))
        for group in groups:
            cards = [
                self._draw_small(place, room=share, name=f"d{group.number}-{number}")
                for number, place in enumerate(group.places)
            ]
            yield group._replace(cards=cards)

    def read_picture(self, place: Place) -> Picture:
        """Reads an image without its masks and maps.

        Raises:
            InputError: The Example cannot be read.
        """
        stored = self.examples.read(place)
        picture = stored.picture(self.splits[place.split], feature_map=self.feature_map)
        objects = tuple(msgspec.structs.replace(item, mask=b"") for item in picture.objects)
        return msgspec.structs.replace(picture, objects=objects, class_map=b"", instance_map=b"")

    def _draw_small(self, place: Place, *, room: float, name: str, side: int = _PAIR_SIDE) -> Card:
        picture = self.read_picture(place)
        return make_card(
            picture,
            fit_thumbnail(picture, room=room, classes=self.classes, max_side=side),
            classes=self.classes,
            name=name,
        )


def _without_texts(card: Card, *, html: Markup) -> Card:
    """Returns a card without what only its own HTML shows, because all cards stay in memory."""
    figure = card.figure._replace(poses=())
    thumbnail = card.thumbnail._replace(uri="", overlays=(), figure=figure)
    return card._replace(thumbnail=thumbnail, tags=(), rows=(), features=(), html=html)


def _odd_objects_first(
    picture: Picture, findings: Sequence[Finding]
) -> tuple[Picture, Sequence[Finding]]:
    """Moves the objects that findings name to the front, if they would not be drawn otherwise.

    Returns:
        The picture, and the findings with the new numbers of its objects.
    """
    odd = dict.fromkeys(number for each in findings for number in each.objects)
    count = len(picture.objects)
    if not odd or max(odd) < MOST_OBJECTS or max(odd) >= count:
        return picture, findings
    order = [*odd, *(number for number in range(count) if number not in odd)]
    places = {number: place for place, number in enumerate(order)}
    return (
        msgspec.structs.replace(picture, objects=tuple(picture.objects[each] for each in order)),
        [
            each._replace(objects=tuple(places[number] for number in each.objects))
            for each in findings
        ],
    )
