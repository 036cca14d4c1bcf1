// The rows of a sweep: any numeric column against any other. The choice stands in the URL after "#".
"use strict";
const FEW = 1500, WORSE = "does not fit";  // from FEW points on they are drawn as small squares, one path a group

function sweepTable({ columns, rows, better }) {
  const names = Object.keys(columns), numbers = names.filter((name) => columns[name].values), words = names.filter((name) => columns[name].words && name !== "fits");
  const cell = (name, row) => { const column = columns[name]; return column.codes ? column.words[column.codes[row]] : column.values[row]; };
  const kinds = (name) => columns[name].words?.length ?? new Set(columns[name].values).size;
  const few = words.concat(numbers).filter((name) => kinds(name) <= TINTS.length);
  const out = columns.fits ? columns.fits.codes.map((code) => columns.fits.words[code] === "False") : null;
  const has = (...wanted) => wanted.find((name) => numbers.includes(name));
  const first = { x: has("output_tok_s_per_user", "tpot_ms") ?? numbers[0], y: has("output_tok_s_per_gpu", "output_tok_s") ?? numbers[1] ?? numbers[0], by: names.find((name) => kinds(name) > 1 && few.includes(name) && !better[name]) ?? few[0] ?? "" };
  const options = { x: numbers, y: numbers, by: ["", ...few] }, titles = { x: "Across", y: "Up", by: "Coloured by" };
  const chart = new Chart("sweep", () => (small() ? 380 : 520), "canvas");
  let chosen;
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    chosen = { ...first };
    for (const name of Object.keys(options)) if (options[name].includes(given.get(name))) chosen[name] = given.get(name);
    for (const name of Object.keys(options)) byId(`sweep-${name}`).value = chosen[name];
  };
  const change = (name, value) => {
    chosen[name] = value;
    const told = Object.entries(chosen).filter(([each, now]) => now !== first[each]);
    history.replaceState(null, "", `#${new URLSearchParams(told)}`);
    draw();
  };
  for (const [name, each] of Object.entries(options)) {
    const select = make("select", "", { id: `sweep-${name}` }, ...each.map((option) => make("option", option || "nothing", { value: option })));
    select.addEventListener("change", () => change(name, select.value));
    byId("sweep-controls").append(make("div", "", { class: "control" }, make("label", titles[name], { for: `sweep-${name}` }), select));
  }

  function draw() {
    const start = performance.now(), x = columns[chosen.x].values, y = columns[chosen.y].values, groups = new Map([[WORSE, []]]), good = [];
    for (let row = 0; row < rows; row++) {
      if (!(x[row] > 0 && y[row] > 0)) continue;
      const group = out?.[row] ? WORSE : chosen.by ? String(cell(chosen.by, row) ?? "") || "none" : "all";
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(row);
      if (group !== WORSE) good.push(row);
    }
    const sides = [better[chosen.x], better[chosen.y]], front = sides[0] && sides[1] && chosen.x !== chosen.y ? bestOf(good, x, y, sides) : [];
    const bad = groups.get(WORSE), shown = good.length + bad.length, fitting = [...groups.keys()].slice(1);
    const said = saidOf(chosen, { shown, rows, bad: bad.length, sides, front: front.length });
    byId("sweep-said").textContent = said;
    byId("sweep-up").textContent = chosen.y;
    byId("sweep").hidden = !shown;
    key("sweep-key", [...fitting.map((group, place) => [group, TINTS[place % TINTS.length]]), ...(bad.length ? [[WORSE, "bad", shown < FEW]] : [])]);
    const table = () => [names, ...(front.length ? front : good.slice(0, 100)).map((row) => names.map((name) => cell(name, row) ?? ""))];
    const about = (row) => names.slice(0, 24).map((name) => `${name} ${cell(name, row) ?? ""}`).join("\n");
    if (shown) chart.show(said, () => sweepCloud({ groups, front, step: sides[0] > 0 ? "start" : "end", x, y, shown }, chosen, about), table);
    document.documentElement.dataset.updateMs = (performance.now() - start).toFixed(1);
  }
  read();
  draw();
  addEventListener("hashchange", () => { read(); draw(); });
}

function saidOf(chosen, { shown, rows, bad, sides, front }) {
  const count = (number) => `${number.toLocaleString("en-US")} ${number === 1 ? "row" : "rows"}`;
  if (!shown) return `No row has values above zero in both ${chosen.x} and ${chosen.y}.`;
  const told = [`${count(shown)}: ${chosen.y} against ${chosen.x}`, ...(shown < rows ? [`${count(rows - shown)} without values above zero`] : []), ...(bad ? [`${count(bad)} not fitting in memory`] : [])];
  const aim = (name, side) => `${side > 0 ? "more" : "less"} ${name}`;
  const line = front ? ` The line is what nothing else beats (${aim(chosen.x, sides[0])}, ${aim(chosen.y, sides[1])}); its rows stand in the table.`
    : " No line: not both have a better end. The table has the first hundred rows.";
  return `${told.join("; ")}.${line}`;
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

function sweepCloud({ groups, front, step, x, y, shown }, chosen, about) {
  const option = base(), rows = [...groups.values()].flat(), many = shown >= FEW;
  const within = (values, name) => axis({ axis: { type: "log", name, nameGap: 30, ...around(endsOf(rows, values)) }, label: { formatter: (value) => niceLog(value, three) } });
  const flat = (each) => { const found = new Float64Array(2 * each.length); each.forEach((row, place) => { found[2 * place] = x[row]; found[2 * place + 1] = y[row]; }); return found; };
  const dots = ([group, each], place) => {
    const bad = group === WORSE, tint = colour(bad ? "bad" : TINTS[(place - 1) % TINTS.length]);
    const style = bad && !many ? { color: "transparent", borderColor: tint, borderWidth: 1.5 } : { color: tint, opacity: many ? (bad ? 0.25 : 0.5) : 0.8 };
    return { type: "scatter", name: group, dimensions: ["x", "y"], data: flat(each), symbolSize: many ? 3.5 : 8, itemStyle: style, z: bad ? 2 : 3, progressive: 0, large: many, largeThreshold: 1 };
  };
  const line = { type: "line", step, data: front.map((row) => [x[row], y[row]]), symbol: "none", silent: true, lineStyle: { color: colour("ink"), width: 1.6 }, z: 4 };
  option.tooltip.formatter = ({ seriesName, dataIndex }) => (groups.has(seriesName) ? about(groups.get(seriesName)[dataIndex]) : "");
  option.grid = { ...option.grid, right: 26, left: small() ? 60 : 76 };
  return { ...option, xAxis: within(x, chosen.x), yAxis: within(y, ""), series: [...[...groups].map(dots).filter(({ data }) => data.length), line] };
}
