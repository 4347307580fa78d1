// Builds Element Web out of npm's matrix-react-sdk, which is all of it but its shell (`shell.mjs`).
//
//     node build.mjs DIRECTORY
//
// The directory can be served as it is by anything that serves files. `built` in it says what it was made from:
// with the same, nothing is done.

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";
import postcss from "postcss";
import postcssImport from "postcss-import";
import postcssMixins from "postcss-mixins";
import postcssNested from "postcss-nested";
import postcssScss from "postcss-scss";
import postcssSimpleVars from "postcss-simple-vars";

const here = path.dirname(fileURLToPath(import.meta.url));
const modules = path.join(here, "../node_modules");
const sdk = path.join(modules, "matrix-react-sdk");
const from = createRequire(path.join(sdk, "package.json"));
/** Where the package is that matrix-react-sdk uses by this name. */
const folder = (name) => from.resolve.paths(name).map((base) => path.join(base, name)).find(existsSync);
const out = path.resolve(process.argv[2]);

/** What the result depends on. */
async function ingredients() {
    const hash = createHash("sha256");
    for (const name of (await readdir(here)).sort()) hash.update(name).update(await readFile(path.join(here, name)));
    return hash.update(await readFile(path.join(here, "../package-lock.json"))).digest("hex");
}

/** What webpack's loaders do for Element Web. */
const loaders = {
    name: "what webpack does for Element Web",
    setup(build) {
        // Only webpack knows where it puts the translations: without that they are looked for in `i18n/`.
        build.onResolve({ filter: /^\$webapp/ }, ({ path }) => ({ path, namespace: "webapp" }));
        build.onLoad({ filter: /./, namespace: "webapp" }, () => ({ contents: "export default undefined" }));
        build.onResolve({ filter: /^util$/ }, ({ path }) => ({ path, namespace: "util" }));
        build.onLoad({ filter: /./, namespace: "util" }, () => ({ contents: "exports.isArray = Array.isArray" }));
        build.onResolve({ filter: /^!!raw-loader!/ }, ({ path: name, resolveDir }) => ({
            path: path.join(resolveDir, name.slice("!!raw-loader!".length)),
            namespace: "raw",
        }));
        build.onLoad({ filter: /./, namespace: "raw" }, async ({ path }) => ({
            contents: await readFile(path).catch(() => readFile(`${path}.js`)),
            loader: "text",
        }));
        // A picture is an address and, as `Icon`, a component.
        build.onLoad({ filter: /\.svg$/ }, async ({ path: file }) => {
            const picture = await readFile(file, "utf8");
            const contents = `
                import React from "react";
                export default ${JSON.stringify(`data:image/svg+xml,${encodeURIComponent(picture)}`)};
                const [, start, inner] = ${JSON.stringify(/<svg([^>]*)>([^]*)<\/svg>/.exec(picture))};
                const attributes = {};
                for (const [, name, value] of start.matchAll(/([\\w:-]+)="([^"]*)"/g)) {
                    if (!/[:-]|class|style/.test(name)) attributes[name] = value;
                }
                const __html = inner;
                export const Icon = React.forwardRef((props, ref) => React.createElement("svg", {
                    ...attributes, ...props, ref, dangerouslySetInnerHTML: { __html },
                }));`;
            return { contents, resolveDir: here };
        });
        // Programs that are used by their addresses.
        build.onLoad({ filter: /opus-recorder.*Worker\.min\.js$/ }, async ({ path }) => ({
            contents: await readFile(path),
            loader: "file",
        }));
        build.onLoad({ filter: /recorderWorkletFactory\.ts$/ }, () => ({
            contents: 'export default (context) => context.audioWorklet.addModule("/RecorderWorklet.js")',
        }));
        build.onLoad({ filter: /src\/workers\/\w+WorkerFactory\.ts$/ }, async ({ path }) => ({
            contents: (await readFile(path, "utf8")).replace(/"\.\/(\w+)\.worker\.ts"/, '"./$1.worker.js"'),
            loader: "ts",
        }));
    },
};

const common = {
    bundle: true,
    outdir: out,
    format: "esm",
    target: "es2022",
    platform: "browser",
    define: { global: "globalThis", "process.env": "{}", "process.env.NODE_ENV": '"production"' },
    // Not the newer one of the other programs.
    alias: { "matrix-js-sdk": folder("matrix-js-sdk") },
    logLevel: "error",
};

async function scripts() {
    const workers = ["blurhash", "playback", "indexeddb"].map((name) => `workers/${name}.worker.ts`);
    const entryPoints = [...workers, "audio/RecorderWorklet.ts"].map((name) => path.join(sdk, "src", name));
    await esbuild.build({ ...common, entryPoints, entryNames: "[name]" });
    await esbuild.build({
        ...common,
        entryPoints: [path.join(here, "shell.mjs")],
        splitting: true,
        plugins: [loaders],
        inject: [path.join(here, "buffer.mjs")],
        mainFields: ["browser", "module", "main"],
        loader: { ".png": "file", ".gif": "file", ".woff2": "file", ".wasm": "file", ".css": "text" },
        publicPath: "/",
    });
}

/** The light theme. */
async function styles() {
    const file = path.join(sdk, "res/themes/light/css/light.pcss");
    const css = await postcss([
        postcssImport({ path: [modules] }),
        postcssMixins(),
        postcssSimpleVars(),
        postcssNested(),
    ]).process(await readFile(file), { from: file, syntax: postcssScss });
    await cp(path.join(folder("@vector-im/compound-design-tokens"), "icons"), path.join(out, "icons"), { recursive: true });
    for (const name of ["img", "fonts"]) {
        await cp(path.join(sdk, "res", name), path.join(out, "res", name), { recursive: true });
    }
    const text = css.css
        .replaceAll('"@vector-im/compound-design-tokens/icons/', '"/icons/')
        .replaceAll(/(?<=url\(")(\.\.\/)+(?=img|fonts)/g, "/res/");
    await writeFile(path.join(out, "light.css"), text);
}

const made = await ingredients();
const before = await readFile(path.join(out, "built"), "utf8").catch(() => "");
if (before !== made) {
    await rm(out, { recursive: true, force: true });
    await mkdir(path.join(out, "i18n"), { recursive: true });
    await Promise.all([scripts(), styles()]);
    for (const name of ["index.html", "welcome.html", "service_worker.js"]) {
        await cp(path.join(here, name), path.join(out, name));
    }
    await cp(path.join(sdk, "src/i18n/strings/en_EN.json"), path.join(out, "i18n/en_EN.json"));
    await writeFile(path.join(out, "i18n/languages.json"), JSON.stringify({ en: "en_EN.json" }));
    await writeFile(path.join(out, "built"), made);
}
const { name, version } = JSON.parse(await readFile(path.join(sdk, "package.json")));
console.log(`Element Web of ${name} ${version}`);
process.exit();
