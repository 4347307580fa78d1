"""A token for a call, as LiveKit's own library sees it.

Arguments: the API key, its secret, the token, the room and the identity that it must be for.
"""

import datetime
import sys

import jwt
from livekit import api

key, secret, token, room, identity = sys.argv[1:]

claims = api.TokenVerifier(key, secret).verify(token)
assert claims.identity == identity, claims
grants = claims.video
assert grants.room == room and grants.room_join, grants
assert grants.can_publish and grants.can_subscribe, grants
assert not grants.room_create and not grants.room_admin and not grants.hidden, grants
assert not grants.can_update_own_metadata, grants

# It is short-lived: the library refuses it once it has expired.
raw = jwt.decode(token, secret, algorithms=["HS256"], issuer=key)
assert raw["exp"] - raw["nbf"] == 600, raw
past = dict(raw, nbf=raw["nbf"] - 86400, exp=raw["exp"] - 86400)
for wrong in [
    jwt.encode(past, secret, algorithm="HS256"),
    jwt.encode(raw, secret + "x", algorithm="HS256"),
    token[:-2] + ("AA" if not token.endswith("AA") else "BB"),
]:
    try:
        api.TokenVerifier(key, secret, leeway=datetime.timedelta(0)).verify(wrong)
    except jwt.exceptions.InvalidTokenError:
        continue
    raise AssertionError("a wrong token is taken")
try:
    api.TokenVerifier("another", secret).verify(token)
except jwt.exceptions.InvalidIssuerError:
    print("taken")
