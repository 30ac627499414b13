"""Classes that were renamed, and what only looks like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from shardbeam.readers.compare.changes import (
    ClassNames,
    find_class_changes,
    find_label_changes,
    list_renames,
)
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject

# One word for each object, at the place of the word; "-" is no object.
_Images = Sequence[str]


def picture(words: str, *, ids: Mapping[str, int], image_class: bool, caption: str = "") -> Picture:
    """A picture with objects of these classes, or with the first as its own class."""
    names = [] if image_class else words.split()
    objects = [
        PictureObject(label=name, label_id=ids[name], box=(0.1 * place, 0.0, 0.1 * place + 0.1, 1))
        for place, name in enumerate(names)
        if name != "-"
    ]
    of_image = tuple(words.split()) if image_class else ()
    return Picture(
        key="a",
        labels=of_image,
        label_ids=tuple(ids[name] for name in of_image),
        objects=tuple(objects),
        captions=(caption,),
        features={
            "image/object/class/text": [each.label.encode() for each in objects],
            "label": [each.label_id for each in objects],
            "image/class/text": [name.encode() for name in of_image],
        },
    )


def ids_of(images: _Images, *, first: int) -> dict[str, int]:
    found = dict.fromkeys(word for words in images for word in words.split() if word != "-")
    return {name: key for key, name in enumerate(found, first)}


@pytest.mark.parametrize("image_class", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (["cat dog", "cat"], ["tiger dog", "tiger"], ["cat tiger renamed"]),
        # One object is enough, and two classes may be renamed at once.
        (["cat", "dog"], ["tiger", "wolf"], ["cat tiger renamed", "dog wolf renamed"]),
        # Nothing says what two names have become.
        (["cat", "dog"], ["dog", "cat"], ["cat dog other", "dog cat other"]),
        (["cat", "dog"], ["pet", "pet"], ["cat pet merged", "dog pet merged"]),
        (["cat", "dog"], ["dog", "dog"], ["cat dog merged"]),
        (["cat", "cat", "cat"], ["lion", "tiger", "lion"], ["cat lion split", "cat tiger split"]),
        # A chain: the new "dog" is not the old one.
        (["cat", "dog"], ["dog", "wolf"], ["cat dog other", "dog wolf other"]),
        # A few labels were corrected, and as many as were renamed.
        (
            ["cat", "cat", "cat", "dog"],
            ["tiger", "tiger", "dog", "dog"],
            ["cat tiger renamed", "cat dog other"],
        ),
        (["cat", "cat", "dog"], ["tiger", "dog", "dog"], ["cat dog other", "cat tiger other"]),
        # A class that is still there, and one that was there before.
        (["cat", "cat"], ["tiger", "cat"], ["cat tiger other"]),
        (["cat", "tiger"], ["tiger", "tiger"], ["cat tiger merged"]),
    ],
)
def test_what_became_of_classes(
    old: _Images, new: _Images, found: list[str], image_class: bool
) -> None:
    names = ClassNames(ids_of(old, first=1), ids_of(new, first=1))
    changes = find_class_changes(
        [
            find_label_changes(
                picture(before, ids=names.old, image_class=image_class),
                picture(after, ids=names.new, image_class=image_class),
                names=names,
                default_keys={},
            )
            for before, after in zip(old, new, strict=True)
        ],
        names=names,
    )
    assert sorted(f"{each.old} {each.new} {each.kind}" for each in changes) == sorted(found)
    assert all(bool(each.objects) != image_class for each in changes)


@pytest.mark.parametrize(
    ("old", "new", "renamed"),
    [
        # Most objects of the class were removed, so the other class is another one.
        ("cat cat cat", "tiger - -", False),
        ("cat cat cat", "tiger tiger -", True),
        ("cat cat cat", "- - - tiger tiger tiger", False),
    ],
)
def test_objects_that_were_removed(old: str, new: str, renamed: bool) -> None:
    names = ClassNames({"cat": 1}, {"tiger": 1})
    what = find_label_changes(
        picture(old, ids=names.old, image_class=False),
        picture(new, ids=names.new, image_class=False),
        names=names,
        default_keys={},
    )
    assert what.other_labels
    assert bool(list_renames(find_class_changes([what], names=names))) == renamed


@pytest.mark.parametrize(
    ("after", "labels", "values"),
    [
        ({"words": "tiger dog"}, False, False),
        ({"words": "tiger dog", "caption": "A pet."}, True, False),
        ({"words": "tiger - dog"}, True, True),
        # The id of a class that was not renamed.
        ({"words": "tiger dog", "ids": {"tiger": 1, "dog": 5}}, False, True),
    ],
)
def test_what_is_not_explained_by_a_name(
    after: dict[str, object], labels: bool, values: bool
) -> None:
    names = ClassNames({"cat": 1, "dog": 2}, {"tiger": 3, "dog": 2})
    what = find_label_changes(
        picture("cat dog", ids=names.old, image_class=False),
        picture(**{"ids": names.new, "image_class": False, **after}),  # type: ignore[arg-type]
        names=names,
        default_keys={"label": "image/object/class/label"},
    )
    assert (what.other_labels, what.other_values) == (labels, values)
