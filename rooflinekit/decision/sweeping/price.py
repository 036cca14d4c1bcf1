"""What each row costs: the price of its accelerators, and what a million output tokens takes of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import numpy as np
import pandas as pd

from rooflinekit.decision.economics.price import positive, priced_names, quoted_price, usd_per_million
from rooflinekit.model.types.errors import RooflinekitError
from rooflinekit.model.types.numeric import Array
from rooflinekit.specs import load_accelerator

__all__ = ["COST_COLUMNS", "check_price", "with_costs"]

COST_COLUMNS = ("usd_per_hour", "usd_per_million_output_tokens", "price_source")


def check_price(price: object) -> float | Mapping[str, float] | None:
    """Read a price for one accelerator hour [USD/h], of all or by name; None leaves it to the accelerators' files.

    Raises WorkloadError for what is no price.
    """
    named = priced_names(price)
    if isinstance(named, Mapping):
        return {name: positive(each, f"price of {name}", zero=True) for name, each in named.items()}
    return None if named is None else positive(named, "price", zero=True)


def with_costs(answers: pd.DataFrame, price: float | Mapping[str, float] | None) -> pd.DataFrame:
    """Add what a row costs: price · accelerators [USD/h], and that over its output tokens an hour.

    An idle accelerator is paid too; the price is the dated quote of the accelerator's file, or the one given. Rows
    whose accelerator has no price stay empty.

    >>> row = pd.DataFrame({"gpu": ["h100-sxm"], "gpus": [2.0], "output_tok_s": [1000.0]})
    >>> with_costs(row, 3.6)[list(COST_COLUMNS)].values.tolist()  # 7.2 USD/h over 3.6 million tokens
    [[7.2, 2.0, 'given']]
    """
    names = answers["gpu"] if "gpu" in answers else pd.Series("h100-sxm", index=answers.index)
    codes, distinct = pd.factorize(names.where(names.notna(), "h100-sxm").astype(str))
    quotes = [_hour(str(name), price) for name in distinct]
    each: Array = np.array([quote for _, quote in quotes], dtype=float)[codes]
    sources = pd.Series([source for source, _ in quotes], dtype="object").astype("str").array.take(codes)
    hourly = each * answers["gpus"].to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        million = usd_per_million(hourly, answers["output_tok_s"].to_numpy(dtype=float))
    added = dict(zip(COST_COLUMNS, (hourly, million, sources), strict=True))
    return pd.concat([answers, pd.DataFrame(added, index=answers.index)], axis=1)


def _hour(gpu: str, price: float | Mapping[str, float] | None) -> tuple[str, float]:
    if isinstance(price, Mapping):
        with suppress(RooflinekitError):  # the row says so
            price = price.get(load_accelerator(gpu).value.name)
    return ("given", price) if isinstance(price, float) else _quote(gpu)


@cache
def _quote(gpu: str) -> tuple[str, float]:
    try:
        quote = quoted_price(load_accelerator(gpu).value)
    except RooflinekitError:  # the row says so
        quote = None
    return ("", float("nan")) if quote is None else (quote.source, float(quote.usd_per_gpu_hour))
