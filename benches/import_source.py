"""A database of Synapse for `import.py`: a small one that clients filled, blown up to as many events as are wanted.

The real rooms are patterns. Each copy has a room id, users and event ids of its own: content hashes, event ids
and the references between events are recomputed, as an import checks them. A copy goes on with the pattern's
messages, reactions, edits and redactions, with more members, and with forks as they come when two servers send
at once, until it has its length. Some rooms are long, most are short, and the events of many rooms alternate.
Signatures are random: nobody checks them in an import.
"""

import base64
import hashlib
import json
import random
import re
import sqlite3
import time
import urllib.parse
import urllib.request

from canonicaljson import encode_canonical_json
from synapse.api.room_versions import KNOWN_ROOM_VERSIONS

SERVER = "localhost"
USERS = ["ann", "bob", "cid", "dee", "eve"]
# Rooms that events come from at the same time.
ACTIVE = 400
# How many steps of state Synapse writes as differences before a whole one.
STATE_HOPS = 100
FLUSH_EVENTS = 20_000

# What an event's id is made of: the fields, and those of the content by type, in rooms of version 10, and of 11.
HASHED = ["room_id", "sender", "type", "state_key", "content", "hashes", "depth", "prev_events", "auth_events",
          "origin_server_ts"]
KEPT = {
    "m.room.create": ["creator"],
    "m.room.member": ["membership", "join_authorised_via_users_server"],
    "m.room.join_rules": ["join_rule", "allow"],
    "m.room.power_levels": ["ban", "events", "events_default", "kick", "redact", "state_default", "users",
                            "users_default"],
    "m.room.history_visibility": ["history_visibility"],
}
KEPT_SINCE_11 = {"m.room.create": ["*"], "m.room.power_levels": ["invite"], "m.room.redaction": ["redacts"]}


class Client:
    """A user of a running Synapse."""

    def __init__(self, base, name):
        self.base, self.token, self.sent = base, None, 0
        account = {"username": name, "password": f"correct horse {name}", "auth": {"type": "m.login.dummy"},
                   "device_id": f"DEVICE{name.upper()}"}
        made = self.ask("POST", "v3/register", account)
        self.user, self.token, self.device = made["user_id"], made["access_token"], made["device_id"]

    def ask(self, method, path, body=None, raw=None):
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        at = path if path.startswith("/") else f"/_matrix/client/{path}"
        request = urllib.request.Request(self.base + at, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def send(self, room, content, kind="m.room.message"):
        self.sent += 1
        path = f"v3/rooms/{quoted(room)}/send/{kind}/m{self.sent}"
        return self.ask("PUT", path, content)["event_id"]

    def say(self, room, text, **more):
        return self.send(room, {"msgtype": "m.text", "body": text, **more})


def quoted(text):
    return urllib.parse.quote(text, safe="")


def key(size=32):
    return base64.b64encode(random.randbytes(size)).decode().rstrip("=")


def populate(base):
    """What people do, a little of each."""
    ann, *others = clients = [Client(base, name) for name in USERS]
    bob, cid, dee, eve = others
    for client in clients:
        localpart = client.user[1:].partition(":")[0]
        client.ask("PUT", f"v3/profile/{quoted(client.user)}/displayname", {"displayname": localpart.title()})
        upload_keys(client)
        client.ask("POST", f"v3/user/{quoted(client.user)}/filter", {"room": {"timeline": {"limit": 20}}})
        client.ask("PUT", f"v3/user/{quoted(client.user)}/account_data/org.example.settings", {"dark": True})
        rule = {"pattern": localpart, "actions": ["notify", {"set_tweak": "highlight"}]}
        client.ask("PUT", f"v3/pushrules/global/content/{localpart}", rule)
        back_up(client)
    picture = ann.ask("POST", "/_matrix/media/v3/upload?filename=dot.gif", raw=b"GIF89a\1\0\1\0\0\0\0;")["content_uri"]
    for version, encrypted in [("10", False), ("11", False), ("12", False), ("10", True)]:
        room(clients, version, encrypted, picture)
    messages = {client.user: {client.device: {"ciphertext": key(200), "algorithm": "m.olm"}} for client in others}
    for number in range(3):
        ann.ask("PUT", f"v3/sendToDevice/m.room.encrypted/d{number}", {"messages": messages})
    return clients


def room(clients, version, encrypted, picture):
    """A room with some of everything that is said in rooms. Its last members stay."""
    ann, bob, cid, dee, eve = clients
    first = [{"type": "m.room.encryption", "state_key": "", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}]
    made = ann.ask("POST", "v3/createRoom", {
        "room_version": version, "preset": "public_chat", "name": f"Room of version {version}",
        "topic": "What is to be moved", "initial_state": first if encrypted else []})["room_id"]
    for client in [bob, cid, dee]:
        client.ask("POST", f"v3/join/{quoted(made)}", {})
    ann.ask("POST", f"v3/rooms/{quoted(made)}/invite", {"user_id": eve.user})
    eve.ask("POST", f"v3/join/{quoted(made)}", {})
    said = ann.say(made, "Hello")
    for number in range(25):
        who = [ann, bob, cid, dee][number % 4]
        if encrypted:
            said = who.send(made, {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": key(300), "session_id": key(),
                                   "sender_key": key(), "device_id": who.device}, "m.room.encrypted")
        else:
            said = who.say(made, "Whatever one says")
        relation = {"event_id": said, "rel_type": "m.annotation", "key": "\N{THUMBS UP SIGN}"}
        match number % 8:
            case 1 | 6:
                bob.send(made, {"m.relates_to": relation}, "m.reaction")
            case 3:
                who.say(made, "* Corrected", **{
                    "m.new_content": {"msgtype": "m.text", "body": "Corrected"},
                    "m.relates_to": {"event_id": said, "rel_type": "m.replace"}})
            case 4:
                cid.say(made, "An answer", **{"m.relates_to": {"m.in_reply_to": {"event_id": said}}})
            case 7 if number > 20:
                path = f"v3/rooms/{quoted(made)}/redact/{quoted(said)}/r{number}"
                who.ask("PUT", path, {"reason": "a mistake"})
    ann.ask("PUT", f"v3/rooms/{quoted(made)}/state/m.room.avatar/", {"url": picture})
    dee.ask("POST", f"v3/rooms/{quoted(made)}/leave", {})
    eve.say(made, "Good-bye")
    for client in [ann, bob, cid]:
        client.ask("POST", f"v3/rooms/{quoted(made)}/receipt/m.read/{quoted(said)}", {})
        client.ask("POST", f"v3/rooms/{quoted(made)}/read_markers", {"m.fully_read": said})
    ann.ask("PUT", f"v3/user/{quoted(ann.user)}/rooms/{quoted(made)}/tags/m.favourite", {"order": 0.5})


def upload_keys(client):
    user, device = client.user, client.device
    signatures = {user: {f"ed25519:{device}": key(64)}}
    signed = lambda: {"key": key(), "signatures": signatures}
    client.ask("POST", "v3/keys/upload", {
        "device_keys": {"user_id": user, "device_id": device, "algorithms": ["m.megolm.v1.aes-sha2"],
                        "keys": {f"ed25519:{device}": key(), f"curve25519:{device}": key()},
                        "signatures": signatures},
        "one_time_keys": {f"signed_curve25519:AAA{number}": signed() for number in range(10, 60)},
        "fallback_keys": {"signed_curve25519:FALL": {**signed(), "fallback": True}},
    })


def back_up(client):
    data = {"algorithm": "m.megolm_backup.v1.curve25519-aes-sha2", "auth_data": {"public_key": key()}}
    version = client.ask("POST", "v3/room_keys/version", data)["version"]
    session = lambda: {"first_message_index": 0, "forwarded_count": 0, "is_verified": True,
                       "session_data": {"ephemeral": key(), "ciphertext": key(300), "mac": key(8)}}
    keys = {"!backed:up": {"sessions": {key(): session() for _ in range(20)}}}
    client.ask("PUT", f"v3/room_keys/keys?version={version}", {"rooms": keys})


class Pattern:
    """An event of a real room, with places for what is different in a copy."""

    def __init__(self, row, deltas, users):
        (self.stream, self.seed, room, self.kind, self.state_key, sender, _, text, version) = row
        version = KNOWN_ROOM_VERSIONS[version]
        event = json.loads(text)
        self.sender, self.deltas = sender, deltas
        self.prev, self.auth = event["prev_events"], event["auth_events"]
        self.is_state = "state_key" in event
        self.membership = event["content"].get("membership") if self.kind == "m.room.member" else None
        self.has_hashed_room = version.msc4291_room_ids_as_hashes and self.kind == "m.room.create"
        event["prev_events"] = ["ZQprevQZ"] if self.prev else []
        event["auth_events"] = ["ZQauthQZ"] if self.auth else []
        event["depth"], event["origin_server_ts"] = "ZQdepthQZ", "ZQtsQZ"
        event["signatures"] = {"ZQserverQZ": {"ed25519:a_key": "ZQsignatureQZ"}}
        event["hashes"] = {"sha256": "ZQhashQZ"}
        event["unsigned"] = {"age_ts": "ZQtsQZ"}
        event["sender"] = "ZQsenderQZ"
        if self.membership and self.state_key == sender:
            event["state_key"] = "ZQsenderQZ"
        content = event["content"]
        if self.kind == "m.room.message":
            content["body"] = "ZQbodyQZ"
            if "m.new_content" in content:
                content["m.new_content"]["body"] = "ZQbodyQZ"
        if "ciphertext" in content:
            content["ciphertext"] = "ZQcipherQZ"
        within = json.dumps(event)
        self.references = sorted(set(re.findall(r'(\$[A-Za-z0-9_-]{43})"', within)))

        def places(encoded):
            encoded = encoded.replace("%", "%%").replace(room, "%(room)s")
            for user in users:
                encoded = encoded.replace(user, f"%({user})s")
            for reference in self.references:
                encoded = encoded.replace(reference, f"%({reference})s")
            encoded = re.sub(r'"ZQ(depth|ts)QZ"', r"%(\1)d", encoded)
            return re.sub(r"ZQ(\w+?)QZ", r"%(\1)s", encoded)

        hashed = {name: value for name, value in event.items() if name not in ("signatures", "unsigned", "hashes")}
        pruned = {name: value for name, value in event.items() if name in HASHED}
        kept = KEPT.get(self.kind, []) + (KEPT_SINCE_11.get(self.kind, []) if version.updated_redaction_rules else [])
        pruned["content"] = {name: value for name, value in content.items() if name in kept or "*" in kept}
        self.hashed = places(encode_canonical_json(hashed).decode())
        self.pruned = places(encode_canonical_json(pruned).decode())
        self.stored = places(json.dumps(event, separators=(",", ":"), ensure_ascii=False))
        self.is_checked = False

    def check(self, hashed, pruned):
        """Places that are keys may be in another order in a copy: such a pattern is of no use."""
        if not self.is_checked:
            for text in (hashed, pruned):
                assert encode_canonical_json(json.loads(text)) == text.encode(), f"{self.kind} is no pattern"
            self.is_checked = True


class Seed:
    """A real room."""

    def __init__(self, database, room, version):
        users = [f"@{name}:{SERVER}" for name in USERS]
        deltas = {}
        for stream, kind, state_key, event, before in database.execute(
                "SELECT stream_id, type, state_key, event_id, prev_event_id FROM current_state_delta_stream"
                " WHERE room_id = ?", (room,)):
            deltas.setdefault(stream, []).append((kind, state_key, event, before))
        rows = database.execute(
            "SELECT e.stream_ordering, e.event_id, e.room_id, e.type, e.state_key, e.sender, e.depth, j.json, ?"
            " FROM events e JOIN event_json j USING (event_id)"
            " WHERE e.room_id = ? AND NOT e.outlier ORDER BY e.stream_ordering", (version, room)).fetchall()
        self.room, self.version = room, version
        self.patterns = [Pattern(row, deltas.get(row[0], []), users) for row in rows]
        self.timeline = [pattern for pattern in self.patterns if not pattern.is_state]
        of_themselves = [pattern for pattern in self.patterns
                         if pattern.membership and pattern.state_key == pattern.sender and pattern.prev]
        self.join = [pattern for pattern in of_themselves if pattern.membership == "join"][-1]
        self.leave = [pattern for pattern in of_themselves if pattern.membership == "leave"][-1]
        named = lambda kind: next(pattern.seed for pattern in self.patterns if pattern.kind == kind)
        power, rules = named("m.room.power_levels"), named("m.room.join_rules")
        # Where rooms are called by their creation, nobody names it.
        self.auth = ([] if self.patterns[0].has_hashed_room else [self.patterns[0].seed]) + [power]
        self.join_auth = [*self.auth, rules]


class Source:
    """The database that is blown up, and what all rooms share."""

    TABLES = {
        "events": "stream_ordering, topological_ordering, event_id, type, room_id, processed, outlier, depth,"
                  " origin_server_ts, received_ts, sender, contains_url, instance_name, state_key",
        "event_json": "event_id, room_id, internal_metadata, json, format_version",
        "event_edges": "event_id, prev_event_id, is_state",
        "event_auth": "event_id, auth_id, room_id",
        "event_to_state_groups": "event_id, state_group",
        "state_groups": "id, room_id, event_id",
        "state_group_edges": "state_group, prev_state_group",
        "state_groups_state": "state_group, room_id, type, state_key, event_id",
        "state_events": "event_id, room_id, type, state_key",
        "current_state_delta_stream": "stream_id, room_id, type, state_key, event_id, prev_event_id, instance_name",
        "room_memberships": "event_id, user_id, sender, room_id, membership, event_stream_ordering",
        "redactions": "event_id, redacts, have_censored, received_ts",
        "rooms": "room_id, is_public, creator, room_version, has_auth_chain_index",
        "room_depth": "room_id, min_depth",
        "current_state_events": "event_id, room_id, type, state_key, membership, event_stream_ordering",
        "local_current_membership": "room_id, user_id, event_id, membership, event_stream_ordering",
        "event_forward_extremities": "event_id, room_id",
        "receipts_linearized": "stream_id, room_id, receipt_type, user_id, event_id, event_stream_ordering, data,"
                               " instance_name",
        "room_account_data": "user_id, room_id, account_data_type, stream_id, content",
    }
    # What a tail rewrites for the rooms that it touches.
    REPLACED = ["current_state_events", "local_current_membership", "event_forward_extremities"]

    def __init__(self, path, events, tail):
        self.database = sqlite3.connect(path, isolation_level=None)
        self.random = random.Random(39)
        self.rows = {table: [] for table in self.TABLES}
        self.prefix = ""
        one = lambda sql: self.database.execute(sql).fetchone()[0] or 0
        self.stream = one("SELECT max(stream_ordering) FROM events")
        self.group = one("SELECT max(id) FROM state_groups")
        self.receipt = one("SELECT max(stream_id) FROM receipts_linearized")
        self.personal = one("SELECT max(stream_id) FROM room_account_data")
        # They end an hour ago: nothing is so new that an import waits for what may come before it.
        span = 300 * 24 * 3600 * 1000
        self.step = max(1, span // (events + tail))
        self.now = int(time.time() * 1000) - 3600_000 - self.step * (events + tail)
        words = ["".join(self.random.choices("aaabcdeeeefghiiklmnnooprssttuvwy", k=self.random.randint(2, 9)))
                 for _ in range(4000)]
        self.bodies = [" ".join(self.random.choices(words, k=1 + int(self.random.expovariate(1 / 11))))
                       for _ in range(50_000)]
        self.noise = base64.b64encode(self.random.randbytes(1 << 16)).decode().rstrip("=")
        self.clones = max(2, events // 5000)

    def user(self, name, is_remote):
        number = self.random.randrange(self.clones)
        server = f"h{number % 300}.example" if is_remote else SERVER
        return f"@{name}-{number}:{server}"

    def flush(self):
        for table, rows in self.rows.items():
            if rows:
                marks = ", ".join("?" * (self.TABLES[table].count(",") + 1))
                self.database.executemany(
                    f"INSERT INTO {self.prefix}{table} ({self.TABLES[table]}) VALUES ({marks})", rows)
                rows.clear()


class Room:
    """A copy of a real room, as far as it has come."""

    def __init__(self, source, seed, length):
        self.source, self.seed, self.length = source, seed, length
        self.count, self.depth, self.hops = 0, 0, 0
        self.ids, self.streams, self.state, self.tips, self.members = {}, {}, {}, [], {}
        pick = source.random
        has_remote = pick.random() < 0.4
        self.places = {}
        for name in USERS:
            is_remote = has_remote and name != USERS[0] and pick.random() < 0.6
            self.places[f"@{name}:{SERVER}"] = source.user(name, is_remote)
        suffix = f":{SERVER}"
        self.room = "!" + "".join(pick.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=18)) + suffix
        self.places["room"] = self.room
        self.format = 3 if seed.version != "12" else 4
        source.group += 1
        self.group = source.group
        self.is_begun = False

    def live(self):
        """Emits an event at each step."""
        pick, seed = self.source.random, self.seed
        for pattern in seed.patterns:
            self.emit(pattern, self.places[pattern.sender], [self.ids[auth] for auth in pattern.auth])
            yield
        for pattern in seed.patterns:
            for kind, state_key, event, before in pattern.deltas:
                its = self.places.get(state_key, state_key)
                self.note_delta(self.streams[pattern.seed], kind, its, self.ids.get(event), self.ids.get(before))
        most = max(5, min(2000, self.length // 20))
        while self.count < self.length:
            for pattern in seed.timeline:
                chance = pick.random()
                if chance < 0.04:
                    self.come_or_go(most)
                    yield
                elif chance < 0.05:
                    self.fork(pattern, most, chance < 0.043)
                    yield
                else:
                    self.say(pattern)
                    yield
                if self.count >= self.length:
                    return

    def say(self, pattern, prev=None):
        sender = self.source.random.choice(list(self.members)) if len(self.members) < 40 else self.some_member()
        auth = [self.ids[auth] for auth in self.seed.auth] + [self.members[sender]]
        return self.emit(pattern, sender, auth, prev)

    def some_member(self):
        # The members are in a dictionary; the last ones are as good as any.
        if self.count % 500 == 0 or not getattr(self, "sample", None):
            self.sample = self.source.random.sample(sorted(self.members), 30)
        sender = self.source.random.choice(self.sample)
        return sender if sender in self.members else next(iter(self.members))

    def come_or_go(self, most, prev=None):
        pick, seed = self.source.random, self.seed
        if len(self.members) >= most and pick.random() < 0.8:
            sender = next(member for member in self.members if member != self.places[f"@{USERS[0]}:{SERVER}"])
            auth = [self.ids[auth] for auth in seed.auth] + [self.members[sender]]
            return self.emit(seed.leave, sender, auth, prev, has_delta=True)
        sender = self.source.user(pick.choice(USERS), pick.random() < 0.5)
        auth = [self.ids[auth] for auth in seed.join_auth]
        if sender in self.members:
            auth.append(self.members[sender])
        return self.emit(seed.join, sender, auth, prev, has_delta=True)

    def fork(self, pattern, most, of_state):
        """Two events after the same one, and one after both."""
        before, group, depth = list(self.tips), self.group, self.depth
        one = self.come_or_go(most, before) if of_state else self.say(pattern, before)
        after, self.group, self.depth = self.group, group, depth
        other = self.say(pattern, before)
        self.group, self.tips = after, [one, other]
        self.say(pattern)

    def emit(self, pattern, sender, auth, prev=None, has_delta=False):
        source, places, rows = self.source, self.places, self.source.rows
        source.stream += 1
        source.now += source.step
        stream, now, prev = source.stream, source.now, prev or self.tips
        self.depth += 1
        self.count += 1
        server = sender.partition(":")[2]
        at = source.random.randrange(60_000)
        places |= {
            "prev": '","'.join(prev), "auth": '","'.join(auth), "sender": sender, "depth": self.depth, "ts": now,
            "body": source.bodies[at % len(source.bodies)], "cipher": source.noise[at:at + 400], "server": server,
        }
        for reference in pattern.references:
            places[reference] = self.ids.get(reference, reference)
        hashed = pattern.hashed % places
        digest = hashlib.sha256(hashed.encode()).digest()
        places["hash"] = base64.b64encode(digest).decode().rstrip("=")
        places["signature"] = base64.b64encode(hashlib.sha512(digest).digest()).decode().rstrip("=")
        pruned = pattern.pruned % places
        event = "$" + base64.urlsafe_b64encode(hashlib.sha256(pruned.encode()).digest()).decode().rstrip("=")
        pattern.check(hashed, pruned)
        if pattern.has_hashed_room:
            self.room = places["room"] = "!" + event[1:]
        if not self.is_begun:
            self.begin(sender)
        room, state_key = self.room, None
        self.ids[pattern.seed], self.streams[pattern.seed] = event, stream
        self.tips = [event]
        if pattern.is_state:
            state_key = sender if pattern.membership and pattern.state_key == pattern.sender else (
                places.get(pattern.state_key, pattern.state_key))
            self.set_state(pattern, event, state_key, sender, stream, has_delta)
        is_local = server == SERVER
        device = sender[1:].partition("-")[0].upper()
        metadata = f'{{"device_id":"DEVICE{device}","txn_id":"m{stream}"}}' if is_local else "{}"
        rows["events"].append((stream, self.depth, event, pattern.kind, room, True, False, self.depth, now, now + 40,
                               sender, False, "master", state_key))
        rows["event_json"].append((event, room, metadata, pattern.stored % places, self.format))
        rows["event_edges"].extend((event, before, False) for before in prev)
        rows["event_to_state_groups"].append((event, self.group))
        if pattern.kind == "m.room.redaction":
            rows["redactions"].append((event, places[pattern.references[0]], False, now))
        if pattern.is_state:
            rows["event_auth"].extend((event, before, room) for before in auth)
        return event

    def begin(self, creator):
        source, rows = self.source, self.source.rows
        self.is_begun = True
        rows["rooms"].append((self.room, source.random.random() < 0.02, creator, self.seed.version, False))
        rows["room_depth"].append((self.room, 1))
        rows["state_groups"].append((self.group, self.room, "$none"))

    def set_state(self, pattern, event, state_key, sender, stream, has_delta):
        rows = self.source.rows
        before, self.state[pattern.kind, state_key] = (
            self.state.get((pattern.kind, state_key)), (event, pattern.membership, stream))
        self.source.group += 1
        group = self.source.group
        rows["state_groups"].append((group, self.room, event))
        self.hops += 1
        if self.hops > STATE_HOPS:
            self.hops = 0
            rows["state_groups_state"].extend(
                (group, self.room, kind, its, holder) for (kind, its), (holder, _, _) in self.state.items())
        else:
            rows["state_group_edges"].append((group, self.group))
            rows["state_groups_state"].append((group, self.room, pattern.kind, state_key, event))
        self.group = group
        rows["state_events"].append((event, self.room, pattern.kind, state_key))
        if has_delta:
            self.note_delta(stream, pattern.kind, state_key, event, before and before[0])
        if pattern.membership:
            rows["room_memberships"].append((event, state_key, sender, self.room, pattern.membership, stream))
            if pattern.membership == "join":
                self.members[state_key] = event
            else:
                self.members.pop(state_key, None)

    def note_delta(self, stream, kind, state_key, event, before):
        rows = self.source.rows["current_state_delta_stream"]
        rows.append((stream, self.room, kind, state_key, event, before, "master"))

    def settle(self):
        """Writes what the database says of the room as it is now."""
        source, rows = self.source, self.source.rows
        for (kind, state_key), (event, membership, stream) in self.state.items():
            rows["current_state_events"].append((event, self.room, kind, state_key, membership, stream))
            if membership and state_key.endswith(f":{SERVER}"):
                rows["local_current_membership"].append((self.room, state_key, event, membership, stream))
        rows["event_forward_extremities"].extend((tip, self.room) for tip in self.tips)

    def read(self):
        """Some of its users have read it."""
        source, rows = self.source, self.source.rows
        local = [member for member in self.members if member.endswith(f":{SERVER}")][:50]
        for member in local:
            source.receipt += 1
            source.personal += 1
            at = json.dumps({"event_id": self.tips[0]})
            rows["receipts_linearized"].append((source.receipt, self.room, "m.read", member, self.tips[0],
                                                source.stream, f'{{"ts":{source.now}}}', "master"))
            rows["room_account_data"].append((member, self.room, "m.fully_read", source.personal, at))


def blow_up(path, events, tail, say):
    """Makes a database of so many events of a small one, and beside it the `tail` events that come next."""
    source = Source(path, events, tail)
    database = source.database
    seeds = [Seed(database, room, version) for room, version in database.execute(
        "SELECT room_id, room_version FROM rooms ORDER BY room_id").fetchall()]
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_size = -2000000")
    database.execute("PRAGMA foreign_keys = OFF")
    dropped = database.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND type IN ('index', 'trigger')"
        f" AND tbl_name IN ({', '.join('?' * len(Source.TABLES))})", list(Source.TABLES)).fetchall()
    database.execute("BEGIN")
    for kind, name, _ in dropped:
        database.execute(f"DROP {kind} {name}")
    clone_users(source)
    rooms = []

    def begun():
        length = int(min(max(60, 150 * source.random.paretovariate(1.16)), max(1000, events // 20)))
        made = Room(source, source.random.choice(seeds), length)
        rooms.append((made, made.live()))

    def go_on(up_to):
        began, first = time.monotonic(), source.stream
        while source.stream < up_to:
            while len(rooms) < ACTIVE:
                begun()
            at = source.random.randrange(len(rooms))
            room, steps = rooms[at]
            if next(steps, steps) is steps:
                rooms[at] = rooms[-1]
                rooms.pop()
                room.settle()
                room.read()
            if len(source.rows["events"]) >= FLUSH_EVENTS:
                source.flush()
                if source.stream // FLUSH_EVENTS % 25 == 0:
                    rate = (source.stream - first) / (time.monotonic() - began)
                    say(f"{source.stream} events, {rate:.0f} a second")

    go_on(events)
    # A room whose pattern has been begun must come to its end: others refer to what is in it.
    for room, steps in rooms:
        while room.count < len(room.seed.patterns) + 1 and next(steps, steps) is not steps:
            pass
        room.settle()
        room.read()
    source.flush()
    database.execute("COMMIT")
    say("indexing")
    for kind, _, sql in sorted(dropped):
        if kind == "index":
            database.execute(sql)
    made = source.stream
    beside = path.with_name("tail.db")
    database.execute("ATTACH ? AS tail", (str(beside),))
    for table, columns in Source.TABLES.items():
        database.execute(f"CREATE TABLE tail.{table} AS SELECT {columns} FROM main.{table} LIMIT 0")
    source.prefix = "tail."
    database.execute("BEGIN")
    go_on(made + tail)
    for room, steps in rooms:
        while room.count < len(room.seed.patterns) + 1 and next(steps, steps) is not steps:
            pass
        room.settle()
    source.flush()
    database.execute("COMMIT")
    database.execute("DETACH tail")
    for kind, _, sql in dropped:
        if kind == "trigger":
            database.execute(sql)
    database.execute("PRAGMA journal_mode = WAL")
    database.close()
    return made


def add_tail(path):
    """Puts the events that were kept beside it into the database."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA cache_size = -500000")
    database.execute("ATTACH ? AS tail", (str(path.with_name("tail.db")),))
    database.execute("BEGIN")
    for table in Source.REPLACED:
        database.execute(f"DELETE FROM main.{table} WHERE room_id IN (SELECT room_id FROM tail.{table})")
    for table, columns in Source.TABLES.items():
        database.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM tail.{table}")
    database.execute("COMMIT")
    count = database.execute("SELECT count(*) FROM tail.events").fetchone()[0]
    database.close()
    return count


# Tables of users and what their columns hold besides names: numbers and tokens that nobody else may have.
OF_USERS = {
    "users": [], "profiles": [], "devices": [], "access_tokens": ["id", "token"], "e2e_device_keys_json": [],
    "e2e_one_time_keys_json": [], "e2e_fallback_keys_json": [], "account_data": ["stream_id"],
    "push_rules": ["id"], "e2e_room_keys_versions": [], "e2e_room_keys": [], "user_filters": [],
    "device_inbox": ["stream_id"],
}


def clone_users(source):
    database = source.database
    names = re.compile(rf"@({'|'.join(USERS)}):{SERVER}")
    bare = set(USERS)
    for table, unique in OF_USERS.items():
        cursor = database.execute(f"SELECT * FROM {table}")
        columns = [column[0] for column in cursor.description]
        seeds = cursor.fetchall()
        marks = ", ".join("?" * len(columns))
        highest = {column: max((row[columns.index(column)] or 0 for row in seeds), default=0)
                   for column in unique if column != "token"}

        def cloned(row, number):
            cells = []
            for column, cell in zip(columns, row):
                if column in highest:
                    highest[column] += 1
                    cell = highest[column]
                elif column == "token":
                    cell = f"{cell}-{number}"
                elif isinstance(cell, str):
                    cell = f"{cell}-{number}" if cell in bare else names.sub(rf"@\1-{number}:{SERVER}", cell)
                cells.append(cell)
            return cells

        for number in range(source.clones):
            rows = [cloned(row, number) for row in seeds]
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
