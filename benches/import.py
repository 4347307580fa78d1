#!/usr/bin/env python3
"""How long it takes to move from Synapse, and how much memory: `logcabin import-synapse` on a large database.

Starts a real Synapse on SQLite, lets a few clients use it, and blows its database up to as many events as are
wanted (`import_source.py` says how). Then it measures `check`, `copy`, what `copy --follow` lags behind that
Synapse while somebody writes, `finish` with a tail of new events, and the server that is started on the result.

    benches/import.py                                   # a million events: some minutes
    benches/import.py --events 10000000 --dir /var/tmp  # the goal: about 40 GB of disk, an hour
    benches/import.py --source /var/tmp/import-…        # once more with a database from before (needs --keep then)

Memory is the highest of the process (VmHWM), and of that what is not pages of files (RssAnon). The times of
sections are from the program's own progress. The database is warm only as far as the machine's memory goes.
"""

import argparse
import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches"))
import peers  # noqa: E402

LOGCABIN = ROOT / "target" / "release" / "logcabin"


def main():
    options = parse()
    try:
        import synapse  # noqa: F401
    except ImportError:
        python = options.python or peers.venv()
        os.execv(python, [str(python), *sys.argv])
    with contextlib.ExitStack() as stack:
        if options.source:
            work = options.source
        else:
            work = pathlib.Path(tempfile.mkdtemp(prefix="import-", dir=options.dir)).resolve()
            if not options.keep:
                stack.callback(shutil.rmtree, work, ignore_errors=True)
            make(work, options)
        measure(work, options)


def parse():
    about, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=peers.positive_int, default=1_000_000, help="of the database (1000000)")
    parser.add_argument("--tail", type=peers.positive_int, default=10_000, help="events before `finish` (10000)")
    parser.add_argument("--dir", type=pathlib.Path, help="where to make the database")
    parser.add_argument("--source", type=pathlib.Path, help="a database from an earlier run with --keep")
    parser.add_argument("--keep", action="store_true", help="leave the database and the log there")
    parser.add_argument("--only", default="check,copy,follow,finish,serve", metavar="STEP,…", help="these steps (all)")
    parser.add_argument("--logcabin", type=pathlib.Path, default=LOGCABIN, help="the program (target/release)")
    parser.add_argument("--python", type=pathlib.Path, help="a Python with Synapse (else one is installed)")
    options = parser.parse_args()
    if not options.logcabin.exists():
        parser.error(f"{options.logcabin} is not there: cargo build --release")
    options.only = options.only.split(",")
    return options


def say(text):
    print(f"import: {text}", file=sys.stderr, flush=True)


def make(work, options):
    """A database of so many events, and a second one with the tail."""
    import import_source

    with contextlib.ExitStack() as stack:
        base, _ = start_synapse(stack, work)
        say("filling Synapse")
        clients = import_source.populate(base)
        (work / "clients.json").write_text(json.dumps(
            [{"user": client.user, "token": client.token} for client in clients]))
    say(f"blowing it up to {options.events} events")
    began = time.monotonic()
    # A process of its own, whose memory ends with it.
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made = import_source.blow_up(work / "synapse.db", options.events, options.tail, say)
            say(f"{made} events")
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("import: it could not be blown up")
    size = (work / "synapse.db").stat().st_size
    say(f"made {work} in {time.monotonic() - began:.0f} s: {size / 1e9:.2f} GB")


def start_synapse(stack, work):
    """Starts Synapse on the database in a directory. It listens where it did the first time."""
    config = work / "homeserver.yaml"
    command = [sys.executable, "-m", "synapse.app.homeserver", "-c", config]
    if not config.exists():
        database = {"name": "sqlite3", "args": {"database": f"{work}/synapse.db"}}
        port = peers.free_port()
        settings = peers.SETTINGS.format(directory=work, port=port, database=json.dumps(database))
        settings += "".join(f"{key}: {json.dumps(value)}\n" for key, value in peers.LIMITS.items())
        config.write_text(settings)
        (work / "log.yaml").write_text(peers.LOGGING)
        (work / "port").write_text(str(port))
        subprocess.run([*command, "--generate-keys"], check=True, stdout=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{(work / 'port').read_text()}"
    output = stack.enter_context(open(work / "synapse.log", "a"))
    process = peers.started(stack, command, signal.SIGTERM, cwd=work, stdout=output, stderr=output)
    peers.until(lambda: peers.answers(f"{base}/_matrix/client/versions"), process, f"Synapse (see {output.name})")
    return base, process


class Measured:
    """A run of the program on a terminal, where it shows how far it has come."""

    def __init__(self, command):
        self.began = time.monotonic()
        self.peak, self.anonymous, self.lines, self.text = 0, 0, [], ""
        self.seen = threading.Condition()
        ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=theirs, text=True)
        os.close(theirs)
        self.threads = [threading.Thread(target=self.watch, daemon=True),
                        threading.Thread(target=self.read, args=(ours,), daemon=True)]
        for thread in self.threads:
            thread.start()

    def watch(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        while self.process.returncode is None:
            with contextlib.suppress(OSError):
                said = dict(re.findall(r"(VmHWM|RssAnon):\s+(\d+)", status.read_text()))
                self.peak = max(self.peak, int(said.get("VmHWM", 0)))
                self.anonymous = max(self.anonymous, int(said.get("RssAnon", 0)))
            time.sleep(0.05)

    def read(self, terminal):
        rest = ""
        with contextlib.suppress(OSError):
            while data := os.read(terminal, 65536).decode(errors="replace"):
                *lines, rest = (rest + data).split("\r")
                now = time.monotonic() - self.began
                with self.seen:
                    # The last one is whole as well: the program writes each at once.
                    for line in [*lines, rest]:
                        # Without what moves the cursor.
                        line = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line)
                        if found := re.search(r"(\w+): (\d+) rows read, (\d+) records", line):
                            self.lines.append((now, found[1], int(found[2]), int(found[3])))
                        elif line.strip():
                            self.text += line
                    rest = ""
                    self.seen.notify_all()

    def end(self, what):
        output = self.process.stdout.read()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - self.began
        self.cpu = (usage.ru_utime, usage.ru_stime)
        for thread in self.threads:
            thread.join(5)
        if self.process.returncode != 0:
            sys.exit(f"import: {what} failed: {output}{self.text}")
        return output

    def sections(self):
        """Seconds and rows of each section, by what was shown when."""
        sections, last = {}, (0.0, None, 0, 0)
        for line in self.lines:
            seconds, rows = sections.get(line[1], (0.0, 0))
            sections[line[1]] = (seconds + line[0] - last[0], rows + line[2] - last[2])
            last = line
        return sections

    def told(self, what, **more):
        user, system = self.cpu
        figures = {"step": what, "seconds": round(self.seconds, 2), "user": round(user, 2),
                   "system": round(system, 2), "peak_mb": round(self.peak / 1024, 1),
                   "anonymous_mb": round(self.anonymous / 1024, 1), **more}
        slowest = sorted(self.sections().items(), key=lambda section: -section[1][0])[:8]
        figures["sections"] = {name: {"seconds": round(seconds, 2), "rows": rows}
                               for name, (seconds, rows) in slowest if seconds >= 0.05}
        print(json.dumps(figures), flush=True)
        return figures


def measure(work, options):
    data = work / "data"
    program = [options.logcabin, "import-synapse"]
    places = ["--config", work / "homeserver.yaml"]
    into = [*places, "--data-dir", data]
    if "check" in options.only:
        check = Measured([*program, "check", *places])
        check.end("check")
        check.told("check")
    if "copy" in options.only:
        (work / "homeserver.yaml.moved-to-logcabin").unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        copy = Measured([*program, "copy", *into])
        copy.end("copy")
        events = copy.sections().get("Events", (1, 0))
        copy.told("copy", log_mb=size(data), events_a_second=round(events[1] / max(events[0], 0.001)))
    if "follow" in options.only:
        follow(work, [*program, "copy", *into, "--follow"])
    if "finish" in options.only:
        import import_source

        tail = work / "tail.db"
        added = import_source.add_tail(work / "synapse.db") if tail.exists() else 0
        tail.unlink(missing_ok=True)
        finish = Measured([*program, "finish", *into])
        said = finish.end("finish")
        differing = re.search(r"(\d+) rooms compared, (\d+) differ", said)
        finish.told("finish", tail=added, rooms=int(differing[1]), differing=int(differing[2]), log_mb=size(data))
    if "serve" in options.only:
        serve(work, data, options)


def size(data):
    return round(sum(path.stat().st_size for path in data.glob("log*/**/*") if path.is_file()) / 1e6, 1)


def follow(work, command, messages=300):
    """How long after Synapse's answer a message is in the log of a copy that follows."""
    import import_source

    with contextlib.ExitStack() as stack:
        base, _ = start_synapse(stack, work)
        accounts = json.loads((work / "clients.json").read_text())
        clients = []
        for account in accounts[:3]:
            client = import_source.Client.__new__(import_source.Client)
            client.base, client.token, client.user = base, account["token"], account["user"]
            client.sent = int(time.time())
            clients.append(client)
        joined = clients[0].ask("GET", "v3/joined_rooms")["joined_rooms"]
        mine = [room for room in joined if all(
            room in client.ask("GET", "v3/joined_rooms")["joined_rooms"] for client in clients)]
        run = Measured(command)
        stack.callback(lambda: run.process.poll() is None and run.process.kill())
        # The first message shows that it follows.
        head = lambda: sum(line[2] for line in run.lines[-1:])
        clients[0].say(mine[0], "The first one")
        wait(run, lambda: bool(run.lines) and time.monotonic() - run.began - run.lines[-1][0] > 3, 600)
        before, sent = head(), []
        began = time.monotonic()
        for number in range(messages):
            clients[number % len(clients)].say(mine[number % len(mine)], "One of many")
            sent.append(time.monotonic() - run.began)
        rate = messages / (time.monotonic() - began)
        wait(run, lambda: head() >= before + messages, 60)
        lags = []
        for number, at in enumerate(sent, 1):
            seen = next((line[0] for line in run.lines if line[2] >= before + number), None)
            if seen is not None:
                lags.append(max(0.0, seen - at))
        lags.sort()
        run.process.send_signal(signal.SIGINT)
        run.end("copy --follow")
        if not lags:
            sys.exit("import: nothing was followed")
        run.told("follow", messages=len(lags), of=messages, messages_a_second=round(rate, 1),
                 lag_median=round(lags[len(lags) // 2], 2), lag_max=round(lags[-1], 2))


def wait(run, done, seconds):
    deadline = time.monotonic() + seconds
    with run.seen:
        while not done() and time.monotonic() < deadline:
            run.seen.wait(0.2)


def serve(work, data, options):
    """The memory of a server on the log, with which that of the import is to be compared."""
    port = peers.free_port()
    command = [options.logcabin, "serve", "--data-dir", data, "--bind", f"127.0.0.1:{port}",
               "--server-name", "localhost"]
    began = time.monotonic()
    with open(work / "serve.log", "w") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
    status = pathlib.Path(f"/proc/{process.pid}/status")
    try:
        while not peers.answers(f"http://127.0.0.1:{port}/_matrix/client/versions"):
            if process.poll() is not None:
                sys.exit(f"import: the server does not start: {(work / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.1)
        seconds = time.monotonic() - began
        said = dict(re.findall(r"(VmHWM|VmRSS|RssAnon):\s+(\d+)", status.read_text()))
    finally:
        peers.end(process, signal.SIGTERM)
    megabytes = {name: round(int(value) / 1024, 1) for name, value in said.items()}
    print(json.dumps({"step": "serve", "seconds": round(seconds, 2), **megabytes}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("import: ended"))
    main()
