//! Types of events, made of what a source knows about them by a rule.

use std::collections::HashMap;
use std::fmt;

use gesta_core::{Error, EventType, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::event::SourceEvent;

/// A rule that makes the type of an event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TypeRule {
    /// The type, or else the manifest, as it is.
    #[default]
    AsIs,
    /// The last part of a class name: `com.example.Account$Deposited` and `Bank.Deposited, Bank` become `Deposited`.
    Short,
    /// A table from what stands in the source to a type; what is not in the table stays as it is.
    Table(HashMap<String, String>),
}

impl TypeRule {
    /// Reads a table: a JSON object from types or manifests of the source to types.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no such object, or one of the types cannot be a type.
    pub fn table(json: &[u8]) -> Result<Self> {
        let table: HashMap<String, String> = serde_json::from_slice(json).map_err(|error| {
            Error::invalid(
                "types",
                format!("must be a JSON object of texts, such as {{\"com.example.Deposited\": \"deposited\"}}: {error}"),
            )
        })?;
        for to in table.values() {
            EventType::new(to.as_str())?;
        }
        Ok(Self::Table(table))
    }

    /// Makes the type of an event.
    ///
    /// # Errors
    /// `InvalidArgument` if what the source has cannot be a type.
    pub(crate) fn of(&self, event: &SourceEvent) -> Result<EventType> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let found = filled(&event.event_type)
            .or_else(|| filled(&event.manifest))
            .or_else(|| filled(&event.adapter_manifest));
        let Some(found) = found else {
            // A serializer may write no manifest; its number is all that is known.
            return match event.serializer {
                Some(serializer) => EventType::new(format!("serializer-{serializer}")),
                None => EventType::new("event"),
            };
        };
        match self {
            TypeRule::AsIs => EventType::new(found),
            TypeRule::Short => EventType::new(short(&found)),
            TypeRule::Table(table) => match table.get(&found) {
                Some(to) => EventType::new(to.as_str()),
                None => EventType::new(found),
            },
        }
    }
}

/// Returns the last part of the name of a class.
fn short(class: &str) -> &str {
    let name = class.split(',').next().unwrap_or(class).trim();
    let last = name
        .rsplit(['.', '$', '+', '/'])
        .find(|part| !part.is_empty());
    last.unwrap_or(class)
}

/// Tells tables apart, whatever the order in which they are written.
fn digest(table: &HashMap<String, String>) -> u128 {
    let sorted: std::collections::BTreeMap<_, _> = table.iter().collect();
    let mut hasher = Xxh3::new();
    for part in sorted.into_iter().flat_map(|(from, to)| [from, to]) {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.digest128()
}

impl fmt::Display for TypeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TypeRule::AsIs => "as-is",
            TypeRule::Short => "short",
            TypeRule::Table(table) => return write!(f, "table {:032x}", digest(table)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rule: &TypeRule, manifest: &str) -> String {
        let event = SourceEvent {
            manifest: Some(manifest.to_owned()),
            serializer: Some(33),
            ..SourceEvent::default()
        };
        rule.of(&event).unwrap().as_str().to_owned()
    }

    #[test]
    fn manifests_become_types() {
        assert_eq!(
            of(&TypeRule::AsIs, "com.example.Deposited"),
            "com.example.Deposited"
        );
        assert_eq!(of(&TypeRule::AsIs, ""), "serializer-33");
        for class in [
            "com.example.Account$Deposited",
            "Bank.Events+Deposited, Bank",
            "Deposited",
            "Account$Deposited$",
        ] {
            assert_eq!(of(&TypeRule::Short, class), "Deposited");
        }
        let table = TypeRule::table(br#"{"a.B":"b-done"}"#).unwrap();
        assert_eq!(of(&table, "a.B"), "b-done");
        assert_eq!(of(&table, "a.C"), "a.C");
        // Checkpoints tell tables apart, so this must stay as it is.
        assert_eq!(table.to_string(), "table 1f0f33f3513cedb26805887f1f83d434");
        let two = |json: &str| TypeRule::table(json.as_bytes()).unwrap().to_string();
        assert_eq!(two(r#"{"a":"b","c":"d"}"#), two(r#"{"c":"d","a":"b"}"#));
        assert_ne!(two(r#"{"a":"b","c":"d"}"#), two(r#"{"a":"d","c":"b"}"#));
        assert!(TypeRule::table(b"[]").is_err());
        assert!(TypeRule::table(br#"{"a":""}"#).is_err());
    }

    #[test]
    fn a_type_of_the_source_comes_before_its_manifest() {
        let event = SourceEvent {
            event_type: Some("deposited".into()),
            manifest: Some("Bank.Deposited".into()),
            ..SourceEvent::default()
        };
        assert_eq!(TypeRule::AsIs.of(&event).unwrap().as_str(), "deposited");
    }
}
