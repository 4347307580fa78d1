//! Terms of the Matrix protocol.

use ruma::{OwnedMxcUri, RoomVersionId};
use toml::Value;

use super::{RawSetting, Setting};
use logcabin_record::room_version::is_for_new_rooms;

/// A version of rooms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomVersion(pub RoomVersionId);

impl Setting for RoomVersion {
    const ALLOWED: &'static str = "a room version, from \"3\" to \"12\" (1 and 2 are too old)";
    const OPTIONAL: &'static str = "\"off\" or a room version, from \"3\" to \"12\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let version = RoomVersionId::try_from(given.text()?).ok()?;
        is_for_new_rooms(&version).then_some(Self(version))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// The address of an uploaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MxcAddress(pub OwnedMxcUri);

impl Setting for MxcAddress {
    const ALLOWED: &'static str =
        "the address of an uploaded file, such as \"mxc://example.org/abc\"";
    const OPTIONAL: &'static str =
        "\"off\" or the address of an uploaded file, such as \"mxc://example.org/abc\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let address = OwnedMxcUri::from(given.text()?);
        address.is_valid().then_some(Self(address))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// A public ed25519 key that there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// There is none.
    None,
    /// This one, in unpadded base64.
    Key(Box<str>),
}

impl Setting for PublicKey {
    const ALLOWED: &'static str = "\"none\" or an ed25519 key of 43 characters in base64";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
        let text = given.text()?;
        if text == "none" {
            return Some(Self::None);
        }
        let key = STANDARD_NO_PAD.decode(text).ok()?;
        (key.len() == 32).then(|| Self::Key(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::None => "none".to_owned(),
            Self::Key(key) => key.to_string(),
        })
    }
}
