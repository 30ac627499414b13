"""Photograph-like backgrounds for the sample: fractal textures, told apart by a horizon.

Natural pictures have amplitude spectra that fall about as 1/f (Field, "Relations between the
statistics of natural images and the response properties of cortical cells", 1987). A texture is
noise with such a spectrum, coloured by a palette; a ground is seen in perspective.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Field = npt.NDArray[np.float32]
Colour = tuple[int, int, int]

# Palette position of the mean, and of one standard deviation, of a texture's noise.
_MEAN = 128
_DEVIATION = 42
# Of the horizon, where the foot of the picture is at distance 1.
_FARTHEST = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texture:
    """A kind of background.

    Attributes:
        name: Its category.
        palette: Colours from the darkest to the lightest part.
        falloff: The exponent b of the amplitude spectrum 1/fᵇ; greater is smoother.
        grain: Amplitude of the finest detail, relative to the coarsest.
        stretch: How many times wider than tall its features are.
        is_level: Whether its horizon is a straight line.
    """

    name: str
    palette: tuple[Colour, ...]
    falloff: float
    grain: float
    stretch: float = 1.0
    is_level: bool = False


SKY = Texture(
    name="sky",
    palette=((58, 104, 172), (112, 158, 210), (178, 204, 228), (238, 240, 242)),
    falloff=1.7,
    grain=0.0005,
    stretch=2.5,
)
GROUNDS = (
    Texture(
        name="sand",
        palette=((120, 92, 58), (194, 162, 112), (224, 198, 152), (248, 234, 204)),
        falloff=1.2,
        grain=0.001,
        stretch=1.6,
    ),
    Texture(
        name="grass",
        palette=((20, 38, 12), (54, 92, 28), (98, 138, 46), (176, 192, 96)),
        falloff=1.15,
        grain=0.001,
        stretch=0.6,
    ),
    Texture(
        name="water",
        palette=((14, 44, 66), (34, 84, 112), (86, 140, 160), (214, 230, 232)),
        falloff=1.45,
        grain=0.0008,
        stretch=5.0,
        is_level=True,
    ),
    Texture(
        name="gravel",
        palette=((52, 49, 47), (102, 98, 93), (142, 137, 130), (200, 195, 186)),
        falloff=0.95,
        grain=0.001,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Background:
    """A drawn background.

    Attributes:
        pixels: RGB, uint8 of shape (height, width, 3).
        textures: The textures that are seen.
        regions: For each pixel the index of its texture, uint8 of shape (height, width).
    """

    pixels: Pixels
    textures: tuple[Texture, ...]
    regions: Pixels


def draw_background(*, rng: np.random.Generator, width: int, height: int) -> Background:
    """Draws a ground, in two of three pictures under a sky.

    Args:
        rng: Decides everything about it.
        width: In pixels.
        height: In pixels.
    """
    ground = GROUNDS[rng.integers(len(GROUNDS))]
    noise = _draw_texture(ground, rng=rng, width=width, height=height)
    if rng.random() < 1 / 3:
        pixels = _colour(noise, ground.palette, rng=rng)
        regions = np.zeros((height, width), np.uint8)
        return Background(pixels=pixels, textures=(ground,), regions=regions)

    horizon = _draw_horizon(rng=rng, width=width, height=height, is_level=ground.is_level)
    # Rows `start` to `stop` show both.
    start, stop = int(horizon.min()), int(horizon.max()) + 1
    below = _colour(_lay_flat(noise, horizon=start), ground.palette, rng=rng)
    noise = _draw_texture(SKY, rng=rng, width=width, height=height)[:stop]
    # A sky grows lighter towards the horizon.
    noise = 0.6 * noise + np.linspace(-1.2, 0.6, stop, dtype=np.float32)[:, np.newaxis]
    sky = _colour(noise, SKY.palette, rng=rng)
    # The share of each pixel that lies above the horizon.
    above = np.clip(horizon - np.arange(height, dtype=np.float32)[:, np.newaxis], 0, 1)
    mixed = blend(below[: stop - start], sky[start:], alpha=above[start:stop])
    return Background(
        pixels=np.concatenate([sky[:start], mixed, below[stop - start :]]),
        textures=(SKY, ground),
        regions=(above < 0.5).astype(np.uint8),
    )


def draw_noise(
    *,
    rng: np.random.Generator,
    width: int,
    height: int,
    falloff: float,
    grain: float = 0.0,
    stretch: float = 1.0,
) -> Field:
    """Draws noise with mean 0 and standard deviation 1, float32 of shape (height, width).

    See `Texture` for the arguments.
    """
    amplitudes = _amplitudes(width, height, falloff, grain, stretch)
    # Uniform amplitudes are the fastest to draw; the sum of so many waves is normal all the same.
    parts = rng.random((*amplitudes.shape, 2), dtype=np.float32) - np.float32(0.5)
    noise = np.fft.irfft2(parts.view(np.complex64)[..., 0] * amplitudes, s=(height, width))
    return np.asarray(noise / noise.std(), np.float32)


def blend(below: Pixels, above: Pixels | Field, *, alpha: Field) -> Pixels:
    """Lays one picture over another.

    Args:
        below: RGB of shape (height, width, 3).
        above: RGB of the same shape, or a shape that broadcasts to it.
        alpha: How much of `above` is seen, 0 to 1, of shape (height, width).
    """
    difference = above - below.astype(np.float32)
    blended: Pixels = (below + alpha[..., np.newaxis] * difference + 0.5).astype(np.uint8)
    return blended


@functools.lru_cache(maxsize=64)
def _amplitudes(width: int, height: int, falloff: float, grain: float, stretch: float) -> Field:
    rows = np.fft.fftfreq(height)[:, np.newaxis]
    columns = np.fft.rfftfreq(width)[np.newaxis, :] * stretch
    # In cycles per picture.
    frequency = np.hypot(rows, columns) * max(width, height)
    amplitudes = np.maximum(frequency, 1.0) ** -falloff + grain
    # The mean.
    amplitudes[0, 0] = 0.0
    return np.asarray(amplitudes, np.float32)


def _draw_texture(texture: Texture, *, rng: np.random.Generator, width: int, height: int) -> Field:
    noise = draw_noise(
        rng=rng,
        width=width,
        height=height,
        falloff=texture.falloff,
        grain=texture.grain,
        stretch=texture.stretch,
    )
    noise *= rng.uniform(0.7, 1.1)
    return noise


def _lay_flat(noise: Field, *, horizon: int) -> Field:
    """Shows a plane of noise in perspective, from the row of the horizon down to the last."""
    height, width = noise.shape
    depth = np.linspace(0, 1, height - horizon)[:, np.newaxis]
    # At distance 1 a pixel shows a pixel of the noise, further away more of it.
    distance = 1 / (depth + (1 - depth) / _FARTHEST)
    rows = -distance * (height - horizon) / (1 - 1 / _FARTHEST)
    columns = (np.arange(width) - width / 2) * distance
    # The noise is periodic, so that it can be continued without a seam. What is far away blurs.
    places = rows.astype(np.intp) % height * width + columns.astype(np.intp) % width
    return np.asarray(noise.ravel().take(places) / np.sqrt(distance), np.float32)


def _colour(noise: Field, palette: tuple[Colour, ...], *, rng: np.random.Generator) -> Pixels:
    """Colours noise by a palette, in a light of slightly varied colour and strength."""
    light = rng.uniform(0.85, 1.1) * rng.uniform(0.95, 1.05, 3)
    stops = np.linspace(0, 255, len(palette))
    channels = [np.interp(np.arange(256), stops, channel) for channel in zip(*palette, strict=True)]
    colours = np.clip(np.stack(channels, axis=1) * light, 0, 255).astype(np.uint8)
    levels = np.clip(_MEAN + _DEVIATION * noise, 0, 255).astype(np.uint8)
    return colours.take(levels, axis=0)


def _draw_horizon(
    *, rng: np.random.Generator, width: int, height: int, is_level: bool
) -> npt.NDArray[np.float32]:
    """Draws the height of the horizon in each column, in pixels from the top."""
    middle = rng.uniform(0.25, 0.55) * height
    if is_level:
        return np.full(width, middle, np.float32)
    x = np.linspace(0, 2 * np.pi, width)
    waves = np.zeros(width)
    for frequency in (0.7, 1.9, 5.3, 13.0):
        waves += rng.uniform(-1, 1) / frequency * np.sin(frequency * x + rng.uniform(0, 2 * np.pi))
    return (middle + 0.04 * height * waves).astype(np.float32)
