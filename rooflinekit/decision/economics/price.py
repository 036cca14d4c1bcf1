"""Price of one accelerator hour: a quote, a given price, or a purchase over its years; and what it draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from rooflinekit.estimation.options import quantity
from rooflinekit.model.types.answer import Json
from rooflinekit.model.types.batch import positive
from rooflinekit.model.types.errors import InputError, SpecError, UnknownNameError, WorkloadError
from rooflinekit.model.types.hardware import Accelerator, HostPower
from rooflinekit.model.types.numeric import Numeric
from rooflinekit.model.types.units import percent
from rooflinekit.specs import load_accelerator
from rooflinekit.specs.delimited import text_rows
from rooflinekit.specs.files import kept, read_yaml
from rooflinekit.specs.section import FileSection, described

PRICE_KEYS = ("price", "purchase", "years", "power_price", "pue")
"""USD of an accelerator hour; or USD of a purchase, its years, USD of a kWh, and PUE."""

HOURS_PER_YEAR = 8760.0
"""365 days of 24 hours."""
MONTH_HOURS = HOURS_PER_YEAR / 12.0
"""A twelfth of them."""

_PUE = "power of the building over power of the machines"
_MOST = 1e12  # no price, wattage or number of years that a user may give is larger

POWER_NOTE = "power: boards as predicted (docs/method.md, section 11), idle between requests, with their share of hosts"


def host_note(host: HostPower) -> str:
    """Factors on the power of boards, and their source."""
    shares = f"{percent(host.cpu)} CPUs" + (
        f", {percent(host.rest)} memory, network and fans" if host.rest else " and memory"
    )
    return f"hosts: {shares} beside the boards, supplies at {percent(host.supply)} ({host.source})"


def electricity(watts: Numeric, usd_per_kwh: Numeric, pue: Numeric) -> Numeric:
    """Electricity of an hour, that of the building included: W/1000 · PUE · $/kWh [USD/h].

    >>> round(electricity(700.0, 0.10, 1.2), 6)
    0.084
    """
    return watts / 1000.0 * pue * usd_per_kwh


def usd_per_million(usd_per_hour: Numeric, tokens_per_second: Numeric) -> Numeric:
    """Price of a million tokens where that many come out all the time: usd/h over millions of tokens an hour [USD].

    >>> usd_per_million(7.2, 1000.0)  # 3.6 million tokens an hour
    2.0
    """
    return usd_per_hour / (tokens_per_second * (3600.0 / 1e6))


@dataclass(frozen=True)
class HourlyPrice:
    """Price of one accelerator hour [USD/h], and who says so.

    low, high: those of a quote, if known; term: for how long it is rented (on demand, three years), "" if nobody says.
    months: that are paid whether it is used or not; interruptions: how often a month a machine is taken away, None for
    one that is not.
    """

    usd_per_gpu_hour: Numeric
    source: str
    low: float | None = None
    high: float | None = None
    term: str = ""
    months: float = field(default=0.0, repr=False)
    interruptions: float | None = field(default=None, repr=False)

    @property
    def on_demand(self) -> bool:
        """Paid by the hour, and kept as long as it is wanted."""
        return not self.months and self.interruptions is None

    def to_dict(self) -> Json:
        """Return the price as JSON."""
        return {
            "usd_per_gpu_hour": float(self.usd_per_gpu_hour),
            "source": self.source,
            "low": self.low,
            "high": self.high,
            "term": self.term,
        }

    def __str__(self) -> str:
        said = [
            self.term,
            self.source,
            f"quotes from ${self.low:g} to ${self.high:g}" if self.low and self.high else "",
        ]
        return f"${float(self.usd_per_gpu_hour):g} a GPU-hour ({', '.join(filter(None, said))})"


@dataclass(frozen=True)
class Purchase:
    """Stated inputs of a purchase.

    purchase: USD of one accelerator with its share of the host and network; years: of use; interest: a year; residual:
    share of the purchase that it is sold for then; power_price: USD/kWh; pue: power of the building over that of the
    machines, 1 if cooling is not counted; rack: USD a month for each kW of rated power; staff: USD a year for each
    accelerator.
    """

    purchase: float
    years: float
    interest: float = 0.0
    residual: float = 0.0
    power_price: float = 0.0
    pue: float = 1.0
    rack: float = 0.0
    staff: float = 0.0

    @classmethod
    def checked(cls, **given: object) -> Purchase:
        """Read user input."""
        zero = {"purchase", "years", "pue"}
        read = {key: positive(value, key, zero=key not in zero) for key, value in given.items()}
        if read.get("pue", 1.0) < 1.0:
            raise WorkloadError(f"pue is {_PUE}, at least 1, not {given['pue']!r}")
        return cls(**read)

    def usd_per_gpu_hour(self, watts: Numeric) -> Numeric:
        """Purchase over its hours, and electricity: P/(years · 8760) + W/1000 · PUE · $/kWh [USD/h].

        `watts` is the mean power of a board. Every hour is paid, whether the accelerator is busy or not.
        Interest, space and staff are not in it.

        >>> round(Purchase(35040.0, 4.0).usd_per_gpu_hour(700.0), 6)  # 35040 USD over 35040 hours
        1.0
        >>> round(Purchase(35040.0, 4.0, power_price=0.10, pue=1.2).usd_per_gpu_hour(700.0), 6)  # and 0.84 kWh an hour
        1.084
        """
        return self.purchase / (self.years * HOURS_PER_YEAR) + electricity(watts, self.power_price, self.pue)

    @property
    def month_interest(self) -> float:
        """Interest a month."""
        return float((1.0 + self.interest) ** (1.0 / 12.0) - 1.0)

    @property
    def months(self) -> int:
        """Months of use."""
        return round(12.0 * self.years)

    @property
    def capital(self) -> float:
        """Monthly annuity of one accelerator [USD].

        >>> round(Purchase(30_000.0, 4.0, interest=0.08, residual=0.1).capital, 2)
        674.92
        """
        i, n = self.month_interest, self.months
        left = self.residual * self.purchase * (1.0 + i) ** -n
        return (self.purchase - left) * (i / (1.0 - (1.0 + i) ** -n) if i else 1.0 / n)

    def running(self, watts: float, rated: float) -> float:
        """Power, racks and staff of one accelerator a month [USD]: mean and rated watts of a board.

        >>> round(Purchase(1.0, 1.0, power_price=0.1, pue=1.3, rack=150.0, staff=1200.0).running(500.0, 700.0), 2)
        252.45
        """
        energy = float(electricity(watts, self.power_price, self.pue)) * MONTH_HOURS
        return energy + rated / 1e3 * self.rack + self.staff / 12.0


def read_owning(path: str | PathLike[str]) -> Purchase:
    """Read a YAML of the inputs of a `Purchase`; purchase and years are needed."""
    section = FileSection(Path(path), "", read_yaml(Path(path)))
    required, known = described(Purchase)
    section.expect(required, known)
    try:
        owning = Purchase.checked(**section.data)
        for key, most in (("residual", 1.0), ("interest", 1.0), ("pue", 10.0)):
            if getattr(owning, key) > most:
                raise WorkloadError(f"{key} must be at most {most:g}, not {getattr(owning, key):g}")
        if not 1.0 <= 12.0 * owning.years <= 1200.0:
            raise WorkloadError("years must be from a month to a century")
    except WorkloadError as error:
        raise SpecError(f"{path}: {error}") from None
    return owning


def quoted_price(accelerator: Accelerator) -> HourlyPrice | None:
    """The dated quote in an accelerator's file, None if it has none.

    >>> from rooflinekit.specs import load_accelerator
    >>> quoted_price(load_accelerator("l40s").value) is None
    True
    """
    quote = accelerator.price
    if quote is None:
        return None
    source = quote.source if quote.date in quote.source else f"{quote.source} ({quote.date})"
    return HourlyPrice(quote.usd_per_hour, source, quote.low, quote.high)


def hourly_price(accelerator: Accelerator, price: object = None) -> HourlyPrice:
    """Price of an accelerator hour: the price given (USD, or a quote), or else the quote in the accelerator's file.

    >>> from rooflinekit.specs import load_accelerator
    >>> hourly_price(load_accelerator("l40s").value, 0.9)
    HourlyPrice(usd_per_gpu_hour=0.9, source='given', low=None, high=None, term='')
    """
    if price is not None:
        return price if isinstance(price, HourlyPrice) else HourlyPrice(positive(price, "price"), "given")
    quote = quoted_price(accelerator)
    if quote is None:
        raise InputError(
            f"{accelerator.name} has no price in its file; give price (USD for one GPU hour), or purchase and years"
        )
    return quote


def read_price(
    accelerator: Accelerator, given: Mapping[str, object], watts: float | None
) -> tuple[HourlyPrice, tuple[str, ...]]:
    """Read the `PRICE_KEYS` of a scenario; without any, the quote in the accelerator's file. Notes on prices besides.

    `watts`: mean power of a board, for which a purchase is charged; None where nobody knows it.
    """
    asked = {key: given[key] for key in PRICE_KEYS if given.get(key) is not None}
    quotes = quotes_of([accelerator], asked.get("price"))
    if "purchase" not in asked:
        for key in ("years", "power_price"):
            if key in asked:
                raise InputError(f"{key} belongs to a purchase; add purchase (USD for one accelerator and its host)")
        return hourly_price(accelerator, quotes.hourly[accelerator.name] if "price" in asked else None), quotes.notes
    if "years" not in asked:
        raise InputError("purchase needs years: over how many years it is spread")
    bought = Purchase.checked(**{key: value for key, value in asked.items() if key != "price"})
    if "price" in asked:
        raise InputError("price and purchase exclude each other: rent by the hour, or a purchase over its years")
    if watts is None and bought.power_price:
        raise InputError(f"{accelerator.name} has no rated power in its file, so its electricity cannot be priced")
    words = f"purchase of ${bought.purchase:,.0f} over {bought.years:g} years"
    if bought.power_price:
        words += f", ${bought.power_price:g}/kWh at {watts:.0f} W with the host and PUE {bought.pue:g}"
    return HourlyPrice(bought.usd_per_gpu_hour(watts or 0.0), words), quotes.notes


@dataclass(frozen=True)
class Quotes:
    """Prices of some accelerators by full name (None: nobody knows), and what a user should hear about them.

    terms: commitments and spot prices beside them.
    """

    hourly: Mapping[str, HourlyPrice | None]
    notes: tuple[str, ...] = ()
    terms: Mapping[str, tuple[HourlyPrice, ...]] = field(default_factory=dict)


def quotes_of(accelerators: Iterable[Accelerator], price: object = None) -> Quotes:
    """Prices of accelerators that are compared: those given, else the dated quotes in their files.

    Args:
        accelerators: that are compared.
        price: USD of an hour of each; or by name; or a CSV with columns name, term, low, high, source, and
            perhaps commitment and interruptions, whose rows are the terms beside the price on demand.

    Returns:
        Prices like for like: of several terms in a file the one that all have, of more than one that on demand.
        Unused prices, missing ones and prices of unlike terms are notes.

    Raises:
        InputError: for a name nobody knows, or terms of which none is common to all; WorkloadError for what is no
            price; SpecError for a file that cannot be read.

    >>> from rooflinekit.specs import load_accelerator
    >>> found = quotes_of([load_accelerator("h100-sxm").value], {"h100": 2.5, "h200": 3.5})
    >>> found.hourly["h100-sxm"].usd_per_gpu_hour, found.notes
    (2.5, ('the price of h200-sxm is not used',))
    """
    loaded = {each.name: each for each in accelerators}
    if isinstance(price, (str, Path)) and str(price).endswith(".csv"):
        quoted = _price_file(Path(price))
        rows = {name: [row for row in own if row.on_demand] for name, own in quoted.items()}
        beside = {name: tuple(row for row in own if not row.on_demand) for name, own in quoted.items()}
    else:
        beside, named = {}, priced_names(price)
        if not isinstance(named, Mapping):
            return Quotes(
                {
                    name: quoted_price(each) if named is None else hourly_price(each, named)
                    for name, each in loaded.items()
                },
                (),
            )
        rows = {name: [HourlyPrice(positive(usd, f"price of {name}"), "given")] for name, usd in named.items()}
    terms = [{row.term for row in rows[name]} for name in loaded if name in rows]
    common = set.intersection(*terms) if terms else set()
    several = any(len(each) > 1 for each in terms)
    if len(common) > 1:
        common = {term for term in common if term.lower() == "on demand"} or common
    if several and len(common) != 1:
        listed = "; ".join(f"{name}: {', '.join(r.term for r in rows[name])}" for name in loaded if name in rows)
        which = "several terms are" if common else "no one term is"
        mend = "keep one, or say in a column commitment which rows are commitments"
        raise InputError(f"prices are compared like for like, and {which} common to all ({listed}); {mend}")
    chosen = {name: next(r for r in rows[name] if not several or r.term in common) for name in loaded if name in rows}
    hourly = {name: chosen.get(name) or quoted_price(each) for name, each in loaded.items()}
    unused = [name for name in rows if name not in loaded]
    notes = [f"the price of {', '.join(unused)} is not used"] if unused else []
    left = [f"{name} {row.term}" for name in chosen for row in rows[name] if row.term != chosen[name].term]
    notes += [f"prices of other terms are not used: {', '.join(left)}"] if left else []
    kinds = {
        name: chosen[name].term or "given" if name in chosen else "a catalogue quote"
        for name, price in hourly.items()
        if price is not None
    }
    if len(set(kinds.values())) > 1:
        told = (
            f"{name} {kind} ${float(price.usd_per_gpu_hour):g}"
            for name, kind in kinds.items()
            if (price := hourly[name])
        )
        notes.append(f"prices are not like for like, an hour: {', '.join(told)}")
    return Quotes(hourly, tuple(notes), beside)


def _price_file(path: Path) -> dict[str, list[HourlyPrice]]:
    """Quotes of a CSV by accelerator, those on demand first; the price is the middle of low and high."""
    names, rows = text_rows(path)
    missing = [key for key in _COLUMNS if not rows or key not in names]
    if missing:
        raise SpecError(f"{path}: needs the columns {', '.join(_COLUMNS)}; {', '.join(missing)} is missing")
    found: dict[str, list[HourlyPrice]] = {}
    for line, row in rows:
        try:
            low, high = (positive(quantity(row[key], "USD/h"), key) for key in ("low", "high"))
            months, interruptions = _terms(row)
        except (ValueError, WorkloadError) as error:
            raise SpecError(f"{path}, line {line}: {error}") from None
        if low > high:
            raise SpecError(f"{path}, line {line}: low {low:g} is above high {high:g}")
        name = load_accelerator(row["name"]).value.name
        source, term = (row[key] for key in ("source", "term"))
        quote = HourlyPrice((low + high) / 2.0, source or path.name, low, high, term, months, interruptions)
        if quote.term in {other.term for other in found.get(name, ())}:
            raise SpecError(f"{path}, line {line}: {name} {quote.term} has a price already")
        found.setdefault(name, []).append(quote)
    for name, quotes in found.items():
        quotes.sort(key=lambda quote: not quote.on_demand)
        if not quotes[0].on_demand:
            raise SpecError(f"{path}: {name} has no price on demand; add a row without commitment and interruptions")
    return found


def _terms(row: Mapping[str, str]) -> tuple[float, float | None]:
    """Months of a commitment, and interruptions a month of a spot price. Raises ValueError and WorkloadError."""
    said, often = (row.get(key, "") for key in ("commitment", "interruptions"))
    wanted = WorkloadError(f"commitment must be whole months, like 12 months or 3 years, not {said!r}")
    try:
        months = 0.0 if said in ("", "0", "none") else 12.0 * positive(quantity(said, "years"), "commitment")
    except ValueError:
        raise wanted from None
    if abs(months - round(months)) > 1e-6:
        raise wanted
    if months and often:
        raise WorkloadError("a price has a commitment or interruptions, not both; leave one empty")
    return float(round(months)), positive(quantity(often), "interruptions", zero=True) if often else None


_COLUMNS = ("name", "term", "low", "high", "source")


def priced_names(price: object) -> object:
    """A price, or prices by the full names of accelerators. Raises UnknownNameError for a name nobody knows."""
    if isinstance(price, (str, Path)) and str(price).endswith(".csv"):
        return {name: float(quotes[0].usd_per_gpu_hour) for name, quotes in _price_file(Path(price)).items()}
    if isinstance(price, str) and "=" in price:
        pairs = (part.rpartition("=") for part in price.split(","))
        price = {name.strip(): quantity(usd, "USD/h") for name, _, usd in pairs}
    if not isinstance(price, Mapping):
        return price
    return {load_accelerator(str(name)).value.name: usd for name, usd in price.items()}


def price_among(price: object, accelerators: Iterable[Accelerator]) -> object:
    """The one price of some accelerators, where it is given for all, or as `name=USD`.

    >>> from rooflinekit.specs import load_accelerator
    >>> price_among({"h100": 2.5, "h200": 3.5}, [load_accelerator("h100-sxm").value])
    2.5
    """
    named, names = priced_names(price), [accelerator.name for accelerator in accelerators]
    if not isinstance(named, Mapping):
        return named
    found = {named[name] for name in names if name in named}
    if not found:
        raise InputError(f"a price is given for {', '.join(named)}, which is not among {', '.join(names)}")
    if len(found) > 1:
        raise InputError("one price an hour is needed here; give --price once")
    return found.pop()


def co2_per_million(joules: Numeric, grams: float) -> Numeric:
    """Kg of CO2 for a million tokens of so many joules each, at so many grams a kWh.

    >>> co2_per_million(0.36, 380.0)  # 0.36 J is a tenth of a kWh a million
    0.038
    """
    return joules * (grams / 3.6e6 * 1e3)


def read_carbon(given: object) -> tuple[float, str] | None:
    """Grams of CO2 a kWh and where they come from: a number, or the name of a grid of `grids.yaml`.

    >>> read_carbon("380"), read_carbon(None)
    ((380.0, 'given'), None)
    """
    if given is None:
        return None
    name = str(given).strip().lower()
    try:
        number = float(name)
    except ValueError:
        number = None
    if number is not None:
        return positive(number, "carbon", zero=True), "given"
    table = kept(read_yaml, Path(__file__).with_name("grids.yaml"))
    if name not in table["grids"]:
        raise UnknownNameError("grid", str(given), list(table["grids"]))
    return float(table["grids"][name]), f"{name} {table['year']}: {table['source']}"
