"""Whatever frame annotations are given in, what is written lies on the pixels it was drawn on.

The oracle is a picture of numbered cells: Pillow turns it, NumPy enlarges it, and what is annotated
in any frame is read off its pixels there.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from pycocotools import mask as coco_mask

from shardbeam.configs.schema import ImageConfig, ResizeConfig
from shardbeam.transforms.core.labels import LabelSettings, build_label_map
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    MaskRole,
    ObjectAnnotation,
    Segment,
)
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.convert import Placement, place
from tests.support.example_builders import (
    AnnotatedAs,
    Rendered,
    make_image,
    read_picture,
    render,
    size_of,
    upright,
    write_png,
)

Pixels = npt.NDArray[np.uint8]
Fit: TypeAlias = Literal["pad", "crop", "stretch"]

# As stored: two rectangles, without symmetries.
OBLONG = np.array(
    [
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0, 2],
        [0, 0, 0, 0, 0, 2],
        [0, 0, 0, 0, 0, 2],
    ],
    np.uint8,
)
SQUARE = np.pad(OBLONG, ((0, 2), (0, 0)))
OBJECTS = (1, 2)
CATEGORIES = (Category("cat", 1, keypoints=("nose",)), Category("dog", 2, keypoints=("nose",)))
LABEL_MAP = build_label_map(categories=CATEGORIES, settings=LabelSettings(), objects=True)
# Pixels that a cell has in the image's file.
CELL = 4
# (pixels of a cell in the annotated picture, in the written one, which a resize changes, and how)
CELLS: tuple[tuple[int, int, Fit], ...] = (
    (CELL, CELL, "stretch"),
    (1, CELL, "stretch"),
    (3, CELL, "pad"),
    (8, CELL, "stretch"),
    (CELL, 2, "stretch"),
    (8, 2, "crop"),
    (CELL, 8, "pad"),
    (CELL, CELL, "crop"),
    (1, 2, "pad"),
    (8, 2, "stretch"),
)
# The value of padding in written pictures.
PADDING = 99


class Frame(NamedTuple):
    """The units of annotations.

    Attributes:
        cells: The picture as it is stored.
        orientation: The image's EXIF orientation.
        apply: Whether the pixels are written upright.
        annotated_upright: Whether the upright picture is annotated, or the stored pixels.
        annotated_as: What the config says about that.
        cell: Pixels of a cell in the annotated picture.
        written_cell: Pixels of a cell in the written picture.
        fit: How the written picture got its size. `pad` adds a column of cells at the left and at
            the right, `crop` cuts off the first and the last row of cells.
    """

    cells: Pixels
    orientation: int
    apply: bool
    annotated_upright: bool
    annotated_as: AnnotatedAs
    cell: int
    written_cell: int
    fit: Fit

    @property
    def sides_tell(self) -> bool:
        """Whether the stored and the upright picture have different sizes."""
        height, width = self.cells.shape
        return self.orientation >= 5 and width != height

    def picture(self, *, is_upright: bool, cell: int) -> Pixels:
        picture = np.kron(self.cells, np.ones((cell, cell), np.uint8))
        return upright(picture, self.orientation) if is_upright else picture

    @property
    def annotated(self) -> Pixels:
        return self.picture(is_upright=self.annotated_upright, cell=self.cell)

    @property
    def whole(self) -> Pixels:
        """The written picture before it is padded or cropped."""
        return self.picture(is_upright=self.apply, cell=self.written_cell)

    @property
    def written(self) -> Pixels:
        cell = self.written_cell
        if self.fit == "pad":
            return np.pad(self.whole, ((0, 0), (cell, cell)), constant_values=PADDING)
        return self.whole[cell:-cell] if self.fit == "crop" else self.whole

    @property
    def objects(self) -> list[int]:
        """The numbers of the objects of which something is written."""
        return [number for number in OBJECTS if np.any(self.written == number)]

    @property
    def cut_objects(self) -> list[int]:
        """The numbers of the objects of which a part is written."""
        whole, written = self.whole, self.written
        return [
            number for number in self.objects if np.sum(written == number) < np.sum(whole == number)
        ]

    @property
    def placement(self) -> Placement | None:
        if self.fit == "stretch":
            return None
        width, height = size_of(self.written)
        resize = ResizeConfig(width=width, height=height, fit=self.fit)
        picture = self.picture(is_upright=self.apply, cell=CELL)
        return place(size_of(picture), settings=ImageConfig(resize=resize))

    def render(
        self,
        kind: Kind,
        *,
        masks: dict[MaskRole, Pixels] | None = None,
        **annotations: Any,  # noqa: ANN401  # Those of ImageAnnotations.
    ) -> Rendered:
        """Encodes the image, whose annotated size is that of the annotated picture."""
        width, height = size_of(self.annotated)
        settings = {"width": width, "height": height} | annotations
        rendered = render(
            ImageAnnotations("1", masks=dict.fromkeys(masks or {}), **settings),  # type: ignore[arg-type]
            label_map=LABEL_MAP,
            kinds={Kind.DETECTION, kind},
            annotated_as=self.annotated_as,
            image=make_image(
                size=size_of(self.written),
                file_size=size_of(self.picture(is_upright=False, cell=CELL)),
                orientation=self.orientation,
                upright=self.apply or self.orientation == 1,
                placement=self.placement,
            ),
            masks={role: write_png(mask) for role, mask in (masks or {}).items()},
        )
        is_scaled = self.cell != CELL and settings["width"] > 0
        left_out = len(OBJECTS) - len(self.objects)
        expected = {
            Correction.ANNOTATED_SIZE_SCALED: is_scaled,
            Correction.OBJECT_OUTSIDE_CROP_DROPPED: left_out * ("objects" in annotations),
            Correction.BOX_CUT_BY_CROP: len(self.cut_objects) * ("objects" in annotations),
            Correction.SEGMENT_OUTSIDE_CROP_DROPPED: left_out * ("segments" in annotations),
        }
        assert rendered.corrections == {
            correction.value: count for correction, count in expected.items() if count
        }
        return rendered


def frames(
    *,
    orientation: int,
    apply: bool,
    annotated_upright: bool,
    sizes: Sequence[tuple[int, int, Fit]] = CELLS,
) -> list[Frame]:
    """Makes the frames whose annotations the annotated size or the config tells."""
    found = []
    for cells, (cell, written_cell, fit) in itertools.product((OBLONG, SQUARE), sizes):
        said = Frame(
            cells=cells,
            orientation=orientation,
            apply=apply,
            annotated_upright=annotated_upright,
            annotated_as="upright" if annotated_upright else "stored",
            cell=cell,
            written_cell=written_cell,
            fit=fit,
        )
        found.append(said)
        if annotated_upright or said.sides_tell:
            found.append(said._replace(annotated_as="auto"))
    return found


TURNS = list(itertools.product(range(1, 9), (True, False), (True, False)))
# Each turn in one size of the cells, each size in four turns or more. The slow ones try each turn
# in each size.
in_all_frames = pytest.mark.parametrize(
    "frames",
    [
        pytest.param(
            frames(
                orientation=orientation,
                apply=apply,
                annotated_upright=annotated_upright,
                sizes=CELLS if all_sizes else [CELLS[number * 5 // 4 % len(CELLS)]],
            ),
            id=f"{orientation}-{'apply' if apply else 'keep'}-"
            f"{'upright' if annotated_upright else 'stored'}{'-all sizes' if all_sizes else ''}",
            marks=pytest.mark.slow if all_sizes else (),
        )
        for all_sizes in (False, True)
        for number, (orientation, apply, annotated_upright) in enumerate(TURNS)
    ],
)


def bounds(pixels: npt.NDArray[np.bool_]) -> tuple[float, float, float, float]:
    rows, columns = np.nonzero(pixels)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def polygon_of(box: tuple[float, float, float, float]) -> str:
    xmin, ymin, xmax, ymax = map(float, box)
    return json.dumps([[xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]])


def runs_of(pixels: npt.NDArray[np.bool_]) -> str:
    runs = coco_mask.encode(np.asfortranarray(pixels.astype(np.uint8)))
    return json.dumps({"counts": runs["counts"].decode(), "size": list(pixels.shape)})


def object_of(picture: Pixels, number: int, *, runs: bool) -> ObjectAnnotation:
    """Annotates an object of a picture with all there is: its first pixel is a keypoint."""
    pixels = picture == number
    box = bounds(pixels)
    row, column = np.argwhere(picture == number)[0]
    return ObjectAnnotation(
        label=CATEGORIES[number - 1].name,
        bbox=box,
        area=float(pixels.sum()),
        segmentation=(runs_of(pixels) if runs else polygon_of(box)).encode(),
        keypoints=(column + 0.5, row + 0.5, 2.0),
    )


@in_all_frames
def test_boxes_areas_polygons_and_runs(frames: list[Frame]) -> None:
    for frame in frames:
        for runs in (False, True):
            objects = tuple(object_of(frame.annotated, number, runs=runs) for number in OBJECTS)
            rendered = frame.render(Kind.INSTANCE_MASKS, objects=objects)
            check_objects(rendered, frame=frame)
            masks = rendered.pictures("image/object/mask")
            for mask, number in zip(masks, frame.objects, strict=True):
                np.testing.assert_array_equal(mask, frame.written == number)


def check_objects(rendered: Rendered, *, frame: Frame) -> None:
    values, written = rendered.values, frame.written
    for position, number in enumerate(frame.objects):
        found = [
            values[f"image/object/bbox/{side}"][position]
            for side in ("xmin", "ymin", "xmax", "ymax")
        ]
        np.testing.assert_allclose(
            np.array(found) * (size_of(written) * 2), bounds(written == number)
        )
        assert values["image/object/area"][position] == pytest.approx(np.sum(written == number))


@in_all_frames
def test_keypoints(frames: list[Frame]) -> None:
    for frame in frames:
        # Each object has one keypoint: a pixel of its first cell, in whatever frame.
        marked = frame.cells.copy()
        for number in OBJECTS:
            row, column = np.argwhere(marked == number)[0]
            marked[row, column] = 10 + number
        cells = frame._replace(cells=marked)
        objects = []
        for number in OBJECTS:
            xmin, ymin, xmax, ymax = bounds(cells.annotated == 10 + number)
            item = object_of(frame.annotated, number, runs=False)
            middle = ((xmin + xmax) / 2, (ymin + ymax) / 2, 2.0)
            objects.append(
                ObjectAnnotation(label=item.label, bbox=item.bbox, area=item.area, keypoints=middle)
            )
        rendered = frame.render(Kind.KEYPOINTS, objects=tuple(objects))
        check_objects(rendered, frame=frame)
        height, width = frame.written.shape
        right = frame.written_cell * (frame.fit == "pad")
        up = frame.written_cell * (frame.fit == "crop")
        for position, number in enumerate(frame.objects):
            xmin, ymin, xmax, ymax = bounds(cells.whole == 10 + number)
            expected = (xmin + xmax) / 2 + right, (ymin + ymax) / 2 - up
            x, y = (rendered.values[f"image/object/keypoint/{axis}"][position] for axis in "xy")
            assert (x * width, y * height) == pytest.approx(expected, abs=1e-4)


@in_all_frames
def test_regions(frames: list[Frame]) -> None:
    for frame in frames:
        for runs in (False, True):
            stuff = tuple(object_of(frame.annotated, number, runs=runs) for number in OBJECTS)
            rendered = frame.render(Kind.SEMANTIC, stuff=stuff)
            (found,) = rendered.pictures("image/segmentation/class/encoded")
            np.testing.assert_array_equal(found, void(frame, 0, PADDING, value=255))


def void(frame: Frame, *values: int, value: int) -> Pixels:
    """Returns the written picture with another value for some of its values."""
    return np.where(np.isin(frame.written, values), value, frame.written).astype(np.uint8)


def masks_of(frame: Frame) -> list[tuple[Pixels, bool]]:
    """Makes the mask files that there may be beside boxes, and whether their size is annotated.

    One of the image's own sizes says by itself which frame it is in: of the other than the boxes,
    too, where the sizes differ.
    """
    masks = [(frame.annotated, True), (frame.annotated, False)]
    if frame.cell != CELL:
        masks.pop()
    for is_upright in (True, False):
        if frame.sides_tell or is_upright == frame.annotated_upright:
            picture = frame.picture(is_upright=is_upright, cell=CELL)
            masks += [(picture, True), (picture, False)]
    return masks


def annotated_size(frame: Frame, *, known: bool) -> dict[str, int]:
    return {} if known else {"width": 0, "height": 0}


@in_all_frames
def test_mask_files_of_classes(frames: list[Frame]) -> None:
    for frame in frames:
        for (mask, known), role in itertools.product(
            masks_of(frame), (MaskRole.SEMANTIC, MaskRole.VOC_CLASS)
        ):
            rendered = frame.render(
                Kind.SEMANTIC, masks={role: mask}, **annotated_size(frame, known=known)
            )
            (found,) = rendered.pictures("image/segmentation/class/encoded")
            np.testing.assert_array_equal(found, void(frame, PADDING, value=255))


@in_all_frames
def test_mask_files_of_objects(frames: list[Frame]) -> None:
    for frame in frames:
        objects = []
        for number in OBJECTS:
            item = object_of(frame.annotated, number, runs=False)
            objects.append(ObjectAnnotation(item.label, item.bbox, item.area))
        for mask, known in masks_of(frame):
            if known:
                rendered = frame.render(
                    Kind.INSTANCE_MASKS, objects=tuple(objects), masks={MaskRole.VOC_OBJECT: mask}
                )
                check_objects(rendered, frame=frame)
                for found, number in zip(
                    rendered.pictures("image/object/mask"), frame.objects, strict=True
                ):
                    np.testing.assert_array_equal(found, frame.written == number)


@in_all_frames
def test_mask_files_of_segments(frames: list[Frame]) -> None:
    for frame in frames:
        segments = tuple(Segment(number, CATEGORIES[number - 1].name) for number in OBJECTS)
        for mask, known in masks_of(frame):
            ids = np.stack([mask, np.zeros_like(mask), np.zeros_like(mask)], axis=-1)
            rendered = frame.render(
                Kind.PANOPTIC,
                masks={MaskRole.PANOPTIC: ids},
                segments=segments,
                **annotated_size(frame, known=known),
            )
            found = read_picture(rendered.values["image/panoptic/category_mask"][0])
            np.testing.assert_array_equal(found, void(frame, PADDING, value=0))
            assert rendered.values["image/panoptic/segment_id"] == frame.objects
