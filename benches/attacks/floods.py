"""Attacks by very much of what is allowed once."""

import asyncio
import base64
import urllib.parse

from .base import Attack, attack
from .wire import V1, V2, V3, VERSION, b64, canonical, now, quote, says


@attack("to-device-strangers")
class ToDevice(Attack):
    """Messages of made-up senders to the device of somebody with whom they share no room: as many bytes as are
    taken."""

    BYTES = 361_000_000
    AT_ONCE = 4

    async def prepare(self):
        self.victim = (await self.account("victim")).user_id
        self.texts = [base64.b64encode(self.random.randbytes(45_000)).decode() for _ in range(32)]

    async def run(self):
        self.tally.phase("sending")
        numbers, limit = iter(range(1 << 30)), self.scaled(self.BYTES)

        def edu():
            number = next(numbers)
            messages = {self.victim: {"*": {"number": number, "text": self.texts[number % len(self.texts)]}}}
            return canonical({"edu_type": "m.direct_to_device", "content": {
                "sender": self.origin.user(f"stranger-{number}"), "type": "org.example.thing",
                "message_id": f"{number}", "messages": messages}})

        async def send():
            while self.tally.sent < limit and not self.tally.over():
                await self.origin.transact(self.tally, edus=[edu() for _ in range(100)])
        await asyncio.gather(*(send() for _ in range(self.AT_ONCE)))

    async def after(self):
        # A friend's message is not to wait behind them.
        friend = await self.account("friend")
        status, answer = await friend.ask(self.setup, "PUT", f"{V3}/sendToDevice/org.example.friendly/1",
                                          {"messages": {self.victim: {"*": {"text": "hello"}}}})
        return [("a local to-device message is taken", *taken(status, answer))]


def taken(status, answer):
    """Whether it is, and what is said if it is not."""
    return status == 200, "" if status == 200 else f"{status} {says(answer)}"


@attack("events-bytes")
class Bytes(Attack):
    """Messages of sixty kilobytes in a public room."""

    BYTES = 36_000_000

    async def prepare(self):
        room, _ = await self.public_room()
        self.events, prev, depth = [], [room.join_id], room.depth
        for _ in range(self.scaled(self.BYTES // 60_000, 5)):
            depth += 1
            text = base64.b64encode(self.random.randbytes(44_000)).decode()
            event_id, event = room.message(text, prev, depth)
            prev = [event_id]
            self.events.append(event)

    async def run(self):
        self.tally.phase("sending")
        await self.origin.stream(self.tally, self.events)


@attack("invites")
class Invites(Attack):
    """Invites of made-up senders to one person, more than their quota; then somebody of the server invites them."""

    AT_ONCE = 8

    async def prepare(self):
        self.victim = (await self.account("victim")).user_id
        of_one, self.count = self.world.invites_by_one, self.world.invites + self.world.invites // 50 + 1
        strip = lambda kind, content, sender: {"type": kind, "state_key": "", "content": content, "sender": sender}

        def made(number):
            sender, room_id = self.origin.user(f"s{number // of_one}"), f"!i{number}:{self.origin.name}"
            event_id, event = self.origin.event({
                "type": "m.room.member", "sender": sender, "state_key": self.victim, "room_id": room_id, "depth": 5,
                "content": {"membership": "invite"}, "prev_events": ["$" + "p" * 43],
                "auth_events": ["$" + "a" * 43, "$" + "b" * 43, "$" + "c" * 43]})
            state = [strip("m.room.create", {"creator": sender, "room_version": VERSION}, sender),
                     strip("m.room.name", {"name": f"invite {number}"}, sender),
                     strip("m.room.join_rules", {"join_rule": "invite"}, sender)]
            body = b'{"event":' + event + b',"invite_room_state":' + canonical(state) + b',"room_version":"10"}'
            return f"{V2}/invite/{quote(room_id)}/{quote(event_id)}", body
        self.invites = [made(number) for number in range(self.count)]

    async def run(self):
        self.tally.phase("inviting")
        self.taken, invites = 0, iter(self.invites)

        async def send():
            for path, body in invites:
                if self.tally.over():
                    return
                status, answer = await self.origin.persist(self.tally, "PUT", path, body)
                self.taken += status == 200
                if status != 200:
                    self.tally.outcomes[f"{status} {says(answer)}"] += 1
        await asyncio.gather(*(send() for _ in range(self.AT_ONCE)))
        self.tally.note(f"{self.taken} of {self.count} invites were taken; the quota is {self.world.invites}")

    async def after(self):
        friend = await self.account("friend")
        room_id = await friend.room(self.setup, preset="private_chat")
        status, answer = await friend.ask(
            self.setup, "POST", f"{V3}/rooms/{quote(room_id)}/invite", {"user_id": self.victim})
        return [("a local invite is taken", *taken(status, answer))]


@attack("knocks")
class Knocks(Attack):
    """Made-up users who knock: by requests, and then as events of a transaction."""

    AT_ONCE = 8

    async def prepare(self):
        room, mallory = await self.public_room()
        path = f"{V3}/rooms/{quote(room.room_id)}/state/m.room.join_rules"
        answer = await mallory.ok(self.setup, "PUT", path, {"join_rule": "knock"})
        self.room, rules, depth = room, answer["event_id"], room.depth + 2

        def knock(number, prev, depth):
            user = self.origin.user(f"knocker-{number}")
            return room.event("m.room.member", {"membership": "knock", "reason": "r" * 400}, prev, depth, user, user,
                              [room.create, room.levels, rules])
        asked = self.scaled(1000, 10)
        # All after the same event.
        self.asked = [knock(number, [rules], depth) for number in range(asked)]
        self.sent, prev = [], [rules]
        for number in range(self.scaled(5000, 50)):
            depth += 1
            event_id, event = knock(asked + number, prev, depth)
            prev = [event_id]
            self.sent.append(event)

    async def run(self):
        self.tally.phase("requests")
        knocks = iter(self.asked)

        async def ask():
            for event_id, event in knocks:
                if self.tally.over():
                    return
                path = f"{V1}/send_knock/{quote(self.room.room_id)}/{quote(event_id)}"
                status, answer = await self.origin.persist(self.tally, "PUT", path, event)
                self.tally.outcomes["knock taken" if status == 200 else f"{status} {says(answer)}"] += 1
        await asyncio.gather(*(ask() for _ in range(self.AT_ONCE)))
        self.tally.phase("transactions")
        await self.origin.stream(self.tally, self.sent)


@attack("presence")
class Presence(Attack):
    """Made-up members of a public room whose presence changes all the time."""

    AT_ONCE = 4

    async def prepare(self):
        room, self.mallory = await self.public_room()
        self.users = [self.origin.user(f"member-{number}") for number in range(self.scaled(2000, 50))]
        names = [f"member-{number}" for number in range(len(self.users))]
        self.fill, _, _ = room.members(names, [room.join_id], room.depth)

    async def run(self):
        self.tally.phase("filling")
        await self.origin.stream(self.tally, self.fill)
        self.tally.phase("changing")
        end = asyncio.get_running_loop().time() + self.options.seconds
        numbers = iter(range(1 << 40))

        def edu():
            push = []
            for _ in range(50):
                number = next(numbers)
                push.append({"user_id": self.users[number % len(self.users)], "last_active_ago": number % 1000,
                             "presence": ("online", "unavailable")[number // len(self.users) % 2],
                             "status_msg": f"status {number}", "currently_active": bool(number % 3)})
            return canonical({"edu_type": "m.presence", "content": {"push": push}})

        async def change():
            while asyncio.get_running_loop().time() < end and not self.tally.over():
                await self.origin.transact(self.tally, edus=[edu() for _ in range(100)])
        await asyncio.gather(*(change() for _ in range(self.AT_ONCE)))
        self.tally.note(f"{next(numbers)} changes of presence")


@attack("edus")
class Edus(Attack):
    """Typing, receipts, device lists and signing keys of made-up members of a public room, as fast as they are
    taken."""

    AT_ONCE = 4

    async def prepare(self):
        self.room, _ = await self.public_room()
        names = [f"member-{number}" for number in range(self.scaled(500, 20))]
        self.users = [self.origin.user(name) for name in names]
        self.fill, self.ids, _ = self.room.members(names, [self.room.join_id], self.room.depth)
        # Whoever asks for the devices of one of them gets a large list.
        self.origin.on("/user/devices/", self.devices)

    def devices(self, _, path, __):
        user = urllib.parse.unquote(path.split("?")[0].rpartition("/")[2])
        device = lambda number: {"device_id": f"D{number}", "keys": {
            "user_id": user, "device_id": f"D{number}", "algorithms": ["x" * 200], "signatures": {},
            "keys": {f"ed25519:D{number}": "x" * 43}}}
        self.tally.requests += 1
        answer = canonical({"user_id": user, "stream_id": now(), "devices": [device(number) for number in range(200)]})
        self.tally.sent += len(answer)
        return 200, answer

    def edu(self, number):
        user, room_id = self.users[number // 4 % len(self.users)], self.room.room_id
        event_id = self.ids[number // 4 % len(self.ids)]
        key = b64(self.random.randbytes(32))
        return canonical([
            {"edu_type": "m.typing", "content": {
                "room_id": room_id, "user_id": user, "typing": bool(number // 4 // len(self.users) % 2 == 0)}},
            {"edu_type": "m.receipt", "content": {room_id: {"m.read": {
                user: {"data": {"ts": now()}, "event_ids": [event_id]}}}}},
            {"edu_type": "m.device_list_update", "content": {
                "user_id": user, "device_id": f"D{number}", "stream_id": number, "prev_id": [number - 1],
                "device_display_name": "x" * 1000}},
            {"edu_type": "m.signing_key_update", "content": {"user_id": user, "master_key": {
                "user_id": user, "usage": ["master"], "keys": {f"ed25519:{key}": key}}}},
        ][number % 4])

    async def run(self):
        self.tally.phase("filling")
        await self.origin.stream(self.tally, self.fill)
        self.tally.phase("sending")
        end = asyncio.get_running_loop().time() + self.options.seconds
        numbers = iter(range(1 << 40))

        async def send():
            while asyncio.get_running_loop().time() < end and not self.tally.over():
                await self.origin.transact(self.tally, edus=[self.edu(next(numbers)) for _ in range(100)])
        await asyncio.gather(*(send() for _ in range(self.AT_ONCE)))
