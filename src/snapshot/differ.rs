//! Finds the first difference between two versions of a projection, and the record that should have
//! set it.

use ciborium::Value;
use serde::{Deserialize, Serialize};

use logcabin_record::Offset;
use logcabin_state::{Section, State};

/// The length to which a shown value is cut.
const SHOWN: usize = 120;

/// The first place where a projection differs from a replay of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The projection: see [`logcabin_state::SECTIONS`].
    pub projection: String,
    /// The path within it, outermost first.
    pub place: String,
    /// The record that sets this place in a replay, if there is one. A surplus entry has none.
    pub record: Option<Offset>,
}

/// A step into a tree.
#[derive(Clone, Debug)]
enum Step {
    /// The value under a key of a map.
    Key(Value),
    /// The value paired with this key in a list of pairs.
    Pair(Value),
    /// The element of a list at an index.
    Index(usize),
}

/// A path into a tree.
#[derive(Clone, Debug, Default)]
pub(super) struct ValuePath(Vec<Step>);

impl ValuePath {
    /// The first path at which two trees differ.
    pub(super) fn first(a: &Value, b: &Value) -> Option<Self> {
        let mut steps = Vec::new();
        differ(a, b, &mut steps).then_some(Self(steps))
    }

    /// The value at this path in `tree`.
    pub(super) fn of<'a>(&self, tree: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(tree, |tree, step| match (step, tree) {
            (Step::Key(key), Value::Map(entries)) => {
                entries.iter().find(|(found, _)| found == key).map(|(_, value)| value)
            }
            (Step::Pair(key), Value::Array(values)) => values
                .iter()
                .find_map(|value| pair(value).filter(|(found, _)| *found == key))
                .map(|(_, value)| value),
            (Step::Index(index), Value::Array(values)) => values.get(*index),
            _ => None,
        })
    }
}

impl std::fmt::Display for ValuePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(" / ")?;
            }
            match step {
                Step::Key(value) | Step::Pair(value) => f.write_str(&shown(value))?,
                Step::Index(index) => write!(f, "#{index}")?,
            }
        }
        Ok(())
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Integer(number) => i128::from(*number).to_string(),
        other => format!("{other:?}"),
    };
    text.chars().take(SHOWN).collect()
}

fn pair(value: &Value) -> Option<(&Value, &Value)> {
    match value {
        Value::Array(values) => match &**values {
            [key, value] => Some((key, value)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether the trees differ; if so, adds the path to `steps`.
fn differ(a: &Value, b: &Value, steps: &mut Vec<Step>) -> bool {
    match (a, b) {
        (Value::Map(a), Value::Map(b)) => {
            for ((a_key, a_value), (b_key, b_value)) in a.iter().zip(b) {
                if a_key != b_key {
                    // The pair that the other list lacks.
                    let extra = if b.iter().any(|(key, _)| key == a_key) { b_key } else { a_key };
                    steps.push(Step::Key(extra.clone()));
                    return true;
                }
                steps.push(Step::Key(a_key.clone()));
                if differ(a_value, b_value, steps) {
                    return true;
                }
                steps.pop();
            }
            let longer = if a.len() > b.len() { a } else { b };
            let extra = longer.get(a.len().min(b.len()));
            steps.extend(extra.map(|(key, _)| Step::Key(key.clone())));
            extra.is_some()
        }
        (Value::Array(a), Value::Array(b)) => {
            for (index, (a_value, b_value)) in a.iter().zip(b).enumerate() {
                match (pair(a_value), pair(b_value)) {
                    (Some((a_key, a_value)), Some((b_key, b_value))) if a_key == b_key => {
                        steps.push(Step::Pair(a_key.clone()));
                        if differ(a_value, b_value, steps) {
                            return true;
                        }
                    }
                    (Some((a_key, _)), Some((b_key, _))) => {
                        let others = b.iter().filter_map(pair);
                        let known = others.map(|(key, _)| key).any(|key| key == a_key);
                        let extra = if known { b_key } else { a_key };
                        steps.push(Step::Pair(extra.clone()));
                        return true;
                    }
                    _ => {
                        steps.push(Step::Index(index));
                        if differ(a_value, b_value, steps) {
                            return true;
                        }
                    }
                }
                steps.pop();
            }
            let longer = if a.len() > b.len() { a } else { b };
            let index = a.len().min(b.len());
            let extra = longer.get(index).map(|value| match pair(value) {
                Some((key, _)) => Step::Pair(key.clone()),
                None => Step::Index(index),
            });
            let differs = extra.is_some();
            steps.extend(extra);
            differs
        }
        (a, b) => a != b,
    }
}

/// The first place where `section` differs between `held` and `right`, the replayed state at `to`,
/// and the record since which `right` has its value. `replayed` returns the replayed state at an
/// offset.
pub(super) fn difference<E>(
    section: &Section,
    held: &Value,
    right: &Value,
    to: Offset,
    mut replayed: impl FnMut(Offset) -> Result<State, E>,
) -> Result<Difference, E> {
    let place = ValuePath::first(held, right).unwrap_or_default();
    let due = place.of(right);
    let mut is_so = |offset| {
        let state = replayed(offset)?;
        Ok(place.of(&section.outline(&state)) == due)
    };
    let (mut before, mut by) = (Offset::ZERO, to);
    let record = if is_so(before)? {
        None
    } else {
        while before.next() < by {
            let middle = Offset::new(before.get().midpoint(by.get()));
            *(if is_so(middle)? { &mut by } else { &mut before }) = middle;
        }
        Some(by)
    };
    Ok(Difference { projection: section.name.to_owned(), place: place.to_string(), record })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(json: &str) -> Value {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        Value::serialized(&json).unwrap()
    }

    #[test]
    fn the_path_of_the_first_difference_is_outermost_first() {
        let first = |a: &str, b: &str| {
            let (a, b) = (tree(a), tree(b));
            let there = ValuePath::first(&a, &b).map(|place| place.to_string());
            let back = ValuePath::first(&b, &a).map(|place| place.to_string());
            assert_eq!(there, back, "which is held and which is right does not matter");
            there
        };
        assert_eq!(first(r#"{"a": [1, 2]}"#, r#"{"a": [1, 2]}"#), None);
        assert_eq!(
            first(r#"{"a": 1, "b": {"c": 2}}"#, r#"{"a": 1, "b": {"c": 3}}"#).unwrap(),
            "b / c"
        );
        assert_eq!(first(r#"{"a": 1, "b": 2}"#, r#"{"a": 1}"#).unwrap(), "b");
        assert_eq!(first(r#"{"a": 1, "b": 2}"#, r#"{"b": 2}"#).unwrap(), "a");
        assert_eq!(first("[1, 2, 3]", "[1, 3, 3]").unwrap(), "#1");
        assert_eq!(first("[1]", "[1, 2]").unwrap(), "#1");
        let pairs = r#"[["ann", {"x": 1}], ["ben", {"x": 2}]]"#;
        assert_eq!(first(pairs, r#"[["ann", {"x": 1}], ["ben", {"x": 3}]]"#).unwrap(), "ben / x");
        assert_eq!(first(pairs, r#"[["ben", {"x": 2}]]"#).unwrap(), "ann");
        assert_eq!(first(pairs, r#"[["ann", {"x": 1}]]"#).unwrap(), "ben");
        assert_eq!(first("1", r#""1""#).unwrap(), "");
    }

    #[test]
    fn a_path_finds_the_same_entry_even_if_others_precede_it() {
        let place = ValuePath::first(
            &tree(r#"[["ben", 1], ["cay", 2]]"#),
            &tree(r#"[["ben", 1], ["cay", 3]]"#),
        );
        let place = place.unwrap();
        let later = tree(r#"[["ann", 0], ["ben", 1], ["cay", 3]]"#);
        assert_eq!(place.of(&later), Some(&tree("3")));
        assert_eq!(place.of(&tree(r#"[["ann", 0]]"#)), None);
    }
}
