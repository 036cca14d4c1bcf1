// A load request by request: one to scale, some in order of arrival, and the first tokens of all.
"use strict";
const FIRST_PARTS = ["front", "late", "behind", "waits", "prompt"], OTHERS = LOOK?.others;
const LANES = 40, BARS = 48;  // requests that are drawn, and bars of first tokens

const firstTerms = ({ parts }) => FIRST_PARTS.map((name, place) => ({ title: LOOK.first[place][0], tint: LOOK.first[place][1], time: parts[name] })).filter(({ time }) => time > 0);  // of a mean first token [s]
function tokenTerms(load) {  // of a mean token behind it [s]: a decode step in its parts, and prompts of others
  const times = layersOf(load);
  return [...TIME_PARTS, OTHERS].map(([title, tint], place) => ({ title, tint, time: times[place] })).filter(({ time }) => time > 0);
}
const block = ({ tint }, more) => svg("rect", { fill: colour(tint), ...more });
const timeOf = (terms) => sum(terms.map(({ time }) => time));
function enlarged(title, terms, wide, { bound, low, high } = {}) {  // a bar of parts with their numbers; below it bound and interval
  const all = timeOf(terms), most = Math.max(all, high ?? 0), x = (time) => wide * time / most, mark = (time, words, y, tint) => lettered(words, Math.min(Math.max(x(time), 0), wide), y, { fill: colour(tint), "text-anchor": x(time) > wide / 2 ? "end" : "start" });
  let since = 0;
  const rects = terms.map((term) => { const at = since; since += term.time; return block(term, { x: x(at), y: 0, width: Math.max(x(term.time) - 1, 0.5), height: 34 }); });
  const ends = high > low ? [svg("path", { d: `M${x(low)} 68H${x(high)}`, stroke: colour("soft"), "stroke-width": 5, opacity: 0.5 }), svg("circle", { cx: x(all), cy: 68, r: 5, fill: colour("ink") }), mark(high, `90 % interval ${between(low, high)}`, 88, "soft")] : [];
  const least = bound > 0 ? [svg("path", { d: `M${x(bound)} 0V44`, stroke: colour("bad"), "stroke-width": 1.6, "stroke-dasharray": "5 3" }), mark(bound, `datasheet bound ${asTime(bound)}`, 54, "bad")] : [];
  const rows = terms.filter(({ time }) => time >= 0.005 * all).map((term) => make("li", "", {}, make("i", "", { style: `background: ${colour(term.tint)}` }), make("span", term.title), make("b", asTime(term.time)), make("em", asShare(term.time / all))));
  return make("div", "", {}, make("h3", title), svg("svg", { width: wide, height: ends.length ? 98 : least.length ? 62 : 38, "font-family": "system-ui, sans-serif", "font-size": 12.5, "dominant-baseline": "central" }, ...rects, ...least, ...ends), make("ul", "", { class: "parts" }, ...rows));
}
function requestBars(load, wide) {
  const { osl, e2e, tpot } = load, first = firstTerms(load), until = timeOf(first), x = (time) => wide * time / e2e, half = small() ? wide : (wide - 28) / 2, top = 20, tall = 28;
  let since = 0;
  const begun = first.map((term) => { const at = since; since += term.time; return block(term, { x: x(at), y: top, width: Math.max(x(term.time), 0.3), height: tall }); });
  const rest = Math.max(wide - x(until), 0), marked = stripes(load).map(([from, to]) => block({ tint: "prefill" }, { x: x(until) + rest * from, y: top, width: Math.max(rest * (to - from), 0.6), height: tall }));
  const one = x(until) + 0.6 * rest, lens = (from, width, left, tint, { time, high }) => svg("path", { d: `M${from} ${top + tall}H${from + width}L${left + half * time / Math.max(time, high)} ${top + tall + 34}H${left}Z`, fill: colour(tint), opacity: 0.1 });
  const zooms = small() ? [] : [lens(0, x(until), 0, "prefill", load.ttft), ...(osl > 1 ? [lens(one, Math.max(x(tpot.time), 2), half + 28, "decode", tpot)] : [])];
  const token = osl > 1 ? [enlarged(`Time per token, ${asTime(tpot.time)}`, tokenTerms(load), half, tpot)] : [];
  return [svg("svg", { width: wide, height: top + tall + (small() ? 6 : 36), "font-family": "system-ui, sans-serif", "font-size": 12.5, "dominant-baseline": "central" },
    lettered("sent", 0, 8), lettered(`complete after ${asTime(e2e)}`, wide, 8, { "text-anchor": "end" }), ...begun, block({ tint: "decode" }, { x: x(until), y: top, width: rest, height: tall }), ...marked, svg("rect", { x: one, y: top - 3, width: Math.max(x(tpot.time), 2), height: tall + 6, fill: colour("card"), stroke: colour("ink"), "stroke-width": 0.6 }), ...zooms),
    make("div", "", { class: "halves" }, enlarged(`Time to first token, ${asTime(until)}`, first, half, load.ttft), ...token)];
}
function laneBars({ log, filling }, wide) {  // waits, its prompt, its tokens: a line for each request; below it how many run
  const { sent, begun, first, end } = log, many = Math.min(LANES, sent.length), from = Math.max(Math.min(Math.max(filling, Math.floor((sent.length - many) / 2)), sent.length - many), 0);
  const shown = Array.from({ length: many }, (_, place) => from + place).filter((j) => end[j] >= 0 && first[j] >= 0), start = Math.min(...shown.map((j) => sent[j])), stop = Math.max(...shown.map((j) => end[j])), tall = small() ? 7 : 10, top = shown.length * tall, area = 54, foot = top + area + 26;
  const x = (time) => (wide - 20) * (time - start) / (stop - start || 1), tick = nice((stop - start) / 6, small());
  const piece = (j, place, since, until, tint) => svg("rect", { x: x(since), y: place * tall + 1, width: Math.max(x(until) - x(since), 0.4), height: tall - 2, fill: colour(tint) });
  const ticks = Array.from({ length: Math.floor((stop - start) / tick) + 1 }, (_, place) => place * tick), bins = Math.max(Math.floor((wide - 20) / 3), 1), tokens = new Float64Array(bins), prompts = new Float64Array(bins);
  const add = (into, since, until) => { for (let bin = Math.max(Math.floor((since - start) / (stop - start) * bins), 0); bin < Math.min((until - start) / (stop - start) * bins, bins); bin++) into[bin]++; };
  for (let j = 0; j < sent.length; j++) if (end[j] > start && begun[j] < stop && first[j] >= 0) { add(prompts, begun[j], first[j]); add(tokens, first[j], end[j]); }
  const most = Math.max(...tokens.map((count, bin) => count + prompts[bin]), 1), y = (count) => foot - area * count / most, across = (wide - 20) / bins;
  const hill = (of, tint) => svg("path", { d: `M0 ${foot}${[...tokens.keys()].map((bin) => `V${y(of(bin)).toFixed(1)}H${((bin + 1) * across).toFixed(1)}`).join("")}V${foot}Z`, fill: colour(tint) });
  const steps = [hill((bin) => tokens[bin] + prompts[bin], "prefill"), hill((bin) => tokens[bin], "decode")];
  return [svg("svg", { width: wide, height: foot + 38, "font-family": "system-ui, sans-serif", "font-size": 12.5 },
    ...ticks.flatMap((time) => [svg("path", { d: `M${x(start + time)} 0V${foot}`, stroke: colour("grid") }), lettered(three(time), x(start + time), foot + 13, { "text-anchor": time ? "middle" : "start" })]),
    ...shown.flatMap((j, place) => [piece(j, place, sent[j], begun[j], "engine"), piece(j, place, begun[j], first[j], "prefill"), piece(j, place, first[j], end[j], "decode")]),
    lettered(`All requests that run, ${three(most)} at most`, 0, top + 18), ...steps, lettered("seconds", wide / 2, foot + 32, { "text-anchor": "middle" }))];
}
function firstBars({ sorted: { ttft } }, goal) {  // requests by time to first token, up to the slowest hundredth
  const most = Math.max(quantileOf(ttft, 0.99), goal ?? 0) * 1.02, counts = new Array(BARS).fill(0);
  for (const time of ttft) if (time < most) counts[Math.floor(time / most * BARS)]++;
  return { most, counts, beyond: ttft.length - sum(counts) };
}
function firstOption(load, goal) {
  const option = base(), { most, counts } = firstBars(load, goal), at = (place) => 1e3 * most * place / BARS, high = Math.max(...counts);
  option.tooltip.formatter = ({ data }) => data.said ?? "";
  const rule = (time, words, tint, up) => ({ type: "line", symbol: "none", silent: true, data: [[1e3 * time, 0], [1e3 * time, high * up]], lineStyle: { color: colour(tint), width: 1.2, type: tint === "bad" ? "dashed" : "solid" }, endLabel: { show: true, formatter: words, ...text(12), color: colour(tint), align: time > most / 2 ? "right" : "left", offset: [time > most / 2 ? -8 : 0, 0], ...outlined() } });
  const rules = [...[[0.5, "P50", 1.18], [0.95, "P95", 0.8], [0.99, "P99", 0.5]].map(([share, name, up]) => { const time = quantileOf(load.sorted.ttft, share); return rule(time, `${name} ${asTime(time)}`, "ink", up); }), ...(goal ? [rule(goal, `objective ${asTime(goal)}`, "bad", 1.05)] : [])];
  const bars = counts.map((count, place) => ({ value: [at(place + 0.5), count], said: `${asTime(at(place) / 1e3)} to ${asTime(at(place + 1) / 1e3)}\n${GROUPED.format(count)} ${counted("request", count)}`, itemStyle: { color: colour(goal && at(place) >= 1e3 * goal ? "bad" : "prefill") } }));
  return { ...option, grid: { ...option.grid, top: 12 }, xAxis: along("ms to the first token", { axis: { min: 0, max: 1e3 * most }, label: { formatter: three, showMaxLabel: false } }), yAxis: along("", { axis: { max: 1.25 * high }, label: { formatter: three, showMaxLabel: false } }), series: [{ type: "bar", data: bars, barWidth: "96%", barCategoryGap: 0 }, ...rules] };
}
function drawRequest({ load }) {
  for (const id of ["one", "lanes", "firsts"]) byId(id).closest(".card").hidden = !load;
  if (!load) return;
  const { ttft, tpot, osl, sorted, log } = load, goal = (load.goals ?? [])[0] ?? null, { beyond } = firstBars(load, goal), share = goal ? countUpto(sorted.ttft, goal) / sorted.ttft.length : 0;
  const after = Math.max(osl - 1, 0), terms = [...firstTerms(load), ...tokenTerms(load).map((term) => ({ ...term, title: `token: ${term.title}`, tokens: true }))];
  byId("one-said").textContent = `One request, to scale: ${asTime(ttft.time)} to the first token${after ? `, then ${three(after)} ${counted("token", after)} of ${asTime(tpot.time)}` : ""}`;
  byId("firsts-said").textContent = `${goal ? `${asShare(share)} of the first tokens come within ${asTime(goal)}` : `Half of the first tokens come within ${asTime(quantileOf(sorted.ttft, 0.5))}, 99 in 100 within ${asTime(quantileOf(sorted.ttft, 0.99))}`}`;
  byId("firsts-told").textContent = `The ${GROUPED.format(sorted.ttft.length)} requests that count, by time to first token${beyond ? `; ${GROUPED.format(beyond)} lie to the right` : ""}.`;
  C.one.show(`Parts of a mean request: ${terms.map(({ title, time }) => `${title} ${asTime(time)}`).join(", ")}.`, (wide) => requestBars(load, wide), () => [["part", "time [ms]"], ...terms.map(({ title, time }) => [title, time * 1e3])]);
  C.lanes.show("Requests in order of arrival: waits, its prompt, its tokens; below, how many run.", (wide) => laneBars(load, wide), () => [["request", "sent [s]", "place [s]", "first token [s]", "end [s]"], ...Array.from({ length: Math.min(LANES, log.sent.length) }, (_, j) => [j + 1, log.sent[j], log.begun[j], log.first[j], log.end[j]])]);
  C.firsts.show("Requests by time to first token.", () => firstOption(load, goal), () => [["up to [ms]", "requests"], ...firstBars(load, goal).counts.map((count, place) => [1e3 * firstBars(load, goal).most * (place + 1) / BARS, count])]);
}
