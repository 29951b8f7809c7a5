//! Patterns of stream names and event types: regular expressions and prefixes.
//!
//! A pattern is compared with an event as these clients are shown it: Gesta notes deletes and tombstones in events of
//! its own types, which they know by others ([`shown_as`]).
//! Why an engine with look-ahead: clients look ahead to leave events out, also in their default filters, and engines in
//! linear time cannot.
//! Invariants: whatever the text says, all compiled parts of an expression together have at most
//! [`COMPILED_BYTES_MAX`], and comparing it with an event takes at most [`STEPS_MAX`] steps back. How: the text is
//! short, and the engine gets a bound on the number of parts and one on the size of each, whose product is the bound on
//! the sum. (Bounds on each part alone once let a text of 8 KB take gigabytes.)
//! Not here: on which thread patterns are compiled and compared, and how many at once (`gesta_server`); the filters of
//! the store itself, which a database can carry out (`gesta_core::Filter`).

use fancy_regex::{Regex, RegexBuilder};
use gesta_core::{
    CATEGORY_PREFIX, Error, EventType, Filter, Query, RecordedEvent, Result,
    begins_virtual_streams, limits,
};
use serde::{Deserialize, Serialize};

/// Largest size of an expression, in bytes. Those that clients make by themselves have fewer than a hundred.
pub const EXPRESSION_BYTES_MAX: usize = 4 * 1_024;
/// Largest size of all prefixes of a pattern together, in bytes.
pub const PREFIXES_BYTES_MAX: usize = 64 * 1_024;
/// Largest number of prefixes of a pattern.
pub const PREFIXES_MAX: usize = 10_000;
/// Largest number of steps that the engine goes back for one event.
pub const STEPS_MAX: usize = 20_000;
/// Largest size of all compiled parts of an expression together, in bytes.
pub const COMPILED_BYTES_MAX: usize = 1_024 * 1_024;
/// Largest size of the parts of an expression that is [quick](Pattern::is_quick), in bytes.
const QUICK_BYTES_MAX: usize = 32 * 1_024;
/// Largest memory for the states that a part has met while it was compared, in bytes.
const STATES_BYTES_MAX: usize = 64 * 1_024;

/// Bounds on what an expression is compiled to.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Largest number of steps of the program that goes back. Each step holds one part at most. An expression that an
    /// engine in linear time can carry out needs no such program, and is one part.
    steps_max: usize,
    /// Largest size of a part, in bytes.
    part_bytes_max: usize,
}

/// The sizes that are tried, one after the other: few large parts, or many small ones.
const SIZES: [Size; 5] = [
    Size::new(0, QUICK_BYTES_MAX),
    Size::new(0, COMPILED_BYTES_MAX),
    Size::new(8, COMPILED_BYTES_MAX / 8),
    Size::new(16, COMPILED_BYTES_MAX / 16),
    Size::new(64, COMPILED_BYTES_MAX / 64),
];

impl Size {
    const fn new(steps_max: usize, part_bytes_max: usize) -> Self {
        Self {
            steps_max,
            part_bytes_max,
        }
    }

    fn is_quick(self) -> bool {
        self.steps_max == 0 && self.part_bytes_max <= QUICK_BYTES_MAX
    }

    /// Returns the most memory that an expression of this size holds, in bytes.
    fn memory_bytes(self) -> usize {
        self.steps_max.max(1) * (self.part_bytes_max + STATES_BYTES_MAX)
    }
}

/// The type of an event that changes the metadata of a stream, or deletes it, to these clients.
pub const METADATA: &str = "$metadata";
/// The type of an event that closes a stream for ever, to these clients.
pub const STREAM_DELETED: &str = "$streamDeleted";
/// The types under which Gesta notes that in the metadata stream.
const DELETED: &str = "$deleted";
const TOMBSTONE: &str = "$tombstone";
/// What the name of a metadata stream begins with.
const METADATA_PREFIX: &str = "$$";

/// Returns the names of stream and type under which these clients are shown an event.
#[must_use]
pub fn shown_as(event: &RecordedEvent) -> (&str, &str) {
    let (stream, event_type) = (event.stream.as_str(), event.event_type.as_str());
    if !event_type.starts_with('$') || event.stream.described_stream().is_none() {
        return (stream, event_type);
    }
    match event_type {
        DELETED => (stream, METADATA),
        TOMBSTONE => (&stream[METADATA_PREFIX.len()..], STREAM_DELETED),
        _ => (stream, event_type),
    }
}

/// The part of an event with which a pattern is compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The pattern is compared with the name of the event's stream.
    Stream,
    /// The pattern is compared with the type of the event.
    Type,
}

/// A pattern as text.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternText {
    /// The part of an event with which the pattern is compared.
    pub of: Of,
    /// The texts that pass the pattern.
    #[serde(flatten)]
    pub passes: Passes,
}

/// The texts that pass a pattern.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passes {
    /// A text passes if the regular expression finds something anywhere in it.
    Expression(String),
    /// A text passes if it begins with one of these prefixes, letter by letter.
    Prefixes(Vec<String>),
}

/// A pattern that was checked and compiled.
#[derive(Debug)]
pub struct Pattern {
    text: PatternText,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    Expression(Compiled),
    /// Everything passes but what begins with the expression. It stands for `^(?!expression)`, and is quicker without
    /// looking ahead.
    NotAtBeginning(Compiled),
    /// Prefixes in their order, without those that begin with another of them.
    Prefixes(Vec<Box<str>>),
}

#[derive(Debug)]
struct Compiled {
    regex: Regex,
    size: Size,
}

impl Pattern {
    /// Checks a pattern and compiles it.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no expression and no prefix, or if one of them cannot be compiled or is too large.
    pub fn new(text: PatternText) -> Result<Self> {
        let engine = match &text.passes {
            Passes::Expression(expression) => of_expression(expression)?,
            Passes::Prefixes(prefixes) => {
                check_prefixes(prefixes)?;
                Engine::Prefixes(shortest(prefixes))
            }
        };
        Ok(Self { text, engine })
    }

    /// Returns the pattern as text.
    #[must_use]
    pub fn text(&self) -> &PatternText {
        &self.text
    }

    /// Tells whether comparing the pattern with an event takes microseconds, and milliseconds at most, whatever the
    /// event is called. Other patterns may take some hundred milliseconds, and should not be compared where others
    /// wait.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        match &self.engine {
            Engine::Expression(compiled) | Engine::NotAtBeginning(compiled) => {
                compiled.size.is_quick()
            }
            Engine::Prefixes(_) => true,
        }
    }

    /// Returns the most memory that the compiled pattern holds, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.engine {
            Engine::Expression(compiled) | Engine::NotAtBeginning(compiled) => {
                compiled.size.memory_bytes()
            }
            Engine::Prefixes(prefixes) => prefixes
                .iter()
                .map(|prefix| size_of::<Box<str>>() + prefix.len())
                .sum(),
        }
    }

    /// Returns the part of the pattern that a store can carry out. Every event that passes the pattern passes this
    /// filter.
    #[must_use]
    pub fn in_store(&self) -> Filter {
        let (Of::Stream, Passes::Prefixes(prefixes)) = (self.text.of, &self.text.passes) else {
            return Filter::ALL;
        };
        let lengths = 1..=limits::STREAM_NAME_BYTES_MAX - METADATA_PREFIX.len();
        if prefixes.len() > limits::FILTER_VALUES_MAX
            || prefixes.iter().any(|p| !lengths.contains(&p.len()))
        {
            return Filter::ALL;
        }
        let named = Query {
            stream_prefixes: prefixes.clone(),
            ..Query::default()
        };
        // The tombstone of a stream is stored with its metadata.
        let noted = prefixes.iter().map(|p| format!("{METADATA_PREFIX}{p}"));
        let closed = Query {
            stream_prefixes: noted.collect(),
            types: vec![EventType::from_stored(TOMBSTONE.into())],
            ..Query::default()
        };
        Filter {
            any_of: vec![named, closed],
        }
    }

    /// Returns true if only virtual streams can pass, whose links are not among all events. Expressions are looked at
    /// only as far as they begin with the name.
    #[must_use]
    pub fn is_of_virtual_streams(&self) -> bool {
        match (self.text.of, &self.text.passes) {
            (Of::Type, _) => false,
            (Of::Stream, Passes::Prefixes(prefixes)) => {
                prefixes.iter().all(|prefix| begins_virtual_streams(prefix))
            }
            (Of::Stream, Passes::Expression(expression)) => {
                // A choice may hold another beginning.
                let is_one = !expression.contains('|');
                let plain = expression.replace('\\', "").replace("[$]", "$");
                let beginning = plain.strip_prefix('^').filter(|_| is_one);
                beginning.is_some_and(|beginning| {
                    let after = beginning.get(CATEGORY_PREFIX.len()..).unwrap_or_default();
                    // The hyphen may be missing, or come often.
                    begins_virtual_streams(beginning) && !after.starts_with(['?', '*', '{'])
                })
            }
        }
    }

    /// Tells whether an event passes, by the names under which it is shown.
    ///
    /// # Errors
    /// `InvalidArgument` if the expression takes more than [`STEPS_MAX`] steps back.
    pub fn matches(&self, event: &RecordedEvent) -> Result<bool> {
        let (stream, event_type) = shown_as(event);
        let found = match self.text.of {
            Of::Stream => stream,
            Of::Type => event_type,
        };
        match &self.engine {
            Engine::Expression(compiled) => is_in(&compiled.regex, found),
            Engine::NotAtBeginning(compiled) => Ok(!is_in(&compiled.regex, found)?),
            Engine::Prefixes(prefixes) => {
                // A prefix stands before the texts that begin with it, and no other prefix stands between them.
                let after = prefixes.partition_point(|prefix| **prefix <= *found);
                let before = prefixes[..after].last();
                Ok(before.is_some_and(|prefix| found.starts_with(&**prefix)))
            }
        }
    }
}

fn is_in(regex: &Regex, text: &str) -> Result<bool> {
    regex.is_match(text).map_err(|error| {
        Error::invalid(
            "filter",
            format!("must take at most {STEPS_MAX} steps back in an event: {error}"),
        )
    })
}

fn check_prefixes(prefixes: &[String]) -> Result<()> {
    let bytes: usize = prefixes.iter().map(String::len).sum();
    if prefixes.is_empty() {
        let rule = "must have an expression or prefixes";
        return Err(Error::invalid("filter", rule));
    }
    if prefixes.len() > PREFIXES_MAX || bytes > PREFIXES_BYTES_MAX {
        return Err(Error::invalid(
            "filter",
            format!(
                "must have at most {PREFIXES_MAX} prefixes of {PREFIXES_BYTES_MAX} bytes in all, found {} of {bytes}",
                prefixes.len()
            ),
        ));
    }
    Ok(())
}

/// Sorts prefixes, and leaves out those that begin with another one.
fn shortest(prefixes: &[String]) -> Vec<Box<str>> {
    let mut sorted: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|later, kept| later.starts_with(&**kept));
    sorted.into_iter().map(Box::from).collect()
}

fn of_expression(expression: &str) -> Result<Engine> {
    if expression.is_empty() || expression.len() > EXPRESSION_BYTES_MAX {
        return Err(Error::invalid(
            "filter",
            format!(
                "must have an expression of 1 to {EXPRESSION_BYTES_MAX} bytes, found {}",
                expression.len()
            ),
        ));
    }
    // What the quick form cannot carry out in linear time, the form itself cannot either.
    if let Some(inner) = without_look_ahead(expression)
        && let Ok(inner) = compile(&inner)
    {
        return Ok(Engine::NotAtBeginning(inner));
    }
    compile(expression).map(Engine::Expression)
}

fn compile(expression: &str) -> Result<Compiled> {
    let mut found = None;
    for size in SIZES {
        let built = RegexBuilder::new(expression)
            .backtrack_limit(STEPS_MAX)
            .max_prog_size(size.steps_max)
            .delegate_size_limit(size.part_bytes_max)
            .delegate_dfa_size_limit(STATES_BYTES_MAX)
            // Else a look-behind takes as much as it needs.
            .delegate_dfa_skip_cache_capacity_check(false)
            .build();
        match built {
            Ok(regex) => return Ok(Compiled { regex, size }),
            // No other size makes it readable.
            Err(error @ fancy_regex::Error::ParseError(..)) => {
                found = Some(error);
                break;
            }
            Err(error) => found = Some(error),
        }
    }
    let shown: String = expression.chars().take(60).collect();
    let why = match found {
        Some(error @ fancy_regex::Error::ParseError(..)) => error.to_string(),
        error => format!(
            "it must compile to at most {COMPILED_BYTES_MAX} bytes, with few places that look around or back: {}",
            error.map_or_else(String::new, |error| error.to_string())
        ),
    };
    Err(Error::invalid(
        "filter",
        format!("has an expression that cannot be used, {shown:?}: {why}"),
    ))
}

/// Returns the expression that must not match at the beginning, if `^(?!…)` is all that the expression says.
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
    use gesta_core::{ContentType, EventId, LogId, Position, Revision, StreamId, Tags, Timestamp};
    use proptest::prelude::*;

    fn event(event_type: &str) -> RecordedEvent {
        RecordedEvent {
            stream: StreamId::new("cart-1").expect("valid"),
            revision: Revision(3),
            log: LogId(0),
            position: Position(9),
            id: EventId::random(),
            event_type: EventType::from_stored(event_type.into()),
            created: Timestamp(0),
            content_type: ContentType::Json,
            data: "{}".into(),
            metadata: "".into(),
            tags: Tags::NONE,
        }
    }

    fn pattern(passes: Passes) -> Result<Pattern> {
        Pattern::new(PatternText {
            of: Of::Type,
            passes,
        })
    }

    fn expression(text: &str) -> Result<Pattern> {
        pattern(Passes::Expression(text.into()))
    }

    fn passes(text: &str, event_type: &str) -> bool {
        let pattern = expression(text).expect("good");
        pattern.matches(&event(event_type)).expect("few steps")
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
        let prefixes = ["add", "Rem"].map(str::to_owned).to_vec();
        let pattern = pattern(Passes::Prefixes(prefixes)).expect("good");
        for (event_type, passing) in [("added", true), ("Removed", true), ("removed", false)] {
            let found = pattern.matches(&event(event_type));
            assert_eq!(found.expect("no steps"), passing);
        }
    }

    /// Goal: what is shown is what is compared, and the store leaves nothing out that may pass.
    #[test]
    fn notes_of_deletes_pass_by_the_names_under_which_they_are_shown() {
        let noted = |stream: &str, event_type: &str| RecordedEvent {
            stream: StreamId::new(stream).expect("valid"),
            ..event(event_type)
        };
        let prefix = |of, prefix: &str| {
            let passes = Passes::Prefixes(vec![prefix.to_owned()]);
            Pattern::new(PatternText { of, passes }).expect("good")
        };
        let deleted = noted("$$cart-1", "$deleted");
        let closed = noted("$$cart-1", "$tombstone");
        for (pattern, event, passing) in [
            (prefix(Of::Type, "$metadata"), &deleted, true),
            (prefix(Of::Type, "$deleted"), &deleted, false),
            (prefix(Of::Type, "$streamDeleted"), &closed, true),
            (prefix(Of::Type, "$tombstone"), &closed, false),
            (prefix(Of::Stream, "cart-"), &closed, true),
            (prefix(Of::Stream, "cart-"), &deleted, false),
            (prefix(Of::Stream, "$$cart-"), &closed, false),
            (prefix(Of::Stream, "$$cart-"), &deleted, true),
            // An event of a client, whatever it is called.
            (
                prefix(Of::Type, "$tombstone"),
                &noted("cart-1", "$tombstone"),
                true,
            ),
        ] {
            let found = pattern.matches(event).expect("no steps");
            assert_eq!(found, passing, "{:?} {event:?}", pattern.text());
            assert!(!passing || pattern.in_store().matches(event));
        }
        let long = "x".repeat(limits::STREAM_NAME_BYTES_MAX - 1);
        assert_eq!(prefix(Of::Stream, &long).in_store(), Filter::ALL);
    }

    #[test]
    fn an_expression_that_takes_too_many_steps_is_refused() {
        let pattern = expression(r"^(a|a)*(?!x)\1b$").expect("good");
        let error = pattern.matches(&event(&"a".repeat(60)));
        let error = error.expect_err("too many").to_string();
        assert!(error.contains("at most 20000 steps"), "{error}");
    }

    #[test]
    fn patterns_that_cannot_be_used_are_refused() {
        assert!(expression("(").is_err());
        assert!(expression("").is_err());
        assert!(expression(&"x".repeat(EXPRESSION_BYTES_MAX)).is_ok());
        assert!(expression(&"x".repeat(EXPRESSION_BYTES_MAX + 1)).is_err());
        assert!(expression("(a{1000}){1000}").is_err());
        let far = format!("{}{}", "(".repeat(2_000), ")".repeat(2_000));
        assert!(expression(&far).is_err());
        assert!(pattern(Passes::Prefixes(Vec::new())).is_err());
    }

    /// What happened: each part of an expression was bounded to 4 MiB and their number was not, so that 8 KB of text
    /// took 2.3 GB and half a minute. What holds now: the sum is bounded, whatever the parts are.
    #[test]
    fn an_expression_of_many_large_parts_is_refused() {
        let parts: [fn(usize) -> String; 6] = [
            |i| format!(r"(?=\w{{{}}}{i})", 20 + i % 60),
            |i| format!(r"(?<!{i})\w{{{}}}(?!{i})", 20 + i % 70),
            |i| format!(r"(?:\w{{40}}{i}|(?={i}))"),
            |i| format!(r"(?=[\p{{L}}\d]{{{}}}{i})", 20 + i % 40),
            |_| r"(?=\w)".to_owned(),
            |_| "(?=a)".to_owned(),
        ];
        for part in parts {
            let mut text = String::new();
            for i in 0.. {
                let next = part(i);
                if text.len() + next.len() > EXPRESSION_BYTES_MAX {
                    break;
                }
                text.push_str(&next);
            }
            let error = expression(&text).expect_err("too large").to_string();
            assert!(error.contains("at most 1048576 bytes"), "{error}");
        }
        // Groups that call each other double with each call.
        let doubled = r"(?<a>\w)(?<b>\g<a>\g<a>)(?<c>\g<b>\g<b>)(?<d>\g<c>\g<c>)(?<e>\g<d>\g<d>)";
        assert!(expression(doubled).is_err());
    }

    /// Goal: what clients use is compiled, and what most of them use is compared where it is.
    #[test]
    fn usual_expressions_are_small() {
        for (text, is_quick) in [
            (r"^[^\$].*", true),
            (r"^(?!(\$.+$))", true),
            (r"^added|removed$", true),
            (r"^\w+-\d+$", false),
            (r"^(?!\$)(?=.*foo).*$", false),
            (r"^(?:(?!foo).)*$", false),
            (r"(?<!a)foo(?=bar)", false),
            (r"^(a|b)\1$", false),
        ] {
            let pattern = expression(text).expect("usual");
            assert_eq!(pattern.is_quick(), is_quick, "{text}");
            assert!(pattern.memory_bytes() <= 6 * 1_024 * 1_024, "{text}");
        }
        let many = (0..9_000).map(|n| format!("p{n}")).collect();
        let many = pattern(Passes::Prefixes(many)).expect("good");
        assert!(many.is_quick() && many.memory_bytes() < 400_000);
    }

    proptest! {
        /// Goal: sorted prefixes pass what begins with one of them.
        #[test]
        fn sorted_prefixes_pass_what_one_of_them_passes(
            prefixes in prop::collection::vec("[ab-]{0,4}", 1..6),
            text in "[ab-]{1,6}",
        ) {
            let expected = prefixes.iter().any(|prefix| text.starts_with(prefix.as_str()));
            let pattern = pattern(Passes::Prefixes(prefixes)).expect("good");
            prop_assert_eq!(pattern.matches(&event(&text)).expect("no steps"), expected);
        }

        /// Goal: the quicker form of `^(?!…)` passes what the form itself passes.
        #[test]
        fn the_quick_form_is_the_same_pattern(
            inner in r"(\(|\)|\||\\\$|\$|a|b|\.\*|\.\+|\?)(\(|\)|\||\\\$|\$|a|b|\.\*){0,6}",
            text in "[ab$]{1,6}",
        ) {
            let expression = format!("^(?!{inner})");
            if let Ok(whole) = compile(&expression)
                && let Some(Ok(quick)) = without_look_ahead(&expression).map(|inner| compile(&inner))
            {
                let quick = !is_in(&quick.regex, &text).expect("few steps");
                prop_assert_eq!(quick, is_in(&whole.regex, &text).expect("few steps"), "{}", expression);
            }
        }

        #[test]
        fn no_expression_panics(regex in ".{0,40}", text in "[ -~]{1,40}") {
            if let Ok(pattern) = expression(&regex) {
                let _ = pattern.matches(&event(&text));
            }
        }
    }
}
