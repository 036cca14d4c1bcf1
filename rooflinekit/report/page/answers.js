// Answers of the functions that Python printed (`library`), by name; no formula of the model stands here.
"use strict";
const CHOICES = ["model", "gpu", "tp", "weights", "kv", "engine"], OFFERS = DATA.offers;
const CAUSES = ["compute", "memory", "network", "overhead"];
const FUNCTIONS = DATA.library ? library(DATA.library) : [];
const APART = "\u0000", labelOf = (at) => CHOICES.map((name) => at[name]).join(APART);  // names come from users: no file has this in its name
const planOf = (at) => ((plan) => (plan && (!loadOf(at) || plan.loads.includes(loadOf(at))) ? plan : null))(OFFERS.plans[labelOf(at)]);
const gpusOf = (split) => String(split).split(" ").reduce((all, word) => all * Number(word.match(/^(?:tp|pp|dp|cp)?(\d+)$/)?.[1] ?? 1), 1);
const nounOf = (gpu) => OFFERS.gpus[gpu]?.noun ?? "accelerator";  // CPU, GPU or accelerator
const counted = (word, count) => (count === 1 ? word : `${word}s`);

const INNER = 1.2816 / 1.645;  // ends of 80 % over those of 90 % of normal errors, as logarithms
const spanOf = ([time, bound, low, high, near]) => ({ bound, time, low, high, near: near ?? [low, high].map((end) => time * (end / time) ** INNER) });
function partsOf(kernels, rows) {  // all launches of each kernel of a step
  return kernels.map(([name, family, count, peak], place) => {
    const [time, bound, low, high, compute, memory, network, overhead, flops, weights, read, written, activations, ...energy] = rows[place];
    return {
      name, family, count, peak, bound, time, low, high, causes: { compute, memory, network, overhead },
      flops: count * flops, weights: count * weights, cache: count * (read + written), activations: count * activations, energy,
    };
  }).filter(({ family, high }) => family !== "host" || high > 0);
}

const energyOf = (found) => found && (([[watts, busy, joules], parts, step, prompt]) => ({ watts, busy, joules, parts, step, prompt }))(found);  // null where an accelerator's power is not known
const memoryOf = ([capacity, weights, kv, activations, outside, total, pool, needed, available, room, fits]) =>
  ({ capacity, weights, kv, activations, outside, total, pool, needed, available, room, fits: Boolean(fits) });

class View {  // a static batch
  constructor(plan, at) {
    const [ttft, tpot, memory, e2e, [rate, rateEach, rateUser], energy, prefill, decode, parts] = FUNCTIONS[plan.static](at.batch, at.isl, at.osl, at.cached ?? 0, at.context ?? 0, at.speed);
    Object.assign(this, {
      at, gpus: plan.gpus, ttft: spanOf(ttft), tpot: spanOf(tpot), e2e, rate, rateEach, rateUser,
      memory: memoryOf(memory), energy: energyOf(energy),
    });
    this.rows = { plan, prefill, decode };
    this.parts = { prefill: parts[0], decode: parts[1] };  // of their times [s]
  }
  get prefill() { return (this.first ??= partsOf(OFFERS.steps[this.rows.plan.prefill], this.rows.prefill)); }
  get decode() { return (this.step ??= partsOf(OFFERS.steps[this.rows.plan.decode], this.rows.decode)); }
}

const loadOf = (at) => ["rate", "users"].find((kind) => kind in at);  // none of a static batch
const loaded = (plan, at) => kept(LOADS_KEPT, 64, JSON.stringify([plan.static, plan.load ?? 0, at]), () => playedAt(plan, at));  // what users feel at a rate, or as so many users; null where not one request fits
function viewOf(plan, at) {  // under load: of the sequences that decode together, as many as fit at their full length
  if (!loadOf(at)) return new View(plan, at);
  const load = loaded(plan, at), batch = Math.max(Math.round(load?.sequences ?? 1), 1);
  let view = new View(plan, { ...at, batch });
  if (batch > Math.max(view.memory.room, 1)) view = new View(plan, { ...at, batch: Math.max(view.memory.room, 1) });
  return Object.assign(view, { load }, load && { memory: load.memory });
}
const felt = (view) => view.load ?? view;

const widest = (names, sizes) => names[sizes.indexOf(Math.max(...sizes))];
function widestPart(parts) {  // the kernels of a step whose interval is the widest; all of a family together
  const { families, others } = DATA.doubts, spans = {};
  for (const { family, low, high } of parts) spans[families[family] ?? others] = (spans[families[family] ?? others] ?? 0) + high - low;
  return widest(Object.keys(spans), Object.values(spans));
}
function doubtsOf(view) {  // what widens the interval of each time most; null at the bound
  const { load, rows: { plan } } = view, parts = { ttft: () => (load ? new View(plan, { ...view.at, batch: 1 }) : view).prefill, tpot: () => view.decode };
  if (load && !load.doubts) return null;
  return Object.fromEntries(Object.keys(parts).map((metric) => {
    const cause = load ? load.doubts[metric] : "steps";
    return [metric, cause === "steps" ? widestPart(parts[metric]()) : cause === "version" ? load.version : DATA.doubts.words[cause]];
  }));
}

const causes = (parts) => Object.fromEntries(CAUSES.map((cause) => [cause, parts.reduce((all, part) => all + part.causes[cause], 0)]));  // seconds
const bytesOf = (parts) => parts.reduce((all, part) => ({
  weights: all.weights + part.weights, cache: all.cache + part.cache, activations: all.activations + part.activations,
}), { weights: 0, cache: 0, activations: 0 });
