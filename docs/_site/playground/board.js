// Accelerators that hold the present model, with the fewest GPUs that do; and a search over all models and accelerators.
"use strict";
const MOST_FOUND = 60, FAMILIES = Object.fromEntries(Object.keys(DATA.files).map((model) => [model, familyOf(model)]));
const byGroup = (names, of) => names.reduce((found, name) => found.set(of[name], [...(found.get(of[name]) ?? []), name]), new Map());
const matching = (names, of, words) => names.filter((name) => { const text = `${of[name]} ${name}`.toLowerCase(); return words.every((word) => text.includes(word)); });
function fewestOn(view, gpu) {  // the state with the fewest GPUs of a kind that hold the batch, else with narrower weights; null where none does
  for (const weights of new Set([state.weights, "fp8", "int4"])) for (const tp of [1, 2, 4, 8]) {
    const at = { ...state, gpu, tp, weights }, plan = OFFERS.plans[labelOf(at)];
    const found = plan && new View(plan, { ...view.at, gpu, tp, weights, speed: 1 });
    if (found?.memory.fits) return { tp, weights, tpot: found.tpot.time, price: priceOf(found) ? dollars(found) : null };
  }
  return null;
}
const BOARD = { key: "", left: [], found: {} };
function boardOf(view) {
  const { batch, isl, osl } = view.at, key = JSON.stringify([state.model, state.weights, state.kv, state.engine, batch, isl, osl]);
  byId("board-title").textContent = `Accelerators that hold ${state.model}, ${GROUPED.format(batch)} ${counted("sequence", batch)} of ${GROUPED.format(isl + osl)} tokens`;
  if (!view.memory.fits) byId("board").open = true;
  if (key === BOARD.key) return;
  Object.assign(BOARD, { key, left: Object.keys(DATA.vendors), found: {} });
  clearTimeout(BOARD.timer);
  if (byId("board").open) showFound();
  BOARD.timer = setTimeout(function some() {  // in parts, so that nobody who moves a slider waits
    if (!byId("board").open) return void (BOARD.key = "");
    const end = performance.now() + 8;
    while (BOARD.left.length && performance.now() < end) { const gpu = BOARD.left.shift(); BOARD.found[gpu] = fewestOn(view, gpu); }
    if (BOARD.left.length) BOARD.timer = setTimeout(some);
    else showFound();
  }, 100);
}
function holder(gpu) {
  const found = BOARD.found[gpu], known = gpu in BOARD.found, missing = OFFERS.missing[labelOf({ ...state, gpu, tp: 8 })];
  const narrower = found && found.weights !== state.weights ? found.weights : "";
  const said = found ? [`${found.tp} ${counted("GPU", found.tp)}${narrower && `, ${narrower}`}`, asTime(found.tpot), ...(found.price ? [`${asDollars(found.price)}/M`] : [])].join(" · ") : known ? (missing && !missing.startsWith("does not fit") ? "lacks the format" : "does not fit on 8") : "…";
  const button = make("button", "", { type: "button", class: found ? (narrower ? "more" : "fits") : "none" }, make("b", gpu), make("small", said));
  button.addEventListener("click", () => change({ gpu, ...(found ? { tp: found.tp, weights: found.weights } : {}) }));
  return button;
}
function chooser(model) {
  const button = make("button", model, { type: "button" });
  button.addEventListener("click", () => { byId("find").value = ""; change({ model }); });
  return button;
}
function showFound() {
  const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean), models = words.length ? matching(Object.keys(DATA.files), FAMILIES, words) : [];
  const asked = matching(Object.keys(DATA.vendors), DATA.vendors, words), speed = (gpu) => BOARD.found[gpu]?.tpot ?? Infinity;
  const rows = (names, of, make_) => [...byGroup(names, of)].flatMap(([title, own]) => [make("h3", title), make("div", "", { class: "holders" }, ...own.map(make_))]);
  byId("found").replaceChildren(
    make("p", "Green: fits in the present weights, with the fewest GPUs. Amber: fits with weights in fp8 or int4 (measure quality). Grey: does not fit on 8. Times per token, then dollars per million output tokens.", { class: "facts" }),
    ...rows(models.slice(0, MOST_FOUND), FAMILIES, chooser), ...(models.length > MOST_FOUND ? [make("p", `${models.length - MOST_FOUND} more models: type more of the name.`, { class: "facts" })] : []),
    ...rows(asked.sort((a, b) => speed(a) - speed(b)), DATA.vendors, holder), ...(models.length || asked.length ? [] : [make("p", "No model and no accelerator has this name.", { class: "facts" })]));
}
byId("find").addEventListener("input", showFound);
byId("board").addEventListener("toggle", () => { const view = answer(state); if (view) boardOf(view); });
document.querySelector(".answers").after(document.querySelector(".board"));  // below the answer
byId("board").open = !location.hash;
AFTER.push(boardOf);
