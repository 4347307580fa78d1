// An administrator looks at pages of the console.
//
//     node console_pages.mjs ADDRESS CHROMIUM USER PASSWORD DIRECTORY NAME=PATH...
//
// What each page looks like on three widths in both colour schemes is put into the directory, unless its name is empty.
// Judges for itself: ends with an error if something is not as it should be.

import assert from "node:assert/strict";
import { openBrowser, picture } from "./console_browser.mjs";
import { everyLook } from "./looks.mjs";

const [address, executablePath, user, password, directory, ...pages] = process.argv.slice(2);

const { browser, page, complaints } = await openBrowser(executablePath);

await page.goto(`${address}/_logcabin/console`);
await page.type("#user", user);
await page.type("#password", password);
await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
for (const of of pages) {
    const [name, path] = [of.slice(0, of.indexOf("=")), of.slice(of.indexOf("=") + 1)];
    const answer = await page.goto(`${address}/_logcabin/console${path}`);
    assert.equal(answer.status(), 200, path);
    assert.equal(await page.$$eval("main img, main b", (all) => all.length), 0, `${path}: markup of others`);
    await everyLook(page, name, (size, scheme) => picture(page, directory, name, size, scheme));
}
assert.deepEqual(complaints, []);
await browser.close();
