//! Takes values out of a JSON document by their paths, without reading the rest of it into memory.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

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
/// `null`, or to an object or array, has no value.
pub(super) fn pick(document: &[u8], paths: &[Path]) -> Option<Vec<Option<Scalar>>> {
    let mut found = vec![None; paths.len()];
    let mut json = serde_json::Deserializer::from_slice(document);
    let here = Here {
        paths,
        depth: 0,
        open: (0..paths.len()).collect(),
        found: &mut found,
    };
    here.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(found)
}

/// A value of the document, and the paths that lead to it or into it.
struct Here<'a> {
    paths: &'a [Path],
    depth: usize,
    open: Vec<usize>,
    found: &'a mut Vec<Option<Scalar>>,
}

impl Here<'_> {
    fn take(&mut self, value: &Scalar) {
        for path in &self.open {
            if self.paths[*path].len() == self.depth {
                self.found[*path] = Some(value.clone());
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Here<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Here<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(mut self, value: bool) -> Result<(), E> {
        self.take(&Scalar::Bool(value));
        Ok(())
    }

    fn visit_i64<E>(mut self, value: i64) -> Result<(), E> {
        self.take(&Scalar::Int(value));
        Ok(())
    }

    fn visit_u64<E>(mut self, value: u64) -> Result<(), E> {
        let value = i64::try_from(value).map_or(Scalar::Float(value as f64), Scalar::Int);
        self.take(&value);
        Ok(())
    }

    fn visit_f64<E>(mut self, value: f64) -> Result<(), E> {
        self.take(&Scalar::Float(value));
        Ok(())
    }

    fn visit_str<E>(mut self, value: &str) -> Result<(), E> {
        self.take(&Scalar::Text(value.to_owned()));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = members.next_key()? {
            let of = |path: &&usize| {
                let names = &self.paths[**path];
                names.get(self.depth).is_some_and(|wanted| *wanted == *name)
            };
            let open: Vec<usize> = self.open.iter().filter(of).copied().collect();
            if open.is_empty() {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            members.next_value_seed(Here {
                paths: self.paths,
                depth: self.depth + 1,
                open,
                found: &mut *self.found,
            })?;
        }
        Ok(())
    }
}

/// The name of a member, borrowed where it has no escapes.
struct Name<'de>(std::borrow::Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a member")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(name.into()))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(name.to_owned().into()))
            }
        }
        deserializer.deserialize_str(Names)
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
        for none in [&b""[..], b"{", b"{} {}", b"\xff"] {
            assert_eq!(pick(none, &paths), None);
        }
        assert_eq!(pick(b"7", &paths), Some(vec![None; 7]));
    }
}
