"""How Examples are to be read: renamed keys, names of classes, skeletons."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import Skeletons
from shardbeam.transforms.examples.features import CATEGORY_MAP, ExtraFeature


class FeatureMap(msgspec.Struct, frozen=True, kw_only=True):
    """How Examples are to be read.

    Attributes:
        keys: `{default key: key as written}` where the two differ; empty for a dropped key.
        class_names: `{id: name}`, if the dataset says so.
        numbered_maps: Whether values of maps are plain numbers instead of class ids.
        skeletons: `{class name: pairs of indexes into the keypoints as written}`.
        constants: The keys whose values are the same in every Example, by the config.
        is_ours: Whether this comes from a manifest; otherwise the usual keys are assumed.
    """

    keys: Mapping[str, str] = {}
    class_names: Mapping[int, str] = {}
    skeletons: Skeletons = {}
    constants: Collection[str] = frozenset()
    is_ours: bool = False
    numbered_maps: bool = False

    @classmethod
    def of_manifest(
        cls,
        *,
        config: Mapping[str, Any],
        labels: Mapping[str, int],
        skeletons: Skeletons,
        numbered_maps: bool,
    ) -> FeatureMap:
        """Makes the feature map of a dataset from the fields of its manifest with these names."""
        keys = _written_keys(config)
        return cls(
            keys=keys,
            class_names={label_id: name for name, label_id in labels.items()},
            skeletons=skeletons,
            constants=_constant_keys(config),
            is_ours=True,
            # Without its map of classes, a panoptic dataset has no values that are ids.
            numbered_maps=numbered_maps or keys.get(CATEGORY_MAP) == "",
        )

    def map_names(self) -> Mapping[int, str]:
        """Returns the names of the values in maps."""
        return {} if self.numbered_maps else self.class_names


class StoredKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the Examples of a source, as its first Examples or its manifest show them.

    Attributes:
        kinds: The groups of default keys that they have.
        extras: Their other keys.
        left_out: `{key: why it is not carried over}`.
        raw: Whether the images are bare pixels.
        single_label: Whether a manifest says that every Example has exactly one label.
    """

    kinds: tuple[Kind, ...] = ()
    extras: tuple[ExtraFeature, ...] = ()
    left_out: Mapping[str, str] = {}
    raw: bool = False
    single_label: bool = False


def _written_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns `{default key: key as written}` where they differ; empty for dropped keys.

    Args:
        config: The config as the manifest holds it. It may have been edited: a value that is not a
            text is treated as a dropped key.
    """
    features = config.get("features")
    if not isinstance(features, dict):
        return {}
    renamed, dropped = features.get("rename"), features.get("drop")
    keys: dict[str, str] = {}
    if isinstance(dropped, list):
        keys |= {key: "" for key in dropped if isinstance(key, str)}
    if isinstance(renamed, dict):
        keys |= {key: name if isinstance(name, str) else "" for key, name in renamed.items()}
    return keys


def _constant_keys(config: Mapping[str, Any]) -> frozenset[str]:
    features = config.get("features")
    constants = features.get("constants") if isinstance(features, dict) else None
    return frozenset(constants) if isinstance(constants, dict) else frozenset()
