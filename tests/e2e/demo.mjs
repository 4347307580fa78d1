// Somebody logs in to Element Web in headless Chromium, reads a room and says something in it: for `packaging/demo`.
//
//     node demo.mjs ADDRESS CHROMIUM CLIENT AUTHORITY USER PASSWORD ALIAS READS WRITES [SCREENSHOTS]
//
// CLIENT is what `element/build.mjs` made. The browser takes the server's certificate if the server sends AUTHORITY, a
// certificate in a file, as its issuer. READS must be in the room, and WRITES is said there. Fails if any of it does.

import { createHash, X509Certificate } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import path from "node:path";
import puppeteer from "puppeteer-core";

import { serve } from "./element/serve.mjs";
import { PATIENCE_MS } from "./patience.mjs";

const [address, executablePath, client, authority, user, password, alias, reads, writes, screenshots] =
    process.argv.slice(2);

const { files, origin } = await serve(client, address, { features: { feature_oidc_native_flow: false } });
const { publicKey } = new X509Certificate(await readFile(authority));
const key = createHash("sha256").update(publicKey.export({ type: "spki", format: "der" })).digest("base64");
const browser = await puppeteer.launch({
    executablePath,
    args: [
        "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en",
        `--ignore-certificate-errors-spki-list=${key}`,
    ],
});
process.on("exit", () => browser.process()?.kill("SIGKILL"));
if (screenshots) await mkdir(screenshots, { recursive: true });

const page = await browser.newPage();
await page.setViewport({ width: 1200, height: 800 });
const told = [];
page.on("console", (message) => told.push(message.text()));
page.on("requestfailed", (request) => told.push(`${request.url()}: ${request.failure()?.errorText}`));
const see = (selector) => page.locator(selector).setTimeout(PATIENCE_MS).waitHandle();
const click = (selector) => page.locator(selector).setTimeout(PATIENCE_MS).click();
const look = (what) => screenshots && page.screenshot({ path: path.join(screenshots, `demo-${what}.png`) });
const say = (text) => process.stdout.write(`${text}\n`);

try {
    await page.goto(`${origin}/#/login`);
    await see("#mx_LoginForm_username");
    await page.type("#mx_LoginForm_username", user);
    await page.type("#mx_LoginForm_password", password);
    await look("login");
    await click(".mx_Login_submit");
    await see(".mx_LeftPanel, .mx_UseCaseSelection");
    const own = await page.evaluate(() => window.mxMatrixClientPeg.get().getUserId());
    say(`${own} is logged in, at ${address}`);
    await (await page.$(".mx_UseCaseSelection_skip [role=button]"))?.click();
    await see(".mx_LeftPanel");
    await page.evaluate((hash) => { window.location.hash = hash; }, `#/room/${alias}`);
    await see(`.mx_RoomView_timeline ::-p-text(${reads})`);
    say(`${own} reads: ${reads}`);
    await click(".mx_BasicMessageComposer_input");
    await page.keyboard.type(writes);
    await page.keyboard.press("Enter");
    await see(`.mx_RoomView_timeline ::-p-text(${writes})`);
    await look("room");
    say(`${own} writes: ${writes}`);
} catch (error) {
    console.error(told.slice(-40).join("\n"));
    await look("failed");
    throw error;
}
await browser.close();
files.close();
