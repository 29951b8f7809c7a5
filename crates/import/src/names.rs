//! Names of streams, made of the keys of a source by a rule.
//!
//! Why a rule: in this store the category of a stream is the text before the first `-`, and entities, filters and
//! virtual streams go by it. Akka writes `Account|7`, which would be a category of its own.
//! Not here: two keys with the same name, which only the target can see (`known`).

use std::fmt;
use std::str::FromStr;

use gesta_core::{Error, Result, StreamId};

use crate::event::SourceEvent;

/// A rule that makes the name of a stream: a text with placeholders such as `{category:lower}-{id}`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameRule {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Value(Field, Case),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Key,
    Category,
    Id,
    Tenant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    AsIs,
    Lower,
}

impl FromStr for NameRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(
                "names",
                format!(
                    "must be a text with {{key}}, {{category}}, {{id}} or {{tenant}}, each perhaps with :lower; {why}"
                ),
            )
        };
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let Some((before, after)) = rest.split_once('{') else {
                parts.push(Part::Text(rest.to_owned()));
                break;
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (inside, after) = after
                .split_once('}')
                .ok_or_else(|| wrong(&format!("found {text:?}, where a }} is missing")))?;
            let (field, case) = match inside.split_once(':') {
                None => (inside, Case::AsIs),
                Some((field, "lower")) => (field, Case::Lower),
                Some(_) => return Err(wrong(&format!("found {{{inside}}}"))),
            };
            let field = match field {
                "key" => Field::Key,
                "category" => Field::Category,
                "id" => Field::Id,
                "tenant" => Field::Tenant,
                _ => return Err(wrong(&format!("found {{{inside}}}"))),
            };
            parts.push(Part::Value(field, case));
            rest = after;
        }
        let is_of_stream = |part: &Part| matches!(part, Part::Value(Field::Key | Field::Id, _));
        if !parts.iter().any(is_of_stream) {
            return Err(wrong(&format!(
                "found {text:?}, which has neither {{key}} nor {{id}}: all streams would have one name"
            )));
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }
}

impl fmt::Display for NameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl NameRule {
    /// Makes the name of the stream of an event. If a placeholder of the rule is empty for this key, for example
    /// because
    /// the key has no separator, the name is the key.
    ///
    /// # Errors
    /// `InvalidArgument` if the result cannot be the name of a stream, or belongs to the system.
    pub(crate) fn name(&self, event: &SourceEvent, separator: char) -> Result<StreamId> {
        let key = &*event.key;
        let (category, id) = match (&event.category, &event.ident) {
            (category, Some(ident)) => (category.as_deref().unwrap_or(""), ident.as_str()),
            (_, None) => key.split_once(separator).unwrap_or(("", "")),
        };
        let mut name = String::with_capacity(key.len() + 8);
        for part in &self.parts {
            let (value, case) = match part {
                Part::Text(text) => (text.as_str(), Case::AsIs),
                Part::Value(Field::Key, case) => (key, *case),
                Part::Value(Field::Category, case) => (category, *case),
                Part::Value(Field::Id, case) => (id, *case),
                Part::Value(Field::Tenant, case) => (event.tenant.as_deref().unwrap_or(""), *case),
            };
            if value.is_empty() {
                name = key.to_owned();
                break;
            }
            match case {
                Case::AsIs => name.push_str(value),
                Case::Lower => name.push_str(&value.to_lowercase()),
            }
        }
        if name.starts_with('$') {
            return Err(Error::invalid(
                "names",
                format!("must not make names that start with $, found {name:?} for {key:?}"),
            ));
        }
        StreamId::new(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(rule: &str, key: &str) -> Result<String> {
        let event = SourceEvent {
            key: key.into(),
            ..SourceEvent::default()
        };
        let rule: NameRule = rule.parse()?;
        Ok(rule.name(&event, '|')?.as_str().to_owned())
    }

    #[test]
    fn a_rule_makes_the_category() {
        let akka = "{category:lower}-{id}";
        assert_eq!(named(akka, "Account|7").unwrap(), "account-7");
        assert_eq!(named(akka, "Account|7|x").unwrap(), "account-7|x");
        assert_eq!(named("{category}-{id}", "Account|7").unwrap(), "Account-7");
        assert_eq!(named("old-{key}", "Account|7").unwrap(), "old-Account|7");
        // Without a separator the key is the name, whatever the rule.
        assert_eq!(named(akka, "singleton").unwrap(), "singleton");
        assert_eq!(named(akka, "|x").unwrap(), "|x");
    }

    #[test]
    fn what_the_source_keeps_apart_is_not_split() {
        let event = SourceEvent {
            key: "blue/7-8".into(),
            category: Some("invoice".into()),
            ident: Some("7-8".into()),
            tenant: Some("blue".into()),
            ..SourceEvent::default()
        };
        let name = |rule: &str| {
            let rule: NameRule = rule.parse().unwrap();
            rule.name(&event, '-').unwrap().as_str().to_owned()
        };
        assert_eq!(name("{category}-{id}"), "invoice-7-8");
        assert_eq!(name("{category}-{tenant}-{id}"), "invoice-blue-7-8");
        let untyped = SourceEvent {
            category: None,
            ..event.clone()
        };
        let rule: NameRule = "{category}-{id}".parse().unwrap();
        assert_eq!(rule.name(&untyped, '-').unwrap().as_str(), "blue/7-8");
    }

    #[test]
    fn wrong_rules_and_names_are_refused_with_the_reason() {
        for (rule, why) in [
            ("{category}", "neither {key} nor {id}"),
            ("{key", "a } is missing"),
            ("{kex}", "found {kex}"),
            ("{key:upper}", "found {key:upper}"),
            ("", "neither"),
        ] {
            let error = rule.parse::<NameRule>().expect_err(rule).to_string();
            assert!(error.contains(why), "{rule}: {error}");
        }
        let error = named("{key}", "$ce-x")
            .expect_err("a system stream")
            .to_string();
        assert!(error.contains("start with $"), "{error}");
        assert!(named("{key}", "a\u{1}").is_err());
    }
}
