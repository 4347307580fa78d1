#!/usr/bin/env python3
"""What sliding sync connections cost that are many and large.

Starts a Logcabin with a user who is in many rooms on many devices. Each device opens a connection with all rooms in its
window, and then asks again: without news, after a message, and after the server was stopped and started. Prints the
times of the answers, how many clients had to start over (`M_UNKNOWN_POS`), the processor time of the server for each
answer, and its memory.

    cargo build --release
    benches/sliding.py                        # 600 devices, 1,000 rooms: two minutes
    benches/sliding.py --devices 10000 --rooms 1000
"""

import http.client
import json
import os
import pathlib
import signal
import tempfile
import time
import urllib.parse

import user_day

PATH = "unstable/org.matrix.simplified_msc3575/sync"


class Device:
    def __init__(self, connection, token, rooms):
        self.connection, self.token, self.position = connection, token, None
        self.ask = json.dumps({
            "conn_id": "room-list",
            "lists": {"all_rooms": {
                "ranges": [[0, rooms - 1]], "timeline_limit": 10,
                "required_state": [["m.room.name", ""], ["m.room.encryption", ""], ["m.room.member", "$LAZY"],
                                   ["m.room.member", "$ME"], ["m.room.create", ""], ["m.room.power_levels", ""]]}},
            "extensions": {name: {"enabled": True}
                           for name in ("to_device", "e2ee", "account_data", "receipts", "typing")}})

    def next(self):
        """How long the answer took, its size, and whether the client had to start over."""
        position = f"&pos={self.position}" if self.position else ""
        headers = {"Authorization": f"Bearer {self.token}"}
        began = time.perf_counter()
        self.connection.request("POST", f"/_matrix/client/{PATH}?timeout=0{position}", self.ask, headers)
        response = self.connection.getresponse()
        body = response.read()
        took = time.perf_counter() - began
        answer = json.loads(body)
        if response.status == 400 and answer["errcode"] == "M_UNKNOWN_POS":
            self.position = None
            again = self.next()
            return (took + again[0], len(body) + again[1], True)
        if response.status != 200:
            raise RuntimeError(f"{response.status} {answer}")
        self.position = answer["pos"]
        return took, len(body), False


def processor(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(what, process, devices):
    before = processor(process.pid)
    answers = [device.next() for device in devices]
    spent = processor(process.pid) - before
    times = sorted(took for took, _, _ in answers)
    over = sum(has_started_over for *_, has_started_over in answers)
    print(f"{what:34}{1000 * times[len(times) // 2]:9.2f}{1000 * times[len(times) * 99 // 100]:9.2f}"
          f"{1000 * spent / len(devices):9.2f}{sum(size for _, size, _ in answers) / len(answers):12,.0f}{over:9}"
          f"{user_day.status(process.pid, 'VmRSS') / 1e6:9.0f}", flush=True)


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=600)


def main():
    parser = user_day.parser_of(__doc__)
    parser.add_argument("--devices", type=int, default=600, help="how many devices there are (600)")
    parser.add_argument("--rooms", type=int, default=1000, help="how many rooms the user is in (1,000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sliding-") as temporary:
        directory = pathlib.Path(temporary) / "data"
        directory.mkdir()
        measure(options, directory)


def measure(options, directory):
    process, port = user_day.serve(options, directory)
    try:
        ann, bob = user_day.User(port, "ann"), user_day.User(port, "bob")
        rooms = []
        for number in range(options.rooms):
            rooms.append(ann.call("POST", "v3/createRoom", {"preset": "public_chat", "name": f"Room {number}"})["room_id"])
            bob.call("POST", f"v3/join/{urllib.parse.quote(rooms[-1])}", {})
        login = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": "bob"},
                 "password": "a secret of hers"}
        connection = connect(port)
        devices = [Device(connection, bob.call("POST", "v3/login", login)["access_token"], options.rooms)
                   for _ in range(options.devices)]
        print(f"{options.devices} devices, {options.rooms} rooms; memory before: "
              f"{user_day.status(process.pid, 'VmRSS') / 1e6:.0f} MB\n"
              f"{'':34}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>9}{'bytes':>12}{'again':>9}{'MB':>9}")
        measured("the first answer", process, devices)
        measured("the second", process, devices)
        measured("without news", process, devices)
        # The server has ended it meanwhile; the next request opens another.
        ann.connection.close()
        say = {"msgtype": "m.text", "body": "hello"}
        ann.call("PUT", f"v3/rooms/{urllib.parse.quote(rooms[0])}/send/m.room.message/t1", say)
        measured("a message", process, devices)
        measured("without news", process, devices)
        process.send_signal(signal.SIGTERM)
        process.wait()
        process, port = user_day.serve(options, directory)
        connection = connect(port)
        for device in devices:
            device.connection = connection
        measured("after a restart", process, devices)
        measured("without news", process, devices)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    files = directory / "sliding"
    print(f"files: {user_day.size(files) / 1e6:.1f} MB" if files.exists() else "no files")


if __name__ == "__main__":
    main()
