//! Filters of clients: regular expressions and prefixes of stream names or types.
//!
//! Why an engine that can go back: clients look ahead to leave events out, also in their default filters. Its steps are
//! bounded, so that no expression holds the server up.

use fancy_regex::{Regex, RegexBuilder};
use gesta_core::{Filter, Query, RecordedEvent, limits};

use crate::Result;
use crate::messages::streams::read_req::options::FilterOptions;
use crate::messages::streams::read_req::options::filter_options::{
    Expression, Filter as Subject, Window,
};
use crate::refusal::Refusal;

/// Most bytes of an expression.
const EXPRESSION_BYTES_MAX: usize = 64 * 1_024;
/// Most prefixes of a filter.
const PREFIXES_MAX: usize = 10_000;
/// Most steps back in one event.
const STEPS_MAX: usize = 20_000;
/// Most bytes that a part of an expression may take when it is compiled.
const COMPILED_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// Events of a window unless the client names another number.
const WINDOW: u64 = 32;

/// A filter of a client.
#[derive(Debug)]
pub struct ClientFilter {
    of: Of,
    rule: Rule,
    /// Events between two checkpoints.
    interval: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Stream,
    Type,
}

#[derive(Debug)]
enum Rule {
    Expression(Regex),
    /// All but what begins like this: `^(?!expression)`, which is quicker without looking ahead.
    NotAtBeginning(Regex),
    Prefixes(Vec<String>),
}

impl ClientFilter {
    /// Reads a filter.
    ///
    /// # Errors
    /// `InvalidArgument` if it has no expression, or one that cannot be compiled or is too large.
    pub fn read(options: FilterOptions) -> Result<Self> {
        let window = match options.window {
            Some(Window::Max(0)) => return Err(Refusal::invalid("the window must be at least 1")),
            Some(Window::Max(max)) => u64::from(max),
            Some(Window::Count(_)) => WINDOW,
            None => return Err(Refusal::invalid("the window of the filter must be given")),
        };
        let (of, expression) = match options.filter {
            Some(Subject::StreamIdentifier(expression)) => (Of::Stream, expression),
            Some(Subject::EventType(expression)) => (Of::Type, expression),
            None => {
                return Err(Refusal::invalid(
                    "the filter must be of stream names or of types",
                ));
            }
        };
        let interval = u64::from(options.checkpoint_interval_multiplier).saturating_mul(window);
        Ok(Self {
            of,
            rule: Rule::read(expression)?,
            interval,
        })
    }

    /// Events that a subscription looks at between two checkpoints.
    ///
    /// # Errors
    /// `InvalidArgument` if the client asked for checkpoints after no events at all.
    pub fn checkpoint_interval(&self) -> Result<u64> {
        if self.interval == 0 {
            return Err(Refusal::invalid(
                "checkpointIntervalMultiplier must be at least 1",
            ));
        }
        Ok(self.interval)
    }

    /// What of the filter the store can do. Every event that passes this filter passes that one.
    #[must_use]
    pub fn in_store(&self) -> Filter {
        match (&self.of, &self.rule) {
            (Of::Stream, Rule::Prefixes(prefixes))
                if prefixes.len() <= limits::FILTER_VALUES_MAX
                    && prefixes
                        .iter()
                        .all(|p| !p.is_empty() && p.len() <= limits::STREAM_NAME_BYTES_MAX) =>
            {
                Filter::query(Query {
                    stream_prefixes: prefixes.clone(),
                    ..Query::default()
                })
            }
            _ => Filter::ALL,
        }
    }

    /// Whether an event passes.
    ///
    /// # Errors
    /// `InvalidArgument` if the expression takes too many steps.
    pub fn matches(&self, event: &RecordedEvent) -> Result<bool> {
        let text = match self.of {
            Of::Stream => event.stream.as_str(),
            Of::Type => event.event_type.as_str(),
        };
        match &self.rule {
            Rule::Prefixes(prefixes) => Ok(prefixes.iter().any(|prefix| text.starts_with(prefix))),
            Rule::Expression(regex) => found(regex, text),
            Rule::NotAtBeginning(regex) => Ok(!found(regex, text)?),
        }
    }
}

fn found(regex: &Regex, text: &str) -> Result<bool> {
    regex.is_match(text).map_err(|error| {
        Refusal::invalid(format!(
            "the expression of the filter takes too many steps: {error}"
        ))
    })
}

impl Rule {
    fn read(expression: Expression) -> Result<Self> {
        let Expression { regex, prefix } = expression;
        if regex.is_empty() {
            if prefix.is_empty() {
                return Err(Refusal::invalid(
                    "the filter must have an expression or prefixes",
                ));
            }
            let bytes: usize = prefix.iter().map(String::len).sum();
            if prefix.len() > PREFIXES_MAX || bytes > EXPRESSION_BYTES_MAX {
                return Err(Refusal::invalid(format!(
                    "the filter must have at most {PREFIXES_MAX} prefixes and {EXPRESSION_BYTES_MAX} bytes, found {} and {bytes}",
                    prefix.len()
                )));
            }
            return Ok(Rule::Prefixes(prefix));
        }
        if regex.len() > EXPRESSION_BYTES_MAX {
            return Err(Refusal::invalid(format!(
                "the expression of the filter must be at most {EXPRESSION_BYTES_MAX} bytes, found {}",
                regex.len()
            )));
        }
        let whole = compile(&regex)?;
        match without_look_ahead(&regex).map(|inner| compile(&inner)) {
            Some(Ok(inner)) => Ok(Rule::NotAtBeginning(inner)),
            _ => Ok(Rule::Expression(whole)),
        }
    }
}

fn compile(expression: &str) -> Result<Regex> {
    RegexBuilder::new(expression)
        .backtrack_limit(STEPS_MAX)
        .delegate_size_limit(COMPILED_BYTES_MAX)
        .build()
        .map_err(|error| {
            Refusal::invalid(format!(
                "the expression {} of the filter cannot be used: {error}",
                crate::ids::shown(expression)
            ))
        })
}

/// What must not stand at the beginning, if that is all that an expression says: `^(?!…)`.
fn without_look_ahead(expression: &str) -> Option<String> {
    let inner = expression.strip_prefix("^(?!")?.strip_suffix(')')?;
    // A parenthesis that closes the look-ahead early, or one within a class, is left to the engine.
    let mut depth = 0_u32;
    let mut escaped = false;
    for c in inner.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => return None,
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    (depth == 0 && !escaped).then(|| format!("^(?:{inner})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;
    use crate::messages::shared::Empty;
    use proptest::prelude::*;

    fn filter(regex: &str, prefix: &[&str]) -> Result<ClientFilter> {
        ClientFilter::read(FilterOptions {
            filter: Some(Subject::EventType(Expression {
                regex: regex.into(),
                prefix: prefix.iter().map(|p| (*p).to_owned()).collect(),
            })),
            window: Some(Window::Count(Empty {})),
            checkpoint_interval_multiplier: 2,
        })
    }

    fn passes(regex: &str, event_type: &str) -> bool {
        let filter = filter(regex, &[]).expect("good");
        filter.matches(&event(event_type)).expect("few steps")
    }

    #[test]
    fn the_forms_that_clients_make_are_understood() {
        // Everything but system events, in two forms, and a list without a group.
        for (regex, passing, not) in [
            (r"^[^\$].*", "added", "$metadata"),
            (r"^(?!(\$.+$))", "added", "$metadata"),
            (r"^(?!(added$|\$.+$))", "added-late", "added"),
            (r"^added|removed$", "not-removed", "not-added"),
        ] {
            assert!(passes(regex, passing), "{regex}");
            assert!(!passes(regex, not), "{regex}");
        }
    }

    #[test]
    fn prefixes_are_compared_letter_by_letter() {
        let filter = filter("", &["add", "Rem"]).expect("good");
        for (event_type, passing) in [("added", true), ("Removed", true), ("removed", false)] {
            assert_eq!(
                filter.matches(&event(event_type)).expect("no steps"),
                passing
            );
        }
        assert_eq!(filter.checkpoint_interval().expect("given"), 64);
    }

    #[test]
    fn an_expression_that_takes_too_many_steps_is_refused() {
        let filter = filter(r"^(a|a)*(?!x)\1b$", &[]).expect("good");
        let error = filter.matches(&event(&"a".repeat(60)));
        assert_eq!(
            error.expect_err("too many").code,
            crate::refusal::Code::InvalidArgument
        );
    }

    #[test]
    fn filters_that_cannot_be_used_are_refused() {
        assert!(filter("(", &[]).is_err());
        assert!(filter("", &[]).is_err());
        assert!(filter(&"x".repeat(EXPRESSION_BYTES_MAX + 1), &[]).is_err());
        assert!(filter("(a{1000}){1000}", &[]).is_err());
    }

    proptest! {
        /// Goal: the quicker form of `^(?!…)` passes what the form itself passes.
        #[test]
        fn the_quick_form_is_the_same_filter(
            inner in r"(\(|\)|\||\\\$|\$|a|b|\.\*|\.\+|\?)(\(|\)|\||\\\$|\$|a|b|\.\*){0,6}",
            text in "[ab$]{1,6}",
        ) {
            let expression = format!("^(?!{inner})");
            if let Ok(whole) = compile(&expression)
                && let Some(Ok(quick)) = without_look_ahead(&expression).map(|inner| compile(&inner))
            {
                let quick = !found(&quick, &text).expect("few steps");
                prop_assert_eq!(quick, found(&whole, &text).expect("few steps"), "{}", expression);
            }
        }

        #[test]
        fn no_expression_panics(regex in ".{0,40}", text in "[ -~]{1,40}") {
            if let Ok(filter) = filter(&regex, &[]) {
                let _ = filter.matches(&event(&text));
            }
        }
    }
}
