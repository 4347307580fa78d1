//! The syntax of names of accounts and devices, and of registration tokens.

use ruma::{OwnedDeviceId, OwnedUserId, ServerName, UserId};
use thiserror::Error;

use logcabin_base::{clock::random_letters, limits};

/// Why a name is not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidName {
    /// A user name contains other characters.
    #[error("A user name consists of a-z, 0-9 and the characters . _ = - / +")]
    UserCharacters,
    /// A user name is not valid for another reason.
    #[error("This cannot be a user name.")]
    User,
    #[error("This user name is too long.")]
    UserTooLong,
    /// A device id is empty or too long.
    #[error("A device id has 1 to 255 bytes.")]
    DeviceLength,
    /// A device id contains control characters.
    #[error("A device id holds no control characters.")]
    DeviceControl,
    #[error("The display name is too long.")]
    DisplayNameTooLong,
}

/// The user id of a new user with this name (appendices, "User Identifiers"). Upper-case letters
/// are converted to lower case; other characters that a localpart cannot contain are refused.
pub fn new_user_id_of(
    server_name: &ServerName,
    username: &str,
) -> Result<OwnedUserId, InvalidName> {
    let localpart = username.to_ascii_lowercase();
    let valid = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '=' | '-' | '/' | '+');
    if localpart.is_empty() || !localpart.chars().all(valid) {
        return Err(InvalidName::UserCharacters);
    }
    let user_id =
        UserId::parse_with_server_name(localpart, server_name).map_err(|_| InvalidName::User)?;
    if user_id.as_str().len() > limits::IDENTIFIER_BYTES {
        return Err(InvalidName::UserTooLong);
    }
    Ok(user_id)
}

/// The device id that a client asks for, within its limit, or a new one.
pub fn device_id_or_new(asked: Option<OwnedDeviceId>) -> Result<OwnedDeviceId, InvalidName> {
    match asked {
        Some(id) if id.as_str().is_empty() || id.as_str().len() > limits::IDENTIFIER_BYTES => {
            Err(InvalidName::DeviceLength)
        }
        // They are keys, file names, parts of other ids: no terminal or parser may interpret them.
        Some(id) if id.as_str().chars().any(char::is_control) => Err(InvalidName::DeviceControl),
        Some(id) => Ok(id),
        None => Ok(new_device_id()),
    }
}

/// A generated device id.
pub fn new_device_id() -> OwnedDeviceId {
    random_letters(10).into()
}

/// A display name within its limit.
pub fn short_name(name: Option<String>) -> Result<Option<String>, InvalidName> {
    match name {
        Some(name) if name.len() > limits::DISPLAY_NAME_BYTES => {
            Err(InvalidName::DisplayNameTooLong)
        }
        name => Ok(name),
    }
}

/// Whether this is a valid registration token (client-server API, "Token-authenticated
/// registration").
pub fn is_registration_token(token: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    (1..=limits::REGISTRATION_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(allowed)
}
