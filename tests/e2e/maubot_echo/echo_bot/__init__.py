"""A maubot plugin that says again what it is told, and reacts to it."""

from maubot import MessageEvent, Plugin
from maubot.handlers import command


class Echo(Plugin):
    @command.new("echo")
    @command.argument("text", pass_raw=True)
    async def echo(self, event: MessageEvent, text: str) -> None:
        await event.respond(text)
        await event.react("heard")
