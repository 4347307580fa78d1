#!/usr/bin/env python3
"""Logcabin and Synapse side by side: the same load on this machine, one after the other, in one run.

Installs Synapse from PyPI into a virtual environment, starts it on SQLite and on PostgreSQL (a cluster of its
own, which goes with the run), drives each and then Logcabin with `cargo bench --bench load`, and writes tables
with ratios, a plot, and the figures as JSON lines. Nothing is left running, whatever happens.

    benches/peers.py                  # all three: about ten minutes
    benches/peers.py --update         # and renew the figures in docs/performance.md
    benches/peers.py --only send --servers logcabin,sqlite

What is set so that the comparison is of like with like, and otherwise as each comes:

- Anyone may register and nothing is limited by rate; passwords are hashed with little work, since making
  accounts is not measured. Nobody else is told anything: no federation traffic, no statistics.
- Synapse logs warnings only. It gets one process, as most small servers have; its caches are as it sets them.
- PostgreSQL is as `initdb` makes it, `fsync` on: what was answered is on the disk, as it is with Logcabin. The
  CPU time of all its processes counts as Synapse's.
- Synapse answers a device that repeats a first synchronisation from memory, so each is made by a new device.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import platform
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "target" / "peers"
REQUIREMENTS = ["matrix-synapse==1.163.*", "psycopg2-binary==2.9.*"]
SERVERS = ["logcabin", "postgresql", "sqlite"]
START_SECONDS = 120
STOP_SECONDS = 30

SETTINGS = """\
server_name: localhost
pid_file: {directory}/synapse.pid
listeners:
  - port: {port}
    bind_addresses: ["127.0.0.1"]
    type: http
    resources: [{{names: [client]}}]
database: {database}
log_config: {directory}/log.yaml
media_store_path: {directory}/media
signing_key_path: {directory}/signing.key
registration_shared_secret: none
macaroon_secret_key: none
form_secret: none
report_stats: false
trusted_key_servers: []
suppress_key_server_warning: true
enable_registration: true
enable_registration_without_verification: true
bcrypt_rounds: 4
"""

UNLIMITED = {"per_second": 1e9, "burst_count": 1e9}
LIMITS = {
    **{f"rc_{what}": UNLIMITED for what in ["message", "registration", "room_creation", "joins_per_room"]},
    "rc_login": {by: UNLIMITED for by in ["address", "account", "failed_attempts"]},
    "rc_joins": {which: UNLIMITED for which in ["local", "remote"]},
    "rc_presence": {"per_user": UNLIMITED},
}

LOGGING = """\
version: 1
formatters: {plain: {format: "%(asctime)s %(name)s %(levelname)s %(message)s"}}
handlers: {stderr: {class: logging.StreamHandler, formatter: plain}}
root: {level: WARNING, handlers: [stderr]}
disable_existing_loggers: false
"""


def main():
    options = parse()
    OUT.mkdir(parents=True, exist_ok=True)
    load = build(options)
    chosen = [name for name in SERVERS if name in options.servers]
    synapse = venv() if chosen != ["logcabin"] else None
    results, versions = [], []
    for name in chosen:
        with contextlib.ExitStack() as stack:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
            # The database's user has to reach its own part of it.
            directory.chmod(0o711)
            if name == "logcabin":
                where = ["--server", options.server] if options.server else []
            else:
                where = start_synapse(stack, name, directory, synapse)
                if where is None:
                    continue
                versions.append(where[where.index("--label") + 1])
            out = OUT / name
            say(f"driving {name}")
            common = ["--seconds", options.seconds, "--waiting", options.waiting, "--out", out]
            only = ["--only", options.only] if options.only else []
            run([load, "--bench", *where, *common, *only])
            results.append(out / "load.jsonl")
    note = f"{', '.join([*versions, f'Python {platform.python_version()}'])}; {machine()}."
    compare = ["compare", "--out", OUT, "--note", note, *(["--update"] if options.update else [])]
    run([load, "--bench", *compare, *results])
    say(f"written to {OUT}")


def parse():
    about, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default=",".join(SERVERS), metavar="NAME,…",
                        help=f"which of {', '.join(SERVERS)} (all, unless said)")
    parser.add_argument("--seconds", type=positive, default=8.0,
                        help="how long each operation is measured at most (8)")
    parser.add_argument("--waiting", type=positive_int, default=200, help="how many wait idly (200)")
    parser.add_argument("--only", metavar="WORD,…", help="scenarios with these words in their names")
    parser.add_argument("--server", metavar="PROGRAM", help="the Logcabin to measure, not the one of this tree")
    parser.add_argument("--load", metavar="PROGRAM", help="the load generator, if it is built already")
    parser.add_argument("--update", action="store_true", help="renew the figures in docs/performance.md")
    options = parser.parse_args()
    options.servers = options.servers.split(",")
    if unknown := set(options.servers) - set(SERVERS):
        parser.error(f"no such server: {', '.join(sorted(unknown))}; there are {', '.join(SERVERS)}")
    if options.update and (options.only or set(options.servers) != set(SERVERS)):
        parser.error("--update wants all servers and all scenarios")
    return options


def positive(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"not more than nothing: {text}")
    return number


def positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"not more than nothing: {text}")
    return number


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


def run(command):
    command = [str(part) for part in command]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        status = process.wait()
    except BaseException:
        # It has to end what it started itself.
        end(process, signal.SIGTERM)
        raise
    if status != 0:
        raise subprocess.CalledProcessError(status, command)


def end(process, how):
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def build(options):
    """The load generator, and with it the Logcabin that it starts."""
    if options.load:
        return pathlib.Path(options.load).resolve()
    say("building")
    command = ["cargo", "bench", "--bench", "load", "--no-run", "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "load":
            return pathlib.Path(message["executable"])
    sys.exit("peers: cargo named no program")


def venv():
    """The Python with Synapse in it, kept as long as what is to be in it is the same."""
    directory, wanted = OUT / "venv", "\n".join([*REQUIREMENTS, platform.python_version()])
    python, noted = directory / "bin" / "python", directory / "requirements.txt"
    if not noted.exists() or noted.read_text() != wanted:
        say(f"installing {' '.join(REQUIREMENTS)}")
        if importlib.util.find_spec("ensurepip") is None:
            sys.exit("peers: Python's venv is needed (python3-venv on Debian)")
        shutil.rmtree(directory, ignore_errors=True)
        run([sys.executable, "-m", "venv", directory])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS])
        noted.write_text(wanted)
    return python


def start_synapse(stack, name, directory, python):
    """Starts Synapse on one of its databases; what the load generator is to be told, or `None`."""
    roots = []
    if name == "sqlite":
        database, version = {"name": "sqlite3", "args": {"database": f"{directory}/synapse.db"}}, "SQLite"
    else:
        cluster = start_postgresql(stack, directory)
        if cluster is None:
            return None
        process, version, database = cluster
        roots.append(process.pid)
    port = free_port()
    settings = SETTINGS.format(directory=directory, port=port, database=json.dumps(database))
    settings += "".join(f"{key}: {json.dumps(value)}\n" for key, value in LIMITS.items())
    (directory / "homeserver.yaml").write_text(settings)
    (directory / "log.yaml").write_text(LOGGING)
    command = [python, "-m", "synapse.app.homeserver", "-c", directory / "homeserver.yaml"]
    run([*command, "--generate-keys"])
    output = stack.enter_context(open(OUT / f"{name}.log", "w"))
    process = started(stack, command, signal.SIGTERM, cwd=directory, stdout=output, stderr=output)
    roots.append(process.pid)
    base = f"http://127.0.0.1:{port}"
    until(lambda: answers(f"{base}/_matrix/client/versions"), process, f"Synapse (see {output.name})")
    installed = "import importlib.metadata as m; print(m.version('matrix-synapse'))"
    synapse = subprocess.check_output([python, "-c", installed], text=True).strip()
    label = f"Synapse {synapse}, {version}"
    return ["--base", base, "--pid", ",".join(map(str, roots)), "--label", label]


def start_postgresql(stack, directory):
    """A cluster that listens on a socket alone: its process, its version, and Synapse's way to it."""
    programs = postgresql()
    if programs is None:
        print("peers: SKIPPED: Synapse on PostgreSQL: there is no PostgreSQL here (postgresql on Debian)",
              file=sys.stderr, flush=True)
        return None
    cluster = directory / "postgresql"
    cluster.mkdir(mode=0o700)
    identity = unprivileged()
    if identity:
        os.chown(cluster, identity["user"], identity["group"])
    quiet = {"stdout": subprocess.DEVNULL, "cwd": cluster, **identity}
    data = cluster / "data"
    initdb = [programs / "initdb", "--pgdata", data, "--username", "synapse", "--auth", "trust",
              "--encoding", "UTF8", "--locale", "C"]
    subprocess.run([str(part) for part in initdb], check=True, **quiet)
    output = stack.enter_context(open(OUT / "postgresql-server.log", "w"))
    server = [programs / "postgres", "-D", data, "-k", cluster, "-c", "listen_addresses="]
    # An interrupt ends it without waiting for its clients.
    process = started(stack, server, signal.SIGINT, cwd=cluster, stdout=output, stderr=output, **identity)
    create = [programs / "createdb", "--host", cluster, "--username", "synapse", "synapse"]
    create = [str(part) for part in create]
    until(lambda: subprocess.run(create, stderr=subprocess.DEVNULL, **quiet).returncode == 0,
          process, f"PostgreSQL (see {output.name})")
    said = subprocess.check_output([programs / "postgres", "--version"], text=True)
    version = re.search(r"\d+(\.\d+)*", said).group()
    arguments = {"user": "synapse", "dbname": "synapse", "host": str(cluster), "cp_min": 5, "cp_max": 10}
    return process, f"PostgreSQL {version}", {"name": "psycopg2", "args": arguments}


def postgresql():
    """The directory of PostgreSQL's programs: the newest."""
    version = lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=version, reverse=True)
    if on_path := shutil.which("postgres"):
        found.insert(0, pathlib.Path(on_path).resolve().parent)
    complete = (path for path in found if all((path / program).exists() for program in ["initdb", "createdb", "postgres"]))
    return next(complete, None)


def unprivileged():
    """Whom to be for PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ["postgres", "nobody"]:
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    sys.exit("peers: PostgreSQL refuses to run as root, and there is no other user")


def started(stack, command, stop, **options):
    """A process that ends with the stack."""
    process = subprocess.Popen([str(part) for part in command], **options)
    stack.callback(end, process, stop)
    return process


def until(done, process, what):
    deadline = time.monotonic() + START_SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"peers: {what} does not start")
        time.sleep(0.2)


def answers(url):
    with contextlib.suppress(OSError, urllib.error.URLError):
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def machine():
    """What it was measured on."""
    with contextlib.suppress(OSError):
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name"):
                return f"{os.cpu_count()} cores, {line.partition(':')[2].strip()}"
    return f"{os.cpu_count()} cores"


if __name__ == "__main__":
    # Whoever ends the run ends what it started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peers: ended"))
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"peers: failed: {' '.join(map(str, error.cmd))}")
    except KeyboardInterrupt:
        sys.exit("peers: ended")
