"""A web service on Authlib, which knows nothing of Matrix, and a person with a browser without
scripts: the service registers itself, the person signs in and allows it what it asks for, and the
service checks who they are.

Arguments: the server's address, a user name and its password.
"""

import html
import json
import re
import sys
import time
from urllib.parse import urljoin

import requests
from authlib.integrations.requests_client import OAuth2Session
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import OpenIDProviderMetadata
from joserfc import jwk, jwt

CALLBACK = "https://service.example.org/callback"
ASKED = "openid profile"


class Browser:
    """Follows links and sends forms, and keeps cookies."""

    def __init__(self):
        self.session = requests.Session()

    def get(self, url):
        return self.seen(self.session.get(url, allow_redirects=False))

    def seen(self, answer):
        """The page, or the address of another site that the browser is sent to."""
        while answer.status_code == 303:
            location = urljoin(answer.url, answer.headers["location"])
            if location.startswith("https://"):
                return location
            answer = self.session.get(location, allow_redirects=False)
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        return answer

    def submit(self, page, **fields):
        form = re.search(r'<form method="post" action="([^"]*)">(.*?)</form>', page.text, re.S)
        hidden = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form[2])
        data = {name: html.unescape(value) for name, value in hidden} | fields
        url = urljoin(page.url, html.unescape(form[1]))
        return self.seen(self.session.post(url, data=data, allow_redirects=False))


def main(address, user, password):
    issuer = f"{address}/_matrix/oauth2"
    told = requests.get(f"{issuer}/.well-known/openid-configuration").json()
    assert told["issuer"] == issuer, told
    # What it says of itself is as the specifications have it, except for TLS.
    secure = json.loads(json.dumps(told).replace("http://", "https://"))
    AuthorizationServerMetadata(secure).validate()
    OpenIDProviderMetadata(secure).validate()

    described = {
        "client_name": "A service",
        "client_uri": "https://service.example.org/",
        "redirect_uris": [CALLBACK],
        "token_endpoint_auth_method": "client_secret_basic",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    }
    registered = requests.post(told["registration_endpoint"], json=described)
    assert registered.status_code == 201, registered.text
    registered = registered.json()

    service = OAuth2Session(
        registered["client_id"],
        registered["client_secret"],
        scope=ASKED,
        redirect_uri=CALLBACK,
        code_challenge_method="S256",
        token_endpoint=told["token_endpoint"],
        token_endpoint_auth_method="client_secret_basic",
        revocation_endpoint_auth_method="client_secret_basic",
    )
    verifier = "a-verifier-that-is-long-enough-for-the-specification-0123456789"
    url, state = service.create_authorization_url(
        told["authorization_endpoint"], code_verifier=verifier, nonce="a nonce"
    )

    browser = Browser()
    page = browser.submit(browser.get(url), user=user, password=password)
    assert "A service" in page.text and "service.example.org" in page.text, page.text
    sent = browser.submit(page, answer="allow")

    token = service.fetch_token(
        told["token_endpoint"],
        authorization_response=sent,
        state=state,
        code_verifier=verifier,
    )
    assert token["scope"] == ASKED, token

    keys = jwk.KeySet.import_key_set(requests.get(told["jwks_uri"]).json())
    decoded = jwt.decode(token["id_token"], keys, algorithms=["RS256"])
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        options={
            "iss": {"essential": True, "value": issuer},
            "aud": {"essential": True, "value": registered["client_id"]},
        },
        params={
            "nonce": "a nonce",
            "client_id": registered["client_id"],
            "access_token": token["access_token"],
        },
    )
    claims.validate(now=int(time.time()))
    known = service.get(told["userinfo_endpoint"]).json()
    assert known["sub"] == claims["sub"] == f"@{user}:e2e.test", (known, claims)
    assert known["preferred_username"] == user, known

    fresh = service.refresh_token(told["token_endpoint"])
    assert fresh["access_token"] != token["access_token"], fresh
    assert service.get(told["userinfo_endpoint"]).json() == known
    # It is a login for who they are, and not for what they have in Matrix.
    refused = service.get(f"{address}/_matrix/client/v3/joined_rooms")
    assert refused.status_code == 403, refused.text

    revoked = service.revoke_token(told["revocation_endpoint"], token=fresh["refresh_token"])
    assert revoked.status_code == 200, revoked.text
    over = requests.get(
        told["userinfo_endpoint"], headers={"authorization": f"Bearer {fresh['access_token']}"}
    )
    assert over.status_code == 401 and "Bearer" in over.headers["www-authenticate"], over.text
    print("Authlib: registered, signed in, checked, refreshed and revoked")


main(*sys.argv[1:])
