"""What hostile homeservers do, for `hostile_homeserver.py`."""
