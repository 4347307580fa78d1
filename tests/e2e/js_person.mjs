// A user on matrix-js-sdk, for programs that drive several of them in one process.

import * as sdk from "matrix-js-sdk";
import { logger } from "matrix-js-sdk/lib/logger.js";
import { PATIENCE_MS } from "./patience.mjs";

const PASSWORD = "a password that is long enough";

logger.setLevel("error");
for (const name of ["log", "info", "debug", "warn", "trace"]) {
    console[name] = () => {};
}

export const say = (text) => process.stdout.write(`${text}\n`);

// Waits until `holds` gives something true, and gives that.
export async function until(what, holds) {
    const deadline = Date.now() + PATIENCE_MS;
    for (;;) {
        const found = await holds();
        if (found) return found;
        if (Date.now() > deadline) throw new Error(`in vain: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
}

export class Person {
    // Answers that say that the server does not know what was asked, or failed.
    failures = [];

    constructor(address, name, credentials, cryptoCallbacks = {}) {
        this.name = name;
        const fetchFn = async (input, init) => {
            const response = await fetch(input, init);
            if ([404, 405].includes(response.status) || response.status >= 500) {
                const { errcode } = await response.clone().json();
                if (errcode !== "M_NOT_FOUND") {
                    this.failures.push(`${init?.method ?? "GET"} ${new URL(input).pathname} ${errcode}`);
                }
            }
            return response;
        };
        this.client = sdk.createClient({
            baseUrl: address,
            fetchFn,
            timelineSupport: true,
            cryptoCallbacks,
            userId: credentials?.user_id,
            accessToken: credentials?.access_token,
            deviceId: credentials?.device_id,
        });
    }

    get id() {
        return this.client.getUserId();
    }

    get localpart() {
        return this.id.slice(1, this.id.indexOf(":"));
    }

    static async register(address, name, cryptoCallbacks = {}) {
        const username = `${name}-${Math.random().toString(36).slice(2, 10)}`;
        const anonymous = new Person(address, name).client;
        const auth = { type: "m.login.dummy" };
        const done = await anonymous.registerRequest({ username, password: PASSWORD, auth });
        return new Person(address, name, done, cryptoCallbacks);
    }

    static async login(address, name, user, cryptoCallbacks = {}) {
        const done = await new Person(address, name).client.loginRequest({
            type: "m.login.password",
            identifier: { type: "m.id.user", user },
            password: PASSWORD,
        });
        return new Person(address, name, done, cryptoCallbacks);
    }

    async encrypt() {
        await this.client.initRustCrypto({ useIndexedDB: false });
    }

    async start(options = {}) {
        const prepared = new Promise((resolve, reject) => {
            this.client.on(sdk.ClientEvent.Sync, (state, _, data) => {
                if (state === "PREPARED") resolve();
                if (state === "ERROR") reject(data?.error ?? new Error("the sync failed"));
            });
        });
        await this.client.startClient({ initialSyncLimit: 20, ...options });
        await prepared;
    }
}
