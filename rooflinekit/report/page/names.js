// Where the names of points stand: below, above or beside them, wherever they hide the least; a name that would hide much is left out.
"use strict";
const LETTER = 6.5, LINE = 15;  // pixels of a letter and a line of 12 pixels
const MUCH = 0.2;  // of its own area: of lines and of their names; of a dot it hides nothing
const askew = (radius) => radius / 2 + 8;  // how far above or below the middle of its point a name stands that is beside it
const aside = (side, up) => ({ x, y, radius }, wide) => [side > 0 ? x + radius + 4 : x - radius - 4 - wide, y - LINE / 2 + up * askew(radius), wide, LINE];
const SIDES = {
  bottom: ({ x, y, radius }, wide) => [x - wide / 2, y + radius + 2, wide, LINE], right: aside(1, 0), top: ({ x, y, radius }, wide) => [x - wide / 2, y - radius - 2 - LINE, wide, LINE], left: aside(-1, 0),
  "bottom right": aside(1, 1), "bottom left": aside(-1, 1), "top right": aside(1, -1), "top left": aside(-1, -1),
};
function labelAt({ side = "bottom", radius }) {  // the same for the library
  const [position, beside] = side.split(" ");
  return beside ? { position: beside, offset: [0, (position === "top" ? -1 : 1) * askew(radius)] } : { position };
}
const shared = ([x, y, wide, tall], [u, v, broad, high]) => Math.max(0, Math.min(x + wide, u + broad) - Math.max(x, u)) * Math.max(0, Math.min(y + tall, v + high) - Math.max(y, v));

function sidesOf(points, taken, [left, top, wide, tall]) {  // points: {x, y, radius, name} in pixels, the most important first; taken: boxes
  const dots = points.map(({ x, y, radius }) => [x - radius, y - radius, 2 * radius, 2 * radius]), boxes = [...taken], named = [];
  return points.map((point, own) => {
    if (!point.name) return null;
    let best = null;
    for (const [side, boxOf] of Object.entries(SIDES)) {
      const box = boxOf(point, LETTER * point.name.length), inside = shared(box, [left, top, wide, tall]);
      const hidden = 2 * boxes.reduce((all, other) => all + shared(box, other), 0) + 9 * (box[2] * box[3] - inside);
      const never = named.some((other) => shared(box, other) > 0) || dots.some((dot, place) => place !== own && shared(box, dot) > 0);  // two names that touch are read as one
      const cost = never ? Infinity : hidden;
      if (!best || cost < best.hidden - 1) best = { side, box, hidden: cost };
    }
    if (best.hidden > MUCH * best.box[2] * best.box[3]) return null;
    boxes.push(best.box);
    named.push(best.box);
    return best.side;
  });
}

function alongLine([[x, y], [u, v]], length) {  // boxes of a name of so many pixels that stands above the start of a line
  const whole = Math.hypot(u - x, v - y) || 1, [stepX, stepY] = [(u - x) / whole, (v - y) / whole];
  return Array.from({ length: Math.ceil(length / 10) }, (_, place) => [x + stepX * (10 * place + 5) - 6 + 9 * stepY, y + stepY * (10 * place + 5) - 6 - 9 * stepX, 12, 12]);
}
