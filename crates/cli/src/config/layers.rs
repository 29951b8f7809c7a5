//! Reads the layers of a configuration as tables of one form, and lays one over the other.
//!
//! Why not a crate for layered configuration: such a crate would replace the eleven lines of `merge`. What takes room
//! here is what those crates do not do: they take `_` either for the end of a section or for a part of a key, but names
//! of variables here have both; and errors name the file with its line, or the variable, and never show a value.

use std::path::Path;

use serde::Serialize;
use toml::{Table, Value};

use super::Config;
use crate::exit::{Failure, Outcome};

/// The beginning of the names of environment variables.
const PREFIX: &str = "GESTA_";
/// Variables that are read elsewhere than here.
const OTHERS: [&str; 11] = [
    "GESTA_CONFIG",
    "GESTA_STORE_FILE",
    "GESTA_CA_FILE",
    "GESTA_TOKEN",
    "GESTA_TOKEN_FILE",
    "GESTA_USER",
    "GESTA_PASSWORD_FILE",
    "GESTA_NEW_PASSWORD",
    "GESTA_ADMIN_PASSWORD",
    "GESTA_ADMIN_PASSWORD_FILE",
    // Of the lab, which is often run in the same shell.
    "GESTA_BIN",
];
/// How much of a value is shown in an error, in bytes.
const SHOWN_BYTES_MAX: usize = 60;
/// How many letters of a mistyped name are wrong, missing or too much, at most.
const MISTYPED_LETTERS_MAX: usize = 2;

/// Reads and checks a file by itself, so that an error can name it and the line.
pub(super) fn read_file(path: &Path, text: &str) -> Outcome<Table> {
    let refuse_line = |error: toml::de::Error| {
        let before = error
            .span()
            .and_then(|span| text.get(..span.start))
            .unwrap_or("");
        // The error does not show the line itself, which may hold a password.
        Failure::usage(format!(
            "{} line {}: {}",
            path.display(),
            before.matches('\n').count() + 1,
            error.message().replace('\n', ", ")
        ))
    };
    toml::from_str::<Config>(text).map_err(refuse_line)?;
    toml::from_str::<Table>(text).map_err(refuse_line)
}

/// Reads each variable that stands for a key, as a value of the type that the default of the key has.
pub(super) fn read_environment(variables: &[(String, String)]) -> Outcome<(Table, Vec<String>)> {
    let defaults = table_of(&Config::default())?;
    let known = leaves(&defaults);
    let mut sum = Table::new();
    let mut warnings = Vec::new();
    for (variable, text) in variables {
        let Some((key, default)) = known.iter().find(|(key, _)| variable_of(key) == *variable)
        else {
            if is_mistyped(variable, &defaults) {
                warnings.push(ignored(variable));
            }
            continue;
        };
        let value = match default {
            Value::Integer(_) => text
                .parse()
                .map(Value::Integer)
                .map_err(|_| "must be a whole number"),
            Value::Boolean(_) => text
                .parse()
                .map(Value::Boolean)
                .map_err(|_| "must be true or false"),
            _ => Ok(Value::String(text.clone())),
        };
        // A key of numbers or of true and false holds no secret, so that its value can be shown.
        let value = value.map_err(|error| {
            Failure::usage(format!(
                "environment variable {variable}: {error}, found {:?}",
                gesta_wire::shortened(text, SHOWN_BYTES_MAX)
            ))
        })?;
        let mut single = Table::new();
        match key.split_once('.') {
            None => single.insert(key.clone(), value),
            Some((section, key)) => {
                let section_table: Table = [(key.to_owned(), value)].into_iter().collect();
                single.insert(section.to_owned(), section_table.into())
            }
        };
        single
            .clone()
            .try_into::<Config>()
            .map_err(|error| refuse(&format!("environment variable {variable}"), &error))?;
        merge(&mut sum, single);
    }
    Ok((sum, warnings))
}

/// Warns of variables whose names are mistyped, for commands that do not read the configuration of a server.
pub(crate) fn mistyped(variables: impl Iterator<Item = String>) -> Outcome<Vec<String>> {
    let defaults = table_of(&Config::default())?;
    let known = leaves(&defaults);
    let is_known = |variable: &String| known.iter().any(|(key, _)| variable_of(key) == *variable);
    Ok(variables
        .filter(|variable| !is_known(variable) && is_mistyped(variable, &defaults))
        .map(|variable| ignored(&variable))
        .collect())
}

fn ignored(variable: &str) -> String {
    format!("environment variable {variable} has no meaning and is ignored: is it mistyped?")
}

/// Tells whether a variable has the name of a section of the configuration, or is some letters away from a key outside
/// of the sections or from another variable that is read. Other variables, such as those that an orchestrator sets, are
/// left alone.
fn is_mistyped(variable: &str, defaults: &Table) -> bool {
    let is_near = |name: &str| strsim::osa_distance(name, variable) <= MISTYPED_LETTERS_MAX;
    if !variable.starts_with(PREFIX) || OTHERS.contains(&variable) {
        return false;
    }
    // A password comes from a file.
    variable == "GESTA_PASSWORD"
        || OTHERS.iter().any(|name| is_near(name))
        || defaults.iter().any(|(name, value)| {
            let name = variable_of(name);
            match value {
                Value::Table(_) => variable.starts_with(&format!("{name}_")),
                _ => is_near(&name),
            }
        })
}

/// Returns the variable that stands for a key.
fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Lists all keys as `section.key`, with their values.
pub(super) fn leaves(table: &Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (name, value) in table {
        match value {
            Value::Table(section) => {
                found.extend(
                    section
                        .iter()
                        .map(|(key, value)| (format!("{name}.{key}"), value.clone())),
                );
            }
            value => found.push((name.clone(), value.clone())),
        }
    }
    found
}

pub(super) fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

pub(super) fn table_of(layer: &impl Serialize) -> Outcome<Table> {
    Table::try_from(layer).map_err(|error| Failure::other(format!("configuration: {error}")))
}

pub(super) fn refuse(what: &str, error: &toml::de::Error) -> Failure {
    Failure::usage(format!("{what}: {}", error.message().replace('\n', ", ")))
}
