// What a state says: sentences, tables and charts.
"use strict";
// ---- what a state says
function tile(value, title, detail, kind = "") {
  return make("div", "", { class: `tile ${kind}` }, make("span", title), make("b", value), make("span", detail));
}
const tied = (text) => text.replaceAll(" %", "\u00a0%");  // a sign stays on the line of its number
const range = (span) => (span.low === span.high ? `bound ${asTime(span.bound)}` : `${between(span.low, span.high)}; bound ${asTime(span.bound)}`);
function tiles(view) {
  const { memory, load, at } = view, times = felt(view), { energy } = times, { fits } = memory, would = fits ? "" : "moot", priced = fits && !DATA.pool;
  const middle = (metric, told) => (load?.stable && load.sorted[metric].length ? `median ${told(quantileOf(load.sorted[metric], 0.5))}; ` : "");
  const fit = fits ? tile(`${asShare(memory.total / memory.capacity)} full`, "memory", `${asBytes(memory.total)} of ${asBytes(memory.capacity)}; ${load ? `${three(load.running)} of ${GROUPED.format(load.slots)} places taken` : `room for ${GROUPED.format(memory.room)} ${counted("sequence", memory.room)}`}`)
    : tile("does not fit", "memory", `${asBytes(memory.needed)} needed, ${asBytes(memory.available)} there`, "bad");
  const named = (title) => (fits ? title : `${title}, if it fitted`), first = load && !load.stable ? tile("no end", "first token (TTFT)", "grows without end (overload)", "bad") : tile(asTime(times.ttft.time), named(`first token (TTFT)${load ? ", mean" : at.batch > 1 ? `, all ${GROUPED.format(at.batch)}` : ""}`), middle("ttft", asTime) + range(times.ttft), would);
  const running = load ? [tile(three(load.running), "sequences running", `${three(load.rate)} requests/s${"rate" in load.at ? `; ${load.stable ? `at most ${three(load.knee)} can be` : `${three(load.knee)} are`} served` : ""}`)] : [];
  byId("tiles").replaceChildren(
    tile(asTime(times.tpot.time), named(`time per token (TPOT)${load ? ", mean" : ""}`), middle("tpot", asTime) + range(times.tpot), would), ...(DATA.pool ? [] : [first]),
    tile(`${three(times.rateUser)} tok/s`, "each user", `${middle("tpot", (time) => three(1 / time))}${three(times.rateEach)} each ${nounOf(at.gpu)}${load ? "" : ", prompts included"}`, would), ...running,
    ...(priceOf(view) && priced ? [tile(asDollars(dollars(view)), "price of 1M output tokens", `at $${priceOf(view)[0]} an hour for each ${nounOf(at.gpu)}`)] : []),
    ...(energy && priced ? [tile(asEnergy(energy.joules), "energy a token (boards)", `each ${nounOf(at.gpu)} at ${three(energy.watts)} W`)] : []), fit);
}
const priceOf = (view) => OFFERS.gpus[view.at.gpu]?.price, dollars = (view) => priceOf(view)[0] / 3600 / felt(view).rateEach * 1e6;  // of output tokens, prompts included
function headlineOf(view) {  // the answer in one sentence; the numbers are those of the tiles
  const { at, load, memory } = view, times = felt(view), told = (text) => make("b", text), reads = three(times.rateUser);
  if (!memory.fits) return [`${at.model} does not fit on ${gpusOf(at.tp)} × ${at.gpu}: each ${nounOf(at.gpu)} lacks ${asBytes(memory.needed - memory.available)}.`];
  if (DATA.pool) return ["Each user reads ", told(`${reads} tokens`), " a second."];
  if (load && !load.stable) return ["Overload: ", told(`${three(at.rate)} requests`), ` a second arrive, ${three(load.knee)} are served.`];
  if (load) return ["Half of the users see the first token within ", told(asTime(quantileOf(load.sorted.ttft, 0.5))), " and then read ", told(three(1 / (quantileOf(load.sorted.tpot, 0.5) || load.tpot.time))), " tokens a second."];
  return [at.batch === 1 ? "The first token comes after " : `All ${GROUPED.format(at.batch)} first tokens come after `, told(asTime(times.ttft.time)), at.batch === 1 ? "; then the user reads " : "; then each user reads ", told(reads), " tokens a second."];
}
function underOf(view) {
  const { at, load, memory } = view;
  if (!memory.fits) return `${wouldFit(at).replace(/^w/, "W")}.`;
  if (load && !load.stable) return `First tokens wait the longer, the longer it lasts: up to ${asTime(load.longest)} in the ${asTime(load.now)} that were played.`;
  if (load) return `19 of 20 have it within ${asTime(quantileOf(load.sorted.ttft, 0.95))}.${"rate" in at ? ` Up to ${three(load.knee)} such requests a second can be served; this load takes ${asShare(at.rate / load.knee)} of that.` : ""}`;
  return at.batch > 1 && !DATA.pool ? `One prompt alone takes ${asTime(new View(view.rows.plan, { ...at, batch: 1 }).ttft.time)}.` : "";
}
function doubtOf(view) {  // how far times may be off, and what widens the intervals most
  const { low, high, near } = felt(view).tpot;
  if (low === high) return "";
  const { ttft, tpot } = doubtsOf(view), most = DATA.pool || ttft === tpot ? tpot : `${tpot} (TPOT), ${ttft} (TTFT)`;
  return `In 8 of 10 deployments of others a token took ${between(...near)}; ranges above are 9 of 10, ${view.rows.plan.evidence === "measured" ? "from measured kernels" : "with measurements of a near combination: there are none of this one"}. Widest doubt: ${most}.`;
}
function shareOf(view) {  // the largest parts of the time of a token, as its chart has them
  const { terms, parts } = stepTerms(view, "decode"), all = sum(parts), ranked = parts.map((time, place) => [time, terms[place][0]]).sort((one, other) => other[0] - one[0]).slice(0, 2);
  return [`Largest parts of a token: ${ranked.map(([time, name]) => `${name} ${asShare(time / all)}`).join(", ")}.`, crossing(view, bytesOf(view.decode))];
}
function crossing(view, read) {  // more sequences read more experts, so that the weights grow with the batch too
  const each = read.cache / view.at.batch;
  if (!(each > 0)) return "";
  if (read.cache >= read.weights) return `At this context the cache already weighs ${three(read.cache / read.weights)} times the weights.`;
  let at = read.weights / each;
  if (view.decode.some(({ family }) => family === "moe")) {
    for (let round = 0, next = at; round < 40 && (round === 0 || next > 1.001 * at); round++) {
      at = next;
      next = bytesOf(new View(view.rows.plan, { ...view.at, batch: at }).decode).weights / each;
    }
  }
  return Number.isFinite(at) ? `At this context the cache would weigh as much as the weights at a batch of about ${GROUPED.format(Math.max(Math.round(at), 1))}.` : "";
}
// ---- tabs: the charts of one question at a time; on paper all of them
const TAB_TITLES = { decode: "Decode", prefill: "Prefill", load: "Under load", memory: "Memory", cost: "Cost", energy: "Energy" };
function tabs() {
  const buttons = TABS.map((name) => make("button", TAB_TITLES[name], { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${["decode", "prefill"].includes(name) ? "step" : name}` }));
  byId("tabs").append(...buttons);
  if (LOADED) byId("panel-step").before(byId("panel-load"));  // on paper, too, the request comes first
  buttons.forEach((button, place) => {
    button.addEventListener("click", () => { tab = TABS[place]; change({}); });
    button.addEventListener("keydown", ({ key: pressed }) => {
      const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: -1 }[pressed];
      if (next !== undefined) { const other = buttons.at(next % buttons.length); other.focus(); other.click(); }
    });
  });
}
function showTab() {
  if (["decode", "prefill"].includes(tab)) step = tab;
  for (const name of TABS) {
    byId(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
    byId(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
  }
  for (const panel of document.querySelectorAll("[role=tabpanel]")) panel.hidden = panel.id !== byId(`tab-${tab}`).getAttribute("aria-controls");
  byId("panel-step").setAttribute("aria-labelledby", `tab-${step}`);
}

// ---- a kernel that was chosen: in the timeline, or in the roofline
let picked = null;
function pick(name) {
  picked = name;
  for (const button of document.querySelectorAll("[data-kernel]")) button.setAttribute("aria-pressed", String(button.dataset.kernel === name));
  showPicked(answer(state));
}
function showPicked(view) {
  const parts = view?.[step].filter(({ name }) => name === picked) ?? [];
  const lines = parts.flatMap((part) => [make("p", "", {}, make("b", `${part.name}, ${GROUPED.format(part.count)} ${part.count === 1 ? "launch" : "launches"}`)), ...arithmeticOf(part, view).map((line) => make("p", line))]);
  const leads = [["Derivation of the whole time", byId("derivation")], ["Walk through its shapes", byId("walk")]].filter(([, there]) => lines.length && there);
  const buttons = leads.map(([title, there]) => {
    const go = make("button", title, { type: "button" });
    go.addEventListener("click", () => { there.scrollIntoView(); there.querySelector("summary")?.focus(); });
    return go;
  });
  byId("picked").replaceChildren(...lines, ...(buttons.length ? [make("div", "", { class: "buttons" }, ...buttons)] : []));
}

// ---- what can be taken along: the address, the command, a picture
async function copy(text) {
  try { await navigator.clipboard.writeText(text); } catch {  // refused where the page is not on a secure address
    const box = make("textarea", text, { "aria-hidden": "true" });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}
function commandOf(at) {
  const quoted = (text) => (/^[\w.@:/+=-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`), given = (name) => quoted(DATA.given?.[at[name]] ?? at[name]);
  const split = typeof at.tp === "number" ? [`--tp ${at.tp}`] : at.tp.split(" ").map((word) => word.replace(/^([a-z_]+)(\d+)$/, (_, name, count) => `--${name.replaceAll("_", "-")} ${count}`));
  const formats = ["weights", "kv"].filter((name) => at[name] !== "own").map((name) => `--${name} ${at[name]}`);
  const engine = given("engine") === "vllm" ? [] : [`--engine ${given("engine")}`], flags = { batch: "batch", rate: "rate", users: "concurrency", isl: "isl", osl: "osl", cached: "cached", context: "context" };
  const numbers = Object.keys(flags).filter((name) => name in at && (name !== "cached" || at.cached)).map((name) => `--${flags[name]} ${at[name]}`);
  return [`rooflinekit estimate ${given("model")} --gpu ${given("gpu")}`, ...engine, ...split, ...numbers, ...formats, ...(DATA.options ?? []).map(quoted)].join(" ");
}
async function picture() {  // the answer and what it adds up from, twice as fine as on the screen
  C.waterfall.paint();
  const { wide, box: { firstChild: drawn } } = C.waterfall, tall = Number(drawn.getAttribute("height")), top = 84, image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(drawn))}`;
  await image.decode();
  const canvas = make("canvas", "", { width: 2 * wide, height: 2 * (tall + top) }), pen = canvas.getContext("2d");
  pen.scale(2, 2);
  pen.fillStyle = colour("card");
  pen.fillRect(0, 0, wide, tall + top);
  pen.fillStyle = colour("ink");
  pen.font = "600 17px system-ui, sans-serif";
  pen.fillText(titleOf(state), 16, 28, wide - 32);
  pen.font = "14px system-ui, sans-serif";
  pen.fillText(answerOf(answer(state)), 16, 52, wide - 32);
  pen.fillStyle = colour("soft");
  pen.fillText(byId("why").textContent, 16, 74, wide - 32);
  pen.drawImage(image, 0, top, wide, tall);
  return canvas.toDataURL("image/png");
}
function shares() {
  const told = make("span", "", { role: "status", class: "facts" });
  const button = (title, id, act, done) => {
    const made = make("button", title, { type: "button", id });
    made.addEventListener("click", async () => { await act(); told.textContent = done; });
    return made;
  };
  byId("share").append(
    button("Copy link", "copy-link", () => { write(); return copy(location.href); }, "Link copied."),
    button("Copy command", "copy-command", () => copy(commandOf(state)), "Command copied."),
    button("Save PNG", "save-png", async () => make("a", "", { href: await picture(), download: `${state.model}-${state.gpu}.png` }).click(), "Picture saved."), told);
}
function showBar(view) {
  const times = felt(view), entry = (value, title) => make("span", title, {}, make("b", value));
  byId("bar").replaceChildren(...[[asTime(times.tpot.time), "time per token"], [asTime(times.ttft.time), "first token"], [`${three(times.rateEach)} tok/s`, "each GPU"], [view.memory.fits ? `${asShare(view.memory.total / view.memory.capacity)} full` : "does not fit", "memory"]].map(([value, title]) => entry(value, title)));
}

// ---- heading, answer, facts and notes: Python wrote those of the first state, and the sentences of all others
const WORDS = DATA.words, LEAD = [...byId("lead")?.childNodes ?? []], NAMED = document.title;
const say = (name, values = {}) => WORDS[name].replace(/\{(\w+)[^}]*\}/g, (_, key) => values[key]);
function titleAt({ model, gpu, tp, engine }) {
  const count = gpusOf(tp), split = typeof tp === "number" ? `tp${tp}` : tp.split(" ").filter((word) => /^(tp|pp|ep|dp|cp)\d/.test(word)).join(" ");
  return `${model} on ${count > 1 ? `${count} x ${gpu} (${split})` : gpu}, ${engine}`;
}
function remediesOf(at) {  // one change each that makes it fit
  const own = answer(at), room = own?.memory.room ?? 0, fits = (parts) => answer(settled({ ...at, ...parts }))?.memory.fits;
  const splits = typeof at.tp === "number" ? optionsOf("tp").map((name) => typed("tp", name)).filter((tp) => tp > at.tp).sort((a, b) => a - b) : [];
  const more = splits.find((tp) => fits({ tp })), other = Object.keys(OFFERS.gpus).find((gpu) => gpu !== at.gpu && fits({ gpu }));
  return [
    ...(room >= 1 && "batch" in at ? [`a batch of ${GROUPED.format(room)}`] : []), ...(more ? [`${more} GPUs`] : []),
    ...(at.weights !== "fp8" && fits({ weights: "fp8" }) ? ["weights in fp8"] : []), ...(other ? [other] : []),
  ];
}
const wouldFit = (at) => { const found = remediesOf(at); return found.length ? say("remedies", { remedies: found.join(", or ") }) : "no choice of this page would fit"; };
function between(low, high) {
  const [from, to] = [low, high].map(asTime), [number, unit] = from.split("\u00a0");
  return `${to.endsWith(`\u00a0${unit}`) ? number : from} to ${to}`;
}
const within = ({ time, low, high }) => (low === high ? asTime(time) : `${asTime(time)} (${between(low, high)})`);
function answerOf(view) {
  const times = felt(view), speed = say("speed", { noun: nounOf(view.at.gpu), tpot: within(times.tpot), user: three(times.rateUser), gpu: three(DATA.pool ? view.at.batch * times.rateUser / view.gpus : times.rateEach) });
  if (DATA.pool) return speed;
  const told = say("first", { ttft: within(times.ttft), speed });
  return view.memory.fits ? told : say("misfit", { told: told[0].toLowerCase() + told.slice(1) });
}
function factsOf(view) {
  const { at, memory } = view, times = felt(view), [weights, activations, kv] = view.rows.plan.formats;
  const asked = "rate" in at ? `${three(at.rate)} requests/s${DATA.process.rate}` : "users" in at ? `closed loop of ${at.users} ${counted("user", at.users)}, ${GROUPED.format(protocolOf(view.rows.plan.load ?? DATA.load, at).counted)} requests${DATA.process.users}` : `batch ${at.batch}`;
  const level = times.tpot.low === times.tpot.high ? say("bound") : say("expected", { evidence: view.rows.plan.evidence, ttft: asTime(times.ttft.bound), tpot: asTime(times.tpot.bound) });
  return [
    say("asked", { load: asked, isl: at.isl, osl: at.osl, cached: at.cached ? say("cached", at) : "", images: DATA.images ?? "", weights, activations, kv }),
    say("memory", { noun: nounOf(at.gpu), total: asBytes(memory.total), capacity: asBytes(memory.capacity), share: Math.round(100 * memory.total / memory.capacity), room: say(view.load ? "slots" : "room", { most: GROUPED.format(view.load ? view.load.slots : memory.room) }), level }),
  ];
}
function notesOf(view) {
  const { at, memory } = view, longest = at.isl + at.osl, most = OFFERS.models[at.model] ?? Infinity, running = Math.round(view.load?.sequences ?? 0);
  const { batch } = at, which = batch < running ? "fewer" : batch > 1 ? "many" : "one", { seqs, reserves } = view.rows.plan, { load } = view;
  return [
    ...(memory.fits ? [] : [[`${say("short", { noun: nounOf(at.gpu), short: asBytes(memory.needed - memory.available) })}; ${wouldFit(at)}`, "bad quiet"]]),
    ...(load?.repeated ? [[say("repeated")]] : []),
    ...(load && !load.stable ? [[say("overload", { rate: at.rate, knee: Number(load.knee.toPrecision(4)), longest: three(load.longest), played: three(load.now) })]] : []),
    ...(load && load.crowd < (at.users ?? 0) ? [[say("crowd", { crowd: load.crowd, users: at.users })]] : []),
    ...(load && load.crowd > load.slots ? [[say(reserves ? "reserved" : "places", { slots: load.slots, users: load.crowd })]] : []),
    ...(load?.together ? [[togetherOf(view)]] : []),
    ...view.rows.plan.notes.map((place) => [OFFERS.notes[place]]), ...(longest > most ? [[say("longest", { longest, model: at.model, most })]] : []),
    ...(longest > (DATA.admitted ?? Infinity) ? [[say("admitted", { longest, most: DATA.admitted })]] : []), ...(at.osl === 1 ? [[say("single")]] : []),
    ...(!load && batch > (seqs?.[1] ?? Infinity) ? [[say("turns", { most: seqs[0], batch })]] : []),
    ...(load ? [[say("static", { which: say(which, { batch, longest, running }) }), "quiet"]] : []),
  ];
}
function togetherOf({ rows: { plan }, load }) {
  const found = (load.varied ??= variedAt(plan, load.at) ?? {});
  return found.ttft > 0 ? say("varied", { ttft: asTime(found.ttft).replace("\u00a0", " "), tpot: asTime(found.tpot > 0 ? found.tpot : load.tpot.time).replace("\u00a0", " ") }) : say("together");
}
function retell(view) {
  const box = byId("lead"), own = isAsked(state), named = titleAt(state);
  for (const note of document.querySelectorAll(".stays")) note.hidden = own;
  if (!DATA.heading) document.title = own && !DATA.files ? NAMED : `${named}${DATA.reference ? `, against ${DATA.reference.title}` : ""}`;
  if (own && !DATA.files) return box.replaceChildren(...LEAD);
  const notes = view ? notesOf(view) : [[whyNot(state), "bad"]], list = make("ul", "", { class: "notes" }, ...notes.map(([text, kind]) => make("li", text, kind ? { class: kind } : {})));
  const told = view ? [make("p", answerOf(view), { class: "answer" }), ...factsOf(view).map((line) => make("p", line, { class: "facts" }))] : [];
  return box.replaceChildren(make("h1", `${DATA.heading ?? ""}${named}`), ...told, ...(notes.length ? [list] : []));
}

const AFTER = [];  // drawn after each change beside the charts: the board of a playground
function update() {
  clearTimeout(moving);
  const view = answer(state), start = performance.now();
  reflect();
  showTab();
  retell(view);
  byId("charts").hidden = !view;
  byId("said").className = view ? "said" : "said bad-text";
  if (!view) {
    byId("said").textContent = `${state.model} on ${gpusOf(state.tp)} × ${state.gpu} with ${state.engine}: ${whyNot(state)}.`;
    for (const id of ["tiles", "compared", "headline", "under", "best", "doubt"]) byId(id).replaceChildren();
    return;
  }
  const reference = pinned ? answer(pinned) : against(), name = pinned ? titleOf(pinned) : DATA.reference?.title ?? "";
  byId("headline").className = view.memory.fits && (view.load?.stable ?? true) ? "headline" : "headline bad-text";
  byId("headline").replaceChildren(...headlineOf(view));
  byId("under").textContent = tied(underOf(view));
  byId("said").textContent = tied(shareOf(view).filter((line) => line).join(" "));
  byId("doubt").textContent = doubtOf(view);
  tiles(view);
  compared(view, reference, name);
  drawAll(view, reference, name);
  movesSoon(view);
  showPicked(view);
  showBar(view);
  for (const draw of AFTER) draw(view);
  document.documentElement.dataset.updateMs = (performance.now() - start).toFixed(1);
  later(view);
}
const load = (at) => ("rate" in at ? `${three(at.rate)} requests/s` : "users" in at ? `${at.users} ${counted("user", at.users)}` : `batch ${at.batch}`);
const titleOf = (at) => `${at.model} on ${gpusOf(at.tp)} × ${at.gpu}${typeof at.tp === "number" ? "" : ` (${at.tp})`} with ${at.engine}, ${load(at)}, ${at.isl} in`;

function compared(view, reference, name) {
  const box = byId("compared");
  box.className = reference ? "card" : "";
  if (!reference) return box.replaceChildren();
  const [own, other] = [view, reference].map(felt);
  const rows = [["TTFT", own.ttft.time, other.ttft.time, asTime], ["TPOT", own.tpot.time, other.tpot.time, asTime], ["tokens/s, user", own.rateUser, other.rateUser, three], ["tokens/s, GPU", own.rateEach, other.rateEach, three],
    ["bytes of a decode step", ...[view, reference].map((each) => sum(Object.values(bytesOf(each.decode)))), asBytes], ["memory of a GPU", view.memory.total, reference.memory.total, asBytes]];
  const table = asTable([["", "now", `pinned: ${name}`, "change"], ...rows.map(([title, here, there, format]) => [title, format(here), format(there), `${digits(here / there)} ×`])], `Now beside the pinned one (${name})`);
  box.replaceChildren(make("h3", "Now, pinned, change"), table);
}

function drawAll(view, reference, name) {
  const held = (parts) => [...BYTES, ...CAUSES].filter((name) => parts.some((part) => quantityOf(part) === name)).map((name) => [LOOK.names[name], name]), phases = STEPS.map((name) => [name, "ink", false, LOOK.shapes[name]]);
  key("roofline-key", [...phases, ...held(STEPS.flatMap((name) => view[name].filter(drawn))), ...(view.memory.fits ? [] : [["does not fit", "bad", true]]), ...(reference ? [["pinned, under its own roofs", "soft", true]] : [])]);
  const gpu = OFFERS.gpus[state.gpu], views = [["", view], ...(reference ? [[" (pinned)", reference]] : [])];
  const slowest = [...view[step]].sort((a, b) => b.time - a.time).slice(0, 3).map((part) => `${part.name} ${asTime(part.time)}`).join(", ");
  key("time-key", [...held(view[step]), ...CAUSES.filter((cause) => LOOK.limits[cause] && view[step].some((part) => causeOf(part) === cause)).map((cause) => [`${cause}-bound`, "soft", false, "square", cause])]);
  key("energy-roof-key", [...phases, ...held(STEPS.flatMap((name) => view[name].filter(drawn)))]);
  showLens();
  byId("least").value = least || "";
  C.roofline.show(`Roofline of ${titleOf(state)}: every kernel by intensity and ${lens === "share" ? "the share of the roof that it reaches" : "achieved rate"}.`, () => rooflineOption(view, gpu, reference), () => kernelRows(view));
  const [named] = TOLD[step], terms = stepTerms(view, step), many = !view.load && step === "prefill" && view.at.batch > 1;
  byId("why").textContent = `Why ${step === "decode" ? "a token" : "the first token"} takes ${asTime(terms.span.time)}${many ? ` (all ${GROUPED.format(view.at.batch)} prompts at once)` : ""}`;
  byId("why-said").textContent = view.load ? `The mean ${named} of the requests that were played; the dashed line is the same at datasheet rates.` : "Up to the dashed line: reading, arithmetic and sending at datasheet rates. Behind it: kernels and engine above the bound.";
  byId("kernels-said").textContent = `${view.load ? `A ${step} step of ${GROUPED.format(view.at.batch)} ${counted("sequence", view.at.batch)}, as many as this load keeps running. ` : ""}Widths are times. Colour: the quantity that takes most of it; hatch: the limit where it is not memory; pale: above the datasheet bound. Choose a kernel to see its arithmetic.`;
  C.waterfall.show(`Parts of the time of ${step === "decode" ? "a token" : "the first token"}.`, (wide) => waterfall(terms, wide),
    () => [["part", "time [ms]"], ...terms.parts.map((time, place) => [terms.terms[place][0], time * 1e3])]);
  C.time.show(`Time of each kernel of ${step}; the longest: ${slowest}.`, () => timeline(view, step), () => kernelRows(view).filter((row, place) => !place || row[0] === step));
  C.bytes.show(`Bytes that a step moves: weights, KV cache, activations.`, () => stackOption(bytesRows(views), CLASSES, asBytes, { id: "bytes", max: 1, scale: asPercent }),
    () => [["step", "weights [B]", "KV cache [B]", "activations [B]"], ...bytesRows(views).map(([title, b]) => [title.split("\n")[0], b.weights, b.cache, b.activations])]);
  C.memory.show(`Memory of one GPU: ${asBytes(view.memory.total)} of ${asBytes(view.memory.capacity)}, ${view.memory.fits ? "fits" : "does not fit"}.`, () => memoryOption(views.map(([title, each]) => [title ? "pinned" : reference ? "now" : "used", each])),
    () => [["", ...memoryParts.map(([, title]) => `${title} [B]`), "capacity [B]"], ...views.map(([title, each]) => [title || "now", ...memoryParts.map(([key]) => memoryRow(each)[key]), each.memory.capacity])]);
  drawRequest(view);
  clearTimeout(curving);
  curve = null;
  if (view.load && ["load", "cost", "energy"].includes(tab) && !KEPT.has(curveKey(view))) curveSoon(view, () => drawCurves(view, reference));
  else drawCurves(view, reference);
}
function drawCurves(view, reference) {
  const before = drawLoads(view, reference);
  drawSpent(view, before ?? drawSweeps(view, reference));
  if (before) drawSweeps(view, reference);
}

const spanIn = (which) => (each) => [each[which].low * 1e3, each[which].time * 1e3, each[which].high * 1e3, each[which].bound * 1e3];

function drawSweeps(view, other) {
  const length = "context" in view.at ? "context" : "isl", batches = () => batchesOf(view), contexts = () => (view.contexts ??= sweep(view, length, CONTEXTS));
  const there = (name, values) => other && name in other.at ? sweep(other, name, values) : null;
  const say = (each) => `batch ${three(each.at.batch)}, ${three(each.at.isl)} tokens in\nTPOT ${asTime(each.tpot.time)} (${asTime(each.tpot.low)} to ${asTime(each.tpot.high)})\nTTFT ${asTime(each.ttft.time)}\n${three(each.rateEach)} tok/s each GPU${each.memory.fits ? "" : "\ndoes not fit in memory"}`;
  const rows = (found) => [["batch", "prompt", "TPOT [ms]", "low", "high", "bound", "TTFT [ms]", "tokens/s each GPU", "memory"], ...found.map((each) => [each.at.batch, each.at.isl, ...[1, 0, 2, 3].map((place) => spanIn("tpot")(each)[place]), each.ttft.time * 1e3, each.rateEach, each.memory.fits ? "fits" : "does not fit"])];
  const own = { band: true, bound: true, here: view, say, label: (value) => three(value) };
  const rate = (each) => [0, each.rateEach, 0, 0];
  C.batch.show("TPOT against batch.", () => sweepOption(batches(), (each) => each.at.batch, spanIn("tpot"), { ...own, xName: "batch", reference: there("batch", BATCHES) }), () => rows(batches()));
  C.rate.show("Output tokens a second of one GPU against batch.", () => sweepOption(batches(), (each) => each.at.batch, rate, { ...own, band: false, bound: false, xName: "batch", label: plain, reference: there("batch", BATCHES) }), () => rows(batches()));
  C.context.show("TPOT against prompt length.", () => sweepOption(contexts(), (each) => each.at[length], spanIn("tpot"), { ...own, xName: LENGTHS[length], reference: there(length, CONTEXTS) }), () => rows(contexts()));
  C.reads.show("Bytes of a decode step against prompt length: weights and KV cache.", () => readsOption(contexts(), length), () => [[LENGTHS[length], "weights [B]", "KV cache [B]"], ...contexts().map((each) => [each.at[length], readOf(each).weights, readOf(each).cache])]);
  return { rows: batches, x: (each) => each.at.batch, xName: "batch", here: view };
}
const readOf = (each) => (each.read ??= bytesOf(each.decode)), LENGTHS = { isl: "prompt tokens", context: "tokens of context" };
function readsOption(rows, length) {
  const ends = ["weights", "cache"].map((key) => readOf(rows[rows.length - 1])[key] || 1), span = rows.flatMap((each) => Object.values(readOf(each))).filter((value) => value > 0);
  const decades = Math.ceil(Math.log10(Math.max(...span))) - Math.floor(Math.log10(Math.min(...span))) || 1;
  const places = apart(ends.map((value) => -260 * Math.log10(value) / decades), 14);
  const option = base(), line = (key, title) => ({ type: "line", name: title, data: rows.map((each) => [Math.log2(each.at[length]), readOf(each)[key] || null]), symbol: "circle", symbolSize: 6, lineStyle: { width: 2, color: colour(key) }, itemStyle: { color: colour(key) }, endLabel: { show: true, formatter: title, ...text(12.5), color: colour(key), offset: [0, places[title === "KV" ? 1 : 0]] } });
  option.tooltip.formatter = ({ seriesName, value }) => `${three(2 ** value[0])} tokens in\n${seriesName}: ${asBytes(value[1])}`;
  option.grid = { ...option.grid, right: 62, left: small() ? 56 : 64 };
  return { ...option, xAxis: doublings(LENGTHS[length], rows.map((each) => each.at[length])), yAxis: logarithmic("", "B", {}), series: [line("weights", "weights"), line("cache", "KV")] };
}

// ---- the front over everything that is embedded: after the rest, because it takes longest
let waiting = 0, pending = null;
addEventListener("beforeprint", () => pending?.());
function later(view) {
  clearTimeout(waiting);
  const labels = Object.keys(OFFERS.plans).map((label) => label.split(APART)).filter((words) => ["model", "weights", "kv", "engine"].every((name) => words[CHOICES.indexOf(name)] === view.at[name]));
  const points = [], left = labels.flatMap((words) => BATCHES.map((batch) => [words, batch])).reverse();
  pending = (whole = true) => {  // in parts, so that nobody who moves a slider waits
    const end = performance.now() + 6;
    while (left.length && (whole || performance.now() < end)) points.push(pointAt(view, ...left.pop()));
    if (left.length) waiting = setTimeout(() => pending(false));
    else drawFront(view, points);
  };
  waiting = setTimeout(() => pending?.(false), 60);
}
function pointAt(view, words, batch) {
  const [, gpu, tp] = words, plan = OFFERS.plans[words.join(APART)], found = new View(plan, { ...view.at, batch, speed: gpu === view.at.gpu ? view.at.speed : 1 });
  const said = `${optionTitle("tp", tp)} ${gpu}, batch ${batch}\n${three(found.rateUser)} tok/s each user, ${three(found.rateEach)} each GPU\n${plan.evidence}\n${commandOf({ ...view.at, gpu, tp: typed("tp", tp), batch })}`;
  return { value: [found.rateUser, found.rateEach], group: gpu, line: `${gpu} ${tp}`, tick: String(batch), fits: found.memory.fits, said, dollars: priceOf(found) && dollars(found) };
}
function drawFront(view, points) {
  pending = null;
  const fitting = points.filter((point) => point.fits), front = frontOf(fitting), share = (gpu) => (gpu === view.at.gpu ? Infinity : front.filter((point) => point.group === gpu).length);
  const gpus = [...new Set(fitting.map((point) => point.group))], named = gpus.sort((a, b) => share(b) - share(a)).filter((gpu) => gpus.length <= TINTS.length || share(gpu) > 0).slice(0, TINTS.length), tints = tintsOf(named);
  const within = (place, name, label) => axis({ axis: { type: "log", name, nameGap: 30, ...around(fitting.map((point) => point.value[place])) }, label: { formatter: (value) => niceLog(value, label) } });
  byId("pareto").parentElement.hidden = byId("interactivity").parentElement.hidden = !fitting.length;
  C.pareto.show("Best trade-offs of tokens a second of each user and of each GPU, over the deployments of this model.", () => frontsOption(fitting, tints, { x: within(0, "tokens/s each user", three), y: within(1, "", plain), here: [view.rateUser, view.rateEach], least, up: 1 }),
    () => [["deployment", "tokens/s each user", "tokens/s each GPU"], ...front.map((point) => [point.said.split("\n").slice(0, 2).join("; "), ...point.value])]);
  byId("interactivity").replaceChildren(interactivityTable(fitting, named, (pinned ?? view.at).gpu));
  const bills = fitting.filter((point) => point.dollars).map((point) => ({ ...point, value: [point.value[0], point.dollars], said: `${asDollars(point.dollars)} a million output tokens\n${point.said}` }));
  byId("bill").closest(".figure").hidden = !bills.length || Boolean(DATA.pool);
  const y = () => axis({ axis: { type: "log", ...around(bills.map((point) => point.value[1])) }, label: { formatter: (value) => niceLog(value, asPrice) } });
  if (bills.length && !DATA.pool) C.bill.show("$ per million output tokens against the speed of each user.", () => frontsOption(bills, tints, { x: within(0, "tokens/s each user", three), y: y(), here: [view.rateUser, priceOf(view) ? dollars({ ...view, load: undefined }) : 1], least, up: -1 }),
    () => [["deployment", "tokens/s each user", "$ per million output tokens"], ...bills.map((point) => [point.said.split("\n").slice(1, 3).join("; "), ...point.value])]);
  for (const id of ["pareto-key", "bill-key"]) key(id, [...named.map((gpu) => [gpu, tints.get(gpu)]), ["the rest", "line"]]);
}
function key(id, entries) {
  const box = byId(id);
  if (!box) return;
  box.replaceChildren(...entries.map(([title, tint, hollow, shape, limit]) => make("li", "", {}, make("i", "", { class: `${shape && shape !== "circle" ? "" : "round"}${hollow ? " hollow" : ""}`, style: hollow ? `border-color: var(--${tint})` : `background: ${limit ? hatched(limit, tint) : inKey([tint, 0].flat())}` }), document.createTextNode(title))));
}

// ---- begin
const C = {};
function begin() {
  const steps = () => (DATA.reference || pinned ? 4 : 2) * 44 + 52;
  Object.assign(C, {
    roofline: new Chart("roofline", () => (small() ? 400 : 520)), waterfall: new Chart("waterfall"),
    time: new Chart("time"), bytes: new Chart("bytes", steps),
    memory: new Chart("memory", () => (DATA.reference || pinned ? 2 : 1) * 46 + 78), batch: new Chart("batch", () => 320), rate: new Chart("rate", () => 320),
    context: new Chart("context", () => 320), reads: new Chart("reads", () => 320), pareto: new Chart("pareto", () => 440),
    one: new Chart("one"), lanes: new Chart("lanes"), firsts: new Chart("firsts", () => 240), tpot: new Chart("load-tpot", () => 300), ttft: new Chart("load-ttft", () => 300), parts: new Chart("load-parts", () => 280),
    dollars: new Chart("dollars", () => 320), bill: new Chart("bill", () => 320), energy: new Chart("energy"), shares: new Chart("shares", () => 3 * 52 + 52), roof: new Chart("energy-roof", () => (small() ? 340 : 420)),
    joules: new Chart("joules", () => 320), watts: new Chart("watts", () => 320),
  });
  controls();
  shares();
  tabs();
  lenses();
  objective();
  key("bytes-key", CLASSES.map(([name, title]) => [title, name]));
  key("shares-key", ENERGY_PARTS);
  key("lanes-key", [["waits", "engine"], ["its prompt", "prefill"], ["its tokens", "decode"]]);
  key("memory-key", memoryParts.map(([name, title]) => (name === "free" ? [title, "soft", true] : [title, name])));
  new IntersectionObserver(([{ isIntersecting }]) => byId("bar").classList.toggle("on", !isIntersecting)).observe(byId("tiles"));
  addEventListener("hashchange", () => arrive(update));
  update();
}
if (OFFERS) arrive(() => {  // absent from a page on a sweep
  byId("layout").hidden = false;
  if (!DATA.heading) document.body.classList.add("live");  // the sentence and the tiles stand for the words, which printers and readers of the page keep
  begin();
});
