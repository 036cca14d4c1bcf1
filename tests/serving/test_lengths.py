"""Lengths: moments against sums, quantiles against counts, samples against moments, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflinekit.load.lengths import MOST_TOKENS, Empirical, Fixed, LogNormal, Uniform, cv, parse_length
from rooflinekit.model.types.errors import InputError, SpecError

COUNT = 20_000


def counted(law):
    """Every value of a discrete law, as often as it is likely."""
    if isinstance(law, Fixed):
        return [law.tokens]
    if isinstance(law, Uniform):
        return list(range(law.low, law.high + 1))
    counts = np.diff([0, *law.upto])
    return [length for length, n in zip(law.tokens, counts, strict=True) for _ in range(n)]


discrete = st.one_of(
    st.integers(1, 10**6).map(Fixed),
    st.tuples(st.integers(1, 5000), st.integers(0, 500)).map(lambda pair: Uniform(pair[0], pair[0] + pair[1])),
    st.lists(st.integers(1, 10**5), min_size=1, max_size=60).map(Empirical.of),
)
laws = st.one_of(
    discrete,
    st.builds(LogNormal, st.floats(20, 1e4), st.floats(0.05, 3.0)),
    st.builds(LogNormal, st.floats(20, 1e3), st.floats(0.05, 3.0), st.integers(1000, 5000)),
)


@given(discrete)
def test_moments_and_quantiles_of_a_discrete_law_are_those_of_its_values(law):
    values = sorted(counted(law))
    assert law.mean == pytest.approx(np.mean(values))
    assert law.second_moment == pytest.approx(np.mean(np.square(values, dtype=float)))
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert law.quantile(share) == np.quantile(values, share, method="inverted_cdf")


@given(laws)
def test_quantiles_rise_and_no_second_moment_is_below_the_square_of_the_mean(law):
    shares = [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0]
    values = [law.quantile(share) for share in shares]
    assert values == sorted(values)
    assert values[0] >= 1.0
    assert law.second_moment >= law.mean**2 * (1 - 1e-12)


@given(laws, st.integers(0, 2**31))
def test_samples_are_whole_tokens_of_the_law_and_repeat_with_their_seed(law, seed):
    drawn = law.sample(np.random.default_rng(seed), 50)
    assert drawn == law.sample(np.random.default_rng(seed), 50)
    assert all(type(length) is int and 1 <= length <= max(law.quantile(1.0), 1.0) + 1 for length in drawn)


@pytest.mark.parametrize("law", [
    Uniform(100, 200), LogNormal(1000.0, 0.8), LogNormal(800.0, 1.5, 4096), Empirical.of([7, 7, 500, 9000]),
], ids=str)  # fmt: skip
def test_samples_have_the_moments_of_the_law(law):
    drawn = np.array(law.sample(np.random.default_rng(1), COUNT), dtype=float)
    deviation = math.sqrt(law.second_moment - law.mean**2)
    assert abs(drawn.mean() - law.mean) < 4 * deviation / math.sqrt(COUNT)  # four standard errors
    assert np.mean(drawn**2) == pytest.approx(law.second_moment, rel=0.15)
    assert np.quantile(drawn, 0.9) == pytest.approx(law.quantile(0.9), rel=0.05)


def test_a_lognormal_by_hand():
    """Median mean/√(1 + cv²), P84.13 one σ above it, second moment mean²·(1 + cv²)."""
    law = LogNormal(1000.0, 1.0)
    sigma = math.sqrt(math.log(2.0))
    assert law.quantile(0.5) == pytest.approx(1000.0 / math.sqrt(2.0))
    assert law.quantile(0.8413447) == pytest.approx(1000.0 / math.sqrt(2.0) * math.exp(sigma), rel=1e-6)
    assert law.second_moment == pytest.approx(2e6, rel=1e-3)  # cut off at 10 million tokens
    assert cv(law) == pytest.approx(1.0, rel=1e-3)


def test_a_cut_takes_from_the_mean_what_lies_beyond_it():
    """E[X] − E[min(X, m)] = ∫ P(X > x) dx beyond m, summed numerically."""
    free, cut = LogNormal(1000.0, 0.8), LogNormal(1000.0, 0.8, 2000)
    shares = (np.arange(200_000) + 0.5) / 200_000
    beyond = np.mean([max(free.quantile(share) - 2000.0, 0.0) for share in shares])
    assert free.mean - cut.mean == pytest.approx(beyond, rel=1e-3)
    assert cut.quantile(1.0) == pytest.approx(2000.0)


@pytest.mark.parametrize(("text", "law"), [
    ("1024", Fixed(1024)),
    (" 7 ", Fixed(7)),
    ("fixed:7", Fixed(7)),
    ("uniform:100-200", Uniform(100, 200)),
    ("Uniform: 5 - 5", Uniform(5, 5)),
    ("lognormal:mean=1000,cv=0.8", LogNormal(1000.0, 0.8)),
    ("lognormal:cv=0.8, mean=1000, max=8192", LogNormal(1000.0, 0.8, 8192)),
])  # fmt: skip
def test_texts_that_mean_a_length(text, law):
    assert parse_length(text) == law


@pytest.mark.parametrize(("text", "said"), [
    ("0", "at least 1"), ("-5", "at least 1"), ("2.5", "whole number"), ("1e3", "unknown length '1e3'"),
    ("99999999999", "at most 10,000,000"), ("", "unknown length"), ("unifrom:1-2", "nearest: uniform"),
    ("uniform:200-100", "uniform:100-200"), ("uniform:0-9", "at least 1"), ("uniform", "uniform:100-200"),
    ("uniform:low=1,high=2", "write it like '1024' or 'uniform:100-200'"),
    ("lognormal:mean=1000", "lacks cv"), ("lognormal:mean=1000,cv=0", "cv must be above 0"),
    ("lognormal:mean=nan,cv=1", "not 'nan'"), ("lognormal:mean=10,cv=1,sd=3", "takes no 'sd'"),
    ("lognormal:mean=10,cv=1,max=5", "mean <= max"), ("lognormal:mean=10,mean=10", "'mean=10' is given twice"),
    ("empirical:nowhere.txt", "no such file"), ("fixed:", "unknown length"),
])  # fmt: skip
def test_texts_that_mean_nothing_are_refused_by_name(text, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        parse_length(text)


@given(st.text(max_size=40))
def test_no_text_makes_anything_but_a_length_or_one_line(text):
    try:
        law = parse_length(text)
    except InputError as error:
        assert len(str(error).splitlines()) <= 1 or "\n" in text
    else:
        assert 1 <= law.mean <= MOST_TOKENS


def test_a_file_of_lengths(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("5\n\n1\n5\n9\n")
    assert parse_length(f"empirical:{file}") == Empirical.of([1, 5, 5, 9])
    file.write_text("5\n7\nmany\n")
    with pytest.raises(SpecError, match=r"lengths\.txt, line 3: 'many' is not a length"):
        parse_length(f"empirical:{file}")
    file.write_text("\n")
    with pytest.raises(SpecError, match="is empty"):
        parse_length(f"empirical:{file}")


def test_a_variation_whose_square_is_zero_is_none() -> None:
    tiny = parse_length("lognormal:mean=1000,cv=1e-320")
    assert tiny.mean == pytest.approx(1000.0)
