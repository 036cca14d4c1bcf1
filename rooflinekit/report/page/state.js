// State, and the controls that change it. It stands in the URL after "#"; nothing is stored or sent.
"use strict";
const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], CONTEXTS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];
const LIMITS = {
  batch: [1, 4096], rate: [0.01, 10000], users: [1, 8192], isl: [1, 1048576], osl: [1, 131072], cached: [0, 1048576], context: [1, 1048576], speed: [0.1, 10],
};
const LOADS = DATA.pool ? [] : Object.keys(DATA.process ?? {}), TRAFFIC = DATA.asked && "batch" in DATA.asked && LOADS.length ? ["batch", ...LOADS] : [];
const NUMBERS = Object.fromEntries(Object.entries(LIMITS).filter(([name]) => DATA.asked && (name in DATA.asked || TRAFFIC.includes(name)))), WHOLE = (name) => name !== "speed" && name !== "rate";
const SHORT = { model: "m", gpu: "g", tp: "tp", weights: "w", kv: "kv", engine: "e", batch: "b", rate: "r", users: "u", isl: "i", osl: "o", cached: "c", context: "x", speed: "bw", pinned: "vs", tab: "t", lens: "y", least: "s" };
let state = { ...DATA.asked }, pinned = null, tab = "decode", step = "decode", lens = "rate", least = 0, painted = 0;
const LOADED = ["rate", "users"].some((name) => name in (DATA.asked ?? {})), TABS = LOADED ? ["load", "decode", "prefill", "memory", "cost", "energy"] : ["decode", "prefill", "load", "memory", "cost", "energy"];
const firstTab = (at) => (loadOf(at) ? "load" : "decode");  // unless the address names one

// ---- answers
const askedOf = (model, engine = DATA.asked?.engine) => OFFERS.asked?.[model]?.[engine] ?? OFFERS.asked?.[model]?.[DATA.asked.engine] ?? DATA.asked;  // where a playground begins with a model and an engine; else what the page was asked for
const isAsked = (at) => Object.entries(askedOf(at.model)).every(([name, value]) => at[name] === value);
function withFiles(wanted, act) {  // a playground fetches a model when it is first chosen, and what it has of another engine
  const missing = wanted.filter(([model, engine]) => DATA.files && !fetched(model, engine));
  if (missing.length) Promise.all(missing.map((each) => fetchFile(...each))).then(act, (error) => { byId("said").textContent = `${missing.map(([model, engine]) => `${model} with ${engine}`).join(", ")} could not be fetched: ${error.message}`; });
  else act();
}
const filesOf = (model, engine) => [[model, DATA.asked.engine], ...(engine === DATA.asked.engine ? [] : [[model, engine]])];
const namesIn = (given) => ["model", "engine"].map((name) => (optionsOf(name).includes(given.get(SHORT[name])) ? given.get(SHORT[name]) : DATA.asked[name]));
function filesIn(given) {
  const [model, engine] = namesIn(given), vs = given.get(SHORT.pinned);
  return [...filesOf(model, engine), ...(vs === null ? [] : filesIn(new URLSearchParams(vs)))];
}
const arrive = (act) => withFiles(filesIn(new URLSearchParams(location.hash.slice(1))), () => { state = read(); act(); });
function answer(at) {
  const plan = planOf(at);
  return plan && viewOf(plan, at);
}
let other = null;
const against = () => (DATA.reference ? (other ??= viewOf(DATA.reference.plan, DATA.reference.at)) : null);
function sweep(view, name, values) {  // of a static batch
  const { at, rows: { plan } } = view, longest = OFFERS.models[at.model] ?? Infinity, after = name === "isl" ? at.osl : 0;
  const found = name === "batch" ? values : values.filter((value) => value > (at.cached ?? 0) && value + after <= longest);
  return (found.length ? found : [at[name]]).map((value) => new View(plan, { ...at, [name]: value }));
}
function settled(at) {  // of a prompt one token at least is computed
  const known = Object.fromEntries(Object.entries(at).filter(([, value]) => value !== undefined));
  return known.cached >= known.isl ? { ...known, cached: known.isl - 1 } : known;
}
function whyNot(at) {
  const missing = OFFERS.missing[labelOf(at)];
  if (missing) return `${missing}; ${wouldFit(at)}`;
  if (labelOf(at) in OFFERS.plans) return "under load, only the formats that the page began with are embedded";
  const own = Object.keys(OFFERS.plans).map((label) => label.split(APART)).filter((words) => words[0] === at.model && words[CHOICES.indexOf("engine")] === at.engine), gpus = [...new Set(own.map((words) => words[1]))];
  return gpus.includes(at.gpu) ? "this combination is not in this page" : `not in this page, which has ${at.model} with ${at.engine} on ${gpus.join(", ") || "no GPU"}`;
}

// ---- the state in the URL
const atLeast = (textual) => (Number(textual) > 0 && Number(textual) < 1e6 ? Number(textual) : 0);  // tokens/s of each user; 0 where nobody asks for them
function read(address = location.hash) {
  const given = new URLSearchParams(address.slice(1)), vs = given.get(SHORT.pinned), other = vs === null ? null : stateIn(new URLSearchParams(vs));
  pinned = other && answer(other) ? other : null;
  const found = stateIn(given);
  tab = TABS.includes(given.get(SHORT.tab)) ? given.get(SHORT.tab) : firstTab(found);
  least = atLeast(given.get(SHORT.least));
  lens = Object.hasOwn(LENSES, given.get(SHORT.lens)) ? given.get(SHORT.lens) : "rate";
  return found;
}
function stateIn(given) {  // what is not there, or makes no sense, is as it was asked for
  const found = { ...askedOf(...namesIn(given)) };
  for (const name of CHOICES) {
    const value = given.get(SHORT[name]);
    if (optionsOf(name).includes(value)) found[name] = typed(name, value);
  }
  const kind = TRAFFIC.find((name) => name !== "batch" && given.has(SHORT[name]));
  if (kind) Object.assign(found, trafficAt(kind, 1));
  for (const name of Object.keys(NUMBERS)) if (found[name] !== undefined) found[name] = inside(name, given.get(SHORT[name]) ?? "");
  return settled(found);
}
function inside(name, textual) {  // the number within its limits; what was asked for where it is none
  const [low, high] = NUMBERS[name], value = Number(textual);
  return textual.trim() === "" || !Number.isFinite(value) ? DATA.asked[name] ?? 1 : Math.min(Math.max(WHOLE(name) ? Math.round(value) : value, low), high);
}
function written(at) {
  const told = new URLSearchParams(), own = askedOf(at.model, at.engine);
  for (const name of [...CHOICES, ...Object.keys(NUMBERS)]) if (name in at && at[name] !== (["model", "engine"].includes(name) ? DATA.asked : own)[name]) told.set(SHORT[name], at[name]);
  return told;
}
let writing = 0;
function writeSoon() {  // browsers ignore or refuse addresses that change more than a few times a second
  clearTimeout(writing);
  writing = setTimeout(write, 80);
}
function write() {
  const told = written(state);
  if (pinned) told.set(SHORT.pinned, written(pinned));
  if (tab !== firstTab(state)) told.set(SHORT.tab, tab);
  if (lens !== "rate") told.set(SHORT.lens, lens);
  if (least) told.set(SHORT.least, least);
  history.replaceState(null, "", `#${told}`);
}

// ---- controls
const TITLES = { model: "Model", gpu: "GPU", tp: "Tensor parallel", weights: "Weights", kv: "KV cache", engine: "Engine", batch: "Batch", rate: "Requests a second", users: "Users", isl: "Prompt", osl: "Output", cached: "Prompt in the cache", context: "Context", speed: "Memory bandwidth" };
const typed = (name, value) => (name === "tp" && /^\d+$/.test(value) ? Number(value) : value);
const OPTIONS = {};
const optionsOf = (name) => (OPTIONS[name] ??= DATA.files && name === "model" ? Object.keys(DATA.files) : DATA.files && name === "engine" ? DATA.engines : [...new Set([...Object.keys(OFFERS.plans), ...Object.keys(OFFERS.missing)].map((label) => label.split(APART)[CHOICES.indexOf(name)]))]);
function optionTitle(name, value) {
  if (name === "tp") return `${gpusOf(value)} ×${typeof typed("tp", value) === "number" ? "" : ` (${value})`}`;
  if (value !== "own") return value;
  const format = OFFERS.formats[state.model]?.[name];
  return `${format ? `${format}, ` : ""}${name === "kv" ? "default" : "as published"}`;
}
const familyOf = (model) => model.split("-")[0].replace(/[\d.]+$/, "") || model;
function optionList(name) {  // models by family and accelerators by vendor, where a playground has many
  const of = DATA.files && (name === "model" ? familyOf : name === "gpu" ? (gpu) => DATA.vendors[gpu] : null) || (() => ""), groups = new Map();
  for (const value of optionsOf(name)) groups.set(of(value), [...(groups.get(of(value)) ?? []), make("option", optionTitle(name, value), { value })]);
  return [...groups].flatMap(([label, options]) => (label ? [make("optgroup", "", { label }, ...options)] : options));
}
function picker(name) {
  const select = make("select", "", { id: `in-${name}`, "aria-label": TITLES[name] });
  select.append(...optionList(name));
  select.addEventListener("change", () => change({ [name]: typed(name, select.value) }));
  return select;
}
const NOTCHES = 400;
const STOPS = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, [...new Set(Array.from({ length: NOTCHES + 1 }, (_, notch) => stopAt(name, notch)))]]));
function stopAt(name, notch) {  // values where a slider rests: evenly over the logarithm, each once, so that a key always moves it
  const [low, high] = [NUMBERS[name][0] || 1, NUMBERS[name][1]], value = low * (high / low) ** (notch / NOTCHES);
  if (notch === 0) return NUMBERS[name][0];
  if (name === "rate") return Number(value.toPrecision(2));
  if (name === "speed") return Math.abs(value - 1) < 0.015 ? 1 : Number(value.toPrecision(2));
  const doubling = 2 ** Math.round(Math.log2(value));  // sliders rest on powers of two; the box takes any number
  return Math.min(Math.max(Math.abs(value / doubling - 1) < 0.06 ? doubling : Number(value.toPrecision(2)), low), high) | 0 || low;
}
function stopOf(name, value) {  // the place of the nearest
  const stops = STOPS[name], above = stops.findIndex((stop) => stop >= value);
  if (above <= 0) return above ? stops.length - 1 : 0;
  return value / Math.max(stops[above - 1], 0.5) < stops[above] / value ? above - 1 : above;
}
const SENT = { batch: (count) => `${counted("sequence", count)} at once`, rate: (count) => `${counted("request", count)} a second`, users: (count) => `${counted("user", count)} in a closed loop` };
const trafficAt = (kind, value) => ({ ...Object.fromEntries([...TRAFFIC, "cached"].map((name) => [name, undefined])), ...(kind === "batch" ? { cached: DATA.asked.cached } : {}), [kind]: value });
function sent(kind) {  // a load beside the present one: half of what can be served, or as many as run now
  const view = answer(state), running = view?.load?.running ?? state.users ?? state.batch;
  if (kind !== "rate") return Math.max(Math.round(running), 1);
  const knee = kneeOf(planOf(state) ?? planOf(askedOf(state.model)), state) ?? 2;
  return Number(Math.min(Math.max(knee / 2, NUMBERS.rate[0]), NUMBERS.rate[1]).toPrecision(2));
}
function traffic() {
  const select = make("select", "", { id: "in-traffic", "aria-label": "How requests come" }, ...TRAFFIC.map((kind) => make("option", "", { value: kind })));
  select.addEventListener("change", () => change(trafficAt(select.value, sent(select.value))));
  return select;
}
const UNITS = { batch: "sequence", users: "user", isl: "token", osl: "token", cached: "token", context: "token" };
const SPOKEN = ["batch", "rate", "users", "isl", "osl"];  // numbers that stand in the sentence
function exact(name) {
  const [low, high] = NUMBERS[name], box = make("input", "", { type: "number", id: `box-${name}`, min: low, max: high, step: WHOLE(name) ? 1 : "any", "aria-label": `${TITLES[name]}, exact` });
  box.addEventListener("change", () => change({ [name]: inside(name, box.value) }));
  return box;
}
function slider(name) {
  const range = make("input", "", { type: "range", id: `in-${name}`, min: 0, max: STOPS[name].length - 1, "aria-describedby": `out-${name}` });
  range.addEventListener("input", () => change({ [name]: STOPS[name][range.value] }));
  const label = make("label", TITLES[name], { for: `in-${name}` });
  label.append(make("output", "", { id: `out-${name}`, for: `in-${name}` }));
  return make("div", "", { class: "control" }, label, SPOKEN.includes(name) ? range : make("div", "", { class: "pair" }, range, exact(name)));
}
function sentence() {  // what runs and what it serves: each noun is the control of what it names
  const loads = ["batch", "rate", "users"].filter((name) => name in NUMBERS), text = (words) => document.createTextNode(words);
  byId("sentence").append(
    picker("model"), text(" on "), picker("tp"), text(" "), picker("gpu"), text(" with "), picker("engine"), text(", weights in "), picker("weights"), text(", serving "),
    make("span", "", { class: "together" }, ...loads.map(exact), text(" "), TRAFFIC.length ? traffic() : text(SENT[loads[0]](2)), text(",")), text(" "), exact("isl"), text(" tokens in, "), exact("osl"), text(" out"));
}
function controls() {
  const form = byId("controls");
  if (!form) return;
  sentence();
  form.append(...Object.keys(NUMBERS).map(slider), make("div", "", { class: "control" }, make("label", TITLES.kv, { for: "in-kv" }), picker("kv")));
  const reset = make("button", "Reset", { type: "button", id: "reset" }), pin = make("button", "Compare with this", { type: "button", id: "pin", "aria-pressed": "false" });
  reset.addEventListener("click", () => { pinned = null; change({ ...askedOf(state.model) }); pin.focus(); });  // the button that was pressed is disabled now
  pin.addEventListener("click", () => { pinned = pinned ? null : { ...state }; change({}); });
  form.append(make("div", "", { class: "buttons" }, pin, reset));
  form.addEventListener("submit", (event) => event.preventDefault());
}
let reflected = "";
function reflect() {
  if (!byId("controls").children.length) return;
  const shown = `${labelOf(state)}${Object.keys(OFFERS.plans).length}`;
  for (const name of shown === reflected ? [] : CHOICES) {  // a slider changes no choice
    const select = byId(`in-${name}`);
    select.value = String(state[name]);
    for (const option of select.options) {
      const label = labelOf({ ...state, [name]: option.value }), there = label in OFFERS.plans || option.value === String(askedOf(state.model)[name]) || (DATA.files && (name === "model" || (name === "engine" && !fetched(state.model, option.value) && DATA.files[state.model][option.value])));
      const why = OFFERS.missing[label]?.startsWith("does not fit") ? "does not fit" : "not here";
      option.textContent = optionTitle(name, option.value) + (there ? "" : ` (${why})`);
      if (name === "engine") option.hidden = option.disabled = option.value !== state.engine && !(DATA.runs ? DATA.runs[option.value].includes(state.gpu) : there);
    }
  }
  reflected = shown;
  if (TRAFFIC.length) {
    for (const option of byId("in-traffic").options) option.textContent = SENT[option.value](state[option.value] ?? 2);
    byId("in-traffic").value = loadOf(state) ?? "batch";
  }
  for (const name of Object.keys(NUMBERS)) {
    byId(`in-${name}`).closest(".control").hidden = byId(`box-${name}`).hidden = !(name in state);
    if (!(name in state)) continue;
    byId(`in-${name}`).value = stopOf(name, state[name]);
    byId(`box-${name}`).value = state[name];
    const told = name === "speed" ? `${prefixed((OFFERS.gpus[state.gpu]?.bandwidth ?? 0) * state.speed, "B/s")}` : name === "rate" ? three(state.rate) : `${GROUPED.format(state[name])} ${counted(UNITS[name], state[name])}`;
    byId(`out-${name}`).textContent = told;
    byId(`in-${name}`).setAttribute("aria-valuetext", told);
  }
  byId("pin").setAttribute("aria-pressed", String(Boolean(pinned)));
  byId("pin").textContent = pinned ? "Stop comparing" : "Compare with this";
  byId("reset").disabled = isAsked(state) && !pinned;
}
function change(parts) {
  withFiles(filesOf(parts.model ?? state.model, parts.engine ?? state.engine), () => {
    const wanted = settled({ ...state, ...parts }), own = askedOf(wanted.model, wanted.engine);
    if (DATA.files && (parts.model || parts.engine) && !planOf(wanted)) for (const name of CHOICES) wanted[name] = own[name];  // where it fits
    if (loadOf(wanted) !== loadOf(state) && tab === firstTab(state)) tab = firstTab(wanted);
    state = settled(wanted);
    writeSoon();
    cancelAnimationFrame(painted);
    painted = requestAnimationFrame(update);
  });
}

// ---- what the height of a dot says in the roofline
function lenses() {
  byId("lens").append(...Object.entries(LENSES).map(([name, title]) => {
    const button = make("button", title, { type: "button", "data-lens": name });
    button.addEventListener("click", () => { lens = name; change({}); });
    return button;
  }));
}
function objective() {
  byId("least").addEventListener("change", () => { least = atLeast(byId("least").value); change({}); });
}
function showLens() {
  for (const button of byId("lens").children) button.setAttribute("aria-pressed", String(button.dataset.lens === lens));
  byId("lens-said").textContent = `${LENS_SAID[lens]} Thin lines: the largest kernels of ${step} at batches from ${BATCHES[0]} to ${GROUPED.format(BATCHES[BATCHES.length - 1])}.`;
}
