// What a person does with an account, on matrix-js-sdk: registers with an e-mail address, forgets the password
// and sets a new one by mail, has expired tokens refreshed, is logged out softly and comes back.
//
// `node js_account.mjs ADDRESS` says what it does and exits with 0 if all of it went well. It asks for each mail
// by a line `mail TO`, and is given it as a line of JSON. Access tokens are to live for a few seconds.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import * as sdk from "matrix-js-sdk";
import { Person, say } from "./js_person.mjs";

const address = process.argv[2];
const suffix = Math.random().toString(36).slice(2, 10);
const email = `ann-${suffix}@example.org`;
const username = `ann-${suffix}`;
const [first, second] = ["the first password, a long one", "the second password, as long"];

const given = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
// The next mail to an address, as plain text.
async function nextMail(to) {
    say(`mail ${to}`);
    const { value } = await given.next();
    return JSON.parse(value).plain;
}

// Does what a person does with a mail: opens the link, and presses the button of the page.
async function follow(mail) {
    const link = mail.match(/https?:\/\/\S+/)[0];
    const page = await fetch(link);
    assert.equal(page.status, 200, await page.clone().text());
    const html = await page.text();
    const action = html.match(/<form[^>]*action="([^"]*)"/)?.[1]?.replaceAll("&amp;", "&");
    const fields = [...html.matchAll(/<input[^>]*type="hidden"[^>]*>/g)].map(([input]) => [
        input.match(/name="([^"]*)"/)[1],
        input.match(/value="([^"]*)"/)[1].replaceAll("&amp;", "&"),
    ]);
    const done = await fetch(new URL(action || link, link), {
        method: "POST",
        body: new URLSearchParams(fields),
    });
    assert.equal(done.status, 200, await done.clone().text());
}

// Completes the stages of user-interactive authentication, one after the other, until the request succeeds.
async function interactive(attempt, stages) {
    let auth = undefined;
    for (;;) {
        try {
            return await attempt(auth);
        } catch (error) {
            if (error.httpStatus !== 401 || !error.data?.flows) throw error;
            assert.equal(error.data.errcode, undefined, JSON.stringify(error.data));
            const { flows, completed = [], session } = error.data;
            const flow = flows.find(({ stages: wanted }) => wanted.every((stage) => stages[stage]));
            assert.ok(flow, `a flow that can be gone through: ${JSON.stringify(flows)}`);
            const stage = flow.stages.find((wanted) => !completed.includes(wanted));
            auth = { type: stage, session, ...(await stages[stage]()) };
        }
    }
}

const threepid = (sid, client_secret) => ({ threepid_creds: { sid, client_secret } });

say("ann registers with an e-mail address");
const anonymous = new Person(address, "ann").client;
const secret = anonymous.generateClientSecret();
const asked = await anonymous.requestRegisterEmailToken(email, secret, 1);
await follow(await nextMail(email));
const registered = await interactive(
    (auth) => anonymous.registerRequest({ username, password: first, auth, refresh_token: true }),
    {
        "m.login.email.identity": async () => threepid(asked.sid, secret),
        "m.login.dummy": async () => ({}),
    },
);
assert.equal(registered.user_id.split(":")[0], `@${username}`);
const ann = new Person(address, "ann", registered);
const { threepids } = await ann.client.getThreePids();
assert.deepEqual(
    threepids.map(({ medium, address: of }) => [medium, of]),
    [["email", email]],
);
assert.ok(threepids[0].validated_at > 0 && threepids[0].added_at > 0);

say("the address is taken now, and logs her in");
const byMail = await new Person(address, "ann").client.loginRequest({
    type: "m.login.password",
    identifier: { type: "m.id.thirdparty", medium: "email", address: email },
    password: first,
});
assert.equal(byMail.user_id, registered.user_id);

say("ann has forgotten her password: a mail lets her set another");
const forgetful = new Person(address, "ann").client;
const resetSecret = forgetful.generateClientSecret();
const reset = await forgetful.requestPasswordEmailToken(email, resetSecret, 1);
await follow(await nextMail(email));
await interactive((auth) => forgetful.setPassword(auth, second, true), {
    "m.login.email.identity": async () => threepid(reset.sid, resetSecret),
});
const login = (password, more = {}) =>
    new Person(address, "ann").client.loginRequest({
        type: "m.login.password",
        identifier: { type: "m.id.user", user: username },
        password,
        ...more,
    });
await assert.rejects(login(first), { errcode: "M_FORBIDDEN" });
await assert.rejects(ann.client.whoami(), { errcode: "M_UNKNOWN_TOKEN" }, "she was logged out everywhere");

say("her tokens expire, and are refreshed without her noticing");
const session = await login(second, { refresh_token: true });
assert.ok(session.expires_in_ms > 0 && session.refresh_token);
let refreshes = 0;
const refreshing = sdk.createClient({
    baseUrl: address,
    userId: session.user_id,
    deviceId: session.device_id,
    accessToken: session.access_token,
    refreshToken: session.refresh_token,
    tokenRefreshFunction: async (refreshToken) => {
        refreshes += 1;
        const fresh = await sdk.createClient({ baseUrl: address }).refreshToken(refreshToken);
        return {
            accessToken: fresh.access_token,
            refreshToken: fresh.refresh_token,
            expiry: new Date(Date.now() + fresh.expires_in_ms),
        };
    },
});
await refreshing.whoami();
assert.equal(refreshes, 0);
const { room_id: roomId } = await refreshing.createRoom({ name: "Before" });
await new Promise((resolve) => setTimeout(resolve, session.expires_in_ms + 500));
assert.equal((await refreshing.whoami()).device_id, session.device_id);
assert.equal(refreshes, 1);
await refreshing.sendTextMessage(roomId, "with the new token");

say("a session whose token cannot be refreshed is logged out softly, and goes on after a new login");
const forgets = await login(second, { refresh_token: true });
const stale = sdk.createClient({
    baseUrl: address,
    userId: forgets.user_id,
    deviceId: forgets.device_id,
    accessToken: forgets.access_token,
});
const loggedOut = new Promise((resolve) => stale.once(sdk.HttpApiEvent.SessionLoggedOut, resolve));
await new Promise((resolve) => setTimeout(resolve, forgets.expires_in_ms + 500));
await assert.rejects(stale.whoami(), { errcode: "M_UNKNOWN_TOKEN" });
assert.equal((await loggedOut).data.soft_logout, true);
const back = await login(second, { device_id: forgets.device_id });
assert.equal(back.device_id, forgets.device_id);
const again = new Person(address, "ann", back);
assert.equal((await again.client.whoami()).device_id, forgets.device_id);

say("a logout is a hard one");
await again.client.logout();
await assert.rejects(again.client.whoami(), (error) => {
    assert.equal(error.errcode, "M_UNKNOWN_TOKEN");
    assert.ok(!error.data.soft_logout);
    return true;
});

assert.deepEqual(ann.failures, []);
say("all went well");
process.exit(0);
