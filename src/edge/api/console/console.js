"use strict";
// Shows times in the reader's zone, and in UTC to whoever points at one.
const zone = document.getElementById("zone");
// The clock of the server counts, and not that of this device.
const ahead = zone ? Number(zone.dataset.now) - Date.now() : 0;
const two = (number) => String(number).padStart(2, "0");
const dayOf = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
const clockOf = (at) => at.toTimeString().slice(0, 8);
const secondOf = (at) => `${dayOf(at)} ${clockOf(at)}`;
const utcOf = (at) => at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
const relative = new Intl.RelativeTimeFormat("en");
function relativeOf(at) {
  const seconds = (at - Date.now() - ahead) / 1000;
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
  const [unit, length] = units.find(([, length]) => Math.abs(seconds) >= length) ?? units[3];
  return Math.abs(seconds) < 5 ? "just now" : relative.format(Math.trunc(seconds / length), unit);
}
function showTime(time) {
  const at = new Date(time.dateTime);
  if (!Number.isFinite(at.getTime())) return;
  time.textContent = time.hasAttribute("data-ago") ? relativeOf(at) : secondOf(at);
  time.title = `${utcOf(at)}, ${relativeOf(at)}`;
}
function showTimes(root) {
  root.querySelectorAll("time[datetime]").forEach(showTime);
  root.querySelectorAll("g.when").forEach(drawTimes);
}
setInterval(() => document.querySelectorAll("time[data-ago]").forEach(showTime), 30000);

// Puts the lines of an axis at times that are round in the reader's zone.
function drawn(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}
const DAY = 86400000;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
function drawTimes(axis) {
  const [from, to, step] = ["from", "to", "step"].map((name) => Number(axis.dataset[name]));
  const [left, right, top, bottom] = axis.dataset.area.split(" ").map(Number);
  const begin = new Date(from);
  // From the midnight before; of weeks, from the Monday before.
  const back = step >= 7 * DAY ? (begin.getDay() + 6) % 7 : 0;
  const days = Math.max(1, Math.round(step / DAY));
  const midnight = (day) => new Date(begin.getFullYear(), begin.getMonth(), begin.getDate() - back + day);
  const ticks = [];
  for (let number = 0; number < 40 && ticks.length < 9; number++) {
    const at = step < DAY ? new Date(midnight(0).getTime() + Math.ceil((from - midnight(0)) / step + number) * step) : midnight(number * days);
    if (at > to) break;
    if (at >= from) ticks.push(at);
  }
  axis.replaceChildren(...ticks.flatMap((at) => {
    const x = left + ((right - left) * (at - from)) / Math.max(1, to - from);
    const isDay = step >= DAY || (at.getHours() === 0 && at.getMinutes() === 0);
    const text = isDay ? `${at.getDate()} ${MONTHS[at.getMonth()]}` : clockOf(at).slice(0, 5);
    const place = Math.min(Math.max(x, left + 12), right - 14).toFixed(1);
    return [
      drawn("line", { class: "grid", x1: x.toFixed(1), x2: x.toFixed(1), y1: top, y2: bottom }),
      drawn("text", { class: "tick middle", x: place, y: bottom + 14 }, text),
    ];
  }));
}

// Shows the values of a plot at a moment: where the mouse is, or where the arrow keys lead to.
function short(value) {
  const text = value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : value >= 0.1 ? 2 : value >= 0.01 ? 3 : 4);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
function scaled(value, scales) {
  const [unit, size] = scales.find(([, size]) => value >= size) ?? scales[scales.length - 1];
  return `${short(value / size)} ${unit}`;
}
const UNITS = {
  number: (value) => (value >= 1e6 ? `${short(value / 1e6)} M` : value >= 1e3 ? Math.round(value).toLocaleString("en") : short(value)),
  percent: (value) => `${short(value)} %`,
  seconds: (value) => (value === 0 ? "0 s" : scaled(value, [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])),
  bytes: (value) => scaled(value, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]),
};
function readPlot(canvas) {
  const { points: given, unit, names } = canvas.dataset;
  const [from, to, highest] = ["from", "to", "top"].map((name) => Number(canvas.dataset[name]));
  const [left, right, top, bottom] = canvas.dataset.area.split(" ").map(Number);
  const points = given.split(";").filter(Boolean).map((point) => {
    const [at, ...values] = point.split(",");
    return { at: from + Number(at) * 1000, values: values.map((value) => (value === "" ? null : Number(value))) };
  });
  const svg = canvas.querySelector("svg");
  const reading = canvas.parentElement.querySelector(".reading");
  const here = canvas.parentElement.querySelector(".here");
  const marks = [...canvas.querySelectorAll(".mark")];
  const idle = reading.textContent;
  const cursor = svg.appendChild(drawn("g", { class: "cursor" }));
  const near = (to - from) / 80;
  let chosen = -1;
  function nearest(at) {
    const distance = (index) => Math.abs(points[index].at - at);
    return points.reduce((best, _, index) => (best < 0 || distance(index) < distance(best) ? index : best), -1);
  }
  function choose(index) {
    if (points.length === 0) return;
    chosen = Math.min(Math.max(index, 0), points.length - 1);
    const { at, values } = points[chosen];
    const x = (left + ((right - left) * (at - from)) / Math.max(1, to - from)).toFixed(1);
    const dots = values.map((value, line) => {
      if (value === null) return null;
      return drawn("circle", { class: `s${line}`, cx: x, cy: (bottom - ((bottom - top) * value) / highest).toFixed(1), r: 3.5 });
    });
    cursor.replaceChildren(drawn("line", { x1: x, x2: x, y1: top, y2: bottom }), ...dots.filter(Boolean));
    const named = names ? names.split("|") : [""];
    const said = values.map((value, line) => `${named[line]} ${value === null ? "–" : UNITS[unit](value)}`.trim());
    const mark = marks.find((mark) => Math.abs(Number(mark.dataset.ms) - at) < near);
    const moment = new Date(at);
    const time = `${moment.getDate()} ${MONTHS[moment.getMonth()]} ${clockOf(moment)}`;
    reading.textContent = [time, said.join(", "), mark?.dataset.text].filter(Boolean).join(" · ");
    reading.title = utcOf(moment);
    here.href = mark ? mark.getAttribute("href") : `/_logcabin/console/log?at=${encodeURIComponent(moment.toISOString())}`;
    here.hidden = false;
  }
  function leave() {
    chosen = -1;
    cursor.replaceChildren();
    reading.textContent = idle;
    reading.removeAttribute("title");
    here.hidden = true;
  }
  function pointed(event) {
    const box = svg.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width - left) / (right - left);
    choose(nearest(from + part * (to - from)));
  }
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "plot");
  canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && pointed(event));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && document.activeElement !== canvas && leave());
  canvas.addEventListener("click", (event) => {
    if (event.target.closest("a")) return;
    pointed(event);
    // A finger has pointed nowhere before: it finds the link below the plot.
    if (event.pointerType === "mouse" && !here.hidden) location.href = here.href;
  });
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && choose(chosen < 0 ? points.length - 1 : chosen));
  canvas.addEventListener("blur", (event) => event.relatedTarget !== here && leave());
  here.addEventListener("blur", leave);
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const from = chosen < 0 ? points.length : chosen;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, PageUp: from - 10, PageDown: from + 10, Home: 0, End: points.length - 1 }[event.key];
    if (to !== undefined) choose(to);
    else if (event.key === "Escape") leave();
    else if (event.key === "Enter" && !here.hidden) location.href = here.href;
    else return;
    event.preventDefault();
  });
}
function prepare(root) {
  showTimes(root);
  root.querySelectorAll(".canvas").forEach(readPlot);
}
prepare(document);
if (zone) {
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (here !== "UTC") zone.textContent = `Times are in ${here}; point at one to see it in UTC.`;
}

// Refreshes the plots, unless somebody reads one.
const plots = document.getElementById("plots");
if (plots) {
  setInterval(async () => {
    const isRead = () => document.hidden || plots.querySelector(".here:not([hidden]), details[open], :focus");
    if (isRead()) return;
    try {
      const answer = await fetch(plots.dataset.from, { redirect: "manual" });
      if (answer.type === "opaqueredirect") return location.reload();
      const drawing = answer.ok && (await answer.text());
      if (!drawing || isRead()) return;
      plots.innerHTML = drawing;
      prepare(plots);
    } catch (error) {
      // The server is away for a moment: the page stays as it is.
    }
  }, Math.min(Number(plots.dataset.every), 300000));
}

// Shows new records as they are written, above those that the page has.
const follow = document.getElementById("follow");
if (follow) {
  const rows = document.getElementById("records");
  const said = document.getElementById("said");
  const MOST = 200;
  let source = null;
  function cell(text, label, className) {
    const cell = document.createElement("td");
    cell.dataset.label = label;
    if (className) cell.className = className;
    const inner = document.createElement("bdi");
    inner.textContent = text;
    cell.append(inner);
    return cell;
  }
  function add(record) {
    const row = document.createElement("tr");
    const first = cell("", "Record");
    const link = document.createElement("a");
    link.href = "/_logcabin/console/log/" + record.offset;
    link.textContent = record.offset;
    first.replaceChildren(link);
    const time = cell("", "Time");
    const written = document.createElement("time");
    written.dateTime = record.time;
    showTime(written);
    time.replaceChildren(written);
    row.append(
      first,
      time,
      cell(record.kind, "Kind"),
      cell(record.who, "Who"),
      cell(record.text, "What", "what"),
    );
    rows.prepend(row);
    while (rows.children.length > MOST) rows.lastElementChild.remove();
  }
  function stop(text) {
    if (source) source.close();
    source = null;
    follow.textContent = "Follow";
    follow.setAttribute("aria-pressed", "false");
    said.textContent = text;
  }
  follow.hidden = false;
  follow.addEventListener("click", () => {
    if (source) return stop("New records are not shown.");
    source = new EventSource(follow.dataset.from);
    follow.textContent = "Stop";
    follow.setAttribute("aria-pressed", "true");
    said.textContent = "New records appear at the top.";
    source.onmessage = (event) => add(JSON.parse(event.data));
    source.addEventListener("end", (event) => {
      if (JSON.parse(event.data).end === "refused") stop("You are logged out.");
    });
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) stop("The server does not answer.");
    };
  });
}

// Shows another moment while the slider moves.
const travel = document.querySelector("form[data-live]");
if (travel) {
  const slider = travel.querySelector("input[type=range]");
  let wanted = 0;
  let shown = 0;
  let busy = false;
  async function show() {
    if (busy || shown === wanted) return;
    busy = true;
    const number = wanted;
    const given = [...new FormData(travel)].filter(([, value]) => value !== "");
    const query = "?" + new URLSearchParams(given);
    try {
      const answer = await fetch(location.pathname + query, { redirect: "manual" });
      if (answer.type === "opaqueredirect") return location.reload();
      // In a template, the page's style is not looked at.
      const page = document.createElement("template");
      page.innerHTML = await answer.text();
      const view = page.content.getElementById(travel.dataset.live);
      if (view) document.getElementById(travel.dataset.live).replaceChildren(...view.childNodes);
      if (view) showTimes(document.getElementById(travel.dataset.live));
      if (view) history.replaceState(null, "", query);
    } catch (error) {
      // The server is away for a moment: the page stays as it is.
    } finally {
      shown = number;
      busy = false;
    }
    show();
  }
  slider.addEventListener("input", () => {
    travel.elements.time.value = "";
    wanted++;
    show();
  });
}

// Says how many files are ticked, and ticks all of them.
const chosen = document.querySelector("[data-chosen]");
if (chosen) {
  const boxes = [...chosen.closest("form").querySelectorAll("input[name=of]")];
  const all = document.createElement("button");
  all.type = "button";
  all.className = "second";
  chosen.setAttribute("role", "status");
  function count() {
    const ticked = boxes.filter((box) => box.checked).length;
    chosen.textContent = ticked + " of " + boxes.length + " ticked:";
    all.textContent = ticked === boxes.length ? "Tick none" : "Tick all";
  }
  all.addEventListener("click", () => {
    const tick = boxes.some((box) => !box.checked);
    for (const box of boxes) box.checked = tick;
    count();
  });
  for (const box of boxes) box.addEventListener("change", count);
  chosen.after(all);
  count();
}
// The keyboard of the reports' inbox: through the lines, and the buttons of the report.
function keyboard(help) {
  const SETTING = "logcabin-reports-keys";
  const inbox = document.getElementById("inbox");
  const box = help.querySelector("input");
  const lines = [...inbox.querySelectorAll("ol.lines a")];
  const buttons = [...inbox.querySelectorAll("button[data-key]")];
  function set(isOn) {
    box.checked = isOn;
    for (const button of buttons) {
      button.querySelector("kbd").hidden = !isOn;
      if (isOn) button.setAttribute("aria-keyshortcuts", button.dataset.key);
      else button.removeAttribute("aria-keyshortcuts");
    }
  }
  function kept() {
    try {
      return localStorage.getItem(SETTING) !== "off";
    } catch (error) {
      return true;
    }
  }
  function go(by) {
    const from = document.activeElement.closest?.("ol.lines li")?.querySelector("a");
    const now = lines.indexOf(from ?? inbox.querySelector("ol.lines a[aria-current]"));
    const to = now < 0 ? 0 : Math.min(Math.max(now + by, 0), lines.length - 1);
    lines[to]?.focus();
  }
  function tick() {
    document.activeElement.closest?.("ol.lines li")?.querySelector("input").click();
  }
  const MOVES = { j: 1, k: -1 };
  const ARROWS = { ArrowDown: 1, ArrowUp: -1 };
  help.hidden = false;
  set(kept());
  box.addEventListener("change", () => {
    set(box.checked);
    try {
      localStorage.setItem(SETTING, box.checked ? "on" : "off");
    } catch (error) {
      // It holds for this page, then.
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || event.repeat) return;
    const at = document.activeElement;
    const isField = at.matches("select, textarea, [contenteditable], input:not([type=checkbox])");
    if (!box.checked || isField) return;
    const button = buttons.find((button) => button.dataset.key === event.key);
    if (event.key in MOVES) go(MOVES[event.key]);
    else if (event.key in ARROWS && at.closest("ol.lines")) go(ARROWS[event.key]);
    else if (event.key === "x" && at.closest("ol.lines")) tick();
    else if (event.key === "?") {
      help.open = true;
      help.querySelector("summary").focus();
    } else if (button) button.click();
    else return;
    event.preventDefault();
  });
}
const help = document.getElementById("keys");
if (help) keyboard(help);
