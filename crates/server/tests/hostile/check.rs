//! Checks the answers to requests.
//!
//! Tests of other crates include the files of this folder, each under its name at the root of the crate.

use serde_json::Value;

use crate::generate::{Attempt, Expect};
use crate::wire::Answer;

/// Returns the problem document of an answer, and its kind, after a check that it is well formed.
fn problem(answer: &Answer, shown: &dyn Fn() -> String) -> (Value, String) {
    let problem: Value =
        serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("no JSON: {}", shown()));
    assert_eq!(problem["status"], answer.status, "{}", shown());
    let kind = problem["type"]
        .as_str()
        .and_then(|t| t.strip_prefix("urn:gesta:problem:"));
    let kind = kind.unwrap_or_else(|| panic!("no type: {}", shown()));
    for member in ["title", "detail"] {
        assert!(
            problem[member].as_str().is_some_and(|t| !t.is_empty()),
            "{}",
            shown()
        );
    }
    assert!(answer.body.len() < 8_192, "a long answer: {}", shown());
    assert!(answer.body.ends_with(b"\n"), "no line break: {}", shown());
    let kind = kind.to_owned();
    (problem, kind)
}

/// Checks an answer against those that such a request may get. `failures` are the kinds of problems that a server which
/// works may answer with a status of 500 and above.
pub(crate) fn check(attempt: &Attempt, answer: Option<&Answer>, failures: &[&str]) {
    let Some(answer) = answer else {
        assert!(attempt.expect == Expect::Garbage, "no answer to {attempt}");
        return;
    };
    let shown = || format!("{attempt}\nanswered {answer}");
    if answer.status < 400 {
        let allowed = matches!(attempt.expect, Expect::Anything | Expect::Garbage);
        assert!(allowed, "should have been refused: {}", shown());
        return;
    }
    let content_type = answer.content_type.as_str();
    assert_eq!(content_type, "application/problem+json", "{}", shown());
    // The answer to HEAD has no body.
    if attempt.is_head() {
        return;
    }
    let (problem, kind) = problem(answer, &shown);
    if answer.status >= 500 {
        assert!(failures.contains(&kind.as_str()), "{}", shown());
        return;
    }
    let field = problem["field"].as_str();
    if kind == "invalid_argument" {
        assert!(
            field.is_some_and(|f| !f.is_empty()),
            "no field: {}",
            shown()
        );
    }
    match &attempt.expect {
        Expect::Anything | Expect::Garbage => {}
        Expect::Refused(status) => assert_eq!(answer.status, *status, "{}", shown()),
        Expect::Field(name) => {
            assert_eq!(
                (answer.status, field),
                (400, Some(name.as_str())),
                "{}",
                shown()
            );
        }
    }
}
