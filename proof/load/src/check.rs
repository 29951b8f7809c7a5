//! What an answer must be, and what is taken out of it for later requests.

use hyper::header::{HeaderMap, HeaderName};
use serde_json::Value;

use crate::json::{self, Path, text_of};
use crate::template::{Json, Place, Slot, Template, Values};

/// An answer that has come.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: bytes::Bytes,
}

/// Statuses from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statuses(pub(crate) u16, pub(crate) u16);

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checks {
    pub(crate) status: Vec<Statuses>,
    /// Places in the JSON of the body with their values.
    pub(crate) json: Vec<(Path, Json)>,
    /// Texts in the body.
    pub(crate) contains: Vec<Template>,
    /// Headers and a part of their values.
    pub(crate) headers: Vec<(HeaderName, Template)>,
}

/// Where a value is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Json(Path),
    Header(HeaderName),
}

/// A value that is taken out of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capture {
    /// The number of the variable.
    pub(crate) slot: usize,
    pub(crate) name: String,
    pub(crate) origin: Origin,
}

/// Why an answer is wrong: a cause that many answers can share, and what this one was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) cause: String,
    pub(crate) example: String,
}

impl Wrong {
    pub(crate) fn new(cause: impl Into<String>, example: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            example: example.into(),
        }
    }
}

/// What is shown of a text that an answer has: its beginning, without secrets.
pub(crate) type Shown<'a> = dyn Fn(&str) -> String + 'a;

impl Capture {
    /// The value in an answer whose body is this document.
    pub(crate) fn find(&self, document: &Value, answer: &Answer) -> Option<Value> {
        match &self.origin {
            Origin::Json(path) => path.find(document).cloned(),
            Origin::Header(name) => headers(answer, name).next().map(Value::String),
        }
    }
}

impl Checks {
    /// Refusals for lack of capacity are told apart from wrong answers, unless they are what is wanted.
    pub(crate) fn is_refusal(&self, status: u16) -> bool {
        matches!(status, 429 | 503) && !self.takes(status)
    }

    fn takes(&self, status: u16) -> bool {
        self.status
            .iter()
            .any(|Statuses(first, last)| (*first..=*last).contains(&status))
    }

    /// Checks an answer, and returns what is captured from it. `shown` is called for answers that are wrong alone.
    pub(crate) fn judge(
        &self,
        captures: &[Capture],
        answer: &Answer,
        values: &dyn Values,
        shown: &Shown<'_>,
    ) -> Result<Vec<(usize, Value)>, Wrong> {
        let text = || String::from_utf8_lossy(&answer.body);
        let seen = || shown(&text());
        if !self.takes(answer.status) {
            return Err(Wrong::new(format!("status {}", answer.status), seen()));
        }
        for (name, part) in &self.headers {
            let part = part.render(values, Place::Text);
            let found: Vec<String> = headers(answer, name).collect();
            if !found.iter().any(|found| found.contains(&*part)) {
                let example = format!("{:?} does not contain {part:?}", found.join(", "));
                return Err(Wrong::new(
                    format!("header {name} is not as it must be"),
                    shown(&example),
                ));
            }
        }
        for part in &self.contains {
            let part = part.render(values, Place::Text);
            if !text().contains(&*part) {
                let cause = "the body does not contain what it must";
                return Err(Wrong::new(
                    cause,
                    shown(&format!("{part:?} is not in {:?}", text())),
                ));
            }
        }
        let wants_json = |capture: &Capture| matches!(capture.origin, Origin::Json(_));
        let document = match !self.json.is_empty() || captures.iter().any(wants_json) {
            true => match serde_json::from_slice(&answer.body) {
                Ok(document) => document,
                Err(_) => return Err(Wrong::new("the body is not JSON", seen())),
            },
            false => Value::Null,
        };
        for (path, wanted) in &self.json {
            equals(path, wanted, &document, values, shown)?;
        }
        let taken = captures.iter().map(|capture| {
            let found = capture.find(&document, answer);
            let missing = || {
                Wrong::new(
                    format!("there is no {:?} in the answer", capture.name),
                    seen(),
                )
            };
            Ok((capture.slot, found.ok_or_else(missing)?))
        });
        taken.collect()
    }

    /// Calls `found` with every variable.
    pub(crate) fn slots(&self, found: &mut dyn FnMut(Slot)) {
        self.json.iter().for_each(|(_, wanted)| wanted.slots(found));
        self.contains.iter().for_each(|part| part.slots(found));
        self.headers.iter().for_each(|(_, part)| part.slots(found));
    }
}

/// Values of variables are compared as texts, since a file or a header has nothing else; others by kind and value.
fn equals(
    path: &Path,
    wanted: &Json,
    document: &Value,
    values: &dyn Values,
    shown: &Shown<'_>,
) -> Result<(), Wrong> {
    let name = path.text();
    let Some(found) = path.find(document) else {
        return Err(Wrong::new(
            format!("json {name} is missing"),
            shown(&document.to_string()),
        ));
    };
    let rendered = wanted.render(values);
    let is_same = match wanted {
        Json::Whole(_) | Json::Text(_) => {
            text_of(found) == text_of(&rendered) || json::same(found, &rendered)
        }
        _ => json::same(found, &rendered),
    };
    if is_same {
        return Ok(());
    }
    let example = format!("{found} and not {rendered}");
    Err(Wrong::new(
        format!("json {name} is not as it must be"),
        shown(&example),
    ))
}

/// All values of a header, which may come several times.
fn headers(answer: &Answer, name: &HeaderName) -> impl Iterator<Item = String> {
    let values = answer.headers.get_all(name).iter();
    values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Seven;

    impl Values for Seven {
        fn value(&self, _: Slot) -> Value {
            json!(7)
        }
    }

    fn answer(status: u16, body: &str) -> Answer {
        let mut headers = HeaderMap::new();
        headers.insert("location", "/carts/7".parse().unwrap());
        headers.append("location", "/second".parse().unwrap());
        let body = body.to_owned().into();
        Answer {
            status,
            headers,
            body,
        }
    }

    fn ok() -> Checks {
        Checks {
            status: vec![Statuses(200, 299)],
            json: Vec::new(),
            contains: Vec::new(),
            headers: Vec::new(),
        }
    }

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    fn whole_text(text: &str) -> String {
        text.to_owned()
    }

    /// Goal: each kind of check takes what it must and names what it does not.
    #[test]
    fn checks_tell_right_from_wrong() {
        let whole = Json::Whole(Slot::Captured(0));
        let json = |place: &str, wanted: Json| Checks {
            json: vec![(path(place), wanted)],
            ..ok()
        };
        let constant = |value: Value| Json::Constant(value);
        let location = HeaderName::from_static("location");
        struct One;
        impl crate::template::Names for One {
            fn slot(&self, _: &str) -> Result<Slot, String> {
                Ok(Slot::Captured(0))
            }
        }
        let template = |text: &str| Template::parse(text, &One).unwrap();
        let body = r#"{"id": "7", "n": 3, "list": [1, 2]}"#;
        for (checks, cause) in [
            (ok(), ""),
            (
                Checks {
                    status: vec![Statuses(404, 404)],
                    ..ok()
                },
                "status 200",
            ),
            (json("id", whole.clone()), ""),
            (
                json("id", constant(json!(7))),
                "json id is not as it must be",
            ),
            (json("n", constant(json!(3.0))), ""),
            (json("n", whole), "json n is not as it must be"),
            (json("list", constant(json!([1, 2]))), ""),
            (json("list.2", constant(json!(1))), "json list.2 is missing"),
            (
                Checks {
                    contains: vec![template("\"{{x}}\"")],
                    ..ok()
                },
                "",
            ),
            (
                Checks {
                    contains: vec![template("8")],
                    ..ok()
                },
                "the body does not contain what it must",
            ),
            (
                Checks {
                    headers: vec![(location.clone(), template("/{{x}}"))],
                    ..ok()
                },
                "",
            ),
            (
                Checks {
                    headers: vec![(location.clone(), template("second"))],
                    ..ok()
                },
                "",
            ),
            (
                Checks {
                    headers: vec![(location.clone(), template("x"))],
                    ..ok()
                },
                "header location is not as it must be",
            ),
        ] {
            let found = checks.judge(&[], &answer(200, body), &Seven, &whole_text);
            let found = found.err().map_or(String::new(), |wrong| wrong.cause);
            assert_eq!(found, cause, "{checks:?}");
        }
        let wrong = json("id", constant(json!("7")));
        let wrong = wrong.judge(&[], &answer(200, "<html>"), &Seven, &whole_text);
        assert_eq!(
            wrong.unwrap_err(),
            Wrong::new("the body is not JSON", "<html>")
        );
    }

    #[test]
    fn values_are_captured_or_missed() {
        let capture = |name: &str, origin| Capture {
            slot: 4,
            name: name.into(),
            origin,
        };
        let id = capture("id", Origin::Json(path("list.1")));
        let where_ = capture("where", Origin::Header(HeaderName::from_static("location")));
        let found = ok().judge(
            &[id.clone(), where_],
            &answer(201, r#"{"list": [1, 2]}"#),
            &Seven,
            &whole_text,
        );
        assert_eq!(found.unwrap(), [(4, json!(2)), (4, json!("/carts/7"))]);
        let wrong = ok().judge(&[id], &answer(201, "{}"), &Seven, &whole_text);
        let wrong = wrong.unwrap_err();
        assert_eq!(wrong.cause, "there is no \"id\" in the answer");
    }

    #[test]
    fn refusals_are_told_apart_unless_they_are_wanted() {
        assert!(ok().is_refusal(503) && ok().is_refusal(429) && !ok().is_refusal(500));
        let wanted = Checks {
            status: vec![Statuses(503, 503)],
            ..ok()
        };
        assert!(!wanted.is_refusal(503));
    }
}
