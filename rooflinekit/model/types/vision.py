"""Images: how a model's preprocessor cuts them, what they become in the prompt, and the tower that encodes them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Literal, TypeAlias

from rooflinekit.model.types.batch import whole_number
from rooflinekit.model.types.errors import WorkloadError
from rooflinekit.model.types.frozen import dataclass

_SIDE = 100_000  # pixels; no camera makes a longer one
_SIZE = re.compile(r"\s*(\d{1,6})\s*[x×X]\s*(\d{1,6})\s*")
_NARROW = 200  # preprocessors refuse longer strips


@dataclass(frozen=True, slots=True)
class Images:
    """Images of every prompt: their number and size in pixels."""

    count: int
    width: int
    height: int

    @classmethod
    def read(cls, count: object, size: str) -> Images | None:
        """From what a user typed; None for no images.

        >>> Images.read(2, "1024x768")
        Images(count=2, width=1024, height=768)
        """
        number, sides = whole_number(count, "images", 0), _SIZE.fullmatch(str(size))
        if sides is None:
            raise WorkloadError(f"image_size {size!r} is no size in pixels; write width x height like 1024x768")
        width, height = int(sides[1]), int(sides[2])
        short, long = sorted((width, height))
        if not 0 < short <= long <= _SIDE or long > _NARROW * short:
            limits = f"sides of 1 to {_SIDE:,} pixels, one at most {_NARROW} times the other"
            raise WorkloadError(f"image_size {size!r} is no size that preprocessors take: {limits}")
        return cls(number, width, height) if number else None


@dataclass(frozen=True, slots=True)
class Cut:
    """One image after its preprocessor: sequences that attend to themselves, their patches, tokens in the prompt."""

    sequences: int
    patches: int  #: of each sequence, a class token included
    merged: int  #: of each sequence, what the projector works on
    tokens: int  #: between the marks of its begin and end, which count as text
    positions: int = 0  #: beside the prompt, that some layers attend to


@dataclass(frozen=True, slots=True)
class Whole:
    """An image at its own resolution, in whole units of patch x merge pixels a side; one unit is one token.

    least, most: pixels within which it is scaled; longest: side above which it is; patches: limit before it is padded.
    padded: sides are rounded up, else to the nearest unit. row_marks: tokens after each row (Pixtral).
    """

    least: int = 0
    most: int = 0
    longest: int = 0
    patches: int = 0
    padded: bool = False
    row_marks: int = 0

    def grid(self, width: int, height: int, patch: int, unit: int) -> tuple[int, int]:
        """Units across and down.

        >>> Whole(least=3136, most=12_845_056).grid(1024, 1024, 14, 28)  # Qwen2.5-VL: 36.6 rounds to 37
        (37, 37)
        """
        sides: tuple[float, float] = width, height
        if self.longest and max(sides) > self.longest:
            sides = (math.floor(width / (max(sides) / self.longest)), math.floor(height / (max(sides) / self.longest)))
        held = (width // patch) * (height // patch)
        if self.patches and held > self.patches:
            scale = min(math.sqrt(self.patches / held), self.longest / max(width, height) if self.longest else 1.0)
            sides = int(width * scale), int(height * scale)
        if self.padded:
            return max(math.ceil(sides[0] / unit), 1), max(math.ceil(sides[1] / unit), 1)
        across, down = (round(side / unit) for side in sides)
        area, covered = width * height, across * down * unit * unit
        if self.most and covered > self.most:
            shrink = math.sqrt(area / self.most) * unit
            return max(math.floor(width / shrink), 1), max(math.floor(height / shrink), 1)
        if covered < self.least:
            grow = math.sqrt(self.least / area) / unit
            return math.ceil(width * grow), math.ceil(height * grow)
        return max(across, 1), max(down, 1)


@dataclass(frozen=True, slots=True)
class Tiles:
    """An image cut into square tiles, each a sequence of its own; the whole image comes beside them, scaled down.

    size: pixels of a tile's side; side: tokens of a tile's side after merging; grids: tiles across and down that there
    are to choose from. choose: the grid of the nearest aspect (InternVL), of the most pixels kept (LLaVA-NeXT,
    DeepSeek-VL2), or of the least enlargement (Llama-4). layout: what the prompt holds: the tiles; tiles with marks
    between them; rows without padding, each with a mark (at most `capped` tiles of them); or rows with their padding.
    images: in a prompt with more of them none is cut. joined: tiles of the one sequence that an image is padded to,
    whose outputs stay beside the prompt (Mllama).
    """

    size: int
    side: int
    grids: tuple[tuple[int, int], ...] = ((1, 1),)
    choose: Literal["aspect", "kept", "enlarged"] = "aspect"
    layout: Literal["plain", "marked", "unpadded", "rows"] = "plain"
    whole: Literal["never", "several", "always"] = "never"  #: when the whole image comes beside its tiles
    capped: int = 0
    images: int = 0
    joined: int = 0

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Tiles across and down.

        >>> grids = tuple((n, m) for n in range(1, 13) for m in range(1, 13) if n * m <= 12)
        >>> Tiles(448, 16, tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))).grid(1024, 512)
        (2, 1)
        """
        match self.choose:
            case "kept":
                return max(self.grids, key=lambda grid: self._kept(grid, width, height))
            case "enlarged":
                return min(self.grids, key=lambda grid: self._enlarged(grid, width, height))
        best, nearest = (1, 1), math.inf
        for across, down in self.grids:
            far = abs(width / height - across / down)
            if far < nearest or (far == nearest and width * height > 0.5 * self.size**2 * across * down):
                best, nearest = (across, down), far
        return best

    def _kept(self, grid: tuple[int, int], width: int, height: int) -> tuple[int, int]:
        """Pixels of the image that the grid keeps, then how few of the grid stay empty."""
        sides = grid[0] * self.size, grid[1] * self.size
        scale = min(sides[0] / width, sides[1] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - sides[0] * sides[1]

    def _enlarged(self, grid: tuple[int, int], width: int, height: int) -> tuple[bool, float, int]:
        """True if it has to shrink the image, by how much it changes it, and its tiles."""
        scale = min(grid[0] * self.size / width, grid[1] * self.size / height)
        return scale < 1.0, max(scale, 1.0 / scale), grid[0] * grid[1]

    def tokens(self, width: int, height: int, grid: tuple[int, int], sequences: int) -> int:
        """Tokens in the prompt."""
        (across, down), each = grid, self.side**2
        tiles = across * down
        match self.layout:
            case "plain":
                return each * sequences
            case "marked":  # a mark after each tile, and one before the whole image
                return (tiles * (each + 1) if tiles > 1 else 0) + 1 + each
            case "rows":  # each row with a mark, and one between the whole image and its tiles
                return self.side * (self.side + 1) + 1 + down * self.side * (across * self.side + 1)
        return each + self._unpadded(width, height, across * self.side, down * self.side)

    def _unpadded(self, width: int, height: int, across: int, down: int) -> int:
        """Rows without what pads the image to its grid, each with a mark (LLaVA-NeXT's unpad_image)."""
        if width / height > across / down:
            down -= (down - int(round(height * (across / width), 7))) // 2 * 2
        else:
            across -= (across - int(round(width * (down / height), 7))) // 2 * 2
        ratio = math.sqrt(across * down / (self.capped * self.side**2)) if self.capped else 1.0
        if ratio > 1.1:  # LLaVA-OneVision scales what exceeds its limit by more than a tenth
            across, down = int(across // ratio), int(down // ratio)
        return down * (across + 1)


Rule: TypeAlias = Whole | Tiles


@dataclass(frozen=True, slots=True)
class Vision:
    """A vision tower: a transformer over patches, then a projector to the width of the language model.

    layers: that run; full: of them, layers whose attention is not within windows of `window` patches. inputs: numbers
    of a patch. projector: inputs and outputs of each product over merged tokens. parameters: all that is stored.
    attended: width of all heads together.
    """

    parameters: int
    hidden: int
    attended: int
    layers: int
    heads: int
    width: int
    gated: bool
    patch: int
    merge: int
    inputs: int
    class_tokens: int
    projector: tuple[tuple[int, int], ...]
    rule: Rule
    window: int = 0
    full: int = 0

    def cut(self, images: Images) -> Cut:
        """One of the images of a prompt, as the preprocessor of the model cuts it."""
        width, height = images.width, images.height
        if isinstance(self.rule, Whole):
            across, down = self.rule.grid(width, height, self.patch, self.patch * self.merge)
            units, marks = across * down, down * self.rule.row_marks
            return Cut(1, units * self.merge**2 + self.class_tokens, units, units + marks)
        cuts = not self.rule.images or images.count <= self.rule.images
        grid = self.rule.grid(width, height) if cuts else (1, 1)
        beside = self.rule.whole == "always" or (self.rule.whole == "several" and grid != (1, 1))
        sequences = grid[0] * grid[1] + beside
        patches = (self.rule.size // self.patch) ** 2 + self.class_tokens
        if every := self.rule.joined:  # patches of each tile are padded to a multiple of 8
            return Cut(1, every * -(-patches // 8) * 8, every * patches, 0, sequences * patches)
        return Cut(sequences, patches, self.rule.side**2, self.rule.tokens(width, height, grid, sequences))

    def tokens(self, images: Images) -> int:
        """Tokens that the images of a prompt put into it."""
        return images.count * self.cut(images).tokens

    def positions(self, images: Images) -> int:
        """Positions beside the prompt, whose keys and values some layers keep."""
        return images.count * self.cut(images).positions


def grids_up_to(most: int) -> Iterator[tuple[int, int]]:
    """Grids of at most so many tiles, the smallest first.

    >>> list(grids_up_to(2))
    [(1, 1), (1, 2), (2, 1)]
    """
    sides = range(1, most + 1)
    every = [(across, down) for across, down in product(sides, sides) if across * down <= most]
    yield from sorted(every, key=lambda grid: grid[0] * grid[1])
