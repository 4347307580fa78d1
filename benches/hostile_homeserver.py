#!/usr/bin/env python3
"""What one homeserver that means harm, or five, can do to everybody else.

Starts a Logcabin with its default limits, some quiet users who ask little and steadily, and homeservers that attack
it, all on this machine. Prints a row for each attack: what was sent, what others noticed before and during it, and
what it cost the server. An attack that the server refuses shows in its answers.

    cargo build --release
    benches/hostile_homeserver.py                                # each attack by itself, on a server of its own
    benches/hostile_homeserver.py --attack invites,knocks
    benches/hostile_homeserver.py --together                     # all at once from five homeservers
    benches/hostile_homeserver.py --scale 0.1 --json before.json --server path/to/an/older/logcabin
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import logging
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import ssl
import sys
import tempfile
import time
import urllib.parse

import peers
from attacks import floods, memory, poison, resolution  # noqa: F401: they register their attacks
from attacks.base import ATTACKS
from attacks.quiet import EVERY, Gauge, Quiet, times
from attacks.wire import Failed, Origin, certify

ORIGINS = 5
# For attacks that need a homeserver for each case.
SPARE = 24
GOALS = {"slower": 2.0, "memory": 256 << 20, "disk": 4.0}
# Smaller figures are met goals: they are the noise of the machine.
NOISE = {"slower": 10.0, "disk": 8 << 20, "journal": 1 << 20}


class World:
    """What attackers have to know of the server."""

    def __init__(self, directory, options):
        self.directory = directory
        self.ports = [peers.free_port() for _ in range(ORIGINS + SPARE)]
        self.spare = list(range(ORIGINS, ORIGINS + SPARE))
        addresses = ["127.0.0.1", *(f"127.0.0.{11 + number}" for number in range(ORIGINS + SPARE))]
        self.ca = certify(directory, addresses)
        self.port, self.client_port = peers.free_port(), peers.free_port()
        self.target = f"localhost:{self.port}"
        # So that few invites are too many in a small run.
        self.invites = max(20, round(5000 * min(1, options.scale)))
        self.invites_by_one = max(2, self.invites // 10)

    def client_context(self):
        return ssl.create_default_context(cafile=self.ca)

    def server_context(self):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.directory / "server.pem", self.directory / "server.key")
        return context


def start(stack, world, options):
    """The server that is attacked."""
    directory = world.directory
    settings = {
        "LOGCABIN_SERVER_NAME": world.target, "LOGCABIN_REGISTRATION_OPEN": "true",
        "LOGCABIN_FEDERATION_ENABLED": "true", "LOGCABIN_FEDERATION_BIND": f"127.0.0.1:{world.port}",
        "LOGCABIN_FEDERATION_CERTIFICATE": directory / "server.pem",
        "LOGCABIN_FEDERATION_CERTIFICATE_KEY": directory / "server.key",
        "LOGCABIN_FEDERATION_CA": world.ca, "LOGCABIN_FEDERATION_ALLOWED_NETWORKS": "127.0.0.0/8",
        "LOGCABIN_QUOTAS_INVITES": world.invites, "LOGCABIN_QUOTAS_INVITES_BY_ONE": world.invites_by_one,
    }
    environment = {**os.environ, **{key: str(value) for key, value in settings.items()}}
    output = stack.enter_context(open(directory / "log", "w"))
    command = [options.server, "serve", "--data-dir", directory / "data", "--bind", f"127.0.0.1:{world.client_port}"]
    process = peers.started(stack, command, signal.SIGTERM, env=environment, stdout=output, stderr=output)
    answers = lambda: peers.answers(f"http://127.0.0.1:{world.client_port}/_matrix/client/versions")
    peers.until(answers, process, f"the server (see {output.name})")
    return process


# The attackers, in processes of their own


def attackers(world, number, names, options, pipe):
    """One homeserver with its attacks. Says when it is ready, attacks when it is told to, and then checks."""
    # Real attackers have machines of their own: these get the processor time that nobody else wants.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(ValueError):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    async def each(attacks, what):
        """Does it with all that have not failed."""
        attacks = [attack for attack in attacks if not attack.tally.failed]
        done = await asyncio.gather(*(what(attack) for attack in attacks), return_exceptions=True)
        for attack, outcome in zip(attacks, done):
            if isinstance(outcome, BaseException):
                attack.tally.failed = True
                attack.tally.note(f"failed: {type(outcome).__name__}: {outcome}")

    async def work():
        origin = Origin(world, number)
        await origin.listen()
        attacks = [ATTACKS[name](world, origin, options) for name in names]
        await each(attacks, lambda attack: attack.prepare())
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)

        async def run(attack):
            began = time.monotonic()
            attack.tally.until = began + options.limit
            try:
                async with asyncio.timeout(options.limit + 30):
                    await attack.run()
            finally:
                attack.tally.seconds = time.monotonic() - began
        spent = time.process_time()
        await each(attacks, run)
        pipe.send(time.process_time() - spent)
        await asyncio.to_thread(pipe.recv)

        async def check(attack):
            attack.tally.checks = await attack.after()
        await each(attacks, check)
        pipe.send([attack.tally.known() for attack in attacks])
    try:
        asyncio.run(work())
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass


class Attackers:
    def __init__(self, world, number, names, options):
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(
            target=attackers, args=(world, number, names, options, other), daemon=True)
        self.process.start()
        other.close()

    def hear(self, seconds):
        """What they say next, or `None` if they say nothing in time."""
        try:
            return self.pipe.recv() if self.pipe.poll(seconds) else None
        except EOFError:
            return None

    def end(self):
        self.process.kill()
        self.process.join()


def measure(names, groups, options):
    """Attacks one server and gives the row."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(tempfile.mkdtemp(prefix="hostile-homeserver-"))
        stack.callback(lambda: options.keep or shutil.rmtree(directory, ignore_errors=True))
        if options.keep:
            peers.say(f"keeping {directory}")
        world = World(directory, options)
        process = start(stack, world, options)
        gauge = Gauge(process.pid, directory / "data", directory / "log")
        stack.callback(gauge.end)
        quiet = Quiet(world.client_port)
        stack.callback(quiet.process.kill)
        mean = [Attackers(world, number, group, options) for number, group in enumerate(groups) if group]
        for one in mean:
            stack.callback(one.end)
        peers.say(f"{', '.join(names)}: preparing")
        for one in mean:
            if one.hear(600) != "ready":
                raise SystemExit(f"the attackers do not get ready: {', '.join(names)}")
        gauge.settled(30)
        marks = [mark(gauge)]
        time.sleep(options.quiet)
        marks.append(mark(gauge))
        peers.say("attacking")
        for one in mean:
            one.pipe.send("go")
        until = time.monotonic() + options.limit + 60
        cpu = [one.hear(max(0, until - time.monotonic())) for one in mean]
        marks.append(mark(gauge))
        peers.say("waiting for the server")
        is_settled = gauge.settled(options.settle)
        marks.append(mark(gauge))
        tallies = []
        for one in mean:
            one.pipe.send("check")
            tallies += one.hear(300) or []
        has_survived = process.poll() is None
        samples = quiet.end()
        gauge.end()
        marks.append(mark(gauge) if has_survived else marks[-1])
    found = {"attack": "+".join(names), "scale": options.scale, "attackers_cpu": sum(spent or 0 for spent in cpu),
             "settled": is_settled, "survived": has_survived}
    return row(found, marks, samples, gauge, tallies)


def mark(gauge):
    return {"at": time.monotonic(), "cpu": gauge.cpu(), "disk": gauge.stored(), "memory": gauge.resident(),
            "journal": gauge.journal.stat().st_size}


def row(found, marks, samples, gauge, tallies):
    """The figures of a run."""
    before, begun, ended, settled, _ = marks
    peak = max([memory for at, memory in gauge.memory if begun["at"] <= at <= settled["at"]] or [begun["memory"]])
    disk = max([stored for at, stored in gauge.disk if begun["at"] <= at <= settled["at"]] + [settled["disk"]])
    # What the quiet users write, too.
    by_quiet = (begun["disk"] - before["disk"]) / (begun["at"] - before["at"]) * (settled["at"] - begun["at"])
    sent = sum(tally["sent"] for tally in tallies)
    kept = sum(tally["sent"] for tally in tallies if tally["is_kept"])
    grown = settled["disk"] - begun["disk"] - by_quiet
    phases = sorted((at, f"{tally['name']}: {name}") for tally in tallies for name, at in tally["phases"])
    # With several attacks, their parts overlap.
    if len(tallies) > 1:
        phases = [(begun["at"], "together")]
    found.update({
        "sent": sent, "kept": kept, "requests": sum(tally["requests"] for tally in tallies),
        "seconds": max([tally["seconds"] for tally in tallies] or [0]),
        "cpu": settled["cpu"] - begun["cpu"], "settled_after": settled["at"] - ended["at"],
        "quiet_memory": begun["memory"], "memory": peak - begun["memory"],
        "journal": settled["journal"] - begun["journal"],
        "disk": grown, "disk_peak": disk - begun["disk"], "disk_times": max(0, grown) / kept if kept else 0.0,
        "quiet": {name: times(samples, name, before["at"], begun["at"]) for name in EVERY},
        "phases": {}, "during": {}, "attacks": tallies,
    })
    ends = [at for at, _ in phases[1:]] + [settled["at"]]
    for (at, name), end in zip(phases, ends):
        found["phases"][name] = {what: times(samples, what, at, end) for what in EVERY}
    for what in EVERY:
        parts = [phase[what] for phase in found["phases"].values() if phase[what]["count"]]
        whole = times(samples, what, begun["at"], settled["at"])
        # The worst part of an attack counts.
        found["during"][what] = {
            **whole, **{of: max([part[of] for part in parts] or [whole[of]]) for of in ("p50", "p99", "max")}}
    found["goals"] = goals(found)
    return found


def goals(found):
    """Whether each goal is met."""
    met = {}
    for what in EVERY:
        quiet, during = found["quiet"][what]["p99"], found["during"][what]
        met[f"p99 of {what}"] = during["count"] > 0 and during["failed"] == 0 and during["p99"] <= max(
            GOALS["slower"] * quiet, NOISE["slower"])
    met["memory"] = found["memory"] <= GOALS["memory"]
    met["disk"] = found["disk"] <= max(GOALS["disk"] * found["kept"], NOISE["disk"])
    met["journal"] = found["journal"] <= max(GOALS["disk"] * found["kept"], NOISE["journal"])
    met["the server lives"] = found["survived"]
    for tally in found["attacks"]:
        met[f"{tally['name']} could be made"] = not tally["failed"]
        met.update({claim: bool(is_so) for claim, is_so, _ in tally["checks"]})
    return met


# What is printed

HEAD = ["attack", "sent MB / requests / s / CPU s", "whoami p50 / p99 / max, ms", "send", "sync", "failed",
        "CPU s", "memory +MB", "disk +MB (times)", "journal +MB", "goals missed"]


def line(cells):
    return "| " + " | ".join(cells) + " |"


def cells(found):
    def of(what):
        quiet, during = found["quiet"][what], found["during"][what]
        three = lambda part: " / ".join(f"{part[name]:.1f}" for name in ("p50", "p99", "max"))
        return f"{three(quiet)} → {three(during)}"
    missed = [goal for goal, is_met in found["goals"].items() if not is_met]
    return [
        found["attack"] if len(found["attacks"]) == 1 else "together",
        f"{found['sent'] / 1e6:.1f} / {found['requests']} / {found['seconds']:.1f} / {found['attackers_cpu']:.1f}",
        of("whoami"), of("send"), of("sync"), str(sum(during["failed"] for during in found["during"].values())),
        f"{found['cpu']:.1f}" + ("" if found["settled"] else " and on"), f"{found['memory'] / 1e6:.0f}",
        f"{found['disk'] / 1e6:.1f} ({found['disk_times']:.1f})", f"{found['journal'] / 1e6:.2f}",
        "; ".join(missed) or "none",
    ]


def explain(found):
    """What became of what was sent, and the parts of the attack."""
    for tally in found["attacks"]:
        counts = lambda counted: ", ".join(f"{count} × {name}" for name, count in sorted(
            counted.items(), key=lambda of: -of[1])[:8])
        print(f"    {tally['name']}: {tally['events']} events, {tally['edus']} EDUs; "
              f"answers {counts(tally['statuses']) or 'none'}; outcomes {counts(tally['outcomes']) or 'none'}")
        for note in tally["notes"]:
            print(f"        {note}")
        for claim, is_so, why in tally["checks"]:
            print(f"        {'yes' if is_so else 'NO '}: {claim}" + (f" ({why})" if why else ""))
    if len(found["phases"]) > 1:
        for name, phase in found["phases"].items():
            parts = ", ".join(
                f"{what} {of['p50']:.1f} / {of['p99']:.1f} / {of['max']:.1f}" for what, of in phase.items())
            print(f"        {name}: {parts}")
    sys.stdout.flush()


def parse():
    about, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=more + "\nattacks:\n" + "\n".join(
            f"  {name:22}{' '.join(kind.__doc__.split())}" for name, kind in ATTACKS.items()))
    parser.add_argument("--server", metavar="PROGRAM", default=str(peers.ROOT / "target/release/logcabin"),
                        help="the Logcabin to attack (target/release/logcabin)")
    parser.add_argument("--attack", metavar="NAME,…", default="all", help="which attacks, with commas between (all)")
    parser.add_argument("--together", action="store_true",
                        help=f"at once, on one server, from {ORIGINS} homeservers at addresses of their own")
    parser.add_argument("--scale", type=peers.positive, default=1.0, help="how large each attack is (1)")
    parser.add_argument("--seconds", type=peers.positive, default=20.0,
                        help="how long attacks last that have no size (20)")
    parser.add_argument("--limit", type=peers.positive, default=180.0,
                        help="after so many seconds an attack sends nothing more (180)")
    parser.add_argument("--quiet", type=peers.positive, default=15.0,
                        help="how many seconds are measured before an attack (15)")
    parser.add_argument("--settle", type=peers.positive, default=60.0,
                        help="how many seconds the server may work on after an attack (60)")
    parser.add_argument("--json", metavar="FILE", help="gets the figures")
    parser.add_argument("--keep", action="store_true", help="keep the server's directory and its log")
    options = parser.parse_args()
    options.names = list(ATTACKS) if options.attack == "all" else options.attack.split(",")
    if unknown := set(options.names) - set(ATTACKS):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    if not os.access(options.server, os.X_OK):
        parser.error(f"there is no program {urllib.parse.unquote(options.server)}")
    return options


def main():
    # A connection that the server ends while it is written to is no news.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    options = parse()
    if not any(importlib.util.find_spec(name) for name in ("nacl", "cryptography")):
        # Synapse's Python, as for the other benches, has what signs.
        peers.OUT.mkdir(parents=True, exist_ok=True)
        python = peers.venv()
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    print(f"{peers.machine()}; scale {options.scale:g}")
    print(line(HEAD))
    print("|" + "---|" * len(HEAD), flush=True)
    if options.together:
        runs = [(options.names, [options.names[number::ORIGINS] for number in range(ORIGINS)])]
    else:
        runs = [([name], [[name]]) for name in options.names]
    rows = []
    for names, groups in runs:
        try:
            rows.append(measure(names, groups, options))
        except Failed as error:
            sys.exit(f"hostile_homeserver: {error}")
        print(line(cells(rows[-1])))
        explain(rows[-1])
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("hostile_homeserver: ended"))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("hostile_homeserver: ended")
