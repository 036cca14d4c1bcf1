// Answers of a page without a browser: {source, scripts, data, calls: [function, inputs], views: [plan, state], states} from stdin.
"use strict";
const { source, scripts, data, calls, views, states } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const page = new Function("DATA", `${source}; ${scripts}; return { FUNCTIONS, viewOf, causes, planOf, adviceOf, saidBest, doubtsOf, stripes };`)(data);
const plain = (value) => (Array.isArray(value) ? value.map(plain) : Number.isFinite(value) || typeof value === "boolean" ? Number(value) : String(value));
const sorted = (load) => load.sorted && Object.fromEntries(Object.entries(load.sorted).map(([name, values]) => [name, [...values]]));
const told = (load) => load && { ...load, log: null, sorted: sorted(load), stripes: page.stripes(load) };
const seen = (view) => ({ ...view, doubts: data.doubts ? page.doubtsOf(view) : null, load: told(view.load), prefill: view.prefill, decode: view.decode, causes: page.causes(view.decode), causesFirst: page.causes(view.prefill) });
function advised(at) {
  const view = page.viewOf(page.planOf(at), at), found = page.adviceOf(view);
  return { said: page.saidBest(found, view.gpus, (view.load?.stable ?? 1) <= 0), batch: found.batch ?? 0, repeated: Boolean(view.load?.repeated), moves: found.moves.map(({ metric, title, change }) => [metric, title, change]) };
}
process.stdout.write(JSON.stringify({
  calls: calls.map(([place, inputs]) => plain(page.FUNCTIONS[place](...inputs))),
  states: states.map(advised),
  views: views.map(([plan, at]) => seen(page.viewOf(plan, at))),
}));
