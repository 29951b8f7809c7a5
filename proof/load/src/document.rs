//! Reads the values of a TOML document one by one, and says of what is wrong where it stands and which rule it breaks.
//!
//! Why not serde: it tells the line of a wrong type, but not of a value that breaks a rule of ours, and of a choice
//! between several shapes it tells neither.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 if it is the whole file, as of one that cannot be read.
    pub line: usize,
    /// What is wrong, with the value and the rule.
    pub rule: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.rule),
            line => write!(f, "{}:{line}: {}", self.file, self.rule),
        }
    }
}

impl std::error::Error for Refusal {}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

/// A file with its text.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) file: String,
    pub(crate) text: &'a str,
}

impl<'a> Source<'a> {
    pub(crate) fn of(path: &Path, text: &'a str) -> Self {
        let file = path.display().to_string();
        Self { file, text }
    }

    /// The whole document.
    pub(crate) fn parse(&'a self) -> Result<Spanned<DeTable<'a>>> {
        DeTable::parse(self.text).map_err(|error| {
            let mut rule = error.message().replace('\n', ", ");
            let span = error.span().unwrap_or_default();
            if rule == "duplicate key" {
                let key = self.text.get(span.clone()).unwrap_or_default().trim();
                rule = format!("{rule} {key}").trim_end().to_owned();
            }
            self.refuse(&span, rule)
        })
    }

    /// What is wrong at a place.
    pub(crate) fn refuse(&self, span: &Range<usize>, rule: impl Into<String>) -> Refusal {
        let before = self.text.as_bytes().iter().take(span.start);
        Refusal {
            file: self.file.clone(),
            line: 1 + before.filter(|byte| **byte == b'\n').count(),
            rule: rule.into(),
        }
    }
}

/// A value with its name and place.
#[derive(Debug, Clone)]
pub(crate) struct Item<'a> {
    source: &'a Source<'a>,
    /// As a person would name it: `check.status`.
    name: String,
    span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Item<'a> {
    fn of(source: &'a Source<'a>, name: String, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            source,
            name,
            span: value.span(),
            value: value.get_ref(),
        }
    }

    /// Refuses it by a rule, which follows its name.
    pub(crate) fn refuse(&self, rule: impl fmt::Display) -> Refusal {
        self.source
            .refuse(&self.span, format!("{} {rule}", self.name))
    }

    /// Makes a refusal of a sentence that names the value itself.
    pub(crate) fn wrong(&self, sentence: impl fmt::Display) -> Refusal {
        self.source
            .refuse(&self.span, format!("{}: {sentence}", self.name))
    }

    fn kind(&self) -> &'static str {
        match self.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        }
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        Err(self.refuse(format!("must be {what}, not {}", self.kind())))
    }

    pub(crate) fn is_text(&self) -> bool {
        self.value.is_str()
    }

    pub(crate) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(crate) fn is_list(&self) -> bool {
        self.value.is_array()
    }

    pub(crate) fn text(&self) -> Result<&'a str> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => self.expected("a text"),
        }
    }

    /// A whole number within bounds.
    pub(crate) fn whole(&self, least: i64, most: i64) -> Result<i64> {
        let DeValue::Integer(number) = self.value else {
            return self.expected("a whole number");
        };
        let found = i64::from_str_radix(number.as_str(), number.radix()).ok();
        found
            .filter(|found| (least..=most).contains(found))
            .ok_or_else(|| self.refuse(format!("must be from {least} to {most}, not {number}")))
    }

    pub(crate) fn flag(&self) -> Result<bool> {
        match self.value {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => self.expected("true or false"),
        }
    }

    /// The values of a list.
    pub(crate) fn list(&self) -> Result<Vec<Item<'a>>> {
        let DeValue::Array(list) = self.value else {
            return self.expected("a list");
        };
        let list: &DeArray<'a> = list;
        let named = |(at, value)| Item::of(self.source, format!("{}[{at}]", self.name), value);
        Ok(list.iter().enumerate().map(named).collect())
    }

    /// The value alone, or the values of a list.
    pub(crate) fn one_or_list(&self) -> Result<Vec<Item<'a>>> {
        match self.is_list() {
            true => self.list(),
            false => Ok(vec![self.clone()]),
        }
    }

    /// The keys of a table of any names, with their values, in the order of the file.
    pub(crate) fn entries(&self) -> Result<Vec<(&'a str, Item<'a>)>> {
        let DeValue::Table(table) = self.value else {
            return self.expected("a table");
        };
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let named = entries.into_iter().map(|(key, value)| {
            let name: &'a str = key.get_ref();
            (
                name,
                Item::of(self.source, format!("{}.{name}", self.name), value),
            )
        });
        Ok(named.collect())
    }

    /// The fields of a table of known names.
    pub(crate) fn fields(&self) -> Result<Fields<'a>> {
        match self.value {
            DeValue::Table(table) => Ok(Fields {
                source: self.source,
                name: self.name.clone(),
                span: self.span.clone(),
                table,
                known: Vec::new(),
            }),
            _ => self.expected("a table"),
        }
    }

    /// The value as JSON has it.
    pub(crate) fn json(&self) -> Result<Value> {
        Ok(match self.value {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(_) => self.whole(i64::MIN, i64::MAX)?.into(),
            DeValue::Float(number) => {
                let number: f64 = number.as_str().parse().unwrap_or(f64::NAN);
                let number = serde_json::Number::from_f64(number);
                Value::Number(number.ok_or_else(|| self.refuse("must be a number that JSON has"))?)
            }
            DeValue::Boolean(flag) => (*flag).into(),
            DeValue::Datetime(_) => return self.expected("a value that JSON has"),
            DeValue::Array(_) => {
                let list = self.list()?;
                Value::Array(list.iter().map(Item::json).collect::<Result<_>>()?)
            }
            DeValue::Table(_) => {
                let entries = self.entries()?.into_iter();
                let entries = entries.map(|(name, item)| Ok((name.to_owned(), item.json()?)));
                Value::Object(entries.collect::<Result<_>>()?)
            }
        })
    }
}

/// The fields of a table, taken one by one; those that nobody takes are refused in the end.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    source: &'a Source<'a>,
    name: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Those of the document.
    pub(crate) fn of_document(source: &'a Source<'a>, document: &'a Spanned<DeTable<'a>>) -> Self {
        Self {
            source,
            name: String::new(),
            span: 0..0,
            table: document.get_ref(),
            known: Vec::new(),
        }
    }

    fn full(&self, key: &str) -> String {
        match self.name.is_empty() {
            true => key.to_owned(),
            false => format!("{}.{key}", self.name),
        }
    }

    /// A field that may be missing.
    pub(crate) fn optional(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.known.push(key);
        let value = self.table.get(key)?;
        Some(Item::of(self.source, self.full(key), value))
    }

    /// A field that must be there.
    pub(crate) fn required(&mut self, key: &'static str) -> Result<Item<'a>> {
        let missing = self.refuse(format!("{:?} is missing", self.full(key)));
        self.optional(key).ok_or(missing)
    }

    /// Refuses the table by a sentence.
    pub(crate) fn refuse(&self, sentence: impl Into<String>) -> Refusal {
        self.source.refuse(&self.span, sentence)
    }

    /// Refuses fields that were not asked for.
    pub(crate) fn end(&self) -> Result<()> {
        let unknown = self
            .table
            .keys()
            .filter(|key| !self.known.iter().any(|known| known == key.get_ref()));
        let Some(first) = unknown.min_by_key(|key| key.span().start) else {
            return Ok(());
        };
        let (name, mut known) = (self.full(first.get_ref()), self.known.clone());
        known.sort_unstable();
        let rule = format!("{name:?} is not known here; known are {}", known.join(", "));
        Err(self.source.refuse(&first.span(), rule))
    }
}
