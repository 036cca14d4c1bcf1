"""Options: a default, a unit, bounds and help; how its text is read, and how its value is checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast, get_args

from rooflinekit.model.types.batch import MOST_NUMBER, real_number, whole_number
from rooflinekit.model.types.errors import InputError, UnknownNameError, WorkloadError, nearest_of

if TYPE_CHECKING:
    from pydantic import BaseModel


_COUNTS = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20}
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_SIZES = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_PERIODS = {1.0: ("/s", "rps", "qps"), 1 / 60: ("/min", "rpm"), 1 / 3600: ("/h", "rph")}
_UNITS: dict[str, Mapping[str, float]] = {  # unit of an option -> what may follow its number, and the factor
    "": _COUNTS,
    "1/s": _COUNTS | {f"{what}{each}": factor for factor, words in _PERIODS.items() for each in words
                      for what in ("", *(("req", "requests") if each[0] == "/" else ()))},
    **{
        unit: {"": 1.0} | {name: each / _TIMES[unit] for name, each in _TIMES.items()} for unit in ("ms", "s", "min")
    },
    "W": {"": 1.0, "W": 1.0, "kW": 1e3, "MW": 1e6},
    "USD": _COUNTS | {f"{prefix}{end}": factor for prefix, factor in (("", 1.0), ("k", 1e3))
                      for end in ("USD", "$", "USD/h", "$/h", "USD/kWh", "$/kWh")},
    "USD/h": {f"{prefix}{end}{per}": factor * share
              for prefix, factor in (("", 1.0), ("k", 1e3)) for end in ("", "USD", "$")
              for per, share in (("", 1.0), ("/h", 1.0), ("/hour", 1.0), ("/day", 1 / 24), ("/month", 1 / 730),
                                 ("/mo", 1 / 730), ("/year", 1 / 8760), ("/yr", 1 / 8760))},
    "USD/month": {f"{prefix}{end}{per}": factor * share
                  for prefix, factor in (("", 1.0), ("k", 1e3), ("K", 1e3), ("M", 1e6)) for end in ("", "USD", "$")
                  for per, share in (("", 1.0), ("/month", 1.0), ("/h", 730.0), ("/day", 730 / 24), ("/year", 1 / 12))},
    "share": {"": 1.0, "%": 0.01},
    "years": {"": 1.0, "y": 1.0, "year": 1.0, "years": 1.0, "months": 1 / 12},
    "GiB": {"": 1.0} | {name: factor / 2.0**30 for name, factor in _SIZES.items()},
    "GB/s": {"": 1.0} | {f"{name}/s": factor / 1e9 for name, factor in _SIZES.items()}
    | {"Mb/s": 1e6 / 8e9, "Gb/s": 1 / 8, "Gbit/s": 1 / 8, "Tb/s": 1e3 / 8},
}  # fmt: skip
_NUMBER = re.compile(r"\$?\s*([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(\D*)")
_CURRENCY = re.compile(r"AUD|CAD|CHF|CNY|EUR|GBP|INR|JPY|KRW|SEK|[€£¥]")
_EACH = re.compile(r"(?:^|\s+)(?:per|an?)\s+")
_EXAMPLES = {
    "1/s": "20 or 20rps",
    "ms": "40 or 1.5s",
    "s": "60 or 1h",
    "min": "5 or 1h",
    "W": "500 or 0.5kW",
    "USD/month": "50000/month or 70/h",
    "USD/h": "2.5, 1800/month or 15000/year, in US dollars, or EUR2.5@1.1 at 1.1 dollars a euro",
    "share": "0.2 or 20%",
    "GiB": "64 or 80GB",
    "GB/s": "50 or 400Gb/s",
}
_WORDS = {"count": "N", "loose count": "N", "text": "TEXT", "length": "TOKENS", "names": "LIST", "counts": "LIST",
          "price": "USD", "pairs": "NAME=N", "path": "PATH", "folder": "DIR", "choice": "FORMAT"}  # fmt: skip
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MOST_OF = {"tokens": 10_000_000}  # no count is larger: the longest context that any known model claims
_MOST_THINGS = 1_000_000  # and no other count, unless its row says more
_MOST_LISTED = 100  # counts in a list to choose from


def quantity(text: str, unit: str = "") -> float:
    """A number as people write it, in the unit of its option: thousands with commas, and units of their own.

    >>> quantity("2K"), quantity("2,000"), quantity("20rps", "1/s"), quantity("1.5s", "ms"), quantity("20%", "share")
    (2000.0, 2000.0, 20.0, 1500.0, 0.2)
    >>> quantity("$7300 a month", "USD/h"), quantity("EUR2.5@1.2", "USD/h")
    (10.0, 3.0)
    """
    word = text.strip()
    if unit.startswith("USD") and _CURRENCY.search(word):
        price, _, dollars = _CURRENCY.sub("", word, count=1).partition("@")
        if not dollars.strip() or _CURRENCY.search(price):
            _no_number(text, unit)
        return quantity(price, unit) * quantity(dollars)
    hit = _NUMBER.fullmatch(word)
    if hit is None or not any(map(str.isdigit, hit[1])):
        if word.lower().lstrip("+-") not in ("inf", "nan", "infinity"):
            _no_number(text, unit)
        return float(word)
    value, end, known = float(hit[1].replace(",", "")), _EACH.sub("/", hit[2]).strip().replace(" /", "/"), _UNITS[unit]
    factor = known.get(end) or known.get(end.lower())
    if factor is None:
        _no_number(text, unit)
    return value * factor if factor >= 1.0 else value / (1.0 / factor)


def _no_number(text: str, unit: str) -> NoReturn:
    hint = f"; write {_EXAMPLES[unit]}" if unit in _EXAMPLES else ""
    raise ValueError(f"{text!r} is not a number{hint}")


Value: TypeAlias = Any
"""A value of an option, of the type that its row in the table states."""

Keywords: TypeAlias = Mapping[str, Value]
"""Keywords of a question by name."""

OwnKeywords: TypeAlias = dict[str, Value]
"""A copy of them, which may be changed."""


class Unit(NamedTuple):
    """A unit that an option brings along: what may follow its number with the factors, and an example for messages."""

    name: str
    factors: Mapping[str, float]
    example: str = ""


class OptionRow:
    """One thing that a user can say: a row of the table of options.

    default: None where it depends on other things, and `usual` says on which. unit: one that is known, or a `Unit`,
    which is known from then on. least, most: bounds; `above`: the lower one itself is too small. also: old names, which
    still work. complete: what a shell offers, names or their kind. many: the option may be repeated. hidden: a keyword
    of Python alone. short: a letter that stands for its name. called: what messages say for a wrong word; otherwise its
    metavar or name. Its kind follows from its type.
    """

    def __init__(  # noqa: PLR0913 - a row of a table has columns
        self, help: str, default: Any = None, *, unit: str | Unit = "", least: float | None = None,
        most: float | None = None, above: bool = False, also: tuple[str, ...] = (),
        complete: str | tuple[str, ...] = (), usual: str = "", kind: str = "", many: bool = False,
        hidden: bool = False, group: str = "", metavar: str = "", called: str = "", short: str = "",
    ) -> None:  # fmt: skip
        if isinstance(unit, Unit):
            _UNITS[unit.name] = {"": 1.0, **unit.factors}
            _EXAMPLES.update({unit.name: unit.example} if unit.example else {})
            unit = unit.name
        self.help, self.default, self.unit, self.least, self.above = help, default, unit, least, above
        self.most, self._bounded = MOST_NUMBER if most is None else most, most is not None
        self.also, self.complete, self.usual, self.kind, self.many = also, complete, usual, kind, many
        self.hidden, self.group, self.metavar, self.called = hidden, group, metavar, called
        self.short = short
        self.type: Any = None

    def parse(self, text: str) -> Value:
        """A text of the command line or of a cell as the value that Python takes."""
        match self.kind:
            case "count" | "loose count":  # of a loose one, whoever takes it checks the bounds
                return self._whole(text)
            case "number" | "loose":
                return quantity(text, self.unit)
            case "choice" if text not in self.complete:
                raise ValueError(f"{text!r} is not one of {', '.join(map(repr, self.complete))}")
            case "path" | "folder":
                if self.kind == "folder" and not text.strip():
                    raise ValueError("the name is empty; write . for the current folder")
                return Path(text)
            case "flag":
                return _TRUTH.get(text.strip().lower(), text)
            case "length":
                return text if ":" in text else self._whole(text, "whole number, nor a length such as uniform:100-200")
            case "names" | "counts":
                parts = [part.strip() for part in text.split(",") if part.strip()]
                what = "list of whole numbers such as 2,4"
                return parts if self.kind == "names" else [self._whole(part, what) for part in parts]
            case "price" if text.endswith(".csv"):
                return text
            case "price" if "=" not in text and (text.strip()[:1] in "$+-.0123456789" or _CURRENCY.match(text.strip())):
                return quantity(text, self.unit)
            case "price" | "pairs":
                return self._pairs(text)
            case _:
                return text

    def axis(self) -> OptionRow:
        """The option with a list of values."""
        usual = self.usual if self.default is None or self.default is False else str(self.default)
        made = OptionRow(self.help, usual=usual, also=self.also, complete=self.complete, kind="list", metavar="LIST")
        made.group, made.hidden, made.type = self.group, self.hidden, self.type
        return made

    def bound(self) -> None:
        """Give a count whose row states no upper bound that of its unit."""
        if not self._bounded and self.kind in ("count", "counts", "loose count", "length"):
            self.most = _MOST_OF.get(self.unit, _MOST_THINGS)

    @property
    def word(self) -> str:
        """Placeholder of a value in the help."""
        return _WORDS.get(self.kind) or {"": "NUMBER", "share": "SHARE"}.get(self.unit, self.unit)

    def joined(self, name: str, values: list[Value]) -> Value:
        """The values of an option that was repeated: `name=number` each, or the last."""
        if not all(isinstance(value, Mapping) for value in values):
            if self.kind == "price" and len(values) > 1:
                raise InputError(f"{name} is one number, one file, or name=number for each; not several of them")
            return values if self.kind == "text" else values[-1]
        found: dict[str, float] = {}
        for value in values:
            if twice := found.keys() & value.keys():
                raise InputError(f"{name} {min(twice)!r} is given twice; write it like h100-sxm=16")
            found |= value
        return found

    def of_cell(self, cell: Value) -> Value:
        """A cell of a table as what the option is; what cannot be read stays, and is refused by name later."""
        if self.kind == "flag" and cell in (0, 1):
            return bool(cell)
        if isinstance(cell, float) and cell.is_integer() and self.kind in ("count", "length"):
            return int(cell)
        try:
            return self.parse(cell) if isinstance(cell, str) else cell
        except ValueError:
            return cell

    def _pairs(self, text: str) -> dict[str, float]:
        """`name=number`, comma between them, each name once."""
        found: dict[str, float] = {}
        for part in text.split(","):
            name, sign, value = (word.strip() for word in part.rpartition("="))
            if not sign or not name or name in found:
                like = "2.5 or h100-sxm=2.5" if self.kind == "price" else "h100-sxm=16"
                why = "is given twice" if name in found else "has no number"
                raise ValueError(f"{part!r} {why}; write it like {like}")
            found[name] = quantity(value, "W" if name == "power" else self.unit)
        return found

    def _whole(self, text: str, what: str = "whole number") -> int:
        word = text.strip().replace("_", ",")
        if re.fullmatch(r"[+-]?\d+", word):
            return int(word)
        try:
            value = float(word) if "e" in word.lower() else quantity(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value != int(value):
            raise ValueError(f"{text!r} is not a {what}")
        return int(value)

    def check(self, name: str, value: Value) -> Value:
        """A value that a user gave."""
        match self.kind:
            case "count":
                return self._count(name, value)
            case "counts":
                return self._counts(name, value)
            case "loose count" | "length" if isinstance(value, Real) and float(value) > self.most:
                raise WorkloadError(f"{name} must be at most {self.most:,.12g}, not {value}")
            case "number":
                return self._number(name, value)
            case "text" if self.complete and not isinstance(self.complete, str):
                return self._choice(name, value)
            case "pairs" if not isinstance(value, Mapping):
                return self._read_pairs(name, value)
            case "flag" if value not in (True, False):
                raise WorkloadError(f"{name} must be True or False, not {value!r}")
            case "flag":
                return bool(value)
            case _:
                return value

    def _count(self, name: str, value: object) -> int:
        count = whole_number(value, name, 1 if self.least is None else int(self.least))
        if count > self.most:
            raise WorkloadError(f"{name} must be at most {self.most:,.12g}, not {count:,}")
        return count

    def _counts(self, name: str, value: object) -> Value:
        listed = value if isinstance(value, (list, tuple)) else [value]
        if len(listed) > _MOST_LISTED:
            raise WorkloadError(f"{name} lists {len(listed):,} values; give at most {_MOST_LISTED}")
        for each in listed:
            self._count(name, each)
        return value

    def _read_pairs(self, name: str, value: object) -> dict[str, float]:
        if not isinstance(value, str):
            raise WorkloadError(f"{name} must be written like h100-sxm=16, not {value!r}")
        try:
            return self._pairs(value)
        except ValueError as error:
            raise WorkloadError(f"{name}: {error}") from None

    def _choice(self, name: str, value: object) -> str:
        """One of the words that a shell completes; capitals and underscores do not matter."""
        known = {_plain(each): each for each in self.complete}
        if _plain(str(value)) not in known:
            more = ", or leave it out" if len(self.complete) == 1 else ""
            called = self.called or (self.metavar or name).lower()
            raise UnknownNameError(called, str(value), self.complete, more)
        return known[_plain(str(value))]

    def _number(self, name: str, value: object) -> float:
        least = 0.0 if self.least is None else self.least
        return real_number(value, name, least, self.most, self.above, self.help)

    @property
    def json(self) -> dict[str, Any]:
        """JSON Schema of the option beside its type."""
        said: dict[str, Any] = {"description": self.help} | ({} if self.default is None else {"default": self.default})
        said |= {"unit": self.unit} if self.unit else {}
        if self.kind in ("count", "number"):
            least = self.least if self.least is not None else 1 if self.kind == "count" else 0
            said["exclusiveMinimum" if self.above else "minimum"] = least
            said |= {"maximum": self.most} if self.most < MOST_NUMBER else {}
        return said


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "-")


@cache
def options_of(table: type) -> dict[str, OptionRow]:
    """The rows of a table, by their names; `table` is a TypedDict whose every type carries its `OptionRow`."""
    found = {}
    for name, annotated in table.__annotations__.items():
        option: OptionRow = annotated.__metadata__[0]
        option.type = annotated.__origin__
        option.kind = option.kind or _kind(option.type)
        option.bound()
        found[name] = option
    return found


def _kind(type_: Any) -> str:
    kinds = set(get_args(type_) or (type_,))
    for kind, word in ((bool, "flag"), (float, "number"), (int, "length" if str in kinds else "count")):
        if kind in kinds:
            return word
    return "text"


@cache
def _aliases(table: type) -> dict[str, str]:
    known = options_of(table)
    return {old: name for name, option in known.items() for old in option.also if old not in known}


def read(table: type, given: Keywords) -> OwnKeywords:
    """The keywords that were given, by their present names and checked; None leaves a keyword to its default."""
    known, aliases, found = options_of(table), _aliases(table), {}
    for key, value in given.items():
        name = aliases.get(key, key)
        if name not in known:
            shown = [each for each in known if not known[each].hidden]
            raise InputError(f"unknown option {key!r}; nearest: {nearest_of(key, shown)}")
        if value is None:
            continue
        if name in found:
            raise InputError(f"{key} and {name} say the same thing; give one")
        found[name] = known[name].check(name, value)
    return found


def number_of(name: str, value: object) -> float:
    """A share that may be text. Raises WorkloadError for anything else."""
    try:
        number = quantity(value, "share") if isinstance(value, str) else value
    except ValueError:
        number = value
    return float(OptionRow("", kind="number", most=1.0).check(name, number))


def model_of(table: type, leave: Iterable[str] = (), **more: Any) -> type[BaseModel]:
    """A table as a model of pydantic's, for programs that check or describe inputs.

    `leave` are rows that it does not have, `more` fields besides.

    >>> from rooflinekit.estimation.scenario import Scenario
    >>> model_of(Scenario)(batch=32).batch
    32
    """
    from pydantic import AfterValidator, ConfigDict, Field, create_model  # noqa: PLC0415 - nobody else pays for it

    fields, annotated = dict(more), cast(Any, Annotated)
    for name, option in options_of(table).items():
        if not option.hidden and name not in leave and name not in more:
            kind = annotated[option.type | None, AfterValidator(partial(_checked, name, option))]
            fields[name] = (kind, Field(default=None, json_schema_extra=option.json))
    return create_model(table.__name__, __config__=ConfigDict(extra="forbid"), **fields)


def _checked(name: str, option: OptionRow, value: Value) -> Value:
    return None if value is None else option.check(name, value)


def part_of(given: Keywords, names: Iterable[str]) -> OwnKeywords:
    """The given keywords."""
    return {name: given[name] for name in names if name in given}


Function = TypeVar("Function", bound=Callable[..., object])


def keywords(table: type) -> Callable[[Function], Function]:
    """Show the options of a table in the signature of a function that takes them as `**scenario`."""

    def decorated(function: Function) -> Function:
        from inspect import Parameter, signature  # noqa: PLC0415

        plain = signature(function)
        own = [each for each in plain.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        rows = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
            for name, option in options_of(table).items()
            if not option.hidden and name not in plain.parameters
        ]
        function.__signature__ = plain.replace(parameters=[*own, *rows])  # type: ignore[attr-defined]
        return function

    return decorated
