// What a client does with rooms besides talking, on matrix-js-sdk: lazily loaded members, timeline windows,
// threads, reactions, search, spaces, room upgrades, tags, read receipts with unread counts.
//
// `node js_rooms.mjs ADDRESS` says what it does and exits with 0 if all of it went well.

import assert from "node:assert/strict";
import * as sdk from "matrix-js-sdk";
import { Person, say, until } from "./js_person.mjs";

const address = process.argv[2];
const HISTORY = 120;

const ann = await Person.register(address, "ann");
const bob = await Person.register(address, "bob");
const cas = await Person.register(address, "cas");
const dan = await Person.register(address, "dan");
await ann.start({ lazyLoadMembers: true, threadSupport: true });

const text = (body, more = {}) => ({ msgtype: "m.text", body, ...more });
const inThread = (root) => ({ "m.relates_to": { rel_type: "m.thread", event_id: root } });
const send = async (person, roomId, content, type = "m.room.message") =>
    (await person.client.sendEvent(roomId, type, content)).event_id;

say("ann makes a room; the others join; bob alone speaks");
const { room_id: roomId } = await ann.client.createRoom({ preset: "public_chat", name: "The Cabin" });
for (const person of [bob, cas, dan]) {
    await person.client.joinRoom(roomId);
}
const history = [];
for (let number = 0; number < HISTORY; number += 1) {
    history.push(await send(bob, roomId, text(`number ${number}`)));
}

say("a second device of ann's loads members lazily");
const second = await Person.login(address, "ann", ann.localpart);
await second.start({ lazyLoadMembers: true, threadSupport: true, initialSyncLimit: 5 });
const room = second.client.getRoom(roomId);
assert.equal(room.getMember(bob.id)?.membership, "join", "bob has spoken");
assert.equal(room.getMember(ann.id)?.membership, "join", "ann is the one who looks");
assert.equal(room.getMember(cas.id), null, "cas was not asked for");
assert.equal(room.getJoinedMemberCount(), 4);
await room.loadMembersIfNeeded();
assert.equal(room.getMember(cas.id)?.membership, "join");
assert.equal(room.getJoinedMembers().length, 4);

say("a timeline window opens in the middle and grows to both ends");
const window = new sdk.TimelineWindow(second.client, room.getUnfilteredTimelineSet());
await window.load(history[HISTORY / 2], 10);
while (window.canPaginate(sdk.Direction.Backward)) {
    if (!(await window.paginate(sdk.Direction.Backward, 13))) break;
}
while (window.canPaginate(sdk.Direction.Forward)) {
    if (!(await window.paginate(sdk.Direction.Forward, 13))) break;
}
const shown = window.getEvents().filter((event) => event.getType() === "m.room.message");
assert.deepEqual(shown.map((event) => event.getId()), history, "each message once, in order");
assert.equal(window.getEvents()[0].getType(), "m.room.create");

say("a thread and reactions to it");
const root = await send(ann, roomId, text("the root"));
await until("ann has the root", () => ann.client.getRoom(roomId).findEventById(root));
const replies = [];
for (const body of ["first", "second", "third"]) {
    const reply = await send(bob, roomId, text(body, inThread(root)));
    replies.push(reply);
    // One after the other: while the client still asks for the root, it can lose count of replies.
    await until(`ann's client has ${body}`, () => {
        const room = ann.client.getRoom(roomId);
        return (room.getThread(root)?.findEventById(reply) ?? room.findEventById(reply)) !== undefined;
    });
}
// Its length may come with the root, before the replies themselves.
await until("ann's client has the thread", () => {
    const thread = ann.client.getRoom(roomId).getThread(root);
    return thread?.length === 3 && thread.replyToEvent?.getId() === replies[2];
});
const third = await Person.login(address, "ann", ann.localpart);
await third.start({ lazyLoadMembers: true, threadSupport: true, initialSyncLimit: 5 });
const listed = third.client.getRoom(roomId);
await listed.createThreadsTimelineSets();
await listed.fetchRoomThreads();
await until("a new device lists the thread", () => listed.getThread(root)?.length === 3);
const reaction = { "m.relates_to": { rel_type: "m.annotation", event_id: root, key: "🪵" } };
await send(bob, roomId, reaction, "m.reaction");
await send(cas, roomId, reaction, "m.reaction");
const related = await ann.client.relations(roomId, root, "m.annotation", "m.reaction");
assert.deepEqual(related.events.map((event) => event.getSender()).sort(), [bob.id, cas.id].sort());
await assert.rejects(send(cas, roomId, reaction, "m.reaction"), { errcode: "M_DUPLICATE_ANNOTATION" });

say("unread counts, of the room and of the thread, until ann reads");
const annsRoom = ann.client.getRoom(roomId);
const mention = { "m.mentions": { user_ids: [ann.id] } };
const asked = await send(cas, roomId, text("ann?", mention));
await until("the mention counts", () => annsRoom.getUnreadNotificationCount("highlight") >= 1);
const askedInThread = await send(cas, roomId, text("and here?", { ...inThread(root), ...mention }));
await until("the thread's mention counts", () =>
    annsRoom.getThreadUnreadNotificationCount(root, "highlight") === 1);
await until("ann has both", () =>
    annsRoom.findEventById(asked) && annsRoom.getThread(root)?.findEventById(askedInThread));
await ann.client.sendReadReceipt(annsRoom.findEventById(asked));
await ann.client.sendReadReceipt(annsRoom.getThread(root).findEventById(askedInThread));
await until("nothing is unread", () =>
    annsRoom.getRoomUnreadNotificationCount("highlight") === 0 &&
    annsRoom.getThreadUnreadNotificationCount(root, "highlight") === 0);

say("search finds a message and the user directory a user");
const found = await ann.client.search({
    body: { search_categories: { room_events: { search_term: "the root", keys: ["content.body"] } } },
});
assert.equal(found.search_categories.room_events.results[0].result.event_id, root);
const users = await ann.client.searchUserDirectory({ term: bob.localpart });
assert.deepEqual(users.results.map((user) => user.user_id), [bob.id]);

say("a space with the room in it");
const { room_id: space } = await ann.client.createRoom({
    preset: "public_chat",
    name: "The Woods",
    creation_content: { type: "m.space" },
});
await ann.client.sendStateEvent(space, "m.space.child", { via: ["localhost"] }, roomId);
const { rooms } = await ann.client.getRoomHierarchy(space);
assert.deepEqual(rooms.map((of) => of.room_id), [space, roomId]);
assert.equal(rooms[0].children_state[0].state_key, roomId);
assert.equal(rooms[1].num_joined_members, 4);
await until("ann's client knows the space", () => ann.client.getRoom(space)?.isSpaceRoom());

say("the room is upgraded; bob follows");
await bob.start({ lazyLoadMembers: true });
const { replacement_room: replacement } = await ann.client.upgradeRoom(roomId, "11");
await until("bob sees the tombstone", () => {
    const tombstone = bob.client.getRoom(roomId).currentState.getStateEvents("m.room.tombstone", "");
    return tombstone?.getContent().replacement_room === replacement;
});
await bob.client.joinRoom(replacement);
await until("bob is in the new room", () => bob.client.getRoom(replacement)?.getMyMembership() === "join");
const upgraded = bob.client.getRoom(replacement);
await until("the new room has its state", () => upgraded.name === "The Cabin");
assert.equal(upgraded.getVersion(), "11");
assert.equal(upgraded.findPredecessor()?.roomId, roomId);
const versions = bob.client.getRoomUpgradeHistory(replacement).map((of) => of.roomId);
assert.deepEqual(versions, [roomId, replacement]);

say("a tag");
await bob.client.setRoomTag(replacement, "m.favourite", { order: 0.5 });
await until("it comes back by sync", () => upgraded.tags["m.favourite"]?.order === 0.5);

const failures = [ann, bob, cas, dan, second, third].flatMap((person) => person.failures);
assert.deepEqual(failures, [], "requests that the server did not know");
say("all went well");
process.exit(0);
