from __future__ import annotations

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.census import Census, SourceCensus
from shardbeam.transforms.dataset.check_join import check_join
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.sources import Source

SOURCE = Source("train", ImageFolderFormat(images="/data/images"))


@pytest.mark.parametrize(
    ("listed", "referenced", "mend"),
    [
        ("train2017/1.jpg", "1.jpg", "move the root down: add /train2017 to `images`"),
        ("1.jpg", "train2017/1.jpg", "move the root up: take /train2017 from `images`"),
        ("train2017/1.jpg", "2.jpg", "move the root down: try `images` with /train2017 added"),
        ("1.jpg", "train2017/2.jpg", "move the root up: try the folder that holds train2017/"),
        ("a/1.jpg", "a\\1.jpg", "replace the backslashes"),
        ("a.jpg", "b.jpg", "check that `images` and `annotations` belong together"),
    ],
)
def test_a_join_without_a_match_stops_with_a_mend(listed: str, referenced: str, mend: str) -> None:
    seen = SourceCensus(referenced=5, listed_key=listed, referenced_key=referenced)
    with pytest.raises(InputError) as caught:
        check_join(Census(sources={"train": seen}), sources=[SOURCE])
    message = str(caught.value)
    assert message.startswith("/data/images: none of the 5 annotated images is listed here: ")
    assert repr(listed) in message
    assert repr(referenced) in message
    assert mend in message


@pytest.mark.parametrize(
    "seen", [SourceCensus(referenced=5, matched=1), SourceCensus(listed_key="a.jpg")]
)
def test_a_join_with_a_match_or_without_annotations_goes_on(seen: SourceCensus) -> None:
    census = Census(sources={"train": seen})
    assert check_join(census, sources=[SOURCE]) is census
