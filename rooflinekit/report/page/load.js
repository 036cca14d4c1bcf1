// Unpacks what the page holds packed (its data, the sections below the charts, its scripts) and starts the scripts.
"use strict";
{
  const unpacked = (packed) => new Response(new Blob([Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const [data, app, below] = ["data", "app", "below"].map((id) => document.getElementById(id));
  Promise.all([data, app, below].map(unpacked)).then(([numbers, scripts, sections]) => {
    data.textContent = numbers;
    below.replaceWith(...new DOMParser().parseFromString(sections, "text/html").body.childNodes);
    app.remove();
    document.body.append(Object.assign(document.createElement("script"), { textContent: scripts }));
  });
}
