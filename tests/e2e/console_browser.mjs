// A browser for the console, which listens for what should not be.

import puppeteer from "puppeteer-core";
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
