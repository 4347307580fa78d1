#!/usr/bin/env python3
"""What other homeservers cost Logcabin, and Synapse on SQLite for the same, on this machine.

Starts one after the other, and drives each over TLS with homeservers that live in this process and sign as all do.
Measures the CPU time of the server alone:

- received: events in a room with users of many homeservers, one for each transaction, until a user sees the last;
- sent: messages of a user to all these homeservers, until the last has arrived everywhere;
- joined: a user enters a large room of another homeserver.

    benches/federation.py                       # both: about ten minutes
    benches/federation.py --servers logcabin --events 500
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import peers
import synapse_homeserver
from attacks.wire import read_message

TICKS = os.sysconf("SC_CLK_TCK")
VERSION = "10"
KEPT = {"type", "room_id", "sender", "state_key", "content", "hashes", "signatures", "depth", "prev_events",
        "auth_events", "origin_server_ts"}
KEPT_OF = {
    "m.room.member": {"membership"},
    "m.room.create": {"creator"},
    "m.room.join_rules": {"join_rule", "allow"},
    "m.room.power_levels": {"ban", "events", "events_default", "kick", "redact", "state_default", "users",
                            "users_default"},
}


def main():
    options = parse()
    if importlib.util.find_spec("synapse") is None:
        peers.OUT.mkdir(parents=True, exist_ok=True)
        python = options.python or peers.venv()
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    print(peers.machine())
    if options.destinations:
        print(f"{'memory':28}{'before, MB':>12}{'after, MB':>12}{'KB each':>12}", flush=True)
    else:
        print(f"{'':28}{'received':>12}{'sent':>12}{'joined':>12}{'':>12}")
        print(f"{'CPU':28}{'ms/event':>12}{'ms/event':>12}{'s':>12}{'s to join':>12}", flush=True)
    for name in options.servers.split(","):
        with contextlib.ExitStack() as stack:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="federation-")))
            what = measure_destinations if options.destinations else measure
            asyncio.run(what(stack, name, directory, options))


def parse():
    about, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="logcabin,synapse", help="which (both, unless said)")
    parser.add_argument("--logcabin", metavar="PROGRAM", default=str(peers.ROOT / "target/release/logcabin"),
                        help="the Logcabin to measure")
    parser.add_argument("--python", metavar="PROGRAM", help="a Python with Synapse in it, if there is one")
    parser.add_argument("--homeservers", type=peers.positive_int, default=50, help="how many others there are (50)")
    parser.add_argument("--members", type=peers.positive_int, default=1000, help="of the room (1000)")
    parser.add_argument("--events", type=int, default=2000, help="that are received (2000)")
    parser.add_argument("--messages", type=int, default=200, help="that are sent (200)")
    parser.add_argument("--large-members", type=int, default=10_000, help="of the large room (10000)")
    parser.add_argument("--large-state", type=int, default=50_000, help="its state events (50000)")
    parser.add_argument("--destinations", type=peers.positive_int, metavar="COUNT",
                        help="measure only the memory of so many homeservers that were told of a message, and are idle")
    parser.add_argument("--by-way-of-synapse", action="store_true",
                        help="a Synapse joins the large room first, and the room is joined by way of it")
    return parser.parse_args()


def b64(data):
    return base64.b64encode(data).decode().rstrip("=")


class Homeserver:
    """Another homeserver, with its key and what has arrived at it."""

    def __init__(self, world, port, host="localhost"):
        import nacl.signing
        self.world, self.port, self.name = world, port, f"{host}:{port}"
        self.key = nacl.signing.SigningKey.generate()
        self.arrived = 0
        self.connection = None
        document = {
            "server_name": self.name, "old_verify_keys": {}, "valid_until_ts": now() + 86_400_000,
            "verify_keys": {"ed25519:1": {"key": b64(bytes(self.key.verify_key))}},
        }
        self.document = self.sign(document)

    def sign(self, value, of=None):
        from canonicaljson import encode_canonical_json
        signed = {key: part for key, part in (of or value).items() if key not in ("signatures", "unsigned")}
        signature = b64(self.key.sign(encode_canonical_json(signed)).signature)
        return {**value, "signatures": {self.name: {"ed25519:1": signature}}}

    def event(self, event):
        """The event, hashed and signed, and its id."""
        from canonicaljson import encode_canonical_json
        event = {**event, "origin_server_ts": now()}
        event["hashes"] = {"sha256": b64(hashlib.sha256(encode_canonical_json(event)).digest())}
        redacted = redact(event)
        digest = hashlib.sha256(encode_canonical_json(redacted)).digest()
        return "$" + base64.urlsafe_b64encode(digest).decode().rstrip("="), self.sign(event, redacted)

    async def ask(self, method, path, body=None):
        """A signed request to the homeserver that is measured."""
        request = {"method": method, "uri": path, "origin": self.name, "destination": self.world.target}
        if body is not None:
            request["content"] = body
        signature = self.sign(request)["signatures"][self.name]["ed25519:1"]
        header = (f'X-Matrix origin="{self.name}",destination="{self.world.target}",key="ed25519:1",'
                  f'sig="{signature}"')
        if self.connection is None:
            self.connection = await asyncio.open_connection(
                "127.0.0.1", self.world.port, ssl=self.world.client, server_hostname="localhost")
        reader, writer = self.connection
        data = b"" if body is None else json.dumps(body).encode()
        writer.write((f"{method} {path} HTTP/1.1\r\nHost: {self.world.target}\r\nAuthorization: {header}\r\n"
                      f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data)
        status, _, body = await read_message(reader)
        answer = json.loads(body)
        if " 200 " not in f"{status} ":
            raise RuntimeError(f"{method} {path}: {status}: {answer}")
        return answer

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ssl.SSLError):
            while True:
                first, _, body = await read_message(reader)
                method, path, _ = first.split(" ", 2)
                status, answer = self.answer(method, path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                writer.write((f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n"
                              f"Content-Length: {len(data)}\r\n\r\n").encode() + data)
                await writer.drain()
        writer.close()

    def answer(self, method, path, body):
        if path == "/_matrix/key/v2/server":
            return 200, self.document
        if path.startswith("/_matrix/federation/v1/send/"):
            self.arrived += sum(pdu["type"] == "m.room.message" for pdu in json.loads(body)["pdus"])
            return 200, {"pdus": {}}
        if self.world.large and "/make_join/" in path:
            return 200, self.world.large.template(path)
        if self.world.large and "/send_join/" in path:
            return 200, self.world.large.joined(json.loads(body))
        return 404, {"errcode": "M_NOT_FOUND", "error": "not here"}


def redact(event):
    content = {key: part for key, part in event["content"].items() if key in KEPT_OF.get(event["type"], ())}
    return {**{key: part for key, part in event.items() if key in KEPT}, "content": content}


def now():
    return int(time.time() * 1000)


class Large:
    """A room of the first homeserver, with members on all."""

    def __init__(self, world, members, state):
        self.world, self.version = world, VERSION
        host, creator = world.others[0], f"@creator:{world.others[0].name}"
        self.room_id = f"!large:{host.name}"
        self.state, self.ids, self.depth, self.last = [], {}, 0, None
        self.add(host, "m.room.create", creator, "", {"creator": creator, "room_version": VERSION}, [])
        self.add(host, "m.room.member", creator, creator, {"membership": "join"}, ["m.room.create"])
        self.ids["creator"] = self.last
        basis = ["m.room.create", "creator"]
        self.add(host, "m.room.power_levels", creator, "", {"users": {creator: 100}}, basis)
        basis.append("m.room.power_levels")
        self.add(host, "m.room.join_rules", creator, "", {"join_rule": "public"}, basis)
        self.basis = ["m.room.create", "m.room.power_levels", "m.room.join_rules"]
        for number in range(members - 1):
            other = world.others[number % len(world.others)]
            user = f"@member{number}:{other.name}"
            self.add(other, "m.room.member", user, user, {"membership": "join"}, self.basis)
        for number in range(state - len(self.state)):
            self.add(host, "org.example.thing", creator, str(number), {"number": number}, basis)
        events = ",".join(json.dumps(event) for event in self.state)
        chain = ",".join(json.dumps(event) for event in self.state[:4])
        self.answer = f'"origin":"{host.name}","auth_chain":[{chain}],"state":[{events}]'

    def add(self, server, event_type, sender, key, content, authorities):
        self.depth += 1
        self.last, event = server.event({
            "type": event_type, "sender": sender, "state_key": key, "content": content,
            "room_id": self.room_id, "depth": self.depth, "prev_events": [self.last] if self.last else [],
            "auth_events": [self.ids[name] for name in authorities],
        })
        if event_type != "m.room.member":
            self.ids[event_type] = self.last
        self.state.append(event)

    def template(self, path):
        user = urllib.parse.unquote(path.split("?")[0].split("/")[-1])
        return {"room_version": VERSION, "event": {
            "type": "m.room.member", "sender": user, "state_key": user, "content": {"membership": "join"},
            "room_id": self.room_id, "depth": self.depth + 1, "prev_events": [self.last],
            "auth_events": [self.ids[name] for name in self.basis], "origin_server_ts": now(),
        }}

    def joined(self, event):
        return f'{{{self.answer},"event":{json.dumps(event)},"members_omitted":false}}'.encode()


class World:
    """The homeserver that is measured, and the others."""

    def __init__(self, directory, count):
        self.directory, self.large = directory, None
        self.ca = certify(directory)
        self.client = ssl.create_default_context(cafile=self.ca)
        self.port, self.clients = peers.free_port(), f"http://127.0.0.1:{peers.free_port()}"
        self.target = f"localhost:{self.port}"
        self.others = [Homeserver(self, peers.free_port()) for _ in range(count)]
        self.token = None

    async def listen(self):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.directory / "server.pem", self.directory / "server.key")
        for other in self.others:
            await asyncio.start_server(other.serve, "127.0.0.1", other.port, ssl=context, limit=1 << 26)

    async def call(self, method, path, body=None):
        """A request of the user of the homeserver that is measured."""
        return await call(self.clients, self.token, method, path, body)


async def call(base, token, method, path, body=None):
    """A request of a client."""
    def do():
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=7200) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code}: {error.read()[:500]}") from error
    return await asyncio.to_thread(do)


async def register(base):
    """A new user's access token."""
    user = {"username": "ann", "password": "correct horse battery", "auth": {"type": "m.login.dummy"}}
    return (await call(base, None, "POST", "/_matrix/client/v3/register", user))["access_token"]


def openssl(*arguments):
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", *key, *map(str, arguments)], check=True, stderr=subprocess.DEVNULL)


def certify(directory):
    """An authority and a certificate of it for this machine; the authority's certificate."""
    ca = directory / "ca.pem"
    openssl("-subj", "/CN=authority", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign", "-keyout", directory / "ca.key", "-out", ca)
    openssl("-subj", "/CN=localhost", "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-CA", ca, "-CAkey", directory / "ca.key",
            "-keyout", directory / "server.key", "-out", directory / "server.pem")
    return ca


def start(stack, name, world, options):
    """The process that is measured."""
    directory, clients = world.directory, urllib.parse.urlparse(world.clients).port
    certificate, key = directory / "server.pem", directory / "server.key"
    output = stack.enter_context(open(directory / "log", "w"))
    if name == "logcabin":
        settings = {
            "LOGCABIN_SERVER_NAME": world.target,
            "LOGCABIN_FEDERATION_ENABLED": "true", "LOGCABIN_FEDERATION_BIND": f"127.0.0.1:{world.port}",
            "LOGCABIN_FEDERATION_CERTIFICATE": certificate, "LOGCABIN_FEDERATION_CERTIFICATE_KEY": key,
            "LOGCABIN_FEDERATION_CA": world.ca, "LOGCABIN_FEDERATION_ALLOWED_NETWORKS": "127.0.0.0/8,::1",
            "LOGCABIN_RATE_LIMITS_ENABLED": "false",
        }
        environment = {**os.environ, **{key: str(value) for key, value in settings.items()}}
        command = [options.logcabin, "serve", "--data-dir", directory / "data", "--bind", f"127.0.0.1:{clients}"]
        process = peers.started(stack, command, 15, env=environment, stdout=output, stderr=output)
    else:
        command = synapse_homeserver.configured(directory, world, world.port, clients)
        process = peers.started(stack, command, 15, cwd=directory, stdout=output, stderr=output)
    peers.until(lambda: peers.answers(f"{world.clients}/_matrix/client/versions"), process, name)
    return process.pid


def cpu(pid):
    """CPU seconds of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure(stack, name, directory, options):
    world = World(directory, options.homeservers)
    await world.listen()
    pid = await asyncio.to_thread(start, stack, name, world, options)
    world.token = await register(world.clients)
    options_of_room = {"preset": "public_chat", "room_version": VERSION}
    room_id = (await world.call("POST", "/_matrix/client/v3/createRoom", options_of_room))["room_id"]
    room = urllib.parse.quote(room_id)
    received = await receive(world, pid, room_id, room, options) if options.events else float("nan")
    sent = await send(world, pid, room, options) if options.messages else float("nan")
    spent, seconds = await join(stack, world, pid, options)
    row(name, received, sent, spent, seconds)


def row(name, received=float("nan"), sent=float("nan"), joined=float("nan"), seconds=float("nan")):
    """A line of the table; times in seconds."""
    print(f"{name:28}{received * 1000:12.3f}{sent * 1000:12.3f}{joined:12.2f}{seconds:12.2f}", flush=True)


class Crowd(World):
    """Homeservers with addresses of their own, 127.x.y.z, on one port."""

    # As many as a certificate may name.
    OF_CERTIFICATE = 250

    def __init__(self, directory, count):
        super().__init__(directory, 1)
        port = peers.free_port()
        self.hosts = [f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}" for number in range(count)]
        self.others = [Homeserver(self, port, host) for host in self.hosts]
        self.by_host = dict(zip(self.hosts, self.others))
        self.contexts = {}

    async def listen(self):
        for first in range(0, len(self.hosts), self.OF_CERTIFICATE):
            hosts = self.hosts[first:first + self.OF_CERTIFICATE]
            files = self.directory / f"crowd{first}.pem", self.directory / f"crowd{first}.key"
            openssl("-subj", "/CN=crowd", "-addext", "basicConstraints=critical,CA:FALSE",
                    "-addext", "subjectAltName=" + ",".join(f"IP:{host}" for host in hosts),
                    "-CA", self.ca, "-CAkey", self.directory / "ca.key", "-keyout", files[1], "-out", files[0])
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*files)
            self.contexts.update(dict.fromkeys(hosts, context))

        async def serve(reader, writer):
            host = writer.get_extra_info("sockname")[0]
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.start_tls(self.contexts[host])
                await self.by_host[host].serve(reader, writer)

        await asyncio.start_server(serve, "0.0.0.0", self.others[0].port, limit=1 << 26, backlog=4096)


def memory(pid):
    """The resident memory of a process, in bytes."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024


async def measure_destinations(stack, name, directory, options):
    world = Crowd(directory, options.destinations)
    await world.listen()
    pid = await asyncio.to_thread(start, stack, name, world, options)
    world.token = await register(world.clients)
    peers.say("making a room with all of them")
    world.large = Large(world, options.destinations + 1, 0)
    await joined(world, world.clients, world.token, pid, world.others[0].name)
    await idle(pid)
    before = memory(pid)
    peers.say("telling all of them")
    room = urllib.parse.quote(world.large.room_id)
    message = {"msgtype": "m.text", "body": "hello"}
    await world.call("PUT", f"/_matrix/client/v3/rooms/{room}/send/m.room.message/1", message)
    deadline = time.monotonic() + 900
    while any(other.arrived == 0 for other in world.others):
        if time.monotonic() > deadline:
            missing = sum(other.arrived == 0 for other in world.others)
            raise RuntimeError(f"{missing} of {len(world.others)} were not told")
        await asyncio.sleep(1)
    await idle(pid)
    after = memory(pid)
    print(f"{name:28}{before / 1e6:12.1f}{after / 1e6:12.1f}{(after - before) / 1e3 / len(world.others):12.2f}",
          flush=True)


async def idle(pid):
    """Waits until connections that nobody uses are closed and their memory is given back."""
    await asyncio.sleep(60)
    await quiet(pid)


async def receive(world, pid, room_id, room, options):
    peers.say("filling the room")
    members, last = {}, None
    for number in range(options.members - 1):
        other = world.others[number % len(world.others)]
        user = f"@user{number}:{other.name}"
        path = f"/_matrix/federation/v1/make_join/{room}/{urllib.parse.quote(user)}?ver={VERSION}"
        event = (await other.ask("GET", path))["event"]
        event = {key: part for key, part in event.items() if key not in ("hashes", "signatures", "origin", "unsigned")}
        event_id, event = other.event(event)
        path = f"/_matrix/federation/v2/send_join/{room}/{urllib.parse.quote(event_id)}?omit_members=true"
        await other.ask("PUT", path, event)
        members.setdefault(other, (user, event_id))
        last = (event_id, event["depth"])
    state = await world.call("GET", f"/_matrix/client/v3/rooms/{room}/state")
    by_type = {event["type"]: event["event_id"] for event in state if event["state_key"] == ""}
    await quiet(pid)
    peers.say("sending to it")
    began = cpu(pid)
    run = -(-options.events // len(members))
    for number in range(options.events):
        # Each homeserver in turn sends some, and the next when those are there: a server may take transactions in
        # before it takes their events in, and asks for what it lacks.
        if number % run == 0 and number > 0:
            await arrived(world, room, last[0])
        other = list(members)[number // run]
        user, member = members[other]
        event_id, event = other.event({
            "type": "m.room.message", "sender": user, "room_id": room_id, "depth": last[1] + 1,
            "content": {"msgtype": "m.text", "body": f"message {number}"}, "prev_events": [last[0]],
            "auth_events": [by_type["m.room.create"], by_type["m.room.power_levels"], member],
        })
        body = {"origin": other.name, "origin_server_ts": now(), "pdus": [event], "edus": []}
        await other.ask("PUT", f"/_matrix/federation/v1/send/t{number}", body)
        last = (event_id, last[1] + 1)
    await arrived(world, room, last[0])
    return (cpu(pid) - began) / options.events


async def arrived(world, room, event_id):
    path = f"/_matrix/client/v3/rooms/{room}/event/{urllib.parse.quote(event_id)}"
    deadline = time.monotonic() + 120
    while True:
        try:
            return await world.call("GET", path)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


async def send(world, pid, room, options):
    await quiet(pid)
    peers.say("having it send")
    before, began = sum(other.arrived for other in world.others), cpu(pid)
    for number in range(options.messages):
        path = f"/_matrix/client/v3/rooms/{room}/send/m.room.message/m{number}"
        await world.call("PUT", path, {"msgtype": "m.text", "body": f"own message {number}"})
        # As people write: what is sent faster than it is told shares transactions.
        await asyncio.sleep(0.05)
    wanted = before + options.messages * len(world.others)
    while sum(other.arrived for other in world.others) < wanted:
        await asyncio.sleep(0.2)
    return (cpu(pid) - began) / (options.messages * len(world.others))


async def join(stack, world, pid, options):
    if options.large_members == 0:
        return float("nan"), float("nan")
    peers.say("making the large room")
    world.large = Large(world, options.large_members, options.large_state)
    via = world.others[0].name
    if options.by_way_of_synapse:
        base, between, name = await asyncio.to_thread(start_between, stack, world)
        spent, seconds = await joined(world, base, await register(base), between, via)
        row("synapse, which passes it on", joined=spent, seconds=seconds)
        via = name
    return await joined(world, world.clients, world.token, pid, via)


def start_between(stack, world):
    """A Synapse besides the homeserver that is measured: the address for clients, its process and its name."""
    port, clients = peers.free_port(), peers.free_port()
    directory = world.directory / "between"
    directory.mkdir()
    base = f"http://127.0.0.1:{clients}"
    output = stack.enter_context(open(directory / "log", "w"))
    command = synapse_homeserver.configured(directory, world, port, clients)
    process = peers.started(stack, command, 15, cwd=directory, stdout=output, stderr=output)
    peers.until(lambda: peers.answers(f"{base}/_matrix/client/versions"), process, "Synapse")
    return base, process.pid, f"localhost:{port}"


async def joined(world, base, token, pid, via):
    """The CPU time until a user's join of the large room is answered and all that follows is done, and the time
    until it is answered."""
    await quiet(pid)
    peers.say("joining it")
    began, clock = cpu(pid), time.monotonic()
    room = urllib.parse.quote(world.large.room_id)
    await call(base, token, "POST", f"/_matrix/client/v3/join/{room}?server_name={via}&via={via}", {})
    seconds = time.monotonic() - clock
    await quiet(pid)
    spent = cpu(pid) - began
    state = await call(base, token, "GET", f"/_matrix/client/v3/rooms/{room}/state")
    missing = len(world.large.state) - len(state)
    if missing > 0:
        raise RuntimeError(f"{missing} of {len(world.large.state)} state events are missing")
    return spent, seconds


async def quiet(pid):
    """Waits until the server has done what it still had to do."""
    spent = cpu(pid)
    while True:
        await asyncio.sleep(2)
        spent, before = cpu(pid), spent
        if spent - before < 0.1:
            return


if __name__ == "__main__":
    main()
