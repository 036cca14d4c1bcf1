// One slider, one chart, one sentence for each lesson; the numbers stand in lessons.js.
"use strict";
function lesson(box) {
  const { slider, unit, parts, stops, follows, sums = true } = LESSONS[box.dataset.lesson], dark = () => getComputedStyle(document.body).colorScheme.includes("dark");
  const part = (kind, text = "", attributes = {}) => Object.entries(attributes).reduce((node, [name, value]) => (node.setAttribute(name, value), node), Object.assign(document.createElement(kind), { textContent: text }));
  const range = part("input", "", { type: "range", min: 0, max: stops.length - 1, value: Math.floor(stops.length / 2), id: `slide-${box.dataset.lesson}` });
  const label = part("label", `${slider}: `, { for: range.id }), at = part("output"), chart = part("div", "", { class: "bars", role: "img" }), said = part("p", "", { "aria-live": "polite" }), key = part("p", "", { class: "key" });
  const longest = (shown) => Math.max(...shown.flatMap(({ bars }) => Object.values(bars).map((values) => values.reduce((sum, value) => sum + value, 0))));
  const colour = (name) => LESSON_COLOURS[name][dark() ? 1 : 0];
  function draw() {
    const stop = stops[range.value], whole = longest(follows ? [stop] : stops);
    at.textContent = stop.at;
    range.setAttribute("aria-valuetext", stop.at);
    said.textContent = stop.said;
    chart.setAttribute("aria-label", stop.said);
    chart.replaceChildren(...Object.entries(stop.bars).map(([name, values]) => {
      const row = part("div"), bar = part("span", "", { class: "bar" }), sum = values.reduce((all, value) => all + value, 0);
      bar.append(...values.map((value, place) => part("i", "", { style: `width: ${100 * value / whole}%; background: ${colour(parts[place][1])}`, title: `${parts[place][0]}: ${value.toLocaleString("en-US")} ${unit}` })));
      row.append(part("b", name), bar, part("em", sums ? `${Number(sum.toPrecision(3)).toLocaleString("en-US")} ${unit}` : ""));
      return row;
    }));
    key.replaceChildren(...parts.filter(([name], place) => parts.length > 1 && parts.findIndex(([other]) => other === name) === place && stops.some(({ bars }) => Object.values(bars).some((values) => values[place] > 0))).map(([name, tint]) => { const entry = part("span", name); entry.prepend(part("i", "", { style: `background: ${colour(tint)}` })); return entry; }));
  }
  range.addEventListener("input", draw);
  new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  label.append(at);
  box.append(label, range, key, chart, said);
  draw();
}
for (const box of document.querySelectorAll("[data-lesson]")) lesson(box);
