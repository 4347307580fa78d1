"""Numbers, depths and forms that one layer takes and the next one cannot have: nothing may wait behind them."""

import asyncio
import json

from .base import Attack, attack
from .wire import Failed, Key, Line, Origin, V1, V2, V3, b64, canonical, quote, says

NUMBERS = {"1.5": 1.5, "-1e-7": -1e-7, "1e300": 1e300, "-0.0": -0.0, "2^53": 2 ** 53, "2^60": 2 ** 60,
           "2^70": 2 ** 70}
# How long a plain message may take.
SOON = 1.0


def nested(depth):
    return json.loads('{"a":' * depth + "1" + "}" * depth)


def with_text(value, text):
    """The same with this JSON in the place of a marker."""
    return canonical(value).replace(b'"@HERE@"', text)


def few(names):
    return (": " + "; ".join(names[:8]) if names else "") + ("; …" if len(names) > 8 else "")


def is_taken(name, status):
    """Whether others' events of the same request, if there were any, would have been taken."""
    return status in (200, 400, 403, 413) if name.startswith("invite") else status == 200


@attack("poison")
class Poison(Attack):
    """Floats, large integers and depth in each place where another homeserver, or an account, may put one; after each,
    a plain message must arrive within a second."""

    def elsewhere(self):
        """From now on, this homeserver asks from another address: wrong signatures count by address."""
        self.moves += 1
        self.origin.line = Line(f"127.0.1.{self.moves % 250 + 1}", self.world.port, self.world.client_context())

    async def prepare(self):
        # A homeserver of its own, so that no other attack counts against its plain messages.
        self.origin, self.moves = Origin(self.world, self.world.spare.pop()), 0
        await self.origin.listen()
        self.after_in, self.after_out, self.key = [], [], Key()
        self.bob = await self.account("bob")
        self.mallory = await self.account("mallory")
        self.strict = await self.entered("10")
        self.lax = await self.entered("5")

    async def entered(self, version):
        """A room of both accounts and of this homeserver, with the end of its history as the homeserver has it."""
        room_id = await self.bob.room(self.setup, room_version=version)
        await self.mallory.ok(self.setup, "POST", f"{V3}/join/{quote(room_id)}", {})
        room = await self.origin.join(self.setup, room_id, version=version)
        room.tip, room.end = room.join_id, room.depth
        return room

    async def run(self):
        self.tally.phase("in")
        for name, send in self.incoming():
            if self.tally.over():
                break
            if len(self.after_in) % 20 == 0:
                self.elsewhere()
            status = await send()
            seconds = await self.plain_in()
            self.after_in.append((name, status, seconds))
        self.tally.phase("out")
        origins = iter(self.world.spare)
        for name, put in self.outgoing():
            number = next(origins, None)
            if self.tally.over() or number is None:
                break
            try:
                self.after_out.append(await self.plain_out(number, put, name))
            except Failed as error:
                self.after_out.append((name, str(error), float("inf")))
        self.tally.cases = {"in": self.after_in, "out": self.after_out}
        for way, cases in self.tally.cases.items():
            late = [f"{name} ({status}, {seconds:.1f} s)" for name, status, seconds in cases if seconds > SOON]
            self.tally.note(f"{way}: {len(cases)} cases, {len(late)} with a late plain message{few(late)}")
        refused = [f"{name} ({status})" for name, status, _ in self.after_in if not is_taken(name, status)]
        self.tally.note(f"in: {len(refused)} refused as a whole{few(refused)}")
        self.tally.note("out: " + ", ".join(f"{name}: {status}" for name, status, _ in self.after_out))

    async def after(self):
        return [
            ("a plain message comes in within a second, after every case",
             bool(self.after_in) and all(seconds <= SOON for _, _, seconds in self.after_in), ""),
            ("a transaction with one bad item is answered 200",
             all(is_taken(name, status) for name, status, _ in self.after_in), ""),
            ("a plain message goes out within a second, after every case",
             bool(self.after_out) and all(seconds <= SOON for _, _, seconds in self.after_out), ""),
        ]

    # What comes in

    async def plain_in(self):
        """How long it takes until an account sees a plain message of this homeserver."""
        room = self.strict
        event_id, event = room.message("plain", [room.tip], room.end + 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not await self.origin.transact(self.tally, [event]):
            return float("inf")
        room.tip, room.end = event_id, room.end + 1
        path = f"{V3}/rooms/{quote(room.room_id)}/event/{quote(event_id)}"
        while loop.time() < began + 5:
            status, _ = await self.bob.ask(self.setup, "GET", path)
            if status == 200:
                return loop.time() - began
            await asyncio.sleep(0.02)
        return float("inf")

    def incoming(self):
        """The cases: a name, and what sends it and gives the status of the answer."""
        cases = []

        async def send(pdus=(), edus=(), extra=b""):
            body = (b'{"edus":[' + b",".join(edus) + b"]," + canonical({"origin": self.origin.name})[1:-1]
                    + b',"origin_server_ts":1' + b',"pdus":[' + b",".join(pdus) + b"]" + extra + b"}")
            status, answer = await self.origin.persist(
                self.tally, "PUT", f"{V1}/send/p{next(self.origin.transactions)}", body)
            self.tally.edus += len(edus)
            self.tally.events += len(pdus)
            if status == 200:
                for outcome in json.loads(answer).get("pdus", {}).values():
                    self.tally.outcomes[outcome["error"][:80] if "error" in outcome else "accepted"] += 1
            return status

        for name, value in NUMBERS.items():
            for kind, content in self.edus(value).items():
                edu = canonical({"edu_type": kind, "content": content})
                cases.append((f"{name} in {kind}", lambda edu=edu: send(edus=[edu])))
            for version, room in (("10", self.strict), ("5", self.lax)):
                for place, event in self.events(room, value).items():
                    cases.append((f"{name} in {place} of an event of version {version}",
                                  lambda event=event: send(pdus=[event])))
            extra = b',"zzz":' + canonical(value)
            cases.append((f"{name} in a transaction", lambda extra=extra: send(extra=extra)))
            cases.append((f"invite with {name} in its state", lambda value=value: self.invite(value)))
        for depth in (90, 97, 98, 99, 100, 101, 120, 400):
            text = b'{"a":' * (depth - 1) + b"1" + b"}" * (depth - 1)
            room = self.strict
            _, event = room.event("m.room.message", {"body": "deep", "msgtype": "m.text", "a": nested(depth - 2)},
                                  [room.join_id], room.depth + 1)
            cases.append((f"an event {depth} levels deep", lambda event=event: send(pdus=[event])))
            edu = with_text({"edu_type": "m.direct_to_device", "content": {
                "sender": self.origin.user("pia"), "type": "org.example.deep", "message_id": f"deep{depth}",
                "messages": {self.bob.user_id: {"*": {"a": "@HERE@"}}}}}, text)
            cases.append((f"a to-device message {depth} levels deep", lambda edu=edu: send(edus=[edu])))
        return cases

    def edus(self, value):
        """An EDU of each kind with this number in it, by its type."""
        pia, room = self.origin.user("pia"), self.strict.room_id
        keys = {"user_id": pia, "device_id": "D", "algorithms": [], "keys": {"ed25519:D": "x" * 43},
                "signatures": {}, "unsigned": {"f": value}}
        return {
            "m.direct_to_device": {"sender": pia, "type": "org.example.number", "message_id": f"{value}",
                                   "messages": {self.bob.user_id: {"*": {"f": value}}}},
            "m.typing": {"room_id": room, "user_id": pia, "typing": True, "f": value},
            "m.receipt": {room: {"m.read": {pia: {"data": {"ts": value}, "event_ids": [self.strict.join_id]}}}},
            "m.presence": {"push": [{"user_id": pia, "presence": "online", "last_active_ago": value}]},
            "m.device_list_update": {"user_id": pia, "device_id": "D", "stream_id": value, "prev_id": [],
                                     "keys": keys},
            "m.signing_key_update": {"user_id": pia, "master_key": {
                "user_id": pia, "usage": ["master"], "keys": {"ed25519:" + "x" * 43: "x" * 43},
                "unsigned": {"f": value}}},
            "org.example.unknown": {"f": value},
        }

    def events(self, room, value):
        """Events with this number in each place, by the place. None is on the way of later plain messages."""
        prev, depth = [room.join_id], room.depth + 1
        text = {"msgtype": "m.text", "body": "number"}
        made = lambda content=text, depth=depth, **more: room.event("m.room.message", content, prev, depth, **more)[1]
        return {
            "the content": made({**text, "f": value}),
            "the depth": made(depth=value),
            "the time": made(origin_server_ts=value),
            "unsigned": made(unsigned={"age": value}),
            "a member nobody knows": made(zzz=value),
        }

    async def invite(self, value):
        room_id = f"!n{len(self.after_in)}:{self.origin.name}"
        pia = self.origin.user("pia")
        event_id, event = self.origin.event({
            "type": "m.room.member", "sender": pia, "state_key": self.bob.user_id, "room_id": room_id, "depth": 5,
            "content": {"membership": "invite"}, "prev_events": ["$" + "p" * 43], "auth_events": ["$" + "a" * 43]})
        state = [{"type": "m.room.create", "state_key": "", "sender": pia, "content": {"creator": pia, "f": value}}]
        body = b'{"event":' + event + b',"invite_room_state":' + canonical(state) + b',"room_version":"10"}'
        path = f"{V2}/invite/{quote(room_id)}/{quote(event_id)}"
        return (await self.origin.persist(self.tally, "PUT", path, body))[0]

    # What goes out

    def outgoing(self):
        """The cases: a name, and what an account puts in for a homeserver, given its user and a shared room."""
        def put(path, body):
            async def do(origin, room_id):
                of = {"user": origin.user("pia"), "room": quote(room_id), "me": quote(self.mallory.user_id)}
                fill = lambda part: ({fill(key): fill(value) for key, value in part.items()} if isinstance(part, dict)
                                     else of["user"] if part == "@USER@" else part)
                method = "POST" if path.startswith("POST ") else "PUT"
                # Python has no integer -0.
                data = json.dumps(fill(body)).replace('"@-0@"', "-0").encode()
                status, answer = await self.mallory.ask(
                    self.tally, method, path.removeprefix("POST ").format(**of), data)
                return f"{status}" if status == 200 else f"{status} {says(answer)[:60]}"
            return do

        cases = []
        for name, value in {**NUMBERS, "-0": "@-0@"}.items():
            cases.append((f"{name} in a to-device message",
                          put(f"{V3}/sendToDevice/org.example.number/{quote(name)}",
                              {"messages": {"@USER@": {"*": {"f": value}}}})))
        for depth in (97, 99, 120):
            cases.append((f"an event {depth} levels deep",
                          put(f"{V3}/rooms/{{room}}/send/m.room.message/deep{depth}", nested(depth))))
        keys = {"user_id": self.mallory.user_id, "device_id": self.mallory.device_id, "algorithms": [],
                "keys": {f"ed25519:{self.mallory.device_id}": b64(self.key.public)}}
        signature = {f"ed25519:{self.mallory.device_id}": self.key.sign(canonical(keys))}
        keys["signatures"] = {self.mallory.user_id: signature}
        # The first only shows that the keys are right.
        for value in (1, 1.5):
            cases.append((f"{value} in unsigned of device keys", put(
                f"POST {V3}/keys/upload", {"device_keys": {**keys, "unsigned": {"f": value}}})))
        public = b64(self.key.public)
        master = {"user_id": self.mallory.user_id, "usage": ["master"], "keys": {f"ed25519:{public}": public},
                  "unsigned": {"f": 1.5}}
        cases.append(("1.5 in unsigned of a cross-signing key",
                      put(f"POST {V3}/keys/device_signing/upload", {"master_key": master})))
        for version in ("10", "5"):
            cases.append((f"1.5 in an event of version {version}",
                          put(f"{V3}/rooms/{{room}}/send/m.room.message/float", {"body": "x", "f": 1.5})))
        cases.append(("1.5 in a profile field", put(f"{V3}/profile/{{me}}/org.example.f", {"org.example.f": 1.5})))
        cases.append(("1.5 in a presence",
                      put(f"{V3}/presence/{{me}}/status", {"presence": "online", "status_msg": "x", "f": 1.5})))
        return cases

    async def plain_out(self, number, put, name):
        """What the server says of a case, and how long a plain message of an account then takes to a homeserver of
        its own."""
        origin = Origin(self.world, number)
        await origin.listen()
        arrived, loop = {}, asyncio.get_running_loop()

        def watch(told):
            for event in told["pdus"]:
                arrived.setdefault(event.get("content", {}).get("body"), loop.time())
        origin.watchers.append(watch)
        room, version = (self.lax, "5") if name.endswith("version 5") else (self.strict, "10")
        await origin.join(self.setup, room.room_id, version=version)
        # It must be reachable before.
        if await self.told(room, arrived, f"before {name}", 10) > 10:
            raise Failed("the homeserver was not told of a message before")
        status = await put(origin, room.room_id)
        return name, status, await self.told(room, arrived, f"after {name}", 5)

    async def told(self, room, arrived, text, patience):
        loop = asyncio.get_running_loop()
        await self.bob.say(self.setup, room.room_id, text)
        began = loop.time()
        while loop.time() < began + patience:
            if text in arrived:
                return max(0.0, arrived[text] - began)
            await asyncio.sleep(0.02)
        return float("inf")
