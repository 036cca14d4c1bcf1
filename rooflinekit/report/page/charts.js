// What each chart shows of a view.
"use strict";
const LOOK = DATA.look, TIME_PARTS = LOOK?.step ?? [];  // names, hues, hatches and shapes, from the table of the terminal and the pictures
const BYTES = ["weights", "cache", "activations"], CLASSES = BYTES.map((name) => [name, LOOK?.names[name]]);
const STEPS = ["prefill", "decode"];
const moved = (part) => part.weights + part.cache + part.activations;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const causeOf = ({ causes }) => CAUSES.reduce((best, name) => (causes[name] > causes[best] ? name : best), "memory");
const quantityOf = (part) => { const cause = causeOf(part); return cause === "memory" ? BYTES.reduce((best, name) => (part[name] > part[best] ? name : best), "weights") : cause; };  // that takes most of the time
const HATCHES = { "//": "repeating-linear-gradient(45deg, transparent 0 5px, var(--card) 5px 6.5px)", "..": "radial-gradient(var(--card) 1.2px, transparent 1.5px) 0 0 / 7px 7px", xx: "repeating-linear-gradient(45deg, transparent 0 5px, var(--card) 5px 6px), repeating-linear-gradient(-45deg, transparent 0 5px, var(--card) 5px 6px)" };
const hatched = (limit, tint) => [HATCHES[LOOK.limits[limit]], `var(--${tint})`].filter((each) => each).join(", ");  // the background of a bar
const dtypeOf = (gpu, peak) => Object.entries(gpu.peaks).filter(([, rate]) => Math.abs(rate / peak - 1) < 1e-9).map(([name]) => name).join(", ");

const outlined = () => ({ textBorderColor: colour("card"), textBorderWidth: 3 });


function luminance(tint) {  // relative, of #rrggbb (WCAG 2.1)
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(tint.slice(at, at + 2), 16) / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function readable(fill) {  // the better of two colours for text on a fill
  const [ground, card, ink] = [fill, "card", "ink"].map((name) => luminance(colour(name)) + 0.05);
  const contrast = (other) => Math.max(ground, other) / Math.min(ground, other);
  return colour(contrast(card) >= contrast(ink) ? "card" : "ink");
}

// ---- roofline: what a kernel reaches, in FLOP/s or as a share of what its roof allows, against its intensity
const LENSES = { rate: "FLOP/s", share: "Share of the roof" };
const LENS_SAID = {
  rate: "Each dot is a kernel; larger dots take longer. Nothing can lie above the solid roofs of memory and arithmetic. Dashed: the fastest L2 rate seen in measured kernels.",
  share: "Each dot is a kernel; larger dots take longer. Its height is the share that it reaches of the roof at its intensity; above 100 % the L2 cache serves it.",
};
const reachOf = (part, { at }) => Math.max(part.flops / part.peak, moved(part) / (OFFERS.gpus[at.gpu]?.bandwidth * at.speed)) / part.time;  // of the roof
const placeOf = (part, view) => [part.flops / moved(part), lens === "share" ? reachOf(part, view) : part.flops / part.time];
const drawn = (part) => part.flops > 0 && moved(part) > 0;
function rooflinePoints(view, step) {
  const time = sum(view[step].map((part) => part.time));
  const points = view[step].filter(drawn).map((part) => ({
    value: placeOf(part, view), part, reach: reachOf(part, view), share: part.time / time, symbolSize: 5 + 34 * Math.sqrt(part.time / time),
  })).filter(({ value }) => value[1] > 0).sort((a, b) => b.share - a.share), told = [];
  const beside = ([x, y], [u, v]) => Math.abs(Math.log10(x / u)) < 0.45 && (lens === "share" ? Math.abs(y - v) < 0.07 : Math.abs(Math.log10(y / v)) < 0.3);
  for (const point of points) {  // of points that lie together the largest is named, with the number of others
    const near = told.find(({ value }) => beside(value, point.value));
    if (near) near.others++;
    else told.push(Object.assign(point, { told: true, others: 0 }));
  }
  return points;
}
const isNamed = (point) => point.told && point.share > (small() ? 0.05 : 0.02);
const batchesOf = (view) => (view.batches ??= sweep(view, "batch", BATCHES));
function trailsOf(view, points) {  // where the named kernels of the step lie at each batch
  return points.filter(isNamed).map(({ part }) => batchesOf(view).flatMap((each) => {
    const other = each[step].find(({ name, count }) => name === part.name && count === part.count);
    const told = () => pointText({ part: other, share: other.time / sum(each[step].map(({ time }) => time)), reach: reachOf(other, each) });
    return other && drawn(other) ? [{ value: placeOf(other, each), batch: each.at.batch, said: `batch ${GROUPED.format(each.at.batch)}${each.memory.fits ? "" : " (does not fit in memory)"}\n${told()}` }] : [];
  }));
}

function roofLines(view, gpu, from, to) {
  const used = [...new Set(STEPS.flatMap((step) => view[step].map((part) => part.peak)).filter((peak) => peak > 0))];
  const speed = view.at.speed, memory = gpu.bandwidth * speed, top = Math.max(...used);
  if (lens === "share") return [{ name: "the roof", points: [[from, 1], [to, 1]], main: true, level: true }, ...used.map((peak) => ({ points: [[peak / memory, 1], [to, 1]], ridge: peak / memory }))];
  const diagonal = (rate, name, more) => ({ name, rate, points: [[from, rate * from], [Math.min(top / rate, to), Math.min(top, rate * to)]], ...more });
  const lines = [diagonal(memory, `HBM ${prefixed(memory, "B/s")}`, { main: true })];
  const [cache, told] = view.rows.plan.l2 ?? [0, ""];
  if (cache > memory) lines.push(diagonal(cache, `L2 ${prefixed(cache, "B/s")}${small() ? " (fitted)" : `, fitted to ${told}`}`, {}));
  if (gpu.link && view.gpus > 1) lines.push(diagonal(gpu.link, `${gpu.link_kind || "link"} ${prefixed(gpu.link, "B/s")}${small() ? "" : ", per byte sent"}`, {}));
  for (const peak of used) lines.push({ name: `${dtypeOf(gpu, peak)} ${prefixed(peak, "FLOP/s")}`, points: [[peak / memory, peak], [to, peak]], main: true, level: true, ridge: peak / memory });
  return lines;
}

function rooflineOption(view, gpu, reference) {
  const points = STEPS.map((step) => rooflinePoints(view, step)), trails = trailsOf(view, points[STEPS.indexOf(step)]), all = [...points, ...trails].flat().map((point) => point.value);
  const from = 10 ** Math.floor(Math.log10(Math.min(0.5, ...all.map((v) => v[0])))), to = 10 ** Math.ceil(Math.log10(Math.max(3000, ...all.map((v) => v[0]))));
  const lines = roofLines(view, gpu, from, to), peak = Math.max(...lines.map((line) => line.points[1][1])), share = lens === "share";
  const low = share ? 0 : 10 ** Math.floor(Math.log10(Math.max(peak * 1e-7, Math.min(peak / 1e3, ...all.map((v) => v[1]))))), high = share ? Math.max(1.1, 0.1 + 0.2 * Math.ceil(5 * Math.max(...all.map((v) => v[1])))) : 10 ** Math.ceil(Math.log10(peak * 1.2));
  const tintOf = (point) => colour(!view.memory.fits ? "bad" : point.part ? quantityOf(point.part) : "soft");
  const option = base(), grid = { ...option.grid, left: small() ? 54 : share ? 66 : 100, right: 24, top: 24 };
  const ends = trails.slice(0, 1).flatMap((trail) => [trail[0], trail[trail.length - 1]]).filter(Boolean).map((each, last) => ({ ...each, symbolSize: 4, share: 0, named: last ? GROUPED.format(each.batch) : `batch ${each.batch}` }));
  const others = reference ? STEPS.map((step) => rooflinePoints(reference, step).map((point) => ({ ...point, named: "" }))) : [];
  nameDots([...points.flat(), ...ends, ...others.flat()], lines, { grid, from, to, low, high });
  const roof = (line) => ({
    type: "line", data: line.points, symbol: "none", silent: true, z: 1,
    lineStyle: { color: colour(line.main ? "ink" : "soft"), width: line.main ? 1.6 : 1.1, type: line.main ? "solid" : "dashed" },
    markLine: {
      symbol: "none", silent: true, lineStyle: { color: "transparent" },
      label: { show: true, formatter: line.name, position: line.level ? "insideEndTop" : "insideStartTop", ...text(12.5), color: colour("ink"), distance: 5, ...outlined() },
      data: [[{ coord: line.level ? line.points[0] : clipped(line, low) }, { coord: line.points[1] }]],
    },
  });
  const ridge = lines.filter((line) => line.ridge).map((line) => ({
    type: "line", data: [[line.ridge, low], [line.ridge, line.points[0][1]]], symbol: "none", silent: true, z: 1,
    lineStyle: { color: colour("soft"), width: 1, type: "dotted" },
    markLine: { symbol: "none", silent: true, lineStyle: { color: "transparent" }, data: [[{ coord: [line.ridge, low] }, { coord: [line.ridge, line.points[0][1]] }]],
      label: { show: true, formatter: `ridge ${three(line.ridge)} FLOP/B`, position: "insideStartBottom", ...text(12), distance: 4 } },
  }));
  const labelled = (point, tint) => ({ ...point, label: { show: Boolean(point.name), distance: 3, ...text(12), color: colour(tint), ...outlined(), formatter: ({ data }) => data.name, ...labelAt(point) } });
  const dots = STEPS.map((step, place) => ({
    type: "scatter", name: step, symbol: LOOK.shapes[step], z: 4,
    data: points[place].map((point) => ({ ...labelled(point, "ink"), itemStyle: { color: view.memory.fits ? tintOf(point) : "transparent", borderColor: view.memory.fits ? colour("card") : tintOf(point) } })),
    itemStyle: { opacity: view.memory.fits ? 0.85 : 1, borderWidth: view.memory.fits ? 1 : 2 },
  }));
  const trail = trails.map((data) => ({ type: "line", name: "trail", data, symbol: "circle", symbolSize: 4, z: 3, lineStyle: { width: 1.2, color: colour("soft"), opacity: 0.6 }, itemStyle: { color: colour("soft"), opacity: 0.7 } }));
  trail.push({ type: "scatter", silent: true, data: ends.map((each) => labelled(each, "soft")), itemStyle: { color: colour("soft"), opacity: 0.7 }, z: 3 });
  const shadow = others.map((data, place) => ({
    type: "scatter", data, symbol: LOOK.shapes[STEPS[place]], z: 2,
    itemStyle: { color: "transparent", borderColor: colour("soft"), borderWidth: 1.2 },
  }));
  option.grid = grid;
  option.tooltip.formatter = ({ data }) => data?.said ?? (data?.part ? pointText(data) : "");
  const up = { min: low, max: high };
  return {
    ...option, xAxis: logarithmic("FLOP per byte of memory traffic", "", { axis: { min: from, max: to } }),
    yAxis: share ? along("", { axis: { ...up, interval: 0.2 }, label: { formatter: asPercent, showMaxLabel: false } }) : logarithmic(small() ? "FLOP/s" : "", small() ? "" : "FLOP/s", { axis: { ...up, nameLocation: "end", nameGap: 8 } }),
    series: [...lines.filter(({ name }) => name).map(roof), ...ridge, ...shadow, ...trail, ...dots],
  };
}

function nameDots(points, lines, { grid, from, to, low, high }) {  // a name for the largest points, on the side that hides the least
  const chart = CHARTS.get("roofline"), wide = chart.wide - grid.left - grid.right, tall = chart.height() - grid.top - grid.bottom;
  const rise = (y) => (low ? Math.log10(high / y) / Math.log10(high / low) : 1 - y / high);
  const pixels = ([x, y]) => [grid.left + wide * Math.log10(x / from) / Math.log10(to / from), grid.top + tall * rise(y)];
  const ranked = points.map((point) => {
    const [x, y] = pixels(point.value);
    return Object.assign(point, { x, y, radius: point.symbolSize / 2, name: point.named ?? (isNamed(point) ? `${point.part.name}${point.others ? ` + ${point.others}` : ""}` : "") });
  }).sort((a, b) => b.share - a.share);
  const taken = lines.filter(({ name }) => name).flatMap((line) => {
    const length = LETTER * line.name.length, [x, y] = pixels(line.points[1]);
    return line.level ? [[x - length, y - 18, length, 16], [pixels(line.points[0])[0], y - 1.5, x, 3]] : alongLine([clipped(line, low), line.points[1]].map(pixels), length);
  });
  for (const { ridge } of lines) if (ridge) taken.push([pixels([ridge, high])[0] + 2, grid.top + tall - 18 * LETTER, LINE, 18 * LETTER]);  // its name stands upright
  sidesOf(ranked, taken, [grid.left, grid.top, wide + grid.right, tall]).forEach((side, place) => Object.assign(ranked[place], side ? { side } : { name: "" }));
}

function clipped(line, low) {  // start of a diagonal inside the frame
  const [[x, y], end] = line.points;
  return y >= low ? [x, y] : [x * low / y, low].map((value, place) => Math.min(value, end[place]));
}

const pointText = ({ part, share, reach }) => [
  `${part.name} × ${part.count}`, `${asTime(part.time)} (${asShare(share)}), bound ${asTime(part.bound)}`,
  `${prefixed(part.flops, "FLOP")}, ${asBytes(moved(part))}: ${three(part.flops / moved(part))} FLOP/B`, `${prefixed(part.flops / part.time, "FLOP/s")}, ${asPercent(reach)} of the roof; ${causeOf(part)}-bound`,
].join("\n");

const kernelRows = (view) => [
  ["step", "kernel", "launches", "FLOP", "weights [B]", "KV [B]", "activations [B]", "time [ms]", "bound [ms]", "share of the roof", "limit"],
  ...STEPS.flatMap((step) => view[step].map((p) => [step, p.name, p.count, p.flops, p.weights, p.cache, p.activations, p.time * 1e3, p.bound * 1e3, drawn(p) ? asPercent(reachOf(p, view)) : "", causeOf(p)])),
];

// ---- a step to scale
function layerOf(parts) {  // how many layers the kernels that take most of the time run in, and what a layer runs
  const times = {};
  for (const { count, time } of parts) if (count > 1) times[count] = (times[count] ?? 0) + time;
  const layers = Number(Object.keys(times).reduce((best, count) => (times[count] > (times[best] ?? 0) ? count : best), 0));
  return [layers, parts.filter(({ count }) => layers && count >= layers / 2)];
}
function timeline(view, step) {
  const parts = view[step].filter(({ time }) => time > 0), [layers, inside] = layerOf(parts), whole = sum(parts.map(({ time }) => time));
  const rows = [[`The whole step, ${asTime(whole)}`, parts, whole]];
  if (layers) rows.push([`A layer, one of ${layers}: ${asTime(sum(inside.map(({ time }) => time)) / layers)}`, inside, sum(inside.map(({ time }) => time))]);
  return rows.flatMap(([title, shown, all]) => [make("h3", title), make("div", "", { class: "scale" }, ...shown.map((part) => segment(part, part.time / all, whole)))]);
}
function segment(part, width, whole) {
  const tint = quantityOf(part), said = `${part.name} × ${part.count}: ${asTime(part.time)} (${asShare(part.time / whole)}), bound ${asTime(part.bound)}; ${causeOf(part)}-bound`;
  const button = make("button", "", { type: "button", title: said, "aria-label": said, "aria-pressed": String(part.name === picked), "data-kernel": part.name, style: `width: ${100 * width}%; background: ${hatched(causeOf(part), tint)}` },
    make("i", "", { style: `width: ${100 * (1 - part.bound / part.time)}%` }));
  if (width * C.time.wide > 7 * part.name.length + 14) button.append(make("span", part.name, { style: `background: ${colour(tint)}; color: ${readable(tint)}` }));
  button.addEventListener("click", () => pick(part.name === picked ? null : part.name));
  return button;
}
function arithmeticOf(part, view) {  // how the time of a kernel comes about, in sentences
  const { bandwidth, cache_bytes: room } = OFFERS.gpus[view.at.gpu], rate = bandwidth * view.at.speed, lines = [];
  const near = Math.min(part.activations, part.count * room), bytes = moved(part) - near, read = { ...part, activations: part.activations - near };
  if (bytes > 0) lines.push(`${asBytes(bytes)} (${CLASSES.filter(([name]) => read[name] > 0).map(([name, title]) => `${title} ${asBytes(read[name])}`).join(", ")}) at ${prefixed(rate, "B/s")}: ${asTime(bytes / rate)}.`);
  if (near > 0) lines.push(`${asBytes(near)} of activations can stay in the last cache: the bound does not charge them.`);
  if (part.flops && part.peak) lines.push(`${prefixed(part.flops, "FLOP")} at ${prefixed(part.peak, "FLOP/s")}: ${asTime(part.flops / part.peak)}.`);
  lines.push(`Datasheet bound ${asTime(part.bound)}; expected ${within(part)}, ${asTime(part.time - part.bound)} above it. It is ${causeOf(part)}-bound.`);
  return lines;
}

// ---- what the time adds up from
const TOLD = { prefill: ["first token", "ttft"], decode: ["token", "tpot"] };
function stepTerms(view, step) {  // of the time that its tile states: of a step, and under load of a mean token or first token
  const [title, which] = TOLD[step], span = felt(view)[which], scale = span.time / sum(view.parts[step]), made = view.load ? (step === "decode" ? tokenTerms : firstTerms)(view.load) : TIME_PARTS.map(([name, tint], place) => ({ title: name, tint, time: scale * view.parts[step][place] }));  // the tile is the mean over the output, the parts are those at its mean context
  return { terms: made.map(({ title: name, tint }) => [name, tint]), parts: made.map(({ time }) => time), title: view.load ? `mean ${title}` : title, format: asTime, scale: 1e3, unit: "ms", span, bound: span.bound };
}
const ENERGY_PARTS = [...[...BYTES, "compute", "network"].map((name) => [LOOK?.names[name], name]), ["chip running", "overhead"], ["idle", "engine"]];
const energyTerms = ({ parts }) => ({ terms: ENERGY_PARTS, parts, title: "one output token", format: asEnergy, scale: 1, unit: "J of the boards for one output token, prompt included" });
const barsOf = ({ terms, parts }) => terms.map(([title, tint], place) => ({ title, tint, start: sum(parts.slice(0, place)), size: parts[place] })).filter(({ size }) => size >= 0.005 * sum(parts));
function waterfallBars(told) {  // each begins where the one above it ends; then the whole, and its interval
  const { parts, title, span } = told, whole = sum(parts), [low, high] = span ? [span.low, span.high].map((end) => whole * end / span.time) : [whole, whole];
  const interval = { title: "90 % interval", tint: "soft", start: low, size: high - low, words: small() ? between(low, high).replace(" to ", " to\n") : between(low, high) };
  return [...barsOf(told), { title, tint: "ink", start: 0, size: whole }, ...(high > low ? [interval] : [])];
}
function waterfall(told, wide) {  // as elements: a slider moves it, and the library of the other charts takes ten times as long
  const { parts, format, scale, unit, bound } = told, whole = sum(parts), bars = waterfallBars(told), row = 38, top = 24;
  const most = Math.max(...bars.map(({ start, size }) => start + size)), left = small() ? 118 : 150, span = wide - left - (small() ? 100 : 120), foot = top + row * bars.length;
  const x = (size) => left + span * size / most, stroke = { stroke: colour("card"), "stroke-width": 8, "paint-order": "stroke" };
  const upright = (at, tint, more) => svg("path", { d: `M${x(at)} ${top}V${foot}`, stroke: colour(tint), ...more }), tick = nice(most * scale / 5, small());
  const ticks = Array.from({ length: Math.floor(most * scale / tick) + 1 }, (_, place) => place * tick);
  const middle = (place) => top + row * (place + 0.5), thick = 0.62 * row, share = (size) => (size < whole ? `\u2002${asShare(size / whole)}` : "");
  const besides = (at, words) => (bound && x(at) < x(bound) && x(bound) < x(at) + 14 + LETTER * words.length ? x(bound) : x(at)) + 7;  // the line of the bound strikes no words
  const line = bound ? [upright(bound, "bad", { "stroke-width": 1.4, "stroke-dasharray": "5 4" }), lettered(`bound ${asTime(bound)}`, x(bound), top - 11, { fill: colour("bad"), "text-anchor": "middle" })] : [];
  return [svg("svg", { width: wide, height: foot + 46, "font-family": "system-ui, sans-serif", "font-size": 12.5, "dominant-baseline": "central" },
    ...ticks.flatMap((at) => [upright(at / scale, "grid"), lettered(three(at), x(at / scale), foot + 13, { "text-anchor": "middle" })]), upright(0, "line"),
    ...bars.map(({ tint, start, size, words }, place) => svg("rect", { x: x(start), y: middle(place) - thick / 2, width: x(size) - left, height: thick, fill: colour(tint), "fill-opacity": words ? 0.5 : 1 })), ...line,
    ...bars.flatMap(({ title, start, size, words }, place) => [
      lettered(small() && title.length > 15 ? title.replace(/ (?=\S*$)/, "\n") : title, left - 8, middle(place), { fill: colour("ink"), "text-anchor": "end" }),
      lettered(words ?? `${format(size)}${share(size)}`, besides(start + size, words ?? `${format(size)}${share(size)}`), middle(place), stroke),
    ]), lettered(unit, left + span / 2, foot + 33, { "font-size": 13, "text-anchor": "middle" }))];
}

// ---- stacked bars: classes of bytes, memory
function stackOption(rows, parts, format, more = {}) {  // rows: [title, {part: value}, whole if shares are drawn], from the top
  const option = base(), shown = [...rows].reverse(), left = small() ? 104 : 120;
  option.grid = { left, right: 24, top: more.top ?? 6, bottom: 28 };
  option.tooltip.formatter = ({ seriesName, data, name }) => `${name}: ${seriesName}\n${format(data.told ?? data.value)}`;
  const wide = (CHARTS.get(more.id).wide - left - 24) / more.max, fits = (value, words) => (value * wide > 7.2 * words.length + 4 ? words : "");
  return {
    ...option, xAxis: along("", { axis: { max: more.max }, label: { formatter: more.scale ?? onAxis(format), showMaxLabel: !more.lines } }),
    yAxis: { ...along("", { axis: { type: "category", data: shown.map(([title]) => title) }, label: { color: colour("ink"), lineHeight: 16 } }), splitLine: { show: false } },
    series: parts.map(([key, title], place) => ({
      type: "bar", name: title, stack: "all", barWidth: "58%", itemStyle: key === "free" ? { color: "transparent", borderColor: colour("soft"), borderType: "dashed", borderWidth: 1 } : { color: colour(key), borderColor: colour("card"), borderWidth: 0.5 },
      data: shown.map(([, values, whole]) => (whole ? { value: values[key] / whole, told: values[key] } : { value: values[key] })),
      label: { show: true, ...text(12.5), color: key === "free" ? colour("ink") : readable(key), textBorderWidth: 0, formatter: ({ value, data }) => fits(value, format(data.told ?? value)) },
      markLine: place === 0 && more.lines ? more.lines : undefined,
    })),
  };
}

const bytesRows = (views) => views.flatMap(([title, view]) => STEPS.map((step) => {
  const values = bytesOf(view[step]), whole = sum(Object.values(values));
  return [`${step}${title}\n${asBytes(whole)}`, values, whole];
}).reverse());
const memoryParts = [...CLASSES, ["engine", LOOK?.names.engine], ["free", "free"]];
const memoryRow = ({ memory }) => ({ weights: memory.weights, cache: memory.kv, activations: memory.activations, engine: memory.outside, free: Math.max(memory.capacity - memory.total, 0) });

function memoryOption(views) {
  const most = Math.max(...views.map(([, { memory }]) => Math.max(memory.total, memory.capacity)));
  const capacities = [...new Set(views.filter(([, { memory }]) => !memory.fits).map(([, { memory }]) => memory.capacity))];
  const line = (value, place) => ({ xAxis: value, lineStyle: { color: colour("bad"), type: "solid", width: 1.6 }, label: { formatter: `${asBytes(value)} is all`, position: "end", align: place ? "left" : "right", offset: [place ? -10 : 10, 0], ...text(12.5), color: colour("bad") } });
  return stackOption(views.map(([title, view]) => [`${title}\n${asBytes(view.memory.total)}`, memoryRow(view)]), memoryParts, asBytes, {
    id: "memory", max: most * 1.02, top: capacities.length ? 26 : 6, lines: { symbol: "none", silent: true, data: capacities.map(line) },
  });
}

// ---- sweeps
const leading = (value) => value / 10 ** Math.floor(Math.log10(value) + 1e-9);  // 1, 2 or 5 where an axis may end
const nice = (value, up) => {
  const scale = 10 ** Math.floor(Math.log10(value)), steps = up ? [1, 2, 5, 10] : [10, 5, 2, 1];
  return scale * steps.find((step) => (up ? step * scale >= value * 0.999 : step * scale <= value * 1.001));
};
function around(values) {
  const found = values.filter((value) => value > 0);
  return { min: nice(Math.min(...found), false), max: nice(Math.max(...found), true) };
}
const niceLog = (value, label) => ([1, 2, 5].some((step) => Math.abs(leading(value) - step) < 1e-6) ? label(Number(value.toPrecision(3))) : "");

function apart(heights, gap) {  // how far each of some labels moves so that none lies on another
  const order = heights.map((_, place) => place).sort((a, b) => heights[a] - heights[b]), moved = [...heights];
  order.forEach((place, rank) => { if (rank) moved[place] = Math.max(moved[place], moved[order[rank - 1]] + gap); });
  const back = order.length ? (moved[order[order.length - 1]] - heights[order[order.length - 1]]) / 2 : 0;  // half of the way up again
  return moved.map((value, place) => value - back - heights[place]);
}
function ticked({ min, max }, label) {  // a logarithmic axis with ticks at 1, 2 and 5 where there is room
  const ticks = [], steps = Math.log10(max / min) > 2.6 ? [1] : [1, 2, 5];
  for (let scale = 10 ** Math.floor(Math.log10(min) + 1e-9); scale < max * 1.001; scale *= 10) for (const step of steps) if (step * scale > min * 0.999 && step * scale < max * 1.001) ticks.push(step * scale);
  for (const end of [min, max]) if (!ticks.some((tick) => Math.abs(tick / end - 1) < 1e-6)) ticks.push(end);
  return axis({ axis: { type: "log", min: min * (1 - 1e-9), max: max * (1 + 1e-9), axisTick: { show: false, customValues: ticks } }, label: { customValues: ticks, formatter: (value) => label(Number(value.toPrecision(3))) } });
}

function sweepOption(rows, x, y, more) {  // rows of answers; y: [low, value, high, bound] of one
  if (!rows.length) return base();  // no load of this deployment can be served
  const option = base(), at = (view, place) => [Math.log2(x(view)), y(view)[place]];
  const fits = rows.filter((view) => view.memory.fits), not = rows.filter((view) => !view.memory.fits);
  const line = (data, place, style, extra = {}) => ({ type: "line", data: data.map((view) => at(view, place)), symbol: "none", silent: true, lineStyle: style, ...extra });
  const main = colour("decode");
  option.tooltip = { ...option.tooltip, trigger: "item", formatter: ({ data }) => data.said ?? "" };
  option.grid = { ...option.grid, right: more.bound || more.reference?.length ? 68 : 18, left: 58 };
  const dots = (data, style) => ({ type: "scatter", data: data.map((view) => ({ value: at(view, 1), said: more.say(view) })), symbolSize: 8, itemStyle: style, z: 5 });
  const across = rows.map(x), goal = 1e3 * more.goal || null, ys = [...rows.flatMap(y), ...(goal ? [goal] : [])].filter(Number.isFinite), reference = (more.reference ?? []).filter((view) => x(view) >= across[0] && x(view) <= across[across.length - 1]);
  const [mainName, boundName] = more.names ?? ["expected", "bound"], range = around([...ys, ...reference.map((view) => y(view)[1])]), last = rows[rows.length - 1];
  const named = [[mainName, y(last)[1]], ...(more.bound ? [[boundName, y(last)[3]]] : []), ...(reference.length ? [["pinned", y(reference[reference.length - 1])[1]]] : [])];
  const places = apart(named.map(([, value]) => 260 * Math.log(range.max / value) / Math.log(range.max / range.min)), 14);
  const end = (title) => ({ endLabel: { show: true, formatter: title, ...text(12), offset: [0, places[named.findIndex(([name]) => name === title)]] } });
  const bounded = rows.filter((view) => Number.isFinite(y(view)[0] + y(view)[2]));  // as far as slower steps keep up
  const edge = (api) => [...bounded.map((view) => api.coord(at(view, 0))), ...bounded.map((view) => api.coord(at(view, 2))).reverse()];
  const band = more.band && bounded.length ? [{
    type: "custom", silent: true, z: 1, data: [at(rows[0], 1)],
    renderItem: (_, api) => ({ type: "polygon", shape: { points: edge(api) }, style: { fill: main, opacity: 0.16 } }),
  }] : [];
  const other = reference.length ? [line(reference, 1, { color: colour("soft"), width: 1.4, type: "dashed" }, end("pinned"))] : [];
  const here = more.here ? [{ type: "scatter", silent: true, data: [at(more.here, 1)], symbolSize: 17, itemStyle: { color: "transparent", borderColor: colour(more.here.memory.fits ? "ink" : "bad"), borderWidth: 2 }, z: 6 }] : [];
  const [first, most] = [across[0], across[across.length - 1]].map(Math.log2), tip = (words, tint, left) => ({ endLabel: { show: true, formatter: words, ...text(12), color: colour(tint), align: left ? "left" : "right", offset: left ? [0, -9] : [-8, -9] } });
  const ruled = (points, words, tint, left = false) => ({ type: "line", symbol: "none", silent: true, z: 2, data: points, lineStyle: { color: colour(tint), width: 1.2, type: "dashed" }, ...tip(words, tint, left) });
  const shade = more.beyond > across[0] && more.beyond < across[across.length - 1] ? [{ type: "line", silent: true, symbol: "none", data: [[Math.log2(more.beyond), range.max], [most, range.max]], lineStyle: { width: 0 }, areaStyle: { color: colour("bad"), opacity: 0.08, origin: "start" }, z: 0 }] : [];
  const rules = [...shade, ...(goal ? [ruled([[most, goal], [first, goal]], `objective ${asTime(goal / 1e3)}`, "bad", true)] : []), ...(more.beyond > across[0] && more.beyond < across[across.length - 1] ? [ruled([[Math.log2(more.beyond), range.min], [Math.log2(more.beyond), range.max]], `overload from ${three(more.beyond)}`, "bad")] : [])];
  return {
    ...option, xAxis: doublings(more.xName, across), yAxis: ticked(range, more.label),
    series: [
      ...rules, ...band, ...other, ...(more.bound ? [line(rows, 3, { color: more.names ? main : colour("soft"), width: 1.2, type: more.names ? "solid" : "dotted" }, end(boundName))] : []),
      line(rows, 1, { color: main, width: 2 }, more.bound || reference.length ? end(mainName) : {}),
      dots(fits, { color: main }), dots(not, { color: colour("card"), borderColor: colour("bad"), borderWidth: 2 }), ...here,
    ],
  };
}

// ---- a cloud of points: Pareto fronts and sweeps
function frontOf(points, up = 1) {  // what nothing else beats: more of the first, and more of the second, or less of it where `up` is -1
  const front = [];
  let best = -Infinity;
  for (const point of [...points].sort((a, b) => b.value[0] - a.value[0] || up * (b.value[1] - a.value[1])))
    if (up * point.value[1] > best) { front.push(point); best = up * point.value[1]; }
  return front.reverse();
}

const TINTS = ["orange", "violet", "cyan", "rose", "moss", "navy"];  // of accelerators and lines: never those of quantities
function tintsOf(names) {  // by name its hue and how much nearer to the paper it stands: of an accelerator the hue of its generation, of others the next that is free
  const known = names.map((name) => DATA.hues?.[name]), free = [...TINTS.filter((hue) => !known.includes(hue)), ...names.flatMap(() => TINTS)], hues = known.map((hue) => hue ?? free.shift());
  return new Map(names.map((name, place) => [name, [hues[place], 0.6 * hues.slice(0, place).filter((hue) => hue === hues[place]).length / Math.max(hues.filter((hue) => hue === hues[place]).length - 1, 2)]]));
}
function shaded([hue, share]) {  // as a chart takes it
  const parts = (tint) => [1, 3, 5].map((at) => parseInt(tint.slice(at, at + 2), 16)), paper = parts(colour("card"));
  return share ? `#${parts(colour(hue)).map((part, place) => Math.round(part + share * (paper[place] - part)).toString(16).padStart(2, "0")).join("")}` : colour(hue);
}
const inKey = ([hue, share]) => (share ? `color-mix(in srgb, var(--${hue}) ${100 - 100 * share}%, var(--card))` : `var(--${hue})`);  // as a key takes it
function cloudOption(points, tints, more) {  // points: {value, group, fits, said}
  const option = base();
  option.tooltip.formatter = ({ data }) => data.said ?? "";
  option.grid = { ...option.grid, right: 26, left: small() ? 60 : 76 };
  const series = [...tints].map(([name, tint]) => ({ type: "scatter", name, data: points.filter((point) => point.group === name), symbolSize: more.size, itemStyle: { color: shaded(tint), opacity: more.opacity }, z: 3, progressive: 0 }));
  return { ...option, xAxis: more.x, yAxis: more.y, series };
}

function frontsOption(points, tints, more) {  // a front for each accelerator, with its name and its batches; the rest thin and grey
  const option = base(), lines = [...new Set(points.map((point) => point.line))].map((line) => points.filter((point) => point.line === line)), sorted = (data) => [...data].sort((a, b) => a.value[0] - b.value[0]);
  option.tooltip.formatter = ({ data }) => data?.said ?? "";
  option.grid = { ...option.grid, right: 26, left: small() ? 60 : 76 };
  const rest = lines.map((data) => ({ type: "line", name: "rest", data: sorted(data), symbol: "circle", symbolSize: 3, z: 1, lineStyle: { width: 0.7, color: colour("line") }, itemStyle: { color: colour("line") } }));
  const fronts = [...tints].map(([name, tint]) => ({
    type: "line", name, data: frontOf(points.filter(({ group }) => group === name), more.up).map((point, place) => ({ ...point, label: { show: !small(), position: place ? (more.up < 0 ? "bottom" : "top") : "left", distance: 4, formatter: place ? point.tick : `${name}  ${point.tick}`, ...text(place ? 11 : 12), color: colour(place ? "soft" : "ink"), ...outlined() } })), symbol: "circle", symbolSize: 7, z: 3,
    lineStyle: { width: 2.2, color: shaded(tint) }, itemStyle: { color: shaded(tint) }, labelLayout: { hideOverlap: true },
  }));
  const here = { type: "scatter", silent: true, data: [more.here], symbolSize: 18, itemStyle: { color: "transparent", borderColor: colour("ink"), borderWidth: 2 }, z: 6 };
  const slow = { type: "line", silent: true, symbol: "none", data: more.x.min < more.least ? [more.x.min, Math.min(more.least, more.x.max)].map((x) => [x, more.y.max]) : [], lineStyle: { width: 0 }, areaStyle: { color: colour("soft"), opacity: 0.22, origin: "start" }, z: 0 };
  return { ...option, xAxis: more.x, yAxis: more.y, series: [slow, ...rest, ...fronts, here] };
}

// ---- interactivity: the most tokens a second of one GPU at which each user still gets 10, 20, 30 … tokens a second
const BUCKET = 10;
function interactivityOf(points, names) {  // points: {value: [of a user, of a GPU], group}; of speeds between which nothing changes the fastest stays
  const of = names.map((name) => points.filter(({ group }) => group === name).map(({ value }) => value)), fastest = Math.max(...of.flat().map(([user]) => user), 0), rows = [];
  for (let speed = BUCKET; speed <= fastest; speed += BUCKET) rows.push([speed, of.map((values) => values.reduce((best, [user, gpu]) => (user >= speed && gpu > best ? gpu : best), 0))]);
  return rows.filter(([, cells], place) => String(cells) !== String(rows[place + 1]?.[1]));
}
function interactivityTable(points, names, base) {  // the best of each speed is marked; the others over a pinned one
  const rows = interactivityOf(points, names), pinned = Math.max(names.indexOf(base), 0);
  const told = (cells) => cells.map((cell, place) => (cell ? `${three(cell)}${place === pinned || !cells[pinned] ? "" : ` (${digits(cell / cells[pinned])} ×)`}` : "–"));
  const table = asTable([["each user, tok/s", ...names.map((name, place) => (place === pinned ? `${name}, pinned` : name))], ...rows.map(([speed, cells]) => [`from ${speed}`, ...told(cells)])], "Interactivity");
  [...table.querySelectorAll("tbody tr")].forEach((row, place) => { const cells = rows[place][1], best = row.children[1 + cells.indexOf(Math.max(...cells))]; best.className = "best"; });
  return table;
}
