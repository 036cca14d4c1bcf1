// What the theme leaves out for people who do not use a mouse or a screen: levels of headings, and boxes that scroll by keys.
"use strict";
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
for (const box of document.querySelectorAll("pre")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
