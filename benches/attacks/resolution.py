"""Attacks by branches of a room's history."""

import asyncio

from .base import Attack, attack
from .wire import V1, canonical, quote


class Branches(Attack):
    """Two rooms with two branches each, and then events that join the branches, each elsewhere."""

    ROOMS = 2
    strikes = 0

    async def prepare(self):
        self.rooms = []
        for number in range(self.ROOMS):
            room = await self.room(number)
            fill, strike, branches = self.branches(room)
            for turn in range(self.scaled(self.strikes, 4) // self.ROOMS):
                strike.append(self.joint(room, branches, turn))
            self.rooms.append((fill, strike))

    async def run(self):
        self.tally.phase("filling")
        await asyncio.gather(*(self.origin.stream(self.tally, fill) for fill, _ in self.rooms))
        self.tally.phase("striking")
        await asyncio.gather(*(self.origin.stream(self.tally, strike, at_once=5) for _, strike in self.rooms))

    def joint(self, room, branches, turn):
        """A message after an event of each branch: no two messages are after the same two."""
        first, second = branches
        prev = [first[-1 - turn % len(first)], second[-1 - (turn * 7 // 5) % len(second)]]
        depth = room.depth + len(first) + len(second) + 1
        return room.message(f"joint {turn}", prev, depth, auth=self.authority(room, first, turn))[1]


@attack("resolution-powers")
class Powers(Branches):
    """Two branches of power levels that change all the time. On the first, the user who makes the second may not: so
    the second is soft-failed, and costs nothing until both are joined."""

    strikes = 22
    LENGTH = 4000

    async def room(self, number):
        mallory = await self.account(f"mallory{number}")
        self.levels = {"users": {mallory.user_id: 100, self.origin.user("pia"): 100, self.origin.user("quin"): 90},
                       "events": {"m.room.power_levels": 90}}
        room_id = await mallory.room(self.setup, power_level_content_override=self.levels)
        room = await self.origin.join(self.setup, room_id)
        quin = await self.origin.join(self.setup, room_id, "quin")
        room.depth, room.quin, room.quin_id = quin.depth, quin.user, quin.join_id
        return room

    def branches(self, room):
        """The events to send, and the ids on each branch."""
        fill, branches = [], []
        for user, join_id in ((room.user, room.join_id), (room.quin, room.quin_id)):
            prev, depth, last, ids = room.quin_id, room.depth, room.levels, []
            users = {**self.levels["users"], **({} if user == room.quin else {room.quin: 0})}
            for number in range(self.scaled(self.LENGTH, 10)):
                depth += 1
                content = {"users": users, "events": {**self.levels["events"], "org.example.thing": number % 80}}
                last, event = room.event("m.room.power_levels", content, [prev], depth, "", user,
                                         [room.create, last, join_id])
                prev = last
                fill.append(event)
                ids.append(last)
            branches.append(ids)
        return fill, [], branches

    def authority(self, room, first, turn):
        return [room.create, first[-1 - turn % len(first)], room.join_id]


@attack("resolution-members")
class Members(Branches):
    """Two branches of made-up members of a public room, a long one and a short one, by users without power."""

    strikes = 100
    LENGTHS = (12_000, 100)

    async def room(self, number):
        mallory = await self.account(f"mallory{number}")
        return await self.origin.join(self.setup, await mallory.room(self.setup))

    def branches(self, room):
        events, ids = [], []
        for which, length in enumerate(self.LENGTHS):
            names = [f"made-up-{which}-{number}" for number in range(self.scaled(length, 10))]
            made, of, _ = room.members(names, [room.join_id], room.depth)
            events.append(made)
            ids.append(of)
        return *events, ids

    def authority(self, room, *_):
        return [room.create, room.levels, room.join_id]


@attack("extremities")
class Extremities(Attack):
    """Twenty branches of a public room, each with other members, that grow by turns."""

    BRANCHES = 20

    async def prepare(self):
        room, _ = await self.public_room()
        branches = []
        for branch in range(self.BRANCHES):
            names = [f"b{branch}-{number}" for number in range(self.scaled(100, 3))]
            branches.append(room.members(names, [room.join_id], room.depth))
        self.fill, self.strike = [event for events, _, _ in branches for event in events], []
        tips = [(ids[-1], depth) for _, ids, depth in branches]
        for number in range(self.scaled(400, 40)):
            branch = number % self.BRANCHES
            tip, depth = tips[branch]
            event_id, event = room.membership(self.origin.user(f"late-{number}"), [tip], depth + 1)
            tips[branch] = event_id, depth + 1
            self.strike.append(event)
        # All of them together, and then each pair.
        for number in range(self.scaled(40, 4)):
            few = [tip for tip, _ in self.random.sample(tips, 10)]
            depth = max(depth for _, depth in tips) + 1
            self.strike.append(room.message(f"joint {number}", few, depth)[1])

    async def run(self):
        self.tally.phase("filling")
        await self.origin.stream(self.tally, self.fill)
        self.tally.phase("striking")
        await self.origin.stream(self.tally, self.strike, at_once=5)


@attack("branches")
class Amplification(Attack):
    """Messages of a public room that come after old events by turns, so that the state before each is another."""

    async def prepare(self):
        room, _ = await self.public_room()
        names = [f"member-{number}" for number in range(self.scaled(1500, 20))]
        self.fill, ids, depth = room.members(names, [room.join_id], room.depth)
        self.strike = []
        for number in range(self.scaled(1500, 20)):
            early = [room.join_id] if number % 3 == 0 else [ids[self.random.randrange(len(ids))]]
            self.strike.append(room.message(f"branch {number}", early, depth + 1)[1])

    async def run(self):
        self.tally.phase("filling")
        await self.origin.stream(self.tally, self.fill)
        self.tally.phase("striking")
        await self.origin.stream(self.tally, self.strike)


@attack("reverse")
class Reverse(Attack):
    """A chain of messages whose last comes first, each by itself, and the state before each for whoever asks."""

    async def prepare(self):
        room, _ = await self.public_room()
        self.events, prev = [], room.join_id
        for number in range(self.scaled(2000, 20)):
            prev, event = room.message(f"in reverse {number}", [prev], room.depth + 1 + number)
            self.events.append(event)
        self.events.reverse()
        self.asked = 0
        ids = {"pdu_ids": [room.create, room.levels, room.rules, room.join_id], "auth_chain_ids": []}

        def state_ids(*_):
            self.asked += 1
            return 200, ids
        self.origin.on(room.asked("get_missing_events"), lambda *_: (200, {"events": []}))
        self.origin.on(room.asked("state_ids"), state_ids)

    async def run(self):
        self.tally.phase("sending")
        await self.origin.stream(self.tally, self.events, at_once=1)
        self.tally.note(f"{self.asked} questions for the state")


@attack("questions")
class Questions(Attack):
    """`state`, `state_ids`, `event_auth`, `backfill` and `get_missing_events` at ever other events of a large room."""

    AT_ONCE = 16

    async def prepare(self):
        self.room, _ = await self.public_room()
        names = [f"member-{number}" for number in range(self.scaled(5000, 50))]
        self.fill, self.ids, _ = self.room.members(names, [self.room.join_id], self.room.depth)

    async def run(self):
        self.tally.phase("filling")
        await self.origin.stream(self.tally, self.fill)
        self.tally.phase("asking")
        end = asyncio.get_running_loop().time() + self.options.seconds
        numbers = iter(range(1 << 30))

        async def ask():
            while asyncio.get_running_loop().time() < end and not self.tally.over():
                status, answer = await self.origin.ask(self.tally, *self.question(next(numbers)))
                self.tally.answered += len(answer)
                if status in (0, 429):
                    await asyncio.sleep(0.05)
        await asyncio.gather(*(ask() for _ in range(self.AT_ONCE)))

    def question(self, number):
        late = self.ids[-1 - number % (len(self.ids) // 2)]
        room, event = quote(self.room.room_id), quote(late)
        missing = canonical({"earliest_events": [], "latest_events": [late], "limit": 100, "min_depth": 0})
        return [
            ("GET", f"{V1}/state/{room}?event_id={event}"),
            ("GET", f"{V1}/state_ids/{room}?event_id={event}"),
            ("GET", f"{V1}/event_auth/{room}/{event}"),
            ("GET", f"{V1}/backfill/{room}?v={event}&limit=100"),
            ("POST", f"{V1}/get_missing_events/{room}", missing),
        ][number % 5]


@attack("giant-join")
class GiantJoin(Attack):
    """A room whose state and authorities are as large as an answer may be, which an account enters."""

    BYTES = 60 << 20

    async def prepare(self):
        self.mallory = await self.account("mallory")
        self.room_id, self.depth, self.chain, self.state = f"!giant:{self.origin.name}", 0, [], []
        creator = self.origin.user("creator")
        create = self.add("m.room.create", creator, "", {"creator": creator, "room_version": "10"}, [])
        join = self.add("m.room.member", creator, creator, {"membership": "join"}, [create])
        levels = self.add("m.room.power_levels", creator, "", {"users": {creator: 100}}, [create, join])
        rules = self.add("m.room.join_rules", creator, "", {"join_rule": "public"}, [create, levels, join])
        self.chain, self.state = self.state, [self.state[0], self.state[1], self.state[3]]
        limit = self.BYTES * self.scale
        size = 0
        # Half of it is power levels, each by the authority of the one before.
        while size < limit / 2:
            content = {"users": {creator: 100}, "events": {"org.example.thing": self.depth % 90}}
            event_id, event = self.made("m.room.power_levels", creator, "", content, [create, levels, join])
            levels = event_id
            self.chain.append(event)
            size += len(event) + 1
        self.state.append(self.chain.pop())
        while size < limit:
            user = self.origin.user(f"member-{self.depth}")
            _, event = self.made("m.room.member", user, user, {"membership": "join"}, [create, levels, rules])
            self.state.append(event)
            size += len(event) + 1
        self.basis = [create, levels, rules]
        self.origin.on("/make_join/.*giant", self.make_join)
        self.origin.on("/send_join/.*giant", self.send_join)

    def made(self, event_type, sender, key, content, auth):
        self.depth += 1
        prev = [self.last] if self.depth > 1 else []
        self.last, event = self.origin.event({
            "type": event_type, "sender": sender, "state_key": key, "content": content, "room_id": self.room_id,
            "depth": self.depth, "prev_events": prev, "auth_events": auth})
        return self.last, event

    def add(self, *what):
        event_id, event = self.made(*what)
        self.state.append(event)
        return event_id

    def make_join(self, _, path, __):
        self.tally.requests += 1
        return 200, {"room_version": "10", "event": {
            "type": "m.room.member", "sender": self.mallory.user_id, "state_key": self.mallory.user_id,
            "content": {"membership": "join"}, "room_id": self.room_id, "depth": self.depth + 1,
            "prev_events": [self.last], "auth_events": self.basis}}

    def send_join(self, _, __, body):
        answer = (b'{"origin":' + canonical(self.origin.name) + b',"auth_chain":[' + b",".join(self.chain)
                  + b'],"state":[' + b",".join(self.state) + b'],"event":' + body + b',"members_omitted":false}')
        self.tally.sent += len(answer)
        self.tally.note(f"an answer of {len(answer) / 1e6:.0f} MB: {len(self.chain)} authorities, "
                        f"{len(self.state)} state events")
        return 200, answer

    async def run(self):
        self.tally.phase("joining")
        path = f"/_matrix/client/v3/join/{quote(self.room_id)}?server_name={self.origin.name}&via={self.origin.name}"
        status, answer = await self.mallory.ask(self.tally, "POST", path, {})
        self.tally.statuses[str(status)] += 1
        if status != 200:
            self.tally.outcomes[answer[:120].decode(errors="replace")] += 1
