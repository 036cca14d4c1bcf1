"""The colours of things, the same in pictures, on pages and in the walk; page.css and walk.html repeat them.

Hues are those of Okabe and Ito (2008), in shades that stand out from the paper (3 : 1 at least, WCAG 2.1) and that
people with any kind of colour vision can tell apart within a chart.
"""

from __future__ import annotations

from collections.abc import Mapping

PALETTES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "weights": "#182e90", "cache": "#a34115", "activations": "#28a081", "engine": "#5a6369",
        "compute": "#752c61", "memory": "#1b6ca3", "network": "#b87f00", "overhead": "#67685b", "other": "#5c1020",
        "orange": "#f96106", "violet": "#7f20df", "cyan": "#0596c7", "rose": "#9c167b", "moss": "#1d4b02",
        "navy": "#02024b",
    },
    "dark": {
        "weights": "#149ef4", "cache": "#da6721", "activations": "#65fdd9", "engine": "#8a8b8d",
        "compute": "#c167bb", "memory": "#62c5fe", "network": "#e2a936", "overhead": "#9fb0a6", "other": "#fbee72",
        "orange": "#fca183", "violet": "#994de5", "cyan": "#51e5fb", "rose": "#df2080", "moss": "#e2fa38",
        "navy": "#8f9bef",
    },
}  # fmt: skip
"""By theme: weights blue, keys and values vermilion, activations green; arithmetic purple, memory sky blue, network
amber, engine and overhead grey; `other` is of pictures in the docs. The rest are of accelerators and of lines."""

CLASSES = {"weights": "weights", "KV": "cache", "activations": "activations", "network": "network", "engine": "engine"}
"""What bytes are, with the colour of each."""

CAUSES = ("memory", "compute", "network", "overhead")
"""What time is spent on."""

SERIES = ("orange", "violet", "cyan", "rose", "moss", "navy")
"""Accelerators, and lines of a table: never the colour of a quantity."""
