//! Texts with `{{variables}}` in them, and JSON documents out of such texts.
//!
//! Names become places when a file is read, so that a name which nothing gives a value is refused before a request is
//! sent, and nothing is looked up by name under load.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

use crate::json::text_of;

/// What is not escaped in a path: the unreserved characters of RFC 3986.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// Widest padding.
const PAD_MAX: usize = 64;

/// Where a variable comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A column of a feeder, both by number.
    Feeder(usize, usize),
    /// A value that an answer gave, by number.
    Captured(usize),
    /// Eight hexadecimal digits of this run.
    Run,
    /// The number of the virtual user.
    User,
    /// The number of the pass through a flow, of all users together.
    Pass,
}

/// Finds variables.
pub(crate) trait Names {
    /// The place of a name.
    ///
    /// # Errors
    /// Why the name stands for nothing here.
    fn slot(&self, name: &str) -> Result<Slot, String>;
}

/// Gives variables their values.
pub(crate) trait Values {
    /// The value of a place, for this request.
    fn value(&self, slot: Slot) -> Value;
}

/// What is done to the text of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filter {
    None,
    /// Not escaped where others would be.
    Raw,
    /// Zeros in front, up to so many characters.
    Pad(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(Slot, Filter),
}

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

/// Where a text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Values stand in it as they are.
    Text,
    /// Values are escaped for a path or query.
    Path,
}

impl Template {
    /// Reads a text; `{{name}}`, `{{name | raw}}` and `{{name | pad 12}}` are variables.
    pub(crate) fn parse(text: &str, names: &dyn Names) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((inner, after)) = after.split_once("}}") else {
                return Err(format!("{text:?} opens {{{{ and does not close it by }}}}"));
            };
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (name, filter) = match inner.split_once('|') {
                Some((name, filter)) => (name.trim(), Filter::parse(filter.trim())?),
                None => (inner.trim(), Filter::None),
            };
            parts.push(Part::Variable(names.slot(name)?, filter));
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// The text, if it has no variable.
    pub(crate) fn constant(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The variable, if it is nothing else.
    fn whole(&self) -> Option<Slot> {
        match self.0.as_slice() {
            [Part::Variable(slot, Filter::None)] => Some(*slot),
            _ => None,
        }
    }

    /// True if the text begins with a value that is not escaped.
    pub(crate) fn begins_raw(&self) -> bool {
        matches!(self.0.first(), Some(Part::Variable(_, Filter::Raw)))
    }

    /// Calls `found` with every variable.
    pub(crate) fn slots(&self, found: &mut dyn FnMut(Slot)) {
        for part in &self.0 {
            if let Part::Variable(slot, _) = part {
                found(*slot);
            }
        }
    }

    /// The text with its values.
    pub(crate) fn render(&self, values: &dyn Values, place: Place) -> Cow<'_, str> {
        if let Some(text) = self.constant() {
            return text.into();
        }
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Variable(slot, filter) => {
                    let value = values.value(*slot);
                    let mut value = text_of(&value);
                    if let Filter::Pad(width) = filter {
                        value = format!("{value:0>width$}").into();
                    }
                    match (place, filter) {
                        (Place::Path, Filter::None | Filter::Pad(_)) => {
                            text.extend(utf8_percent_encode(&value, IN_PATH));
                        }
                        _ => text.push_str(&value),
                    }
                }
            }
        }
        text.into()
    }
}

impl Filter {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "raw" {
            return Ok(Self::Raw);
        }
        let width = text
            .strip_prefix("pad ")
            .and_then(|width| width.trim().parse().ok());
        match width {
            Some(width) if (1..=PAD_MAX).contains(&width) => Ok(Self::Pad(width)),
            _ => Err(format!(
                "{text:?} is not known after a name and |; known are raw and pad N, with N from 1 to {PAD_MAX}"
            )),
        }
    }
}

/// A JSON document whose texts may have variables.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    /// Without a variable.
    Constant(Value),
    /// A text that is nothing but a variable: it becomes the value as it is, a number stays a number.
    Whole(Slot),
    Text(Template),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn parse(value: &Value, names: &dyn Names) -> Result<Self, String> {
        Ok(match value {
            Value::String(text) => {
                let template = Template::parse(text, names)?;
                match (template.constant(), template.whole()) {
                    (Some(text), _) => Self::Constant(text.into()),
                    (None, Some(slot)) => Self::Whole(slot),
                    (None, None) => Self::Text(template),
                }
            }
            Value::Array(list) => {
                let list = list.iter().map(|value| Self::parse(value, names));
                Self::List(list.collect::<Result<_, _>>()?)
            }
            Value::Object(object) => {
                let fields = object.iter();
                let fields =
                    fields.map(|(name, value)| Ok((name.clone(), Self::parse(value, names)?)));
                Self::Object(fields.collect::<Result<_, String>>()?)
            }
            other => Self::Constant(other.clone()),
        })
    }

    /// Calls `found` with every variable.
    pub(crate) fn slots(&self, found: &mut dyn FnMut(Slot)) {
        match self {
            Self::Constant(_) => {}
            Self::Whole(slot) => found(*slot),
            Self::Text(template) => template.slots(found),
            Self::List(list) => list.iter().for_each(|one| one.slots(found)),
            Self::Object(fields) => fields.iter().for_each(|(_, one)| one.slots(found)),
        }
    }

    /// The document with its values.
    pub(crate) fn render(&self, values: &dyn Values) -> Value {
        match self {
            Self::Constant(value) => value.clone(),
            Self::Whole(slot) => values.value(*slot),
            Self::Text(template) => template.render(values, Place::Text).into_owned().into(),
            Self::List(list) => list.iter().map(|one| one.render(values)).collect(),
            Self::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, one)| (name.clone(), one.render(values)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Some2;

    impl Names for Some2 {
        fn slot(&self, name: &str) -> Result<Slot, String> {
            match name {
                "id" => Ok(Slot::Captured(0)),
                "n" => Ok(Slot::Captured(1)),
                _ => Err(format!("{name:?} has no value")),
            }
        }
    }

    impl Values for Some2 {
        fn value(&self, slot: Slot) -> Value {
            match slot {
                Slot::Captured(0) => json!("a/b c"),
                _ => json!(7),
            }
        }
    }

    #[test]
    fn variables_get_their_values() {
        let told = |text: &str, place| {
            let template = Template::parse(text, &Some2).unwrap();
            template.render(&Some2, place).into_owned()
        };
        assert_eq!(told("/x/{{id}}/{{ n }}", Place::Path), "/x/a%2Fb%20c/7");
        assert_eq!(told("/x/{{id|raw}}", Place::Path), "/x/a/b c");
        assert_eq!(told("{{n | pad 3}}{{id}}", Place::Text), "007a/b c");
        assert_eq!(told("no { variable }", Place::Path), "no { variable }");
    }

    #[test]
    fn a_number_stays_a_number_in_json() {
        let wanted = json!({"id": "{{id}}", "list": ["{{n}}", "n{{n}}", 3, null]});
        let json = Json::parse(&wanted, &Some2).unwrap();
        assert_eq!(
            json.render(&Some2),
            json!({"id": "a/b c", "list": [7, "n7", 3, null]})
        );
    }

    #[test]
    fn wrong_templates_are_refused() {
        for (text, rule) in [
            ("/{{id", "does not close"),
            ("/{{other}}", "\"other\" has no value"),
            ("/{{id|upper}}", "known are raw and pad N"),
            ("/{{n|pad 65}}", "from 1 to 64"),
        ] {
            let why = Template::parse(text, &Some2).unwrap_err();
            assert!(why.contains(rule), "{text}: {why}");
        }
    }
}
