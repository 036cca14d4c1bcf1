// What one change would do to the present state.
"use strict";
const MOST_CHIPS = 5, MOST_GPUS = 6;  // other accelerators among the moves: the fastest
function changesOf() {
  const asked = ["batch", "rate", "users"].find((name) => name in state), half = (name) => (name === "rate" ? state.rate / 2 : Math.max(1, Math.floor(state[name] / 2)));
  const options = [
    ["weights in fp8", { weights: "fp8" }], ["KV cache in fp8", { kv: "fp8" }], ...(typeof state.tp === "number" ? [["twice the GPUs", { tp: state.tp * 2 }], ["half the GPUs", { tp: state.tp / 2 }]] : []),
    [`twice the ${asked}`, { [asked]: state[asked] * 2 }], [`half the ${asked}`, { [asked]: half(asked) }], ["half the prompt", { isl: half("isl") }],
    ["10 % more bandwidth", { speed: state.speed * 1.1 }], ...Object.keys(OFFERS.gpus).map((gpu) => [`on ${gpu}`, { gpu }]),
    ...optionsOf("engine").map((engine) => [`with ${engine}`, { engine }]),
  ];
  const known = ([, parts]) => Object.entries(parts).some(([name, value]) => state[name] !== value) && !(state.weights === "fp8" && parts.weights) && !(state.kv === "fp8" && parts.kv);
  return options.filter((each) => known(each) && planOf({ ...state, ...each[1] }));
}
function moveOf(view, [title, parts]) {  // the answer after a change, and ratios to the present one
  const plan = planOf({ ...state, ...parts }), other = answer(settled({ ...state, ...parts })), [there, here] = [other, view].map(felt);
  return [title, there.tpot.time / here.tpot.time - 1, there.ttft.time / here.ttft.time - 1, there.rateEach / here.rateEach - 1, other.memory.fits && Boolean(other.load) === Boolean(view.load) && (other.load?.stable ?? 1) >= (view.load?.stable ?? 1), plan.evidence === view.rows.plan.evidence ? "" : plan.evidence, parts, other];
}
const METRICS = {  // of a tab: what its chips lower
  decode: [(view) => felt(view).tpot.time, asTime, "time per token"], prefill: [(view) => felt(view).ttft.time, asTime, "first token"], load: [(view) => felt(view).tpot.time, asTime, "time per token"],
  memory: [(view) => view.memory.total, asBytes, "memory of a GPU"], cost: [(view) => (priceOf(view) ? dollars(view) : NaN), asDollars, "1M output tokens"], energy: [(view) => felt(view).energy?.joules ?? NaN, asEnergy, "energy of a token"],
};
const BROUGHT = ["rate", "users", "isl", "speed"];  // by users, or no choice of theirs: not among the chips
const hourOf = (view) => (priceOf(view) ? priceOf(view)[0] * view.gpus : NaN);
function chipsOf(view, rows) {  // moves that fit and lower the metric of the tab by 2 % or more, the best first
  const [of, format, name] = METRICS[tab], now = of(view);
  const better = rows.filter(([, , , , fits, , parts, other]) => fits && !BROUGHT.some((brought) => brought in parts) && of(other) < 0.98 * now).sort((a, b) => of(a[7]) - of(b[7])), elsewhere = better.filter(([, , , , , , { gpu }]) => gpu).slice(0, 2);
  return better.filter((row) => !row[6].engine && (!row[6].gpu || elsewhere.includes(row))).slice(0, MOST_CHIPS).map(([title, , , rate, , evidence, parts, other]) => {
    const price = hourOf(other) / hourOf(view);
    return { title, parts, metric: name, now, then: of(other), said: `${title} → ${format(of(other))}`, more: [...(Math.abs(price - 1) > 0.01 ? [`${three(price)} × the price`] : []), ...(Math.abs(rate) > 0.02 && tab !== "cost" ? [`${signed(rate)} tokens/s each GPU`] : []), ...(evidence ? [evidence] : [])] };
  });
}
function sortedMoves(rows) {
  const [others, ours] = [true, false].map((other) => rows.filter(([title]) => title.startsWith("on ") === other).sort((a, b) => b[4] - a[4] || a[1] - b[1]));
  return [...ours, ...others.slice(0, MOST_GPUS)].sort((a, b) => b[4] - a[4] || a[1] - b[1]);
}
let moving = 0;
function movesSoon(view) {  // a load for each change: in parts, so that nobody who moves a slider waits
  const left = changesOf(), rows = [];
  moving = setTimeout(function some() {
    const end = performance.now() + 6;
    while (left.length && performance.now() < end) rows.push(moveOf(view, left.shift()));
    if (left.length) moving = setTimeout(some);
    else showMoves(view, sortedMoves(rows));
  }, 60);
}
const signed = (ratio) => (!Number.isFinite(ratio) ? "–" : `${ratio > 0 ? "+" : ratio < 0 ? "−" : ""}${Math.abs(100 * ratio).toFixed(Math.abs(ratio) < 0.0995 ? 1 : 0)}\u00a0%`);
function showMoves(view, rows) {
  const box = byId("moves");
  box.parentElement.hidden = !rows.length;
  const table = asTable([["change", "TPOT", "TTFT", "tokens/s each GPU", ""], ...rows.map(([title, tpot, ttft, rate, fits, evidence]) => [title, signed(tpot), signed(ttft), signed(rate), fits ? evidence : "does not fit"])], "One change each");
  for (const cell of table.querySelectorAll("td")) if (cell.textContent === "does not fit") cell.className = "bad";
  box.replaceChildren(table);
  const chips = chipsOf(view, rows), card = document.querySelector("[role=tabpanel]:not([hidden]) .card:not([hidden])");
  card?.append(byId("chips"));
  byId("chips").replaceChildren(...chips.map(({ parts, said, more }) => {
    const chip = make("button", said, { type: "button" }, ...(more.length ? [make("small", more.join(", "))] : []));
    chip.addEventListener("click", () => { change(parts); byId("pin").focus({ preventScroll: true }); });
    return chip;
  }));
  byId("best").textContent = view.memory.fits && chips.length ? `Best change tried for ${chips[0].metric}: ${chips[0].said}.` : "";
}
