// Two users on matrix-js-sdk with its encryption write to each other in an encrypted room, verify each
// other's identity keys, and read on a new device.
//
// `node js_crypto.mjs ADDRESS` says what it does and exits with 0 if all of it went well.

import assert from "node:assert/strict";
import { Person, say, until } from "./js_person.mjs";

const address = process.argv[2];

// What bob has written down: the key to what his devices store for each other on the server.
let recovery;
const written = { getSecretStorageKey: async ({ keys }) => [Object.keys(keys)[0], recovery] };

const ann = await Person.register(address, "ann");
const bob = await Person.register(address, "bob", written);
for (const person of [ann, bob]) {
    await person.encrypt();
    await person.start();
}

say("ann makes an encrypted room and bob joins it");
const { room_id: roomId } = await ann.client.createRoom({
    preset: "private_chat",
    invite: [bob.id],
    initial_state: [
        { type: "m.room.encryption", state_key: "", content: { algorithm: "m.megolm.v1.aes-sha2" } },
    ],
});
await until("bob is invited", () => bob.client.getRoom(roomId)?.getMyMembership() === "invite");
await bob.client.joinRoom(roomId);
await until("ann sees bob", () =>
    ann.client.getRoom(roomId)?.getMember(bob.id)?.membership === "join");

for (const [writer, reader, body] of [[ann, bob, "only for bob"], [bob, ann, "only for ann"]]) {
    const { event_id: eventId } = await writer.client.sendTextMessage(roomId, body);
    const event = await until(`${reader.name} has it`, () =>
        reader.client.getRoom(roomId).findEventById(eventId));
    await until(`${reader.name} reads it`, () => event.getContent().body === body);
    assert.equal(event.getWireType(), "m.room.encrypted");
    assert.equal(event.getWireContent().body, undefined);
    say(`${reader.name} decrypted: ${event.getContent().body}`);
}

say("bob logs in on a second device, which is found and written to");
const second = await Person.login(address, "bob", bob.localpart);
await second.encrypt();
await second.start();
await until("ann knows both devices", async () => {
    const devices = await ann.client.getCrypto().getUserDeviceInfo([bob.id]);
    return devices.get(bob.id)?.size === 2;
});
const { event_id: eventId } = await ann.client.sendTextMessage(roomId, "for both devices");
for (const reader of [bob, second]) {
    const event = await until("it arrives", () =>
        reader.client.getRoom(roomId)?.findEventById(eventId));
    await until("it is read", () => event.getContent().body === "for both devices");
}

say("bob cross-signs, and ann learns of it");
const crypto = bob.client.getCrypto();
await crypto.bootstrapCrossSigning({
    authUploadDeviceSigningKeys: async (request) => await request(null),
});
await until("ann knows bob's identity", () =>
    ann.client.getCrypto().userHasCrossSigningKeys(bob.id, true));
await until("ann sees that bob has signed his device", async () => {
    const device = bob.client.getDeviceId();
    const status = await ann.client.getCrypto().getDeviceVerificationStatus(bob.id, device);
    return status?.signedByOwner;
});

say("bob backs his keys up; a device that gets the backup's key reads what was written before it");
await crypto.bootstrapSecretStorage({
    createSecretStorageKey: async () => {
        const key = await crypto.createRecoveryKeyFromPassphrase();
        recovery = key.privateKey;
        return key;
    },
    setupNewKeyBackup: true,
    setupNewSecretStorage: true,
});
const backup = await crypto.checkKeyBackupAndEnable();
assert.ok(backup?.backupInfo.version);
await until("all keys are in the backup", async () => {
    const { count } = await bob.client.http.authedRequest("GET", "/room_keys/version");
    return count >= 2;
});
const third = await Person.login(address, "bob", bob.localpart, written);
await third.encrypt();
await third.start();
await third.client.getCrypto().loadSessionBackupPrivateKeyFromSecretStorage();
const restored = await third.client.getCrypto().restoreKeyBackup();
assert.equal(restored.imported, restored.total);
assert.ok(restored.imported >= 2, `${restored.imported} keys`);
const old = await until("the history is there", () =>
    third.client.getRoom(roomId)?.findEventById(eventId));
await until("the history is read", () => old.getContent().body === "for both devices");

const failures = [ann, bob, second, third].flatMap((person) => person.failures);
assert.deepEqual(failures, [], "requests that the server did not know");
say("all went well");
process.exit(0);
