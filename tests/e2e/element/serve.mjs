// Serves Element Web, as `build.mjs` made it, to the browsers of a test.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import path from "node:path";

const TYPES = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json",
    ".svg": "image/svg+xml", ".png": "image/png", ".wasm": "application/wasm", ".woff2": "font/woff2",
    ".gif": "image/gif", ".ttf": "font/ttf",
};

/**
 * Serves the client in a folder, for the homeserver at an address, with more of its configuration.
 * Returns the server of the files, and the origin.
 */
export async function serve(client, address, more) {
    const config = {
        brand: "Element",
        default_server_config: { "m.homeserver": { base_url: address, server_name: "e2e.test" } },
        disable_guests: true,
        // Nothing is asked of anybody else.
        integrations_ui_url: null, integrations_rest_url: null, integrations_widgets_urls: [],
        map_style_url: null,
        ...more,
    };
    const files = createServer(async (request, response) => {
        const name = decodeURIComponent(new URL(request.url, "http://client").pathname);
        try {
            const file = path.join(client, name === "/" ? "index.html" : path.normalize(name));
            const body = name === "/config.json" ? JSON.stringify(config) : await readFile(file);
            response.setHeader("content-type", TYPES[path.extname(file)] ?? "application/octet-stream");
            response.end(body);
        } catch {
            response.statusCode = 404;
            response.end();
        }
    }).listen(0, "127.0.0.1");
    await new Promise((listening) => files.once("listening", listening));
    return { files, origin: `http://127.0.0.1:${files.address().port}` };
}
