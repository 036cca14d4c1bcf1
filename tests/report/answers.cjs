// Answers of a page without a browser: {source, scripts, data, calls: [function, inputs], views: [plan, state]} from stdin.
"use strict";
const { source, scripts, data, calls, views } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const page = new Function("DATA", `const OFFERS = DATA.offers; ${source}; ${scripts}; return { FUNCTIONS, viewOf, causes };`)(data);
const plain = (value) => (Array.isArray(value) ? value.map(plain) : Number.isFinite(value) || typeof value === "boolean" ? Number(value) : String(value));
const sorted = (load) => load.sorted && Object.fromEntries(Object.entries(load.sorted).map(([name, values]) => [name, [...values]]));
const told = (load) => load && { ...load, log: null, sorted: sorted(load) };
const seen = (view) => ({ ...view, load: told(view.load), prefill: view.prefill, decode: view.decode, causes: page.causes(view.decode), causesFirst: page.causes(view.prefill) });
process.stdout.write(JSON.stringify({
  calls: calls.map(([place, inputs]) => plain(page.FUNCTIONS[place](...inputs))),
  views: views.map(([plan, at]) => seen(page.viewOf(plan, at))),
}));
