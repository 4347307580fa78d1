"""The server that is attacked, and its quiet users, who ask little and steadily."""

import contextlib
import http.client
import multiprocessing
import os
import pathlib
import threading
import time

from hostile import V3, Client, Refused, quote

TICKS = os.sysconf("SC_CLK_TCK")
USERS = 3
# Seconds between two of the same operation of one user.
EVERY = {"whoami": 0.1, "send": 0.3, "sync": 0.3}


def users(port):
    """New accounts in a room of theirs, and the room."""
    accounts = []
    for number in range(USERS):
        body = {"username": f"quiet{number}", "password": "a long enough password",
                "auth": {"type": "m.login.dummy"}}
        answer = Client(port).ok("POST", f"{V3}/register", body)
        accounts.append(Client(port, answer["access_token"], answer["user_id"]))
    room = accounts[0].ok("POST", f"{V3}/createRoom", {"preset": "public_chat"})["room_id"]
    for account in accounts[1:]:
        account.ok("POST", f"{V3}/join/{quote(room)}", {})
    return accounts, room


def watch(accounts, room, stop, found):
    """Measures until it is told to stop; gives operations, each with when it was due, the seconds until it was
    answered, and whether it was answered well. What came due while an earlier one was in progress is not made up
    for, but has waited for that one, too."""
    samples = []

    def operation(client, name):
        since = client.ok("GET", f"{V3}/sync?timeout=0")["next_batch"] if name == "sync" else None

        def sync():
            nonlocal since
            since = client.ok("GET", f"{V3}/sync?since={since}&timeout=0", patient=False)["next_batch"]
        return {
            "whoami": lambda: client.ok("GET", f"{V3}/account/whoami", patient=False),
            "send": lambda: client.send(room, "hello", patient=False),
            "sync": sync,
        }[name]

    def keep_asking(client, name, offset):
        every, do = EVERY[name], operation(client, name)
        due = time.monotonic() + offset
        while not stop.is_set():
            time.sleep(max(0, due - time.monotonic()))
            began, is_good = time.monotonic(), True
            try:
                do()
            except (Refused, OSError, http.client.HTTPException):
                is_good = False
            ended = time.monotonic()
            samples.append((name, began, ended - began, is_good))
            due += every
            while due < ended:
                samples.append((name, due, ended - due, is_good))
                due += every

    threads = []
    for number, account in enumerate(accounts):
        for name, every in EVERY.items():
            arguments = account.again(), name, every * number / len(accounts)
            threads.append(threading.Thread(target=keep_asking, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put(samples)


class Quiet:
    """Quiet users, in a process of their own."""

    def __init__(self, port):
        self.stop, self.found = multiprocessing.Event(), multiprocessing.Queue()
        arguments = (*users(port), self.stop, self.found)
        self.process = multiprocessing.Process(target=watch, args=arguments, daemon=True)
        self.process.start()

    def end(self):
        self.stop.set()
        samples = self.found.get(timeout=300)
        self.process.join()
        return samples


class Gauge:
    """Watches a process, its data directory and what it says of itself."""

    def __init__(self, pid, data, journal):
        self.pid, self.data, self.journal = pid, data, journal
        self.memory, self.disk, self.spent = [], [], 0.0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        turn = 0
        while not self.done.wait(0.1):
            self.memory.append((time.monotonic(), self.resident()))
            if turn % 10 == 0:
                self.disk.append((time.monotonic(), self.stored()))
            turn += 1

    def resident(self):
        """Nothing if it has ended."""
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0

    def stored(self):
        total = 0
        for top, _, names in os.walk(self.data):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(top, name)).st_blocks * 512
        return total

    def cpu(self):
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            self.spent = (int(fields[11]) + int(fields[12])) / TICKS
        return self.spent

    def settled(self, longest):
        """Waits until the server has done what it still had to do; whether it has in time."""
        until, spent = time.monotonic() + longest, self.cpu()
        while time.monotonic() < until:
            time.sleep(2)
            spent, before = self.cpu(), spent
            if spent - before < 0.5:
                return True
        return False

    def end(self):
        self.done.set()
        self.thread.join()


def times(samples, name, start, end):
    """The median, the 99th percentile and the longest time of an operation that was due in between, in
    milliseconds; how many there were; and how many failed."""
    of = sorted(took for what, due, took, _ in samples if what == name and start <= due < end)
    failed = sum(not good for what, due, _, good in samples if what == name and start <= due < end)
    share = lambda part: of[min(len(of) - 1, int(len(of) * part))] * 1000 if of else 0.0
    return {"p50": share(0.5), "p99": share(0.99), "max": share(1), "count": len(of), "failed": failed}
