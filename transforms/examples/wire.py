"""An Example's wire format, around an image that is not copied.

Serializing an image of 100 KB with its Example copies it three times, into memory that is
fresh each time; that takes longer than all the rest of encoding. So the other features are
serialized by protobuf, and the image's own bytes take their place between them.

Wire format: https://protobuf.dev/programming-guides/encoding; messages: `example.proto`.
"""

from __future__ import annotations

# Tags of the length-delimited fields 1 and 2.
_FIELD_1 = b"\x0a"
_FIELD_2 = b"\x12"


def splice_image(
    *, before: bytes, key: str, image: bytes, after: bytes
) -> tuple[bytes, bytes, bytes]:
    """Serializes an Example whose features are given in part.

    Args:
        before: The serialized `Features` whose keys sort before `key`.
        key: The image's key.
        image: The only value of its `bytes_list`.
        after: The serialized `Features` whose keys sort after `key`.

    Returns:
        The Example's bytes in three parts, the second of them `image` itself: the same as
        protobuf's deterministic serialization of the whole.
    """
    encoded_key = key.encode()
    bytes_list = _header(_FIELD_1, len(image))
    bytes_field = _header(_FIELD_1, len(bytes_list) + len(image)) + bytes_list
    feature = _header(_FIELD_2, len(bytes_field) + len(image)) + bytes_field
    entry = _header(_FIELD_1, len(encoded_key)) + encoded_key + feature
    features = before + _header(_FIELD_1, len(entry) + len(image)) + entry
    return _header(_FIELD_1, len(features) + len(image) + len(after)) + features, image, after


def wrap_features(features: bytes) -> bytes:
    """Serializes an Example of serialized `Features`."""
    return _header(_FIELD_1, len(features)) + features


def _header(tag: bytes, length: int) -> bytes:
    """Encodes a field's tag and its length as a varint."""
    encoded = bytearray(tag)
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
