//! The rights of one stream, as `$acl` in its metadata gives them, and the default rights of streams without any.
//!
//! The form is that of EventStoreDB and its clients: `{"$r": …, "$w": …, "$d": …, "$mr": …, "$mw": …}`, each a role or
//! a list of roles. A role is a user, a group, or `$all`. What is not said is as the defaults say it (`rights` says for
//! whom); an empty list leaves the stream to the administrators.
//! Invariant: a form that cannot be read is never taken for *nothing said*.

use std::fmt;

use serde_json::{Map, Value};

use crate::names::EVERYBODY;

/// The most roles that one right may name.
const ROLES_MAX: usize = 100;
/// The longest name of a role, in bytes.
const ROLE_BYTES_MAX: usize = 256;

/// What may be done with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Append,
    Delete,
    ReadMetadata,
    WriteMetadata,
}

impl Right {
    const ALL: [Right; 5] = [
        Right::Read,
        Right::Append,
        Right::Delete,
        Right::ReadMetadata,
        Right::WriteMetadata,
    ];

    fn key(self) -> &'static str {
        match self {
            Right::Read => "$r",
            Right::Append => "$w",
            Right::Delete => "$d",
            Right::ReadMetadata => "$mr",
            Right::WriteMetadata => "$mw",
        }
    }
}

/// The rights that a document gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Acl {
    roles: [Option<Box<[Box<str>]>>; 5],
}

/// Why the rights in a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Odd {
    pub(crate) field: String,
    pub(crate) rule: String,
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.rule)
    }
}

impl Odd {
    fn new(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            rule: rule.into(),
        }
    }
}

impl Acl {
    /// Gives every right to everybody who has proved who they are.
    pub(crate) fn everybody() -> Self {
        let all = || Some(vec![EVERYBODY.into()].into_boxed_slice());
        Self {
            roles: std::array::from_fn(|_| all()),
        }
    }

    /// Gives no right to anybody; only administrators have access.
    pub(crate) fn nobody() -> Self {
        Self {
            roles: std::array::from_fn(|_| Some(Box::default())),
        }
    }

    /// Returns the roles that have a right; `None` if the document says nothing about this right.
    pub(crate) fn roles(&self, right: Right) -> Option<&[Box<str>]> {
        self.roles[right as usize].as_deref()
    }

    /// Estimates the memory that the rights take, in bytes.
    pub(crate) fn cost_bytes(&self) -> usize {
        let roles = self.roles.iter().flatten().flat_map(|roles| roles.iter());
        256 + roles.map(|role| role.len() + 32).sum::<usize>()
    }

    /// Reads the `$acl` of a metadata document; `None` if the document has none.
    pub(crate) fn of_metadata(json: &[u8]) -> Result<Option<Self>, Odd> {
        let document = object(json)?;
        match document.get("$acl") {
            None | Some(Value::Null) => Ok(None),
            Some(acl) => Self::read("metadata.$acl", acl).map(Some),
        }
    }

    fn read(field: &str, value: &Value) -> Result<Self, Odd> {
        let Value::Object(members) = value else {
            let rule = format!(
                "must be an object such as {{\"$r\": [\"$admins\"]}}, found {}",
                short(value)
            );
            return Err(Odd::new(field, rule));
        };
        let mut acl = Self::default();
        for (key, value) in members {
            let Some(right) = Right::ALL.into_iter().find(|right| right.key() == key) else {
                let rule = format!(
                    "must have no members but $r, $w, $d, $mr and $mw, found {:?}",
                    cut(key)
                );
                return Err(Odd::new(field, rule));
            };
            acl.roles[right as usize] = roles(&format!("{field}.{key}"), value)?;
        }
        Ok(acl)
    }
}

/// Reads a role, or a list of roles. `null` says nothing.
fn roles(field: &str, value: &Value) -> Result<Option<Box<[Box<str>]>>, Odd> {
    let found = match value {
        Value::Null => return Ok(None),
        Value::Array(roles) if roles.len() > ROLES_MAX => {
            let rule = format!("must name at most {ROLES_MAX} roles, found {}", roles.len());
            return Err(Odd::new(field, rule));
        }
        Value::Array(roles) => roles.as_slice(),
        one => std::slice::from_ref(one),
    };
    let role = |value: &Value| match value {
        Value::String(role) if (1..=ROLE_BYTES_MAX).contains(&role.len()) => {
            Ok(role.as_str().into())
        }
        other => {
            let rule = format!(
                "must be a role of 1 to {ROLE_BYTES_MAX} bytes, or a list of roles, found {}",
                short(other)
            );
            Err(Odd::new(field, rule))
        }
    };
    found.iter().map(role).collect::<Result<_, _>>().map(Some)
}

/// Reads a JSON object. If an object in it has a key twice that begins with `$`, the text could be read in two ways, so
/// it is refused.
fn object(json: &[u8]) -> Result<Map<String, Value>, Odd> {
    let broken =
        |why: &dyn fmt::Display| Odd::new("metadata", format!("must be a JSON object: {why}"));
    let Distinct(value) = serde_json::from_slice(json).map_err(|error| broken(&error))?;
    match value {
        Value::Object(members) => Ok(members),
        other => Err(broken(&short(&other))),
    }
}

/// A JSON value in which no object has a key twice that begins with `$`.
struct Distinct(Value);

impl<'de> serde::Deserialize<'de> for Distinct {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DistinctVisitor).map(Distinct)
    }
}

struct DistinctVisitor;

impl<'de> serde::de::Visitor<'de> for DistinctVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Distinct(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Distinct(value))) = members.next_entry::<String, Distinct>()? {
            // Other keys belong to the users, who may repeat them.
            if key.starts_with('$') && map.contains_key(&key) {
                let found = cut(&key);
                return Err(serde::de::Error::custom(format_args!(
                    "it has {found:?} twice"
                )));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Shows a value as it stands in an error, shortened.
fn short(value: &Value) -> String {
    cut(&value.to_string())
}

fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The rights of streams that have no rights of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Defaults {
    pub(crate) user: OfKind,
    pub(crate) system: OfKind,
    /// Of streams of the system that hold something of many streams. `$settings` says nothing of them, because it does
    /// not say which of those a reader may know.
    pub(crate) of_many: OfKind,
}

/// The rights of streams of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfKind {
    /// What `$settings` says.
    pub(crate) said: Acl,
    /// What holds where neither a stream nor `$settings` says anything.
    pub(crate) built_in: Acl,
}

impl OfKind {
    fn unsaid(built_in: Acl) -> Self {
        Self {
            said: Acl::default(),
            built_in,
        }
    }
}

impl Default for Defaults {
    /// Streams of users are open to everybody, streams of the system to administrators only.
    fn default() -> Self {
        Self {
            user: OfKind::unsaid(Acl::everybody()),
            system: OfKind::unsaid(Acl::nobody()),
            of_many: OfKind::unsaid(Acl::nobody()),
        }
    }
}

impl Defaults {
    /// Gives no right to anybody; only administrators have access.
    pub(crate) fn closed() -> Self {
        Self {
            user: OfKind::unsaid(Acl::nobody()),
            system: OfKind::unsaid(Acl::nobody()),
            of_many: OfKind::unsaid(Acl::nobody()),
        }
    }

    /// Reads the rights from an event of `$settings`. For what the event does not say, the defaults without settings
    /// hold.
    pub(crate) fn read(json: &[u8]) -> Result<Self, Odd> {
        let document = object(json).map_err(|odd| Odd {
            field: "settings".into(),
            ..odd
        })?;
        let mut defaults = Self::default();
        for (key, value) in &document {
            let of_kind = match key.as_str() {
                "$userStreamAcl" => &mut defaults.user,
                "$systemStreamAcl" => &mut defaults.system,
                _ => {
                    let rule = format!(
                        "must have no members but $userStreamAcl and $systemStreamAcl, found {:?}",
                        cut(key)
                    );
                    return Err(Odd::new("settings", rule));
                }
            };
            of_kind.said = Acl::read(&format!("settings.{key}"), value)?;
        }
        Ok(defaults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(text: &str) -> Acl {
        Acl::of_metadata(text.as_bytes())
            .expect("readable")
            .expect("an ACL")
    }

    #[test]
    fn a_right_is_a_role_a_list_or_not_said() {
        let acl = acl(
            r#"{"owner":1,"owner":2,"$acl":{"$r":"a","$w":["b","$admins"],"$d":[],"$mr":null}}"#,
        );
        let roles = |right| {
            acl.roles(right)
                .map(|roles| roles.iter().map(|r| &**r).collect::<Vec<_>>())
        };
        assert_eq!(roles(Right::Read), Some(vec!["a"]));
        assert_eq!(roles(Right::Append), Some(vec!["b", "$admins"]));
        assert_eq!(roles(Right::Delete), Some(vec![]));
        assert_eq!(roles(Right::ReadMetadata), None);
        assert_eq!(roles(Right::WriteMetadata), None);
        for none in ["{}", r#"{"$acl":null}"#, r#"{"acl":{"$r":1}}"#] {
            assert_eq!(Acl::of_metadata(none.as_bytes()), Ok(None), "{none}");
        }
    }

    #[test]
    fn odd_forms_are_never_taken_for_nothing() {
        let many = format!(
            r#"{{"$acl":{{"$r":[{}"a"]}}}}"#,
            r#""a","#.repeat(ROLES_MAX)
        );
        let deep = format!("{{\"$acl\":{}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
        for odd in [
            r#"{"$acl":1}"#,
            r#"{"$acl":"a"}"#,
            r#"{"$acl":[]}"#,
            r#"{"$acl":{"$r":1}}"#,
            r#"{"$acl":{"$r":[["a"]]}}"#,
            r#"{"$acl":{"$r":{"a":1}}}"#,
            r#"{"$acl":{"$r":[""]}}"#,
            r#"{"$acl":{"r":"a"}}"#,
            r#"{"$acl":{"$R":"a"}}"#,
            r#"{"$acl":{"$r":"a"},"$acl":{"$r":"b"}}"#,
            r#"{"$acl":{"$r":"a","$r":"b"}}"#,
            r#"{"$acl":{"$r":"a"},"\u0024acl":{"$r":"b"}}"#,
            "",
            "[]",
            "{",
            &many,
            &deep,
        ] {
            let found = Acl::of_metadata(odd.as_bytes());
            assert!(found.is_err(), "{odd}");
        }
        let told = Acl::of_metadata(br#"{"$acl":{"$r":7}}"#)
            .expect_err("odd")
            .to_string();
        assert!(
            told.contains("metadata.$acl.$r") && told.contains("found 7"),
            "{told}"
        );
    }

    #[test]
    fn settings_say_what_streams_without_rights_have() {
        let text = br#"{"$userStreamAcl":{"$r":"readers"},"$systemStreamAcl":{"$r":["$ops"]}}"#;
        let found = Defaults::read(text).expect("readable");
        let said = |of: &OfKind, right| of.said.roles(right).map(|roles| roles[0].to_string());
        assert_eq!(said(&found.user, Right::Read).as_deref(), Some("readers"));
        assert_eq!(said(&found.user, Right::Append), None);
        assert_eq!(said(&found.system, Right::Read).as_deref(), Some("$ops"));
        assert_eq!(found.user.built_in, Acl::everybody());
        assert_eq!(found.system.built_in, Acl::nobody());
        assert_eq!(Defaults::read(b"{}"), Ok(Defaults::default()));
        for odd in [r#"{"$userStreamAcl":1}"#, r#"{"$userstreamacl":{}}"#, "[]"] {
            assert!(Defaults::read(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
