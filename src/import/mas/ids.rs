//! Ids: the database has UUIDs, and everybody else is told the same numbers as ULIDs.

use crate::sql::uuid;

/// The digits of a ULID, in Crockford's base 32.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// A UUID as a ULID.
pub(super) fn ulid(of: &str) -> Option<String> {
    let number = uuid::number(of)?;
    let digit = |place: u32| DIGITS.get((number >> (5 * place)) as usize & 31);
    (0..26).rev().map(|place| digit(place).map(|digit| char::from(*digit))).collect()
}

/// A ULID as a UUID.
pub(super) fn from_ulid(text: &str) -> Option<String> {
    // 26 digits are 130 bits, of which the first two are 0.
    if text.len() != 26 || !text.starts_with(|first| matches!(first, '0'..='7')) {
        return None;
    }
    let digit = |byte: u8| DIGITS.iter().position(|digit| *digit == byte.to_ascii_uppercase());
    let number = text.bytes().try_fold(0_u128, |number, byte| {
        Some((number << 5) | u128::try_from(digit(byte)?).ok()?)
    })?;
    Some(uuid::text(number))
}

/// A number that is greater for what was made later. It tells what belongs to one session apart.
pub(super) fn place(of: &str) -> Option<i64> {
    // 48 bits are a time in milliseconds; of the other 80, which are random, 15 fit beside them.
    let number = uuid::number(of)?;
    i64::try_from(((number >> 80) << 15) | (number & 0x7fff)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_number_in_both_forms() {
        let (uuid, text) = ("018baabf-845a-a577-ad3d-682481a2d1ea", "01HENBZ12TMNVTTFB84J0T5MFA");
        assert_eq!(ulid(uuid).as_deref(), Some(text));
        assert_eq!(from_ulid(text).as_deref(), Some(uuid));
        for odd in ["", "81HENBZ12TMNVTTFB84J0T5MFA", "01HENBZ12TMNVTTFB84J0T5MFU", "é"] {
            assert_eq!(from_ulid(odd), None, "{odd}");
        }
        assert_eq!(ulid("no"), None);
    }

    #[test]
    fn later_ids_have_greater_places() {
        let place = |text| place(text).expect("a place");
        assert!(
            place("018baabf-845a-ffff-ffff-ffffffffffff")
                < place("018baabf-845b-0000-0000-000000000000")
        );
        assert!(place("ffffffff-ffff-0000-0000-000000000001") > 0);
    }
}
