"""Attacks by branches of a room's history."""

import asyncio

from .base import Attack, attack
from .wire import V1, canonical, quote


class Branches(Attack):
    """Two rooms with two long branches each, and then events that join the branches, each elsewhere."""

    ROOMS = 2
    strikes = 0

    async def prepare(self):
        self.rooms = []
        for _ in range(self.ROOMS):
            room = await self.room()
            branches = [self.branch(room, number) for number in range(2)]
            joints = []
            for number in range(self.scaled(self.strikes, 4) // self.ROOMS):
                joints.append(self.joint(room, branches, number))
            self.rooms.append((branches, joints))

    async def run(self):
        self.tally.phase("filling")

        async def fill(branches):
            for events, _, _ in branches:
                await self.origin.stream(self.tally, events)
        await asyncio.gather(*(fill(branches) for branches, _ in self.rooms))
        self.tally.phase("striking")

        async def strike(joints):
            for event in joints:
                if not self.tally.over():
                    await self.origin.transact(self.tally, [event])
        await asyncio.gather(*(strike(joints) for _, joints in self.rooms))

    def joint(self, room, branches, number):
        """A message after an event of each branch: no two messages are after the same two."""
        (_, first, _), (_, second, _) = branches
        prev = [first[-1 - number % len(first)], second[-1 - (number * 7 // 5) % len(second)]]
        depth = room.depth + len(first) + 1
        return room.message(f"joint {number}", prev, depth, auth=self.authority(room, branches, number))[1]


@attack("resolution-powers")
class Powers(Branches):
    """Two branches of power levels that change all the time, by a user who may."""

    strikes = 22
    LENGTH = 4000

    async def room(self):
        mallory = await self.account(f"mallory{len(self.rooms)}")
        levels = {"users": {mallory.user_id: 100, self.origin.user("pia"): 100}}
        room_id = await mallory.room(self.setup, power_level_content_override=levels)
        self.levels = levels
        return await self.origin.join(self.setup, room_id)

    def branch(self, room, which):
        events, ids, prev, depth, last = [], [], [room.join_id], room.depth, room.levels
        for number in range(self.scaled(self.LENGTH, 10)):
            depth += 1
            content = {**self.levels, "events": {f"org.example.{which}": number % 90}}
            auth = [room.create, last, room.join_id]
            last, event = room.event("m.room.power_levels", content, prev, depth, "", auth=auth)
            prev = [last]
            events.append(event)
            ids.append(last)
        return events, ids, depth

    def authority(self, room, branches, number):
        first = branches[0][1]
        return [room.create, first[-1 - number % len(first)], room.join_id]


@attack("resolution-members")
class Members(Branches):
    """Two branches of made-up members of a public room, by a user without power."""

    strikes = 100
    LENGTH = 6000

    async def room(self):
        mallory = await self.account(f"mallory{len(self.rooms)}")
        return await self.origin.join(self.setup, await mallory.room(self.setup))

    def branch(self, room, which):
        names = [f"made-up-{which}-{number}" for number in range(self.scaled(self.LENGTH, 10))]
        return room.members(names, [room.join_id], room.depth)

    def authority(self, room, _, __):
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
