// Calls printed functions: {source, data, calls: [place, inputs]} from stdin, what they return to stdout.
"use strict";
const { source, data, calls } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const functions = new Function(`${source}; return library;`)()(data);
const plain = (value) => (Array.isArray(value) ? value.map(plain) : Number.isFinite(value) || typeof value === "boolean" ? Number(value) : String(value));
process.stdout.write(JSON.stringify(calls.map(([place, inputs]) => plain(functions[place](...inputs)))));
