// An administrator logs in to the console by single sign-on, in headless Chromium.
//
// `node sso_console.mjs ADDRESS PROVIDER_PORT` exits with 0 if all of it went well. The server at ADDRESS has a
// provider `live` at that port, has the console enabled, and has an administrator `root`.

import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";
import { identify, leading, provide } from "./oidc_provider.mjs";
import { PATIENCE_MS } from "./patience.mjs";

const [address, providerPort] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${providerPort}`;
const api = `${address}/_matrix/client/v3`;
const root = `${address}/_logcabin/console`;
const providing = provide(issuer, `${api}/login/sso/callback`);

const browser = await puppeteer.launch({
    executablePath: process.env.LOGCABIN_E2E_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
process.on("exit", () => browser.process()?.kill("SIGKILL"));
const complaints = [];
// A person at a browser of their own.
async function visitor(name) {
    const page = await (await browser.createBrowserContext()).newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error.message}`));
    return { name, page };
}
const main = (page) => page.$eval("main", (main) => main.innerText);
// From the console to the provider and back, up to the button that enters. Gives the address of that.
async function arrive(person) {
    const { page } = person;
    await page.goto(root);
    assert.equal(page.url(), `${root}/login`);
    await leading(page, () => page.click("a.button[href*='/sso/redirect/live']"));
    await identify(person, issuer);
    assert.ok(page.url().startsWith(`${root}/login?loginToken=`), page.url());
    return page.url();
}
const enter = ({ page }) => leading(page, () => page.click("main form button"));

// Somebody who administers nothing does not get in, though the provider knows them.
const ada = await visitor("ada");
await arrive(ada);
await enter(ada);
assert.match(await main(ada.page), /You do not administer this server/);
await ada.page.goto(root);
assert.equal(ada.page.url(), `${root}/login`);

// Once they do, the same way leads in.
const answer = await fetch(`${api}/login`, {
    method: "POST",
    body: JSON.stringify({
        type: "m.login.password",
        identifier: { type: "m.id.user", user: "root" },
        password: "a password that is long enough",
    }),
});
const { access_token: token } = await answer.json();
const granted = await fetch(`${address}/_synapse/admin/v1/users/@ada:e2e.test/admin`, {
    method: "PUT",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify({ admin: true }),
});
assert.equal(granted.status, 200, await granted.text());
const used = await arrive(ada);
assert.match(await main(ada.page), /Log in as @ada:e2e.test/);
await enter(ada);
assert.equal(ada.page.url(), root);
assert.equal(await ada.page.$eval("h1", (h1) => h1.textContent), "Home");
assert.equal(await ada.page.$eval("header .who", (who) => who.textContent), "@ada:e2e.test");
assert.equal(await ada.page.evaluate(() => document.cookie), "", "scripts can read the cookie");
await ada.page.setViewport({ width: 1200, height: 800 });
await leading(ada.page, () => ada.page.click("nav a[href$='/users']"));
assert.match(await main(ada.page), /@ada:e2e\.test/);

// The token of the way was good once, and for nobody else.
const eve = await visitor("eve");
await eve.page.goto(used);
await enter(eve);
assert.match(await main(eve.page), /was used or has expired/);

// The session ends by its button; and what another site sends does not open one.
await leading(ada.page, () => ada.page.click("header form[method=post] button"));
await ada.page.goto(root);
assert.equal(ada.page.url(), `${root}/login`);
const forged = new URLSearchParams({ token: new URL(used).searchParams.get("loginToken") });
const headers = { origin: "https://evil.example", "sec-fetch-site": "cross-site" };
const refused = await fetch(`${root}/login`, { method: "POST", headers, body: forged, redirect: "manual" });
assert.deepEqual([refused.status, refused.headers.get("set-cookie")], [403, null]);

assert.deepEqual(complaints, []);
await browser.close();
providing.close();
providing.closeAllConnections();
console.log("the console was entered");
