// What a moderation bot such as Draupnir does, on matrix-bot-sdk, on which Draupnir is built: a room to be
// commanded in, a list of bans, rooms that it protects, reports, and the admin API.
//
// `node moderation_bot.mjs ADDRESS` says what it does and exits with 0 if all of it went well. The account
// `moderator` is an administrator. A line of JSON with `order` asks for something on the server's command line;
// the answer is a line of input.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import Module, { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { PATIENCE_MS } from "./patience.mjs";

// Nothing here is encrypted, and the binary of the encryption is not in its package.
const load = Module._load;
const UNUSED = "@matrix-org/matrix-sdk-crypto-nodejs";
Module._load = (name, ...more) => (name === UNUSED ? {} : load(name, ...more));
const require = createRequire(import.meta.url);
const { LogLevel, LogService, MatrixAuth, MatrixClient, MatrixGlob, MemoryStorageProvider } =
    require("@vector-im/matrix-bot-sdk");
LogService.setLevel(LogLevel.ERROR);
LogService.muteModule("MatrixHttpClient");

const address = process.argv[2];
const PASSWORD = "a password that is long enough";
const PROTECTED = "org.example.bot.protected_rooms";
const WATCHED = "org.example.bot.watched_lists";
const POLL = "org.example.bot.report_poll";

const say = (text) => process.stdout.write(`${text}\n`);
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const order = async (what) => {
    say(JSON.stringify(what));
    const { value, done } = await input.next();
    if (done) throw new Error("nobody answers");
    return JSON.parse(value);
};
const until = async (what, holds) => {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
        const found = await holds();
        if (found) return found;
        if (Date.now() > deadline) throw new Error(`in vain: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
};
// The refusal of what must be refused.
const refusal = async (asked) => {
    try {
        await asked;
    } catch (error) {
        assert.ok(error.body?.errcode, String(error));
        return error.body.errcode;
    }
    throw new Error("it was not refused");
};
const encode = encodeURIComponent;
const auth = new MatrixAuth(address);
const person = async (name) => {
    const client = await auth.passwordRegister(name, PASSWORD);
    client.id = await client.getUserId();
    return client;
};
const membership = async (client, roomId, userId) =>
    (await client.getRoomStateEventContent(roomId, "m.room.member", userId)).membership;

// The bot: what it has in memory, and what it does on its own.
class Bot {
    protectedRooms = [];
    invited = [];
    heard = new Set();
    seen = new Map();
    joinedAt = new Map();
    commands = [];
    words = ["forbidden"];

    static async login(moderators) {
        const { accessToken } = await auth.passwordLogin("moderator", PASSWORD);
        const bot = new Bot();
        bot.client = new MatrixClient(address, accessToken, new MemoryStorageProvider());
        bot.id = await bot.client.getUserId();
        bot.moderators = moderators;
        bot.client.on("room.event", (roomId, event) => bot.reads(roomId, event));
        bot.client.on("room.invite", (roomId, invite) => bot.isInvited(roomId, invite));
        await bot.client.start({ room: { timeline: { limit: 100 } } });
        return bot;
    }

    async isInvited(roomId, invite) {
        if (this.moderators.includes(invite.sender)) {
            await this.client.joinRoom(roomId);
        } else {
            await this.client.leaveRoom(roomId, "not by one of my moderators");
        }
        this.invited.push({ roomId, sender: invite.sender });
    }

    async reads(roomId, event) {
        this.heard.add(event.event_id);
        if (roomId === this.management) return this.obeys(event);
        if (!this.protectedRooms.includes(roomId) || event.sender === this.id) return;
        if (event.type === "m.room.member" && event.content.membership === "join") {
            this.joinedAt.set(`${roomId} ${event.state_key}`, event.origin_server_ts);
            return;
        }
        if (event.type !== "m.room.message" || !event.content.msgtype) return;
        const key = `${roomId} ${event.sender}`;
        const age = event.origin_server_ts - (this.joinedAt.get(key) ?? 0);
        const times = this.seen.get(key) ?? [];
        times.push(event.origin_server_ts);
        this.seen.set(key, times);
        if (times.length === 10 && times[9] - times[0] < 60_000) {
            await this.client.banUser(event.sender, roomId, "flooding");
            await this.redactAll(roomId, event.sender);
        } else if (age < 60_000 && this.words.some((word) => event.content.body?.includes(word))) {
            await this.client.banUser(event.sender, roomId, "a word of the list");
        } else if (age < 60_000 && ["m.image", "m.video"].includes(event.content.msgtype)) {
            await this.client.redactEvent(roomId, event.event_id, "no pictures from newcomers");
        }
    }

    // A command is done when a moderator has confirmed it with a reaction.
    async obeys(event) {
        if (!this.moderators.includes(event.sender)) return;
        const command = /^!bot ban (\S+) (.*)$/.exec(event.content.body ?? "");
        if (event.type === "m.room.message" && command) {
            const [, entity, reason] = command;
            const asks = await this.client.replyNotice(this.management, event, `Ban ${entity}?`);
            await this.client.unstableApis.addReactionToEvent(this.management, asks, "👍");
            this.commands.push({ asks, entity, reason });
        } else if (event.type === "m.reaction") {
            const about = event.content["m.relates_to"];
            const index = this.commands.findIndex(({ asks }) => asks === about?.event_id);
            if (index < 0 || about.key !== "👍") return;
            const [{ entity, reason }] = this.commands.splice(index, 1);
            await this.rule("user", entity, reason);
            await this.applyList();
        }
    }

    rule(kind, entity, reason, recommendation = "m.ban") {
        const content = { entity, reason, recommendation };
        return this.client.sendStateEvent(this.list, `m.policy.rule.${kind}`, `rule:${entity}`, content);
    }

    // Everything in the list, in every protected room: bans with reasons, and the ACL.
    async applyList() {
        const state = await this.client.getRoomState(this.list);
        const of = (kind) => state.filter(({ type, content }) =>
            type === `m.policy.rule.${kind}` && ["m.ban", "m.takedown"].includes(content.recommendation));
        const deny = of("server").map(({ content }) => content.entity);
        const matches = ({ content }, userId) => content.entity
            ? new MatrixGlob(content.entity).test(userId)
            : content.hashes.sha256 === createHash("sha256").update(userId).digest("base64");
        for (const roomId of this.protectedRooms) {
            const acl = { allow: ["*"], deny, allow_ip_literals: false };
            await this.client.sendStateEvent(roomId, "m.room.server_acl", "", acl);
            for (const member of await this.client.getRoomMembers(roomId, null, ["join", "invite"])) {
                const rule = of("user").find((rule) => matches(rule, member.membershipFor));
                if (rule) await this.client.banUser(member.membershipFor, roomId, rule.content.reason);
            }
        }
    }

    // As Draupnir: back through the whole room, with a filter for the sender; how many pages it took.
    async redactAll(roomId, sender) {
        const filter = JSON.stringify({ rooms: [roomId], senders: [sender] });
        const path = `/_matrix/client/v3/rooms/${encode(roomId)}/messages`;
        let from;
        let pages = 0;
        for (;;) {
            const page = await this.client.doRequest("GET", path, { filter, dir: "b", ...(from && { from }) });
            pages += 1;
            assert.ok(page.chunk.every((event) => event.sender === sender), "the filter holds");
            for (const event of page.chunk.filter((event) => event.state_key === undefined)) {
                if (event.unsigned?.redacted_because) continue;
                await this.client.redactEvent(roomId, event.event_id, "spam");
            }
            if (!page.end || page.end === from) return pages;
            from = page.end;
        }
    }

    protect(roomId) {
        this.protectedRooms.push(roomId);
        return this.client.setAccountData(PROTECTED, { rooms: this.protectedRooms });
    }

    // The reports after the last ones, oldest first, each with its event as it was.
    async poll() {
        const { from } = await this.client.getSafeAccountData(POLL, { from: 0 });
        const query = { ...(from && { from }), dir: "f" };
        const found = await this.client.doRequest("GET", "/_synapse/admin/v1/event_reports", query);
        const reports = [];
        for (const report of found.event_reports) {
            for (const name of ["room_id", "event_id", "sender", "user_id"]) {
                assert.equal(typeof report[name], "string", `${name} of a report`);
            }
            assert.equal(typeof report.id, "number");
            const around = `/_synapse/admin/v1/rooms/${report.room_id}/context/${report.event_id}?limit=1`;
            const { event } = await this.client.doRequest("GET", around);
            reports.push({ ...report, event });
            const shown = `${report.user_id} reports ${event.sender}: ${report.reason}`;
            await this.client.sendHtmlNotice(this.management, `<b>Report</b> ${shown}`);
        }
        await this.client.setAccountData(POLL, { from: found.next_token ?? found.total ?? 0 });
        return reports;
    }
}

say("people; the bot logs in");
const names = ["alice", "mallory", "rita", "flora", "wilma", "nora", "spam_one", "henry", "tom"];
const [alice, mallory, rita, flora, wilma, nora, spam, henry, tom] = await Promise.all(names.map(person));
const bot = await Bot.login([alice.id]);
assert.ok((await bot.client.getServerVersions()).versions.includes("v1.11"));
assert.ok((await bot.client.getCapabilities())["m.room_versions"]);
assert.equal(await bot.client.adminApis.synapse.isSelfAdmin(), true);

say("it makes its room, and its list with an alias");
bot.management = await bot.client.createRoom({ preset: "private_chat", name: "Moderators", invite: [alice.id] });
await alice.joinRoom(bot.management);
bot.list = await bot.client.createRoom({
    preset: "public_chat",
    name: "Bans",
    room_alias_name: "bans",
    creation_content: { type: "support.feline.policy.lists.msc.v1" },
    initial_state: [{ type: "org.example.bot.shortcode", state_key: "", content: { shortcode: "bans" } }],
    power_level_content_override: { ban: 50, kick: 50, redact: 50, state_default: 50, events_default: 50 },
});
const domain = bot.id.split(":").slice(1).join(":");
assert.equal(await bot.client.resolveRoom(`#bans:${domain}`), bot.list);
await bot.client.setAccountData(WATCHED, { references: [bot.list] });
await order({ order: "subscribe", room_id: bot.list });

say("it is asked into rooms, and learns whether it may do there what it has to");
const lounge = await alice.createRoom({ preset: "public_chat", name: "Lounge", room_alias_name: "lounge" });
const den = await alice.createRoom({ preset: "public_chat", name: "Den", room_version: "12" });
const garden = await alice.createRoom({ preset: "private_chat", name: "Garden", invite: [bot.id] });
await until("it takes the invite", async () => bot.invited.some(({ roomId }) => roomId === garden));
const trap = await mallory.createRoom({ preset: "private_chat", name: "Trap", invite: [bot.id] });
await until("it declines the invite", async () => bot.invited.some(({ roomId }) => roomId === trap));
assert.equal(await membership(mallory, trap, bot.id), "leave");
for (const room of [`#lounge:${domain}`, den]) await bot.client.joinRoom(room);
const joined = await bot.client.getJoinedRooms();
assert.ok([lounge, den, garden].every((roomId) => joined.includes(roomId)) && !joined.includes(trap));
for (const roomId of [lounge, den]) {
    assert.equal(await bot.client.userHasPowerLevelForAction(bot.id, roomId, "ban"), false);
    await alice.setUserPowerLevel(bot.id, roomId, 100);
    for (const action of ["ban", "kick", "redact"]) {
        assert.equal(await bot.client.userHasPowerLevelForAction(bot.id, roomId, action), true);
    }
    assert.equal(await bot.client.userHasPowerLevelFor(bot.id, roomId, "m.room.server_acl", true), true);
    await bot.protect(roomId);
    await alice.sendStateEvent(roomId, "org.logcabin.policy_lists", "", { enabled: true });
}

say("a rule: the user is banned where it protects, and all of their messages are redacted");
bot.protectedRooms = [];
for (const client of [mallory, rita, spam]) {
    await client.joinRoom(lounge);
    await client.joinRoom(den);
}
const sent = [];
for (let number = 0; number < 35; number += 1) {
    sent.push(await mallory.sendText(lounge, `buy number ${number}`));
    if (number % 3 === 0) await rita.sendText(lounge, "please stop");
}
await until("it has heard all of it", async () => bot.heard.has(sent.at(-1)));
bot.protectedRooms = [lounge, den];
await bot.rule("user", mallory.id, "spam");
await bot.applyList();
for (const roomId of [lounge, den]) {
    const ban = await bot.client.getRoomStateEventContent(roomId, "m.room.member", mallory.id);
    assert.deepEqual([ban.membership, ban.reason], ["ban", "spam"]);
}
assert.ok(await bot.redactAll(lounge, mallory.id) > 3, "several pages");
for (const eventId of sent) {
    const event = await alice.getRawEvent(lounge, eventId);
    assert.deepEqual(event.content, {});
    assert.equal(event.unsigned.redacted_because.content.reason, "spam");
}
assert.equal(await refusal(mallory.joinRoom(lounge)), "M_FORBIDDEN");

say("the server applies the same rule everywhere: no invites by that user, no joins where rooms ask");
const elsewhere = await mallory.createRoom({ preset: "private_chat", name: "Elsewhere" });
await until("an invite is refused", async () =>
    mallory.inviteUser(nora.id, elsewhere).then(() => mallory.kickUser(nora.id, elsewhere).then(() => false),
        (error) => error.body.errcode === "M_FORBIDDEN"));
const hall = await alice.createRoom({ preset: "public_chat", name: "Hall" });
await mallory.joinRoom(hall);
await mallory.leaveRoom(hall);
await alice.sendStateEvent(hall, "org.logcabin.policy_lists", "", { enabled: true });
assert.equal(await refusal(mallory.joinRoom(hall)), "M_FORBIDDEN");

say("patterns, hashes and takedowns");
await bot.rule("user", `@spam_*:${domain}`, "a family of accounts");
const hash = createHash("sha256").update(henry.id).digest("base64");
const hashed = { hashes: { sha256: hash }, recommendation: "m.ban", reason: "hashed" };
await bot.client.sendStateEvent(bot.list, "m.policy.rule.user", `rule:${hash}`, hashed);
await bot.rule("user", tom.id, "taken down", "m.takedown");
for (const client of [henry, tom]) await client.joinRoom(lounge).catch(() => {});
await bot.applyList();
assert.equal(await membership(bot.client, lounge, spam.id), "ban");
assert.equal(await membership(bot.client, den, spam.id), "ban");
await until("a pattern is for registrations, too", async () =>
    person(`spam_${Math.random().toString(36).slice(2)}`).then(() => false, (error) => Boolean(error)));
await until("a hash is applied by the server", async () => henry.joinRoom(hall).then(
    () => henry.leaveRoom(hall).then(() => false), (error) => error.body.errcode === "M_FORBIDDEN"));
await tom.joinRoom(hall);
assert.equal(await membership(bot.client, lounge, tom.id), "ban", "the bot bans for a takedown");

say("servers: an ACL in every protected room");
await bot.rule("server", "evil.example", "all of it");
await bot.rule("server", "*.evil.example", "all of it");
await bot.applyList();
for (const roomId of bot.protectedRooms) {
    const acl = await alice.getRoomStateEventContent(roomId, "m.room.server_acl", "");
    assert.deepEqual(acl.deny.sort(), ["*.evil.example", "evil.example"]);
}

say("a rule is taken back");
await bot.client.sendStateEvent(bot.list, "m.policy.rule.user", `rule:${mallory.id}`, {});
await bot.client.unbanUser(mallory.id, lounge);
await until("the user is let in again", async () => mallory.joinRoom(lounge).then(() => true, () => false));

say("protections over sync: a flood, a word of a list, a newcomer's picture");
for (const client of [flora, wilma, nora]) await client.joinRoom(lounge);
const flood = [];
for (let number = 0; number < 12; number += 1) {
    const id = await flora.sendText(lounge, `wave ${number}`).catch(() => undefined);
    if (id) flood.push(id);
}
await until("the flood is over", async () => (await membership(alice, lounge, flora.id)) === "ban");
await until("it is redacted", async () => {
    const events = await Promise.all(flood.map((id) => alice.getRawEvent(lounge, id)));
    return events.every(({ content }) => Object.keys(content).length === 0);
});
await wilma.sendText(lounge, "this is forbidden here");
await until("the word is noticed", async () => (await membership(alice, lounge, wilma.id)) === "ban");
const url = await nora.uploadContent(Buffer.from("a picture"), "image/png", "a.png");
const picture = await nora.sendMessage(lounge, { msgtype: "m.image", body: "a.png", url });
await until("the picture is gone", async () => !(await alice.getRawEvent(lounge, picture)).content.url);
assert.equal(await membership(alice, lounge, nora.id), "join");

say("a moderator commands it, and confirms with a reaction");
await alice.sendText(bot.management, `!bot ban ${wilma.id} by command`);
const { asks } = await until("it asks", async () => bot.commands[0]);
await alice.unstableApis.addReactionToEvent(bot.management, asks, "👍");
await until("the rule is in the list", async () =>
    bot.client.getRoomStateEventContent(bot.list, "m.policy.rule.user", `rule:${wilma.id}`)
        .then(({ reason }) => reason === "by command", () => false));

say("reports: each once, with the event");
const report = async (client, roomId, eventId, reason) => client.doRequest(
    "POST", `/_matrix/client/v3/rooms/${encode(roomId)}/report/${encode(eventId)}`, null, { reason });
const bad = await mallory.sendText(lounge, "an insult");
await report(rita, lounge, bad, "rude");
let reports = await bot.poll();
assert.deepEqual(reports.map(({ reason, event }) => [reason, event.content.body]), [["rude", "an insult"]]);
assert.deepEqual(await bot.poll(), []);
const worse = await mallory.sendText(lounge, "another insult");
await report(nora, lounge, worse, "rude again");
await report(rita, lounge, bad, "still rude");
reports = await bot.poll();
assert.deepEqual(reports.map(({ reason }) => reason), ["rude again", "still rude"]);
assert.deepEqual(reports.map(({ user_id }) => user_id), [nora.id, rita.id]);

say("accounts, as an administrator: suspended, shadow-banned, redacted, closed");
const admin = (method, path, body) => bot.client.doRequest(method, `/_synapse/admin/${path}`, null, body);
const details = (client) => admin("GET", `v2/users/${encode(client.id)}`);
await admin("PUT", `v1/suspend/${encode(mallory.id)}`, { suspend: true });
assert.equal((await details(mallory)).suspended, true);
assert.equal(await refusal(mallory.sendText(lounge, "may I")), "M_USER_SUSPENDED");
await admin("PUT", `v1/suspend/${encode(mallory.id)}`, { suspend: false });
const capability = (await bot.client.getCapabilities())["m.account_moderation"];
assert.deepEqual([capability?.suspend, capability?.lock], [true, true]);
const moderation = (what) => `/_matrix/client/v1/admin/${what}/${encode(mallory.id)}`;
for (const [what, does, undoes, code] of [
    ["suspend", { suspended: true }, { suspended: false }, "M_USER_SUSPENDED"],
    ["lock", { locked: true }, { locked: false }, "M_USER_LOCKED"],
]) {
    await bot.client.doRequest("PUT", moderation(what), null, does);
    assert.deepEqual(await bot.client.doRequest("GET", moderation(what)), does);
    assert.equal(await refusal(mallory.sendText(lounge, "may I")), code);
    await bot.client.doRequest("PUT", moderation(what), null, undoes);
}
await admin("POST", `v1/users/${encode(mallory.id)}/shadow_ban`, {});
assert.equal((await details(mallory)).shadow_banned, true);
const unseen = await mallory.sendText(lounge, "does anybody hear me");
assert.equal(await refusal(alice.getRawEvent(lounge, unseen)), "M_NOT_FOUND");
await admin("DELETE", `v1/users/${encode(mallory.id)}/shadow_ban`, {});
const { redact_id: redactId } = await admin("POST", `v1/user/${encode(mallory.id)}/redact`, { rooms: [] });
const redaction = await until("all is redacted", async () => {
    const status = await admin("GET", `v1/user/redact_status/${encode(redactId)}`);
    return status.status === "complete" && status;
});
assert.deepEqual(redaction.failed_redactions, {});
assert.deepEqual((await alice.getRawEvent(lounge, worse)).content, {});
await admin("POST", `v1/deactivate/${encode(mallory.id)}`, { erase: true });
assert.deepEqual([(await details(mallory)).deactivated, (await details(mallory)).erased], [true, true]);
assert.equal(await refusal(mallory.getWhoAmI()), "M_UNKNOWN_TOKEN");
assert.equal(await refusal(details({ id: `@nobody:${domain}` })), "M_NOT_FOUND");

say("a room that it is not in: it takes the power there");
const attic = await nora.createRoom({ preset: "private_chat", name: "Attic" });
bot.moderators.push(nora.id);
await bot.client.adminApis.synapse.makeRoomAdmin(attic, bot.id);
await until("it comes in", async () =>
    (await bot.client.getJoinedRooms()).includes(attic)
    && bot.client.userHasPowerLevelForAction(bot.id, attic, "ban"));

say("rooms are looked at, blocked and shut down");
const { rooms } = await bot.client.adminApis.synapse.listRooms("Attic", undefined, 10, "joined_members", true);
assert.deepEqual(rooms.map(({ room_id: id, creator }) => [id, creator]), [[attic, nora.id]]);
const block = (roomId) => admin("GET", `v1/rooms/${encode(roomId)}/block`);
assert.deepEqual(await block(attic), { block: false });
await admin("DELETE", `v2/rooms/${encode(attic)}`,
    { new_room_user_id: bot.id, room_name: "Closed", message: "It was shut down.", block: true, purge: true });
await until("everybody is out", async () => !(await nora.getJoinedRooms()).includes(attic));
assert.deepEqual(await block(attic), { block: true, user_id: bot.id });
const purged = await until("it is removed", async () =>
    admin("GET", `v1/rooms/${encode(attic)}`).then(() => false, (error) => error.body.errcode));
assert.equal(purged, "M_NOT_FOUND");
assert.equal(await refusal(nora.joinRoom(attic)), "M_FORBIDDEN");
const gone = await admin("DELETE", `v1/rooms/${encode(hall)}`, { new_room_user_id: bot.id, block: true });
assert.ok(gone.kicked_users.includes(alice.id) && gone.new_room_id, JSON.stringify(gone));
assert.ok((await alice.getJoinedRooms()).includes(gone.new_room_id));

say("it starts again, and knows what it protects");
bot.client.stop();
const again = await Bot.login([alice.id]);
assert.deepEqual(await again.client.getAccountData(PROTECTED), { rooms: [lounge, den] });
assert.deepEqual(await again.client.getAccountData(WATCHED), { references: [bot.list] });
assert.deepEqual(await again.client.getAccountData(POLL), { from: 3 });
again.client.stop();

say("all went well");
process.exit(0);
