// An administrator looks at people, rooms and pictures in the console, and chooses files, with the keyboard.
//
//     node console_media.mjs ADDRESS CHROMIUM USER PASSWORD DIRECTORY NAME=PATH...
//
// The pages are those of a server whose files are pictures, but for three, on the page named "media". What each looks like
// is put into the directory, unless its name is empty. Judges for itself: ends with an error if something is not as it
// should be.

import assert from "node:assert/strict";
import { logIn, lookAt, openBrowser, picture } from "./console_browser.mjs";

const [address, executablePath, user, password, directory, ...pages] = process.argv.slice(2);

const { browser, page, complaints } = await openBrowser(executablePath);

await logIn(page, address, user, password);

/** Every picture in the window has arrived. */
const arrived = () => page.waitForFunction(() => [...document.querySelectorAll("img.shown")]
    .filter((img) => img.getBoundingClientRect().top < innerHeight)
    .every((img) => img.complete && img.naturalWidth > 0));
const filter = () => page.$eval("details.picture img", (img) => getComputedStyle(img).filter);

for (const scripts of [true, false]) {
    await page.setJavaScriptEnabled(scripts);
    await page.goto(`${address}/_logcabin/console/media`);
    await arrived();
    // A picture is blurred until it is asked for, and leads to a larger one.
    assert.match(await filter(), /blur/);
    await page.focus("details.picture summary");
    await page.keyboard.press("Enter");
    assert.equal(await filter(), "none");
    assert.match(await page.$eval("details.picture[open] a", (link) => link.href), /\?width=800$/);
    await page.keyboard.press("Enter");
    assert.match(await filter(), /blur/);
    // Those that are ticked with the keyboard are in the form of the act.
    const values = [];
    for (const box of (await page.$$("input[name=of]")).slice(0, 3)) {
        await box.focus();
        await page.keyboard.press("Space");
        values.push(await box.evaluate((box) => box.value));
    }
    if (scripts) {
        const said = await page.$eval(".several [role=status]", (said) => said.textContent);
        assert.match(said, /^3 of \d+ ticked:$/);
        await picture(page, directory, "media-ticked", "desk", "light");
        await page.click(".several button[type=button]");
        const all = await page.$$eval("input[name=of]", (boxes) => boxes.every((box) => box.checked));
        assert.ok(all, "not all are ticked");
        await page.click(".several button[type=button]");
        for (const value of values) await page.click(`input[value="${value}"]`);
    }
    await page.focus(".several button[value=yes]");
    await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
    assert.match(page.url(), /\/act\/quarantine-media\?/);
    assert.equal(await page.$eval("#of", (field) => field.value), values.join(" "));
    assert.equal(await page.$eval("#quarantined", (field) => field.value), "yes");
}
await page.setJavaScriptEnabled(true);

await lookAt(page, address, directory, pages);
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
for (const [size, width] of directory ? [["phone", 390], ["tablet", 800], ["desk", 1400]] : []) {
    for (const scheme of ["light", "dark"]) {
        await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
        await page.setViewport({ width, height: 900 });
        for (const of of pages) {
            const [name, path] = of.split(/=(.*)/);
            await page.goto(`${address}/_logcabin/console${path}`);
            await arrived();
            await page.screenshot({ path: `${directory}/whole-${name}-${size}-${scheme}.png`, fullPage: true });
        }
    }
}
assert.deepEqual(complaints, []);
await browser.close();
