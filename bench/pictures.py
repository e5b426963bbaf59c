"""Inputs for trained models of images, from a seed: pages and lines of random text, parts of photographs.

On noise a text detector finds nothing: its output is nearly zero, so its relative error is large.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from bench.inputs import Draw
from bench.package_file import package_file

if TYPE_CHECKING:
    from PIL.Image import Image

Picture = Callable[[int, int, np.random.Generator], "Image"]
"""A function that returns a picture of a width and a height."""
LETTERS = np.array(list(string.ascii_letters + string.digits))
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
LEAST_PART = 0.5
"""The least fraction of a photograph's shorter side that a picture shows."""
TEXT_SIZES = (16, 40)
INK, PAPER, PIXEL_NOISE = (0, 90), (190, 256), 3.0


def drawn(picture: Picture, mean: tuple[float, float, float], deviation: tuple[float, float, float]) -> Draw:
    """Return a function that draws a batch of pictures, channels first, normalised as ``(x / 255 - mean) / deviation``."""

    def draw(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        batch, _, height, width = shape
        pixels = np.stack([np.asarray(picture(width, height, random), np.float32) for _ in range(batch)]).transpose(0, 3, 1, 2)
        center, unit = (np.array(value, np.float32).reshape(3, 1, 1) for value in (mean, deviation))
        return np.asarray((pixels / 255 - center) / unit, np.float32)

    return draw


def page(width: int, height: int, random: np.random.Generator) -> Image:
    """Draw paragraphs: lines of words of a size, with gaps between lines and after some words."""
    from PIL import ImageDraw, ImageFont

    image, ink = _paper(width, height, random)
    draw = ImageDraw.Draw(image)
    top = int(random.integers(0, TEXT_SIZES[1]))
    while top < height:
        size = int(random.integers(*TEXT_SIZES))
        font = ImageFont.load_default(size)
        left = float(random.integers(0, width // 3))
        while left < width:
            text = _word(random)
            if random.random() < 0.8:
                draw.text((left, top), text, ink, font)
            left += font.getlength(text + " ")
        top += int(size * random.uniform(1.3, 2.5))
    return _grained(image, random)


def line(width: int, height: int, random: np.random.Generator) -> Image:
    """Draw one line of words, nearly as high as the picture."""
    from PIL import ImageDraw, ImageFont

    image, ink = _paper(width, height, random)
    size = int(height * random.uniform(0.55, 0.75))
    text = " ".join(_word(random) for _ in range(1 + 2 * width // height))
    ImageDraw.Draw(image).text((int(random.integers(0, height // 4)), (height - 1.2 * size) / 2), text, ink, ImageFont.load_default(size))
    return _grained(image, random)


def turned_line(width: int, height: int, random: np.random.Generator) -> Image:
    """Draw one line of words, upright or upside down."""
    from PIL import Image

    image = line(width, height, random)
    return image.transpose(Image.Transpose.ROTATE_180) if random.random() < 0.5 else image


def photograph(width: int, height: int, random: np.random.Generator) -> Image:
    """Return a part of a photograph, or its mirror image."""
    from PIL import Image

    with Image.open(package_file("sklearn", f"datasets/images/{random.choice(PHOTOGRAPHS)}")) as file:
        picture = file.convert("RGB")
    scale = min(picture.width / width, picture.height / height) * random.uniform(LEAST_PART, 1.0)
    part = width * scale, height * scale
    left, top = random.uniform(0, picture.width - part[0]), random.uniform(0, picture.height - part[1])
    shown = picture.resize((width, height), Image.Resampling.BICUBIC, (left, top, left + part[0], top + part[1]))
    return shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else shown


def _word(random: np.random.Generator) -> str:
    return "".join(random.choice(LETTERS, random.integers(2, 10)))


def _paper(width: int, height: int, random: np.random.Generator) -> tuple[Image, tuple[int, ...]]:
    """Return an empty page of a light colour, and a dark colour for the text."""
    from PIL import Image

    paper, ink = (tuple(map(int, random.integers(*span, 3))) for span in (PAPER, INK))
    return Image.new("RGB", (width, height), paper), ink


def _grained(image: Image, random: np.random.Generator) -> Image:
    """Return the picture as a camera sees it: with noise."""
    from PIL import Image

    pixels = np.asarray(image) + random.normal(0, PIXEL_NOISE, (image.height, image.width, 3))
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
