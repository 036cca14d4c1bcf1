// Advice as a sentence and as buttons; and one change each, in a table.
"use strict";
const MOST_GPUS = 6;  // other accelerators in the table: the fastest
const OF_TAB = { decode: ["tpot"], prefill: ["ttft"], load: ADVISED, cost: ["cost"] };  // metrics of a tab
const VALUES = { tpot: (view) => asTime(felt(view).tpot.time), ttft: (view) => asTime(felt(view).ttft.time), cost: (view) => (priceOf(view) ? `${asDollars(dollars(view))}/M` : null) };
function othersOf(view) {  // other accelerators and engines with the same choices
  const gpus = Object.keys(OFFERS.gpus).filter((gpu) => gpu !== view.at.gpu).map((gpu) => [`on ${gpu}`, "", { gpu }]), engines = optionsOf("engine").filter((engine) => engine !== view.at.engine).map((engine) => [`with ${engine}`, "", { engine }]);
  return [...gpus, ...engines];
}
let moving = 0;
function movesSoon(view) {  // each may play a load: in parts, so that nobody who moves a slider waits
  const at = view.load ? view.load.at : view.at, left = [...movesOf(view), ...othersOf(view)], rows = [], steps = [() => showAdvice(view, adviceOf(view)), ...left.map((each) => () => rows.push(...evaluated(view, [each], viewHere(at))))];
  moving = setTimeout(function some() {
    const end = performance.now() + 6;
    while (steps.length && performance.now() < end) steps.shift()();
    if (steps.length) moving = setTimeout(some);
    else showMoves(view, rows);
  }, 60);
}
const signed = (ratio) => (!Number.isFinite(ratio) ? "–" : `${ratio > 0 ? "+" : ratio < 0 ? "−" : ""}${Math.abs(100 * ratio).toFixed(Math.abs(ratio) < 0.0995 ? 1 : 0)}\u00a0%`);
function showMoves(view, rows) {
  const faster = (a, b) => b.holds - a.holds || a.ratio.tpot - b.ratio.tpot, elsewhere = rows.filter(({ parts }) => parts.gpu).sort(faster).slice(0, MOST_GPUS);
  const told = [...rows.filter(({ parts }) => !parts.gpu), ...elsewhere].sort(faster), box = byId("moves"), own = view.rows.plan.evidence, absent = movesOf(view).filter(([title]) => !rows.some((row) => row.title === title));
  box.parentElement.hidden = !told.length;
  const table = asTable([["change", "TPOT", "TTFT", "tokens/s each GPU", ""], ...told.map(({ title, ratio, holds, evidence }) => [title, signed(ratio.tpot - 1), signed(ratio.ttft - 1), signed(1 / ratio.cost - 1), holds ? (evidence === own ? "" : evidence) : "does not fit"]), ...absent.map(([title]) => [title, "", "", "", "not in this page"])], "One change each");
  for (const cell of table.querySelectorAll("td")) if (cell.textContent === "does not fit") cell.className = "bad";
  box.replaceChildren(table);
}
function showAdvice(view, found) {
  const { moves } = found, chips = moves.filter(({ metric }) => (OF_TAB[tab] ?? []).includes(metric)), card = document.querySelector("[role=tabpanel]:not([hidden]) .card:not([hidden])");
  card?.append(byId("chips"));
  byId("chips").replaceChildren(...[...new Set(chips.map(({ title }) => title))].map((title) => {  // one for each move, with all that it makes better here
    const same = chips.filter((one) => one.title === title), [each] = same, then = ({ metric }) => (found.batch ? null : VALUES[metric](each.view)), gains = same.map((one) => `${ADVICE.names[one.metric]} ${signedShare(one.change)}${then(one) ? ` (${then(one)})` : ""}`);
    const more = [...new Set(same.flatMap((one) => pricesOf(one, view.gpus)))].filter((price) => !gains.some((gain) => gain.startsWith(price.split(" ")[0])));
    const chip = make("button", `${title}: ${gains.join(", ")}`, { type: "button" }, ...(more.length ? [make("small", more.join("; "))] : []));
    chip.addEventListener("click", () => { change(each.parts); byId("pin").focus({ preventScroll: true }); });
    return chip;
  }));
  byId("best").textContent = view.memory.fits ? tied(saidBest(found, view.gpus, (view.load?.stable ?? 1) <= 0)) : "";
}
