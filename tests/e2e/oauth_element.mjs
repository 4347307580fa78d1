// People sign in to Element Web by OAuth 2.0 in headless Chromium, register, and sign out.
//
//     node oauth_element.mjs ADDRESS CHROMIUM CLIENT USER PASSWORD [SCREENSHOTS]
//
// CLIENT is what `element/build.mjs` made. The server has it as a client of the configuration, and a user cat with the
// same password. Judges for itself.

import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import path from "node:path";
import puppeteer from "puppeteer-core";

import { serve } from "./element/serve.mjs";
import { PATIENCE_MS } from "./patience.mjs";

const [address, executablePath, client, user, password, screenshots] = process.argv.slice(2);
const older = await serve(client, address, { features: { feature_oidc_native_flow: false } });
const { files, origin } = await serve(client, address, {
    features: { feature_oidc_native_flow: true },
    oidc_static_clients: { [`${address}/_matrix/oauth2/`]: { client_id: "element" } },
});

const browser = await puppeteer.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"],
});
process.on("exit", () => browser.process()?.kill("SIGKILL"));
if (screenshots) await mkdir(screenshots, { recursive: true });

const said = [];
async function person(name) {
    const page = await (await browser.createBrowserContext()).newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.setViewport({ width: 1200, height: 800 });
    page.on("console", (message) => said.push(`${name}: ${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => said.push(`${name}: ${error}`));
    page.on("response", (response) => {
        if (response.status() >= 400) said.push(`${name}: ${response.status()} ${response.url()}`);
    });
    const see = (selector) => page.locator(selector).setTimeout(PATIENCE_MS).waitHandle();
    const click = (selector) => page.locator(selector).setTimeout(PATIENCE_MS).click();
    const look = (what) => screenshots && page.screenshot({ path: path.join(screenshots, `oauth-${what}-${name}.png`) });

    /** Opens a page of the client, and goes on to the server's. */
    async function setOut(hash) {
        await page.goto(`${origin}/${hash}`);
        await look(hash.slice(2));
        await click("::-p-aria(Continue)");
    }
    /** Allows the client what it asks for, and comes back with a session. */
    async function allow() {
        await see("button[value=allow]");
        const text = await page.$eval("main", (main) => main.innerText);
        assert.match(text, /Element/);
        assert.match(text, /an app on this device/);
        await look("allow");
        await click("button[value=allow]");
        return session();
    }
    /** Waits for a session. */
    async function session() {
        await see(".mx_LeftPanel, .mx_UseCaseSelection, .mx_CompleteSecurity, .mx_AuthPage ::-p-text(Verify)");
        await look("home");
        return page.evaluate(() => {
            const own = window.mxMatrixClientPeg.get();
            return { userId: own.getUserId(), deviceId: own.getDeviceId(), token: own.getAccessToken() };
        });
    }
    return { page, see, click, look, setOut, allow, session };
}

async function whoami(token) {
    const headers = { authorization: `Bearer ${token}` };
    return (await fetch(`${address}/_matrix/client/v3/account/whoami`, { headers })).json();
}

try {
    const ann = await person("ann");
    await ann.setOut("#/login");
    await ann.see("#user");
    await ann.look("sign-in");
    await ann.page.type("#user", user);
    await ann.page.type("#password", password);
    await ann.page.keyboard.press("Enter");
    const session = await ann.allow();
    assert.equal(session.userId, `@${user}:e2e.test`);
    assert.equal((await whoami(session.token)).device_id, session.deviceId);

    // After a reload the session is still there.
    await ann.page.goto(`${origin}/#/home`);
    await ann.see(".mx_LeftPanel");
    await ann.page.locator(".mx_UseCaseSelection_skip [role=button]").setTimeout(2000).click().catch(() => {});
    await ann.click(".mx_UserMenu_contextMenuButton");
    await ann.look("menu");
    await ann.click(".mx_UserMenu_iconSignOut");
    await ann.page.locator(".mx_Dialog .mx_Dialog_buttons button, .mx_Dialog ::-p-text(I don't want my encrypted messages)")
        .setTimeout(5000).click().catch(() => {});
    await ann.page.waitForFunction(() => !window.mxMatrixClientPeg.get());
    const deadline = Date.now() + PATIENCE_MS;
    while ((await whoami(session.token)).errcode !== "M_UNKNOWN_TOKEN") {
        assert(Date.now() < deadline, "the session is still there after signing out");
        await new Promise((later) => setTimeout(later, 100));
    }

    const bob = await person("bob");
    await bob.setOut("#/register");
    await bob.see("#username");
    await bob.look("sign-up");
    await bob.page.type("#username", "bob");
    await bob.page.type("#password", password);
    await bob.page.type("#repeated", password);
    await bob.page.keyboard.press("Enter");
    const registered = await bob.allow();
    assert.equal(registered.userId, "@bob:e2e.test");
    // An Element that only knows the older API asks for the password at once.
    const cat = await person("cat");
    await cat.page.goto(`${older.origin}/#/login`);
    await cat.see("#mx_LoginForm_username");
    await cat.look("older-login");
    await cat.page.type("#mx_LoginForm_username", "cat");
    await cat.page.type("#mx_LoginForm_password", password);
    await cat.click(".mx_Login_submit");
    assert.equal((await cat.session()).userId, "@cat:e2e.test");
    console.log("Element Web: signed in, signed out, registered, signed in by the older API");
} catch (error) {
    console.error(said.slice(-60).join("\n"));
    for (const context of browser.browserContexts()) {
        for (const page of await context.pages()) {
            console.error(page.url(), (await page.evaluate(() => document.body.innerText)).slice(0, 1000));
            if (screenshots) await page.screenshot({ path: path.join(screenshots, "oauth-failed.png") });
        }
    }
    throw error;
}
await browser.close();
files.close();
older.files.close();
