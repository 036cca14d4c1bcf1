// What more load does, and what tokens cost in dollars and joules.
"use strict";
const KEPT = new Map();  // curves of the last states: one that differs in its load alone has the same
function curveKey({ at: { rate, users, batch, ...rest }, rows: { plan } }) {
  return JSON.stringify([rest, rate ? "rate" : users ? "users" : "", plan.static]);
}
function loads(view) {
  const key = curveKey(view);
  if (!KEPT.has(key)) {
    if (KEPT.size > 3) KEPT.clear();
    KEPT.set(key, curveOf(view));
  }
  return KEPT.get(key);
}
const UPTO = [-5, -4, -3, -2, -1.5, -1, -0.7, -0.4, -0.2, -0.1, 0.15, 0.4], MANY = 2048;  // doublings of the most that can be served; users
function pointsOf(view) {  // more and more load, past what can be served; of a static batch, of arrivals at a rate: functions, each of one
  const { batch, rate, users, ...at } = view.at, { rows: { plan } } = view, name = loadOf(view.at) ?? "rate", of = (value) => loaded(plan, { ...at, [name]: value });
  const knee = kneeOf(plan, at), requests = (plan.load ?? DATA.load)?.requests ?? Infinity;
  if (!(knee > 0)) return [];
  const values = name === "rate" ? UPTO.map((step) => Number((knee * 2 ** step).toPrecision(3))) : Array.from({ length: Math.log2(MANY) + 1 }, (_, place) => 2 ** place).filter((each) => each <= requests);
  return values.map((value) => () => of(value));
}
const curveOf = (view) => pointsOf(view).map((point) => point()).filter((each) => each);
let curving = 0, curve = null;
addEventListener("beforeprint", () => curve?.());
function curveSoon(view, act) {  // in parts, so that nobody who moves a slider waits
  const left = pointsOf(view);
  curve = () => { curve = null; clearTimeout(curving); loads(view); act(); };
  curving = setTimeout(function some() {
    const end = performance.now() + 6;
    while (left.length && performance.now() < end) left.shift()();
    if (left.length) curving = setTimeout(some);
    else curve?.();
  }, 40);
}
function drawLoads(view, other) {  // what it drew, where the page is under load
  const here = view.load, { plan } = view.rows, name = loadOf(view.at) ?? "rate", there = view.rows.plan.loads.includes(name);
  byId("loads").hidden = !there;
  byId("no-loads").hidden = there;
  if (!there) return null;
  const xName = name === "rate" ? "requests a second" : "users", x = (each) => each.at[name], of = () => loads(view), against = () => (other?.load && name in other.at ? loads(other) : null);
  const say = (each) => `${three(x(each))} ${xName}\nTPOT ${asTime(each.tpot.time)} (${asTime(each.tpot.low)} to ${asTime(each.tpot.high)})\nTTFT ${asTime(each.ttft.time)} (${asTime(each.ttft.low)} to ${asTime(each.ttft.high)})\n${three(each.running)} sequences running${each.stable ? "" : `\noverload: times of the ${asTime(each.now ?? 0)} that were played`}`;
  const rows = () => [[xName, "TPOT [ms]", "low", "high", "TTFT [ms]", "low", "high", "running"], ...of().map((each) => [x(each), ...["tpot", "ttft"].flatMap((which) => ["time", "low", "high"].map((end) => each[which][end] * 1e3)), each.running])];
  const goals = (plan.load ?? DATA.load)?.goals ?? [], beyond = name === "rate" ? kneeOf(plan, view.at) : null, spread = (which) => (each) => [0.5, 0.5, 0.95, 0.95].map((share) => 1e3 * (quantileOf(each.sorted[which], share) || each[which].time));
  for (const [place, which] of ["ttft", "tpot"].entries()) {
    const goal = goals[place], meeting = goal && KEPT.has(curveKey(view)) ? of().filter((each) => spread(which)(each)[2] <= 1e3 * goal) : [];
    byId(`load-${which}-said`).textContent = !goal || !KEPT.has(curveKey(view)) ? "Half of the requests lie below P50, 19 of 20 below P95." : meeting.length ? `19 of 20 requests meet ${asTime(goal)} up to ${three(x(meeting[meeting.length - 1]))} ${xName}.` : `At no load that was played do 19 of 20 requests meet ${asTime(goal)}.`;
    C[which].show(`${which.toUpperCase()} against ${xName}, P50 and P95.`, () => sweepOption(of(), x, spread(which), { band: true, bound: true, names: ["P50", "P95"], here, say, label: three, xName, reference: against(), goal, beyond }), rows);
  }
  C.parts.show(`Parts of a mean token against ${xName}.`, () => partsOption(of(), x, xName, here), () => [[xName, ...TIME_PARTS.map(([title]) => `${title} [ms]`), `${OTHERS[0]} [ms]`], ...of().map((each) => [x(each), ...layersOf(each).map((time) => 1e3 * time)])]);
  return here && { rows: of, x, xName, here };
}
function layersOf({ parts, stepParts }) {  // seconds of a mean token: of TIME_PARTS, and prompts of others
  const scale = parts.step / sum(stepParts);
  return [...stepParts.map((time) => scale * time), parts.others];
}
function partsOption(rows, x, xName, here) {  // areas on each other, up to what can be served
  const option = base(), shown = rows.filter(({ stable }) => stable);
  if (!shown.length) return option;
  const terms = [...TIME_PARTS, OTHERS].map(([name, tint], place) => [name, tint, place]).filter(([, , place]) => shown.some((each) => layersOf(each)[place] > 0.005 * each.tpot.time));
  key("load-parts-key", terms.map(([name, tint]) => [name, tint]));
  option.tooltip = { ...option.tooltip, trigger: "axis", formatter: (each) => `${three(2 ** each[0].value[0])} ${xName}\n${each.filter(({ value }) => value.length > 2).map(({ seriesName, value }) => `${seriesName} ${asTime(value[2])}`).join("\n")}` };
  const now = here && here.stable ? [{ type: "line", symbol: "none", silent: true, data: [[Math.log2(x(here)), 0], [Math.log2(x(here)), 1e3 * here.tpot.time]], lineStyle: { color: colour("ink"), width: 1.6 }, endLabel: { show: true, formatter: `now ${asTime(here.tpot.time)}`, ...text(12), color: colour("ink"), align: "right", offset: [-6, -8], ...outlined() } }] : [];
  return { ...option, xAxis: doublings(xName, shown.map(x)), yAxis: along("", { label: { formatter: three } }), series: [...terms.map(([name, tint, place]) => ({ type: "line", name, symbol: "none", lineStyle: { width: 0 }, areaStyle: { color: colour(tint), opacity: 1, origin: "start" }, data: shown.map((each) => [Math.log2(x(each)), 1e3 * sum(layersOf(each).slice(0, place + 1)), layersOf(each)[place]]) })).reverse(), ...now] };  // each covers the lower ones' ground, and they are drawn over it
}
function drawSpent(view, { rows, x, xName, here }) {  // dollars and joules of an output token over the load, or over the batch
  const price = priceOf(view), { energy } = felt(view), power = OFFERS.gpus[view.at.gpu].power, priced = price && !DATA.pool, known = energy && !DATA.pool;
  const hour = price && price[0] * view.gpus;
  byId("price").textContent = priced ? `An hour of ${view.gpus === 1 ? `the ${nounOf(view.at.gpu)}` : `the ${view.gpus} ${nounOf(view.at.gpu)}s`} costs $${three(hour)} (${price[1]}), a million output tokens ${asDollars(dollars(view))}, prompts included.` : DATA.pool ? "Prompts are computed elsewhere: the plan above has the price of both." : "No price of this accelerator is known; `rooflinekit report --price` takes yours.";
  byId("spent").textContent = known ? `Each ${nounOf(view.at.gpu)} draws ${three(energy.watts)} W in the mean (idle ${three(power[0])}, limit ${three(power[1])}) and is busy ${asShare(energy.busy)} of the time. ${power[2] ? "Measured on kernels of this chip." : "Carried over from measured chips."} With its share of the host it draws ${three(energy.watts * power[3])} W at the plug; cooling is not counted.` : DATA.pool ? "Prompts are computed elsewhere: the plan above has the energy of both." : "The power limit of this accelerator is not known.";
  const over = (id, there, value, label, said) => {
    byId(id).closest(".figure").hidden = !there;
    if (there) C[id].show(said, () => sweepOption(rows(), x, (each) => [0, value(each), 0, 0], { band: false, bound: false, here, say: (each) => `${three(x(each))} ${xName}\n${label(value(each))}`, label, xName }), () => [[xName, said], ...rows().map((each) => [x(each), value(each)])]);
  };
  over("dollars", priced, (each) => price[0] / 3600 / each.rateEach * 1e6, asPrice, `$ per million output tokens against ${xName}`);
  over("joules", known, (each) => each.energy.joules, onAxis(asEnergy), `Joules of an output token against ${xName}`);
  over("watts", known, (each) => each.energy.watts, (watts) => `${three(watts)} W`, `Mean power of a GPU against ${xName}`);
  for (const id of ["energy", "shares", "energy-roof"]) byId(id).closest(".card").hidden = !known;
  if (!known) return;
  const tokens = [["output token\nall included", energy.parts], ["decode step\nits share", energy.step], ["prompt token", energy.prompt]].map(([title, parts]) => [`${title}\n${asEnergy(sum(parts))}`, Object.fromEntries(ENERGY_PARTS.map(([, tint], place) => [tint, parts[place]])), sum(parts)]);
  const table = () => [["", ...ENERGY_PARTS.map(([title]) => `${title} [J]`)], ...tokens.map(([title, , ], place) => [title.split("\n")[0], ...[energy.parts, energy.step, energy.prompt][place]])];
  C.energy.show("Parts of the energy of an output token.", (wide) => waterfall(energyTerms(energy), wide), table);
  C.roof.show("Energy of a FLOP of each kernel against FLOP per byte.", () => energyRoofOption(view), () => [["step", "kernel", "FLOP per byte", "pJ per FLOP"], ...STEPS.flatMap((name) => view[name].filter((part) => part.flops > 0 && moved(part) > 0).map((part) => [name, part.name, part.flops / moved(part), 1e12 * sum(part.energy) / part.flops]))]);
  C.shares.show("Shares of the energy of an output token, of its decode step and of a prompt token.", () => stackOption(tokens, ENERGY_PARTS.map(([title, tint]) => [tint, title]), asEnergy, { id: "shares", max: 1, scale: asPercent }), table);
}

// ---- energy of a FLOP
function energyRoofOption(view) {
  const option = base(), roof = OFFERS.gpus[view.at.gpu].energy, points = STEPS.map((step) => {
    const whole = sum(view[step].map(({ energy }) => sum(energy)));
    return view[step].filter((part) => part.flops > 0 && moved(part) > 0).map((part) => ({ value: [part.flops / moved(part), 1e12 * sum(part.energy) / part.flops], part, symbolSize: 5 + 30 * Math.sqrt(sum(part.energy) / whole), said: `${part.name} × ${part.count}\n${asEnergy(sum(part.energy))} (${asShare(sum(part.energy) / whole)} of a ${step} step), ${three(1e12 * sum(part.energy) / part.flops)} pJ/FLOP` }));
  }), largest = points.map((each) => each.reduce((most, point) => (point.symbolSize > (most?.symbolSize ?? 0) ? point : most), null)), all = points.flat().map(({ value }) => value), of = (place) => around([...all.map((value) => value[place]), ...(place ? roof.map((each) => 1e12 * each[1]) : [0.3, 3000])]);
  option.tooltip.formatter = ({ data }) => data?.said ?? "";
  option.grid = { ...option.grid, left: small() ? 62 : 100, right: 24 };
  const dots = STEPS.map((step, place) => ({ type: "scatter", name: step, symbol: LOOK.shapes[step], data: points[place].map((point) => ({ ...point, itemStyle: { color: colour(quantityOf(point.part)) }, ...(point === largest[place] ? { label: { show: true, formatter: point.part.name, position: "top", ...text(12), color: colour("ink"), ...outlined() } } : {}) })), z: 4, itemStyle: { opacity: 0.85, borderColor: colour("card") } }));
  const x = of(0), y = of(1), line = { type: "line", data: roof.map(([intensity, joules]) => [intensity, 1e12 * joules]).filter((each) => each[0] >= x.min && each[0] <= x.max && each[1] <= y.max), symbol: "none", silent: true, smooth: true, lineStyle: { color: colour("ink"), width: 1.6 } };
  return { ...option, xAxis: logarithmic("FLOP per byte of memory traffic", "", { axis: x }), yAxis: axis({ axis: { type: "log", ...y }, label: { formatter: (value) => niceLog(value, (picojoules) => `${three(picojoules)} pJ`) } }), series: [line, ...dots] };
}
