// An administrator uses the console in a browser, with the keyboard.
//
//     node console.mjs ADDRESS CHROMIUM USER PASSWORD ROOM ACCESS_TOKEN [DIRECTORY]
//
// With a directory, what each page looks like on three widths in both colour schemes is put into it. Judges for
// itself: ends with an error if something is not as it should be.

import assert from "node:assert/strict";
import { openBrowser, picture } from "./console_browser.mjs";
import { everyLook } from "./looks.mjs";

const [address, executablePath, user, password, room, token, directory] = process.argv.slice(2);

// A form that is not taken comes back with a status that the browser remarks on.
const { browser, page, complaints } = await openBrowser(executablePath, /status of 403/);

const look = (name) => everyLook(page, name, (size, scheme) => picture(page, directory, name, size, scheme));

// A page is in a group of the navigation.
const GROUPS = { timeline: "log", activity: "users", media: "rooms", tokens: "users", erasures: "reports", waiting: "reports", policies: "reports", act: "reports", proofs: "log" };
for (const name of ["work", "backups", "snapshots", "cluster"]) GROUPS[name] = "health";
async function visit(name) {
    for (const of of [GROUPS[name], name].filter(Boolean)) await submitted(() => page.click(`nav a[href$='/${of}']`));
}

const submitted = (act) => Promise.all([page.waitForNavigation(), act()]);

await page.goto(`${address}/_logcabin/console`);
assert.match(page.url(), /\/login$/);
await look("login");
await page.focus("#user");
await page.keyboard.type(user);
await page.keyboard.press("Tab");
await page.keyboard.type("not the password");
await submitted(() => page.keyboard.press("Enter"));
assert.match(await page.$eval("[role=alert]", (alert) => alert.textContent), /Wrong user name or password/);
await page.focus("#password");
await page.keyboard.type(password);
await submitted(() => page.keyboard.press("Enter"));
assert.equal(page.url(), `${address}/_logcabin/console`);
assert.equal(await page.evaluate(() => document.cookie), "", "scripts can read the cookie");

// Whether anything is wrong, and what there is to do.
assert.match(await page.title(), /^Home · .+/);
const sections = await page.$$eval("section", (all) => all.map((section) => section.textContent));
assert.match(sections[0], /^Is anything wrong\?.*Looked at (just now|.* ago)/s);
assert.match(sections[1], /^Is there work\?1 open report/);
const groups = await page.$$eval("header nav a", (links) => links.map((link) => link.textContent.trim()));
assert.deepEqual(groups, ["Home", "People", "Rooms", "Safety 1 open", "History", "System"]);

assert.equal(await page.$$eval("figure.plot", (all) => all.length), 12);
const plots = await page.$$eval(".canvas", (all) => all.map((canvas) => [canvas.ariaLabel, canvas.querySelectorAll("path.line").length]));
for (const [label, lines] of plots) assert.ok(lines > 0 && / now, .+ at most$/.test(label), `${label}: ${lines} lines`);
await look("now");
const before = await page.$eval("#plots", (plots) => plots.innerHTML);
await page.waitForFunction((before) => document.getElementById("plots").innerHTML !== before, {}, before);

// The values of a moment are shown to a mouse and to the keyboard, and lead to the log.
const READING = /^\d+ [A-Z][a-z]{2} \d\d:\d\d:\d\d · (half|–|\d)/;
const reading = () => page.$eval(".reading", (reading) => reading.textContent);
await page.setViewport({ width: 1400, height: 800 });
await page.hover(".canvas");
const hovered = await reading();
assert.match(hovered, READING);
assert.equal(await page.$$eval(".cursor line", (lines) => lines.length), 1);
await page.hover("h1");
assert.match(await reading(), /at most$/);
await page.focus(".canvas");
await page.keyboard.press("End");
const newest = await reading();
assert.match(newest, READING);
await page.keyboard.press("ArrowLeft");
assert.match(await reading(), READING);
assert.notEqual(await reading(), newest);
await picture(page, directory, "cursor", "desk", "dark");
await page.keyboard.press("Home");
assert.match(await reading(), READING);
await page.keyboard.press("Escape");
assert.match(await reading(), /at most$/);
await page.keyboard.press("End");
await submitted(() => page.keyboard.press("Enter"));
assert.match(page.url(), /\/log\?at=/);
assert.ok(await page.$$eval("#records tr", (rows) => rows.length) > 0);
await page.goBack();

// Each range is a link, and the part that is refreshed stays in it. What happened leads to the log.
for (const range of ["day", "week", "month"]) {
    await submitted(() => page.click(`nav[aria-label=Range] a[href$=${range}]`));
    assert.equal(await page.$eval("nav[aria-label=Range] [aria-current]", (link) => link.textContent), range);
    assert.match(await page.$eval("#plots", (plots) => plots.dataset.from), new RegExp(`range=${range}$`));
    assert.ok(await page.$$eval(".canvas:first-child a.mark, .canvas .mark", (marks) => marks.length) > 0);
    await look(`now-${range}`);
}
await page.focus(".happened a");
await submitted(() => page.keyboard.press("Enter"));
assert.match(page.url(), /\/log\?at=/);
assert.ok(await page.$$eval("#records tr", (rows) => rows.length) > 0);

// Times are those of the reader's zone, and in UTC for whoever points at one.
await page.emulateTimezone("Asia/Kolkata");
await page.reload();
const [shown, hint] = await page.$eval("#records time", (time) => [time.textContent, time.title]);
assert.equal(new Date(`${shown.replace(" ", "T")}+05:30`).getTime(), new Date(`${hint.slice(0, 19).replace(" ", "T")}Z`).getTime());
assert.match(hint, / UTC, (just now|.+ ago)$/);
assert.match(await page.$eval("#zone", (zone) => zone.textContent), /^Times are in Asia\/(Kolkata|Calcutta);/);
await page.emulateTimezone("UTC");

// Without scripts, the values are a table, and the ranges are links.
await page.setJavaScriptEnabled(false);
await page.goto(`${address}/_logcabin/console?range=day`);
const plain = await page.$eval("#zone", (zone) => zone.textContent);
assert.equal(plain, "Times are in UTC.");
await page.click(".plot summary");
assert.ok(await page.$$eval(".plot details[open] tbody tr", (rows) => rows.length) > 10);
await submitted(() => page.click("nav[aria-label=Range] a[href$=hour]"));
await page.setJavaScriptEnabled(true);
await page.goto(`${address}/_logcabin/console`);

await visit("log");
assert.ok(await page.$$eval("#records tr", (rows) => rows.length) > 10);
await look("log");
await page.click("#follow");
await page.waitForFunction(() => document.getElementById("said").textContent.includes("appear"));
// The page is told of what is written once it listens; until then the message is sent again.
const text = `<img src=x onerror=alert(1)> \u202egnp.exe`;
for (let number = 0; ; number++) {
    assert.ok(number < 100, "no new record appears");
    const path = `/_matrix/client/v3/rooms/${encodeURIComponent(room)}/send/m.room.message/live-${number}`;
    await fetch(address + path, {
        method: "PUT",
        headers: { authorization: `Bearer ${token}` },
        body: JSON.stringify({ msgtype: "m.text", body: text }),
    });
    const rows = await page.$$eval("#records tr", (rows) => rows.map((row) => row.textContent));
    if (rows[0].includes("onerror")) break;
    await new Promise((resolve) => setTimeout(resolve, 100));
}
assert.equal(await page.$$eval("#records img", (images) => images.length), 0);
await page.click("#follow");

await page.type("#kind", "user.register");
await submitted(() => page.keyboard.press("Enter"));
const kinds = await page.$$eval("#records td[data-label=Kind]", (cells) => cells.map((cell) => cell.textContent));
assert.ok(kinds.length > 0 && kinds.every((kind) => kind === "user.register"), kinds.join());
await submitted(() => page.click("#records a"));
assert.match(await page.$eval("h1", (h1) => h1.textContent), /^Record \d+$/);
assert.match(await page.$eval("pre", (pre) => pre.textContent), /"user_id"/);
await look("record");

// The time line leads to a part of itself, and in the end to the log.
await visit("timeline");
assert.ok(await page.$$eval("svg a", (bars) => bars.length) > 0);
await look("timeline");
for (let zoom = 0; page.url().includes("/timeline"); zoom++) {
    assert.ok(zoom < 20, "the time line does not end in the log");
    await page.$eval("figure svg a", (bar) => bar.focus());
    await submitted(() => page.keyboard.press("Enter"));
}
assert.ok(await page.$$eval("#records tr", (rows) => rows.length) > 0);

// The slider shows a room as it was, and the form does without a script.
await page.goto(`${address}/_logcabin/console/past?room=${encodeURIComponent(room)}`);
assert.match(await page.$eval("#view", (view) => view.textContent), /<b>Cabin<\/b>/);
assert.equal(await page.$$eval("#view b", (all) => all.length), 0);
await look("past");
const last = await page.$eval("#at", (slider) => Number(slider.max));
await page.focus("#at");
await page.keyboard.press("Home");
await page.waitForFunction(() => document.getElementById("view").textContent.includes("As of record 1,"));
assert.match(await page.$eval("#view", (view) => view.textContent), /did not exist yet/);
await page.keyboard.press("End");
await page.waitForFunction((last) => document.getElementById("view").textContent.includes(`As of record ${last},`), {}, last);
await page.type("#from", "1");
await submitted(() => page.keyboard.press("Enter"));
assert.match(await page.$eval("#view h2", (h2) => h2.textContent), /^What changed between/);
await submitted(() => page.click("#view a[href*='/why']"));
assert.ok(await page.$$eval("td[data-label=Record] a", (links) => links.length) > 0);
await look("why");

// What takes the disk, and when people write: drawings with their values as text.
await page.goto(`${address}/_logcabin/console/disk`);
await page.waitForFunction(async () => {
    if (!document.body.textContent.includes("Counted so far")) return true;
    document.body.innerHTML = new DOMParser().parseFromString(await (await fetch(location)).text(), "text/html").body.innerHTML;
    return false;
}, { polling: 200 });
assert.match(await page.$eval("main", (main) => main.textContent), /Full\s*(in about \d+ days|not (at this rate|in the next ten years))/);
assert.ok(await page.$$eval("figure svg a", (days) => days.length) >= 60);
assert.ok(await page.$$eval("svg.share rect", (bars) => bars.some((bar) => Number(bar.getAttribute("width")) === 100)));
assert.equal(await page.$$eval("main script, main img, main b", (all) => all.length), 0);
await look("disk");
await visit("activity");
const shades = await page.$$eval("rect.heat", (hours) => new Set(hours.map((hour) => hour.getAttribute("fill-opacity"))).size);
assert.ok(shades > 3, `${shades} shades`);
for (const label of await page.$$eval("main svg:not([aria-hidden]), .canvas", (all) => all.map((svg) => svg.ariaLabel))) assert.ok(label?.length > 10, label);
await look("activity");

// An event leads to what is about it, with the keyboard.
async function send(kind, transaction, content) {
    const path = `/_matrix/client/v3/rooms/${encodeURIComponent(room)}/send/${kind}/${transaction}`;
    const headers = { authorization: `Bearer ${token}` };
    return (await (await fetch(address + path, { method: "PUT", headers, body: JSON.stringify(content) })).json()).event_id;
}
const message = (body, relatesTo) => ({ msgtype: "m.text", body, "m.relates_to": relatesTo });
const root = await send("m.room.message", "root", message("Who has the key to the cabin?"));
await send("m.room.message", "reply", message(text, { "m.in_reply_to": { event_id: root } }));
let inThread;
for (const number of [1, 2, 3]) {
    const relatesTo = { rel_type: "m.thread", event_id: root };
    inThread = await send("m.room.message", `thread-${number}`, message(`It is under stone number ${number}.`, relatesTo));
    const reaction = { "m.relates_to": { rel_type: "m.annotation", event_id: inThread, key: "<b>+1</b>" } };
    await send("m.reaction", `reaction-${number}`, reaction);
}
await send("m.room.message", "edit", message("Who has the keys?", { rel_type: "m.replace", event_id: root }));
await fetch(`${address}/_matrix/client/v3/rooms/${encodeURIComponent(room)}/redact/${encodeURIComponent(inThread)}/gone`, {
    method: "PUT",
    headers: { authorization: `Bearer ${token}` },
    body: JSON.stringify({ reason: text }),
});
await page.goto(`${address}/_logcabin/console/relations?event=${encodeURIComponent(root)}`);
assert.equal(await page.$$eval("rect.event", (events) => events.length), 10);
assert.equal(await page.$$eval("main img, main b", (all) => all.length), 0);
await look("relations");
await page.$eval("a[href] rect.event:not(.focus)", (rect) => rect.parentElement.focus());
await submitted(() => page.keyboard.press("Enter"));
assert.equal(await page.$$eval("rect.event.focus", (events) => events.length), 1);

for (const name of ["users", "rooms", "media", "reports", "waiting", "policies", "tokens", "work", "backups", "snapshots", "cluster"]) {
    await visit(name);
    await look(name);
}

// A report leads to what can be done about it.
await visit("reports");
await submitted(() => page.click("ol.lines a"));
assert.match(await page.$eval(".reporters", (reporters) => reporters.textContent), /onerror=alert/);
await look("report");

// The search field leads to what is named, and lists what is called so.
async function find(wanted) {
    await page.$eval("header [type=search]", (field, wanted) => (field.value = wanted), wanted);
    await page.focus("header [type=search]");
    await submitted(() => page.keyboard.press("Enter"));
    return page.url().slice(address.length + "/_logcabin/console".length);
}
assert.equal(decodeURIComponent(await find(room)), `/rooms/${room}`);
assert.match(await find(root), /^\/log\/\d+$/);
assert.match(await page.$eval("h1", (h1) => h1.textContent), /^Record \d+$/);
assert.match(await page.$eval("nav[aria-label=Breadcrumb]", (crumbs) => crumbs.textContent), /^Log › Record \d+$/);
assert.equal(await find("3"), "/log/3");
const [, of] = room.split(/:(.*)/);
assert.equal(decodeURIComponent(await find(`@${user}:${of}`)), `/users/@${user}:${of}`);
assert.equal(decodeURIComponent(await find(user)), `/users/@${user}:${of}`);
await find("127.0.0.1");
assert.ok(await page.$$eval("td[data-label=Device]", (cells) => cells.length) > 0);
assert.equal(decodeURIComponent(await find("<b>")), `/rooms/${room}`);
await find("a");
assert.match(await page.$eval("td[data-label=Room]", (cell) => cell.textContent), /<b>Cabin<\/b>/);
assert.equal(await page.$$eval("main b", (all) => all.length), 0);
await look("find");
assert.match(decodeURIComponent(await find("@eve:elsewhere.example")), /^\/users\/@eve:elsewhere.example$/);
assert.match(await page.$eval("main", (main) => main.textContent), /in 0 room\(s\) of this one/);
await find("no such thing at all");
assert.match(await page.$eval("[role=status]", (said) => said.textContent), /^Nothing on this server/);
// On a phone, the navigation is a menu.
await page.setViewport({ width: 360, height: 800 });
assert.equal(await page.$eval("header nav", (nav) => getComputedStyle(nav).display), "none");
await page.click(".menu");
await picture(page, directory, "menu", "phone", "light");
await page.keyboard.press("Escape");
assert.equal(await page.$eval("header nav", (nav) => getComputedStyle(nav).display), "none");
await page.click(".menu");
await submitted(() => page.click("header nav a[href$='/users']"));
await page.setViewport({ width: 1400, height: 800 });

// The server is examined when the button is pressed with the keyboard.
await visit("health");
assert.match(await page.$eval("[role=status]", (said) => said.textContent), /not examined since its start/);
await look("not-examined");
await page.focus("main form button");
await submitted(() => page.keyboard.press("Enter"));
assert.match(await page.$eval("[role=status]", (said) => said.textContent), /^\d+ error\(s\), \d+ warning\(s\)/);
const levels = await page.$$eval("td[data-label=Level]", (cells) => cells.map((cell) => cell.textContent));
const order = ["error", "warning", "unknown", "ok"];
const ranks = levels.map((level) => order.indexOf(level));
assert.ok(ranks.length > 8 && ranks.every((rank, at) => rank >= (ranks[at - 1] ?? 0)), levels.join());
for (const row of await page.$$eval("main tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent.trim())))) {
    // What is not well says why that matters and what mends it.
    assert.ok(row[2] && (row[0] === "ok" || (row[3] && row[4])), row.join(" | "));
}
await look("health");

await visit("act");
await look("acts");
await visit("erasures");
await look("erasures");
await submitted(() => page.click("td[data-label='Because of'] a"));
assert.match(await page.$eval("h1", (h1) => h1.textContent), /^Erasure because of record \d+$/);
await look("erasure");

// A proof is made with the keyboard, and can be saved.
await visit("proofs");
await look("proofs");
await submitted(() => page.click("a[href*='/act/prove']"));
await page.keyboard.press("Tab");
await page.focus("#inclusion\\/offset");
await page.keyboard.type("3");
await submitted(() => page.keyboard.press("Enter"));
await submitted(() => page.click("main form button"));
assert.equal(await page.$eval("a[download]", (link) => link.download), "proof-3.json");
const proof = await page.$eval("a[download]", (link) => JSON.parse(atob(link.href.split(",")[1])));
assert.equal(proof.offset, 3);
await look("proof");
await visit("rooms");
await submitted(() => page.click("td[data-label=Room] a"));
await look("room");
// From the user who was written to, to what they have not read, and why.
await page.goto(`${address}/_logcabin/console/users/ann`);
await submitted(() => page.click("a[href$='/unread']"));
assert.ok(Number(await page.$eval("td[data-label=Unread]", (cell) => cell.textContent)) > 0);
await look("unread");
await submitted(() => page.click("td[data-label=Why] a"));
assert.match(await page.$eval("td[data-label=What]", (cell) => cell.textContent), /counts .*by the rule/);
await look("why-unread");
await visit("users");
await page.type("#name", user);
await submitted(() => page.keyboard.press("Enter"));
await submitted(() => page.click("td[data-label=User] a"));
await look("user");

// An act is described, then confirmed.
await submitted(() => page.click("a[href*='/act/set-profile']"));
await look("act");
await page.type("#value", "<u>Keeper</u>");
await page.type("#reason", "it is the keeper");
await submitted(() => page.keyboard.press("Enter"));
assert.match(await page.$eval("main", (main) => main.textContent), /This would happen/);
await look("confirm");
await submitted(() => page.click("main form button"));
assert.match(await page.$eval("[role=status]", (said) => said.textContent), /was done/);
await look("done");
await page.goto(`${address}/_logcabin/console/users?name=keeper`);
assert.match(await page.$eval("td[data-label=Name]", (cell) => cell.textContent), /<u>Keeper<\/u>/);

await submitted(() => page.click("header form[method=post] button"));
assert.match(page.url(), /\/login$/);
await page.goto(`${address}/_logcabin/console/log`);
assert.match(page.url(), /\/login$/);
assert.deepEqual(complaints, []);
console.log("the console was used");
await browser.close();
