// Evaluates coefficients that Python exports (rooflinekit.model.coefficients), term by term in the same order. No number about
// any model, accelerator or engine stands here.
"use strict";
const Evaluate = (() => {
  const TILE = 128, SIGMAS = 1.645, PADDING = 64;  // as in rooflinekit/model/coefficients

  const linear = (terms, basis) => {
    let sum = terms[0] ?? 0;
    for (let i = 1; i < terms.length; i++) sum += terms[i] * basis[i - 1];
    return sum;
  };

  function seen(shape, tokens) {  // query-key pairs of the first tokens
    if (shape.chunk) {
      const chunks = Math.floor(tokens / shape.chunk), rest = tokens - chunks * shape.chunk;
      return chunks * (shape.chunk * (shape.chunk + 1) / 2) + rest * (rest + 1) / 2;
    }
    if (shape.window) {
      const inside = Math.min(tokens, shape.window);
      return inside * (inside + 1) / 2 + Math.max(tokens - shape.window, 0) * shape.window;
    }
    return tokens * (tokens + 1) / 2;
  }

  const prefill = (batch, isl) => ({ sequences: batch, new: isl, first: 0, steps: 1 });
  const decode = (batch, first, steps = 1) => ({ sequences: batch, new: 1, first, steps });

  function features(shape, state) {
    const tokens = state.sequences * state.new;
    let pairs, keys;
    if (state.first) {
      const last = state.first + state.steps - 1;
      const told = (seen(shape, last) - seen(shape, state.first - 1)) / state.steps;
      pairs = keys = shape.window || shape.chunk ? Math.max(told, 1) : state.first + (state.steps - 1) / 2;
    } else {
      pairs = seen(shape, state.new);
      keys = state.new;
    }
    const rows = shape.by_tokens ? tokens : state.sequences;
    const touched = shape.experts * (1 - shape.missed ** tokens);
    return { state, tokens, pairs, keys, rows, basis: [state.sequences, tokens, state.sequences * pairs, touched] };
  }

  const SIZES = {
    rows: (f) => f.rows,
    padded_rows: (f) => (f.rows <= PADDING ? f.rows : PADDING * Math.ceil(f.rows / PADDING)),
    sequences: (f) => f.state.sequences,
    tokens: (f) => f.tokens,
    keys: (f) => f.keys,
    cached: (f) => f.state.sequences * f.keys,
    length: (f) => Math.sqrt(2 * f.pairs + 0.25) - 0.5,
  };
  const size = ([feature, scale], f) => scale * SIZES[feature](f);

  function locate(nodes, position) {
    if (nodes.length === 1) return [0, 0];
    let index = 0;
    while (index < nodes.length - 2 && position >= nodes[index + 1]) index++;
    const share = (position - nodes[index]) / (nodes[index + 1] - nodes[index]);
    return [index, Math.min(Math.max(share, 0), 1)];
  }

  function corrected(surface, f) {  // bilinear in the logarithms of one or two sizes
    let corners = [[0, 1]];
    surface.positions.forEach((position, axis) => {
      const nodes = surface.nodes[axis], [index, share] = locate(nodes, Math.log2(size(position, f))), next = [];
      for (const [at, weight] of corners)
        for (const [step, part] of [[0, 1 - share], [1, share]])
          if (part) next.push([at * nodes.length + index + step, weight * part]);
      corners = next;
    });
    return corners.reduce((sum, [at, weight]) => sum + surface.ratios[at] * weight, 0);
  }

  function width(widths, f) {
    if (!widths.position) return widths.factors[widths.factors.length - 1];
    const at = size(widths.position, f);
    return widths.factors[widths.edges.filter((edge) => edge < at).length];
  }

  const joined = (a, b, sharpness) => (sharpness ? (a ** sharpness + b ** sharpness) ** (1 / sharpness) : Math.max(a, b));

  function launched(t, f) {
    const latency = linear(t.launch, f.basis) + t.log * Math.log2(1 + t.log_keys * f.keys + t.log_tokens * f.tokens);
    return latency + t.tiles * f.state.sequences * Math.ceil(f.state.new / TILE);
  }

  function computed(t, f, tile) {
    let time = linear(t.compute, f.basis) + t.rows * Math.ceil(f.rows / tile) * tile;
    if (t.tail) {
      const waves = Math.ceil(f.rows / TILE) * t.columns / t.cores;
      time += t.tail * (waves >= 1 ? Math.ceil(waves) - waves : 0);
    }
    if (t.farthest) time += t.farthest * Math.min(f.pairs / f.state.new + f.state.new / 2, f.keys);
    return time;
  }

  // All launches of a kernel in a step; `speed` multiplies the bandwidth of the memory.
  function part(k, state, speed) {
    const f = features(k.shape, state), n = k.count, t = k.timing;
    const flops = linear(k.flops, f.basis), streamed = linear(k.streamed, f.basis), weights = linear(k.weights, f.basis);
    const activations = linear(k.activations, f.basis);
    const needed = [
      flops / k.peak, (streamed + Math.max(activations - k.cache, 0)) / (k.bandwidth * speed),
      Math.max(linear(k.links, f.basis), linear(k.nics, f.basis)),
    ];
    const bound = n * Math.max(...needed);
    const work = {
      name: k.name, family: k.family, count: n, peak: k.peak, bound, flops: n * flops, weights: n * weights,
      cache: n * (streamed - weights), activations: n * activations,
    };
    if (!t) return { ...work, time: bound, low: bound, high: bound, needs: [...needed.map((need) => n * need), 0] };
    const latency = launched(t, f), compute = computed(t, f, k.shape.tile);
    const memory = linear(t.memory, f.basis) / speed;
    let besides = linear(t.beside, f.basis);
    if (!t.of_links) besides /= speed;
    besides += t.root * Math.sqrt(f.rows);
    const ratio = typeof t.ratio === "number" ? t.ratio : corrected(t.ratio, f);
    const expected = Math.max(n * ((latency + (joined(compute, memory, t.sharpness) + besides)) * ratio), bound);
    const factor = width(t.widths, f), shift = n * (t.late - t.hidden * latency);
    const ends = [expected, Math.max(expected / factor, bound), expected * factor];
    const [time, low, high] = ends.map((end) => Math.max(end * t.repeats + shift, bound));
    const needs = [
      n * compute, n * (memory + (t.of_memory ? besides : 0)) * t.repeats, t.of_links ? n * besides : 0,
      n * (latency + (t.late - t.hidden * latency)),
    ];
    return { ...work, time, low, high, needs };
  }

  function pieces(host, passes, sequences, busy) {  // what the engine adds
    const found = [
      ["host", passes * host.step + sequences * host.sequence, passes * host.step_error + sequences * host.sequence_error],
      ["layer_gaps", passes * host.layers, passes * host.layers_error],
    ];
    if (busy) {
      const gaps = Math.max(passes * (busy[0] * host.launch) - busy[1], 0);
      found.push(["launch_gaps", gaps, gaps > 0 ? host.launch_error * busy[0] : 0]);
    }
    return found.map(([name, time, doubt]) => ({
      name, family: "host", count: 1, peak: 0, bound: 0, flops: 0, weights: 0, cache: 0, activations: 0, time,
      low: Math.max(time - SIGMAS * doubt, 0), high: time + SIGMAS * doubt, needs: [0, 0, 0, time],
    }));
  }

  const total = (parts) => {
    const sum = { bound: 0, time: 0, low: 0, high: 0 };
    for (const part of parts) for (const end in sum) sum[end] += part[end];
    return sum;
  };
  const scaled = (span, by) => ({ bound: span.bound * by, time: span.time * by, low: span.low * by, high: span.high * by });
  const launches = (parts) => parts.reduce((sum, part) => sum + part.count, 0);
  const widened = (span, factor) => ({
    bound: span.bound, time: span.time, low: Math.max(Math.min(span.low, span.time / factor), span.bound),
    high: Math.max(span.high, span.time * factor),
  });

  function prefillStep(plan, at) {
    const state = prefill(at.batch, at.isl), parts = plan.prefill.map((k) => part(k, state, at.speed));
    const passes = Math.max(Math.ceil(at.batch * at.isl / plan.host.token_budget), 1);
    return [...parts, ...pieces(plan.host, passes, at.batch, [launches(parts), total(parts).time])];
  }

  function decodeStep(plan, at, context) {
    const state = decode(at.batch, context), parts = [...plan.decode, ...plan.growing].map((k) => part(k, state, at.speed));
    const busy = plan.host.eager_decode ? [launches(parts), total(parts).time] : null;
    return [...parts, ...pieces(plan.host, 1, at.batch, busy)];
  }

  function decodeParts(isl, osl) {  // thirds of an output: first context, steps, share
    const steps = Math.max(osl - 1, 1), outer = Math.floor((steps + 1) / 3), parts = [];
    let before = 0;
    for (const length of [outer, steps - 2 * outer, outer]) {
      parts.push([isl + 1 + before, Math.max(length, 1), length / steps]);
      before += length;
    }
    return parts;
  }

  const meanContext = (at) => at.isl + (Math.max(at.osl - 1, 1) + 1) / 2;

  function tpot(plan, at, step) {  // the step at the mean context gives all that does not grow
    const grow = plan.decode.length, growing = grow + plan.growing.length;
    const spans = [...step.slice(0, grow), ...step.slice(growing)];
    for (const [first, steps, share] of decodeParts(at.isl, at.osl))
      spans.push(scaled(total(plan.growing.map((k) => part(k, decode(at.batch, first, steps), at.speed))), share));
    return widened(total(spans), plan.host.factor);
  }

  function memory(m, batch, context, fresh) {
    const held = Math.ceil(context / m.block) * m.block;
    let each = m.state;
    m.caps.forEach((cap, i) => { each += m.slopes[i] * (cap === null ? held : Math.min(held, cap)); });
    const peak = (count) => {
      const tokens = m.profiled ? m.tokens : Math.min(count * fresh, m.tokens), rows = m.profiled ? Math.max(count, m.rows) : count;
      return Math.max(m.layer_base + tokens * m.layer_token, m.sampler_base + tokens * m.sampler_token + rows * m.sampler_row);
    };
    const need = (kv, activations) => {
      const pool = m.allowance - m.charge * activations, fixed = m.weights + activations + m.outside;
      const reserved = fixed + Math.max(pool, 0) + m.slack, there = m.capacity * (1 + 1e-12);
      return kv > pool || reserved <= there ? [fixed + kv, fixed + pool] : [reserved, there];
    };
    const most = (allowance, token, row) => {
      if (m.profiled) {
        const left = allowance - token * m.tokens;
        return Math.min((left - row * m.rows) / each, left / (each + row));
      }
      const above = (allowance - m.tokens * token) / (each + row);
      return above * fresh >= m.tokens ? above : Math.min(allowance / (each + row + fresh * token), m.tokens / fresh);
    };
    const activations = peak(batch), kv = batch * each, [needed, available] = need(kv, activations), [n0, a0] = need(0, peak(0));
    const room = Math.min(
      most(m.allowance - m.charge * m.layer_base, m.charge * m.layer_token, 0),
      most(m.allowance - m.charge * m.sampler_base, m.charge * m.sampler_token, m.charge * m.sampler_row));
    return {
      capacity: m.capacity, weights: m.weights, kv, activations, outside: m.outside,
      total: m.weights + kv + activations + m.outside, pool: Math.max(m.allowance - m.charge * activations, 0),
      needed, available, fits: needed <= available, room: n0 > a0 ? 0 : Math.max(Math.floor(room + 1e-9), 0),
    };
  }

  function answer(plan, at) {  // at: batch, isl, osl, speed
    const first = prefillStep(plan, at), step = decodeStep(plan, at, meanContext(at));
    const ttft = widened(total(first), plan.host.factor);
    return finish({ ttft, tpot: tpot(plan, at, step), prefill: first, decode: step, memory: memory(plan.memory, at.batch, at.isl + at.osl, at.isl) }, at, plan.gpus);
  }

  function finish(found, at, gpus) {
    const request = found.ttft.time + (at.osl - 1) * found.tpot.time, rate = at.batch * at.osl / request;
    return { ...found, at, gpus, e2e: request, rate, rateEach: rate / gpus, rateUser: 1 / found.tpot.time };
  }

  const CAUSES = ["compute", "memory", "network", "overhead"];
  function causes(parts) {  // seconds by cause: each part between its launch and the resource that it waits for
    const seconds = { compute: 0, memory: 0, network: 0, overhead: 0 };
    for (const { needs, time } of parts) {
      let cause = 1;
      for (const other of [0, 2]) if (needs[other] > needs[cause]) cause = other;
      const whole = needs[3] + needs[cause], share = whole ? needs[3] / whole : 0;
      seconds.overhead += share * time;
      seconds[CAUSES[cause]] += (1 - share) * time;
    }
    return seconds;
  }

  const bytes = (parts) => parts.reduce((sum, p) => ({
    weights: sum.weights + p.weights, cache: sum.cache + p.cache, activations: sum.activations + p.activations,
  }), { weights: 0, cache: 0, activations: 0 });

  return { answer, bytes, causes, decodeStep, memory, meanContext, prefillStep, tpot, total, CAUSES };
})();
if (typeof module !== "undefined") module.exports = Evaluate;
