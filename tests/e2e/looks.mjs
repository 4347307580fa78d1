// Looks at a page as people see it: on three widths, in both colour schemes, and with axe-core.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const WIDTHS = [
    ["phone", 360],
    ["tablet", 800],
    ["desk", 1400],
];
const AXE = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** Everyone can use the page. Calls `look` with each size and scheme once the page has them. */
export async function everyLook(page, name, look) {
    await page.evaluate(AXE);
    for (const [size, width] of WIDTHS) {
        for (const scheme of ["light", "dark"]) {
            await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
            await page.setViewport({ width, height: 800 });
            const where = `${name}, ${size}, ${scheme}`;
            const wider = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
            assert.ok(wider <= 0, `${where}: ${wider} pixels wider than the window`);
            // Nothing but colours depends on the scheme.
            const rules = scheme === "light" ? {} : { runOnly: ["color-contrast", "link-in-text-block"] };
            const violations = await page.evaluate(async (rules) => (await axe.run(rules)).violations
                .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`), rules);
            assert.deepEqual(violations, [], where);
            await look(size, scheme, where);
        }
    }
}
