// The service that knows people, for the programs that log in by it: oidc-provider. It takes whoever types a name to
// be the one of that name.

import assert from "node:assert/strict";
import { Provider } from "oidc-provider";

for (const name of ["info", "warn"]) console[name] = () => {};

/** Serves at `issuer` for a homeserver that is called back at `callback`, until the server returned is closed. */
export function provide(issuer, callback) {
    const provider = new Provider(issuer, {
        clients: [{
            client_id: "logcabin",
            client_secret: "a secret of the two",
            redirect_uris: [callback],
            grant_types: ["authorization_code"],
            response_types: ["code"],
        }],
        claims: { openid: ["sub"], profile: ["name", "preferred_username"], email: ["email", "email_verified"] },
        pkce: { required: () => true },
        cookies: { keys: ["for the test"] },
        findAccount: (_, sub) => ({
            accountId: sub,
            claims: () => ({
                sub,
                name: `${sub} of elsewhere`,
                preferred_username: sub,
                email: `${sub}@elsewhere.test`,
                email_verified: true,
            }),
        }),
    });
    return provider.listen(Number(new URL(issuer).port), "127.0.0.1");
}

/** Does `act`, which leads to another page. */
export async function leading(page, act) {
    await Promise.all([page.waitForNavigation({ waitUntil: "load" }), act()]);
}

/** Says who one is at the provider, as often as it asks. */
export async function identify({ page, name }, issuer) {
    while (page.url().startsWith(issuer)) {
        if (await page.$("input[name=login]")) {
            await page.type("input[name=login]", name);
            await page.type("input[name=password]", "any");
        }
        assert.ok(await page.$("button[type=submit]"), `${page.url()}: ${await page.content()}`);
        await leading(page, () => page.click("button[type=submit]"));
    }
}
