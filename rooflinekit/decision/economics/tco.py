"""What owning a fleet costs, and after how many months it is cheaper than renting.

    capital = (P − R·(1 + i)^−n)·i/(1 − (1 + i)^−n)     a month: annuity of price P and residual value R over n months
    running = W·PUE·730 h·USD/kWh + kW·rack + staff/12  a month and accelerator; cooling is in the PUE
    month of break-even: the first m with Σ rent/(1 + i)^k ≥ Σ purchases + Σ running/(1 + i)^k, k to m

i is the interest a month, (1 + a year's)^(1/12) − 1; a sale before the n months is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from rooflinekit.decision.economics.price import MONTH_HOURS, electricity, positive
from rooflinekit.model.types.errors import SpecError, WorkloadError, nearest
from rooflinekit.specs.files import read_yaml


@dataclass(frozen=True)
class Owning:
    """Stated inputs of a purchase.

    purchase: USD of one accelerator with its share of the host and network; years: of use; interest: a year; residual:
    share of the purchase that it is sold for then; power_price: USD/kWh; pue: power of the building over that of the
    machines; rack: USD a month for each kW of rated power; staff: USD a year for each accelerator.
    """

    purchase: float
    years: float
    interest: float = 0.0
    residual: float = 0.0
    power_price: float = 0.0
    pue: float = 1.0
    rack: float = 0.0
    staff: float = 0.0

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
        """What one accelerator costs a month, the annuity [USD].

        >>> round(Owning(30_000.0, 4.0, interest=0.08, residual=0.1).capital, 2)
        674.92
        """
        i, n = self.month_interest, self.months
        left = self.residual * self.purchase * (1.0 + i) ** -n
        return (self.purchase - left) * (i / (1.0 - (1.0 + i) ** -n) if i else 1.0 / n)

    def running(self, watts: float, rated: float) -> float:
        """Power, racks and staff of one accelerator a month [USD]: mean and rated watts of a board.

        >>> round(Owning(1.0, 1.0, power_price=0.1, pue=1.3, rack=150.0, staff=1200.0).running(500.0, 700.0), 2)
        252.45
        """
        energy = float(electricity(watts, self.power_price, self.pue)) * MONTH_HOURS
        return energy + rated / 1e3 * self.rack + self.staff / 12.0


def read_owning(path: str | PathLike[str]) -> Owning:
    """Read a YAML of the inputs of `Owning`; purchase and years are needed.

    Raises SpecError for an unknown or missing key, and for a value without sense.
    """
    data, known = read_yaml(Path(path)), [each.name for each in fields(Owning)]
    for key in data:
        if key not in known:
            raise SpecError(f"{path}: unknown key {key!r}; nearest: {', '.join(nearest(str(key), known) or known)}")
    for key in ("purchase", "years"):
        if key not in data:
            raise SpecError(f"{path}: {key} is missing")
    try:
        read = {key: positive(value, key, zero=key not in ("purchase", "years", "pue")) for key, value in data.items()}
        if (
            read.get("residual", 0.0) > 1.0
            or read.get("interest", 0.0) > 1.0
            or not 1.0 <= read.get("pue", 1.0) <= 10.0
        ):
            raise WorkloadError("residual and interest are shares up to 1, pue is from 1 to 10")
        if not 1.0 <= 12.0 * read["years"] <= 1200.0:
            raise WorkloadError("years must be from a month to a century")
    except WorkloadError as error:
        raise SpecError(f"{path}: {error}") from None
    return Owning(**read)


@dataclass(frozen=True)
class Tco:
    """Renting against owning: dollars a month of one accelerator, and of the fleet over the years of use, discounted.

    break_even_month: None where renting stays cheaper for all the years.
    """

    inputs: Owning
    capital_usd: float
    running_usd: float
    rent_usd: float
    own_usd: float
    break_even_month: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def rent_or_buy(owning: Owning, gpus: Sequence[int], rents: Sequence[float], watts: float, rated: float) -> Tco:
    """Compare a fleet that is bought as it grows with rents, month by month; the last month goes on.

    Args:
        owning: the inputs.
        gpus: accelerators that are needed in each month.
        rents: USD of each month.
        watts: mean power of a board.
        rated: its limit.

    Returns:
        Sums over the years of use, at the interest; of what is bought later its annuities until then.

    >>> owning = Owning(12_000.0, 2.0)
    >>> rent_or_buy(owning, [2], [2_000.0], 0.0, 0.0).break_even_month  # 24,000 USD at 2,000 a month
    12
    """
    i, running = owning.month_interest, owning.running(watts, rated)
    rent = own = bought = cash = 0.0
    owned, month_of = 0, None
    for month in range(1, owning.months + 1):
        place = min(month, len(gpus)) - 1
        now, worth = max(gpus[place], owned), (1.0 + i) ** -month
        bought += (now - owned) * owning.purchase * worth * (1.0 + i)
        owned = now
        rent += rents[place] * worth
        own += owned * (owning.capital + running) * worth
        cash += owned * running * worth
        if month_of is None and rent >= bought + cash:
            month_of = month
    return Tco(owning, owning.capital, running, rent, own, month_of)
