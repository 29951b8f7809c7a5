//! Places in JSON documents, and what it means that two values are equal.

use serde_json::{Number, Value};

/// A place: names and numbers between dots, `items.0.id`; or, with a slash in front, a JSON pointer (RFC 6901), which
/// reaches names with dots in them: `/a.b/0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    text: String,
    pointer: String,
}

impl Path {
    /// Reads a place; the whole document is `.`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let pointer = match text {
            "." => String::new(),
            _ if text.starts_with('/') => text.to_owned(),
            _ => {
                let names: Vec<&str> = text.split('.').collect();
                if names.iter().any(|name| name.is_empty()) {
                    return Err(format!(
                        "{text:?} is not a place in a JSON document, such as items.0.id or /items/0/id"
                    ));
                }
                let escaped = names
                    .iter()
                    .map(|name| name.replace('~', "~0").replace('/', "~1"));
                escaped.fold(String::new(), |pointer, name| pointer + "/" + &name)
            }
        };
        Ok(Self {
            text: text.to_owned(),
            pointer,
        })
    }

    /// As it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What is there.
    pub(crate) fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        document.pointer(&self.pointer)
    }
}

/// True if two values are the same; numbers by their value, so that 3 and 3.0 are the same.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => match (whole(one), whole(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one.as_f64().is_some_and(|one| other.as_f64() == Some(one)),
        },
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, value): (&String, &Value)| {
                other.get(name).is_some_and(|it| same(value, it))
            };
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

/// The number, if it is a whole one: as a fraction it would lose digits from 2^53 on, and an id would be the same as
/// the one beside it.
fn whole(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or_else(|| number.as_u64().map(i128::from))
}

/// A value as a text: a string is its characters, everything else its JSON.
pub(crate) fn text_of(value: &Value) -> std::borrow::Cow<'_, str> {
    match value {
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_found() {
        let document = json!({"items": [{"id": 7}], "a.b": {"c/d": true}, "": 1});
        let found = |path: &str| Path::parse(path).unwrap().find(&document).cloned();
        assert_eq!(found("items.0.id"), Some(json!(7)));
        assert_eq!(found("/a.b/c~1d"), Some(json!(true)));
        assert_eq!(found("."), Some(document.clone()));
        assert_eq!(found("items.1.id"), None);
        for bad in ["", "a..b", ".a", "a."] {
            assert!(Path::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_the_same_by_their_value() {
        assert!(same(&json!({"a": [3, "x"]}), &json!({"a": [3.0, "x"]})));
        assert!(!same(&json!("3"), &json!(3)));
        assert!(!same(&json!({"a": 1}), &json!({"a": 1, "b": 2})));
        assert!(!same(&json!(u64::MAX), &json!(0)));
    }

    /// What happened: whole numbers were compared as fractions, so an id of 64 bits was the same as the one beside it.
    #[test]
    fn large_numbers_are_not_the_same_as_their_neighbours() {
        let id = 9_007_199_254_740_993_i64;
        assert!(same(&json!(id), &json!(id)));
        assert!(!same(&json!(id), &json!(id - 1)));
        assert!(!same(&json!(u64::MAX), &json!(u64::MAX - 1)));
        assert!(!same(&json!(i64::MIN), &json!(i64::MIN + 1)));
        assert!(!same(&json!(-1), &json!(u64::MAX)));
    }
}
