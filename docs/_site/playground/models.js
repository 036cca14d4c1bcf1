// The files of the models, one for each engine: each is fetched once, and what it offers is put beside what there is.
"use strict";
const FETCHED = {};
const fetched = (model, engine) => !DATA.engines.includes(engine) || FETCHED[fileOf(model, engine)]?.done;  // an engine that has no file has nothing to fetch
function fetchFile(model, engine) {
  const file = fileOf(model, engine), early = model === EARLY.model && engine === DATA.asked.engine && EARLY.text;
  if (early) EARLY.text = null;
  const made = (FETCHED[file] ??= { text: (early || unpacked(file)).then(JSON.parse).then(adopt).then(() => { made.done = true; }).catch((error) => { delete FETCHED[file]; throw error; }) });
  return made.text;
}

async function adopt({ asked, offers, library: data, functions }) {
  const address = URL.createObjectURL(new Blob([`${functions}\nexport default library;`], { type: "text/javascript" }));
  const { default: made } = await import(address);
  URL.revokeObjectURL(address);
  const first = FUNCTIONS.length, step = OFFERS.steps.length, note = OFFERS.notes.length, scene = OFFERS.scenes.length, move = OFFERS.moves.length;
  const moved = (places) => Object.fromEntries(Object.entries(places).map(([name, place]) => [name, place + first]));
  FUNCTIONS.push(...made(data));
  OFFERS.steps.push(...offers.steps);
  OFFERS.notes.push(...offers.notes);
  OFFERS.scenes.push(...offers.scenes);
  OFFERS.moves.push(...offers.moves);
  for (const [label, plan] of Object.entries(offers.plans)) {
    OFFERS.plans[label] = { ...plan, static: plan.static + first, plays: plan.plays && { functions: moved(plan.plays.functions), tables: plan.plays.tables.map(moved), scene: plan.plays.scene + scene }, prefill: plan.prefill + step, decode: plan.decode + step, notes: plan.notes.map((place) => place + note), moves: plan.moves + move };
  }
  Object.assign(OFFERS.missing, offers.missing);
  Object.assign(OFFERS.gpus, offers.gpus);
  Object.assign(OFFERS.formats, offers.formats);
  (OFFERS.asked[asked.model] ??= {})[asked.engine] = asked;
  const known = Object.fromEntries(CHOICES.map((name) => [name, OPTIONS[name]]));
  for (const name of CHOICES) delete OPTIONS[name];
  for (const name of CHOICES) if (known[name] && String(optionsOf(name)) !== String(known[name])) byId(`in-${name}`).replaceChildren(...optionList(name));
}
