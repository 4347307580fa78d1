// An administrator looks at pages of the console.
//
//     node console_pages.mjs ADDRESS CHROMIUM USER PASSWORD DIRECTORY NAME=PATH...
//
// What each page looks like on three widths in both colour schemes is put into the directory, unless its name is empty.
// Judges for itself: ends with an error if something is not as it should be.

import assert from "node:assert/strict";
import { logIn, lookAt, openBrowser } from "./console_browser.mjs";

const [address, executablePath, user, password, directory, ...pages] = process.argv.slice(2);

const { browser, page, complaints } = await openBrowser(executablePath);

await logIn(page, address, user, password);
await lookAt(page, address, directory, pages);
assert.deepEqual(complaints, []);
await browser.close();
