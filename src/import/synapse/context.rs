//! What the meaning of Synapse's rows depends on besides the rows.

/// What the meaning of a row depends on besides the row.
pub(crate) struct Context {
    pub(crate) server_name: String,
    /// Whether passwords were hashed with a pepper.
    pub(crate) peppered: bool,
    /// How long sessions last that end.
    pub(crate) session_lifetime_ms: Option<i64>,
}

impl Context {
    /// The id of a user of whom a table has the part before the server's name only.
    pub(crate) fn user_id(&self, localpart: &str) -> String {
        if localpart.starts_with('@') {
            localpart.to_owned()
        } else {
            format!("@{localpart}:{}", self.server_name)
        }
    }

    pub(crate) fn is_local(&self, user_id: &str) -> bool {
        user_id.split_once(':').is_some_and(|(_, server)| server == self.server_name)
    }
}
