// Loads as they are played, request by request, and what users feel of them: as `rooflinekit.load.answer` has it.
"use strict";
const STEADY = 2000, PER_USER = 10, CROWD = 20000, FILLING = 5, ENDS_OF = 400;  // requests of an open loop, and of each user; one in so many fills the engine; requests on which ends of intervals are played
const doublesOf = (text) => new Float64Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const UNPACKED = new Map();
const drawnOf = (part) => { if (!UNPACKED.has(part)) UNPACKED.set(part, doublesOf(part.units)); return UNPACKED.get(part); };
const total = (values) => { let all = 0; for (let place = 0; place < values.length; place++) all += values[place]; return all; };
const meanOf = (values) => (values.length ? total(values) / values.length : NaN);

const steady = (flying) => Math.max(STEADY, 100 * Math.ceil(Math.min(FILLING * flying, Math.max(CROWD, 3 * flying)) / 100));
function protocolOf(asked, at, flying = 0) {  // users, those who wait at once at most, requests that count or were asked for, those before them, and all; flying: those of an open loop that run at once
  const users = at.users ?? 0, counted = asked.requests ?? (users ? Math.min(PER_USER * users, Math.max(CROWD, 2 * users)) : steady(flying)), filling = asked.warmup ?? (!users && asked.requests === null ? Math.max(Math.floor(counted / FILLING), flying) : 0);
  return { users, crowd: Math.min(users, counted), counted, filling, count: counted + (users ? filling : 0) };
}
function lengthOf(law, tokens, images) {  // mean, longest, and the tokens of each request
  if (!law) return { mean: tokens + images, longest: tokens + images, at: () => tokens + images, drawn: Infinity };
  const ratio = tokens / law.asked, drawn = drawnOf(law);
  return { mean: law.mean * ratio + images, longest: (law.fixed ? law.longest : law.longest * ratio) + images, at: (place) => Math.max(Math.min(Math.floor(drawn[place % drawn.length] * ratio + 0.5), law.fixed ? law.longest : Infinity), 1) + images, drawn: drawn.length };
}
function sendingOf(gaps, rate, count) {  // when an open loop sends [s]
  const send = new Float64Array(count), drawn = gaps.units && drawnOf(gaps), step = gaps.scale / rate;
  for (let place = 0, clock = 0; place < count; place++) send[place] = clock += drawn ? step * drawn[place % drawn.length] : 1 / rate;
  return send;
}
function clientsOf(asked, at, scene, { users, filling, count }, isl, osl) {
  const send = users ? new Float64Array(count) : sendingOf(asked.gaps, at.rate, count), inputs = new Float64Array(count), outputs = new Float64Array(count), front = new Float64Array(count), [each, token] = scene.front;
  for (let place = 0; place < count; place++) {
    inputs[place] = isl.at(place);
    outputs[place] = osl.at(place);
    front[place] = token ? each + inputs[place] * token : each;
  }
  return { users, warmup: filling, send, isl: inputs, osl: outputs, cached: new Float64Array(count), priority: new Float64Array(count), front, drawn: NOTHING };
}
function firstOf(clients, count) {
  const part = Object.fromEntries(["send", "isl", "osl", "cached", "priority", "front"].map((name) => [name, clients[name].subarray(0, count)]));
  return { ...clients, warmup: 0, ...part };
}
const ROOM = { all: new Float64Array(1 << 17), used: 0 };  // of all arrays of a play: the next one takes the same
function roomFor(count, value) {
  if (ROOM.used + count > ROOM.all.length) Object.assign(ROOM, { all: new Float64Array(2 * Math.max(ROOM.all.length, count)), used: 0 });
  return ROOM.all.subarray(ROOM.used, (ROOM.used += count)).fill(value);
}
const MAKERS = { numbers: roomFor, counts: roomFor, flags: (count) => roomFor(count, 0), rows: (count, length) => Array.from({ length: count }, () => roomFor(length, 0)), number_rows: (count, length) => Array.from({ length: count }, () => roomFor(length, 0)), draws: LOOP.NUMBERS.draws };
function played(clients, rules, [table, half]) {  // from an empty engine until the last request has ended; it holds until the next play
  ROOM.used = 0;
  const state = LOOP.new_state(rules, clients.isl.length, 0, 0, 0, MAKERS);
  LOOP.start(clients, rules, state);
  LOOP.play(clients, rules, table, half, state);
  return state;
}
const TABLES = new Map(), LOADS_KEPT = new Map();  // the latest, each made once
function kept(where, most, key, make) {
  let found = where.get(key);
  if (found === undefined) found = make();
  else where.delete(key);
  where.set(key, found);
  if (where.size > most) where.delete(where.keys().next().value);
  return found;
}
function roomOf(of, context, most) {  // tokens of the cache: as many such requests as fit, at the longest length at which they do
  const fitting = of(context);
  if (!(fitting >= 1)) return 0;
  let low = Math.trunc(context), high = 2 * Math.trunc(context) + 2;
  while (high < 2 ** 26 && of(high, context) >= fitting) [low, high] = [high, 2 * high];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (of(middle, context) >= fitting) low = middle;
    else high = middle;
  }
  return low * Math.trunc(high >= 2 ** 26 ? Math.min(fitting, most) : fitting);
}
const placesOf = ({ rules }, windows, isl) => (windows === undefined ? rules.most : Math.min(rules.most, Math.max(FUNCTIONS[windows](isl)[0], 1) * rules.engines));  // requests that run at once at most
function sceneAt(plan, at, asked = plan.load ?? DATA.load) {  // lengths, rules and step tables at the lengths of a state; null where not one request fits
  const own = OFFERS.scenes[plan.plays.scene], isl = asked.whole ? lengthOf(asked.isl, at.isl + own.images, 0) : lengthOf(asked.isl, at.isl, own.images), osl = lengthOf(asked.osl, at.osl, 0);
  const longest = Math.trunc(isl.longest + osl.longest), chunks = own.chunks[longest > own.rules.budget ? 1 : 0], { windows } = plan.plays.functions, room = FUNCTIONS[plan.plays.functions.room];
  const tokens = roomOf((context, fresh = context) => room(context, fresh)[0], isl.mean + osl.mean, placesOf(own, windows, isl.mean));
  if (!tokens || chunks === null) return null;
  const rulesOf = (scene) => ({ ...scene.rules, most: placesOf(scene, windows, isl.mean), chunks: scene.chunks[longest > scene.rules.budget ? 1 : 0], horizon: Infinity, blocks: Math.max(Math.floor(tokens / scene.rules.block), 1) }), rules = rulesOf(own);
  const tablesAt = (scene, bound) => { const given = { longest: Math.max(longest, 4096), speed: at.speed, bound, ...(rules.drafted ? { isl: isl.mean, osl: osl.mean } : {}) }; return kept(TABLES, 32, JSON.stringify([plan.plays.tables, plan.plays.scene, given]), () => stepTables(plan, scene, given)); };
  const bound = own.bound && (() => ({ own: own.bound, rules: rulesOf(own.bound), tables: tablesAt(own.bound, true) }));
  return { asked, own, isl, osl, rules, tables: tablesAt(own, false), bound };
}
function kneeOf(plan, { users, batch, ...at }) {  // requests a second that are sustained at most; nothing where not one fits
  const found = sceneAt(plan, at);
  return found ? fullRate(found.tables, found.rules, found.own.front, found.isl.mean, found.osl.mean, found.own.yielded) : undefined;
}

// ---- what was played, in numbers
const quantileOf = (sorted, share) => (sorted.length ? sorted[Math.max(Math.ceil(share * sorted.length - 1e-9), 1) - 1] : NaN);
const countUpto = (sorted, value) => { let low = 0, high = sorted.length; while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= value) low = middle + 1; else high = middle; } return low; };
function grows(state) {  // whether more and more requests are in the system, and whether more and more wait for a first token
  const sent = state.sent.filter((time) => time < Infinity).sort(), last = sent[sent.length - 1] ?? 0, pieces = Math.min(Math.floor(state.sent.length / 25), 40);
  if (!(last > 0) || pieces < 8) return [false, false];
  const marks = Array.from({ length: pieces }, (_, place) => last / 4 + place * (last - last / 4) / (pieces - 1)), waits = state.first.map((time, place) => (state.refused[place] ? state.end[place] : time));
  const since = (sorted) => { const sums = new Float64Array(sorted.length + 1); for (let place = 0; place < sorted.length; place++) sums[place + 1] = sums[place] + sorted[place]; return marks.map((mark) => { const count = countUpto(sorted, mark); return count * mark - sums[count]; }); };
  const begun = since(sent), arrived = countUpto(sent, marks[marks.length - 1]) - countUpto(sent, marks[0]);
  const middles = marks.slice(1).map((mark, place) => (mark + marks[place]) / 2), centre = meanOf(middles), x = middles.map((time) => time - centre), square = total(x.map((value) => value * value));
  return [state.end, waits].map((ends) => {
    const area = since(ends.slice().sort()).map((value, place) => begun[place] - value), numbers = x.map((_, place) => (area[place + 1] - area[place]) / (marks[place + 1] - marks[place]));
    const slope = total(numbers.map((value, place) => value * x[place])) / square, mean = meanOf(numbers), error = Math.sqrt(total(numbers.map((value, place) => (value - mean - slope * x[place]) ** 2)) / (x.length - 2) / square);
    return slope * (marks[marks.length - 1] - marks[0]) > 0.01 * arrived && slope > 4 * error;
  });
}
function sumsOf(clients, state, warmup) {  // means, sorted times and parts of the requests that count
  const { sent, queued, begun, first, end, refused, under_way: step, place_wait: places, delayed } = state, ttft = [], tpot = [], e2e = [], parts = [0, 0, 0, 0, 0];
  let others = 0, tokens = 0, since = Infinity, last = -Infinity, until = -Infinity, several = 0;
  for (let j = warmup; j < sent.length; j++) {
    if (refused[j] || end[j] < 0) continue;
    const waited = begun[j] - queued[j], under = Math.min(step[j], waited), place = Math.min(places[j], waited - under);
    [queued[j] - sent[j], under, waited - under - place, place, first[j] - begun[j]].forEach((part, at) => { parts[at] += part; });
    ttft.push(first[j] - sent[j]);
    e2e.push(end[j] - sent[j]);
    tokens += clients.osl[j];
    since = Math.min(since, sent[j]);
    last = Math.max(last, sent[j]);
    until = Math.max(until, end[j]);
    if (clients.osl[j] < 2) continue;
    several++;
    tpot.push((end[j] - first[j]) / (clients.osl[j] - 1));
    others += delayed[j] / (clients.osl[j] - 1);
  }
  const [front, late, behind, waits, prompt] = parts.map((part) => part / ttft.length);
  return { count: ttft.length, ttft, tpot, e2e, parts: { front, late, behind, waits, prompt }, others: several ? others / several : 0, tokens, since, last, makespan: until - since };
}
function runOf(clients, state, isl) {  // sums of the whole run, as `LoadPlay.run` has them
  const { end, refused, prompt_tokens: computed, tokens_out: decoded, busy, times } = state, done = clients.osl.map((tokens, place) => (end[place] >= 0 && !refused[place] ? tokens : 0));
  return [total(computed) / Math.max(isl, 1), total(decoded), total(done), total(busy), times[LOOP.NOW]];
}
function servedOf({ end, refused }, { count, makespan }, filling) {  // requests a second that end in the middle half of those that count, as `Played.served` has them
  const ends = end.filter((time, place) => place >= filling && time >= 0 && !refused[place]).sort(), early = count >> 2, late = (3 * count) >> 2, span = ends[late] - ends[early];
  return span > 0 ? (late - early) / span : count / makespan;
}
function variedAt(plan, at) {  // mean times where lengths vary by a fifth in place of equal ones; null where too few were drawn
  const asked = plan.load ?? DATA.load, protocol = protocolOf(asked, at), found = asked.fifth && sceneAt(plan, at, { ...asked, ...asked.fifth, whole: true });
  if (!found || protocol.count > found.isl.drawn) return null;
  const clients = clientsOf(asked, at, found.own, protocol, found.isl, found.osl), sums = sumsOf(clients, played(clients, found.rules, found.tables), protocol.filling);
  return { ttft: meanOf(sums.ttft), tpot: meanOf(sums.tpot) };
}
const SIGMAS = 2 * 1.645;
function reached([low, high], [variances, places, known, standsIn], own, users, waiting, prompt) {  // quantiles of log(measured / predicted) under load, as `LoadErrors.reach` has them
  const steps = Math.log(Math.max(high, 1) / Math.min(low, 1)), terms = [Math.min(steps / SIGMAS, 1) ** 2, 1, Number(standsIn), Number(users <= 8), Number(users > 64), 1], parts = terms.map((term, place) => term * variances[place]);
  const scale = Math.sqrt(total(parts)), logs = places.map((each, place) => { const log = scale * each; return log + waiting * ((own.full ? own.full[place] : log) - log); });
  logs.cause = widest(DATA.doubts.causes, [...parts.map((part) => (1 - waiting) * part / (scale * scale || 1)), waiting]);
  if (!known) return logs;
  const near = known.loads.map(([count, tokens]) => known.level + known.near * Math.exp(-(Math.log(count / users) ** 2 + Math.log(tokens / prompt) ** 2) / 2));
  const left = Math.max(1 - total(near.map((a, i) => total(near.map((b, j) => a * known.inverse[i][j] * b)))), 0.01), middle = logs[3], error = total(near.map((a, i) => a * known.weights[i]));
  return Object.assign(logs.map((log) => Math.sqrt(left) * (log - middle) + left * middle + error), { cause: logs.cause });
}
const ended = ([time, bound], logs) => {  // the time with its 90 % interval, and the 80 % one
  const [low, near, far, high] = [0, 1, logs.length - 2, logs.length - 1].map((place) => time * Math.exp((place < 3 ? Math.min : Math.max)(logs[place], 0)));
  return [time, bound, Math.max(low, bound), high, [Math.max(near, bound), far]];
};
const admitted = (call, { reserves }, isl, osl, memory) => (reserves ? { ...memory, room: call("room", isl.mean + osl.mean, isl.mean)[0] } : memory);  // those that have room, as the engine admits them
function playedAt(plan, at) {  // what users feel; null where not one request fits
  const found = sceneAt(plan, at);
  if (!found) return null;
  const { asked, own, isl, osl, rules, tables } = found, [table] = tables, law = fullRate(tables, rules, own.front, isl.mean, osl.mean, own.yielded), open = !at.users && asked.requests === null;
  const protocol = protocolOf(asked, at, open ? Math.ceil(inFlight(tables, rules, isl.mean, osl.mean, own.yielded, Math.min(at.rate, law))) : 0), { users, crowd, filling, count } = protocol, call = (name, ...given) => FUNCTIONS[plan.plays.functions[name]](...given);
  const clients = clientsOf(asked, at, own, protocol, isl, osl), state = played(clients, rules, tables), sums = sumsOf(clients, state, filling);
  if (!sums.count) return null;
  const run = runOf(clients, state, isl.mean), running = total(state.sequence_time) / state.times[LOOP.NOW], busy = total(state.delays) / state.times[LOOP.NOW], growth = grows(state), log = Object.fromEntries(["sent", "begun", "first", "end"].map((name) => [name, state[name].slice()]));
  const knee = !users && (at.rate >= law || growth.every(Boolean)) ? Math.min(at.rate, servedOf(state, sums, filling)) : law, now = state.times[LOOP.NOW], steps = total(state.decode_steps), sequences = steps ? Math.max(total(state.tokens_out) / own.yielded / steps, 1) : 1;
  const local = Math.max(even(sequences / own.replicas), 1), decode = rules.drafted ? call("round", local, isl.mean, isl.mean + osl.mean / 2, at.speed) : call("token", local, isl.mean + osl.mean / 2, at.speed), prompt = call("prompt", Math.max(isl.mean, 1), at.speed);
  const first = meanOf(sums.ttft), whole = meanOf(sums.e2e), token = sums.tpot.length ? meanOf(sums.tpot) : decode[0];
  let spans = [[first, first, first, first], [token, token, token, token]], doubts = null;
  if (own.fitted) {
    const some = firstOf(clients, Math.min(users ? Math.max(Math.min(ENDS_OF, count), 2 * users) : ENDS_OF, count));
    const mean = (...factors) => { [table.decode_factor, table.prompt_factor] = factors; const part = sumsOf(some, played(some, rules, tables), 0); return [meanOf(part.ttft), meanOf(part.tpot)]; };
    const datasheet = found.bound(), quick = { ...some, front: some.isl.map((tokens) => datasheet.own.front[0] + tokens * datasheet.own.front[1]) }, least = sumsOf(quick, played(quick, datasheet.rules, datasheet.tables), 0).tpot, floor = least.length ? meanOf(least) : decode[1];
    const there = mean(1, 1), [low, high] = [2, 3].map((end) => { const factors = [decode[end] / decode[0], prompt[end] / prompt[0]], moved = mean(...factors); return [moved[0] / there[0], there[1] > 0 ? moved[1] / there[1] : factors[0]]; });
    table.decode_factor = table.prompt_factor = 1;
    const many = Math.max(crowd || running, 1), bounds = [Math.min(prompt[1], first), Math.min(floor, token)], logsOf = (share) => [0, 1].map((which) => reached([low[which], high[which]], own.errors[which], own, many, share, Math.max(isl.mean, 1)));
    const logs = logsOf(sums.parts.waits / whole), placesOf = (size) => Math.trunc(Math.max(Math.min(rules.most, Math.trunc(rules.blocks * size) * rules.block / (isl.mean + (rules.reserves ? osl.mean : osl.mean / 2))), 1));
    const size = crowd <= placesOf(1) ? 1 - own.pool_error : 1 + own.pool_error;
    if (crowd && (crowd <= placesOf(size)) !== (crowd <= placesOf(1))) {  // both sides of whether all users have a place, as `LoadPlay.reaches` has them
      const part = sumsOf(some, played(some, { ...rules, blocks: Math.max(Math.trunc(rules.blocks * size), 1) }, tables), 0), further = [meanOf(part.ttft) / there[0], meanOf(part.tpot) / there[1]].map(Math.log);
      logsOf(part.parts.waits / meanOf(part.e2e)).forEach((other, which) => { const both = logs[which].map((log, place) => (place === 3 ? log : (place < 3 ? Math.min : Math.max)(log, other[place] + further[which]))); logs[which] = Object.assign(both, { cause: both.some((log, place) => log !== logs[which][place]) ? DATA.doubts.room : logs[which].cause }); });
    }
    spans = [first, token].map((time, which) => ended([time, bounds[which]], logs[which]));
    doubts = { ttft: logs[0].cause, tpot: logs[1].cause };
  }
  const made = sums.tokens / sums.makespan, others = Math.min(sums.others, token), held = isl.mean + (rules.reserves ? osl.mean : osl.mean / 2);
  const sorted = Object.fromEntries(["ttft", "tpot", "e2e"].map((name) => [name, Float64Array.from(sums[name]).sort()]));
  return {
    at, ttft: spanOf(spans[0]), tpot: spanOf(spans[1]), doubts, version: own.version, e2e: whole, running, sequences, knee, rate: at.rate ?? sums.count / sums.makespan,
    stable: Number(Boolean(users) || (at.rate < knee && !growth.every(Boolean))), busy, queue: sums.parts.behind + sums.parts.waits,
    slots: Math.trunc(Math.max(Math.min(rules.most, rules.blocks * rules.block / held), 1)), rateEach: made / plan.gpus, rateUser: 1 / token,
    memory: admitted(call, own, isl, osl, memoryOf(call("held", Math.max(even(running), 1), isl.mean + osl.mean / 2, isl.mean))), energy: "energy" in plan.plays.functions ? energyOf(call("energy", sequences, isl.mean, osl.mean, at.speed, ...run)) : null,
    parts: { ...sums.parts, step: token - others, others }, stepParts: decode.slice(4), osl: osl.mean, sorted, longest: sorted.ttft[sorted.ttft.length - 1], now, log, filling, goals: asked.goals,
    crowd, together: crowd > 1 && !asked.isl && !asked.osl,
    repeated: count > Math.min(isl.drawn, osl.drawn, users ? Infinity : asked.gaps.count),
  };
}
function stripes({ log: { sent, begun, first, end }, e2e, filling }) {  // of the request nearest to the mean: when prompts of others were computed, as shares of the time of its tokens
  const last = sent.reduce((most, time) => (time < Infinity ? Math.max(most, time) : most), 0), far = (j) => (end[j] <= last ? 0 : 1e6) + Math.abs(end[j] - sent[j] - e2e);  // better one that ended while others came
  let own = -1, least = Infinity;
  for (let j = filling; j < end.length; j++) if (end[j] > first[j]) least = Math.min(least, far(j));
  for (let j = filling; own < 0 && j < end.length; j++) if (end[j] > first[j] && far(j) <= least + 1e-9 * e2e) own = j;  // but for rounding, the first of equals
  const from = first[own], span = end[own] - from, found = [];
  for (let j = 0; own >= 0 && j < end.length; j++) if (j !== own && first[j] > from && begun[j] < end[own]) found.push([Math.max((begun[j] - from) / span, 0), Math.min((first[j] - from) / span, 1)]);
  return joined(found);
}
function joined(spans) {  // those that touch, or nearly, are one
  const ordered = spans.sort((a, b) => a[0] - b[0]), made = [];
  for (const [since, until] of ordered) {
    const last = made[made.length - 1];
    if (last && since - last[1] <= 0.001) last[1] = Math.max(last[1], until);
    else made.push([since, until]);
  }
  return made;
}
