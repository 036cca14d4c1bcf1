// A load request by request: one to scale, some in order of arrival, and the first tokens of all.
"use strict";
const REQUEST_PARTS = [["front", "front end", "engine"], ["late", "the step under way", "overhead"], ["behind", "prompts before it", "network"], ["waits", "no place free", "other"], ["prompt", "its own prompt", "prefill"], ["step", "its tokens", "decode"], ["others", "prompts of others", "orange"]];
const LANES = 40, BARS = 48;  // requests that are drawn, and bars of first tokens

function requestTerms({ parts, osl }) {  // of a mean request [s]
  return REQUEST_PARTS.map(([name, title, tint]) => ({ name, title, tint, time: parts[name] * (["step", "others"].includes(name) ? Math.max(osl - 1, 0) : 1) })).filter(({ time }) => time > 0);
}
function requestBars(load, wide) {
  const terms = requestTerms(load), whole = sum(terms.map(({ time }) => time)), first = terms.filter(({ name }) => name in load.parts && !["step", "others"].includes(name)), until = sum(first.map(({ time }) => time));
  const bar = (shown, all) => make("div", "", { class: "scale" }, ...shown.map(({ title, tint, time }) => {
    const said = `${title}: ${asTime(time)} (${asShare(time / all)})`, words = `${title} ${asTime(time)}`;
    return make("div", "", { title: said, style: `position: relative; width: ${100 * time / all}%; background: ${colour(tint)}` }, ...(time / all * wide > 7.4 * words.length + 12 ? [make("span", words, { style: `color: ${readable(tint)}` })] : []));
  }));
  return [make("h3", `The whole request, ${asTime(whole)}`), bar(terms, whole), make("h3", `To its first token, ${asTime(until)}`), bar(first, until)];
}
function laneBars({ log, filling }, wide) {  // waits, its prompt, its tokens: a line for each request
  const { sent, begun, first, end } = log, many = Math.min(LANES, sent.length), from = Math.max(Math.min(Math.max(filling, Math.floor((sent.length - many) / 2)), sent.length - many), 0);
  const shown = Array.from({ length: many }, (_, place) => from + place).filter((j) => end[j] >= 0 && first[j] >= 0), start = Math.min(...shown.map((j) => sent[j])), stop = Math.max(...shown.map((j) => end[j])), tall = 10, foot = shown.length * tall;
  const x = (time) => (wide - 20) * (time - start) / (stop - start || 1), tick = nice((stop - start) / 6, small());
  const piece = (j, place, since, until, tint) => svg("rect", { x: x(since), y: place * tall + 1, width: Math.max(x(until) - x(since), 0.4), height: tall - 2, fill: colour(tint) });
  const ticks = Array.from({ length: Math.floor((stop - start) / tick) + 1 }, (_, place) => place * tick);
  return [svg("svg", { width: wide, height: foot + 38, "font-family": "system-ui, sans-serif", "font-size": 12.5 },
    ...ticks.flatMap((time) => [svg("path", { d: `M${x(start + time)} 0V${foot}`, stroke: colour("grid") }), lettered(three(time), x(start + time), foot + 13, { "text-anchor": time ? "middle" : "start" })]),
    ...shown.flatMap((j, place) => [piece(j, place, sent[j], begun[j], "engine"), piece(j, place, begun[j], first[j], "prefill"), piece(j, place, first[j], end[j], "decode")]), lettered("seconds", wide / 2, foot + 32, { "text-anchor": "middle" }))];
}
function firstBars({ sorted: { ttft } }, goal) {  // requests by time to first token, up to the slowest hundredth
  const most = Math.max(quantileOf(ttft, 0.99), goal ?? 0) * 1.02, counts = new Array(BARS).fill(0);
  for (const time of ttft) if (time < most) counts[Math.floor(time / most * BARS)]++;
  return { most, counts, beyond: ttft.length - sum(counts) };
}
function firstOption(load, goal) {
  const option = base(), { most, counts } = firstBars(load, goal), at = (place) => 1e3 * most * place / BARS;
  option.tooltip.formatter = ({ data }) => data.said ?? "";
  const within = goal ? [{ type: "line", symbol: "none", silent: true, data: [[1e3 * goal, 0], [1e3 * goal, Math.max(...counts)]], lineStyle: { color: colour("bad"), width: 1.4, type: "dashed" }, endLabel: { show: true, formatter: "objective", ...text(12), color: colour("bad"), align: goal > most / 2 ? "right" : "left", offset: [goal > most / 2 ? -8 : 0, 0] } }] : [];
  const bars = counts.map((count, place) => ({ value: [at(place + 0.5), count], said: `${asTime(at(place) / 1e3)} to ${asTime(at(place + 1) / 1e3)}\n${GROUPED.format(count)} ${counted("request", count)}`, itemStyle: { color: colour(goal && at(place) >= 1e3 * goal ? "bad" : "decode") } }));
  return { ...option, grid: { ...option.grid, top: 24 }, xAxis: along("ms to the first token", { axis: { min: 0, max: 1e3 * most }, label: { formatter: three, showMaxLabel: false } }), yAxis: along("", { label: { formatter: three } }), series: [{ type: "bar", data: bars, barWidth: "96%", barCategoryGap: 0 }, ...within] };
}
function drawRequest({ load }) {
  for (const id of ["one", "lanes", "firsts"]) byId(id).closest(".card").hidden = !load;
  if (!load) return;
  const { ttft, tpot, osl, sorted, log } = load, goal = (load.goals ?? [])[0] ?? null, { beyond } = firstBars(load, goal), share = goal ? countUpto(sorted.ttft, goal) / sorted.ttft.length : 0;
  const after = Math.max(osl - 1, 0), terms = requestTerms(load);
  byId("one-said").textContent = `One request, to scale: ${asTime(ttft.time)} to the first token${after ? `, then ${three(after)} ${counted("token", after)} of ${asTime(tpot.time)}` : ""}`;
  byId("firsts-said").textContent = `${goal ? `${asShare(share)} of the first tokens come within ${asTime(goal)}` : `Half of the first tokens come within ${asTime(quantileOf(sorted.ttft, 0.5))}, 99 in 100 within ${asTime(quantileOf(sorted.ttft, 0.99))}`}`;
  byId("firsts-told").textContent = `The ${GROUPED.format(sorted.ttft.length)} requests that count, by time to first token${beyond ? `; ${GROUPED.format(beyond)} lie to the right` : ""}.`;
  C.one.show(`What a mean request waits for: ${terms.map(({ title, time }) => `${title} ${asTime(time)}`).join(", ")}.`, (wide) => requestBars(load, wide), () => [["part", "time [ms]"], ...terms.map(({ title, time }) => [title, time * 1e3])]);
  C.lanes.show("Requests in order of arrival: waits, its prompt, its tokens.", (wide) => laneBars(load, wide), () => [["request", "sent [s]", "place [s]", "first token [s]", "end [s]"], ...Array.from({ length: Math.min(LANES, log.sent.length) }, (_, j) => [j + 1, log.sent[j], log.begun[j], log.first[j], log.end[j]])]);
  C.firsts.show("Requests by time to first token.", () => firstOption(load, goal), () => [["up to [ms]", "requests"], ...firstBars(load, goal).counts.map((count, place) => [1e3 * firstBars(load, goal).most * (place + 1) / BARS, count])]);
}
