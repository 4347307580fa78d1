// A browser for the console, which listens for what should not be.

import assert from "node:assert/strict";
import puppeteer from "puppeteer-core";
import { everyLook } from "./looks.mjs";
import { PATIENCE_MS } from "./patience.mjs";

/**
 * Starts the browser at `executablePath`. Gives a page, and what went wrong on it so far. Messages of the page's console
 * that match `expected` are no complaints.
 */
export async function openBrowser(executablePath, expected = /(?!)/) {
    const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
    process.on("exit", () => browser.process()?.kill("SIGKILL"));
    const page = await browser.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    const complaints = [];
    page.on("pageerror", (error) => complaints.push(`error: ${error}`));
    page.on("dialog", (dialog) => {
        complaints.push(`a dialog: ${dialog.message()}`);
        dialog.dismiss();
    });
    page.on("console", (message) => {
        const is = expected.test(message.text()) || message.location().url?.endsWith("/favicon.ico");
        if (message.type() === "error" && !is) complaints.push(message.text());
    });
    return { browser, page, complaints };
}

/** Takes a picture of how a page looks now, if there is a directory for them. */
export async function picture(page, directory, name, size, scheme) {
    if (directory) await page.screenshot({ path: `${directory}/console-${name}-${size}-${scheme}.png` });
}

/** Logs an administrator in to the console by password. */
export async function logIn(page, address, user, password) {
    await page.goto(`${address}/_logcabin/console`);
    await page.type("#user", user);
    await page.type("#password", password);
    await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
}

/** Looks at pages, each given as NAME=PATH. They have no markup of others, and no pictures but those of the server. */
export async function lookAt(page, address, directory, pages) {
    for (const of of pages) {
        const [name, path] = [of.slice(0, of.indexOf("=")), of.slice(of.indexOf("=") + 1)];
        const answer = await page.goto(`${address}/_logcabin/console${path}`);
        assert.equal(answer.status(), 200, path);
        const foreign = await page.$$eval("main img, main b", (all) => all
            .filter((one) => !(one.matches("img.shown") && one.getAttribute("src").startsWith("/_logcabin/console/thumbnail/")))
            .map((one) => one.outerHTML));
        assert.deepEqual(foreign, [], `${path}: markup of others`);
        await everyLook(page, name, (size, scheme) => picture(page, directory, name, size, scheme));
    }
}
