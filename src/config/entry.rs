//! What is known of each setting, and the macro that makes it from the list.

use super::{Config, ENV_PREFIX, value::RawSetting};

/// One entry of the list.
pub(super) struct Entry {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    /// Whether a value may be, or contain, a secret.
    pub(super) secret: bool,
    pub(super) allowed: fn() -> String,
    pub(super) get: fn(&Config) -> toml::Value,
    /// Whether the value is the same in both.
    pub(super) same: fn(&Config, &Config) -> bool,
    /// `None` for values that are not allowed.
    pub(super) set: fn(&mut Config, &RawSetting<'_>) -> Option<()>,
}

impl Entry {
    pub(super) fn env(&self) -> String {
        format!("{ENV_PREFIX}{}_{}", self.section, self.name).to_ascii_uppercase()
    }
}

/// Generates the structs and [`SETTINGS`] from one list.
macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident: $Section:ident {$(
            $(#[doc = $doc:literal])+
            $name:ident: $type:ty = $default:expr $(, in $range:expr)?;
        )+}
    )+) => {
        /// All settings.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Config {$(
            $(#[doc = $section_doc])+
            pub $section: $Section,
        )+}

        $(
            $(#[doc = $section_doc])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Section {$(
                $(#[doc = $doc])+
                pub $name: $type,
            )+}

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($name: $default,)+ }
                }
            }
        )+

        pub(super) static SECTIONS: &[(&str, &[&str])] = &[$((stringify!($section), &[$($section_doc),+])),+];

        pub(super) static SETTINGS: &[Entry] = &[$($(
            Entry {
                section: stringify!($section),
                name: stringify!($name),
                doc: &[$($doc),+],
                secret: <$type as Setting>::SECRET,
                allowed: || {
                    let allowed = <$type as Setting>::ALLOWED;
                    $(
                        let range: RangeInclusive<$type> = $range;
                        let allowed =
                            format!("{allowed} from {} to {}", range.start(), range.end());
                    )?
                    allowed.to_owned()
                },
                get: |config| config.$section.$name.to_toml(),
                same: |one, other| one.$section.$name == other.$section.$name,
                set: |config, given| {
                    let value = <$type as Setting>::read(given)?;
                    $(if !$range.contains(&value) { return None; })?
                    config.$section.$name = value;
                    Some(())
                },
            },
        )+)+];
    };
}
pub(super) use settings;
