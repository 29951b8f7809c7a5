//! Filters of clients: which events pass, and how often a subscription tells its place.

use gesta_core::{Filter, RecordedEvent};
use gesta_pattern::{Of, Passes, Pattern, PatternText};

use crate::Result;
use crate::messages::streams::read_req::options::FilterOptions;
use crate::messages::streams::read_req::options::filter_options::{
    Expression, Filter as Subject, Window,
};
use crate::refusal::Refusal;

/// Number of events in a window unless the client gives another number.
const WINDOW: u64 = 32;
/// Beginning of the names of indexes. Newer servers take such a name, if it is the only prefix, for the index.
const INDEX_PREFIX: &str = "$idx-";

/// A filter that a client has given.
#[derive(Debug)]
pub struct ClientFilter {
    pattern: Pattern,
    /// Number of events between two checkpoints.
    interval: u64,
}

impl ClientFilter {
    /// Reads a filter.
    ///
    /// # Errors
    /// `InvalidArgument` if the filter has no window or no expression, or an expression that cannot be used; `NotFound`
    /// if it names an index.
    pub fn read(options: FilterOptions) -> Result<Self> {
        let window = match options.window {
            Some(Window::Max(0)) => return Err(Refusal::invalid("the window must be at least 1")),
            Some(Window::Max(max)) => u64::from(max),
            Some(Window::Count(_)) => WINDOW,
            None => return Err(Refusal::invalid("the window of the filter must be given")),
        };
        let (of, Expression { regex, prefix }) = match options.filter {
            Some(Subject::StreamIdentifier(expression)) => (Of::Stream, expression),
            Some(Subject::EventType(expression)) => (Of::Type, expression),
            None => {
                return Err(Refusal::invalid(
                    "the filter must be of stream names or of types",
                ));
            }
        };
        let index = match (of, prefix.as_slice()) {
            (Of::Stream, [name]) if regex.is_empty() && name.starts_with(INDEX_PREFIX) => {
                Some(name.clone())
            }
            _ => None,
        };
        // What is too long is refused as that.
        let pattern = pattern(of, regex, prefix)?;
        if let Some(name) = index {
            return Err(Refusal::no_index(&name));
        }
        let interval = u64::from(options.checkpoint_interval_multiplier).saturating_mul(window);
        Ok(Self { pattern, interval })
    }

    /// Returns how many events a subscription reads between two checkpoints.
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

    /// Returns the part of the filter that the store can apply. Every event that passes the whole filter passes that
    /// part.
    #[must_use]
    pub fn in_store(&self) -> Filter {
        self.pattern.in_store()
    }

    /// Returns true if an event passes the filter.
    ///
    /// # Errors
    /// `InvalidArgument` if the expression takes too many steps.
    pub fn matches(&self, event: &RecordedEvent) -> Result<bool> {
        Ok(self.pattern.matches(event)?)
    }
}

/// Makes the pattern of a filter. If there is an expression, the prefixes do not count.
///
/// # Errors
/// `InvalidArgument` if the pattern cannot be used.
pub fn pattern(of: Of, regex: String, prefix: Vec<String>) -> Result<Pattern> {
    let passes = if regex.is_empty() {
        Passes::Prefixes(prefix)
    } else {
        Passes::Expression(regex)
    };
    Ok(Pattern::new(PatternText { of, passes })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;
    use crate::messages::shared::Empty;
    use crate::refusal::Code;

    #[test]
    fn a_filter_has_a_pattern_and_a_pace() {
        let expression = |regex: &str, prefix: &[&str]| Expression {
            regex: regex.into(),
            prefix: prefix.iter().map(|p| (*p).to_owned()).collect(),
        };
        let read = |expression, window, multiplier| {
            ClientFilter::read(FilterOptions {
                filter: Some(Subject::EventType(expression)),
                window,
                checkpoint_interval_multiplier: multiplier,
            })
        };
        let count = Some(Window::Count(Empty {}));
        let filter = read(expression("^add", &["x"]), count, 2).expect("good");
        assert!(filter.matches(&event("added")).expect("few steps"));
        assert!(!filter.matches(&event("x")).expect("few steps"));
        assert_eq!(filter.checkpoint_interval().expect("given"), 64);
        let none = read(expression("", &["x"]), count, 0).expect("good");
        assert!(none.checkpoint_interval().is_err());
        let by_name = |prefix: &[&str]| {
            ClientFilter::read(FilterOptions {
                filter: Some(Subject::StreamIdentifier(expression("", prefix))),
                window: count,
                checkpoint_interval_multiplier: 1,
            })
        };
        let index = by_name(&["$idx-all"]).expect_err("no such index");
        assert_eq!(index.exception_name(), Some("index-not-found"));
        assert!(by_name(&["$idx-all", "cart-"]).is_ok());
        let long = format!("$idx-{}", "a".repeat(100_000));
        let too_long = by_name(&[&long]).expect_err("too long for a filter");
        assert_eq!(too_long.code, Code::InvalidArgument);
        assert_eq!(too_long.exception_name(), None);
        for (expression, window) in [
            (expression("", &[]), count),
            (expression("(", &[]), count),
            (expression("a", &[]), None),
            (expression("a", &[]), Some(Window::Max(0))),
        ] {
            assert!(read(expression, window, 1).is_err());
        }
    }
}
