//! Looking into a line without believing anything about it: what is missing or of another type is simply not there.

use serde_json::Value;

/// A place in a line, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a>(Option<&'a Value>);

impl<'a> Look<'a> {
    /// The whole of it.
    pub(super) fn at(value: &'a Value) -> Self {
        Self(Some(value))
    }

    /// A member, by names separated by dots.
    pub(super) fn get(self, path: &str) -> Self {
        let step = |value: Option<&'a Value>, name: &str| value?.get(name);
        Self(path.split('.').fold(self.0, step))
    }

    /// A number.
    pub(super) fn number(self) -> Option<f64> {
        self.0?.as_f64().filter(|number| number.is_finite())
    }

    /// A number at a path; 0 without one.
    pub(super) fn number_or_0(self, path: &str) -> f64 {
        self.get(path).number().unwrap_or(0.0)
    }

    /// A whole number.
    pub(super) fn whole(self) -> Option<u64> {
        self.0?.as_u64()
    }

    /// A text.
    pub(super) fn text(self) -> Option<&'a str> {
        self.0?.as_str()
    }

    /// A text at a path; empty without one.
    pub(super) fn text_or_empty(self, path: &str) -> &'a str {
        self.get(path).text().unwrap_or_default()
    }

    /// A truth value.
    pub(super) fn flag(self) -> Option<bool> {
        self.0?.as_bool()
    }

    /// The items of a list; none of anything else.
    pub(super) fn items(self) -> impl DoubleEndedIterator<Item = Look<'a>> + Clone {
        let items = self.0.and_then(Value::as_array);
        items.into_iter().flatten().map(Look::at)
    }

    /// The members of an object; none of anything else.
    pub(super) fn members(self) -> impl Iterator<Item = (&'a str, Look<'a>)> + Clone {
        let members = self.0.and_then(Value::as_object);
        let members = members.into_iter().flatten();
        members.map(|(name, value)| (name.as_str(), Look::at(value)))
    }

    /// Numbers of a list.
    pub(super) fn numbers(self) -> Vec<f64> {
        self.items().filter_map(Look::number).collect()
    }

    /// The sum of the members that are numbers, as of errors by cause.
    pub(super) fn sum(self) -> f64 {
        self.members().filter_map(|(_, look)| look.number()).sum()
    }

    /// True if it is there and not null.
    pub(super) fn is_there(self) -> bool {
        self.0.is_some_and(|value| !value.is_null())
    }

    /// A value as a person would write it.
    pub(super) fn told(self) -> String {
        match self.0 {
            None | Some(Value::Null) => "–".into(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }

    /// Calls `see` with every object below, and with this one.
    pub(super) fn each_object(self, see: &mut impl FnMut(Look<'a>)) {
        match self.0 {
            Some(Value::Object(members)) => {
                see(self);
                for value in members.values() {
                    Look::at(value).each_object(see);
                }
            }
            Some(Value::Array(items)) => {
                for value in items {
                    Look::at(value).each_object(see);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_there() {
        let value = serde_json::json!({"a": {"b": [1, "x", 2.5]}, "t": "text", "n": null});
        let look = Look::at(&value);
        assert_eq!(look.get("a.b").numbers(), [1.0, 2.5]);
        assert_eq!(look.get("a.b.c.d").number(), None);
        assert_eq!(look.get("t").number(), None);
        assert_eq!(look.get("t").items().count(), 0);
        assert_eq!(look.get("a.b").members().count(), 0);
        assert!(!look.get("n").is_there() && !look.get("z").is_there());
        assert_eq!(look.number_or_0("t"), 0.0);
        let mut objects = 0;
        look.each_object(&mut |_| objects += 1);
        assert_eq!(objects, 2);
    }
}
