#!/usr/bin/env python3
"""What a day of a user leaves on the disk and in memory.

Starts a Logcabin and has some users live through some days in rooms of ten: each day of each is 40 encrypted messages
of 80 characters, and what clients do around them (typing, receipts, read markers, presence, messages to devices and
their delivery, key backup, account data). Then the server sweeps, stops, and this prints a row for each
part of the data directory.

    cargo build --release
    benches/user_day.py                       # 20 users, 15 days: two minutes
    benches/user_day.py --users 100 --days 30 --server path/to/an/older/logcabin
"""

import argparse
import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import urllib.parse

import peers

ROOM = 10
MESSAGES, TYPING, RECEIPTS, PRESENCE = 40, 40, 45, 15
TO_DEVICE, BACKUPS, ACCOUNT_DATA = 33, 10, 7
SWEEP_SECONDS = 10


def noise(length):
    """As long as base64 of what is encrypted."""
    return base64.b64encode(random.randbytes(length)).decode().rstrip("=")


class User:
    def __init__(self, port, name):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.token = None
        self.number = 0
        made = self.call("POST", "v3/register", {"username": name, "password": "a secret of hers", "device_id": "PHONE",
                                                 "auth": {"type": "m.login.dummy"}})
        self.token, self.id = made["access_token"], made["user_id"]
        self.curve = noise(32)
        version = {"algorithm": "m.megolm_backup.v1.curve25519-aes-sha2",
                   "auth_data": {"public_key": noise(32), "signatures": {}}}
        self.backup = self.call("POST", "v3/room_keys/version", version)["version"]
        self.since = self.call("GET", "v3/sync?timeout=0")["next_batch"]

    def call(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.connection.request(method, f"/_matrix/client/{path}", body and json.dumps(body), headers)
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{method} {path}: {response.status} {answer}")
        return answer

    def next(self):
        self.number += 1
        return self.number

    def day(self, room, others, seen):
        """Lives through a day in its room, in an order of its own."""
        at = f"v3/rooms/{urllib.parse.quote(room)}"
        me = urllib.parse.quote(self.id)
        session, sender = noise(32), {"sender_key": self.curve, "device_id": "PHONE"}

        def send():
            content = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": noise(272), "session_id": session, **sender}
            sent = self.call("PUT", f"{at}/send/m.room.encrypted/t{self.next()}", content)
            seen.append(sent["event_id"])

        def read():
            if seen:
                self.call("POST", f"{at}/receipt/m.read/{urllib.parse.quote(seen[-1])}", {})

        def mark():
            if seen:
                self.call("POST", f"{at}/read_markers", {"m.fully_read": seen[-1]})

        def to_device():
            olm = {"algorithm": "m.olm.v1.curve25519-aes-sha2", "sender_key": self.curve,
                   "ciphertext": {noise(32): {"type": 1, "body": noise(500)}}}
            to = random.choice(others).id
            self.call("PUT", f"v3/sendToDevice/m.room.encrypted/t{self.next()}", {"messages": {to: {"PHONE": olm}}})

        def sync():
            self.since = self.call("GET", f"v3/sync?timeout=0&since={self.since}")["next_batch"]

        def back_up():
            key = {"first_message_index": 0, "forwarded_count": self.next(), "is_verified": True,
                   "session_data": {"ephemeral": noise(32), "ciphertext": noise(400), "mac": noise(8)}}
            path = f"v3/room_keys/keys/{urllib.parse.quote(room)}/{urllib.parse.quote(session, safe='')}"
            self.call("PUT", f"{path}?version={self.backup}", key)

        def say():
            typing = {"typing": True, "timeout": 30000} if random.random() < 0.5 else {"typing": False}
            self.call("PUT", f"{at}/typing/{me}", typing)

        def present():
            self.call("PUT", f"v3/presence/{me}/status", {"presence": random.choice(["online", "unavailable"])})

        def account_data():
            self.call("PUT", f"v3/user/{me}/account_data/im.recent_emoji",
                      {"recent_emoji": [[noise(3), self.next()] for _ in range(20)]})

        acts = [(send, MESSAGES), (say, TYPING), (read, RECEIPTS - 10), (mark, 10), (present, PRESENCE),
                (to_device, TO_DEVICE), (sync, TO_DEVICE), (back_up, BACKUPS), (account_data, ACCOUNT_DATA)]
        acts = [act for act, times in acts for _ in range(times)]
        random.shuffle(acts)
        for act in acts:
            act()


def size(path):
    files = [path] if path.is_file() else [it for it in path.rglob("*") if it.is_file()]
    return sum(it.stat().st_blocks * 512 for it in files)


def status(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def written(pid):
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def serve(options, directory):
    port = peers.free_port()
    settings = {
        "LOGCABIN_REGISTRATION_OPEN": "true", "LOGCABIN_RATE_LIMITS_ENABLED": "false", "LOGCABIN_SERVER_DATA_DIR": directory,
        "LOGCABIN_PASSWORDS_ITERATIONS": "1000",
        "LOGCABIN_SERVER_BIND": f"127.0.0.1:{port}", "LOGCABIN_ERASURE_SWEEP_SECONDS": str(SWEEP_SECONDS),
        "LOGCABIN_FEDERATION_ENABLED": "false", **dict(setting.split("=", 1) for setting in options.set)}
    process = subprocess.Popen([options.server], env={**os.environ, **settings},
                               stdout=subprocess.DEVNULL, stderr=(directory.parent / "stderr").open("a"))
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/_matrix/client/versions")
            if connection.getresponse().status == 200:
                return process, port
        except ConnectionRefusedError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server does not answer")


def parser_of(doc):
    """A parser for the arguments of `serve`, with this text as its help."""
    about, _, more = doc.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=peers.ROOT / "target/release/logcabin", help="the program to measure")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an environment variable")
    return parser


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--users", type=int, default=20, help="how many users there are (20)")
    parser.add_argument("--days", type=int, default=15, help="how many days they live through (15)")
    parser.add_argument("--settle", type=float, default=60, help="seconds for what is left to do at the end (60)")
    parser.add_argument("--keep", metavar="DIR", type=pathlib.Path, help="where the data directory is to stay")
    options = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory(prefix="user-day-") as temporary:
        directory = (options.keep or pathlib.Path(temporary)) / "data"
        directory.mkdir(parents=True)
        measure(options, directory)


def measure(options, directory):
    process, port = serve(options, directory)
    try:
        users = [User(port, f"user{number}") for number in range(options.users)]
        rooms = []
        for begin in range(0, len(users), ROOM):
            members = users[begin:begin + ROOM]
            encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
            room = members[0].call("POST", "v3/createRoom",
                                   {"preset": "public_chat", "initial_state": [encryption]})["room_id"]
            for user in members[1:]:
                user.call("POST", f"v3/join/{urllib.parse.quote(room)}", {})
            rooms.append((room, members, []))
        live = [(user, room, members, seen) for room, members, seen in rooms for user in members]
        before, began = (size(directory), written(process.pid), status(process.pid, "VmRSS")), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(len(live)) as threads:
            for _ in range(options.days):
                list(threads.map(lambda life: life[0].day(life[1], life[2], life[3]), live))
        took = time.monotonic() - began
        time.sleep(options.settle)
        after = (written(process.pid), status(process.pid, "VmRSS"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    days = options.users * options.days
    print(f"{days} user-days in {took:.0f} s; for each, in bytes:")
    rows = [(it.name, size(it)) for it in sorted(directory.iterdir())]
    rows += [("log/volumes", size(directory / "log/volumes"))] if (directory / "log/volumes").exists() else []
    rows += [("all, less what was there before", size(directory) - before[0]),
             ("written to the disk", after[0] - before[1]), ("memory", after[1] - before[2])]
    for name, number in rows:
        print(f"  {name:34}{number / days:12,.0f}")


if __name__ == "__main__":
    main()
