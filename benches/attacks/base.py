"""What all attacks have in common."""

import random

from .wire import Local, Tally

ATTACKS = {}


def attack(name):
    """Registers an attack."""
    def register(kind):
        kind.name = name
        ATTACKS[name] = kind
        return kind
    return register


class Attack:
    """One attack of one homeserver.

    `prepare` does what costs the server little and is not measured, and makes events in advance. `run` is measured.
    `after` says what must still hold when all is over, each with whether it is so, and why if it is not.
    """

    name = ""
    # Whether what is sent is for the server to keep.
    is_kept = True

    def __init__(self, world, origin, options):
        self.world, self.origin, self.options, self.scale = world, origin, options, options.scale
        self.tally, self.setup = Tally(self.name, self.is_kept), Tally("setup")
        self.random = random.Random(self.name)

    def scaled(self, number, least=1):
        return max(least, round(number * self.scale))

    async def account(self, name):
        """A new account of the server, at the attackers' address."""
        return await Local(self.world, f"{name}-{self.name}", self.origin.address).register(self.setup)

    async def public_room(self, **options):
        """A public room of an account of the server, with a user of this homeserver, and the account."""
        mallory = await self.account("mallory")
        room_id = await mallory.room(self.setup, **options)
        return await self.origin.join(self.setup, room_id), mallory

    async def prepare(self):
        pass

    async def run(self):
        raise NotImplementedError

    async def after(self):
        return []
