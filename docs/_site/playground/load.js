// Unpacks the scripts of the page and starts them, while the numbers of the first model are on their way.
"use strict";
async function unpacked(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  const bytes = await answer.arrayBuffer(), [first, second] = new Uint8Array(bytes);
  if (first !== 0x1f || second !== 0x8b) return new TextDecoder().decode(bytes);  // the server has unpacked it
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const told = document.getElementById("data"), { files, asked } = JSON.parse(told.textContent), wanted = new URLSearchParams(location.hash.slice(1)).get("m");
const EARLY = { model: Object.hasOwn(files, wanted) ? wanted : asked.model };  // the first model is fetched beside the scripts
const fileOf = (model, engine) => `models/${model}.${engine}.${files[model]}.gz`;
const fill = (more) => { told.textContent = JSON.stringify({ files, asked, ...more }); };  // the rest comes packed, with the scripts
EARLY.text = unpacked(fileOf(EARLY.model, asked.engine));
unpacked(document.currentScript.dataset.app).then((text) => {
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  document.body.append(script);
});
