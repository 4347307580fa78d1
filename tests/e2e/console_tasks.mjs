// Ten tasks that administrators have, each with the number of actions that it may take.
//
//     node console_tasks.mjs ADDRESS CHROMIUM USER PASSWORD HOMESERVER [DIRECTORY]
//
// A click, a form that is sent, and a text that is typed and sent with Enter are one action each. Every task begins at
// Home. HOMESERVER is one that cannot be reached. With a directory, pictures of the inbox are put into it. Judges for
// itself: ends with an error if a task is not done, or takes more actions than it may.

import assert from "node:assert/strict";
import { openBrowser, picture } from "./console_browser.mjs";
import { everyLook } from "./looks.mjs";

const [address, executablePath, user, password, homeserver, directory] = process.argv.slice(2);
const { browser, page, complaints } = await openBrowser(executablePath);
await page.setViewport({ width: 1400, height: 900 });

let actions = 0;

const look = (name) => everyLook(page, name, (size, scheme) => picture(page, directory, name, size, scheme));

/** Waits for the page that an action leads to. */
async function acted(act) {
    actions++;
    await Promise.all([page.waitForNavigation(), act()]);
}

const click = (selector) => acted(() => page.click(selector));

/** A key that leads to another page. */
const press = (key) => acted(() => page.keyboard.press(key));

async function clickOn(selector, text) {
    const found = await page.$$(selector);
    for (const one of found) {
        if ((await one.evaluate((one) => one.textContent)).includes(text)) return acted(() => one.click());
    }
    assert.fail(`nothing like ${selector} has the text ${text}`);
}

async function find(text) {
    await page.type("header [type=search]", text);
    await acted(() => page.keyboard.press("Enter"));
}

const says = async (pattern) => assert.match(await page.$eval("main", (main) => main.textContent), pattern);

const TASKS = [
    ["a spammer in five rooms: from the report to clean", 4, async () => {
        await click("section a[href$='/reports']");
        await click("ol.lines a");
        await clickOn("form.decide button", "Ban everywhere");
        await says(/banned from|is banned/);
        await click("main form.act button");
        await says(/was closed by .*stopped, and cleaned up after/s);
        await says(/There are no open reports/);
    }],
    ["who made Bob an administrator?", 2, async () => {
        await find("bobby");
        await click("a[aria-label$=' account']");
        await says(/@root:/);
        await says(/administrator/);
    }],
    ["free the disk of somebody's files", 4, async () => {
        await find("disk");
        await says(/6\.0 MB/);
        await click("tr:has(a[href*='hoarder']) form.one button");
        await says(/2 file\(s\) of 6000000 bytes are deleted/);
        await click("main form.act button");
        await says(/This was done/);
    }],
    ["why does another homeserver not get our messages?", 2, async () => {
        await find(homeserver);
        await says(/has failed for .*, tried/);
    }],
    ["who is behind an IP address?", 2, async () => {
        await find("127.0.0.1");
        await clickOn("td[data-label=User] a", "@davide:");
        await says(/Registered/);
    }],
    ["why was somebody suspended? Let them go on", 4, async () => {
        await find("davide");
        await click("a[aria-label$=' account']");
        await says(/suspended .*: insults/);
        await clickOn("main form.one button", "Undo");
        await says(/not suspended/);
        await click("main form.act button");
        await says(/This was done/);
    }],
    ["approve three registrations", 4, async () => {
        await click("section a[href$='/waiting']");
        await clickOn("main form.one button", "Approve all");
        await says(/@xena:.*@yves:.*@zoe:/s);
        await click("main form.act button");
        await says(/This was done/);
    }],
    ["take back a wrong ban", 3, async () => {
        await find("carolin");
        await clickOn("main form.one button", "Unban");
        await click("main form.act button");
        await says(/This was done/);
    }],
    ["what did a policy list keep away today? Except one user", 3, async () => {
        await find("policy lists");
        await says(/@frank:/);
        await clickOn("main form.one button", "Except");
        await says(/@frank:/);
        await click("main form.act button");
        await says(/This was done/);
    }],
    ["is the last backup good?", 1, async () => {
        await find("backups");
        await says(/The last backup was verified, and is intact/);
    }],
];

/** The inbox with the keyboard alone, before anything is decided. */
async function byKeyboard() {
    await page.goto(`${address}/_logcabin/console/reports`);
    await look("inbox");
    const lines = await page.$$eval("ol.lines a", (links) => links.length);
    assert.equal(lines, 2);
    const focused = () => page.evaluate(() => [...document.querySelectorAll("ol.lines a")].indexOf(document.activeElement));
    await page.keyboard.press("j");
    assert.equal(await focused(), 0);
    await page.keyboard.press("j");
    assert.equal(await focused(), 1);
    await page.keyboard.press("ArrowUp");
    assert.equal(await focused(), 0);
    await page.keyboard.press("x");
    assert.equal(await page.$$eval("ol.lines input:checked", (all) => all.length), 1);
    await page.keyboard.press("x");
    assert.equal(await page.$$eval("ol.lines input:checked", (all) => all.length), 0);
    await press("Enter");
    assert.match(page.url(), /report=\d+/);
    await look("inbox-report");
    assert.equal(await page.$eval(".decide button[value=redact]", (button) => button.getAttribute("aria-keyshortcuts")), "r");
    // In a field, letters are letters.
    const at = page.url();
    await page.focus("header [type=search]");
    await page.keyboard.type("resqx?");
    assert.equal(await page.$eval("header [type=search]", (field) => field.value), "resqx?");
    assert.equal(page.url(), at);
    await page.$eval("header [type=search]", (field) => field.blur());
    await page.keyboard.type("?");
    assert.ok(await page.$eval("#keys", (keys) => keys.open));
    await look("inbox-keys");
    await press("s");
    await says(/is suspended/);
    await look("inbox-preview");
    await clickOn("main a", "Do nothing");
    assert.equal(page.url(), at);
    // They can be turned off, and stay off.
    await page.$eval("#keys", (keys) => (keys.open = true));
    await page.click("#keys input");
    await page.reload();
    assert.equal(await page.$eval(".decide button[value=redact]", (button) => button.hasAttribute("aria-keyshortcuts")), false);
    await page.keyboard.type("jr");
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.equal(page.url(), at);
    assert.equal(await focused(), -1);
    await page.$eval("#keys", (keys) => (keys.open = true));
    await page.click("#keys input");
    // On a phone, one after the other.
    const isShown = (selector) => page.$eval(selector, (one) => getComputedStyle(one).display !== "none");
    await page.setViewport({ width: 390, height: 800 });
    assert.deepEqual([await isShown(".inbox .list"), await isShown(".inbox .report")], [false, true]);
    await acted(() => page.click(".inbox .back a"));
    assert.ok(await isShown(".inbox .list"));
    await page.setViewport({ width: 1400, height: 900 });
    assert.deepEqual([await page.$$eval("main img:not(.shown), main b", (all) => all.length)], [0]);
}

await page.goto(`${address}/_logcabin/console`);
await page.type("#user", user);
await page.type("#password", password);
await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
await byKeyboard();
for (const [name, most, perform] of TASKS) {
    await page.goto(`${address}/_logcabin/console`);
    actions = 0;
    await perform();
    console.log(`${name}: ${actions} action(s), at most ${most}`);
    assert.ok(actions <= most, `${name}: ${actions} actions`);
}
for (const name of ["reports/decided", "users/carolin", "policies", "backups", "disk"]) {
    await page.goto(`${address}/_logcabin/console/${name}`);
    await look(name.replace("/", "-"));
}
assert.deepEqual(complaints, []);
await browser.close();
