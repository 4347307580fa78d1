// An app and a television on openid-client, which knows nothing of Matrix, and a person with a
// browser without scripts.
//
// Arguments: the server's address, a user name and its password.

import assert from 'node:assert/strict';
import * as oauth from 'openid-client';

const [address, user, password] = process.argv.slice(2);
const callback = 'https://app.example.org/callback';
const scopeOf = (device) => `urn:matrix:client:api:* urn:matrix:client:device:${device} openid`;

function plain(text) {
  return text.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&quot;', '"')
    .replaceAll('&amp;', '&');
}

// Follows links and sends forms, and keeps cookies.
class Browser {
  cookies = new Map();

  async ask(url, init = {}) {
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(url, { ...init, headers: { cookie }, redirect: 'manual' });
    for (const set of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]*)=([^;]*)/.exec(set);
      this.cookies.set(name, value);
    }
    if (answer.status === 303) {
      const location = new URL(answer.headers.get('location'), url);
      return location.protocol === 'https:' ? location : this.ask(location);
    }
    const text = await answer.text();
    assert.equal(answer.status, 200, text);
    return { url, text };
  }

  submit(page, fields) {
    const [, action, body] =
      /<form method="post" action="([^"]*)">(.*?)<\/form>/s.exec(page.text);
    const hidden = body.matchAll(/type="hidden" name="([^"]*)" value="([^"]*)"/g);
    const data = new URLSearchParams([...hidden].map(([, name, value]) => [name, plain(value)]));
    for (const [name, value] of Object.entries(fields)) data.set(name, value);
    return this.ask(new URL(plain(action), page.url), { method: 'POST', body: data });
  }
}

// No TLS on the machine itself.
const execute = [oauth.allowInsecureRequests];
const issuer = new URL(`${address}/_matrix/oauth2`);
const described = {
  client_name: 'An app',
  client_uri: 'https://app.example.org/',
  redirect_uris: [callback],
  token_endpoint_auth_method: 'none',
  grant_types: [
    'authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code',
  ],
  response_types: ['code'],
};
const app = await oauth.dynamicClientRegistration(issuer, described, oauth.None(), { execute });
// By either document of discovery.
const other = await oauth.discovery(
  issuer, app.clientMetadata().client_id, undefined, oauth.None(),
  { execute, algorithm: 'oauth2' },
);
assert.deepEqual(other.serverMetadata().issuer, app.serverMetadata().issuer);

const verifier = oauth.randomPKCECodeVerifier();
const [state, nonce] = [oauth.randomState(), oauth.randomNonce()];
const url = oauth.buildAuthorizationUrl(app, {
  redirect_uri: callback,
  scope: scopeOf('APP'),
  code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
  code_challenge_method: 'S256',
  state,
  nonce,
});

const browser = new Browser();
let page = await browser.submit(await browser.ask(url), { user, password });
assert.match(page.text, /An app/);
const sent = await browser.submit(page, { answer: 'allow' });
// It checks `state`, `iss`, and the ID token with its nonce.
const checks = {
  pkceCodeVerifier: verifier, expectedState: state, expectedNonce: nonce, idTokenExpected: true,
};
const tokens = await oauth.authorizationCodeGrant(app, sent, checks);
const { sub } = tokens.claims();
const known = await oauth.fetchUserInfo(app, tokens.access_token, sub);
assert.equal(known.sub, `@${user}:e2e.test`);

const whoami = async (token) => {
  const headers = { authorization: `Bearer ${token}` };
  return (await fetch(`${address}/_matrix/client/v3/account/whoami`, { headers })).json();
};
assert.equal((await whoami(tokens.access_token)).device_id, 'APP');
const fresh = await oauth.refreshTokenGrant(app, tokens.refresh_token);
assert.equal((await whoami(fresh.access_token)).device_id, 'APP');

// A mix-up: an answer that names another issuer is not one of this server's.
const mixed = new URL(sent);
mixed.searchParams.set('iss', 'https://evil.example.org/');
await assert.rejects(
  oauth.authorizationCodeGrant(app, mixed, checks),
  (error) => /unexpected "iss"/.test(error.cause.message),
);
// A second use of the code ends the session.
await assert.rejects(oauth.authorizationCodeGrant(app, sent, checks), { error: 'invalid_grant' });
assert.equal((await whoami(fresh.access_token)).errcode, 'M_UNKNOWN_TOKEN');

const begun = await oauth.initiateDeviceAuthorization(app, { scope: scopeOf('TV') });
const waiting = oauth.pollDeviceAuthorizationGrant(app, begun);
page = await browser.ask(new URL(begun.verification_uri_complete));
assert.match(page.text, new RegExp(begun.user_code));
await browser.submit(page, { answer: 'allow' });
const television = await waiting;
assert.equal((await whoami(television.access_token)).device_id, 'TV');
await oauth.tokenRevocation(app, television.access_token);
assert.equal((await whoami(television.access_token)).errcode, 'M_UNKNOWN_TOKEN');
console.log('openid-client: registered, signed in, refreshed, logged a television in, revoked');
