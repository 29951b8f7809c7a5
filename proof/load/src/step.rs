//! A request of a flow as the file writes it.

use std::collections::BTreeSet;
use std::time::Duration;

use gesta_report::units;
use hyper::Method;
use hyper::header::HeaderName;

use crate::check::{Capture, Checks, Origin, Statuses};
use crate::document::{Item, Refusal, Result};
use crate::json::Path;
use crate::template::{Json, Names, Slot, Template};

/// Most repetitions of a request.
const REPEAT_MAX: i64 = 1_000_000;
/// Longest name, in characters.
const NAME_MAX: usize = 200;
/// Longest think time.
const THINK_MAX: Duration = Duration::from_secs(3_600);
const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];
/// Headers that are the connection's own.
const OWN_HEADERS: [&str; 5] = [
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "te",
];

/// What a request carries.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Body {
    None,
    Text(Template),
    Json(Json),
}

/// A request of a flow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) method: Method,
    pub(crate) path: Template,
    pub(crate) headers: Vec<(HeaderName, Template)>,
    pub(crate) body: Body,
    pub(crate) checks: Checks,
    pub(crate) captures: Vec<Capture>,
    /// The pause before it: the least and the most.
    pub(crate) think: (Duration, Duration),
    pub(crate) repeat: u32,
    /// The feeders that it uses, by number.
    pub(crate) feeders: Vec<usize>,
}

/// Gives captured values their numbers.
pub(crate) trait Capturing {
    /// The number of a name.
    ///
    /// # Errors
    /// Why a value cannot have this name.
    fn capture(&mut self, name: &str) -> std::result::Result<usize, String>;
}

impl Step {
    /// Reads a request. Its captures are for the steps after it.
    pub(crate) fn read<S: Names + Capturing>(item: &Item<'_>, scope: &mut S) -> Result<Self> {
        let mut fields = item.fields()?;
        let request = fields.required("request")?;
        let (method, path) = read_request(&request, scope)?;
        let name = match fields.optional("name") {
            Some(name) => read_name(&name)?,
            None => request.text()?.to_owned(),
        };
        let headers = match fields.optional("headers") {
            Some(headers) => read_headers(&headers, scope)?,
            None => Vec::new(),
        };
        let (text, json) = (fields.optional("body"), fields.optional("json"));
        let body = match (text, json) {
            (Some(_), Some(json)) => return Err(json.refuse("and body exclude each other")),
            (Some(text), None) => Body::Text(template(&text, scope)?),
            (None, Some(json)) => Body::Json(json_of(&json, scope)?),
            (None, None) => Body::None,
        };
        let think = fields
            .optional("think")
            .map_or(Ok(Default::default()), |item| read_think(&item));
        let repeat = fields
            .optional("repeat")
            .map_or(Ok(1), |item| item.whole(1, REPEAT_MAX));
        let checks = read_checks(fields.optional("check").as_ref(), scope)?;
        let captures = match fields.optional("capture") {
            Some(captures) => read_captures(&captures, scope)?,
            None => Vec::new(),
        };
        fields.end()?;
        let mut step = Self {
            name,
            method,
            path,
            headers,
            body,
            checks,
            captures,
            think: think?,
            repeat: u32::try_from(repeat?).unwrap_or(u32::MAX),
            feeders: Vec::new(),
        };
        step.feeders = step.used_feeders();
        Ok(step)
    }

    fn used_feeders(&self) -> Vec<usize> {
        let mut used = BTreeSet::new();
        let mut found = |slot| {
            if let Slot::Feeder(feeder, _) = slot {
                used.insert(feeder);
            }
        };
        self.path.slots(&mut found);
        self.headers
            .iter()
            .for_each(|(_, value)| value.slots(&mut found));
        match &self.body {
            Body::None => {}
            Body::Text(text) => text.slots(&mut found),
            Body::Json(json) => json.slots(&mut found),
        }
        self.checks.slots(&mut found);
        used.into_iter().collect()
    }
}

/// A name that stands in tables: one line, not empty.
pub(crate) fn read_name(item: &Item<'_>) -> Result<String> {
    let text = item.text()?;
    let is_short = text.chars().count() <= NAME_MAX;
    match !text.trim().is_empty() && !text.contains(char::is_control) && is_short {
        true => Ok(text.to_owned()),
        false => Err(item.refuse(format!("must be a line of 1 to {NAME_MAX} characters"))),
    }
}

fn template(item: &Item<'_>, names: &dyn Names) -> Result<Template> {
    Template::parse(item.text()?, names).map_err(|why| item.wrong(why))
}

fn json_of(item: &Item<'_>, names: &dyn Names) -> Result<Json> {
    Json::parse(&item.json()?, names).map_err(|why| item.wrong(why))
}

fn read_request(item: &Item<'_>, names: &dyn Names) -> Result<(Method, Template)> {
    let text = item.text()?;
    let rule = || {
        item.refuse(format!(
            "must be a method, a space and a path, such as \"GET /carts\", not {text:?}"
        ))
    };
    let (method, path) = text.split_once(' ').ok_or_else(rule)?;
    let Some(method) = METHODS.into_iter().find(|known| known.as_str() == method) else {
        let known: Vec<&str> = METHODS.iter().map(Method::as_str).collect();
        return Err(item.refuse(format!(
            "must begin with one of {}, not {method:?}",
            known.join(", ")
        )));
    };
    let path = path.trim();
    let template = Template::parse(path, names).map_err(|why| item.wrong(why))?;
    if !path.starts_with('/') && !template.begins_raw() {
        return Err(item.refuse(format!(
            "must have a path that begins with / (or with a variable that is | raw), not {path:?}"
        )));
    }
    let mut constant = true;
    for part in path
        .split("{{")
        .enumerate()
        .map(|(at, part)| match (at, part.split_once("}}")) {
            (0, _) | (_, None) => part,
            (_, Some((_, after))) => after,
        })
    {
        constant &= part
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#');
    }
    match constant {
        true => Ok((method, template)),
        false => Err(item.refuse(format!(
            "must have a path of visible ASCII characters without # (write others as %XX), not {path:?}"
        ))),
    }
}

/// Headers with the templates of their values.
pub(crate) fn read_headers(
    item: &Item<'_>,
    names: &dyn Names,
) -> Result<Vec<(HeaderName, Template)>> {
    let entries = item.entries()?.into_iter();
    let headers = entries.map(|(name, value)| {
        let header = header_name(name).map_err(|why| value.wrong(why))?;
        let value_text = template(&value, names)?;
        match value_text
            .constant()
            .is_none_or(|text| hyper::header::HeaderValue::from_str(text).is_ok())
        {
            true => Ok((header, value_text)),
            false => Err(value.refuse("must be a line of text")),
        }
    });
    headers.collect()
}

/// The name of a header that a request may set.
pub(crate) fn header_name(name: &str) -> std::result::Result<HeaderName, String> {
    let header =
        HeaderName::try_from(name).map_err(|_| format!("{name:?} is not the name of a header"))?;
    match OWN_HEADERS.contains(&header.as_str()) {
        true => Err(format!(
            "the header {name:?} cannot be set: it belongs to the connection"
        )),
        false => Ok(header),
    }
}

fn read_think(item: &Item<'_>) -> Result<(Duration, Duration)> {
    let parts = item.one_or_list()?;
    let times = parts.iter().map(|part| {
        let time = units::duration(part.text()?).map_err(|why| part.wrong(why))?;
        match time <= THINK_MAX {
            true => Ok(time),
            false => Err(part.refuse("must be an hour at most")),
        }
    });
    match *times.collect::<Result<Vec<_>>>()? {
        [time] => Ok((time, time)),
        [least, most] if least <= most => Ok((least, most)),
        _ => {
            Err(item
                .refuse("must be a time, or the least and the most, such as [\"50ms\", \"150ms\"]"))
        }
    }
}

fn read_checks(item: Option<&Item<'_>>, names: &dyn Names) -> Result<Checks> {
    let mut checks = Checks {
        status: vec![Statuses(200, 299)],
        json: Vec::new(),
        contains: Vec::new(),
        headers: Vec::new(),
    };
    let Some(item) = item else { return Ok(checks) };
    let mut fields = item.fields()?;
    if let Some(status) = fields.optional("status") {
        checks.status = status
            .one_or_list()?
            .iter()
            .map(read_status)
            .collect::<Result<_>>()?;
        if checks.status.is_empty() {
            return Err(status.refuse("must name a status"));
        }
    }
    if let Some(json) = fields.optional("json") {
        for (path, wanted) in json.entries()? {
            let path = Path::parse(path).map_err(|why| wanted.wrong(why))?;
            checks.json.push((path, json_of(&wanted, names)?));
        }
    }
    if let Some(contains) = fields.optional("contains") {
        let parts = contains.one_or_list()?;
        checks.contains = parts
            .iter()
            .map(|part| template(part, names))
            .collect::<Result<_>>()?;
    }
    if let Some(headers) = fields.optional("headers") {
        checks.headers = read_headers(&headers, names)?;
    }
    fields.end()?;
    Ok(checks)
}

/// A status, or a class such as `2xx`.
fn read_status(item: &Item<'_>) -> Result<Statuses> {
    if !item.is_text() {
        let status = item.whole(100, 599)?;
        let status = u16::try_from(status).unwrap_or_default();
        return Ok(Statuses(status, status));
    }
    let text = item.text()?;
    let class = text
        .strip_suffix("xx")
        .and_then(|class| class.parse::<u16>().ok());
    match class {
        Some(class @ 1..=5) => Ok(Statuses(class * 100, class * 100 + 99)),
        _ => Err(item.refuse(format!(
            "must be a status from 100 to 599, or a class such as \"2xx\", not {text:?}"
        ))),
    }
}

fn read_captures(item: &Item<'_>, scope: &mut impl Capturing) -> Result<Vec<Capture>> {
    let entries = item.entries()?.into_iter();
    let captures = entries.map(|(name, from)| {
        let text = from.text()?;
        let place = match text.split_once(':') {
            Some(("json", path)) => Path::parse(path.trim()).map(Origin::Json),
            Some(("header", header)) => {
                let header = header.trim();
                HeaderName::try_from(header).map(Origin::Header).map_err(|_| format!("{header:?} is not the name of a header"))
            }
            _ => Err(format!("{text:?} is neither \"json:PLACE\", such as \"json:items.0.id\", nor \"header:NAME\"")),
        };
        Ok(Capture {
            origin: place.map_err(|why| from.wrong(why))?,
            slot: scope.capture(name).map_err(|why: String| -> Refusal { from.wrong(why) })?,
            name: name.to_owned(),
        })
    });
    captures.collect()
}
