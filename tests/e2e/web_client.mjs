// Two people use Element Web in headless Chromium, from the account's creation to an encrypted room.
//
//     node web_client.mjs ADDRESS CHROMIUM CLIENT [SCREENSHOTS]
//
// CLIENT is what `element/build.mjs` made. It is served from another origin than the server's. Whatever the
// server refuses that is not in `REFUSALS`, and whatever the client complains of on its console that is not in
// `REMARKS`, is a failure. Judges for itself, says what it does, and ends with "all went well".

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { crc32, deflateSync } from "node:zlib";
import puppeteer from "puppeteer-core";

import { serve } from "./element/serve.mjs";
import { PATIENCE_MS } from "./patience.mjs";

const [address, executablePath, client, screenshots] = process.argv.slice(2);
const PASSWORD = "correct horse battery staple";

/** What the server is to refuse: method, path, status, errcode, and why the client asks for it. */
const REFUSALS = [
    // It learns how to register, and once more when it does.
    { method: "POST", path: /\/v3\/register$/, status: 401, errcode: "" },
    // Nobody has a backup of keys yet, which it asks about now and again.
    { method: "GET", path: /\/v3\/room_keys\/version$/, status: 404, errcode: "M_NOT_FOUND" },
    // Who only looks at an invitation is not in the room; the client asks for its members all the same.
    { method: "GET", path: /\/v3\/rooms\/[^/]+\/members$/, status: 403, errcode: "M_FORBIDDEN" },
    // It looks whether an address is free while that is typed.
    { method: "GET", path: /\/v3\/directory\/room\/[^/]+$/, status: 404, errcode: "M_NOT_FOUND" },
    // It tries to look into a room before it joins.
    { method: "GET", path: /\/v3\/rooms\/[^/]+\/initialSync$/, status: 403, errcode: "M_FORBIDDEN" },
    // A proposal that became `auth_metadata`.
    { method: "GET", path: /\/unstable\/org\.matrix\.msc2965\/auth_issuer$/, status: 404, errcode: "M_UNRECOGNIZED" },
];

/** What the client says on its console when all is well, and why. */
const REMARKS = [
    // What was refused is judged above.
    /^Failed to load resource/,
    // There is no server at the name of the server, which it asks for `.well-known` after logging in.
    /^No response or error when parsing .well-known$/,
    /^Failed to fetch$/,
    // It sees its own message before it has sent it, and tries again when it has.
    /^Error sending receipt .*Cannot set read receipt to a pending event/,
    // As above, of an invitation.
    /M_FORBIDDEN: MatrixError: \[403\] You are not in this room\. \(\S+\/members\?/,
    // It hears of a new room's state before it has made the room.
    /^MatrixRTCSessionManager Got room state event for unknown room/,
];

const say = (text) => process.stdout.write(`${text}\n`);

// The client's files, on an origin of their own.

const { files, origin } = await serve(client, address, { disable_3pid_login: true });

// The browser, and what goes wrong in it.

const complaints = [];
/** What is still being looked at. */
const judging = [];
/** Ends all, because the client itself has failed. */
let broken;
const breaks = new Promise((_, reject) => { broken = reject; });
const browser = await puppeteer.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"],
});
process.on("exit", () => browser.process()?.kill("SIGKILL"));
const scratch = await mkdtemp(path.join(tmpdir(), "logcabin-web-"));
if (screenshots) await mkdir(screenshots, { recursive: true });

async function judge(name, response) {
    const url = new URL(response.url());
    const status = response.status();
    if (status < 400 || url.protocol === "data:") return;
    const method = response.request().method();
    const body = await response.text().catch(() => "");
    const errcode = /"errcode":"(\w+)"/.exec(body)?.[1] ?? "";
    const expected = url.origin === address && REFUSALS.some((refusal) =>
        refusal.method === method && refusal.status === status && refusal.errcode === errcode
            && refusal.path.test(url.pathname));
    if (expected) say(`${name}: ${method} ${url.pathname} is refused with ${status} ${errcode}, as it is to be`);
    else complaints.push(`${name}: ${method} ${url} was answered with ${status} ${body.slice(0, 300)}`);
}

/** A person with a browser of their own. */
async function person(name) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.setViewport({ width: 1200, height: 800 });
    page.on("response", (response) => judging.push(judge(name, response)));
    page.on("requestfailed", (request) => {
        const why = request.failure()?.errorText;
        // The client gives up what it no longer needs.
        const wellKnown = request.url() === "https://e2e.test/.well-known/matrix/client";
        if (why !== "net::ERR_ABORTED" && !wellKnown) complaints.push(`${name}: ${request.url()} failed: ${why}`);
    });
    const expected = (text) => REMARKS.some((remark) => remark.test(text));
    page.on("pageerror", (error) => expected(error?.message) || broken(error));
    page.on("console", async (message) => {
        if (message.type() !== "error") return;
        // What is said of an object tells nothing.
        const told = await Promise.all(message.args().map((arg) => arg.evaluate((value) =>
            typeof value === "string" ? value
                : JSON.stringify(value, (_, inner) => inner instanceof Error ? String(inner) : inner)).catch(() => "?")));
        const text = told.join(" ") || message.text();
        if (!expected(text)) complaints.push(`${name} on the console: ${text.slice(0, 2000)}`);
    });
    return new Person(name, page);
}

class Person {
    constructor(name, page) {
        this.name = name;
        this.page = page;
        this.userId = `@${name}:e2e.test`;
    }

    /** The element, as soon as it is there to be seen. */
    see(selector) { return this.page.locator(selector).setTimeout(PATIENCE_MS).waitHandle(); }

    click(selector) { return this.page.locator(selector).setTimeout(PATIENCE_MS).click(); }

    /** Clicks on what may or may not be there. */
    async dismiss(selector) {
        const found = await this.page.$(selector);
        await found?.click();
    }

    async type(selector, text) {
        await this.click(selector);
        await this.page.keyboard.type(text);
    }

    async look(what) {
        if (screenshots) await this.page.screenshot({ path: path.join(screenshots, `${what}-${this.name}.png`) });
    }

    async open(hash) {
        await this.page.goto(`${origin}/${hash}`);
        // A page that does not have its service worker yet has no pictures.
        await this.page.waitForFunction(() => navigator.serviceWorker.controller);
    }

    async register() {
        await this.open("#/register");
        await this.type("#mx_RegistrationForm_username", this.name);
        await this.type("#mx_RegistrationForm_password", PASSWORD);
        await this.type("#mx_RegistrationForm_passwordConfirm", PASSWORD);
        await this.look("register");
        await this.click(".mx_Login_submit");
        await this.see(".mx_LeftPanel, .mx_UseCaseSelection");
        await this.dismiss(".mx_UseCaseSelection_skip [role=button]");
        await this.see(".mx_HomePage, .mx_UserOnboardingPage");
        await this.look("home");
        say(`${this.name} has registered`);
    }

    /** Whether the messages come from devices that their owners have signed. */
    async trusts() {
        await this.page.waitForFunction(() => {
            const shields = document.querySelectorAll(".mx_RoomView_timeline .mx_EventTile_e2eIcon_warning");
            return shields.length === 0;
        });
    }

    /** Makes a room, encrypted if it is not open to all, and stays in it. */
    async create(name, { open }) {
        await this.click("[role=button][aria-label='Add room']");
        await this.click("::-p-aria(New room)");
        await this.type(".mx_CreateRoomDialog_name input", name);
        if (open) {
            await this.click(".mx_JoinRuleDropdown .mx_Dropdown_input");
            await this.click(".mx_JoinRuleDropdown_public");
            await this.type(".mx_CreateRoomDialog_aliasContainer input", name.toLowerCase());
        }
        await this.look(`create-${name}`);
        await this.click(".mx_CreateRoomDialog .mx_Dialog_primary");
        // The room that is left has an introduction, too.
        await this.see(`.mx_NewRoomIntro ::-p-text(${name})`);
        await this.look(`created-${name}`);
        say(`${this.name} has made ${name}`);
    }

    /** Finds the other by name and invites them. */
    async invite(other) {
        await this.click(".mx_NewRoomIntro_inviteButton");
        await this.type(".mx_InviteDialog_editor input", other.userId);
        await this.click(`.mx_InviteDialog_tile ::-p-text(${other.userId})`);
        await this.look("invite");
        await this.click(".mx_InviteDialog_goButton");
        await this.reads(`invited ${other.name}`);
        say(`${this.name} has invited ${other.name}`);
    }

    async accept(name) {
        await this.click(`.mx_RoomTile ::-p-text(${name})`);
        await this.look(`invited-${name}`);
        await this.click(".mx_RoomPreviewBar_actions .mx_AccessibleButton_kind_primary");
        await this.see(".mx_BasicMessageComposer_input");
        say(`${this.name} has joined ${name}`);
    }

    /** Joins a room by its address. */
    async join(alias) {
        await this.page.evaluate((hash) => { window.location.hash = hash; }, `#/room/${alias}`);
        await this.click(".mx_RoomPreviewBar_actions .mx_AccessibleButton_kind_primary");
        await this.see(".mx_BasicMessageComposer_input");
        say(`${this.name} has joined ${alias}`);
    }

    async write(text) {
        await this.type(".mx_BasicMessageComposer_input", text);
        await this.page.keyboard.press("Enter");
        await this.reads(text);
    }

    /** Waits until something is in the timeline. */
    reads(text) { return this.see(`.mx_RoomView_timeline ::-p-text(${text})`); }

    /** Sends a picture. */
    async show(file) {
        const input = await this.page.waitForSelector(".mx_MessageComposer input[type=file]");
        await input.uploadFile(file);
        await this.look("upload");
        await this.click(".mx_UploadConfirmDialog .mx_Dialog_primary");
        say(`${this.name} has sent a picture`);
    }

    /** Waits until as many pictures are shown, and each of them really. */
    async seesPictures(count) {
        await this.page.waitForFunction((count) => {
            const pictures = [...document.querySelectorAll(".mx_MImageBody img.mx_MImageBody_thumbnail")];
            return pictures.length === count && pictures.every((img) => img.complete && img.naturalWidth > 0);
        }, {}, count);
    }

    /** Presses a button of the bar that hovering over a message shows. */
    async act(text, label) {
        const message = await this.reads(text);
        await message.hover();
        await this.click(`.mx_MessageActionBar [aria-label='${label}']`);
    }

    async react(text, emoji) {
        await this.act(text, "React");
        await this.click(`.mx_EmojiPicker_quick ::-p-text(${emoji})`);
        await this.seesReaction(emoji);
    }

    seesReaction(emoji) { return this.see(`.mx_ReactionsRowButton ::-p-text(${emoji})`); }

    async reply(text, answer) {
        await this.act(text, "Reply");
        await this.see(".mx_ReplyPreview");
        await this.write(answer);
        await this.seesReply(answer);
    }

    async seesReply(answer) {
        await this.reads(answer);
        await this.see(".mx_ReplyTile");
    }
}

/** A picture that can be told from a broken one: 320 by 200, in three colours. */
function picture() {
    const [width, height] = [320, 200];
    const rows = Array.from({ length: height }, (_, y) => {
        const row = Array.from({ length: width }, (_, x) => [x < 160 ? 200 : 40, y < 100 ? 160 : 60, 90]);
        return Buffer.from([0, ...row.flat()]);
    });
    const chunk = (type, data) => {
        const body = Buffer.concat([Buffer.from(type), data]);
        const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
        length.writeUInt32BE(data.length);
        sum.writeUInt32BE(crc32(body));
        return Buffer.concat([length, body, sum]);
    };
    const header = Buffer.alloc(13);
    header.writeUInt32BE(width, 0);
    header.writeUInt32BE(height, 4);
    header.set([8, 2], 8);
    return Buffer.concat([
        Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
        chunk("IHDR", header), chunk("IDAT", deflateSync(Buffer.concat(rows))), chunk("IEND", Buffer.alloc(0)),
    ]);
}

/** All that two people do with each other in a room that both are in. */
async function talk(ann, bob, room, file) {
    await ann.write(`Hello from ${room}`);
    await bob.reads(`Hello from ${room}`);
    await bob.write("Good to see you here");
    await ann.reads("Good to see you here");
    await ann.react("Good to see you here", "👍");
    await bob.seesReaction("👍");
    await bob.reply(`Hello from ${room}`, "And hello to you");
    await ann.seesReply("And hello to you");
    await ann.show(file);
    await ann.seesPictures(1);
    await bob.seesPictures(1);
    await bob.show(file);
    await ann.seesPictures(2);
    for (const person of [ann, bob]) await person.look(`talk-${room}`);
    say(`they have talked in ${room}`);
}

async function story() {
    const file = path.join(scratch, "picture.png");
    await writeFile(file, picture());
    const [ann, bob] = [await person("ann"), await person("bob")];
    await ann.register();
    await bob.register();

    await ann.create("Den", { open: false });
    await ann.invite(bob);
    await bob.accept("Den");
    await talk(ann, bob, "Den", file);
    for (const person of [ann, bob]) await person.trusts();

    await bob.create("Square", { open: true });
    await ann.join("#square:e2e.test");
    await talk(ann, bob, "Square", file);
}

try {
    await Promise.race([story(), breaks]);
    await Promise.all(judging);
    assert.deepEqual(complaints, []);
    say("all went well");
} catch (error) {
    for (const complaint of complaints) say(complaint);
    for (const context of browser.browserContexts()) {
        for (const page of await context.pages()) {
            const file = path.join(screenshots ?? scratch, `end-${Date.now()}.png`);
            await page.screenshot({ path: file }).catch(() => {});
        }
    }
    throw error;
} finally {
    await rm(scratch, { recursive: true });
    await browser.close();
    files.close();
}
