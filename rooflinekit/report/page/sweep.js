// The rows of a sweep: any numeric column against any other. The choice stands in the URL after "#".
"use strict";
const FEW = 1500, RINGS = 300;  // from FEW points on they are drawn as small squares, one path a group; at most RINGS rings among them
const BARRED = {  // what keeps rows off the line: their colour, and what is said of so many of them
  "does not fit": ["bad", "not fitting in memory"], overloaded: ["ink", "overloaded (more requests arrive than can be served)"],
  "misses the objectives": ["soft", "of which no request meets the objectives"], "has an error": ["soft", "with an error"],
};
const drawable = (value) => value > 1e-300 && value < 1e300;  // on a logarithmic axis with room at its ends
const SILENT = ["fits", "stable", "error", "warnings"];  // no colours: marks and words say it already

function sweepTable({ columns, rows, better, titles, given, barred }) {
  const names = Object.keys(columns), numbers = names.filter((name) => columns[name].values), words = names.filter((name) => columns[name].words && !SILENT.includes(name));
  const title = (name) => (Object.hasOwn(titles, name) ? titles[name] : name);
  const cell = (name, row) => { const column = columns[name]; return column.codes ? column.words[column.codes[row]] : column.values[row]; };
  const kinds = (name) => columns[name].words?.length ?? new Set(columns[name].values).size;
  const few = words.concat(numbers).filter((name) => kinds(name) <= TINTS.length);
  const why = (row) => barred.words[barred.codes[row]];
  const first = firstChoice(names, numbers, given.filter((name) => kinds(name) > 1 && few.includes(name)));
  const options = { x: numbers, y: numbers, by: ["", ...few] }, boxes = { x: "Across", y: "Up", by: "Coloured by" };
  const chart = new Chart("sweep", () => (small() ? 380 : 520), "canvas");
  let chosen, base;
  byId("sweep-base").addEventListener("change", () => { base = byId("sweep-base").value; draw(); });
  const read = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    chosen = { ...first };
    for (const name of Object.keys(options)) if (options[name].includes(asked.get(name))) chosen[name] = asked.get(name);
    for (const name of Object.keys(options)) byId(`sweep-${name}`).value = chosen[name];
  };
  const change = (name, value) => {
    chosen[name] = value;
    const told = Object.entries(chosen).filter(([each, now]) => now !== first[each]);
    history.replaceState(null, "", `#${new URLSearchParams(told)}`);
    draw();
  };
  for (const [name, each] of Object.entries(options)) {
    const select = make("select", "", { id: `sweep-${name}` }, ...each.map((option) => make("option", option ? title(option) : "nothing", { value: option })));
    select.addEventListener("change", () => change(name, select.value));
    byId("sweep-controls").append(make("div", "", { class: "control" }, make("label", boxes[name], { for: `sweep-${name}` }), select));
  }

  function draw() {
    const start = performance.now(), x = columns[chosen.x].values, y = columns[chosen.y].values, shown = [], hidden = [], good = [];
    for (let row = 0; row < rows; row++) {
      if (!(drawable(x[row]) && drawable(y[row]))) { hidden.push(row); continue; }
      shown.push(row);
      if (!why(row)) good.push(row);
    }
    const groups = grouped(shown, (row) => (why(row) ? APART + why(row) : String((chosen.by && cell(chosen.by, row)) ?? "")), chosen.by, (a, b) => x[a] === x[b] && y[a] === y[b]);
    const sides = [better[chosen.x], better[chosen.y]], front = sides[0] && sides[1] && chosen.x !== chosen.y ? bestOf(good, x, y, sides) : [];
    const said = saidOf([title(chosen.x), title(chosen.y)], { shown, hidden, why, sides, front: front.length });
    byId("sweep-said").textContent = said;
    byId("sweep-up").textContent = title(chosen.y);
    byId("sweep").hidden = !shown.length;
    key("sweep-key", groups.map(({ name, tint, ring, rows: of }) => [name || (chosen.by ? "none" : "all"), tint, ring && (shown.length < FEW || of.length <= RINGS)]));
    const table = () => tableOf(front, rows, (row) => why(row), names.map((name) => [title(name), (row) => cell(name, row) ?? ""]));
    const about = (row) => [why(row), ...names.slice(0, 24).map((name) => `${title(name)}: ${cell(name, row) ?? ""}`)].filter(Boolean).join("\n");
    const users = columns.output_tok_s_per_user?.values, each = columns.output_tok_s_per_gpu?.values, compared = groups.filter(({ ring, name }) => !ring && name).map(({ name }) => name), box = byId("interactivity-card");
    box.hidden = !(users && each && compared.length > 1 && compared.length <= TINTS.length);
    if (!box.hidden) {
      const points = groups.filter(({ ring }) => !ring).flatMap(({ name, rows: of }) => of.filter((row) => users[row] > 0 && each[row] > 0).map((row) => ({ value: [users[row], each[row]], group: name })));
      if (!compared.includes(base)) base = compared[0];
      byId("sweep-base").replaceChildren(...compared.map((name) => make("option", name, { value: name, ...(name === base ? { selected: "" } : {}) })));
      byId("interactivity").replaceChildren(interactivityTable(points, compared, base));
    }
    if (shown.length) chart.show(said, () => sweepCloud({ groups, front, step: sides[0] > 0 ? "start" : "end", x, y, shown }, title(chosen.x), about), table);
    document.documentElement.dataset.updateMs = (performance.now() - start).toFixed(1);
  }
  read();
  draw();
  addEventListener("hashchange", () => { read(); draw(); });
}

function firstChoice(names, numbers, inputs) {  // speed against throughput; under load what a token takes against throughput
  const has = (...wanted) => wanted.find((name) => numbers.includes(name)), loaded = names.includes("rate") || names.includes("concurrency");
  const across = loaded ? has("tpot_ms", "tpot_mean_ms") : has("output_tok_s_per_user", "tpot_ms", "tpot_mean_ms");
  const y = has("output_tok_s_per_gpu", "output_tok_s") ?? numbers[1] ?? numbers[0];
  return { x: across ?? numbers.find((name) => name !== y) ?? y, y, by: inputs[0] ?? "" };
}

function grouped(shown, groupOf, by, same) {  // rows by colour, smallest number first, and behind them those that are barred, one where several follow each other in one place
  const found = new Map(), place = ([name]) => (name.startsWith(APART) ? 2 : name === "" ? 1 : 0);
  for (const row of shown) {
    const group = groupOf(row);
    if (!found.has(group)) found.set(group, []);
    found.get(group).push(row);
  }
  const order = [...found].sort((a, b) => place(a) - place(b) || (by && Number.isFinite(a[0] - b[0]) ? a[0] - b[0] : 0));
  const tints = tintsOf(order.map(([name]) => name).filter((name) => !name.startsWith(APART)));
  return order.map(([name, rows]) => {
    const ring = name.startsWith(APART), told = ring ? name.slice(APART.length) : name;
    return { name: told, rows: ring ? rows.filter((row, at) => !at || !same(row, rows[at - 1])) : rows, ring, tint: ring ? [BARRED[told][0], 0] : tints.get(told) };
  });
}

function saidOf([across, up], { shown, hidden, why, sides, front }) {
  const count = (number) => `${GROUPED.format(number)} ${number === 1 ? "row" : "rows"}`, of = (rows, word) => rows.filter((row) => why(row) === word).length;
  const told = shown.length ? [`${count(shown.length)}: ${up} against ${across}`] : [`No row has values above zero in both ${across} and ${up}`];
  for (const [word, [, words]] of Object.entries(BARRED)) if (of(shown, word)) told.push(`${count(of(shown, word))} ${words}`);
  if (shown.length && of(hidden, "")) told.push(`${count(of(hidden, ""))} without values above zero`);
  for (const [word, [, words]] of Object.entries(BARRED)) if (of(hidden, word)) told.push(`${count(of(hidden, word))} ${words}, without values to draw`);
  if (!shown.length) return `${told.join("; ")}.`;
  const aim = (name, side) => `${side > 0 ? "more" : "less"} ${name.replace(/ \[[^\]]*\]$/, "")}`;
  const line = front ? ` The line is the Pareto front (${aim(across, sides[0])}, ${aim(up, sides[1])}); its rows stand first in the table.`
    : sides[0] && sides[1] && across !== up ? " No line: no row may stand on it." : " No line: not both have a better end.";
  return `${told.join("; ")}.${line}`;
}

function tableOf(front, rows, why, columns) {  // the line, and then others up to a hundred rows
  const on = new Set(front), others = [];
  for (let row = 0; row < rows && front.length + others.length < 100; row++) if (!on.has(row)) others.push(row);
  const line = (row) => [on.has(row) ? "on the line" : why(row), ...columns.map(([, value]) => value(row))];
  return [["stands", ...columns.map(([name]) => name)], ...[...front, ...others].map(line)];
}

function bestOf(rows, x, y, [across, up]) {  // rows that nothing else beats, in the order of x
  if (!rows.length) return [];
  const worth = (row) => across * Math.log(x[row]) + up * Math.log(y[row]);
  const strong = rows.reduce((best, row) => (worth(row) > worth(best) ? row : best));  // most others are beaten by this one alone
  const left = rows.filter((row) => row === strong || across * x[row] > across * x[strong] || up * y[row] > up * y[strong]);
  left.sort((a, b) => across * (x[b] - x[a]) || up * (y[b] - y[a]));
  const found = [];
  for (const row of left) if (!found.length || up * y[row] > up * y[found[found.length - 1]]) found.push(row);
  return across > 0 ? found.reverse() : found;
}

function endsOf(rows, values) {
  let low = Infinity, high = 0;
  for (const row of rows) { if (values[row] < low) low = values[row]; if (values[row] > high) high = values[row]; }
  return [low, high];
}

function scaled(values, name, label) {
  let { min, max } = around(values);
  if (min === max) [min, max] = [nice(min / 2, false), nice(max * 2, true)];
  const few = max / min < 1e12 ? ticked({ min, max }, label) : axis({ axis: { type: "log", min, max }, label: { formatter: (value) => niceLog(value, label) } });
  return { ...few, name, nameGap: 30 };
}

function sweepCloud({ groups, front, step, x, y, shown }, across, about) {
  const option = base(), many = shown.length >= FEW, short = (value) => (value >= 1e6 ? plain(value) : three(value));
  const flat = (each) => { const found = new Float64Array(2 * each.length); each.forEach((row, place) => { found[2 * place] = x[row]; found[2 * place + 1] = y[row]; }); return found; };
  const dots = ({ rows, ring, tint }) => {
    const hollow = ring && (!many || rows.length <= RINGS), large = many && !hollow;
    const style = hollow ? { color: "transparent", borderColor: shaded(tint), borderWidth: 1.5 } : { color: shaded(tint), opacity: many ? (ring ? 0.25 : 0.5) : 0.8 };
    return { type: "scatter", name: "rows", dimensions: ["x", "y"], data: flat(rows), symbolSize: large ? 3.5 : 8, itemStyle: style, z: ring && !(many && hollow) ? 2 : 3, progressive: 0, large, largeThreshold: 1 };
  };
  const line = { type: "line", step, data: front.map((row) => [x[row], y[row]]), symbol: "none", silent: true, lineStyle: { color: colour("ink"), width: 1.6 }, z: 4 };
  option.tooltip.formatter = ({ seriesIndex, dataIndex }) => (seriesIndex < groups.length ? about(groups[seriesIndex].rows[dataIndex]) : "");
  option.grid = { ...option.grid, right: 26, left: small() ? 60 : 76 };
  return { ...option, xAxis: scaled(endsOf(shown, x), across, short), yAxis: scaled(endsOf(shown, y), "", short), series: [...groups.map(dots), line] };
}
