// Registers accounts in a browser by way of the pages of each stage, as a client does that knows none of
// them, and confirms the deletion of a device on the page of the password.
//
//     node fallback_pages.mjs ADDRESS CHROMIUM TOKEN [DIRECTORY]
//
// The server asks for a registration token, a captcha, terms and the dummy stage, in this order. With a
// directory, what each page looks like is put into it. Judges for itself: ends with an error if something is
// not as it should be, and says what it does.

import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";
import { PATIENCE_MS } from "./patience.mjs";

const [address, executablePath, token, directory] = process.argv.slice(2);
const PASSWORD = "a password that is long enough";
const LOOKS = [
    ["light", "light", 900],
    ["dark", "dark", 900],
    ["narrow", "light", 320],
];

async function call(method, path, body, accessToken) {
    const headers = { "content-type": "application/json" };
    if (accessToken) headers.authorization = `Bearer ${accessToken}`;
    const response = await fetch(`${address}/_matrix/client/v3${path}`, {
        method,
        headers,
        body: JSON.stringify(body),
    });
    return { status: response.status, body: await response.json() };
}

const pageOf = (stage, session) =>
    `${address}/_svc/client/v3/auth/${stage}/fallback/web?session=${encodeURIComponent(session)}`;

const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
process.on("exit", () => browser.process()?.kill("SIGKILL"));

/** Watches a page: whatever its policy forbids or its scripts fail at is a failure here. */
function watch(page, complaints) {
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("pageerror", (error) => complaints.push(`error: ${error}`));
    page.on("console", (message) => {
        // A form that is not taken comes back with a status that the browser remarks on.
        const remark = /status of (401|403|404)|favicon/.test(message.text());
        if (message.type() === "error" && !remark) complaints.push(message.text());
    });
}

/** What everyone needs of a page: a title, a language, a label for each field, no sideways scrolling. */
async function accessible(page) {
    const found = await page.evaluate(() => ({
        language: document.documentElement.lang,
        title: document.title,
        heading: document.querySelectorAll("h1").length,
        unlabelled: [...document.querySelectorAll("input:not([hidden])")].filter((i) => !i.labels.length).length,
        unnamed: [...document.querySelectorAll("button")].filter((b) => !b.textContent.trim()).length,
        wider: document.documentElement.scrollWidth > window.innerWidth,
    }));
    assert.deepEqual({ ...found, title: "" }, {
        language: "en", title: "", heading: 1, unlabelled: 0, unnamed: 0, wider: false,
    });
    assert.notEqual(found.title, "");
}

async function look(page, name) {
    for (const [look, scheme, width] of LOOKS) {
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
        await page.setViewport({ width, height: 700 });
        await accessible(page);
        if (directory) await page.screenshot({ path: `${directory}/${name}-${look}.png` });
    }
    await page.setViewport({ width: 900, height: 700 });
}

const submitted = (page, act) => Promise.all([page.waitForNavigation(), act()]);

/** Presses the page's button with the keyboard alone. */
async function pressButton(page) {
    for (let presses = 0; presses < 20; presses++) {
        await page.keyboard.press("Tab");
        const on = await page.evaluate(() => document.activeElement?.matches("button[type=submit]"));
        if (on) return submitted(page, () => page.keyboard.press("Enter"));
    }
    assert.fail("the button cannot be reached by keyboard");
}

const wrong = (page) => page.$eval("[role=alert]", (alert) => alert.textContent);

/** What a person does on the page of each stage. */
const people = {
    async "m.login.registration_token"(page) {
        // The field has the focus.
        await page.keyboard.type("of-my-own-making");
        await submitted(page, () => page.keyboard.press("Enter"));
        assert.equal(await wrong(page), "This registration token is not valid.");
        await look(page, "m.login.registration_token-wrong");
        await page.keyboard.type(token);
        await submitted(page, () => page.keyboard.press("Enter"));
    },
    async "m.login.recaptcha"(page) {
        await pressButton(page);
        assert.equal(await wrong(page), "The captcha is to be solved.");
        await submitted(page, () => page.waitForSelector("#tick").then((tick) => tick.click()));
    },
    async "m.login.terms"(page) {
        const links = await page.$$eval("main a", (links) => links.map((link) => [link.textContent, link.href]));
        assert.deepEqual(links, [["Privacy Policy", "https://example.org/privacy-1.2-en.html"]]);
        await pressButton(page);
    },
    async "m.login.dummy"(page) {
        await pressButton(page);
    },
    async "m.login.password"(page) {
        await page.keyboard.type("not my password");
        await submitted(page, () => page.keyboard.press("Enter"));
        assert.equal(await wrong(page), "Wrong user name or password.");
        await page.keyboard.type(PASSWORD);
        await submitted(page, () => page.keyboard.press("Enter"));
    },
};

/** Completes a stage in a window that a page of the client opens, which is told by a message. */
async function inWindow(stage, session, complaints) {
    const client = await browser.newPage();
    client.setDefaultTimeout(PATIENCE_MS);
    await client.goto("data:text/html,<title>a client</title>");
    await client.evaluate(() => {
        window.told = [];
        window.addEventListener("message", (event) => window.told.push(event.data));
    });
    const opened = new Promise((resolve) => client.once("popup", resolve));
    await client.evaluate((url) => void window.open(url), pageOf(stage, session));
    const page = await opened;
    watch(page, complaints);
    await page.waitForSelector("button[type=submit]");
    await look(page, stage);
    await page.bringToFront();
    await page.evaluate(() => document.querySelector("[autofocus]")?.focus());
    await people[stage](page);
    await client.waitForFunction(() => window.told.length > 0);
    assert.deepEqual(await client.evaluate(() => window.told), ["authDone"]);
    await look(page, "done");
    await page.close();
    await client.close();
}

/** Completes a stage in a view with a function of its own, as clients on telephones have it. */
async function inView(stage, session, complaints) {
    const page = await browser.newPage();
    watch(page, complaints);
    let told = 0;
    await page.exposeFunction("onAuthDone", () => void told++);
    await page.goto(pageOf(stage, session));
    assert.equal(told, 0);
    await people[stage](page);
    await page.waitForSelector("[role=status]");
    for (let waits = 0; told === 0 && waits < 100; waits++) await new Promise((go) => setTimeout(go, 50));
    assert.equal(told, 1);
    await page.close();
}

async function register(username, complete) {
    const complaints = [];
    const body = { username, password: PASSWORD };
    const asked = await call("POST", "/register", body);
    assert.equal(asked.status, 401);
    const { session, flows } = asked.body;
    const done = [];
    let answer = asked;
    for (const stage of flows[0].stages) {
        await complete(stage, session, complaints);
        done.push(stage);
        answer = await call("POST", "/register", { ...body, auth: { session } });
        if (answer.status === 401) assert.deepEqual(answer.body.completed, done);
        console.log(`${username}: ${stage} is done`);
    }
    assert.deepEqual(complaints, []);
    assert.equal(answer.status, 200, JSON.stringify(answer.body));
    console.log(`${answer.body.user_id} is registered`);
    return answer.body;
}

const ann = await register("ann", inWindow);
await register("bob", inView);

const login = await call("POST", "/login", {
    type: "m.login.password", identifier: { type: "m.id.user", user: "ann" }, password: PASSWORD,
});
const body = { devices: [login.body.device_id] };
const asked = await call("POST", "/delete_devices", body, ann.access_token);
assert.equal(asked.status, 401);
const { session } = asked.body;
const complaints = [];
await inWindow("m.login.password", session, complaints);
assert.deepEqual(complaints, []);
const deleted = await call("POST", "/delete_devices", { ...body, auth: { session } }, ann.access_token);
assert.equal(deleted.status, 200, JSON.stringify(deleted.body));
console.log("a device is deleted");

const over = await browser.newPage();
const response = await over.goto(pageOf("m.login.password", session));
assert.equal(response.status(), 404);
await look(over, "over");
await browser.close();
