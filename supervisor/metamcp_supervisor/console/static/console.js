/* The console in the browser: login, one stream of news for all tabs, pages, logs, keyboard.
   Never: rights, and what a page shows; both come from the gateway. */

const TOKEN = "metamcp-session";
const HIDDEN_MS = 30_000;   // after so long in the background a tab stops following
const ASK_TABS_MS = 300;    // for an open tab to hand over its session
const AGAIN_MS = 2_000;     // until the next try after a lost stream
const NEWS_MS = 500;        // from news to the page that shows them, so that many are one
const NOTICE_MS = 5_000;    // that the answer to a change stays before news load the page again
const SILENT_MS = 5_000;    // without a beat the state is no longer called live
const TIMES_MS = 5_000;     // until a page that counts time is loaded again while it is looked at

const ENDED = "This session has ended.";

const tabs = new BroadcastChannel("metamcp-console");
const main = document.getElementById("main");
const said = document.getElementById("said");
let noticed = 0;            // when a change was answered
let fresh = 0;              // when the last beat came
let waiting = new Set();    // kinds of news that came while nothing could be shown
let timer = 0;
let loaded = 0;             // when the page was loaded last
let following = false;      // whether this tab follows the news, or waits for its turn
let reason = ENDED;         // why the form for a login is shown

const token = () => sessionStorage.getItem(TOKEN);
const say = (text) => { said.textContent = text; };
const inField = () => document.activeElement?.matches("input, textarea, select");

/* --- session ---------------------------------------------------------------------------------- */

async function login() {
  const link = new URLSearchParams(location.hash.slice(1)).get("k");
  if (link) {
    history.replaceState(null, "", location.pathname + location.search);
    if (!await authenticate({ link })) return false;
  }
  if (!token()) await askTabs();
  return token() ? true : closed("Log in to go on.");
}

/* Send a link or an API key, which travels in the body and is kept nowhere. */
async function authenticate(secret) {
  const answer = await fetch("/login", { method: "POST", body: JSON.stringify(secret) }).catch(() => null);
  if (!answer?.ok) return closed(await answer?.text() ?? "The gateway does not answer.");
  sessionStorage.setItem(TOKEN, (await answer.json()).token);
  return true;
}

function askTabs() {
  return new Promise((done) => {
    const answered = (event) => {
      if (event.data.session) { sessionStorage.setItem(TOKEN, event.data.session); end(); }
    };
    const end = () => { tabs.removeEventListener("message", answered); done(); };
    tabs.addEventListener("message", answered);
    tabs.postMessage({ want: "session" });
    setTimeout(end, ASK_TABS_MS);
  });
}

/* Show the form for a login in place of everything, but for a new key, which is shown nowhere else. */
function closed(sentence) {
  reason = sentence;
  sessionStorage.removeItem(TOKEN);
  document.getElementById("frame").replaceChildren();
  const kept = main.querySelectorAll("[data-keep]");
  main.replaceChildren(document.getElementById("login").content.cloneNode(true), ...kept);
  const form = main.querySelector("form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const key = form.elements.key.value.trim();
    form.reset();
    if (await authenticate({ key })) await enter();
  });
  form.elements.key.focus();
  main.querySelector("[role=alert]").textContent = sentence;
  return false;
}

/* The gateway ended the session. Somebody who logged out was told so already. */
const ended = () => token() ? closed(ENDED) : false;

async function logout() {
  const answer = await fetch("/logout", { method: "POST", headers: { Authorization: `Bearer ${token()}` } }).catch(() => null);
  if (answer?.ok || answer?.status === 401) closed("You are logged out.");
  else say("The gateway does not answer.");
}

async function enter() {
  if (!await frame()) return;
  follow();
  await load();
}

const get = (path) => fetch(path, { headers: { Authorization: `Bearer ${token()}` } });

/* --- pages ------------------------------------------------------------------------------------ */

const here = () => location.pathname + location.search;

/* Return the kinds of news that concern the page. */
const live = () => (document.getElementById("page")?.dataset.live || "").split(" ");

async function frame() {
  const answer = await get("/frame");
  if (answer.status === 401) return closed((await answer.text()).replace(/<[^>]*>/g, ""));
  document.getElementById("frame").innerHTML = await answer.text();
  return answer.ok;
}

/* Load the page of the address into <main>. Quietly: for news, and then without moving the focus. */
async function load(quietly = false) {
  const path = here();
  loaded = Date.now();
  main.setAttribute("aria-busy", "true");
  await htmx.ajax("GET", "/f" + path, { source: main, target: "#main", swap: quietly ? "innerMorph" : "innerHTML" });
  main.removeAttribute("aria-busy");
  if (!quietly && path === here()) {
    main.querySelector("h1")?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function go(path) {
  history.pushState(null, "", path);
  return load();
}

function settled() {
  // The answer to a request that was under way when the session ended.
  if (!token()) return document.getElementById("login-title") || closed(reason);
  const page = document.getElementById("page");
  const title = page?.dataset.title || main.querySelector("h1")?.textContent || "";
  document.title = title ? `${title} – MetaMCP` : "MetaMCP";
  for (const link of document.querySelectorAll("#rail a")) {
    const path = new URL(link.href).pathname;
    const open = location.pathname === path || location.pathname.startsWith(path + "/");
    if (open || (location.pathname === "/" && link === document.querySelector("#rail a")))
      link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const time of main.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const today = moment.toDateString() === new Date().toDateString();
    // "sv" writes 2026-01-31 14:05:09, in every browser and whatever its language is.
    time.textContent = today ? moment.toLocaleTimeString("sv") : moment.toLocaleString("sv");
    time.title = time.dateTime;
  }
  for (const log of main.querySelectorAll("[data-log]")) logShown(log);
}

document.addEventListener("htmx:config:request", (event) => {
  event.detail.ctx.request.headers.Authorization = `Bearer ${token()}`;
});
document.addEventListener("htmx:before:response", (event) => {
  const { response, request } = event.detail.ctx;
  if (response.status !== 401) return;
  event.preventDefault();
  ended();
});
/* A page that was asked for before a change was answered does not replace the answer. */
document.addEventListener("htmx:after:request", (event) => {
  const { request, swap } = event.detail.ctx;
  if (request.method === "POST") noticed = Date.now();
  else if (swap === "innerMorph" && noticed >= loaded) { event.preventDefault(); wake(live()); }
});
document.addEventListener("htmx:error", () => {
  main.removeAttribute("aria-busy");
  say("The gateway does not answer. The page is as it was.");
});
document.addEventListener("htmx:after:settle", settled);
document.addEventListener("htmx:finally:request", (event) => {
  settled();
  if (event.detail.ctx.request.method !== "POST") return;
  main.querySelector(".notice")?.scrollIntoView({ block: "nearest" });
});
addEventListener("popstate", () => load());

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/']");
  if (link && !link.hasAttribute("download") && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    go(link.getAttribute("href"));
    return;
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) navigator.clipboard.writeText(copy.closest("figure").querySelector("code").textContent).then(
    () => say("Copied."), () => say("The browser does not let this page copy."));
  const save = event.target.closest("[data-download]");
  if (save) download(save.dataset.download, save.dataset.name);
  const tick = event.target.closest("[data-tick-all]");
  if (tick) for (const box of main.querySelectorAll(`input[type=checkbox][name="${tick.dataset.tickAll}"]`)) box.checked = tick.checked;
  if (event.target.closest("#keys")) help();
  if (event.target.closest("#logout")) logout();
});

/* A form that filters is an address. */
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "get" || !form.getAttribute("action")?.startsWith("/")) return;
  event.preventDefault();
  const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  go(form.getAttribute("action") + (asked.size ? `?${asked}` : ""));
});
document.addEventListener("change", (event) => {
  if (event.target.matches("form[role=search] select")) event.target.form.requestSubmit();
});

async function download(path, name) {
  const answer = await get(path);
  if (!answer.ok) return say(await answer.text());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
  say(`Saved as ${name}.`);
}

/* --- logs: at the end they follow; scrolled up they stay, and a button counts what is new --------- */

const logs = new WeakMap();
htmx.config.morphIgnore.push("data-stays");
htmx.config.morphSkipChildren = "[data-stays]";

function logShown(log) {
  const bottom = () => log.scrollHeight - log.scrollTop - log.clientHeight < 8;
  const button = log.parentElement.querySelector("[data-newest]");
  const seqs = JSON.parse(log.parentElement.querySelector("data").value);
  let at = logs.get(log);
  if (!at) {
    at = { read: -1 };
    logs.set(log, at);
    log.addEventListener("scroll", () => {
      if (bottom() === !("stays" in log.dataset)) return;
      if (bottom()) { delete log.dataset.stays; load(true); }
      else log.dataset.stays = "";
    });
    button.addEventListener("click", () => {
      delete log.dataset.stays;
      log.focus();
      load(true);
    });
  }
  if ("stays" in log.dataset) {
    const count = seqs.filter((seq) => seq > at.read).length;
    button.hidden = count === 0;
    button.textContent = `${count} new ↓`;
  } else {
    at.read = seqs.at(-1) ?? -1;
    button.hidden = true;
    log.scrollTop = log.scrollHeight;
  }
}

/* The question before a change of ticked rows names them. */
document.addEventListener("htmx:confirm", (event) => {
  const { ctx } = event.detail;
  if (!ctx.confirm?.includes("{ticked}")) return;
  const ticked = [...main.querySelectorAll("input[name=names]:checked")].map((box) => box.value);
  if (!ticked.length) { event.preventDefault(); event.detail.dropRequest(); return say("Tick a server first."); }
  ctx.confirm = ctx.confirm.replace("{order}", ctx.request.submitter?.textContent ?? "").replace("{ticked}", ticked.join(", "));
});

/* --- news: the tab that is looked at and holds the lock follows, and tells the others ------------- */

tabs.addEventListener("message", (event) => {
  const { want, news } = event.data;
  if (want === "session" && token()) tabs.postMessage({ session: token() });
  if (news) heard(news);
});

function heard({ kinds, waiting: count }) {
  fresh = Date.now();
  pulse();
  wake(kinds);
  const waits = document.getElementById("waits");
  if (waits && waits.textContent !== String(count || "")) waits.textContent = count || "";
}

function wake(kinds) {
  for (const kind of kinds) waiting.add(kind);
  if (!timer) timer = setTimeout(show, NEWS_MS);
}

async function show() {
  timer = 0;
  if (!token()) return;
  const busy = document.hidden || main.getAttribute("aria-busy") || inField() || getSelection()?.type === "Range"
    || Date.now() - noticed < NOTICE_MS || main.querySelector("[data-keep], input[name=names]:checked") || document.querySelector("dialog[open]");
  if (busy) { if (!document.hidden) timer = setTimeout(show, 1000); return; }
  const logsOpen = [...main.querySelectorAll("[data-log]")].map((log) => log.id.replace(/^log-/, "logs:"));
  const concerns = [...live(), ...logsOpen].some((kind) => waiting.has(kind));
  waiting.clear();
  if (concerns) await load(true);
}

function pulse() {
  const shown = document.getElementById("pulse");
  if (!shown) return;
  const silent = Date.now() - fresh;
  const [word, tone] = silent < SILENT_MS ? ["live", "ok"] : fresh && silent < 60_000 ? [`${Math.round(silent / 1000)} s ago`, "warn"] : ["lost", "bad"];
  if (shown.textContent !== word) { shown.textContent = word; shown.className = `state ${tone}`; }
  const counts = live().includes("times");
  if (counts && word === "live" && !document.hidden && Date.now() - loaded >= TIMES_MS) wake(["times"]);
}

async function read(signal) {
  const answer = await fetch("/events", { headers: { Authorization: `Bearer ${token()}` }, signal });
  if (answer.status === 401) return ended();
  if (!answer.ok) throw new Error(String(answer.status));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return true;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("event: ended")) return ended();
      const news = JSON.parse(event.slice(event.indexOf("data: ") + 6));
      tabs.postMessage({ news });
      heard(news);
    }
  }
}

async function follow() {
  if (following) return;
  following = true;
  while (token()) {
    const away = new AbortController();
    let hidden = 0;
    const seen = () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(() => away.abort(), HIDDEN_MS);
    };
    document.addEventListener("visibilitychange", seen);
    seen();
    try {
      await navigator.locks.request("metamcp-news", { signal: away.signal }, () => token() && read(away.signal));
    } catch { /* lost, or hidden: tried again below */ }
    clearTimeout(hidden);
    document.removeEventListener("visibilitychange", seen);
    if (document.hidden) await new Promise((back) => document.addEventListener("visibilitychange", back, { once: true }));
    else await new Promise((later) => setTimeout(later, AGAIN_MS));
  }
  following = false;
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) show(); });
setInterval(pulse, 1000);

/* --- keyboard --------------------------------------------------------------------------------- */

const KEYS = [["/", "go to the filter"], ["g then a letter", "open a page by its first letter"], ["r", "load the page again"], ["?", "show these keys"], ["Esc", "leave a field, close this"]];
let prefix = false;

function help() {
  let dialog = document.querySelector("dialog");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.setAttribute("aria-label", "Keys");
    const list = document.createElement("dl");
    for (const [key, what] of KEYS) {
      const row = document.createElement("div"), name = document.createElement("dt"), text = document.createElement("dd");
      name.textContent = key; text.textContent = what;
      row.append(name, text); list.append(row);
    }
    const close = document.createElement("button");
    close.textContent = "Close";
    close.addEventListener("click", () => dialog.close());
    dialog.append(list, close);
    document.body.append(dialog);
  }
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && inField()) return document.activeElement.blur();
  if (inField() || event.ctrlKey || event.metaKey || event.altKey || !token()) return;
  const links = [...document.querySelectorAll("#rail a")];
  if (prefix) {
    prefix = false;
    const begin = links.filter((link) => link.textContent.toLowerCase().startsWith(event.key));
    const next = begin[(begin.findIndex((link) => link.ariaCurrent) + 1) % begin.length];
    if (next) { event.preventDefault(); go(next.getAttribute("href")); }
  } else if (event.key === "g") prefix = true;
  else if (event.key === "r") load(true);
  else if (event.key === "?") help();
  else if (event.key === "/") {
    const field = main.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  }
});

if (await login()) await enter();
