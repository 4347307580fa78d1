"""A mail server for tests: takes mail by SMTP and tells on stdout of each mail as a line of JSON.

The first line is its port. What it is told on stdin it says again, after all mail that it has taken by then.
It refuses mail for addresses that begin with `nobody`, takes none at all for those that begin with `busy` (as a
server that is out of space would), none from senders that begin with `banned`, none whose content is for an
address that begins with `filtered`, and with `--user` none from those who have not logged in.
"""

import argparse
import asyncio
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult


class Sink:
    async def handle_MAIL(self, server, session, envelope, address, options):
        if address.startswith("banned"):
            return "550 no mail from this sender"
        envelope.mail_from = address
        return "250 fine"

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody"):
            return "550 there is nobody of this name"
        if address.startswith("busy"):
            return "452 come back later"
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server, session, envelope):
        if envelope.rcpt_tos[0].startswith("filtered"):
            return "554 this looks like spam"
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        parts = {part.get_content_type(): part.get_content() for part in mail.walk() if not part.is_multipart()}
        tell(
            {
                "from": envelope.mail_from,
                "to": envelope.rcpt_tos,
                "headers": {name.lower(): str(value) for name, value in mail.items()},
                "plain": parts.get("text/plain"),
                "html": parts.get("text/html"),
                "tls": server.transport.get_extra_info("ssl_object") is not None,
                "login": (session.auth_data or b"").decode(),
            }
        )
        return "250 taken"


def tell(what):
    print(json.dumps(what), flush=True)


def say_again(loop):
    said = sys.stdin.buffer.raw.read(4096)
    for line in said.decode().splitlines():
        tell({"again": line})
    if not said:
        loop.remove_reader(sys.stdin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--security", choices=["none", "starttls", "tls"], default="none")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--user")
    parser.add_argument("--password")
    options = parser.parse_args()

    context = None
    if options.security != "none":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate, options.key)

    def authenticate(server, session, envelope, mechanism, data):
        right = (options.user.encode(), options.password.encode())
        success = (data.login, data.password) == right
        return AuthResult(success=success, auth_data=data.login if success else None)

    arguments = {}
    if options.user:
        arguments = {
            "authenticator": authenticate,
            "auth_required": True,
            "auth_require_tls": options.security == "starttls",
        }
    if options.security == "starttls":
        arguments |= {"tls_context": context, "require_starttls": True}

    async def serve():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SMTP(Sink(), loop=loop, **arguments),
            host="127.0.0.1",
            port=0,
            ssl=context if options.security == "tls" else None,
        )
        tell({"port": server.sockets[0].getsockname()[1]})
        loop.add_reader(sys.stdin, say_again, loop)
        await server.serve_forever()

    asyncio.run(serve())


main()
