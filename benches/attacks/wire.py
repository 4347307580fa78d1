"""A homeserver as an attacker has it: keys, events, signed requests, and answers of every kind, on loopback only."""

import asyncio
import base64
import collections
import contextlib
import hashlib
import itertools
import json
import re
import ssl
import subprocess
import time
import urllib.parse

VERSION = "10"
V1, V2 = "/_matrix/federation/v1", "/_matrix/federation/v2"
V3 = "/_matrix/client/v3"
# How long one answer of the server may take.
PATIENCE = 180
KEPT = {"type", "room_id", "sender", "state_key", "content", "hashes", "signatures", "depth", "prev_events",
        "auth_events", "origin_server_ts"}
KEPT_OF = {
    "m.room.member": {"membership", "join_authorised_via_users_server"},
    "m.room.create": {"creator"},
    "m.room.join_rules": {"join_rule", "allow"},
    "m.room.power_levels": {"ban", "events", "events_default", "kick", "redact", "state_default", "users",
                            "users_default"},
    "m.room.history_visibility": {"history_visibility"},
}


def now():
    return int(time.time() * 1000)


def quote(text):
    return urllib.parse.quote(text, safe="")


def canonical(value):
    """Canonical JSON, with floats and large integers as Synapse writes them."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def b64(data):
    return base64.b64encode(data).decode().rstrip("=")


class Key:
    """A signing key."""

    def __init__(self):
        try:
            import nacl.signing
            key = nacl.signing.SigningKey.generate()
            self.public, self.raw = bytes(key.verify_key), lambda data: key.sign(data).signature
        except ImportError:
            from cryptography.hazmat.primitives import serialization as how
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            key = Ed25519PrivateKey.generate()
            self.public = key.public_key().public_bytes(how.Encoding.Raw, how.PublicFormat.Raw)
            self.raw = key.sign

    def sign(self, data):
        return b64(self.raw(data))


def redacted(event):
    kept = KEPT_OF.get(event["type"], ())
    content = {key: part for key, part in event["content"].items() if key in kept}
    return {**{key: part for key, part in event.items() if key in KEPT}, "content": content}


def id_of(event):
    """The id of an event of a room of version 4 to 10."""
    bare = {key: part for key, part in redacted(event).items() if key not in ("signatures", "unsigned")}
    return "$" + base64.urlsafe_b64encode(hashlib.sha256(canonical(bare)).digest()).decode().rstrip("=")


def certify(directory, addresses):
    """An authority, and a certificate of it for these addresses and localhost; the authority's certificate."""
    def openssl(*arguments):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        command = ["openssl", "req", "-x509", *key, *map(str, arguments)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    ca = directory / "ca.pem"
    names = ",".join(["DNS:localhost", *(f"IP:{address}" for address in addresses)])
    openssl("-subj", "/CN=authority", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign", "-keyout", directory / "ca.key", "-out", ca)
    openssl("-subj", "/CN=localhost", "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", f"subjectAltName={names}", "-CA", ca, "-CAkey", directory / "ca.key",
            "-keyout", directory / "server.key", "-out", directory / "server.pem")
    return ca


class Tally:
    """What an attack has sent, and what became of it."""

    def __init__(self, name, is_kept=True):
        self.name, self.is_kept = name, is_kept
        self.sent = self.answered = self.requests = self.events = self.edus = 0
        # Answers by status, and what was said of events.
        self.statuses, self.outcomes = collections.Counter(), collections.Counter()
        self.phases, self.notes, self.seconds, self.failed = [], [], 0.0, False
        self.checks, self.cases, self.until = [], {}, float("inf")

    def phase(self, name):
        """From now on, others' times count for this part of the attack."""
        self.phases.append((name, time.monotonic()))

    def note(self, text):
        self.notes.append(text)

    def over(self):
        """Whether the time of the attack is up."""
        return time.monotonic() > self.until

    def known(self):
        return {"name": self.name, "is_kept": self.is_kept, "checks": self.checks, "cases": self.cases,
                "sent": self.sent, "answered": self.answered, "requests": self.requests, "events": self.events,
                "edus": self.edus, "statuses": dict(self.statuses),
                "outcomes": dict(self.outcomes), "phases": self.phases, "seconds": self.seconds,
                "failed": self.failed, "notes": self.notes}


class Failed(Exception):
    """The attack cannot go on."""


class Line:
    """Connections to one port of the server from one address, each for one request at a time."""

    def __init__(self, address, port, context=None):
        self.address, self.port, self.context, self.idle = address, port, context, []

    async def open(self):
        more = {"ssl": self.context, "server_hostname": "localhost"} if self.context else {}
        return await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(self.address, 0), limit=1 << 20, **more)

    async def exchange(self, tally, method, path, headers, body, patience=PATIENCE):
        """The status and the body of an answer; status 0 if there is none."""
        headers = {"Host": f"localhost:{self.port}", "Content-Type": "application/json", **headers,
                   "Content-Length": len(body)}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        tally.requests += 1
        while True:
            connection, is_reused = None, bool(self.idle)
            try:
                async with asyncio.timeout(patience):
                    connection = self.idle.pop() if self.idle else await self.open()
                    first, answered_with, answer, is_whole = await put_through(tally, *connection, head, body)
                if is_whole and answered_with.get("connection") != "close":
                    self.idle.append(connection)
                else:
                    connection[1].transport.abort()
                return int(first.split(" ")[1]), answer
            except (OSError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError, ValueError):
                if connection:
                    connection[1].transport.abort()
                # What was idle may have been closed meanwhile.
                if not is_reused:
                    return 0, b""


async def put_through(tally, reader, writer, head, body):
    """Sends a request and reads its answer, which may come before all is sent; whether all was."""
    reading = asyncio.create_task(read_message(reader))
    try:
        writer.write(head)
        tally.sent += len(head)
        sent = 0
        with contextlib.suppress(OSError, ssl.SSLError):
            while sent < len(body) and not reading.done():
                part = body[sent:sent + (1 << 18)]
                writer.write(part)
                sent += len(part)
                draining = asyncio.create_task(writer.drain())
                await asyncio.wait({draining, reading}, return_when=asyncio.FIRST_COMPLETED)
                if not draining.done():
                    draining.cancel()
                elif error := draining.exception():
                    raise error
        tally.sent += sent
        return *await reading, sent == len(body)
    finally:
        reading.cancel()


async def read_message(reader):
    """The first line, the headers, and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {}
    for line in head[1:]:
        if ": " in line:
            name, value = line.split(": ", 1)
            headers[name.lower()] = value
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return head[0], headers, body


def says(answer):
    """What an answer that refuses says, in short."""
    with contextlib.suppress(ValueError, AttributeError):
        said = json.loads(answer)
        return f"{said.get('errcode')}: {said.get('error')}"[:160]
    return answer[:80].decode(errors="replace")


class Origin:
    """A homeserver of the attackers at an address of its own."""

    def __init__(self, world, number):
        self.world, self.target = world, world.target
        self.address = f"127.0.0.{11 + number}"
        self.port = world.ports[number]
        self.name = f"{self.address}:{self.port}"
        self.key = Key()
        self.line = Line(self.address, world.port, world.client_context())
        self.transactions = itertools.count()
        # What it answers: a pattern of paths and what makes the answer.
        self.answers = []
        self.watchers = []
        self.document = self.signed({
            "server_name": self.name, "old_verify_keys": {}, "valid_until_ts": now() + 86_400_000,
            "verify_keys": {"ed25519:1": {"key": b64(self.key.public)}},
        })

    def user(self, name):
        return f"@{name}:{self.name}"

    def signed(self, value, of=None):
        bare = {key: part for key, part in (of or value).items() if key not in ("signatures", "unsigned")}
        return {**value, "signatures": {self.name: {"ed25519:1": self.key.sign(canonical(bare))}}}

    def event(self, event):
        """The id of an event, and the event with its hash and signature as JSON."""
        event = {"origin_server_ts": now(), **event}
        unsigned = event.pop("unsigned", None)
        event["hashes"] = {"sha256": b64(hashlib.sha256(canonical(event)).digest())}
        bare = canonical(redacted(event))
        event_id = "$" + base64.urlsafe_b64encode(hashlib.sha256(bare).digest()).decode().rstrip("=")
        event["signatures"] = {self.name: {"ed25519:1": self.key.sign(bare)}}
        if unsigned is not None:
            event["unsigned"] = unsigned
        return event_id, canonical(event)

    # Requests

    async def ask(self, tally, method, path, body=b"", patience=PATIENCE):
        """A signed request. The status and the body of its answer."""
        content = b'"content":' + body + b"," if body else b""
        rest = canonical({"destination": self.target, "method": method, "origin": self.name, "uri": path})
        signature = self.key.sign(b"{" + content + rest[1:])
        header = f'X-Matrix origin="{self.name}",destination="{self.target}",key="ed25519:1",sig="{signature}"'
        status, answer = await self.line.exchange(
            tally, method, path, {"Authorization": header}, body, patience)
        tally.statuses[str(status)] += 1
        return status, answer

    async def persist(self, tally, method, path, body=b""):
        """Like `ask`, and again where the rate is limited, until the attack's time is up, and some times where there is
        no answer."""
        lost = 0
        while True:
            status, answer = await self.ask(tally, method, path, body)
            lost += status in (0, 502, 503, 504)
            if status not in (0, 429, 502, 503, 504) or lost > 5 or tally.over():
                return status, answer
            await pause(answer)

    async def ok(self, tally, method, path, body=b""):
        """The JSON of a good answer."""
        status, answer = await self.persist(tally, method, path, body)
        if status != 200:
            raise Failed(f"{method} {path.split('?')[0]}: {status} {says(answer)}")
        return json.loads(answer)

    async def transact(self, tally, pdus=(), edus=()):
        """A transaction, repeated where the rate is limited. Whether it was taken."""
        head = canonical({"origin": self.name, "origin_server_ts": now()})[1:-1]
        body = b'{"edus":[' + b",".join(edus) + b"]," + head + b',"pdus":[' + b",".join(pdus) + b"]}"
        path = f"{V1}/send/t{next(self.transactions)}.{now()}"
        status, answer = await self.persist(tally, "PUT", path, body)
        if status != 200:
            tally.outcomes[f"transaction: {status} {says(answer)}"] += 1
            return False
        tally.events += len(pdus)
        tally.edus += len(edus)
        outcomes = json.loads(answer).get("pdus", {}).values()
        for outcome in outcomes:
            tally.outcomes[outcome["error"][:100] if "error" in outcome else "accepted"] += 1
        if len(outcomes) < len(pdus):
            tally.outcomes["not mentioned"] += len(pdus) - len(outcomes)
        return True

    async def stream(self, tally, events, at_once=50, bytes_at_once=7 << 20):
        """Events in order, in transactions as large as they may be."""
        batch, size = [], 0
        for event in events:
            if batch and (len(batch) == at_once or size + len(event) > bytes_at_once):
                await self.transact(tally, batch)
                batch, size = [], 0
            if tally.over():
                tally.note("not all was sent in time")
                return
            batch.append(event)
            size += len(event)
        if batch:
            await self.transact(tally, batch)

    async def join(self, tally, room_id, name="pia", version=VERSION):
        """Enters a room of the server with a user."""
        user = self.user(name)
        made = await self.ok(tally, "GET", f"{V1}/make_join/{quote(room_id)}/{quote(user)}?ver={version}")
        event = {key: part for key, part in made["event"].items()
                 if key not in ("hashes", "signatures", "origin", "unsigned")}
        event_id, data = self.event(event)
        answer = await self.ok(tally, "PUT", f"{V2}/send_join/{quote(room_id)}/{quote(event_id)}", data)
        return Room(self, room_id, user, event_id, event["depth"], answer["state"])

    # Answers

    def on(self, pattern, answer):
        """Answers requests of these paths: `answer(method, path, body)` gives a status and JSON or bytes, or writes
        by itself if it takes a writer, too."""
        self.answers.insert(0, (re.compile(pattern), answer))

    async def listen(self):
        await asyncio.start_server(self.serve, self.address, self.port, ssl=self.world.server_context(),
                                   limit=1 << 26, backlog=1024)

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError, ssl.SSLError):
            while True:
                first, _, body = await read_message(reader)
                method, path, _ = first.split(" ", 2)
                done = self.answer(method, path, body)
                if callable(done):
                    await done(writer)
                    break
                status, answer = done
                data = answer if isinstance(answer, bytes) else canonical(answer)
                writer.write((f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n"
                              f"Content-Length: {len(data)}\r\n\r\n").encode())
                for start in range(0, len(data), 1 << 18):
                    writer.write(data[start:start + (1 << 18)])
                    await writer.drain()
        writer.transport.abort()

    def answer(self, method, path, body):
        for pattern, answer in self.answers:
            if pattern.search(path):
                return answer(method, path, body)
        if path == "/_matrix/key/v2/server":
            return 200, self.document
        if path.startswith(f"{V1}/send/"):
            told = json.loads(body)
            for watcher in self.watchers:
                watcher(told)
            return 200, {"pdus": {}}
        return 404, {"errcode": "M_NOT_FOUND", "error": "not here"}


async def pause(answer):
    """As long as an answer of status 429 says, within reason."""
    wait = 500
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        wait = int(json.loads(answer).get("retry_after_ms", wait))
    await asyncio.sleep(min(max(wait, 20), 5000) / 1000)


class Room:
    """A room of the server that an origin is in, as far as its events need it."""

    def __init__(self, origin, room_id, user, join_id, depth, state):
        self.origin, self.room_id, self.user, self.join_id, self.depth = origin, room_id, user, join_id, depth
        self.state = state
        by_type = {event["type"]: id_of(event) for event in state if event.get("state_key") == ""}
        self.create, self.levels = by_type["m.room.create"], by_type["m.room.power_levels"]
        self.rules = by_type["m.room.join_rules"]

    def asked(self, what):
        """The pattern of paths by which the server asks for this of the room, for `Origin.on`."""
        return f"/federation/v1/{what}/.{{1,3}}{re.escape(self.room_id[1:].partition(':')[0])}"

    def event(self, event_type, content, prev, depth, state_key=None, sender=None, auth=None, **more):
        """The id and the JSON of an event after `prev`."""
        event = {
            "type": event_type, "room_id": self.room_id, "sender": sender or self.user, "content": content,
            "prev_events": list(prev), "depth": depth,
            "auth_events": auth or [self.create, self.levels, self.join_id], **more,
        }
        if state_key is not None:
            event["state_key"] = state_key
        return self.origin.event(event)

    def message(self, text, prev, depth, **more):
        return self.event("m.room.message", {"msgtype": "m.text", "body": text}, prev, depth, **more)

    def membership(self, user, prev, depth, membership="join"):
        """Of a made-up user of this homeserver."""
        auth = [self.create, self.levels, self.rules]
        return self.event("m.room.member", {"membership": membership}, prev, depth, user, user, auth)

    def members(self, names, prev, depth):
        """Made-up members, one after the other: their events, the last one's id, and its depth."""
        events, ids = [], []
        for name in names:
            depth += 1
            event_id, event = self.membership(self.origin.user(name), prev, depth)
            prev = [event_id]
            events.append(event)
            ids.append(event_id)
        return events, ids, depth


class Local:
    """An account on the server itself that helps an attack, or is its victim."""

    def __init__(self, world, name, address):
        self.world, self.name, self.token, self.turn = world, name, None, 0
        self.line = Line(address, world.client_port)

    async def ask(self, tally, method, path, body=None, content_type="application/json"):
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return await self.line.exchange(tally, method, path, headers, data)

    async def ok(self, tally, method, path, body=None, **more):
        for _ in range(100):
            status, answer = await self.ask(tally, method, path, body, **more)
            if status != 429:
                break
            await pause(answer)
        if status != 200:
            raise Failed(f"{method} {path.split('?')[0]}: {status} {says(answer)}")
        return json.loads(answer) if answer else {}

    async def register(self, tally):
        body = {"username": self.name, "password": "a long enough password", "auth": {"type": "m.login.dummy"}}
        answer = await self.ok(tally, "POST", f"{V3}/register", body)
        self.token, self.user_id, self.device_id = answer["access_token"], answer["user_id"], answer["device_id"]
        return self

    async def room(self, tally, **options):
        options = {"preset": "public_chat", "room_version": VERSION, **options}
        return (await self.ok(tally, "POST", f"{V3}/createRoom", options))["room_id"]

    async def say(self, tally, room_id, text):
        self.turn += 1
        path = f"{V3}/rooms/{quote(room_id)}/send/m.room.message/{now()}.{self.turn}"
        return await self.ok(tally, "PUT", path, {"msgtype": "m.text", "body": text})
