// A user on matrix-js-sdk, driven over stdin and stdout.
//
// Each line of stdin is a JSON object with an `id`, a command in `do` and its arguments; each is
// answered by a line with the same `id` and either `ok` or `error`. What the client sees by itself
// through its sync is told as lines with `event`. README.md in this folder lists the commands.

import { createHash, createCipheriv, createDecipheriv, randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import * as sdk from "matrix-js-sdk";
import { logger } from "matrix-js-sdk/lib/logger.js";
import { commands as encryption, cryptoCallbacks } from "./js_encryption.mjs";

const PASSWORD = "a password that is long enough";
const address = process.argv[2];

// stdout belongs to the protocol.
logger.setLevel("warn");
for (const name of ["log", "info", "debug", "warn", "trace"]) {
    console[name] = (...args) => console.error(...args);
}

const tell = (line) => process.stdout.write(JSON.stringify(line) + "\n");

let client;

// Events in the order the server gave them, repeats included, by room: the SDK itself hides repeats.
const received = new Map();

// While the client sleeps its syncs get no answer, as on a device without network; `awake` is when it wakes up.
let asleep = false;
let awake = Promise.resolve();
let wakeUp;

// Fetches; what is asked in sleep, or not answered before, is asked when the client is awake.
async function fetchAwake(input, init) {
    for (;;) {
        await awake;
        try {
            const response = await fetch(input, init);
            if (!asleep) return response;
        } catch (error) {
            if (!asleep) throw error;
        }
    }
}

// What the SDK fetches with; tells every request it makes, and keeps what syncs and pages carried.
async function fetchAndTell(input, init) {
    const url = new URL(typeof input === "string" ? input : input.href ?? input.url);
    const response = await (url.pathname.endsWith("/sync") ? fetchAwake : fetch)(input, init);
    const told = { method: init?.method ?? "GET", path: url.pathname, status: response.status };
    const errcode = response.status === 404 ? (await response.clone().json()).errcode : undefined;
    tell({ event: "http", ...told, errcode });
    if (response.ok && url.pathname.endsWith("/sync")) {
        const body = await response.clone().json();
        for (const [roomId, room] of Object.entries(body.rooms?.join ?? {})) {
            const before = received.get(roomId) ?? [];
            received.set(roomId, [...before, ...(room.timeline?.events ?? [])]);
        }
    } else if (response.ok && url.pathname.endsWith("/messages")) {
        const body = await response.clone().json();
        const roomId = decodeURIComponent(url.pathname.split("/").at(-2));
        received.set(roomId, [...body.chunk.toReversed(), ...(received.get(roomId) ?? [])]);
    }
    return response;
}

// Encrypted attachments, which the SDK leaves to what is built on it (client-server API, "Sending encrypted
// attachments").
const unpadded = (bytes) => bytes.toString("base64").replace(/=+$/, "");
const sha256 = (bytes) => unpadded(createHash("sha256").update(bytes).digest());

function encryptAttachment(content) {
    const key = randomBytes(32);
    // The counter is in the second half, and begins at nothing.
    const iv = Buffer.concat([randomBytes(8), Buffer.alloc(8)]);
    const cipher = createCipheriv("aes-256-ctr", key, iv);
    const encrypted = Buffer.concat([cipher.update(content), cipher.final()]);
    const k = unpadded(key).replaceAll("+", "-").replaceAll("/", "_");
    const jwk = { kty: "oct", key_ops: ["encrypt", "decrypt"], alg: "A256CTR", k, ext: true };
    return [encrypted, { v: "v2", key: jwk, iv: unpadded(iv), hashes: { sha256: sha256(encrypted) } }];
}

function decryptAttachment(encrypted, { key, iv, hashes }) {
    if (sha256(encrypted) !== hashes.sha256) throw new Error("the attachment is not what was sent");
    const bytes = (text) => Buffer.from(text, "base64");
    const decipher = createDecipheriv("aes-256-ctr", bytes(key.k), bytes(iv));
    return Buffer.concat([decipher.update(encrypted), decipher.final()]);
}

// Of a file at an address of the SDK's making, what a client sees of it.
async function fetchFile(address) {
    const response = await fetchAndTell(address, {
        headers: { Authorization: `Bearer ${client.getAccessToken()}` },
    });
    if (!response.ok) throw Object.assign(new Error(), { data: await response.json() });
    const shown = response.headers.get("content-disposition");
    const [, encoded] = /filename\*=utf-8''([^;]+)/.exec(shown) ?? [];
    const [, quoted, token] = /filename=(?:"((?:[^"\\]|\\.)*)"|([^;]+))/.exec(shown) ?? [];
    const name = encoded ? decodeURIComponent(encoded) : quoted?.replace(/\\(.)/g, "$1") ?? token;
    return {
        content: Buffer.from(await response.arrayBuffer()),
        content_type: response.headers.get("content-type"),
        name: name ?? null,
        disposition: shown.split(";")[0],
    };
}

const inText = (file) => ({ ...file, content: file.content.toString("base64") });

const connect = (options) =>
    sdk.createClient({
        baseUrl: address,
        fetchFn: fetchAndTell,
        timelineSupport: true,
        cryptoCallbacks,
        ...options,
    });

function watch() {
    client.on(sdk.RoomEvent.Timeline, (event, room, toStart, removed, data) => {
        if (toStart || removed || !data.liveEvent || event.status !== null) return;
        const { url, file } = event.getContent();
        if (event.getType() === "m.room.avatar") {
            tell({ event: "room_avatar", room_id: room.roomId, url: room.getMxcAvatarUrl() });
        } else if (url || file) {
            tell({
                event: "media",
                room_id: room.roomId,
                event_id: event.getId(),
                type: event.getType(),
                url: url ?? file.url,
                content: event.getContent(),
            });
            return;
        }
        if (event.getType() !== "m.room.message" || event.isRedacted()) return;
        // An edit is told when the SDK has taken it over into the message, below.
        if (event.getRelation()?.rel_type === "m.replace") return;
        tell({
            event: "message",
            room_id: room.roomId,
            event_id: event.getId(),
            sender: event.getSender(),
            body: event.getContent().body,
        });
    });
    client.on(sdk.ClientEvent.AccountData, (event) => {
        tell({ event: "account_data", type: event.getType(), content: event.getContent() });
    });
    client.on(sdk.MatrixEventEvent.Replaced, (event) => {
        if (!event.replacingEvent()) return;
        tell({
            event: "edit",
            room_id: event.getRoomId(),
            of: event.getId(),
            event_id: event.replacingEventId(),
            sender: event.getSender(),
            body: event.getContent().body,
        });
    });
    client.on(sdk.RoomEvent.Redaction, (event, room) => {
        if (event.status !== null) return;
        tell({
            event: "redaction",
            room_id: room.roomId,
            of: event.getAssociatedId(),
            reason: event.getContent().reason ?? null,
        });
    });
    // The SDK tells of the user's own membership separately, and only there reliably: a room newly
    // joined gets new state, to which the old membership is unknown.
    client.on(sdk.RoomEvent.MyMembership, (room, membership) => {
        tell({ event: "member", room_id: room.roomId, user_id: client.getUserId(), membership });
    });
    client.on(sdk.RoomMemberEvent.Membership, (event, member) => {
        if (member.userId === client.getUserId()) return;
        tell({
            event: "member",
            room_id: member.roomId,
            user_id: member.userId,
            membership: member.membership,
        });
    });
}

const commands = {
    ...encryption(() => client, PASSWORD),

    // As the specification has it: asks for the flows first, then completes one with the session.
    async register({ user }) {
        const anonymous = connect({});
        const request = {
            username: user,
            password: PASSWORD,
            initial_device_display_name: "js-sdk under test",
        };
        let session;
        try {
            await anonymous.registerRequest(request);
            throw new Error("the server asked for no authentication");
        } catch (error) {
            session = error.data?.session;
            if (!session) throw error;
        }
        const auth = { type: "m.login.dummy", session };
        const done = await anonymous.registerRequest({ ...request, auth });
        client = connect({
            userId: done.user_id,
            accessToken: done.access_token,
            deviceId: done.device_id,
        });
        return { user_id: done.user_id, device_id: done.device_id };
    },

    async login({ user }) {
        const done = await connect({}).loginRequest({
            type: "m.login.password",
            identifier: { type: "m.id.user", user },
            password: PASSWORD,
        });
        client = connect({
            userId: done.user_id,
            accessToken: done.access_token,
            deviceId: done.device_id,
        });
        return { user_id: done.user_id, device_id: done.device_id };
    },

    // Starts to sync; answered when the first sync is over.
    async start({ encrypt = false }) {
        if (encrypt) await client.initRustCrypto({ useIndexedDB: false });
        const prepared = new Promise((resolve, reject) => {
            client.on(sdk.ClientEvent.Sync, (state, _, data) => {
                if (state === "PREPARED") resolve();
                if (state === "ERROR") reject(data?.error ?? new Error("the sync failed"));
            });
        });
        await client.startClient({ initialSyncLimit: 20, lazyLoadMembers: false });
        await prepared;
        watch();
        return { rooms: client.getRooms().map((room) => room.roomId).sort() };
    },

    async pause() {
        asleep = true;
        awake = new Promise((resolve) => (wakeUp = resolve));
    },

    async resume() {
        asleep = false;
        wakeUp();
    },

    async create_room({ name, invite = [], encrypted = false }) {
        const content = { algorithm: "m.megolm.v1.aes-sha2" };
        const encryption = { type: "m.room.encryption", state_key: "", content };
        return await client.createRoom({
            name,
            invite,
            is_direct: invite.length === 1,
            initial_state: encrypted ? [encryption] : [],
        });
    },

    async invite({ room_id, user_id }) {
        await client.invite(room_id, user_id);
    },

    async join({ room_id }) {
        await client.joinRoom(room_id);
    },

    async leave({ room_id }) {
        await client.leave(room_id);
    },

    async kick({ room_id, user_id }) {
        await client.kick(room_id, user_id, "because");
    },

    async send({ room_id, body }) {
        return await client.sendTextMessage(room_id, body);
    },

    async edit({ room_id, event_id, body }) {
        return await client.sendEvent(room_id, "m.room.message", {
            "msgtype": "m.text",
            "body": `* ${body}`,
            "m.new_content": { msgtype: "m.text", body },
            "m.relates_to": { rel_type: "m.replace", event_id },
        });
    },

    async redact({ room_id, event_id, reason }) {
        return await client.redactEvent(room_id, event_id, undefined, { reason });
    },

    // Gives what goes into an event: `url`, or `file` of what was encrypted.
    async upload({ content, content_type, name, encrypt }) {
        const plain = Buffer.from(content, "base64");
        if (!encrypt) {
            const { content_uri: url } = await client.uploadContent(plain, { type: content_type, name });
            return { url };
        }
        const [encrypted, keys] = encryptAttachment(plain);
        const { content_uri: url } = await client.uploadContent(encrypted, { includeFilename: false });
        return { file: { url, ...keys } };
    },

    // `legacy` asks at the path of before Matrix 1.11.
    async download({ url, file, name, legacy }) {
        let address = client.mxcUrlToHttp(
            file?.url ?? url, undefined, undefined, undefined, false, true, !legacy);
        if (name) address = address.replace(/(\?|$)/, `/${encodeURIComponent(name)}$1`);
        const got = await fetchFile(address);
        return inText(file ? { ...got, content: decryptAttachment(got.content, file) } : got);
    },

    async thumbnail({ url, width, height, legacy }) {
        return inText(await fetchFile(
            client.mxcUrlToHttp(url, width, height, "crop", false, true, !legacy)));
    },

    async send_event({ room_id, type, content }) {
        return await client.sendEvent(room_id, type, content);
    },

    async set_avatar({ url }) {
        await client.setAvatarUrl(url);
    },

    async avatar({ user_id }) {
        return { url: (await client.getProfileInfo(user_id, "avatar_url")).avatar_url };
    },

    async set_room_avatar({ room_id, url }) {
        await client.sendStateEvent(room_id, "m.room.avatar", { url }, "");
    },

    async set_account_data({ type, content }) {
        await client.setAccountData(type, content);
    },

    // The room's whole history: the timeline of the first sync, then page after page before it.
    // `events` is as received, oldest first, repeats included; `shown` counts what the SDK made of it.
    async page_back({ room_id, limit }) {
        const room = client.getRoom(room_id);
        let pages = 1;
        while (room.oldState.paginationToken !== null) {
            await client.scrollback(room, limit);
            pages += 1;
        }
        const events = received.get(room_id).map((event) => ({
            event_id: event.event_id,
            type: event.type,
            body: event.content.body ?? null,
        }));
        return { pages, events, shown: room.getLiveTimeline().getEvents().length };
    },

    async stop() {
        client?.stopClient();
    },
};

for await (const line of createInterface({ input: process.stdin })) {
    const { id, do: name, ...args } = JSON.parse(line);
    try {
        tell({ id, ok: (await commands[name](args)) ?? {} });
    } catch (error) {
        const { errcode = null, message } = error;
        tell({ id, error: { errcode, error: error.data?.error ?? message ?? String(error) } });
    }
    if (name === "stop") break;
}
process.exit(0);
