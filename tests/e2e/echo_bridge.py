"""A bridge to nowhere, on mautrix: its ghosts say again what they hear.

The arguments are the server's address, the port to listen on, and the server's name; the registration it
goes by is in `tests/integration/bridge.rs`. It tells on stdout, a line of JSON each, what it does and sees. It ends
when its stdin does.
"""

import asyncio
import base64
import json
import logging
import sys

from mautrix.appservice import AppService, ASStateStore
from mautrix.client import MemoryStateStore
from mautrix.errors import MatrixRequestError
from mautrix.types import EventType, Membership

DOMAIN = sys.argv[3]
PREFIX = "@echo_"
GHOST = f"@echo_one:{DOMAIN}"


class Memory(ASStateStore, MemoryStateStore):
    """What the bridge knows of rooms, for as long as it runs."""

    def __init__(self):
        ASStateStore.__init__(self)
        MemoryStateStore.__init__(self)


def tell(**what):
    print(json.dumps(what), flush=True)


class EchoBridge:
    def __init__(self, server):
        self.appservice = AppService(
            server=server,
            domain=DOMAIN,
            as_token="as-echo",
            hs_token="hs-echo",
            bot_localpart="echobot",
            id="echo",
            state_store=Memory(),
            ephemeral_events=True,
            default_http_retry_count=20,
            query_user=self.make_ghost,
        )
        # In the order in which things happened.
        self.appservice.synchronous_handlers = True
        self.appservice.matrix_event_handler(self.hear)

    def ghost(self, user_id):
        return self.appservice.intent.user(user_id)

    async def make_ghost(self, user_id):
        if not user_id.startswith(PREFIX):
            return None
        ghost = self.ghost(user_id)
        await ghost.ensure_registered()
        await ghost.set_displayname(user_id[1:].split(":")[0] + " (echo)")
        tell(event="ghost", user_id=user_id)
        # Nothing at all would mean that there is no such user.
        return {"user_id": user_id}

    async def hear(self, event):
        if event.type == EventType.ROOM_MEMBER:
            await self.member(event)
        elif event.type in (EventType.ROOM_MESSAGE, EventType.STICKER):
            if event.sender.startswith(PREFIX):
                return
            if getattr(event.content, "url", None):
                await self.relay(event)
            else:
                await self.echo(event)
        elif event.type == EventType.TYPING:
            tell(event="typing", room_id=event.room_id, user_ids=event.content.user_ids)
        elif event.type == EventType.RECEIPT:
            for event_id, receipts in event.content.items():
                for receipt_type, users in receipts.items():
                    for user_id in users:
                        tell(
                            event="receipt",
                            event_id=event_id,
                            type=str(receipt_type),
                            user_id=user_id,
                        )
        elif event.type == EventType.PRESENCE:
            tell(event="presence", user_id=event.sender, presence=str(event.content.presence))

    async def member(self, event):
        user_id = event.state_key
        if user_id.startswith(PREFIX) and event.content.membership == Membership.INVITE:
            ghost = self.ghost(user_id)
            await ghost.join_room_by_id(event.room_id)
            tell(event="joined", user_id=user_id, room_id=event.room_id)

    async def echo(self, event):
        tell(event="heard", event_id=event.event_id)
        members = await self.appservice.intent.state_store.get_members(event.room_id) or []
        for user_id in sorted(user for user in members if user.startswith(PREFIX)):
            body = f"{user_id[len(PREFIX):].split(':')[0]}: {event.content.body}"
            # A message of the other side, sent there when this one was here; the same one if it was sent
            # already.
            said = await self.ghost(user_id).send_text(
                event.room_id, body, timestamp=event.timestamp, txn_id=f"echo {event.event_id}"
            )
            tell(event="echoed", of=event.event_id, said=said, body=body)

    async def relay(self, event):
        """A file goes the whole way: it is fetched, and sent again as another one by a ghost."""
        content = event.content
        ghost = self.ghost(GHOST)
        data = await ghost.download_media(content.url)
        # Given out before it is uploaded: others hear of it, and may ask for it, meanwhile.
        content.url = await ghost.upload_media(
            data, mime_type=content.info.mimetype, filename=content.body, async_upload=True
        )
        said = await ghost.send_message_event(event.room_id, event.type, content)
        line = {"event": "relayed", "of": event.event_id, "said": said, "url": content.url}
        if content.info.mimetype == "image/png":
            await ghost.set_avatar_url(content.url)
            thumbnail = await ghost.download_thumbnail(
                content.url, width=96, height=96, resize_method="crop"
            )
            line["thumbnail"] = base64.b64encode(thumbnail).decode()
        tell(**line)

    async def run(self, port):
        await self.appservice.start("127.0.0.1", port)
        while True:
            try:
                took = await self.appservice.ping_self("are you there")
                break
            except (MatrixRequestError, OSError) as error:
                tell(event="waits", error=str(error))
                await asyncio.sleep(0.2)
        self.appservice.ready = True
        who = await self.appservice.intent.whoami()
        tell(event="ready", ping_ms=took, user_id=who.user_id)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        await reader.read()
        await self.appservice.stop()


async def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    await EchoBridge(sys.argv[1]).run(int(sys.argv[2]))


asyncio.run(main())
