// Step tables of one deployment, filled as the loop reads them, on the grids of `rooflinekit.load.table`; and the law of a full engine.
"use strict";
const GRIDS = LOOP.grids, NOTHING = new Float64Array(0);

function gridOf(last, first = 1, ratio = GRIDS.ratio, fine = GRIDS.fine) {  // whole numbers, then those of equal ratio, up to and including the last
  const points = [first];
  for (let point = first; point < last; points.push(point)) point = Math.trunc(Math.max(point + 1, point > fine ? point * ratio : 0));
  points[points.length - 1] = Math.max(last, points[points.length - 1]);
  return points.length > 1 ? points : [first, first + 1];
}
function contextsOf(most, edges, ratio = GRIDS.ratio, fine = GRIDS.fine) {  // where attention has a step, the last length before it and the next one too
  const ends = edges.flatMap(([size, last]) => Array.from({ length: Math.max(Math.ceil(Math.min(last ?? most, most) / size) - 1, 0) }, (_, place) => [(place + 1) * size, (place + 1) * size + 1])).flat();
  return [...new Set([0, ...gridOf(most, 1, ratio, fine), ...ends])].sort((a, b) => a - b);
}
function cellsOf(grid) {  // the place in the grid of every whole number
  const cells = new Uint32Array(grid[grid.length - 1]);
  for (let at = 0; at + 1 < grid.length; at++) cells.fill(at, grid[at], grid[at + 1]);
  return cells;
}
function filled(length, of) {  // numbers by place, each worked out when it is first read
  const kept = new Float64Array(length).fill(NaN);
  const found = (place) => { const known = kept[place]; return known === known ? known : (kept[place] = of(place)); };
  return Object.defineProperty(found, "length", { value: length });
}
const none = filled(0, () => 0);
function filledRows(of) {
  const rows = [];
  return (row, place) => ((rows[row] ??= [])[place] ??= of(row, place));
}
function filledNumbers(length, of) {
  const rows = [];
  return (row, place) => {
    const own = (rows[row] ??= new Float64Array(length).fill(NaN)), known = own[place];
    return known === known ? known : (own[place] = of(row, place));
  };
}
function byTokens(most, of) {  // one by one, then between both sides of where a product has one tile more, and beyond on a grid
  const last = Math.min(most, GRIDS.dense), counts = gridOf(most + 1, last);
  const dense = filled(last + 1, (tokens) => {
    const over = (tokens - GRIDS.each) % GRIDS.tile;
    if (tokens <= GRIDS.each || over === 0 || over === 1 || tokens === last) return tokens ? of(tokens) : 0;
    const low = tokens - over + 1, high = Math.min(tokens - over + GRIDS.tile, last);
    return dense(low) + (dense(high) - dense(low)) / (high - low) * (tokens - low);
  });
  return [dense, Float64Array.from(counts), filled(counts.length, (place) => of(counts[place]))];
}

function stepTables(plan, scene, { longest, speed, isl, osl, bound }) {  // as `build_table` makes them for requests up to so many tokens: of whole steps, and of those whose halves take turns; at datasheet rates, of bounds
  const which = bound ? 1 : 0, made = scene.tables.map((numbers, place) => stepTable(scene, numbers, plan.plays.tables[place], longest, speed, which)), [table] = made;
  if (scene.rules.drafted) {
    const call = (name, ...given) => FUNCTIONS[plan.plays.functions[name]](...given, speed)[which], first = call("draft_prompt", Math.max(isl, 1));
    table.drafting = filled(scene.rules.most + 1, (count) => (count ? call("drafting", count, isl, osl) : 0));
    if (first) for (const each of scene.halved ? made.slice(0, 2) : [table]) { const images = each.encoded; each.encoded = filled(each.sequences.length, (count) => (images.length ? images(count) : 0) + count * first); }
  }
  if (scene.halved) Object.assign(table, { halved: true, undivided_alone: scene.halved[0], undivided: scene.halved[1] });
  if (scene.stages.length) {  // the busiest stage's share of a middle step
    const share = (...step) => { const times = made.slice(1).map((each) => LOOP.step_time(each, each, ...step, [0], [0])); return Math.max(...times) / total(times.map((time, place) => time * scene.stages[place])); };
    const sequences = Math.max(Math.floor((2 * scene.most + 1 + scene.tables[0].switching) / 8), 1), tokens = Math.max(scene.rules.budget, 512);
    Object.assign(table, { decode_stage: share(sequences, sequences * 2048, 0, [], [], 0), prompt_stage: share(0, 0, 1, [tokens], [0], 1) });
  }
  return [table, scene.halved ? made[1] : table];
}
function stepTable(scene, numbers, functions, longest, speed, which) {
  const { switching, replicas, ranks, parts, seen, width } = numbers, { budget } = scene.rules;
  const call = (name) => (name in functions ? FUNCTIONS[functions[name]] : null);
  const [movedOf, movedAloneOf, tokensOf, sampledOf, sequencesOf, decodeOf, promptsOf, wholeOf, pooledOf, keyedOf, encodedOf, aloneOf] = ["moved", "moved_alone", "tokens", "sampled", "sequences", "decode", "prompts", "together", "pooled", "keyed", "encoded", "alone"].map(call);
  const most = Math.min(2 ** Math.ceil(Math.log2(Math.max(longest, 4096))), scene.admitted || 2 ** 20, 2 ** 20), grid = contextsOf(most + width, scene.edges), many = 2 * scene.most + 2;
  const upto = scene.most * width + Math.max(most, budget, scene.step_tokens), beside = switching ? GRIDS.short : 0;
  const [dense, counts, times] = byTokens(upto, (tokens) => tokensOf(tokens, speed)[which]);
  const [pooled_dense, pooled_counts, pooled_times] = pooledOf ? byTokens(upto * replicas, (tokens) => pooledOf(tokens, speed)[which]) : [none, NOTHING, none];
  const [keyed_dense, keyed_counts, keyed_times] = keyedOf ? byTokens(scene.most * most, (tokens) => keyedOf(tokens, speed)[which]) : [none, NOTHING, none];
  const [exchanged_dense, exchanged_counts, exchanged_times] = movedOf ? byTokens(upto, (tokens) => numbers.once + movedOf(tokens, speed)[which]) : [none, NOTHING, none];
  const leastOf = (count) => Math.max(scene.tables[0].graphs ? 0 : numbers.floor[2] + numbers.sequence_floor * count, movedAloneOf ? numbers.once + numbers.sequence_floor * count + movedAloneOf(count, speed)[which] : 0);
  const by = (of, length = many) => filled(length, (count) => (count ? of(count, speed)[which] : 0));
  const chunk = (count, fresh, past) => promptsOf(count, Math.max(fresh, 1), past, speed)[which];
  const corner = filledRows((row, column) => chunk(1, grid[row], grid[column]));
  const ofSequences = (count) => {
    const unit = parts * ranks, size = unit > 1 && beside ? unit * (Math.ceil(count / unit) * width + Math.ceil(beside / unit)) : count * width + beside;
    return sequencesOf(count, speed)[which] - LOOP.tokens_time(size, dense, counts, times);
  };
  const launch = chunk(1, 0, 0), saved = (count, fresh, past) => (count * chunk(1, fresh, past) - chunk(count, fresh, past)) / (count - 1);
  const lanes = [[8, 0], [64, 0], [512, 0], [8, 512], [64, 4096], [512, 4096]], several = lanes.some(([fresh, past]) => !(Math.abs(saved(8, fresh, past) - launch) * 7 < GRIDS.same * wholeOf(8, fresh, past, speed)[which]));
  const table = {
    dense, counts, times, pooled_dense, pooled_counts, pooled_times, keyed_dense, keyed_counts, keyed_times, launch,
    sampled: sampledOf ? by(sampledOf, many * width) : filled(many * width, () => 0), sequences: filled(many, (place) => ((place -= beside ? 1 : 0) > 0 ? ofSequences(place) : 0)),
    grid: Float64Array.from(grid), cells: cellsOf(grid), width, budget, replicas, ranks, parts, seen,
    decode: filledNumbers(grid.length, (count, place) => decodeOf(count, Math.max(grid[place], width), speed)[which]),
    prefill: filledRows((row, column) => {  // a, b, c, d of a + b·x + (c + d·x)·y
      const x = grid[row], y = grid[column], dx = grid[row + 1] - x, dy = grid[column + 1] - y;
      const base = corner(row, column), right = corner(row + 1, column), up = corner(row, column + 1);
      const d = (corner(row + 1, column + 1) - right - up + base) / (dx * dy), b = (right - base) / dx - d * y, c = (up - base) / dy - d * x;
      return [base - b * x - c * y - d * x * y, b, c, d];
    }),
    floor: numbers.floor, graph_floor: numbers.graph_floor, graph_tokens: numbers.graph_tokens, sequence_floor: numbers.sequence_floor, graphs: numbers.graphs, encoded_floor: numbers.encoded_floor, unsampled: numbers.unsampled, tiled: numbers.tile_rows ? numbers.tile_rows * (chunk(1, 2048, 8192) - chunk(1, 2048, 4096)) / (4096 * 2048) : 0, summed: numbers.summed,
    encoded: encodedOf ? by(encodedOf) : none, alone: aloneOf ? by(aloneOf) : none, alone_floor: aloneOf ? filled(many, (count) => (count ? leastOf(count) : 0)) : none,
    exchanged_dense, exchanged_counts, exchanged_times, halved: false, undivided: 0, undivided_alone: 0, drafting: none,
    saved_counts: NOTHING, saved_grid: NOTHING, saved_cells: NOTHING, saved_times: none, decode_stage: 1, prompt_stage: 1, decode_factor: 1, prompt_factor: 1,
  };
  if (several) {
    const enough = GRIDS.chunks.findIndex((count) => count >= Math.max(scene.most, 4)), chunks = GRIDS.chunks.slice(0, enough < 0 ? GRIDS.chunks.length : enough + 1), coarse = contextsOf(most, scene.edges, GRIDS.coarse, GRIDS.fine / 2);
    const planes = chunks.map((count) => filledRows((row, column) => saved(count, coarse[row], coarse[column])));
    Object.assign(table, { saved_counts: Float64Array.from(chunks), saved_grid: Float64Array.from(coarse), saved_cells: cellsOf(coarse), saved_times: (place) => planes[place] });
  }
  return table;
}

// ---- the law of a full engine, as `rooflinekit.load.law` has it
function even(value) {  // Python's round: halves to the even one
  const whole = Math.round(value);
  return whole - value === 0.5 && whole % 2 ? whole - 1 : whole;
}
function fullRate(tables, rules, [each, token], isl, osl, yielded) {  // and that the front ends read
  const work = each + even(isl) * token;
  return Math.min(engineRate(tables, rules, isl, osl, yielded), work ? rules.front_ends / work : Infinity);
}
function inFlight(tables, rules, isl, osl, yielded, rate) {  // requests that run at once at a rate, no more than have a place: Little's law with mean steps
  const { begun, prompts } = fullEngine(tables, rules, isl, osl, yielded), [t, h] = tables, prompt = prompts / begun, left = Math.max(1 - rate * prompt, 0.02), steps = (osl - 1) / yielded, context = isl + osl / 2;
  const most = Math.min(rules.most, Math.max(rules.blocks * rules.block / (isl + (rules.reserves ? osl : osl / 2)), 1)), crowd = rules.lanes > 1 ? Math.max(rules.lanes * t.decode_stage, 1) : 1;
  let count = 1;
  for (let round = 0; round < 12; round++) {
    const own = Math.max(even(count / rules.lanes), 1), step = (LOOP.run_time(t, h, own, own * context)[0] + (t.drafting.length ? t.drafting(own) : 0)) * crowd;
    count = Math.min(rate * (prompt + steps * step) / left, most);
  }
  return count;
}
function engineRate(tables, rules, isl, osl, yielded) {  // requests a second that are sustained at most, at mean lengths
  const { begun, decode, prompts } = fullEngine(tables, rules, isl, osl, yielded);
  return begun / (decode + prompts);
}
function fullEngine([t, h], rules, isl, osl, yielded) {  // a turn of an engine whose places are taken: prompts that begin in it, its decode steps and its prompts [s]
  const fresh = Math.max(isl, 1), held = isl + (rules.reserves ? osl : osl / 2), places = Math.max(Math.min(rules.most, Math.max(rules.blocks * rules.block / held, 1)) / rules.lanes, 1);
  const { width } = t, after = (osl - 1) / yielded, budget = rules.budget * rules.engines, context = isl + osl / 2;
  const decode = (sequences) => { const count = Math.max(even(sequences), 1); return LOOP.run_time(t, h, count, count * context)[0] + (t.drafting.length ? t.drafting(count) : 0); };
  const images = (prompts) => (t.encoded.length ? t.encoded(prompts) : 0);  // of a draft too
  const crowd = (stage) => (rules.lanes > 1 ? Math.max(rules.lanes * stage, 1) : 1);  // all lanes pass the busiest stage one after the other
  const shared = (tokens) => LOOP.tokens_time(even(tokens), t.dense, t.counts, t.times);
  const last = t.cells.length - 1, plane = t.prefill(t.cells[Math.min(even(fresh), last)], t.cells[0]), attention = plane[0] + plane[1] * even(fresh);
  if (!rules.mixes) {
    const together = Math.max(Math.min(Math.floor(budget / fresh), places), 1), prompts = together / t.replicas, rows = Math.max(even(prompts), 1);
    const saved = t.saved_counts.length ? LOOP.saved_time(t, rows, new Float64Array(rows), even(rows * fresh)) : t.launch;
    const time = t.sequences(rows) + t.sampled(rows) + shared(prompts * fresh) + images(rows) + prompts * attention - saved * (rows - 1);
    return { begun: rules.lanes * places, decode: after * (after > 0 ? decode(places) : 0) * crowd(t.decode_stage), prompts: places / together * Math.max(time, t.floor[0]) * crowd(t.prompt_stage) };
  }
  const decoding = after > 0 ? Math.min(places * after / (after + 1), budget * after / (fresh + after * width)) : 0, begun = after > 0 ? decoding / after : Math.min(places, budget / fresh);
  const own = decoding / t.replicas, each = begun / t.replicas, some = decoding >= 1;
  const chunk = Math.min(fresh, Math.max(rules.budget - own * width, 1)), steps = Math.min(each * fresh / chunk, 1);  // prompts come whole, or in pieces that fill a step
  let added = attention * each + steps * (shared(own * width + Math.max(chunk, each * fresh)) - (some ? shared(own * width) : 0)) + images(1) * each;
  if (t.pooled_dense.length) {
    const pooled = (tokens) => LOOP.tokens_time(even(tokens), t.pooled_dense, t.pooled_counts, t.pooled_times);
    added += pooled(decoding * width + begun * fresh) - pooled(decoding * width);
  }
  return { begun: rules.lanes * begun, decode: (decoding > 0 ? decode(decoding) * Math.min(decoding, 1) : 0) * crowd(t.decode_stage), prompts: added * crowd(t.prompt_stage) };
}
