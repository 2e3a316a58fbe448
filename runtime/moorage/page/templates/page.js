"use strict";
const pause = document.getElementById("pause"), heard = document.getElementById("heard");
let paused = false;
// An Ingress may have put the page below a path, with or without a slash at its end.
const BASE = location.pathname.replace(/\/?$/, "/");
pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
});
// What a reader has opened, scrolled to and stands on stays so when a part is drawn anew.
function replace(part, other) {
  const opened = [...part.querySelectorAll("details[open]")].map(one => one.id);
  const scrolled = [...part.querySelectorAll(".wide")].map(one => [one.id, one.scrollLeft, one.scrollTop]);
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.innerHTML = other.innerHTML;
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  for (const [id, left, top] of scrolled) document.getElementById(id)?.scrollTo(left, top);
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}
function closed(part) {
  return part.innerHTML.replaceAll(' open=""', "");
}
async function refresh() {
  if (!paused && !document.hidden && String(getSelection()) === "") {
    try {
      const answer = await fetch(BASE, {signal: AbortSignal.timeout(60000)});
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();  // its style has a nonce of its own: not that of this page
      const fresh = new DOMParser().parseFromString(text.slice(text.indexOf("<body>")), "text/html");
      for (const part of document.querySelectorAll("[data-part]")) {
        const other = fresh.getElementById(part.id);
        if (other && closed(part) !== other.innerHTML) replace(part, other);
      }
      if (heard.textContent !== "") heard.textContent = "";
    } catch (error) {
      const lost = "No answer: what served this page may have ended. What is shown is the last it said.";
      if (heard.textContent !== lost) heard.textContent = lost;
    }
  }
  setTimeout(refresh, {{ refresh_seconds * 1000 }});
}
setTimeout(refresh, {{ refresh_seconds * 1000 }});

// Values of state are for who has the run's own address; on a cluster the browser has shown a token.
const given = new URLSearchParams(location.hash.slice(1)).get("values");
if (given) {
  sessionStorage.setItem("values", given);
  history.replaceState(null, "", BASE);
}
document.addEventListener("submit", async event => {
  if (event.target.id !== "look-up") return;
  event.preventDefault();
  const asked = new FormData(event.target), shown = document.getElementById("found");
  const query = new URLSearchParams({key: asked.get("key"), limit: "100"});
  if (asked.get("entry")) query.set("mapKey", asked.get("entry"));
  const token = sessionStorage.getItem("values");
  try {
    const answer = await fetch(BASE + "state/" + encodeURIComponent(asked.get("name")) + "?" + query, {
      headers: token ? {Authorization: "Bearer " + token} : {}, signal: AbortSignal.timeout(20000),
    });
    const body = await answer.json();
    shown.textContent = answer.ok ? JSON.stringify(body, null, 2) : body.error.message;
  } catch (error) {
    shown.textContent = "no answer: " + error.message;
  }
});
