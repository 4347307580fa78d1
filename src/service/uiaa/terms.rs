//! Terms: the documents that a newcomer must accept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The documents by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms(BTreeMap<String, Document>);

/// A document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Document {
    version: String,
    /// By language, such as `en` or `pt-BR`.
    #[serde(flatten)]
    translations: BTreeMap<String, Translation>,
}

/// A document in one language.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// Its title.
    pub name: String,
    /// The address of its text.
    pub url: String,
}

impl Terms {
    /// Parses the file of documents.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let terms: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if terms.0.is_empty() {
            return Err("there is no document in it".to_owned());
        }
        for (name, document) in &terms.0 {
            if document.version.is_empty() {
                return Err(format!("`{name}` has an empty version"));
            }
            if document.translations.is_empty() {
                return Err(format!("`{name}` is in no language"));
            }
            for (language, translation) in &document.translations {
                let url = &translation.url;
                if !(url.starts_with("https://") || url.starts_with("http://")) {
                    return Err(format!(
                        "`{name}.{language}.url` is no address on the web: {url:?}"
                    ));
                }
            }
        }
        Ok(terms)
    }

    /// The parameters for clients (client-server API, "Terms of service at registration").
    pub(crate) fn params(&self) -> Value {
        json!({ "policies": self })
    }

    /// Each document's version.
    pub fn versions(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, document)| (name.clone(), document.version.clone())).collect()
    }

    /// Each document in the language that comes first in `languages` (an `Accept-Language` header),
    /// in English, or in any.
    pub fn in_language(&self, languages: &str) -> Vec<&Translation> {
        let wanted: Vec<_> = languages
            .split(',')
            .filter_map(|range| range.split(';').next())
            .map(|range| range.trim().replace('_', "-").to_ascii_lowercase())
            .chain(["en".to_owned()])
            .collect();
        let primary = |tag: &str| tag.split('-').next().unwrap_or_default().to_owned();
        let best = |document: &'_ Document| {
            let tagged = |wanted: &str, exact: bool| {
                document.translations.iter().find(|(language, _)| {
                    let tag = language.replace('_', "-").to_ascii_lowercase();
                    if exact { tag == wanted } else { primary(&tag) == primary(wanted) }
                })
            };
            let found =
                wanted.iter().find_map(|tag| tagged(tag, true).or_else(|| tagged(tag, false)));
            found.map(|(language, _)| language.clone())
        };
        self.0
            .values()
            .filter_map(|document| match best(document) {
                Some(language) => document.translations.get(&language),
                None => document.translations.values().next(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [privacy_policy]
        version = "1.2"
        en = { name = "Privacy", url = "https://example.org/privacy" }
        de = { name = "Datenschutz", url = "https://example.org/datenschutz" }

        [house_rules]
        version = "2026"
        pt-BR = { name = "Regras", url = "https://example.org/regras" }
    "#;

    #[test]
    fn clients_get_the_documents_as_they_are_in_the_file() {
        let terms = Terms::parse(FILE).unwrap();
        let privacy = &terms.params()["policies"]["privacy_policy"];
        assert_eq!(privacy["version"], "1.2");
        assert_eq!(privacy["de"]["name"], "Datenschutz");
        assert_eq!(terms.versions()["house_rules"], "2026");
    }

    #[test]
    fn each_document_is_shown_in_the_best_language_that_it_has() {
        let terms = Terms::parse(FILE).unwrap();
        let shown = |languages: &str| {
            let names: Vec<_> =
                terms.in_language(languages).iter().map(|t| t.name.clone()).collect();
            names.join(" ")
        };
        assert_eq!(shown("de-AT,de;q=0.9,en;q=0.8"), "Regras Datenschutz");
        assert_eq!(shown(""), "Regras Privacy");
        assert_eq!(shown("fr"), "Regras Privacy");
        assert_eq!(shown("pt, de"), "Regras Datenschutz");
    }

    #[test]
    fn a_useless_file_is_refused() {
        for (text, said) in [
            ("", "no document"),
            ("[a]\nversion = \"1\"", "no language"),
            ("[a]\nversion = \"\"\nen = { name = \"A\", url = \"https://x\" }", "empty version"),
            ("[a]\nversion = \"1\"\nen = { name = \"A\", url = \"javascript:x\" }", "no address"),
            ("[a]\nen = { name = \"A\", url = \"https://x\" }", "version"),
        ] {
            let error = Terms::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
