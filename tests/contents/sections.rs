//! What snapshots hold after the golden logs.

/// The projections, the version of each, and the beginning of the blake3 of its section after the
/// golden log.
pub(crate) const KNOWN: &[(&str, u32, &str)] = &[
    ("base", 1, "b39a0ba404bc67ca"),
    ("accounts", 2, "a7c4d3f60873cdef"),
    ("oauth", 1, "a4e255d90bf18812"),
    ("registration tokens", 1, "2d3adedff11b61f1"),
    ("names", 1, "885d2dd8e420531b"),
    ("rooms", 4, "1669ef5d9ad3d1c6"),
    ("closures", 1, "2f42176b71624772"),
    ("redactions", 1, "837e2a6317f6f874"),
    ("redactions of senders", 1, "b2d4c941c6a0e1a5"),
    ("history purges", 1, "a5acc3e87e16cd3d"),
    ("policy lists", 1, "66f1b42faabe6331"),
    ("notices", 1, "8a7c2faff6c4bd3b"),
    ("reports", 2, "05bc5db51f5a3e0c"),
    ("memberships", 1, "a444a02e8130f0d6"),
    ("undone memberships", 1, "51bd8255628748d7"),
    ("usage", 2, "a084b0a3913d94c4"),
    ("keys", 4, "7b580e977c6ca6e0"),
    ("key backups", 2, "3ecd2040a1be9217"),
    ("messages to devices", 3, "8dae3f0fdbad7bd0"),
    ("devices in use", 1, "b3caf83bcc6e2e63"),
    ("reads", 1, "2769b6cb9881c65b"),
    ("aliases", 1, "065eeb38df85f003"),
    ("addresses", 1, "1ad48f49627079d8"),
    ("validations", 1, "91525ff00a3755a8"),
    ("presence", 1, "02068d222e375f53"),
    ("scheduled events", 1, "92a5befabc139951"),
    ("deliveries", 2, "c3a2107f69afc2af"),
    ("peers", 1, "32393927ea586814"),
    ("destinations", 2, "1ad48f49627079d8"),
    ("device lists of others", 2, "2963b168d506fddd"),
    ("media", 1, "8810a3aafd584c5c"),
    ("media of others", 1, "2d3adedff11b61f1"),
    ("pushers", 1, "e82f146fb0ec0209"),
    ("erasures", 1, "9a5a7cabd182839a"),
    ("backups", 1, "64539d550b8d36e5"),
    ("imports", 1, "91525ff00a3755a8"),
    ("index of events", 1, "32e1256dd499c645"),
    ("transactions", 1, "b3d999d6458aef8b"),
    ("streams", 1, "55784aad8c32275a"),
    ("tree", 1, "176557f0f8a47d9b"),
];

/// The golden log that has something for this section, if the first one has nothing.
pub(crate) fn log_with(section: &str) -> Option<&'static str> {
    Some(match section {
        "oauth" => "0.1.0-oauth",
        "peers" => "0.1.0-federation",
        "device lists of others" => "0.1.0-set-aside",
        "redactions" => "0.1.0-redactions",
        "redactions of senders" => "0.1.0-bans",
        "history purges" => "0.1.0-moderation",
        "policy lists" => "0.1.0-policies",
        _ => return None,
    })
}
