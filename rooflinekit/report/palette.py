"""The colours of things, the same in pictures, on pages and in the walk; page.css and walk.html repeat them.

Hues are those of Okabe and Ito (2008), in shades that stand out from the paper (3 : 1 at least, WCAG 2.1) and that
people with any kind of colour vision can tell apart within a chart.
"""

from __future__ import annotations

from collections.abc import Mapping

from rooflinekit.specs.files import table_of

PALETTES: Mapping[str, Mapping[str, str]] = table_of(__file__)
"""By theme, the colour of each thing."""

CLASSES = {"weights": "weights", "KV": "cache", "activations": "activations", "network": "network", "engine": "engine"}
"""What bytes are, with the colour of each."""

CAUSES = ("memory", "compute", "network", "overhead")
"""What time is spent on."""

SERIES = ("orange", "violet", "cyan", "rose", "moss", "navy")
"""Accelerators, and lines of a table: never the colour of a quantity."""
