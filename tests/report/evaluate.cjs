// Evaluates {kernels, surfaces, plans, states: [plan, at]} from stdin with the page's own script.
"use strict";
const Evaluate = require(process.argv[2]);
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
for (const kernel of given.kernels) if (kernel.timing && typeof kernel.timing.ratio === "object") kernel.timing.ratio = given.surfaces[kernel.timing.ratio.surface];
for (const plan of given.plans) for (const group of ["prefill", "decode", "growing"]) plan[group] = plan[group].map((place) => given.kernels[place]);
const answers = given.states.map(([place, at]) => {
  const found = Evaluate.answer(given.plans[place], at);
  return { ...found, causes: Evaluate.causes(found.decode), causesFirst: Evaluate.causes(found.prefill), bytes: Evaluate.bytes(found.decode) };
});
process.stdout.write(JSON.stringify(answers));
