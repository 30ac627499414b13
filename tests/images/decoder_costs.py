"""How much memory and time decoders take: `python -m tests.images.decoder_costs [MEGAPIXELS]`.

Prints, for each kind of image, the peak of resident memory over the file itself, in bytes a
pixel, and the CPU time in ns a pixel: of decoding it, and of all that `check_image` does with it.
Each figure is that of a process of its own. Linux only.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.images.check import check_image
from shardbeam.transforms.images.decode import ImageData, open_image
from shardbeam.transforms.images.header import sniff_format

# {name: (Pillow's format, mode, options)}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PNG RGB": ("PNG", "RGB", {}),
    "PNG RGBA": ("PNG", "RGBA", {}),
    "PNG gray": ("PNG", "L", {}),
    "PNG gray, alpha": ("PNG", "LA", {}),
    "PNG palette": ("PNG", "P", {}),
    "PNG 1 bit": ("PNG", "1", {}),
    "PNG 16-bit gray": ("PNG", "I;16", {}),
    "JPEG RGB": ("JPEG", "RGB", {}),
    "JPEG gray": ("JPEG", "L", {}),
    "JPEG CMYK": ("JPEG", "CMYK", {}),
    "JPEG progressive 4:2:0": ("JPEG", "RGB", {"progressive": True}),
    "JPEG progressive 4:4:4": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "JPEG progressive gray": ("JPEG", "L", {"progressive": True}),
    "JPEG progressive CMYK": ("JPEG", "CMYK", {"progressive": True}),
    "GIF": ("GIF", "P", {}),
    "WebP": ("WEBP", "RGB", {"method": 0}),
    "WebP alpha": ("WEBP", "RGBA", {"method": 0}),
    "WebP lossless": ("WEBP", "RGBA", {"lossless": True, "method": 0}),
    "AVIF": ("AVIF", "RGB", {"speed": 10}),
    "AVIF 4:4:4": ("AVIF", "RGB", {"speed": 10, "subsampling": "4:4:4"}),
    "AVIF alpha": ("AVIF", "RGBA", {"speed": 10}),
    "JPEG 2000 gray": ("JPEG2000", "L", {}),
    "JPEG 2000 gray, alpha": ("JPEG2000", "LA", {}),
    "JPEG 2000 RGB": ("JPEG2000", "RGB", {}),
    "JPEG 2000 RGBA": ("JPEG2000", "RGBA", {}),
    "BMP": ("BMP", "RGB", {}),
    "TIFF RGB": ("TIFF", "RGB", {}),
    "TIFF LZW": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "TIFF 16-bit gray": ("TIFF", "I;16", {}),
    "TIFF CMYK": ("TIFF", "CMYK", {}),
    "PPM": ("PPM", "RGB", {}),
}


_NO_LIMITS = ImageConfig(max_pixels=1 << 40, max_decoded_mb=1 << 40)


def make_image(kind: str, *, megapixels: float) -> bytes:
    """Makes a smooth picture of the kind, four to three."""
    pillow_format, mode, options = KINDS[kind]
    width = round((megapixels * 1e6 * 4 / 3) ** 0.5)
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(coarse).resize((width, width * 3 // 4), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.convert("L" if mode == "I;16" else mode).convert(mode).save(
        buffer, pillow_format, **options
    )
    return buffer.getvalue()


def _decode(data: bytes) -> None:
    file_format = sniff_format(data)
    assert file_format is not None
    with open_image(ImageData(data, file_format, _NO_LIMITS)).decode():
        pass


def _decode_strictly(data: bytes) -> None:
    simplejpeg.decode_jpeg(data, "GRAY", strict=True)


def _check(data: bytes) -> None:
    check_image(data, name="", settings=_NO_LIMITS)


def _resident_bytes(kind: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: no {kind}")


def _measure(work: Callable[[bytes], None], data: bytes, small: bytes) -> tuple[int, float]:
    # What is imported at the first image is no part of it.
    work(small)
    Path("/proc/self/clear_refs").write_text("5")
    before, started = _resident_bytes("VmRSS"), time.process_time()
    work(data)
    return _resident_bytes("VmHWM") - before, time.process_time() - started


def measure_check(data: bytes, *, small: bytes) -> tuple[int, float]:
    """Measures all that is done with an image, in a process of its own.

    Args:
        data: The image.
        small: One of the same format, for what happens with the first one only.

    Returns:
        Peak bytes, and seconds of CPU time.
    """
    return _measure_apart(_check, data, small)


def _measure_apart(work: Callable[[bytes], None], *images: bytes) -> tuple[int, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (work, *images))


def _row(kind: str, *, megapixels: float) -> Iterator[str]:
    yield kind
    data, small = (make_image(kind, megapixels=size) for size in (megapixels, 0.01))
    strictly = KINDS[kind][:2] in (("JPEG", "RGB"), ("JPEG", "L"))
    for work in (_decode, _check, *([_decode_strictly] if strictly else [])):
        peak_bytes, cpu_s = _measure_apart(work, data, small)
        yield f"{peak_bytes / megapixels / 1e6:.1f} ({cpu_s * 1e3 / megapixels:.0f} ns)"
    if not strictly:
        yield ""


def main() -> None:
    """Prints the table as Markdown."""
    megapixels = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    print("| image | decoded | checked and converted | TurboJPEG, strict |\n|---|---|---|---|")
    for kind in KINDS:
        print("|", " | ".join(_row(kind, megapixels=megapixels)), "|", flush=True)


if __name__ == "__main__":
    main()
