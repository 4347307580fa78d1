"""Synapse homeservers for `federation.py`."""

import json
import subprocess
import sys

import peers


def configured(directory, world, port, clients):
    """Writes the configuration of a Synapse, named after its port, to its directory; the command that runs it."""
    listener = lambda port, tls, resource: {
        "port": port, "bind_addresses": ["127.0.0.1"], "type": "http", "tls": tls, "resources": [{"names": [resource]}]}
    config = {
        "server_name": f"localhost:{port}", "pid_file": f"{directory}/pid",
        "listeners": [listener(port, True, "federation"), listener(clients, False, "client")],
        "database": {"name": "sqlite3", "args": {"database": f"{directory}/synapse.db"}},
        "log_config": f"{directory}/log.yaml", "media_store_path": f"{directory}/media",
        "signing_key_path": f"{directory}/signing.key", "tls_certificate_path": f"{world.directory}/server.pem",
        "tls_private_key_path": f"{world.directory}/server.key", "federation_custom_ca_list": [str(world.ca)],
        "federation_ip_range_blacklist": [], "ip_range_blacklist": [], "trusted_key_servers": [],
        "suppress_key_server_warning": True, "registration_shared_secret": "none",
        "macaroon_secret_key": "none", "form_secret": "none", "report_stats": False,
        "enable_registration": True, "enable_registration_without_verification": True, "bcrypt_rounds": 4,
        "rc_federation": {"window_size": 1, "sleep_limit": 1e9, "sleep_delay": 0, "reject_limit": 1e9,
                          "concurrent": 1000},
        **peers.LIMITS,
    }
    (directory / "homeserver.yaml").write_text(json.dumps(config))
    (directory / "log.yaml").write_text(peers.LOGGING)
    command = [sys.executable, "-m", "synapse.app.homeserver", "-c", str(directory / "homeserver.yaml")]
    with open(directory / "keys.log", "w") as output:
        subprocess.run([*command, "--generate-keys"], check=True, stdout=output, stderr=output)
    return command
