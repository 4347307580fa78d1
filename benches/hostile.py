#!/usr/bin/env python3
"""What one account that means harm can do to everybody else.

Starts a server with its default limits and measures how long an ordinary user waits: first with nobody else
there, then during each attack. Prints a table: what the attackers achieved, what it cost the server, and what
the ordinary user noticed. Needs nothing but Python, and leaves nothing behind.

    cargo build --release
    benches/hostile.py                          # all attacks: some five minutes
    benches/hostile.py --only rules,pages
    benches/hostile.py --server path/to/an/older/logcabin --json before.json
"""

import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 12
# The bound on connections by address is not to meet the ordinary user, who would be at another one.
ELSEWHERE = "127.0.0.2"
PASSWORD = "a long enough password"
V3 = "/_matrix/client/v3"


class Refused(Exception):
    """An answer that was not wanted."""

    def __init__(self, status, body):
        super().__init__(f"{status} {body[:300]!r}")
        self.status = status
        self.body = body


class Client:
    """One user on one connection, which is made again when the server ends it."""

    def __init__(self, port, token=None, user_id=None):
        self.port, self.token, self.user_id = port, token, user_id
        self.connection = None
        self.transaction = 0

    def ask(self, method, path, body=None, content_type="application/json"):
        """The status and the body of an answer."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": content_type} if body is not None else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        for attempt in (1, 2):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                self.connection.request(method, path, body, headers)
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                self.close()
                if attempt == 2:
                    raise

    def ok(self, method, path, body=None, patient=True, **more):
        """The JSON of a good answer; waits where the rate is limited."""
        while True:
            status, answer = self.ask(method, path, body, **more)
            if status == 429 and patient:
                wait = json.loads(answer).get("retry_after_ms", 100)
                time.sleep(wait / 1000 + 0.01)
                continue
            if status != 200:
                raise Refused(status, answer)
            return json.loads(answer) if answer else {}

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def send(self, room, text, patient=True):
        self.transaction += 1
        path = f"{V3}/rooms/{quote(room)}/send/m.room.message/{os.getpid()}.{id(self)}.{self.transaction}"
        return self.ok("PUT", path, {"msgtype": "m.text", "body": text}, patient)

    def again(self):
        """The same user on a connection of its own."""
        return Client(self.port, self.token, self.user_id)


def quote(text):
    return urllib.parse.quote(text, safe="")


class Server:
    """A Logcabin with a data directory of its own."""

    def __init__(self, binary):
        self.dir = tempfile.mkdtemp(prefix="hostile-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        settings = {
            "LOGCABIN_REGISTRATION_OPEN": "true",
            # What accounts cost is not measured here, and all come from one address.
            "LOGCABIN_RATE_LIMITS_REGISTRATION": "1000/s burst 10000",
            "LOGCABIN_RATE_LIMITS_LOGIN": "1000/s burst 10000",
            "LOGCABIN_RATE_LIMITS_ADDRESS": "1000/s burst 10000",
            "LOGCABIN_MEDIA_THUMBNAIL_BYTES": str(10 * 1024 * 1024),
        }
        self.log = open(os.path.join(self.dir, "journal"), "wb")
        self.process = subprocess.Popen(
            [binary, "serve", "--server-name", "hostile.test", "--bind", f"127.0.0.1:{self.port}",
             "--data-dir", os.path.join(self.dir, "data")],
            env={**os.environ, **settings}, stdout=self.log, stderr=self.log)
        until = time.monotonic() + 60
        while True:
            try:
                Client(self.port).ok("GET", "/_matrix/client/versions")
                return
            except (OSError, Refused):
                if self.process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the server does not start: see {self.log.name}")
                time.sleep(0.05)

    def user(self, name):
        client = Client(self.port)
        body = {"username": name, "password": PASSWORD, "auth": {"type": "m.login.dummy"}}
        answer = client.ok("POST", f"{V3}/register", body)
        return Client(self.port, answer["access_token"], answer["user_id"])

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def status(self, name):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
        return 0

    def connections(self):
        """How many connections to the server are open."""
        port = f":{self.port:04X}"
        count = 0
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            count += fields[1].endswith(port) and fields[3] == "01"
        return count

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def bytes_in(self, *parts):
        top = pathlib.Path(self.dir, "data", *parts)
        return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


# The ordinary user


def watch(client, peer, room, seconds, found):
    """Sends, syncs and reads at an ordinary pace; puts the seconds that each operation took into `found`."""
    took = {"send": [], "sync": [], "page": [], "connect": []}
    since = peer.ok("GET", f"{V3}/sync")["next_batch"]
    failed = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()

        def timed(name, work):
            nonlocal failed
            start = time.monotonic()
            try:
                return work()
            except (Refused, OSError, http.client.HTTPException):
                failed += 1
            finally:
                took[name].append(time.monotonic() - start)

        timed("send", lambda: client.send(room, "hello", patient=False))
        synced = timed("sync", lambda: peer.ok("GET", f"{V3}/sync?since={since}&timeout=0", patient=False))
        since = synced["next_batch"] if synced else since
        timed("page", lambda: peer.ok("GET", f"{V3}/rooms/{quote(room)}/messages?dir=b&limit=20", patient=False))
        timed("connect", lambda: Client(client.port).ok("GET", "/_matrix/client/versions"))
        time.sleep(max(0, 0.15 - (time.monotonic() - began)))
    found.put((took, failed))


def ordinary(watched, seconds):
    """Runs `watch` in a process of its own and gives what it found."""
    found = multiprocessing.Queue()
    process = multiprocessing.Process(target=watch, args=(*watched, seconds, found))
    process.start()
    return process, found


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] * 1000 if values else 0.0


# The attacks. Each gives what it has prepared; `run` is called in a process of its own until it is ended.


class Tally:
    """Counts answers by their status, shared between processes."""

    def __init__(self):
        self.ok = multiprocessing.Value("L", 0)
        self.limited = multiprocessing.Value("L", 0)
        self.other = multiprocessing.Value("L", 0)

    def count(self, status):
        which = self.ok if status == 200 else self.limited if status == 429 else self.other
        with which.get_lock():
            which.value += 1

    def words(self):
        return f"{self.ok.value} answered, {self.limited.value} limited, {self.other.value} else"


def hammer(clients, tally, request):
    """Asks without a pause, on one thread for each client."""
    def work(client, number):
        turn = 0
        while True:
            try:
                status, _ = client.ask(*request(client, number, turn))
            except (OSError, http.client.HTTPException):
                status = 0
            tally.count(status)
            turn += 1
            if status in (0, 429):
                time.sleep(0.02)
    threads = [threading.Thread(target=work, args=(client, number), daemon=True)
               for number, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rules(server, tally):
    """Push rules with sixty times the same costly patterns, and large unread messages."""
    sender = server.user("rules-sender")
    room = sender.ok("POST", f"{V3}/createRoom", {"preset": "public_chat"})["room_id"]
    users = [server.user(f"rules-{number}") for number in range(3)]
    taken = 0
    for user in users:
        user.ok("POST", f"{V3}/join/{quote(room)}", {})
        for rule in range(60):
            conditions = [{"kind": "event_match", "key": "content.body", "pattern": "*b"}] * 31
            conditions.append({"kind": "event_match", "key": "content.body", "pattern": "never"})
            body = {"conditions": conditions, "actions": ["notify"]}
            try:
                user.ok("PUT", f"{V3}/pushrules/global/override/{rule}", body)
                taken += 1
            except Refused as refused:
                if refused.status != 413:
                    raise
    for _ in range(100):
        sender.send(room, "a" * 59_000 + "b")
    request = lambda client, number, turn: ("GET", f"{V3}/sync", None)
    return lambda: hammer(users, tally, request), lambda: f"{taken} of 180 rules taken"


def pages(server, tally):
    """Pages of large events on one HTTP/2 connection that takes no byte of them."""
    user = server.user("pages")
    room = user.ok("POST", f"{V3}/createRoom", {})["room_id"]
    for _ in range(250):
        user.send(room, "x" * 60_000)

    def run():
        connection = socket.create_connection(
            ("127.0.0.1", user.port), source_address=(ELSEWHERE, 0))
        literal = lambda name, value: b"\x00" + text(name) + text(value)
        text = lambda value: bytes([len(value)]) + value if len(value) < 127 else \
            b"\x7f" + integer(len(value) - 127) + value

        def integer(number):
            out = b""
            while number >= 128:
                out += bytes([number % 128 + 128])
                number //= 128
            return out + bytes([number])

        def frame(kind, flags, stream, payload):
            return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
        path = f"{V3}/rooms/{quote(room)}/messages?dir=b&limit=1000".encode()
        for number in range(20):
            head = b"\x82\x86" + literal(b":path", path) + literal(b":authority", b"x") \
                + literal(b"authorization", f"Bearer {user.token}".encode())
            connection.sendall(frame(1, 5, 2 * number + 1, head))
        # Reads what comes about the connection, and opens no window.
        while connection.recv(65536):
            pass
        time.sleep(3600)
    return run, lambda: "20 streams"


def bodies(server, tally):
    """Two thousand bodies at a byte a second, from somebody without an account: to be measured for half a minute."""
    before = server.connections()

    def run():
        head = (f"POST {V3}/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                "Content-Length: 100000\r\n\r\n").encode()
        open_ones = []
        for _ in range(2000):
            try:
                # From elsewhere: connections count by address.
                one = socket.create_connection(
                    ("127.0.0.1", server.port), timeout=5, source_address=(ELSEWHERE, 0))
                one.sendall(head)
                open_ones.append(one)
            except OSError:
                tally.count(0)
        while True:
            for one in list(open_ones):
                try:
                    one.send(b"{")
                except OSError:
                    open_ones.remove(one)
            time.sleep(1)
    return run, lambda: f"{max(0, server.connections() - before)} connections left at the end"


def writes(server, tally):
    """Whatever one user may write, on sixteen connections."""
    user, other = server.user("writes"), server.user("writes-other")
    room = user.ok("POST", f"{V3}/createRoom", {"preset": "public_chat"})["room_id"]
    me, there, data = quote(user.user_id), quote(room), "x" * 100_000
    begun = server.bytes_in()

    def request(client, number, turn):
        name = f"{number}-{turn}"
        return [
            ("PUT", f"{V3}/user/{me}/account_data/x.{name}", {"x": data}),
            ("POST", f"{V3}/user/{me}/filter", {"room": {"rooms": [f"!{name}:x"]}}),
            ("PUT", f"{V3}/directory/room/{quote(f'#a-{name}:hostile.test')}", {"room_id": room}),
            ("PUT", f"{V3}/user/{me}/rooms/{there}/tags/{name}", {"order": 0.5}),
            ("PUT", f"{V3}/devices/none", {"display_name": name}),
            ("POST", f"{V3}/rooms/{there}/{'ban' if turn % 2 else 'unban'}",
             {"user_id": other.user_id, "reason": "x" * 20_000}),
            ("PUT", f"{V3}/profile/{me}/displayname", {"displayname": name}),
            ("PUT", f"{V3}/rooms/{there}/state/x.{name}/", {"x": "x" * 50_000}),
        ][number % 8]
    clients = [user.again() for _ in range(16)]
    return (lambda: hammer(clients, tally, request),
            lambda: f"{(server.bytes_in() - begun) / 1e6:.0f} MB on the disk")


def thumbnails(server, tally):
    """Thumbnails of one large picture, in every size there might be."""
    user = server.user("thumbnails")
    side = 2600
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body \
        + struct.pack(">I", zlib.crc32(kind + body))
    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) \
        + chunk(b"IDAT", zlib.compress(b"".join(b"\x00" + os.urandom(side * 3) for _ in range(side)), 0)) \
        + chunk(b"IEND", b"")
    uri = user.ok("POST", "/_matrix/media/v3/upload", picture, content_type="image/png")["content_uri"]
    path = uri.removeprefix("mxc://")

    def request(client, number, turn):
        size = 64 + (turn * 8 + number) * 18 % 1926
        return "GET", f"/_matrix/client/v1/media/thumbnail/{path}?width={size}&height={size}&method=scale", None
    clients = [user.again() for _ in range(8)]
    return (lambda: hammer(clients, tally, request),
            lambda: f"{server.bytes_in('media') / 1e6 - len(picture) / 1e6:.0f} MB of thumbnails")


def reads(server, tally):
    """The dearest things that one user may read, on sixteen connections."""
    user = server.user("reads")
    space = user.ok("POST", f"{V3}/createRoom", {"creation_content": {"type": "m.space"}})["room_id"]
    room = user.ok("POST", f"{V3}/createRoom", {"name": "r"})["room_id"]
    for number in range(25):
        child = user.ok("POST", f"{V3}/createRoom", {"name": f"child {number}"})["room_id"]
        user.ok("PUT", f"{V3}/rooms/{quote(space)}/state/m.space.child/{quote(child)}", {"via": ["hostile.test"]})
    root = user.send(room, "root")["event_id"]
    for number in range(150):
        user.transaction += 1
        content = {"msgtype": "m.text", "body": f"word {number} " * 500,
                   "m.relates_to": {"rel_type": "m.thread", "event_id": root}}
        user.ok("PUT", f"{V3}/rooms/{quote(room)}/send/m.room.message/r{number}", content)
    in_room, full = f"{V3}/rooms/{quote(room)}", '{"room":{"timeline":{"limit":1000}}}'
    picky = quote(json.dumps({"types": ["*a*b*c*" + "d" * 50] * 50}))
    asked = [
        ("GET", f"{V3}/sync?full_state=true&filter={quote(full)}", None),
        ("GET", f"{in_room}/messages?dir=b&limit=1000", None),
        ("GET", f"{in_room}/messages?dir=b&limit=1000&filter={picky}", None),
        ("POST", f"{V3}/search", {"search_categories": {"room_events": {
            "search_term": "word root r", "event_context": {"before_limit": 20, "after_limit": 20}}}}),
        ("GET", f"/_matrix/client/v1/rooms/{quote(space)}/hierarchy?limit=50", None),
        ("GET", f"/_matrix/client/v1/rooms/{quote(room)}/threads?include=participated", None),
        ("GET", f"/_matrix/client/v1/rooms/{quote(room)}/relations/{quote(root)}?limit=1000&recurse=true", None),
        ("GET", f"{V3}/notifications?limit=100", None),
    ]
    clients = [user.again() for _ in range(16)]
    request = lambda client, number, turn: asked[number % len(asked)]
    return lambda: hammer(clients, tally, request), lambda: "16 connections"


ATTACKS = [rules, pages, bodies, writes, thumbnails, reads]


def measure(server, watched, seconds, attack=None):
    """One row: what the ordinary user notices, alone or during an attack."""
    tally = Tally()
    run = result = attacker = None
    if attack:
        run, result = attack(server, tally)
        attacker = multiprocessing.Process(target=run, daemon=True)
    server.reset_peak()
    cpu, began = server.cpu_seconds(), time.monotonic()
    if attacker:
        attacker.start()
        time.sleep(0.5)
    process, found = ordinary(watched, seconds)
    took, failed = found.get()
    process.join()
    row = {
        "attack": attack.__name__ if attack else "nobody",
        "result": f"{result()}; {tally.words()}" if attack else "",
        "failed": failed,
        "cpu": (server.cpu_seconds() - cpu) / (time.monotonic() - began),
        "peak_mb": server.status("VmHWM:") / 1024,
    }
    for name, values in took.items():
        row[name] = {"n": len(values), "p50": percentile(values, 0.5), "p99": percentile(values, 0.99),
                     "max": percentile(values, 1)}
    if attacker:
        attacker.kill()
        attacker.join()
        time.sleep(2)
    return row


def table(rows):
    head = ["attack", "send p50 / p99 / max", "sync", "page", "connect", "failed", "processors", "peak MB", "attackers"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        times = [f"{row[name]['p50']:.1f} / {row[name]['p99']:.1f} / {row[name]['max']:.0f}"
                 for name in ("send", "sync", "page", "connect")]
        cells = [row["attack"], *times, str(row["failed"]), f"{row['cpu']:.2f}", f"{row['peak_mb']:.0f}", row["result"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    about = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about.add_argument("--server", default=str(ROOT / "target" / "release" / "logcabin"), help="the program")
    about.add_argument("--only", help="attacks, with commas between them")
    about.add_argument("--seconds", type=int, default=SECONDS, help="how long each is measured")
    about.add_argument("--json", help="a file that gets the figures")
    asked = about.parse_args()
    names = asked.only.split(",") if asked.only else [attack.__name__ for attack in ATTACKS]
    unknown = set(names) - {attack.__name__ for attack in ATTACKS}
    if unknown:
        about.error(f"no such attack: {', '.join(sorted(unknown))}")
    rows = []
    for attack in [attack for attack in ATTACKS if attack.__name__ in names]:
        # Each on a server of its own: what one leaves behind is not the next one's.
        server = Server(asked.server)
        try:
            one, other = server.user("ordinary"), server.user("peer")
            room = one.ok("POST", f"{V3}/createRoom", {"preset": "public_chat"})["room_id"]
            other.ok("POST", f"{V3}/join/{quote(room)}", {})
            for number in range(20):
                one.send(room, f"before {number}")
            watched = (one, other, room)
            if not rows:
                rows.append(measure(server, watched, asked.seconds))
                print(table(rows), flush=True)
            rows.append(measure(server, watched, asked.seconds, attack))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
        finally:
            server.stop()
    if asked.json:
        pathlib.Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    # The attackers are ended with a signal, and take no lock with them.
    multiprocessing.set_start_method("fork")
    sys.exit(main())
