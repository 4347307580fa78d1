"use strict";
// Refreshes the plots.
const plots = document.getElementById("plots");
if (plots) {
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(plots.dataset.from, { redirect: "manual" });
      if (answer.type === "opaqueredirect") location.reload();
      else if (answer.ok) plots.innerHTML = await answer.text();
    } catch (error) {
      // The server is away for a moment: the page stays as it is.
    }
  }, 10000);
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
    row.append(
      first,
      cell(record.time.replace("T", " ").replace(/\.\d+/, ""), "Time"),
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
