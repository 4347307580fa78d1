#!/usr/bin/env python3
"""Follows the feed of changes of a Logcabin server into a SQLite database.

    LOGCABIN_TOKEN=syt_… python3 examples/follow_changes.py http://127.0.0.1:8008 changes.db

LOGCABIN_TOKEN is the access token of an administrator. Every record becomes a row of `changes`,
exactly once: the position in the feed is written in the same transaction, so that the program may
be killed at any moment and started again. `docs/changes.md` describes the feed.
"""

import http.client
import json
import os
import sqlite3
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

# Of what a power cut takes from the database, it takes the position, too.
SCHEMA = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS changes (
        offset INTEGER PRIMARY KEY, time TEXT, kind TEXT, room TEXT, user TEXT, payload TEXT);
    CREATE TABLE IF NOT EXISTS position (
        only INTEGER PRIMARY KEY CHECK (only = 1), position TEXT NOT NULL);
"""

# The feed says its position every 15 seconds. A connection that is silent for longer is broken.
TIMEOUT_SECONDS = 60


def connect(server, token, since):
    """Opens the feed after a position, or at its beginning."""
    where = {"since": since} if since else {"from": 1}
    url = f"{server}/_logcabin/v1/changes?{urllib.parse.urlencode(where)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def write(database, line):
    """Writes a line of the feed, and the position after it, in one transaction."""
    with database:
        if "offset" in line:
            row = [line[name] for name in ("offset", "time", "kind", "room", "user")]
            payload = json.dumps(line["payload"])
            database.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", [*row, payload])
        position = [line["position"]]
        database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", position)


def follow(feed, database):
    """Writes what the feed says, until it ends."""
    for line in feed:
        # The last line of a broken connection may be incomplete.
        if line.endswith(b"\n"):
            write(database, json.loads(line))


def main():
    _, server, path = sys.argv
    token = os.environ["LOGCABIN_TOKEN"]
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    while True:
        row = database.execute("SELECT position FROM position").fetchone()
        try:
            with connect(server, token, row and row[0]) as feed:
                follow(feed, database)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                # For example: an administrator no more, or a position that a restore has undone.
                sys.exit(f"{error.code}: {error.read().decode(errors='replace')}")
        except (OSError, http.client.HTTPException) as error:
            print(f"the connection is broken: {error}", file=sys.stderr)
        time.sleep(1)


if __name__ == "__main__":
    main()
