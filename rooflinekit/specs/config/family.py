"""What distinguishes one model class from another: a row of defaults, and which builders lay out its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rooflinekit.model.types.errors import SpecError
from rooflinekit.model.types.model import FeedForward, Mixer, Norm
from rooflinekit.specs.config.keys import Keys

__all__ = ["Family", "FeedForwards", "Flag", "Key", "Mixers", "Reading", "Span", "Spans"]


@dataclass(frozen=True, slots=True)
class Key:
    """A yes or no that the config states under `name`; the class default when it does not."""

    name: str
    default: bool = False
    inverted: bool = False  #: the key says "no_..."


Flag: TypeAlias = bool | Key


@dataclass(slots=True)
class Reading:
    """One config while it is being read: its keys, its family, the trunk, and warnings so far."""

    keys: Keys
    family: Family
    depth: int
    hidden: int
    warnings: list[str] = field(default_factory=list)

    def is_set(self, flag: Flag | Callable[[Reading], bool]) -> bool:
        """The value of a flag: the config's, else the class default."""
        if isinstance(flag, bool):
            return flag
        if not isinstance(flag, Key):
            return flag(self)
        return self.keys.flag(flag.name, flag.default != flag.inverted) != flag.inverted

    @property
    def norm(self) -> Norm:
        """The kind of norm between the layers."""
        return self.family.norm if isinstance(self.family.norm, str) else self.family.norm(self)

    def check_multiple(self, many: int, what: str, few: int, of: str = "") -> None:
        """Refuse heads that do not divide evenly."""
        if many % few:
            raise SpecError(f"{self.keys.origin}: {many} {what} are no multiple of {few} {of}".rstrip())


@dataclass(frozen=True, slots=True)
class Span:
    """How far back one layer's attention reaches, and whether it rotates its queries and keys."""

    window: int | None = None
    chunk: int | None = None
    rotary: bool = True


Mixers: TypeAlias = Callable[[Reading], tuple[Mixer | None, ...]]
FeedForwards: TypeAlias = Callable[[Reading], tuple[FeedForward | None, ...]]
Spans: TypeAlias = Callable[[Reading], tuple[Span, ...]]


@dataclass(frozen=True)
class Family:
    """A model class: how its layers are built, and what its config leaves unsaid.

    `mixers` and `ffns` give one block a layer. `names` replaces entries of the table of key names where the class
    uses another word, `ignored` lists keys that look structural and change nothing that is costed.
    """

    mixers: Mixers
    ffns: FeedForwards
    spans: Spans | None = None
    norm: Norm | Callable[[Reading], Norm] = "rmsnorm"
    norms: int | Callable[[Reading], int] | None = 2  #: a layer; None: one for each block that is there
    parallel: Flag = False
    gated: bool = True
    tied: Flag = Key("tie_word_embeddings")
    qkv_bias: Flag = False
    o_bias: Flag = False
    mlp_bias: Flag = False
    qk_norm: str | Callable[[Reading], str] = ""  #: "head": one norm for all heads; "full": over all heads' width
    positions: Callable[[Reading], int] | None = None  #: rows of a learned position table
    rotary: Flag | Callable[[Reading], bool] = True
    attention_gate: Flag = False
    lm_head_bias: Flag = False
    embedding_norm: bool = False
    sinks: bool = False
    depth: Callable[[Keys], int] | None = None
    kv_heads: Callable[[Reading, int], int] | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: dict[str, int] = field(default_factory=dict)  #: what the class takes for keys that are absent
    needs: Mapping[str, bool | str] = field(default_factory=dict)  #: keys that, if stated, must have this value
    ignored: tuple[str, ...] = ()
