//! Filters of clients: which events pass, and how often a subscription tells its place.

use gesta_pattern::{Of, Passes, PatternText};

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

/// A filter that a client has given. Its pattern is not compiled yet.
#[derive(Debug)]
pub struct ClientFilter {
    pattern: PatternText,
    /// The name of the index that the filter may mean.
    index: Option<String>,
    /// Number of events between two checkpoints.
    interval: u64,
}

impl ClientFilter {
    /// Reads a filter.
    ///
    /// # Errors
    /// `InvalidArgument` if the filter has no window, or does not say what it is compared with.
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
        let interval = u64::from(options.checkpoint_interval_multiplier).saturating_mul(window);
        Ok(Self {
            pattern: pattern(of, regex, prefix),
            index,
            interval,
        })
    }

    /// Returns the pattern as text.
    #[must_use]
    pub fn pattern(&self) -> &PatternText {
        &self.pattern
    }

    /// Refuses a filter that means an index. To be called after the pattern was compiled: what is too long is refused
    /// as that.
    ///
    /// # Errors
    /// `NotFound` if the filter names an index.
    pub fn refuse_index(&self) -> Result<()> {
        match &self.index {
            Some(name) => Err(Refusal::no_index(name)),
            None => Ok(()),
        }
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
}

/// Makes the pattern of a filter. If there is an expression, the prefixes do not count.
#[must_use]
pub fn pattern(of: Of, regex: String, prefix: Vec<String>) -> PatternText {
    let passes = if regex.is_empty() {
        Passes::Prefixes(prefix)
    } else {
        Passes::Expression(regex)
    };
    PatternText { of, passes }
}

#[cfg(test)]
mod tests {
    use gesta_pattern::Pattern;

    use super::*;
    use crate::event::tests::event;
    use crate::messages::shared::Empty;

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
        let pattern = Pattern::new(filter.pattern().clone()).expect("good");
        assert!(pattern.matches(&event("added")).expect("few steps"));
        assert!(!pattern.matches(&event("x")).expect("few steps"));
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
        let index = by_name(&["$idx-all"]).expect("a filter").refuse_index();
        let index = index.expect_err("no such index");
        assert_eq!(index.exception_name(), Some("index-not-found"));
        let two = by_name(&["$idx-all", "cart-"]).expect("a filter");
        assert!(two.refuse_index().is_ok());
        for window in [None, Some(Window::Max(0))] {
            assert!(read(expression("a", &[]), window, 1).is_err());
        }
    }
}
