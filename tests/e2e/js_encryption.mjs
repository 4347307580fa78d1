// What js_client.mjs does about encryption: the commands of README.md's second table.

import * as sdk from "matrix-js-sdk";
import { decodeRecoveryKey } from "matrix-js-sdk/lib/crypto-api/recovery-key.js";
import { VerificationPhase } from "matrix-js-sdk/lib/crypto-api/verification.js";
import { PATIENCE_MS } from "./patience.mjs";

const SAS = "m.sas.v1";

// Waits until `holds` gives something true, and gives that.
async function until(what, holds) {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
        const found = await holds();
        if (found) return found;
        if (Date.now() > deadline) throw new Error(`in vain: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
}

// What the user has written down: the key to what the devices store for each other on the server.
let recoveryKey;

export const cryptoCallbacks = {
    getSecretStorageKey: async ({ keys }) => [Object.keys(keys)[0], recoveryKey],
};

const withoutPassword = { authUploadDeviceSigningKeys: async (request) => await request(null) };

// Verifications under way: their `request`, and once emoji are shown the `sas` and when it is `done`.
const flows = new Map();

// The emoji and how it went, as soon as there are emoji to compare.
async function compare(flow) {
    const { request } = flow;
    if (request.initiatedByMe) {
        await until("the other is ready", () => {
            refuseCancelled(request);
            return request.phase === VerificationPhase.Ready;
        });
        await request.startVerification(SAS);
    }
    const verifier = await until("the emoji are begun", () => {
        refuseCancelled(request);
        return request.verifier;
    });
    flow.done = verifier.verify().then(() => null, (error) => error);
    flow.sas = await until("there are emoji", () => {
        refuseCancelled(request);
        return verifier.getShowSasCallbacks();
    });
    return flow.sas.sas.emoji.map(([symbol, name]) => `${symbol} ${name}`);
}

function refuseCancelled(request) {
    if (request.phase === VerificationPhase.Cancelled) {
        throw new Error(`cancelled: ${request.cancellationCode}`);
    }
}

// The text of an event, if the client could decrypt it.
const bodyOf = (event) =>
    event.isBeingDecrypted() || event.isDecryptionFailure() ? null : event.getContent().body ?? null;

export const commands = (client, password) => ({
    async cross_sign() {
        await client().getCrypto().bootstrapCrossSigning(withoutPassword);
    },

    async knows({ user_id }) {
        const crypto = client().getCrypto();
        const found = await crypto.getUserDeviceInfo([user_id], true);
        const devices = {};
        for (const id of found.get(user_id)?.keys() ?? []) {
            const status = await crypto.getDeviceVerificationStatus(user_id, id);
            devices[id] = {
                signed: status?.signedByOwner ?? false,
                verified: status?.crossSigningVerified ?? false,
            };
        }
        const user = await crypto.getUserVerificationStatus(user_id);
        return { verified: user.isCrossSigningVerified(), devices };
    },

    async verify({ user_id, room_id, device_id }) {
        const crypto = client().getCrypto();
        const request = room_id
            ? await crypto.requestVerificationDM(user_id, room_id)
            : await crypto.requestDeviceVerification(user_id, device_id);
        flows.set(request.transactionId, { request });
        return { flow_id: request.transactionId };
    },

    async accept({ user_id, room_id, flow_id }) {
        const crypto = client().getCrypto();
        const request = await until("the request arrives", () => {
            const requests = room_id
                ? [crypto.findVerificationRequestDMInProgress(room_id, user_id)]
                : crypto.getVerificationRequestsToDeviceInProgress(user_id);
            return requests.find((request) => request?.transactionId === flow_id);
        });
        flows.set(flow_id, { request });
        await request.accept();
    },

    async emoji({ flow_id }) {
        return { emoji: await compare(flows.get(flow_id)) };
    },

    async confirm({ flow_id, same }) {
        const { sas, done } = flows.get(flow_id);
        if (same === true) await sas.confirm();
        if (same === false) sas.mismatch();
        const error = await done;
        return { verified: error === null };
    },

    async read({ room_id, event_id }) {
        const event = client().getRoom(room_id)?.findEventById(event_id);
        return { body: event ? bodyOf(event) : null };
    },

    async decrypt({ event }) {
        const copy = new sdk.MatrixEvent(event);
        await client().decryptEventIfNeeded(copy);
        return { body: bodyOf(copy) };
    },

    async membership({ room_id }) {
        return { membership: client().getRoom(room_id)?.getMyMembership() ?? null };
    },

    async rotate({ room_id }) {
        await client().getCrypto().forceDiscardSession(room_id);
    },

    async back_up() {
        const crypto = client().getCrypto();
        const key = await crypto.createRecoveryKeyFromPassphrase();
        recoveryKey = key.privateKey;
        await crypto.bootstrapSecretStorage({
            createSecretStorageKey: async () => key,
            setupNewKeyBackup: true,
            setupNewSecretStorage: true,
        });
        await crypto.checkKeyBackupAndEnable();
        await until("all keys are in the backup", async () => {
            const { count } = await client().http.authedRequest("GET", "/room_keys/version");
            const keys = JSON.parse(await crypto.exportRoomKeysAsJson());
            return count >= keys.length;
        });
        return { recovery_key: key.encodedPrivateKey };
    },

    async recover({ recovery_key }) {
        recoveryKey = decodeRecoveryKey(recovery_key);
        const crypto = client().getCrypto();
        const own = client().getUserId();
        // The private keys that are fetched below belong to public ones that a new device may not know yet.
        await until("the user's public keys", () => crypto.userHasCrossSigningKeys(own, true));
        // Signs this device, too.
        await crypto.bootstrapCrossSigning(withoutPassword);
        await crypto.loadSessionBackupPrivateKeyFromSecretStorage();
        await crypto.checkKeyBackupAndEnable();
        const { imported, total } = await crypto.restoreKeyBackup();
        if (imported !== total) throw new Error(`${imported} of ${total} keys were good`);
    },

    async delete_device({ device_id }) {
        const user = client().getUserId();
        try {
            await client().deleteDevice(device_id);
            throw new Error("the server asked for no authentication");
        } catch (error) {
            const session = error.data?.session;
            if (!session) throw error;
            const identifier = { type: "m.id.user", user };
            await client().deleteDevice(device_id, {
                type: "m.login.password", session, identifier, password,
            });
        }
    },
});
