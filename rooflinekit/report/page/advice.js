// Advice: the moves that Python lists for a deployment, evaluated by the printed functions; `rank` is that of Python.
"use strict";
const ADVICE = DATA.advice, ADVISED = DATA.pool ? ["tpot"] : DATA.advice?.metrics ?? [];  // a pool that decodes has no first tokens
const ratiosOf = (then, now) => ({ tpot: then.tpot.time / now.tpot.time, cost: now.rateEach / then.rateEach, ttft: then.ttft.time / now.ttft.time });  // of an output token: time and accelerator seconds; time to the first
function evaluated(now, tried, seen) {  // moves with their answers; null for one that has none here
  return tried.map(([title, caveat, parts]) => {
    const view = seen(parts);
    return view && { title, caveat, parts, view, ratio: ratiosOf(felt(view), felt(now)), evidence: view.rows.plan.evidence, holds: view.memory.fits && (view.load?.stable ?? 1) > 0 };
  }).filter((each) => each);
}
function bestOfMoves(rows, now, loaded) {  // of each metric in turn; never on weaker evidence than the present
  const present = ADVICE.evidence.indexOf(now.rows.plan.evidence), allowed = rows.filter(({ holds, evidence }) => holds && ADVICE.evidence.indexOf(evidence) <= present), found = new Array(ADVISED.length * ADVICE.shown).fill(-1);
  rank(allowed.map(({ ratio }) => ADVICE.metrics.map((name) => ratio[name])), ADVICE.losses[Number(loaded)], ADVISED.length, 1 - ADVICE.least, found);
  return found.flatMap((move, place) => { const metric = ADVISED[place % ADVISED.length], row = allowed[move]; return row ? [{ ...row, metric, change: row.ratio[metric] - 1 }] : []; });
}
function movesOf({ rows: { plan }, load, at }) {  // what is tried: formats and splits, of a static batch twice its size
  const twice = load ? [] : [[`batch ${at.batch * 2}`, ADVICE.crowd, { batch: at.batch * 2 }]];
  return [...OFFERS.moves[plan.moves], ...twice];
}
const viewHere = (at) => (parts) => { const plan = planOf({ ...at, ...parts }); return plan && viewOf(plan, { ...at, ...parts }); };
function adviceOf(view) {  // under load the moves that are best for a static batch of what runs are played
  if (!view.memory.fits) return { moves: [] };
  if (!view.load) return { moves: bestOfMoves(evaluated(view, movesOf(view), viewHere(view.at)), view, false) };
  const { at, running } = view.load, { plan } = view.rows, { rate, users, ...lengths } = at, room = Math.max(new View(plan, { ...lengths, batch: 1 }).memory.room, 1);
  const still = { ...lengths, batch: Math.min(Math.max(Math.round(running), 1), room) }, now = new View(plan, still);
  const chosen = bestOfMoves(evaluated(now, movesOf(view), viewHere(still)), now, true), first = [...new Set(chosen.map(({ title }) => title))].slice(0, ADVICE.played), tried = movesOf(view).filter(([title]) => first.includes(title));
  if (!tried.every(([, , parts]) => planOf({ ...at, ...parts }))) return { moves: chosen, batch: still.batch };  // not played in this page
  return { moves: bestOfMoves(evaluated(view, tried, viewHere(at)), view, true) };
}
const signedShare = (change) => (change > 1 ? `x ${(1 + change).toFixed(1)}` : `${change > -5e-3 ? "+" : "−"}${Math.abs(100 * change).toFixed(0)} %`);
function pricesOf({ metric, ratio, caveat, view }, gpus) {  // metrics that become worse, and what the move needs
  const worse = ADVICE.metrics.filter((name) => name !== metric && ratio[name] >= 1 + ADVICE.least).map((name) => `${ADVICE.names[name]} ${signedShare(ratio[name] - 1)}`);
  const more = view.gpus === gpus ? [] : [`${view.gpus} ${counted(nounOf(view.at.gpu), view.gpus)} in place of ${gpus}`];
  return [...worse, ...more, ...(caveat.startsWith("none") ? [] : [caveat])];
}
function saidBest({ moves, batch }, gpus, overload = false) {
  const first = ADVISED.map((metric) => moves.find((each) => each.metric === metric)).filter((each) => each).sort((a, b) => moves.indexOf(a) - moves.indexOf(b));
  if (!first.length) return overload ? "Overload: no change that was tried, on evidence as good as now, sustains the load." : "No move tried here gains more than it costs.";
  const said = first.map((each) => { const prices = pricesOf(each, gpus); return `Best for ${ADVICE.names[each.metric]}: ${each.title}, ${signedShare(each.change)}${prices.length ? ` (${prices.join("; ")})` : ""}.`; });
  return `${said.join(" ")}${batch ? ` These are of a static batch of ${batch}.` : ""}`;
}
