// What stands beside the accountant: a simulation, a plan, the rows of a sweep, the walk. All numbers come from Python.
"use strict";
const MARKS = ["p50", "p90", "p95", "p99"];

function spreadOption(rows, id) {  // rows: [title, {p50, p90, ... [ms]}, hollow]
  const option = base(), shown = [...rows].reverse(), names = shown.map(([title]) => title);
  const values = shown.flatMap(([, spread]) => MARKS.map((mark) => spread[mark])).filter((value) => value > 0), left = small() ? 118 : 170;
  if (values.length && !small()) values.push(roomBefore(values, byId(id).clientWidth - left - 90));
  option.tooltip.formatter = ({ data }) => data.said ?? "";
  const tint = (hollow) => colour(hollow ? "soft" : "decode");
  const bars = shown.map(([title, spread, hollow]) => ({ type: "line", symbol: "none", silent: true, z: 2, lineStyle: { color: tint(hollow), width: 2, opacity: 0.5 }, data: MARKS.filter((mark) => spread[mark] > 0).map((mark) => [spread[mark], title]) }));
  const ends = small() ? { p99: ["right", "P99"] } : { p50: ["left", "P50"], p99: ["right", "P99"] };  // the outer two are named
  const dots = shown.map(([title, spread, hollow]) => ({
    type: "scatter", symbolSize: 10, z: 4, itemStyle: { color: hollow ? colour("card") : tint(hollow), borderColor: tint(hollow), borderWidth: 2 },
    data: MARKS.filter((mark) => spread[mark] > 0).map((mark) => ({
      value: [spread[mark], title], said: `${title}\n${mark.toUpperCase()} ${asTime(spread[mark] / 1e3)}`,
      label: mark in ends ? { show: true, position: ends[mark][0], distance: 5, ...text(11.5), formatter: `${ends[mark][1]} ${asTime(spread[mark] / 1e3)}`, ...outlined() } : undefined,
    })),
  }));
  const x = axis({ axis: { type: "log", ...around(values.length ? values : [1, 10]) }, label: { formatter: (value) => niceLog(value, onAxis((ms) => asTime(ms / 1e3))) } });
  return { ...option, grid: { ...option.grid, left, right: small() ? 84 : 90 }, xAxis: x, yAxis: { ...along("", { axis: { type: "category", data: names }, label: { color: colour("ink"), width: small() ? 108 : 158, overflow: "break", lineHeight: 15 } }), splitLine: { show: true, lineStyle: { color: colour("grid") } } }, series: [...bars, ...dots] };
}
function roomBefore(values, width) {  // where a logarithmic axis begins so that words of 90 pixels fit before the least value
  const low = Math.min(...values), decades = Math.max(Math.log10(Math.max(...values) / low), 0.3);
  return low / 10 ** (decades * 90 / Math.max(width - 90, 90));
}
const spreadRows = (rows) => [["", "mean [ms]", "P50", "P90", "P95", "P99"], ...rows.map(([title, spread]) => [title, ...["mean", ...MARKS].map((mark) => spread[mark] ?? "")])];

function timeLineOption(line, names, label = three, unit = "s") {
  const option = base();
  option.tooltip = { ...option.tooltip, trigger: "axis", formatter: (found) => [`${three(found[0].value[0])} ${unit}`, ...found.map((each) => `${each.seriesName} ${label(each.value[1])}`)].join("\n") };
  option.grid = { ...option.grid, right: 76 };
  const series = names.map(([key, title, tint]) => ({
    type: "line", step: "end", name: title, data: line.time.map((time, place) => [time, line[key][place]]), symbol: "none", lineStyle: { width: 1.4, color: colour(tint) }, itemStyle: { color: colour(tint) },
    endLabel: { show: true, formatter: title, ...text(12), color: colour(tint), offset: [0, key === "queue" ? 8 : -6] },
  }));
  return { ...option, xAxis: along(unit, { axis: { min: 0, max: line.time[line.time.length - 1] }, label: { formatter: three, showMaxLabel: false } }), yAxis: along("", { label: { formatter: label } }), series };
}

function simulation({ spreads, line }) {
  new Chart("sim-spread", () => spreads.length * 46 + 60).show("Percentiles of the simulated requests.", () => spreadOption(spreads, "sim-spread"), () => spreadRows(spreads));
  const rows = () => [["time [s]", "waiting", "decoding", "share of the cache"], ...line.time.map((time, place) => [time, line.queue[place], line.batch[place], line.kv[place]])];
  new Chart("sim-line", () => 280).show("Requests that wait and that decode over time.", () => timeLineOption(line, [["batch", "decoding", "decode"], ["queue", "waiting", "compute"]]), rows);
  new Chart("sim-kv", () => 200).show("Share of the cache in use over time.", () => timeLineOption(line, [["kv", "cache", "cache"]], asShare), rows);
}

function plan({ candidates, spreads, points, hours }) {
  const priced = candidates.some((each) => each.usd !== null), worth = (each) => (priced ? each.usd ?? 0 : each.gpus), unit = priced ? "$/h" : "GPUs";
  const shown = candidates.slice(0, 12);
  new Chart("plan-cost", () => shown.length * (small() ? 62 : 34) + 60).show(`Cost of the candidates in ${unit}; the first is the answer.`, () => candidateOption([...shown].reverse(), worth, unit, candidates[0]),
    () => [["candidate", "GPUs", "$/h", "verdict"], ...candidates.map((each) => [each.title, each.gpus, each.usd ?? "", each.verdict])]);
  if (spreads.length) new Chart("plan-spread", () => spreads.length * 46 + 60).show("Latencies of the answer at its peak.", () => spreadOption(spreads, "plan-spread"), () => spreadRows(spreads));
  if (hours) new Chart("plan-hours", () => 300).show("GPUs and requests a second by the hour of the first month.", () => hoursOption(hours), () => [["hour", "GPUs", "requests/s"], ...hours.time.map((time, place) => [time, hours.gpus[place], hours.rate[place]])]);
  const speed = points.filter((point) => point.on.includes("speed")), cost = points.filter((point) => point.on.includes("cost") && point.usd !== null);
  front("plan-speed", speed, ["user", "tokens/s each user"], ["gpu_rate", "tokens/s each GPU"], "Tokens a second of each user against those of each GPU.");
  front("plan-price", cost, ["e2e", "mean time of a request [ms]"], ["usd", "$ per million tokens"], "Cost of a million tokens against the time of a request.");
}
function hoursOption(hours) {  // GPUs to the left, requests a second to the right
  const option = timeLineOption(hours, [["gpus", "GPUs", "decode"], ["rate", "requests/s", "compute"]], three, "h");
  option.series[1].yAxisIndex = 1;
  return { ...option, yAxis: [option.yAxis, { ...along("", { label: { formatter: three } }), position: "right", splitLine: { show: false } }] };
}
function candidateOption(shown, worth, unit, best) {
  const option = base();
  option.grid = { ...option.grid, left: small() ? 128 : 250, right: small() ? 60 : 90 };
  option.tooltip.formatter = ({ data }) => `${data.each.title}\n${data.each.gpus} GPUs\n${data.each.verdict}`.replace(/(.{60}\S*) /g, "$1\n");
  return {
    ...option, xAxis: along(unit, { label: { formatter: three } }),
    yAxis: { ...along("", { axis: { type: "category", data: shown.map((each) => each.title) }, label: { color: colour("ink"), width: small() ? 118 : 238, overflow: "break", lineHeight: 14, interval: 0, hideOverlap: false } }), splitLine: { show: false } },
    series: [{ type: "bar", barWidth: "60%", data: shown.map((each) => ({ value: worth(each), each, itemStyle: { color: colour(each === best ? "decode" : "engine") } })), label: { show: true, position: "right", ...text(), formatter: ({ value, data }) => (unit === "$/h" && data.each.usd === null ? `no price; ${data.each.gpus} GPUs` : three(value)) } }],
  };
}
function front(id, points, [x, xName], [y, yName], said) {
  if (!byId(id)) return;
  const groups = [...new Set(points.map((point) => point.gpu))];
  const cloud = () => points.map((point) => ({ value: [point[x], point[y]], group: point.gpu, said: `${point.title}\n${xName}: ${three(point[x])}\n${yName}: ${three(point[y])}` }));
  const tints = tintsOf(groups);
  key(`${id}-key`, groups.map((group) => [group, tints.get(group)]));
  new Chart(id, () => 320).show(said, () => {
    const found = cloud(), within = (place, name) => axis({ axis: { type: "log", name, nameGap: 30, ...around(found.map((point) => point.value[place])) }, label: { formatter: (value) => niceLog(value, three) } });
    return cloudOption(found, tints, { x: within(0, xName), y: within(1, ""), size: 10, opacity: 0.85 });
  }, () => [["deployment", xName, yName], ...points.map((point) => [point.title, point[x], point[y]])]);
}

function walk(page) {  // a page of its own inside, made when it is opened
  const details = byId("walk");
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("iframe")) return;
    const frame = make("iframe", "", { title: "Shapes, step by step", sandbox: "allow-scripts" });
    frame.srcdoc = page;
    details.append(frame);
  });
}

for (const [name, draw] of Object.entries({ simulation, plan, table: sweepTable, walk })) if (DATA[name]) draw(DATA[name]);
