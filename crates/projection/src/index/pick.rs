//! Takes values out of a JSON document by their paths, without reading the rest of it into memory.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A scalar of a JSON document.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

/// The names on the way to one value.
pub(super) type Path = Vec<String>;

/// Takes the values of these paths out of a document. `None` if it is not JSON. A path that leads to nothing, to
/// `null`, to an object or array, or to what is JSON but no value of this program (a number above all others, half of a
/// surrogate pair), has no value.
pub(super) fn pick(document: &[u8], paths: &[Path]) -> Option<Vec<Option<Scalar>>> {
    let document = std::str::from_utf8(document).ok()?;
    // Of what is JSON each value is read by itself, so that one which cannot be read takes no other with it.
    let document: &RawValue = serde_json::from_str(document).ok()?;
    let mut found = vec![None; paths.len()];
    let open = (0..paths.len()).collect();
    look(document, paths, 0, open, &mut found);
    Some(found)
}

/// Looks at a value of the document, to which or into which some paths lead.
fn look(
    value: &RawValue,
    paths: &[Path],
    depth: usize,
    open: Vec<usize>,
    found: &mut Vec<Option<Scalar>>,
) {
    // The last of two members of one name counts.
    for path in &open {
        found[*path] = None;
    }
    if value.get().starts_with('{') {
        let members = Members {
            paths,
            depth,
            open,
            found,
        };
        // It was read before: it is JSON.
        let _ = serde_json::Deserializer::from_str(value.get()).deserialize_map(members);
        return;
    }
    let scalar = scalar(value.get());
    for path in open {
        if paths[path].len() == depth {
            found[path].clone_from(&scalar);
        }
    }
}

fn scalar(text: &str) -> Option<Scalar> {
    if text.starts_with('[') {
        return None;
    }
    match serde_json::from_str(text).ok()? {
        Value::Bool(value) => Some(Scalar::Bool(value)),
        Value::String(value) => Some(Scalar::Text(value)),
        Value::Number(value) => match value.as_i64() {
            Some(value) => Some(Scalar::Int(value)),
            None => value.as_f64().map(Scalar::Float),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The members of an object into which some paths lead.
struct Members<'a> {
    paths: &'a [Path],
    depth: usize,
    open: Vec<usize>,
    found: &'a mut Vec<Option<Scalar>>,
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = members.next_key()? {
            let of = |path: &&usize| {
                let names = &self.paths[**path];
                let wanted = names.get(self.depth);
                wanted.is_some_and(|wanted| wanted.as_bytes() == &*name)
            };
            let open: Vec<usize> = self.open.iter().filter(of).copied().collect();
            if open.is_empty() {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: &RawValue = members.next_value()?;
            look(value, self.paths, self.depth + 1, open, &mut *self.found);
        }
        Ok(())
    }
}

/// The name of a member, borrowed where it has no escapes. As bytes, for it may be no text: half of a surrogate pair.
struct Name<'de>(Cow<'de, [u8]>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a member")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(name.as_bytes().into()))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(name.as_bytes().to_owned().into()))
            }

            fn visit_borrowed_bytes<E>(self, name: &'de [u8]) -> Result<Name<'de>, E> {
                Ok(Name(name.into()))
            }

            fn visit_bytes<E>(self, name: &[u8]) -> Result<Name<'de>, E> {
                Ok(Name(name.to_owned().into()))
            }
        }
        deserializer.deserialize_bytes(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_by_their_paths() {
        let paths = [
            "customer.id",
            "total",
            "customer",
            "paid",
            "a.b.c",
            "list",
            "gone",
        ];
        let paths: Vec<Path> = paths
            .iter()
            .map(|path| path.split('.').map(str::to_owned).collect())
            .collect();
        let document = br#"{"x": [{"total": 9}], "customer": {"name": "\u0041", "id": "7"}, "total": 12.5, "paid": true,
            "a": {"b": {"c": 18446744073709551615}}, "list": [1], "gone": null}"#;
        let found = pick(document, &paths).expect("JSON");
        let large = Scalar::Float(18_446_744_073_709_551_615_u64 as f64);
        assert_eq!(
            found,
            [
                Some(Scalar::Text("7".into())),
                Some(Scalar::Float(12.5)),
                None,
                Some(Scalar::Bool(true)),
                Some(large),
                None,
                None,
            ]
        );
        // The last of two members of one name counts, as for most readers of JSON.
        let twice = pick(br#"{"total": 1, "total": 2}"#, &paths[1..2]).expect("JSON");
        assert_eq!(twice, [Some(Scalar::Int(2))]);
        let twice = pick(br#"{"total": 1, "total": null}"#, &paths[1..2]).expect("JSON");
        assert_eq!(twice, [None]);
        for none in [&b""[..], b"{", b"{} {}", b"\xff"] {
            assert_eq!(pick(none, &paths), None);
        }
        assert_eq!(pick(b"7", &paths), Some(vec![None; 7]));
    }

    /// What happened: a number or a name that is JSON, but that this program cannot hold, took the whole row with it.
    #[test]
    fn a_value_that_cannot_be_read_takes_no_other_with_it() {
        let paths = [vec!["total".to_owned()], vec!["a".into(), "id".into()]];
        let seven = Some(Scalar::Int(7));
        for (document, total) in [
            (r#"{"total": 1e400, "a": {"id": 7}}"#, None),
            (r#"{"a": {"id": 7}, "total": -1e400}"#, None),
            (r#"{"total": "\ud800", "a": {"id": 7}}"#, None),
            (r#"{"total": "\udc00 x", "a": {"id": 7}}"#, None),
            (
                r#"{"\ud800": 1, "total": 2, "a": {"\udc00": 3, "id": 7}}"#,
                Some(Scalar::Int(2)),
            ),
            (
                r#"{"total": 2, "a": {"\ud800": {"id": 8}, "id": 7, "x": 1e400}}"#,
                Some(Scalar::Int(2)),
            ),
            (r#"{"\u0074otal": 2, "a": {"id": 7}}"#, Some(Scalar::Int(2))),
        ] {
            let found = pick(document.as_bytes(), &paths);
            assert_eq!(found, Some(vec![total, seven.clone()]), "{document}");
        }
    }
}
