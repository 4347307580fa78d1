// People use the pages of OAuth 2.0 in headless Chromium, without scripts wherever none is needed: they register
// and recover their passwords in the middle of an authorization, and see every page in all its forms.
//
//     node oauth_pages.mjs ADDRESS PLAIN CHROMIUM CLIENT_PORT MAILBOX TOKEN PASSWORD [DIRECTORY]
//
// The server at ADDRESS asks for a registration token, an e-mail address, a captcha and terms, has a console, and
// trusts `http://127.0.0.1:CLIENT_PORT/trusted`. The one at PLAIN is the same without a captcha. `MAILBOX?to=EMAIL`
// tells the link of the last mail, and `MAILBOX?appoint=USER` makes an administrator. With a directory, what each
// page looks like is put into it. Judges for itself.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdirSync } from "node:fs";
import { createServer } from "node:http";
import puppeteer from "puppeteer-core";
import { everyLook } from "./looks.mjs";
import { PATIENCE_MS } from "./patience.mjs";

const [address, plain, executablePath, clientPort, mailbox, token, PASSWORD, directory] = process.argv.slice(2);
const NEW_PASSWORD = "another password that is long";
const VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE = createHash("sha256").update(VERIFIER).digest("base64url");
const CLIENT = `http://127.0.0.1:${clientPort}`;
if (directory) mkdirSync(directory, { recursive: true });

// The app that people sign in to.
const client = createServer((_, response) => {
    response.setHeader("content-type", "text/html");
    response.end("<!doctype html><title>the app</title><p>the app</p>");
}).listen(Number(clientPort), "127.0.0.1");
const browser = await puppeteer.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"],
});
process.on("exit", () => browser.process()?.kill("SIGKILL"));

const complaints = [];
const withScripts = new Map();
/** A person at a browser of their own. */
async function person({ scripts = false } = {}) {
    const page = await (await browser.createBrowserContext()).newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.setJavaScriptEnabled(scripts);
    withScripts.set(page, scripts);
    await page.setViewport({ width: 800, height: 800 });
    page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error}`));
    page.on("dialog", (dialog) => {
        complaints.push(`${page.url()}: a dialog: ${dialog.message()}`);
        dialog.dismiss();
    });
    page.on("console", (message) => {
        // What is refused has a status that the browser remarks on, and no logo of the tests exists.
        const remark = /status of 4|favicon|ERR_|logo/.test(message.text() + message.location().url);
        if (message.type() === "error" && !remark) complaints.push(`${page.url()}: ${message.text()}`);
    });
    return page;
}

const seen = new Set();
/** Everyone can use the page, on every width and in both colour schemes. */
async function look(page, name) {
    assert.ok(!seen.has(name), name);
    seen.add(name);
    // The program that judges is one, and comes to a page that was made without.
    await page.setJavaScriptEnabled(true);
    await everyLook(page, name, async (size, scheme, where) => {
        const small = await page.$$eval("button, a.button, input:not([type=hidden])", (all) => all
            .filter((one) => one.getBoundingClientRect().height < 17).map((one) => one.outerHTML));
        assert.deepEqual(small, [], `${where}: too small for a finger`);
        if (directory) {
            await page.screenshot({ path: `${directory}/oauth-${name}-${size}-${scheme}.png`, fullPage: true });
        }
    });
    await page.setJavaScriptEnabled(withScripts.get(page));
    await page.setViewport({ width: 800, height: 800 });
    console.log(`seen: ${name}`);
}

const submitted = (page, act) => Promise.all([page.waitForNavigation({ waitUntil: "load" }), act()]);
const press = (page, selector) => submitted(page, () => page.click(selector));
const title = (page) => page.$eval("h1", (h1) => h1.textContent);
const alert = (page) => page.$eval("[role=alert]", (alert) => alert.textContent);
const text = (page) => page.$eval("main", (main) => main.innerText);
/** Fills in the page's form, and sends it with the keyboard. */
async function fill(page, fields) {
    for (const [name, value] of Object.entries(fields)) {
        await page.$eval(`[name=${name}]`, (field) => { field.value = ""; });
        await page.type(`[name=${name}]`, value);
    }
    await submitted(page, () => page.keyboard.press("Enter"));
}

async function call(server, method, path, body, accessToken) {
    const headers = { "content-type": "application/json" };
    if (accessToken) headers.authorization = `Bearer ${accessToken}`;
    const answer = await fetch(server + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: answer.status, body: await answer.json() };
}
const logsIn = async (server, user, password) => {
    const identifier = { type: "m.id.user", user };
    const body = { type: "m.login.password", identifier, password };
    return (await call(server, "POST", "/_matrix/client/v3/login", body)).status;
};

const described = (more) => ({
    client_name: "An app",
    client_uri: "https://app.example.org/",
    application_type: "native",
    redirect_uris: ["http://127.0.0.1/callback"],
    token_endpoint_auth_method: "none",
    grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
    response_types: ["code"],
    ...more,
});
async function registered(server, more = {}) {
    const answer = await call(server, "POST", "/_matrix/oauth2/register", described(more));
    assert.equal(answer.status, 201, JSON.stringify(answer));
    return answer.body.client_id;
}
function authorization(server, client_id, more = {}) {
    const query = new URLSearchParams({
        response_type: "code",
        client_id,
        redirect_uri: `${CLIENT}/callback`,
        scope: `urn:matrix:client:api:* urn:matrix:client:device:${client_id.slice(0, 10)}`,
        state: "a state & more",
        code_challenge: CHALLENGE,
        code_challenge_method: "S256",
        ...more,
    });
    return `${server}/_matrix/oauth2/authorize?${query}`;
}
/** What the app does when the browser comes back: it gets the user's session. */
async function arrived(server, page, client_id) {
    const url = new URL(page.url());
    assert.equal(url.origin + url.pathname, `${CLIENT}/callback`, page.url());
    assert.equal(url.searchParams.get("state"), "a state & more");
    const body = new URLSearchParams({
        grant_type: "authorization_code",
        client_id,
        code: url.searchParams.get("code"),
        redirect_uri: `${CLIENT}/callback`,
        code_verifier: VERIFIER,
    });
    const answer = await fetch(`${server}/_matrix/oauth2/token`, { method: "POST", body });
    const tokens = await answer.json();
    assert.equal(answer.status, 200, JSON.stringify(tokens));
    const me = await call(server, "GET", "/_matrix/client/v3/account/whoami", undefined, tokens.access_token);
    return { token: tokens.access_token, user: me.body.user_id };
}
/** What a person does with a mail, in whatever browser their mail is. */
async function confirmMail(server, email, name) {
    const { link } = await (await fetch(`${mailbox}?to=${encodeURIComponent(email)}`)).json();
    const other = await person();
    await other.goto(server + link);
    assert.equal(await title(other), "Is this your address?");
    if (name) await look(other, name);
    await press(other, "button");
    assert.equal(await title(other), "Your address is confirmed");
    if (name) await look(other, `${name}-done`);
    await other.browserContext().close();
}

const nothing = async () => {};
/** What a person does on the page of each stage. */
const stages = {
    async "m.login.registration_token"(page, name, seeing) {
        await fill(page, { token: "of-my-own-making" });
        assert.equal(await alert(page), "This registration token is not valid.");
        await seeing("token");
        await fill(page, { token });
    },
    async "m.login.email.identity"(page, name, seeing, server) {
        const email = `${name}@example.org`;
        await seeing("email");
        await fill(page, { email });
        assert.equal(await title(page), "A message is on its way");
        await press(page, "button");
        assert.match(await alert(page), /not been confirmed yet/);
        await seeing("email-waiting");
        await confirmMail(server, email, seeing === nothing ? undefined : "mail");
        await press(page, "button");
    },
    async "m.login.terms"(page, name, seeing) {
        await seeing("terms");
        await press(page, "button");
    },
    async "m.login.recaptcha"(page, name, seeing) {
        const tick = await page.waitForSelector("#tick");
        await seeing("captcha");
        await submitted(page, () => tick.click());
    },
};
/** A person who has no account comes from the app, registers, allows it, and is back. */
async function register(server, name, { scripts, seen: seeing = nothing }) {
    const client_id = await registered(server);
    const page = await person({ scripts });
    await page.goto(authorization(server, client_id, { prompt: "create" }));
    assert.match(await title(page), /^Create an account/);
    assert.match(await text(page), /To continue to An app/);
    await seeing(page, "sign-up");
    await fill(page, { username: name, password: PASSWORD, repeated: "another" });
    assert.equal(await alert(page), "The two passwords are not the same.");
    await seeing(page, "sign-up-wrong");
    await fill(page, { username: name, password: PASSWORD, repeated: PASSWORD });
    const done = [];
    while (page.url().includes("/fallback/web")) {
        const [, stage] = /auth\/([^/]*)\/fallback/.exec(page.url());
        assert.ok(!done.includes(stage), `${stage} again: ${await text(page)}`);
        done.push(stage);
        const of = page.url();
        const see = seeing === nothing ? nothing : (what) => seeing(page, `stage-${what}`);
        await stages[stage](page, name, see, server);
        if (done.length > 1) continue;
        // The page of a stage that is done leads on, too: people go back, and reload.
        await page.goto(of);
        assert.notEqual(page.url(), of);
    }
    assert.equal(await title(page), "Sign in to An app?");
    assert.match(await text(page), new RegExp(`@${name}:`));
    await press(page, "button[value=allow]");
    const me = await arrived(server, page, client_id);
    assert.match(me.user, new RegExp(`^@${name}:`));
    const held = await call(server, "GET", "/_matrix/client/v3/account/3pid", undefined, me.token);
    assert.deepEqual(held.body.threepids.map((one) => one.address), [`${name}@example.org`]);
    await page.browserContext().close();
    console.log(`${name} has registered: ${done.join(", ")}`);
    return done;
}

const asked = await register(address, "ann", { scripts: true, seen: look });
assert.deepEqual(asked.toSorted(), Object.keys(stages).toSorted());
const without = await register(plain, "ann", { scripts: false });
assert.equal(without.length, asked.length - 1);
await register(address, "root", { scripts: true });
await fetch(`${mailbox}?appoint=root`);

/** A person who has forgotten their password comes from the app, sets another, allows it, and is back. */
{
    const client_id = await registered(address, { logo_uri: "https://app.example.org/logo.png" });
    const page = await person();
    await page.goto(authorization(address, client_id));
    assert.match(await title(page), /^Sign in to/);
    await look(page, "sign-in");
    await fill(page, { user: "ann", password: "not the password" });
    assert.match(await alert(page), /Wrong user name or password/);
    await look(page, "sign-in-wrong");
    await press(page, "a[href*='/recover']");
    await look(page, "recover");
    await fill(page, { address: "not an address" });
    await look(page, "recover-wrong");
    assert.ok(await alert(page));
    await fill(page, { address: "ann@example.org" });
    await look(page, "recover-waiting");
    await fill(page, { password: NEW_PASSWORD, repeated: NEW_PASSWORD });
    assert.ok(await alert(page), "the link was not opened");
    await confirmMail(address, "ann@example.org");
    await fill(page, { password: NEW_PASSWORD, repeated: "another" });
    assert.equal(await alert(page), "The two passwords are not the same.");
    await look(page, "recover-again");
    await fill(page, { password: NEW_PASSWORD, repeated: NEW_PASSWORD });
    assert.equal(await title(page), "Sign in to An app?");
    await look(page, "consent");
    assert.deepEqual([await logsIn(address, "ann", PASSWORD), await logsIn(address, "ann", NEW_PASSWORD)], [403, 200]);
    await press(page, "button[value=allow]");
    assert.match((await arrived(address, page, client_id)).user, /^@ann:/);
    console.log("ann has a new password");

    // Apps that describe themselves with the worst they are allowed to.
    for (const [name, more] of Object.entries({
        markup: {
            client_name: "<img src=x onerror=alert(1)>\u202egnp.exe\u0000",
            logo_uri: "https://app.example.org/logo.svg?'onload=alert(1)",
        },
        long: { client_name: "W".repeat(100), client_uri: `https://app.example.org/${"x".repeat(900)}` },
        arabic: {
            client_name: "\u0628\u0646\u0643 (\u0622\u0645\u0646) 123",
            policy_uri: "https://app.example.org/p",
            tos_uri: "https://app.example.org/t",
        },
        host: { client_name: "e2e.test", client_uri: `https://${"very-long-name.".repeat(12)}example.org/` },
    })) {
        const hostile = await registered(address, more);
        await page.goto(authorization(address, hostile, { scope: "openid profile email urn:synapse:admin:*" }));
        await look(page, `consent-${name}`);
        const images = await page.$$eval("main img", (all) => all.map((one) => one.getAttribute("src")));
        assert.ok(images.every((src) => src.startsWith("https://app.example.org/logo")), images.join());
        assert.ok(!/[\u202a-\u202e\u2066-\u2069]/.test(await text(page)));
        assert.match(await text(page), /an app on this device/);
        await page.goto(`${authorization(address, hostile)}&prompt=login`);
        await look(page, `sign-in-${name}`);
    }
    const scheme = "com.example.evil";
    const strange = await registered(address, {
        client_uri: "https://evil.example.com/", redirect_uris: ["com.example.evil:/callback"],
    });
    await page.goto(authorization(address, strange, { redirect_uri: `${scheme}:/callback` }));
    assert.match(await text(page), /the app for com\.example\.evil: addresses/);
    await look(page, "consent-scheme");

    // What cannot be answered.
    await page.goto(authorization(address, "nobody"));
    assert.match(await title(page), /did not work/);
    await look(page, "error");
    await page.goto(`${address}/_matrix/oauth2/sign_up?session=over`);
    await look(page, "sign-up-over");

    // Another device, by its code.
    await page.goto(`${address}/_matrix/oauth2/link`);
    await look(page, "link");
    await fill(page, { user_code: "<b>AAAA" });
    assert.ok(await alert(page));
    await look(page, "link-wrong");
    for (const answer of ["deny", "allow"]) {
        const scope = "openid urn:matrix:client:api:* urn:matrix:client:device:TV";
        const body = new URLSearchParams({ client_id, scope });
        const begun = await (await fetch(`${address}/_matrix/oauth2/device`, { method: "POST", body })).json();
        await page.goto(`${address}/_matrix/oauth2/link`);
        await fill(page, { user_code: begun.user_code });
        assert.match(await text(page), new RegExp(begun.user_code));
        if (answer === "deny") await look(page, "link-question");
        await press(page, `button[value=${answer}]`);
        await look(page, `link-${answer}`);
    }

    // The account, and all that is done there.
    const account = (action) => page.goto(`${address}/_matrix/oauth2/account?action=${action}`);
    await page.goto(`${address}/_matrix/oauth2/account`);
    await look(page, "account");
    await account("org.matrix.profile");
    await look(page, "profile");
    await fill(page, { name: "<b>Ann</b> \u0628\u0646\u0643".repeat(10) });
    await look(page, "profile-saved");
    await fill(page, { address: "second@example.org" });
    await look(page, "profile-address");
    await confirmMail(address, "second@example.org");
    await press(page, "main form button[type=submit]");
    await look(page, "profile-added");
    await account("org.matrix.devices_list");
    await look(page, "devices");
    const device = await page.$eval("a[href*=device_view]", (link) => new URL(link.href).searchParams.get("device_id"));
    await account(`org.matrix.device_view&device_id=${device}`);
    await look(page, "device");
    await account("org.matrix.device_view&device_id=%3Cb%3E");
    await look(page, "device-none");
    await account(`org.matrix.device_delete&device_id=${device}`);
    await look(page, "device-delete");
    await press(page, "main form button");
    await look(page, "device-deleted");
    await account("org.matrix.cross_signing_reset");
    await look(page, "reset");
    await press(page, "main form button");
    await look(page, "reset-done");
    await account("org.logcabin.password");
    await look(page, "password");
    await fill(page, { password: PASSWORD, repeated: "another" });
    await look(page, "password-wrong");
    await fill(page, { password: PASSWORD, repeated: PASSWORD });
    await look(page, "password-done");
    await account("org.matrix.account_deactivate");
    await look(page, "deactivate");
    await fill(page, { confirm: "@somebody:e2e.test" });
    await look(page, "deactivate-wrong");
    await page.browserContext().close();
}

/** A client without OAuth 2.0 that is trusted gets its token after the sign-in, without a question. */
for (const [name, scripts] of [["without scripts", false], ["with scripts", true]]) {
    const page = await person({ scripts });
    const redirect = encodeURIComponent(`${CLIENT}/trusted`);
    await page.goto(`${address}/_matrix/oauth2/continue?redirectUrl=${redirect}`);
    assert.match(await text(page), /To continue to/);
    await fill(page, { user: "ann", password: PASSWORD });
    if (!page.url().startsWith(CLIENT)) await page.waitForNavigation();
    assert.match(page.url(), /\/trusted\?loginToken=/, name);
    await page.goto(`${address}/_matrix/oauth2/continue?redirectUrl=${encodeURIComponent(`${CLIENT}/other`)}`);
    assert.match(await title(page), /^Continue to/);
    if (!scripts) await look(page, "continue");
    await press(page, "main form button");
    assert.match(page.url(), /\/other\?loginToken=/, name);
    await page.browserContext().close();
}

/** The console logs its administrators in with their accounts, and nobody else. */
{
    const console_ = `${address}/_logcabin/console`;
    const page = await person();
    await page.goto(console_);
    assert.equal(page.url(), `${console_}/login`);
    await look(page, "console-login");
    await press(page, "a[href$='/sign_in']");
    assert.match(await text(page), /To continue to Console of e2e\.test/);
    await fill(page, { user: "ann", password: PASSWORD });
    assert.match(await alert(page), /Only an administrator/);
    await look(page, "console-nobody");
    await press(page, "button[value=deny]");
    assert.match(await alert(page), /You did not allow it/);
    await look(page, "console-denied");
    await press(page, "a[href$='/sign_in']");
    await press(page, "a[href*='again=1']");
    await fill(page, { user: "root", password: PASSWORD });
    await look(page, "console-consent");
    await press(page, "button[value=allow]");
    assert.equal(page.url(), console_);
    assert.match(await page.$eval("header", (header) => header.textContent), /@root:e2e\.test/);
    // It is open in other pages of the browser, too, and closed after the logout.
    await page.goto(`${console_}/users`);
    assert.equal(await title(page), "Users");
    await press(page, "header form[method=post] button");
    assert.equal(page.url(), `${console_}/login`);
    await page.goto(console_);
    assert.equal(page.url(), `${console_}/login`);
    // The sign-in at the server's pages is another matter: the next login only asks.
    await press(page, "a[href$='/sign_in']");
    await press(page, "button[value=allow]");
    assert.equal(page.url(), console_);
    console.log("root has used the console");
}

assert.deepEqual(complaints, []);
console.log("all went well");
client.close();
await browser.close();
