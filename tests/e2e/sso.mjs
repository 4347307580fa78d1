// Logging in by single sign-on and on the login page, in headless Chromium.
//
// `node sso.mjs ADDRESS PROVIDER_PORT CLIENT_PORT SCREENSHOTS` says what it does and exits with 0 if all of it
// went well. The server at ADDRESS has a provider `live` at that port, trusts
// `http://127.0.0.1:CLIENT_PORT/trusted`, adds the addresses that the provider has verified, has an
// administrator `root`, and has no limits on requests.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdir } from "node:fs/promises";
import { createServer } from "node:http";
import puppeteer from "puppeteer-core";
import { identify as identifyAt, leading, provide } from "./oidc_provider.mjs";
import { PATIENCE_MS } from "./patience.mjs";

const [address, providerPort, clientPort, screenshots] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${providerPort}`;
const client = `http://127.0.0.1:${clientPort}`;
const api = `${address}/_matrix/client/v3`;
const callback = `${api}/login/sso/callback`;
const PASSWORD = "a password that is long enough";

const say = (text) => process.stdout.write(`${text}\n`);
const providing = provide(issuer, callback);
const page404 = "<!doctype html><title>client</title><p>the client</p>";
const clientServer = createServer((_, response) => {
    response.setHeader("content-type", "text/html");
    response.end(page404);
}).listen(Number(clientPort), "127.0.0.1");

const browser = await puppeteer.launch({
    executablePath: process.env.LOGCABIN_E2E_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    headless: true,
});
await mkdir(screenshots, { recursive: true });

const complaints = [];
// A person at a browser of their own.
async function visitor(name) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.setViewport({ width: 480, height: 640 });
    page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error.message}`));
    page.on("console", (message) => {
        // What the server refuses is shown there, too.
        const refused = message.text().startsWith("Failed to load resource");
        const ours = page.url().startsWith(address);
        if (message.type() === "error" && ours && !refused) complaints.push(`${page.url()}: ${message.text()}`);
    });
    await page.evaluateOnNewDocument(() => {
        window.onLogin = (response) => { window.told = response; };
        window.onAuthDone = () => { window.done = true; };
    });
    return { name, page };
}

const post = async (path, body, token, base = api) => {
    const headers = { "content-type": "application/json" };
    if (token) headers.authorization = `Bearer ${token}`;
    const answer = await fetch(base + path, { method: "POST", headers, body: JSON.stringify(body) });
    return { status: answer.status, ...(await answer.json()) };
};
const register = async (username) => {
    const answer = await post("/register", { username, password: PASSWORD, auth: { type: "m.login.dummy" } });
    assert.equal(answer.status, 200, JSON.stringify(answer));
    return answer;
};
const by = (user, password = PASSWORD) =>
    ({ type: "m.login.password", identifier: { type: "m.id.user", user }, password });
const start = (target, id = "live") =>
    `${api}/login/sso/redirect/${id}?redirectUrl=${encodeURIComponent(client + target)}`;
const text = (page) => page.$eval("main", (main) => main.innerText);
const click = (page, selector) => leading(page, () => page.click(selector));
const says = (page, words) =>
    page.waitForFunction((words) => document.body.innerText.includes(words), {}, words);

const identify = (visitor) => identifyAt(visitor, issuer);
async function visit(visitor, url) {
    await visitor.page.goto(url, { waitUntil: "load" });
    await identify(visitor);
}
// The user whom the token in the page's address logs in.
async function logIn({ page }) {
    const url = new URL(page.url());
    assert.equal(url.origin, client, `not at the client: ${url}`);
    const token = url.searchParams.get("loginToken");
    assert.ok(token, `no token: ${url}`);
    const answer = await post("/login", { type: "m.login.token", token });
    assert.equal(answer.status, 200, JSON.stringify(answer));
    const again = await post("/login", { type: "m.login.token", token });
    assert.equal(again.errcode, "M_FORBIDDEN");
    return answer;
}
async function shoot(page, name) {
    for (const value of ["light", "dark"]) {
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);
        await page.screenshot({ path: `${screenshots}/${name}-${value}.png` });
    }
    const nameless = await page.$$eval("input, button, a", (all) =>
        all.filter((one) => one.type !== "hidden" && !one.labels?.length && !one.textContent.trim())
            .map((one) => one.outerHTML));
    assert.deepEqual(nameless, [], `${name}: something has no name for those who cannot see it`);
    assert.equal((await page.$$("h1")).length, 1, name);
}
// Sets out, by hand: where to, and the cookie of the way.
async function setOut(target = "/trusted") {
    const answer = await fetch(start(target), { redirect: "manual" });
    assert.equal(answer.status, 302);
    const cookie = answer.headers.get("set-cookie");
    assert.match(cookie, /; HttpOnly; SameSite=Lax$/);
    const [name, value] = cookie.split(";")[0].split("=");
    return { url: new URL(answer.headers.get("location")), name, value, cookie: `${name}=${value}` };
}
// Goes the way of `trip` up to the callback, which is not asked for; gives its address.
async function upToCallback(visitor, trip) {
    const { page } = visitor;
    await page.setRequestInterception(true);
    let back;
    const held = (request) => {
        if (request.url().startsWith(callback)) {
            back = request.url();
            request.respond({ status: 200, contentType: "text/html", body: page404 });
        } else {
            request.continue();
        }
    };
    page.on("request", held);
    await visit(visitor, trip.url.href);
    page.off("request", held);
    await page.setRequestInterception(false);
    assert.ok(back, `not called back: ${page.url()}`);
    return back;
}
const arrive = (back, trip) =>
    fetch(back, { redirect: "manual", headers: trip ? { cookie: trip.cookie } : {} });
async function fails(answer, status, words) {
    const html = await answer.text();
    assert.equal(answer.status, status, html);
    assert.ok(html.includes(words), `expected "${words}" in ${html}`);
    assert.ok(html.includes("role=\"alert\""));
}

say("the first login of a person makes an account, the second finds it");
const ann = await visitor("ann");
await visit(ann, start("/trusted?keep=this#there"));
assert.equal(new URL(ann.page.url()).searchParams.get("keep"), "this");
assert.equal(new URL(ann.page.url()).hash, "#there");
const first = await logIn(ann);
assert.equal(first.user_id, "@ann:e2e.test");
const profile = await (await fetch(`${api}/profile/${first.user_id}`)).json();
assert.equal(profile.displayname, "ann of elsewhere");
const addresses = async (token) => {
    const answer = await fetch(`${api}/account/3pid`, { headers: { authorization: `Bearer ${token}` } });
    return (await answer.json()).threepids.map((threepid) => threepid.address);
};
assert.deepEqual(await addresses(first.access_token), ["ann@elsewhere.test"]);
await visit(ann, start("/trusted"));
assert.equal((await logIn(ann)).user_id, first.user_id);
const annElsewhere = await visitor("ann");
await visit(annElsewhere, start("/trusted"));
assert.equal((await logIn(annElsewhere)).user_id, first.user_id);

say("another client is named before it gets a login");
await visit(ann, start("/other"));
await shoot(ann.page, "continue");
assert.ok((await text(ann.page)).includes(`127.0.0.1:${clientPort}`));
await click(ann.page, "#continue");
assert.equal((await logIn(ann)).user_id, first.user_id);

say("whose name is taken chooses another");
await register("bob");
const bob = await visitor("bob");
await visit(bob, start("/trusted"));
await shoot(bob.page, "name");
await bob.page.type("#username", "bob");
await bob.page.keyboard.press("Enter");
await says(bob.page, "This user name is taken.");
await bob.page.$eval("#username", (input) => { input.value = ""; });
await bob.page.type("#username", "bobby");
await Promise.all([bob.page.waitForNavigation(), bob.page.keyboard.press("Enter")]);
const bobby = await logIn(bob);
assert.equal(bobby.user_id, "@bobby:e2e.test");
assert.deepEqual(await addresses(bobby.access_token), ["bob@elsewhere.test"]);
await visit(bob, start("/trusted"));
assert.equal((await logIn(bob)).user_id, bobby.user_id);

say("or proves that it is theirs");
await register("cas");
const cas = await visitor("cas");
await visit(cas, start("/trusted"));
await cas.page.click("summary");
await cas.page.type("#user", "cas");
await cas.page.type("#password", "wrong");
await cas.page.keyboard.press("Enter");
await says(cas.page, "Wrong user name or password.");
await cas.page.$eval("#password", (input) => { input.value = ""; });
await cas.page.type("#password", PASSWORD);
await shoot(cas.page, "link-by-password");
await Promise.all([cas.page.waitForNavigation(), cas.page.keyboard.press("Enter")]);
assert.equal((await logIn(cas)).user_id, "@cas:e2e.test");
await visit(cas, start("/trusted"));
const casAgain = await logIn(cas);
assert.equal(casAgain.user_id, "@cas:e2e.test");
assert.deepEqual(await addresses(casAgain.access_token), [], "only new accounts are given addresses");

say("one who is locked is told so and gets no token");
{
    const root = await post("/login", by("root"));
    const lock = (locked) => fetch(`${address}/_matrix/client/v1/admin/lock/@cas:e2e.test`, {
        method: "PUT",
        headers: { authorization: `Bearer ${root.access_token}`, "content-type": "application/json" },
        body: JSON.stringify({ locked }),
    });
    assert.equal((await lock(true)).status, 200);
    await visit(cas, start("/trusted"));
    assert.ok((await text(cas.page)).includes("locked"), await text(cas.page));
    assert.ok(!cas.page.url().includes("loginToken"));
    assert.equal((await lock(false)).status, 200);
}

say("one who is logged in links the account, and confirms it");
const danAccount = await register("dan");
const linking = `${address}/_matrix/client/unstable/org.logcabin/sso/link/live`;
const way = await post("", { auth: by("dan") }, danAccount.access_token, linking);
assert.equal(way.status, 200, JSON.stringify(way));
const dan = await visitor("daniel");
await visit(dan, way.url);
await shoot(dan.page, "link");
await dan.page.click("button");
await says(dan.page, "You can log in as @dan:e2e.test");
await visit(dan, start("/trusted"));
assert.equal((await logIn(dan)).user_id, "@dan:e2e.test");
const stolen = await post("", { auth: by("bob") }, (await post("/login", by("bob"))).access_token, linking);
await visit(dan, stolen.url);
assert.ok((await text(dan.page)).includes("belongs to another user"), await text(dan.page));

say("a link ends with its account");
const closed = await post("/account/deactivate", { auth: by("dan") }, danAccount.access_token);
assert.equal(closed.status, 200, JSON.stringify(closed));
await visit(dan, start("/trusted"));
assert.equal((await logIn(dan)).user_id, "@daniel:e2e.test");

say("who has no password confirms what they do with the provider");
const getToken = `${address}/_matrix/client/v1/login/get_token`;
const asked = await post("", {}, first.access_token, getToken);
assert.equal(asked.status, 401);
assert.deepEqual(asked.flows, [{ stages: ["m.login.sso"] }]);
const fallback = `${api}/auth/m.login.sso/fallback/web?session=${asked.session}`;
await bob.page.goto(fallback);
await shoot(bob.page, "confirm");
await click(bob.page, "a.button");
await identify(bob);
assert.ok((await text(bob.page)).includes("not the user"), await text(bob.page));
assert.equal(await bob.page.evaluate(() => window.done), undefined);
assert.equal((await post("", { auth: { session: asked.session } }, first.access_token, getToken)).status, 401);
await ann.page.goto(fallback);
// The page's link does nothing in another browser, that has not been shown the page.
const elsewhere = await visitor("ann");
await visit(elsewhere, await ann.page.$eval("a.button", (link) => link.href));
assert.ok((await text(elsewhere.page)).includes("was not asked"), await text(elsewhere.page));
assert.equal((await post("", { auth: { session: asked.session } }, first.access_token, getToken)).status, 401);
await click(ann.page, "a.button");
await identify(ann);
await ann.page.waitForFunction(() => window.done === true);
const given = await post("", { auth: { session: asked.session } }, first.access_token, getToken);
assert.equal(given.status, 200, JSON.stringify(given));
assert.ok(given.login_token);

say("nothing that was changed or stolen on the way leads to a login");
const eve = await visitor("eve");
{
    const trip = await setOut();
    const back = await upToCallback(eve, trip);
    await fails(await arrive(back), 400, "has not started a login");
    const other = await setOut();
    await fails(await arrive(back, other), 400, "has not started a login");
    const swapped = new URL(back);
    swapped.searchParams.set("state", other.url.searchParams.get("state"));
    await fails(await arrive(swapped, other), 403, "does not accept");
    const altered = trip.value.at(-5) === "A" ? "B" : "A";
    const forged = { cookie: `${trip.name}=${trip.value.slice(0, -5)}${altered}${trip.value.slice(-4)}` };
    await fails(await arrive(back, forged), 400, "has not started a login");
}
{
    const trip = await setOut();
    trip.url.searchParams.set("nonce", "another");
    await fails(await arrive(await upToCallback(eve, trip), trip), 403, "cannot be trusted");
}
{
    const trip = await setOut();
    trip.url.searchParams.set("code_challenge", "A".repeat(43));
    await fails(await arrive(await upToCallback(eve, trip), trip), 403, "does not accept");
}
say("a code is good once");
{
    const trip = await setOut();
    const back = await upToCallback(eve, trip);
    const answer = await arrive(back, trip);
    assert.equal(answer.status, 302, await answer.text());
    assert.match(answer.headers.get("set-cookie"), /=; .*Max-Age=0/);
    await fails(await arrive(back, trip), 403, "does not accept");
}
say("of two first logins at once one makes the account, and both are it");
{
    const twice = [await visitor("fay"), await visitor("fay")];
    const trips = [await setOut(), await setOut()];
    const backs = [await upToCallback(twice[0], trips[0]), await upToCallback(twice[1], trips[1])];
    const answers = await Promise.all(backs.map((back, one) => arrive(back, trips[one])));
    const users = [];
    for (const answer of answers) {
        assert.equal(answer.status, 302, await answer.text());
        const token = new URL(answer.headers.get("location")).searchParams.get("loginToken");
        users.push((await post("/login", { type: "m.login.token", token })).user_id);
    }
    assert.deepEqual(users, ["@fay:e2e.test", "@fay:e2e.test"]);
}
say("who changes their mind at the provider is told so");
{
    const gil = await visitor("gil");
    await gil.page.goto(start("/trusted"));
    await click(gil.page, "a[href*=abort]");
    assert.ok((await text(gil.page)).includes("aborted"), await text(gil.page));
    await shoot(gil.page, "failure");
}

say("the login page logs in by password, with the keyboard alone");
const wishes = "device_id=MYDEVICE&initial_device_display_name=My%20phone&refresh_token=true";
const loginPage = `${address}/_matrix/static/client/login/`;
const hal = await visitor("hal");
await register("hal");
await hal.page.goto(`${loginPage}?${wishes}&user=eve&password=x`);
await shoot(hal.page, "login");
assert.equal(await hal.page.$eval("#user", (input) => input.value), "");
await hal.page.keyboard.press("Tab");
await hal.page.keyboard.type("hal");
await hal.page.keyboard.press("Tab");
await hal.page.keyboard.type("wrong");
await hal.page.keyboard.press("Enter");
await says(hal.page, "Wrong user name or password.");
await shoot(hal.page, "login-wrong");
assert.equal(await hal.page.evaluate(() => document.activeElement.id), "password");
await hal.page.$eval("#password", (input) => { input.value = ""; });
await hal.page.keyboard.type(PASSWORD);
await hal.page.keyboard.press("Enter");
await hal.page.waitForFunction(() => window.told);
const told = await hal.page.evaluate(() => window.told);
assert.equal(told.user_id, "@hal:e2e.test");
assert.equal(told.device_id, "MYDEVICE");
assert.ok(told.refresh_token && told.access_token && told.well_known);
const device = await fetch(`${api}/devices/MYDEVICE`, { headers: { authorization: `Bearer ${told.access_token}` } });
assert.equal((await device.json()).display_name, "My phone");
assert.ok(!(await text(hal.page)).includes(told.access_token));

say("and calls the function of either specification");
await hal.page.evaluateOnNewDocument(() => {
    delete window.onLogin;
    window.matrixLogin = { onLogin: (response) => { window.toldToo = response; } };
});
await hal.page.goto(`${address}/_svc/static/client/login`);
await hal.page.type("#user", "@hal:e2e.test");
await hal.page.type("#password", PASSWORD);
await hal.page.keyboard.press("Enter");
await hal.page.waitForFunction(() => window.toldToo?.user_id === "@hal:e2e.test");

say("the login page logs in by single sign-on, and keeps what the client wishes");
await annElsewhere.page.goto(`${loginPage}?${wishes}`);
await click(annElsewhere.page, "a.button");
await identify(annElsewhere);
await annElsewhere.page.waitForFunction(() => window.told);
const bySso = await annElsewhere.page.evaluate(() => window.told);
assert.equal(bySso.user_id, first.user_id);
assert.equal(bySso.device_id, "MYDEVICE");
assert.ok(!annElsewhere.page.url().includes("loginToken"), annElsewhere.page.url());
await annElsewhere.page.reload();
assert.equal(await annElsewhere.page.evaluate(() => window.told), undefined);

say("in the middle of an authorization, the provider says who it is, and the client gets its login");
{
    const oauth = `${address}/_matrix/oauth2`;
    const description = {
        client_name: "An app",
        client_uri: "https://app.example.org/",
        application_type: "native",
        redirect_uris: ["http://127.0.0.1/back"],
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        token_endpoint_auth_method: "none",
    };
    const app = await post("/register", description, undefined, oauth);
    assert.equal(app.status, 201, JSON.stringify(app));
    const verifier = "v".repeat(64);
    const challenge = createHash("sha256").update(verifier).digest("base64url");
    const back = `${client}/back`;
    const request = (state) => `${oauth}/authorize?${new URLSearchParams({
        client_id: app.client_id, response_type: "code", redirect_uri: back, state,
        scope: "urn:matrix:client:api:* urn:matrix:client:device:BYSSO",
        code_challenge: challenge, code_challenge_method: "S256",
    })}`;
    const exchange = async (code) => {
        const form = new URLSearchParams({
            grant_type: "authorization_code", client_id: app.client_id, code, redirect_uri: back,
            code_verifier: verifier,
        });
        const answer = await fetch(`${oauth}/token`, { method: "POST", body: form });
        return { status: answer.status, ...(await answer.json()) };
    };
    // One who is known, and one for whom it makes an account on the way.
    for (const [name, user] of [["ann", first.user_id], ["ivy", "@ivy:e2e.test"]]) {
        const person = await visitor(name);
        await person.page.goto(request(name), { waitUntil: "load" });
        await shoot(person.page, `oauth-sign-in-${name}`);
        await click(person.page, "a[href*='provider=live']");
        await identify(person);
        await shoot(person.page, `oauth-allow-${name}`);
        assert.ok((await text(person.page)).includes("An app"), await text(person.page));
        await click(person.page, "button[value=allow]");
        const arrived = new URL(person.page.url());
        assert.equal(arrived.origin, client, `not at the client: ${arrived}`);
        assert.equal(arrived.searchParams.get("state"), name);
        const tokens = await exchange(arrived.searchParams.get("code"));
        assert.equal(tokens.status, 200, JSON.stringify(tokens));
        const headers = { authorization: `Bearer ${tokens.access_token}` };
        const whoami = await (await fetch(`${api}/account/whoami`, { headers })).json();
        assert.deepEqual([whoami.user_id, whoami.device_id], [user, "BYSSO"]);
    }
}

say("a provider that has died makes a page that says so, and stops nobody else");
{
    const trip = await setOut();
    providing.close();
    providing.closeAllConnections();
    const back = `${callback}?state=${trip.url.searchParams.get("state")}&code=any`;
    await fails(await arrive(back, trip), 502, "does not answer");
    assert.equal((await post("/login", by("hal"))).status, 200);
}

assert.deepEqual(complaints, []);
await browser.close();
clientServer.close();
clientServer.closeAllConnections();
say("all went well");
