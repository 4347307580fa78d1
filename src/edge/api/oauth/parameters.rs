//! The parameters of a request, in its query or as a form.

use std::collections::HashMap;

use crate::http::ApiError;

/// Parameters by name. One without a value counts as absent (RFC 6749, section 3.1).
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters(HashMap<String, String>);

/// Why parameters cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// They are not in the form of a query.
    #[error("The parameters cannot be read.")]
    Form,
    /// One is there more than once (RFC 6749, section 3.1).
    #[error("A parameter is there more than once.")]
    Twice,
}

impl Parameters {
    /// From a query or a form.
    pub(super) fn read(text: &[u8]) -> Result<Self, Unreadable> {
        let pairs: Vec<(String, String)> =
            serde_html_form::from_bytes(text).map_err(|_| Unreadable::Form)?;
        let mut parameters = HashMap::new();
        for (name, value) in pairs {
            if parameters.insert(name, value).is_some() {
                return Err(Unreadable::Twice);
            }
        }
        parameters.retain(|_, value| !value.is_empty());
        Ok(Self(parameters))
    }

    /// The fields of a page's form.
    pub(super) fn of_form(body: &[u8]) -> Result<Self, ApiError> {
        Self::read(body).map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// The new password in a form that asks for it twice.
    pub(super) fn new_password(&self) -> Result<&str, ApiError> {
        let password = self.text("password");
        if self.text("repeated") == password {
            return Ok(password);
        }
        Err(ApiError::bad_request("The two passwords are not the same."))
    }

    /// The one with this name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The one with this name; empty if there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }
}

/// The query without these parameters.
pub(super) fn without(query: &str, names: &[&str]) -> String {
    let stays = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        !names.contains(&name)
    };
    query.split('&').filter(stays).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_there_once_and_without_a_value_not_at_all() {
        let read = Parameters::read(b"a=1&b=&c=%20x+y").unwrap();
        assert_eq!((read.get("a"), read.get("b"), read.text("c")), (Some("1"), None, " x y"));
        assert_eq!(Parameters::read(b"a=1&a=1").unwrap_err(), Unreadable::Twice);
        assert_eq!(without("a=1&prompt=login&b", &["prompt"]), "a=1&b");
    }
}
