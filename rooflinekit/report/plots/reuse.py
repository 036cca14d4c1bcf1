"""Pictures of a trace with block ids: the hit rate of a prefix cache over its size, and what each memory saves."""

from __future__ import annotations

from rooflinekit.decision.economics.retention import TraceAnswer
from rooflinekit.model.types.errors import InputError
from rooflinekit.model.types.units import format_count
from rooflinekit.report.document import three
from rooflinekit.report.plots.picture import Picture
from rooflinekit.report.plots.style import Frame, Theme, decades, label_ticks
from rooflinekit.report.plots.words import scale_text


def hit_rate(found: TraceAnswer, theme: Theme) -> Picture:
    """Share of the prompt tokens that a cache finds, over its tokens; where each memory ends; TTFT and USD there.

    Raises InputError for a trace without block ids.
    """
    if found.hit_rate is None:
        raise InputError(f"{found.trace} has no block ids (hash_ids): nothing to draw")
    count = 3 if found.memories else 1
    place = "" if found.deployment is None else f", {found.deployment['model']} on {found.deployment['gpu']}"
    subject = f"{found.trace}, {found.replicas} replica{'s' if found.replicas > 1 else ''}{place}"
    frame = Frame("What a prefix cache finds", subject, f"rooflinekit {found.version}", theme)
    figure, panels = frame.panels(3.6 + 1.9 * count, 3.4, count, width_ratios=[2, 1, 1][:count])
    first = panels[0]
    sizes, shares = zip(*found.curve, strict=True)
    first.plot(sizes, [100 * share for share in shares], color=theme.ink, gid="hit rate")
    first.set(xscale="log", ylim=(0, max(100 * found.hit_rate * 1.15, 1.0)), xlabel="cache of one replica [tokens]",
              ylabel="prompt tokens found [%]")  # fmt: skip
    decades(first.xaxis, scale_text)
    for number, each in enumerate(found.memories):
        color = theme.series[number % len(theme.series)]
        first.plot(each.tokens, 100 * each.hit_rate, marker="o", ms=6, color=color, ls="", gid=each.memory)
        end = each.tokens, 100 * each.hit_rate
        first.annotate(each.memory, end, (-6, 6), textcoords="offset points", ha="right", fontsize=7, color=color)
    for panel, key, title in zip(panels[1:], ("ttft_ms", "usd_per_million"), ("mean TTFT [ms]", "USD a million tokens"),
                                 strict=False):  # fmt: skip
        values = [getattr(each, key) for each in found.memories]
        panel.bar(range(len(values)), [value or 0.0 for value in values], color=theme.series[: len(values)], gid=key)
        for at, value in enumerate(values):
            text = three(value) if value is not None else "piles up" if key == "ttft_ms" else "no price"
            panel.annotate(text, (at, value or 0.0), (0, 3), textcoords="offset points", ha="center", fontsize=7)
        label_ticks(panel.xaxis, [f"+ {each.memory}" if at else "alone" for at, each in enumerate(found.memories)])
        panel.set_ylabel(title)
        panel.margins(y=0.15)
    parts = [f"{each.memory} {format_count(each.tokens)} tokens, {each.hit_rate:.1%}" for each in found.memories]
    words = f"Of {found.trace} a cache without end finds {found.hit_rate:.1%} of the prompt tokens. {'; '.join(parts)}"
    return Picture("hit-rate", frame.title, f"{words.rstrip('. ')}.", figure, theme)
