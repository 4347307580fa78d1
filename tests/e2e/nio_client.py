"""A user on matrix-nio, driven over stdin and stdout.

Each line of stdin is a JSON object with an `id`, a command in `do` and its arguments; each is answered
by a line with the same `id` and either `ok` or `error`. What the client sees by itself through its sync
is told as lines with `event`. README.md in this folder lists the commands.
"""

import asyncio
import base64
import io
import json
import pathlib
import sys

import nio
from nio.crypto.attachments import decrypt_attachment

PASSWORD = "a password that is long enough"
# More than the messages that may be under way at once, so that none is left out of a live timeline.
FILTER = {"room": {"timeline": {"limit": 50}}}


def tell(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Refused(Exception):
    """The server answered with an error, and nio made an error response of it."""

    def __init__(self, response):
        super().__init__(str(response))
        self.told = {
            "errcode": getattr(response, "status_code", None),
            "error": getattr(response, "message", None),
        }


def taken(response):
    """The response, unless it is an error."""
    if isinstance(response, nio.ErrorResponse):
        raise Refused(response)
    return response


class Client(nio.AsyncClient):
    """nio's own client, which also tells every request it makes."""

    # How a browser that got the last file would show it.
    disposition = None

    async def send(self, method, path, *args, **kwargs):
        response = await super().send(method, path, *args, **kwargs)
        self.disposition = response.headers.get("content-disposition")
        plain = path.split("?")[0]
        tell({"event": "http", "method": method, "path": plain, "status": response.status})
        return response


class Driver:
    def __init__(self, address, store):
        self.address = address
        # Where keys and positions are kept. Without it, nothing is encrypted.
        self.store = store
        self.client = None
        # The texts of messages that were decrypted, by event.
        self.decrypted = {}
        self.syncing = None
        # Of a page_back: the first sync's timeline and where it begins.
        self.first = {}

    # What the client sees.

    def on_message(self, room, event):
        relates = event.source["content"].get("m.relates_to", {})
        line = {
            "event": "message",
            "room_id": room.room_id,
            "event_id": event.event_id,
            "sender": event.sender,
            "body": event.body,
        }
        if event.decrypted:
            self.decrypted[event.event_id] = event.body
        if relates.get("rel_type") == "m.replace":
            line["event"] = "edit"
            line["of"] = relates["event_id"]
            line["body"] = event.source["content"]["m.new_content"]["body"]
        tell(line)

    def on_redaction(self, room, event):
        tell({"event": "redaction", "room_id": room.room_id, "of": event.redacts, "reason": event.reason})

    def on_member(self, room, event):
        tell({
            "event": "member",
            "room_id": room.room_id,
            "user_id": event.state_key,
            "membership": event.membership,
        })

    def on_media(self, room, event):
        """Messages with a file, and stickers: as what nio takes them, and where it finds the file."""
        tell({
            "event": "media",
            "room_id": room.room_id,
            "event_id": event.event_id,
            "type": event.source["type"],
            "as": type(event).__name__,
            "url": event.url,
            "content": event.source["content"],
        })

    def on_bad_event(self, room, event):
        """An attachment that is encrypted is known to nio only in an event that it has decrypted."""
        if "file" in event.source.get("content", {}):
            self.on_media(room, nio.RoomMessage.parse_decrypted_event(event.source))

    def on_avatar(self, room, event):
        tell({"event": "room_avatar", "room_id": room.room_id, "url": event.avatar_url})

    def on_account_data(self, event):
        tell({"event": "account_data", "type": event.type, "content": event.content})

    # Commands.

    def connect(self, user):
        if not self.store:
            return Client(self.address, user)
        config = nio.AsyncClientConfig(encryption_enabled=True, store_sync_tokens=True)
        return Client(self.address, user, store_path=str(self.store), config=config)

    def logged_in(self, response):
        """nio leaves it to the program to keep the token."""
        session = {"user_id": response.user_id, "device_id": response.device_id}
        if self.store:
            kept = {**session, "access_token": response.access_token}
            (self.store / "session.json").write_text(json.dumps(kept))
        return session

    async def do_register(self, user):
        self.client = self.connect(user)
        return self.logged_in(taken(await self.client.register(user, PASSWORD, "nio under test")))

    async def do_login(self, user):
        self.client = self.connect(user)
        return self.logged_in(taken(await self.client.login(PASSWORD, "nio under test")))

    async def do_restore(self):
        """Goes on with the token and the keys of the store, from the position in it."""
        kept = json.loads((self.store / "session.json").read_text())
        self.client = self.connect(kept["user_id"])
        self.client.restore_login(**kept)
        return {"user_id": kept["user_id"], "device_id": kept["device_id"]}

    async def do_start(self, encrypt=False):
        """Starts to sync; answered when the first sync is over."""
        if self.store:
            # Before the first sync, which may bring what is encrypted.
            self.client.add_event_callback(self.on_message, nio.RoomMessageText)
        first = taken(await self.client.sync(timeout=0, full_state=True))
        for room_id, room in first.rooms.join.items():
            self.first[room_id] = room.timeline
        if self.store:
            if self.client.should_upload_keys:
                taken(await self.client.keys_upload())
        else:
            self.client.add_event_callback(self.on_message, nio.RoomMessageText)
        self.client.add_event_callback(self.on_redaction, nio.RedactionEvent)
        self.client.add_event_callback(self.on_member, nio.RoomMemberEvent)
        self.client.add_event_callback(self.on_member, nio.InviteMemberEvent)
        self.client.add_event_callback(self.on_media, (nio.RoomMessageMedia, nio.StickerEvent))
        self.client.add_event_callback(self.on_bad_event, nio.BadEvent)
        self.client.add_event_callback(self.on_avatar, nio.RoomAvatarEvent)
        self.client.add_global_account_data_callback(self.on_account_data, nio.UnknownAccountDataEvent)
        self.syncing = asyncio.create_task(
            self.client.sync_forever(timeout=30000, sync_filter=FILTER))
        self.syncing.add_done_callback(self.sync_ended)
        return {"rooms": sorted(first.rooms.join)}

    @staticmethod
    def sync_ended(task):
        if not task.cancelled():
            tell({"event": "sync_ended", "error": repr(task.exception())})

    async def do_create_room(self, name):
        response = taken(await self.client.room_create(name=name))
        return {"room_id": response.room_id}

    async def do_invite(self, room_id, user_id):
        taken(await self.client.room_invite(room_id, user_id))

    async def do_join(self, room_id):
        taken(await self.client.join(room_id))

    async def do_leave(self, room_id):
        taken(await self.client.room_leave(room_id))

    async def do_kick(self, room_id, user_id):
        taken(await self.client.room_kick(room_id, user_id, "because"))

    async def do_send(self, room_id, body):
        content = {"msgtype": "m.text", "body": body}
        response = taken(await self.client.room_send(
            room_id, "m.room.message", content, ignore_unverified_devices=True))
        return {"event_id": response.event_id}

    async def do_read(self, room_id, event_id):
        """An event from the sync, or one of before the timeline of the first one."""
        if event_id not in self.decrypted:
            event = taken(await self.client.room_get_event(room_id, event_id)).event
            if not event.decrypted:
                return {"body": None, "because": f"it is a {type(event).__name__}"}
            self.decrypted[event_id] = event.body
        return {"body": self.decrypted[event_id]}

    async def do_trust(self, user_id, device_id):
        """Holds a device for verified from now on."""
        self.client.verify_device(self.client.device_store[user_id][device_id])

    async def do_knows(self, user_id):
        devices = self.client.device_store.active_user_devices(user_id)
        return {"devices": {device.id: {"verified": device.verified} for device in devices}}

    async def do_edit(self, room_id, event_id, body):
        content = {
            "msgtype": "m.text",
            "body": f"* {body}",
            "m.new_content": {"msgtype": "m.text", "body": body},
            "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
        }
        response = taken(await self.client.room_send(room_id, "m.room.message", content))
        return {"event_id": response.event_id}

    async def do_redact(self, room_id, event_id, reason):
        response = taken(await self.client.room_redact(room_id, event_id, reason))
        return {"event_id": response.event_id}

    async def do_upload(self, content, content_type, name, encrypt=False):
        """Gives what goes into an event: `url`, or `file` of what was encrypted on the way."""
        content = base64.b64decode(content)
        response, keys = await self.client.upload(
            io.BytesIO(content), content_type, name, encrypt=encrypt, filesize=len(content))
        url = taken(response).content_uri
        return {"file": {"url": url, **keys}} if encrypt else {"url": url}

    async def do_download(self, url=None, file=None, name=None):
        response = taken(await self.client.download(file["url"] if file else url, name))
        content = response.body
        if file:
            content = decrypt_attachment(
                content, file["key"]["k"], file["hashes"]["sha256"], file["iv"])
        return self.received(content, response)

    async def do_thumbnail(self, url, width, height):
        server_name, media_id = url.removeprefix("mxc://").split("/")
        response = taken(await self.client.thumbnail(
            server_name, media_id, width, height, nio.ResizingMethod.crop))
        return self.received(response.body, response)

    def received(self, content, response):
        return {
            "content": base64.b64encode(content).decode(),
            "content_type": response.content_type,
            "name": response.filename,
            "disposition": self.client.disposition.split(";")[0],
        }

    async def do_send_event(self, room_id, type, content):
        response = taken(await self.client.room_send(room_id, type, content))
        return {"event_id": response.event_id}

    async def do_set_avatar(self, url):
        taken(await self.client.set_avatar(url))

    async def do_avatar(self, user_id):
        return {"url": taken(await self.client.get_avatar(user_id)).avatar_url}

    async def do_set_room_avatar(self, room_id, url):
        taken(await self.client.room_put_state(room_id, "m.room.avatar", {"url": url}))

    async def do_page_back(self, room_id, limit):
        """The room's whole history: the timeline of the first sync, then page after page before it.

        Events are given as received, oldest first, repeats included."""
        timeline = self.first[room_id]
        pages = [timeline.events]
        at = timeline.prev_batch
        while at:
            page = taken(await self.client.room_messages(
                room_id, at, direction=nio.MessageDirection.back, limit=limit))
            pages.insert(0, page.chunk[::-1])
            at = page.end if page.end != at else None
        events = [
            {"event_id": event.event_id, "type": event.source["type"],
             "body": event.source["content"].get("body")}
            for page in pages for event in page
        ]
        return {"pages": len(pages), "events": events}

    async def do_stop(self):
        if self.syncing:
            self.syncing.cancel()
        if self.client:
            await self.client.close()


async def main():
    driver = Driver(sys.argv[1], pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        number, name = command.pop("id"), command.pop("do")
        try:
            result = await getattr(driver, f"do_{name}")(**command)
            tell({"id": number, "ok": result or {}})
        except Refused as refused:
            tell({"id": number, "error": refused.told})
        except Exception as error:  # Told to the test, which fails with it.
            tell({"id": number, "error": {"errcode": None, "error": repr(error)}})
        if name == "stop":
            break


asyncio.run(main())
