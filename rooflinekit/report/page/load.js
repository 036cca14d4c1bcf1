// Unpacks the scripts of the page and starts them.
"use strict";
{
  const packed = document.getElementById("app"), bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text().then((text) => {
    packed.remove();
    document.body.append(Object.assign(document.createElement("script"), { textContent: text }));
  });
}
