"""The vision tower of a multimodal config, exact to the last weight, and how images are cut: rows of vision.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from rooflinekit.model.graph.tree import evaluate
from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.frozen import dataclass
from rooflinekit.model.types.vision import Rule, Tiles, Vision, Whole, grids_up_to
from rooflinekit.specs.config.keys import shown
from rooflinekit.specs.files import Parsed, table_of

_COLOURS = 3
_MOST = 10**6  # no size of a tower comes near
_TILES = 100  # nor does a side in tiles


def read_vision(config: Mapping[str, object], text: int, origin: str) -> Vision | None:
    """The tower of a whole config whose language model is `text` wide; None where no row describes such a model.

    Raises SpecError for a size that cannot be.

    >>> config = {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}}
    >>> read_vision(config, 4096, "config.json").parameters  # CLIP ViT-L/14 at 336 pixels, and two products
    324487168
    """
    tower = config.get("vision_config")
    row = _row(config.get("model_type")) if isinstance(tower, Mapping) else None
    if row is None or not isinstance(tower, Mapping):
        return None
    kind = tower.get("model_type")
    towers = _table()["towers"]
    name = kind if isinstance(kind, str) and kind in towers else row["tower"]
    sizes, usual = towers[name]["sizes"] | row.get("sizes", {}), _table()["flags"]
    row = {**usual, **towers[name], **row, **row.get(name, {}), "sizes": sizes}
    if any(tower.get(key) for key in row.get("without", ())):
        return None
    reader = _TowerReader(config, tower, origin, {"text": text})
    return reader.vision(row)


_table = partial(table_of, __file__)


def _row(model_type: object) -> dict[str, Any] | None:
    """A model with what it takes from the row that it is like."""
    row = _table()["models"].get(model_type) if isinstance(model_type, str) else None
    if row is None or "like" not in row:
        return row
    return {**(_row(row["like"]) or {}), **row}


@dataclass(frozen=True)
class _TowerReader:
    """A config while its tower is read; `known` grows by the sizes that were found."""

    config: Parsed
    tower: Parsed
    origin: str
    known: dict[str, int]

    def find(self, key: str) -> Any:
        """Find a key in the tower's config, else the one around it."""
        value = self.tower.get(key)
        return self.config.get(key) if value is None else value

    def size(self, said: int | str) -> int:
        """A size as vision.yaml says it; a list (one side each) counts by its first."""
        if isinstance(said, int):
            return said
        factor, _, said = said.rpartition("*")
        key, _, other = said.partition("=")
        value = self.known.get(key, self.find(key))
        if value is None and other:
            return int(factor or 1) * self.size(int(other) if other.isdigit() else other)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST:
            raise SpecError(f"{self.origin}: vision_config.{key} = {shown(value)} is no size of a vision tower")
        return int(factor or 1) * value

    def flag(self, said: bool | str) -> bool:
        """A yes or no: itself, or the first of some keys that is there."""
        if isinstance(said, bool):
            return said
        for key in said.split("="):
            if (value := self.find(key)) is not None or key == "true":
                return key == "true" or bool(value)
        return False

    def vision(self, row: Parsed) -> Vision:
        """The tower, its weights counted."""
        sizes = {"merge": 1, "frames": 1} | {name: self.size(said) for name, said in row["sizes"].items()}
        sizes["depth"] += sizes.get("more", 0)
        patch, merge, hidden = sizes["patch"], sizes["merge"], sizes["hidden"]
        attended = sizes.get("attended") or hidden
        if attended % sizes["heads"]:
            raise SpecError(f"{self.origin}: vision_config: {sizes['heads']} heads do not divide the width {attended}")
        taken, window = self.taken(row), row.get("window", 0)
        self.known.update(hidden=hidden, width=sizes["width"], merged=hidden * merge**2, features=hidden * len(taken))
        products, projected = self.projector(row)
        inputs, flags = (
            _COLOURS * patch**2 * sizes["frames"],
            {name: int(self.flag(row[name])) for name in _table()["flags"]},
        )
        vectors = {"rows": self.positions(row, sizes), "own": row.get("own", 0), "layer_own": row.get("layer_own", 0)}
        sizes |= {"attended": attended, "inputs": inputs, **vectors}
        full = self.find(row["full"]) if window else None  # without such a list attention is full in all layers
        return Vision(
            parameters=int(evaluate(_table()["weights"], sizes | flags)) + projected,
            hidden=hidden,
            attended=attended,
            layers=max(sizes["depth"] + 1 + layer if layer < 0 else layer for layer in taken),
            heads=sizes["heads"],
            width=sizes["width"],
            gated=row["gated"],
            patch=patch,
            merge=merge,
            inputs=inputs,
            class_tokens=flags["first"],
            projector=products,
            rule=self.rule(row, sizes),
            window=(self.size(window) // patch) ** 2 if isinstance(full, list) else 0,
            full=len(full) if isinstance(full, list) else 0,
        )

    def taken(self, row: Parsed) -> list[int]:
        """The layers whose outputs go on, from the end where below 0."""
        key, _, usual = str(row.get("run", "=-1")).partition("=")
        said = self.find(key)
        layers = said if isinstance(said, list) and said else [int(usual) if said is None else said]
        if any(isinstance(layer, bool) or not isinstance(layer, int) or not layer for layer in layers):
            raise SpecError(f"{self.origin}: {key} = {shown(said)} names no layers of the vision tower")
        return layers

    def positions(self, row: Parsed, sizes: Mapping[str, int]) -> int:
        """Rows of the learned tables of positions, one for each patch of a tile where no key says it.

        Tiles that are joined have tables of their own by the grid, and none: of their patches, before and after them.
        """
        said = row.get("positions", False)
        if said is not True:
            return self.size(said) if said else 0
        patches: int = (sizes["size"] // sizes["patch"]) ** 2 + row["first"]
        if "joined" not in row:
            return patches
        return patches + (1 + len(self.grids(row, sizes["size"]))) * self.size(row["joined"]) * (patches + 2)

    def projector(self, row: Parsed) -> tuple[tuple[tuple[int, int], ...], int]:
        """Products over the merged tokens, and the weights of all of them."""
        products, weights = [], sum(count * self.size(name) for name, count in row.get("vectors", {}).items())
        for part in row["projector"]:
            times = part.get("times", 1)
            times = times if isinstance(times, int) else len(self.find(times) or ())
            sides = [self.size(side) for side in part["chain"]]
            links = list(pairwise(sides)) * times
            products += links
            bias = self.flag(part.get("bias", False))
            weights += sum(before * after + after * bias for before, after in links)
            weights += times * sum(count * self.size(name) for name, count in part.get("norm", {}).items())
        return tuple(products), weights

    def rule(self, row: Parsed, sizes: Mapping[str, int]) -> Rule:
        """Rule by which an image is cut."""
        if "whole" in row:
            return Whole(**row["whole"])
        size = sizes["size"]
        side = -(-(size // sizes["patch"]) // sizes["merge"])
        chosen = {name: row[name] for name in ("choose", "layout", "capped", "images") if name in row}
        joined = self.size(row.get("joined", 0))
        return Tiles(size, side, self.grids(row, size), whole=row.get("whole_tile", "never"), joined=joined, **chosen)

    def grids(self, row: Parsed, size: int) -> tuple[tuple[int, int], ...]:
        """Tiles across and down to choose from."""
        if "pinpoints" not in row:
            return tuple(grids_up_to(self.size(row["tiles"])))
        ((key, usual),) = row["pinpoints"].items()
        listed = self.find(key) or usual
        try:
            found = tuple((int(width) // size, int(height) // size) for height, width in listed)
        except (TypeError, ValueError):
            found = ()
        if not found or not all(0 < side <= _TILES for grid in found for side in grid):
            raise SpecError(f"{self.origin}: {key} = {shown(listed)} lists no sizes of images (height, width)")
        return found
