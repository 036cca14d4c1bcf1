// Numbers as text, elements, and charts with a description and a table; knows nothing of what is drawn.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function make(kind, text, attributes = {}, ...children) {
  const node = document.createElement(kind);
  if (text !== undefined && text !== null && text !== "") node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function svg(kind, attributes, ...children) {  // an element of a picture
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function lettered(words, x, y, more) {  // words in a picture, their lines around y
  const lines = words.split("\n");
  return svg("text", { x, y, fill: colour("soft"), ...more }, ...(lines.length === 1 ? lines : lines.map((line, place) => svg("tspan", { x, dy: place ? 15 : -7.5 * (lines.length - 1) }, line))));
}

const GROUPED = new Intl.NumberFormat("en-US");  // toLocaleString makes one each time
const three = (value) => {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 99.95) return GROUPED.format(Math.round(value));
  return size < 0.001 ? value.toExponential(1) : Number(value.toPrecision(3)).toString();
};
const digits = (value) => (Math.abs(value) >= 0.001 && Math.abs(value) < 99.95 ? value.toPrecision(3) : three(value));  // zeros at the end included
const PREFIXES = [["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];
function prefixed(value, unit, told = three) {
  for (const [prefix, scale] of PREFIXES) if (Math.abs(value) >= 0.9995 * scale) return `${told(value / scale)}\u00a0${prefix}${unit}`;
  return `${told(value)}\u00a0${unit}`;
}
const plain = (value) => prefixed(value, "").replace("\u00a0", " ").trim();
const asBytes = (value) => prefixed(value, "B", digits);
const asTime = (seconds) => {
  const size = Math.abs(seconds);
  if (size === 0) return "0\u00a0s";
  if (size === Infinity) return "no end";
  return size >= 0.9995 ? `${digits(seconds)}\u00a0s` : size >= 0.9995e-3 ? `${digits(seconds * 1e3)}\u00a0ms` : `${digits(seconds * 1e6)}\u00a0µs`;
};
const asEnergy = (joules) => (Math.abs(joules) >= 0.9995 ? `${digits(joules)}\u00a0J` : `${digits(joules * 1e3)}\u00a0mJ`);
const onAxis = (label) => (value) => label(value).replace(/(\.\d*?)0+(?=\u00a0)/, "$1").replace(/\.(?=\u00a0)/, "");  // no zeros behind a point
const asDollars = (dollars) => `$${dollars >= 0.01 && dollars < 99.95 ? dollars.toFixed(2) : three(dollars)}`;
const asPrice = (dollars) => asDollars(dollars).replace(/\.00$/, "");  // on axes
const asShare = (share) => (share > 0 && share < 0.001 ? "<0.1\u00a0%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`);
const asPercent = (share) => `${Math.round(100 * share)} %`;
const decade = (value, unit) => {  // labels of a logarithmic axis: decades alone
  const power = Math.log10(value);
  return Math.abs(power - Math.round(power)) < 1e-6 ? prefixed(value, unit) : "";
};
const powerOfTwo = (value) => (Number.isInteger(Math.round(1e6 * Math.log2(value)) / 1e6) ? (value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : `${value}`) : "");

const COLOURS = new Map();  // of the theme at hand; asking the document for each is slow, and so are widths after a change
let narrow = null;
function colour(name) {
  if (!COLOURS.has(name)) COLOURS.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return COLOURS.get(name);
}
const small = () => (narrow ??= document.documentElement.clientWidth < 600);
function measureAgain() {
  COLOURS.clear();
  narrow = null;
  for (const chart of CHARTS.values()) chart.width = 0;
}
const onPaper = () => document.documentElement.classList.contains("paper");
const text = (size = 12.5) => ({ color: colour("soft"), opacity: 1, fontSize: size, fontFamily: "system-ui, sans-serif" });  // opaque, whatever it stands beside

function axis(more) {
  return {
    nameLocation: "middle", nameTextStyle: text(13), axisLabel: { ...text(), hideOverlap: true, ...more.label },
    axisLine: { lineStyle: { color: colour("line") } }, axisTick: { show: false }, minorTick: { show: false },
    splitLine: { show: true, lineStyle: { color: colour("grid") } }, ...more.axis,
  };
}
const along = (name, more = {}) => axis({ axis: { type: "value", name, nameGap: 30, ...more.axis }, label: more.label });
const logarithmic = (name, unit, more = {}) => axis({
  axis: { type: "log", name, nameGap: 30, ...more.axis }, label: { formatter: (value) => decade(value, unit), ...more.label },
});
// Doublings along an axis of log2: the library's own logarithmic axis of base 2 has too few ticks.
const doublings = (name, values) => axis({
  axis: { type: "value", name, nameGap: 30, min: Math.floor(Math.log2(values[0]) + 1e-9), max: Math.log2(values[values.length - 1]), interval: values.length > (small() ? 8 : 11) ? 2 : 1 },
  label: { formatter: (value) => powerOfTwo(2 ** value) },
});

const base = () => ({
  animation: false, textStyle: text(), backgroundColor: "transparent",
  grid: { left: small() ? 52 : 66, right: 18, top: 14, bottom: 46 },
  tooltip: {
    renderMode: "richText", confine: true, trigger: "item", backgroundColor: colour("card"), borderColor: colour("line"),
    textStyle: { ...text(13), color: colour("ink") }, axisPointer: { lineStyle: { color: colour("soft") } },
  },
});

const CHARTS = new Map();

// Charts that are out of sight are drawn after those in sight, one at a time, once nothing has changed for a while.
let resting = 0;
function drawRest() {
  clearTimeout(resting);
  resting = setTimeout(function next() {
    const left = [...CHARTS.values()].find((chart) => chart.stale && chart.option && chart.box.clientWidth > 0);
    if (!left) return;
    left.paint();
    resting = setTimeout(next);
  }, 250);
}

// A chart that is drawn at once when it is in sight, and whose table is written when it is opened.
class Chart {
  constructor(id, height, renderer = "svg") {  // without a height its option makes elements
    this.box = byId(id);
    if (!this.box) return;
    this.height = height;
    this.renderer = renderer;
    this.box.setAttribute("role", this.box.className === "chart" ? "img" : "group");
    this.box.setAttribute("aria-label", "A chart that is being worked out");
    this.data = make("details", "", {}, make("summary", "Numbers of this chart"));
    this.box.after(this.data);
    this.data.addEventListener("toggle", () => this.tabulate());
    this.seen = !("IntersectionObserver" in window);
    new IntersectionObserver((entries) => {
      this.seen = entries[entries.length - 1].isIntersecting;
      if (this.seen && this.stale) this.paint();
    }, { rootMargin: "0px" }).observe(this.box);
    CHARTS.set(id, this);
  }

  show(said, option, rows) {  // option and rows are functions: neither is needed until someone looks
    if (!this.box) return;
    Object.assign(this, { option, rows, stale: true });
    this.box.setAttribute("aria-label", said);
    this.data.firstChild.setAttribute("aria-label", `Numbers of this chart: ${said}`);
    if (this.seen || onPaper()) this.paint();
    else drawRest();
    this.tabulate();
  }

  get wide() { return (this.width ||= this.box.clientWidth); }

  paint() {
    if (!this.option) return;
    this.stale = false;
    if (!this.height) return void this.box.replaceChildren(...this.option(this.wide));
    const tall = this.height();
    if (this.box.style.height !== `${tall}px`) this.box.style.height = `${tall}px`;
    if (!this.chart) {
      this.chart = echarts.init(this.box, null, { renderer: this.renderer });
      this.chart.on("click", ({ data }) => {
        if (!data?.part) return;
        pick(data.part.name);
        byId("picked").scrollIntoView({ block: "nearest" });
      });
    }
    if (this.chart.getWidth() !== this.wide || this.chart.getHeight() !== tall) this.chart.getZr().resize({ width: this.wide, height: tall });  // its own resize draws the old option once more
    this.chart.setOption({ ...base(), ...this.option() }, { notMerge: true });
  }

  tabulate() {
    this.data.querySelector(".wide")?.remove();
    if (!this.data.open || !this.rows) return;
    this.data.append(asTable(this.rows(), this.box.getAttribute("aria-label")));
  }
}

function asTable([head, ...rows], said = "Table") {
  const numeric = (value) => (typeof value === "number" ? { class: "n" } : {});
  const top = make("tr", "", {}, ...head.map((name) => make("th", name, { scope: "col" })));
  const lines = rows.map((row) => make("tr", "", {}, ...row.map((value) => make("td", typeof value === "number" ? three(value) : value, numeric(value)))));
  const body = make("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": said });
  body.append(make("table", "", {}, make("thead", "", {}, top), make("tbody", "", {}, ...lines)));
  return body;
}

function redraw() {
  measureAgain();
  for (const chart of CHARTS.values()) if (chart.option) chart.seen ? chart.paint() : (chart.stale = true);
  drawRest();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resizing = 0;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 80); });
addEventListener("beforeprint", () => {  // on paper everything is drawn, light, at the width of the paper
  document.documentElement.classList.add("paper");
  measureAgain();
  for (const chart of CHARTS.values()) if (chart.option) chart.paint();
});
addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); redraw(); });
