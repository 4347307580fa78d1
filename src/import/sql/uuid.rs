//! UUIDs as text: `018f1f2e-0000-7abc-8def-0123456789ab`.

pub(crate) fn text(uuid: u128) -> String {
    let digits = format!("{uuid:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits.get(range));
    parts.into_iter().flatten().collect::<Vec<_>>().join("-")
}

pub(crate) fn number(text: &str) -> Option<u128> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_one = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then(|| u128::from_str_radix(&digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{number, text};

    #[test]
    fn uuids_round_trip() {
        let uuid = "018f1f2e-0000-7abc-8def-0123456789ab";
        assert_eq!(number(uuid).map(text).as_deref(), Some(uuid));
        for odd in ["", "018f1f2e", "+18f1f2e-0000-7abc-8def-0123456789ab"] {
            assert_eq!(number(odd), None, "{odd}");
        }
    }
}
