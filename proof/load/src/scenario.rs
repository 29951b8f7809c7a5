//! A scenario file: feeders, a setup, and flows of requests that virtual users go through.
//!
//! Everything that can be wrong with a file is found here, with its line and rule, before a request is sent: unknown
//! keys, names without a value, values that are used before they are captured.
//! The reference for users is `docs/guides/load-any-service.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gesta_report::file;
use hyper::header::HeaderName;
use serde_json::Value;

use crate::csv;
use crate::document::{Fields, Item, Refusal, Result, Source};
use crate::feeder::{Each, Feeder, Order, Per, Rows, grid_len};
use crate::step::{Capturing, Step, read_headers, read_name};
use crate::template::{Names, Slot, Template};

/// Largest scenario file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Largest CSV file.
const CSV_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most rows of a feeder.
const ROWS_MAX: usize = 10_000_000;
/// Most rows of a feeder that every user goes through alone.
const OWN_ROWS_MAX: usize = 10_000;
const FEEDERS_MAX: usize = 100;
const FLOWS_MAX: usize = 100;
const STEPS_MAX: usize = 1_000;
const PASSES_MAX: i64 = 10_000_000;
/// Names that are variables everywhere.
const ALWAYS: [(&str, Slot); 3] = [
    ("run", Slot::Run),
    ("user", Slot::User),
    ("pass", Slot::Pass),
];

/// A way through the service.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) name: String,
    pub(crate) weight: u32,
    pub(crate) steps: Vec<Step>,
    /// The number of its first step among those of all flows.
    pub(crate) first_call: usize,
}

/// What is done once before the clock starts.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) passes: u32,
    pub(crate) steps: Vec<Step>,
}

/// A scenario, all of whose names have values.
#[derive(Debug)]
pub struct Scenario {
    name: String,
    pub(crate) headers: Vec<(HeaderName, Template)>,
    pub(crate) feeders: Vec<Feeder>,
    pub(crate) setup: Option<Setup>,
    pub(crate) flows: Vec<Flow>,
    /// How many values answers give.
    pub(crate) captured: usize,
}

impl Scenario {
    /// Reads a file, and the CSV files that it names, which are looked for beside it.
    ///
    /// # Errors
    /// What is wrong, with file, line and rule.
    pub fn read(path: &Path) -> std::result::Result<Self, Refusal> {
        let bytes = file::read(path, FILE_BYTES_MAX).map_err(|why| refused(path, (0, why)))?;
        let text = file::text(bytes).map_err(|why| refused(path, why))?;
        Self::parse(path, &text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong, with file, line and rule.
    pub fn parse(path: &Path, text: &str) -> std::result::Result<Self, Refusal> {
        let source = Source::of(path, text);
        let document = source.parse()?;
        let mut fields = Fields::of_document(&source, &document);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = match fields.optional("name") {
            Some(name) => read_name(&name)?,
            None => stem.into_owned(),
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let feeders = match fields.optional("feeders") {
            Some(feeders) => read_feeders(&feeders, folder)?,
            None => Vec::new(),
        };
        let mut scope = Scope::new(&feeders);
        let setup = match fields.optional("setup") {
            Some(setup) => Some(read_setup(&setup, &mut scope)?),
            None => None,
        };
        let headers = match fields.optional("headers") {
            Some(headers) => read_shared_headers(&headers, &scope)?,
            None => Vec::new(),
        };
        let (flows, steps) = (fields.optional("flows"), fields.optional("steps"));
        fields.end()?;
        let flows = match (flows, steps) {
            (Some(_), Some(steps)) => return Err(steps.refuse("and flows exclude each other")),
            (Some(flows), None) => read_flows(&flows, &mut scope)?,
            (None, Some(steps)) => vec![Flow {
                name: name.clone(),
                weight: 1,
                steps: read_steps(&steps, &mut scope)?,
                first_call: 0,
            }],
            (None, None) => return Err(fields.refuse("\"steps\" or \"flows\" is missing")),
        };
        let captured = scope.numbers.len();
        Ok(Self {
            name,
            headers,
            feeders,
            setup,
            flows,
            captured,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the requests of all flows.
    pub fn calls(&self) -> Vec<String> {
        let named = |flow: &Flow| {
            let prefix = match self.flows.len() {
                1 => String::new(),
                _ => format!("{}: ", flow.name),
            };
            let steps = flow.steps.iter();
            steps
                .map(move |step| format!("{prefix}{}", step.name))
                .collect::<Vec<_>>()
        };
        self.flows.iter().flat_map(named).collect()
    }

    /// The mean pause of a user before a request.
    pub fn think_time(&self) -> Duration {
        let (mut requests, mut seconds) = (0.0, 0.0);
        for flow in &self.flows {
            for step in &flow.steps {
                let (least, most) = step.think;
                let times = f64::from(flow.weight) * f64::from(step.repeat);
                requests += times;
                seconds += times * (least + most).as_secs_f64() / 2.0;
            }
        }
        Duration::try_from_secs_f64(seconds / f64::max(requests, 1.0)).unwrap_or_default()
    }

    /// What the file asks for, in a sentence.
    pub fn told(&self) -> String {
        let count =
            |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let flows = count(self.flows.len(), "flow");
        let requests = count(self.calls().len(), "kind") + " of request";
        let feeders = count(self.feeders.len(), "feeder");
        format!("{}: {flows}, {requests}, {feeders}", self.name)
    }
}

/// A line of a file that breaks a rule.
fn refused(file: &Path, (line, rule): (usize, String)) -> Refusal {
    let file = file.display().to_string();
    Refusal { file, line, rule }
}

/// Headers of all requests. They cannot use a feeder: it would be unclear whose row it is.
fn read_shared_headers(item: &Item<'_>, scope: &Scope<'_>) -> Result<Vec<(HeaderName, Template)>> {
    let headers = read_headers(item, scope)?;
    for ((_, value), (_, entry)) in headers.iter().zip(item.entries()?) {
        let mut used = None;
        value.slots(&mut |slot| {
            if let Slot::Feeder(feeder, _) = slot {
                used = Some(feeder);
            }
        });
        if let Some(feeder) = used {
            let name = &scope.feeders[feeder].name;
            return Err(entry.wrong(format!(
                "headers of all requests cannot use the feeder {name:?}"
            )));
        }
    }
    Ok(headers)
}

/// The names that have values.
struct Scope<'a> {
    feeders: &'a [Feeder],
    /// Numbers of captured values by name, wherever they are captured.
    numbers: BTreeMap<String, usize>,
    /// Those that can be used at this place of the file.
    visible: Vec<usize>,
}

impl<'a> Scope<'a> {
    fn new(feeders: &'a [Feeder]) -> Self {
        Self {
            feeders,
            numbers: BTreeMap::new(),
            visible: Vec::new(),
        }
    }
}

impl Names for Scope<'_> {
    fn slot(&self, name: &str) -> std::result::Result<Slot, String> {
        if let Some((_, slot)) = ALWAYS.iter().find(|(always, _)| *always == name) {
            return Ok(*slot);
        }
        if let Some(number) = self.numbers.get(name) {
            return match self.visible.contains(number) {
                true => Ok(Slot::Captured(*number)),
                false => Err(format!(
                    "{name:?} is captured only by a later step, or in another flow"
                )),
            };
        }
        for (number, feeder) in self.feeders.iter().enumerate() {
            let column = match name.strip_prefix(feeder.name.as_str()) {
                Some("") => "",
                Some(rest) if rest.starts_with('.') => &rest[1..],
                _ => continue,
            };
            return match feeder.columns.iter().position(|known| known == column) {
                Some(column) => Ok(Slot::Feeder(number, column)),
                None if feeder.columns == [""] => {
                    Err(format!("the feeder {:?} has no columns", feeder.name))
                }
                None => {
                    let columns = feeder
                        .columns
                        .iter()
                        .map(|column| format!("{}.{column}", feeder.name));
                    let columns: Vec<_> = columns.collect();
                    Err(format!(
                        "{name:?} is no column of a feeder; there are {}",
                        columns.join(", ")
                    ))
                }
            };
        }
        Err(format!(
            "{{{{{name}}}}} has no value: no feeder and no capture has this name"
        ))
    }
}

impl Capturing for Scope<'_> {
    fn capture(&mut self, name: &str) -> std::result::Result<usize, String> {
        check_name(name)?;
        if self.feeders.iter().any(|feeder| feeder.name == name) {
            return Err(format!("{name:?} is the name of a feeder"));
        }
        let next = self.numbers.len();
        let number = *self.numbers.entry(name.to_owned()).or_insert(next);
        if !self.visible.contains(&number) {
            self.visible.push(number);
        }
        Ok(number)
    }
}

fn check_name(name: &str) -> std::result::Result<(), String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(is_word) {
        return Err(format!(
            "{name:?} is not a name of letters, digits, _ and -"
        ));
    }
    match ALWAYS.iter().any(|(always, _)| *always == name) {
        true => Err(format!(
            "{name:?} is a name that always has a value: choose another"
        )),
        false => Ok(()),
    }
}

fn read_steps(item: &Item<'_>, scope: &mut Scope<'_>) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let items = item.list()?;
    if items.is_empty() || items.len() > STEPS_MAX {
        return Err(item.refuse(format!("must have from 1 to {STEPS_MAX} steps")));
    }
    for item in &items {
        let mut step = Step::read(item, scope)?;
        let twice = |step: &Step, steps: &[Step]| steps.iter().any(|other| other.name == step.name);
        if twice(&step, &steps) {
            let is_named = item.fields()?.optional("name").is_some();
            if is_named {
                return Err(
                    item.refuse(format!("has the name of an earlier step, {:?}", step.name))
                );
            }
            let name = step.name.clone();
            let mut number = 2;
            while twice(&step, &steps) {
                step.name = format!("{name} ({number})");
                number += 1;
            }
        }
        steps.push(step);
    }
    Ok(steps)
}

fn read_flows(item: &Item<'_>, scope: &mut Scope<'_>) -> Result<Vec<Flow>> {
    let items = item.list()?;
    if items.is_empty() || items.len() > FLOWS_MAX {
        return Err(item.refuse(format!("must be from 1 to {FLOWS_MAX}")));
    }
    let from_setup = scope.visible.clone();
    let (mut flows, mut first_call) = (Vec::<Flow>::new(), 0);
    for item in &items {
        let mut fields = item.fields()?;
        let name = read_name(&fields.required("name")?)?;
        if flows.iter().any(|flow| flow.name == name) {
            return Err(item.refuse(format!("has the name of an earlier flow, {name:?}")));
        }
        let weight = fields
            .optional("weight")
            .map_or(Ok(1), |weight| weight.whole(1, 1_000_000))?;
        let steps = fields.required("steps")?;
        fields.end()?;
        scope.visible.clone_from(&from_setup);
        let steps = read_steps(&steps, scope)?;
        let count = steps.len();
        flows.push(Flow {
            name,
            weight: u32::try_from(weight).unwrap_or(1),
            steps,
            first_call,
        });
        first_call += count;
    }
    Ok(flows)
}

fn read_setup(item: &Item<'_>, scope: &mut Scope<'_>) -> Result<Setup> {
    let mut fields = item.fields()?;
    let passes = fields
        .optional("passes")
        .map_or(Ok(1), |passes| passes.whole(1, PASSES_MAX))?;
    let steps = fields.required("steps")?;
    fields.end()?;
    let steps = read_steps(&steps, scope)?;
    if passes > 1 {
        // Which of the values would it be?
        scope.visible.clear();
    }
    Ok(Setup {
        passes: u32::try_from(passes).unwrap_or(1),
        steps,
    })
}

fn read_feeders(item: &Item<'_>, folder: &Path) -> Result<Vec<Feeder>> {
    let entries = item.entries()?;
    if entries.len() > FEEDERS_MAX {
        return Err(item.refuse(format!("must be {FEEDERS_MAX} at most")));
    }
    let feeders = entries.into_iter();
    feeders
        .map(|(name, item)| read_feeder(name, &item, folder))
        .collect()
}

fn read_feeder(name: &str, item: &Item<'_>, folder: &Path) -> Result<Feeder> {
    check_name(name).map_err(|why| item.wrong(why))?;
    let single = || vec![String::new()];
    let mut feeder = Feeder {
        name: name.to_owned(),
        columns: single(),
        rows: Rows::Uuid,
        order: Order::Sequence,
        each: Each::Pass,
        per: Per::All,
    };
    if !item.is_table() {
        return match item.is_text() && item.text()? == "uuid" {
            true => Ok(feeder),
            false => Err(item.refuse(
                "must be \"uuid\", or a table with csv, range, ranges, sequence, uuid or values",
            )),
        };
    }
    let mut fields = item.fields()?;
    let mut kinds = 0;
    let mut kind = |key| {
        let found = fields.optional(key);
        kinds += usize::from(found.is_some());
        found
    };
    let [uuid, csv, range, ranges, sequence, values] =
        ["uuid", "csv", "range", "ranges", "sequence", "values"].map(&mut kind);
    if kinds != 1 {
        return Err(
            item.refuse("must have exactly one of csv, range, ranges, sequence, uuid and values")
        );
    }
    if let Some(uuid) = uuid
        && !uuid.flag()?
    {
        return Err(uuid.refuse("must be true"));
    }
    if let Some(csv) = csv {
        (feeder.columns, feeder.rows) = read_csv(&csv, folder)?;
    }
    if let Some(range) = range {
        feeder.rows = Rows::Grid(vec![read_range(&range)?]);
    }
    if let Some(ranges) = ranges {
        let mut grid = Vec::new();
        feeder.columns.clear();
        for (column, range) in ranges.entries()? {
            check_name(column).map_err(|why| range.wrong(why))?;
            feeder.columns.push(column.to_owned());
            grid.push(read_range(&range)?);
        }
        if grid.is_empty() {
            return Err(ranges.refuse("must have a column"));
        }
        feeder.rows = Rows::Grid(grid);
    }
    if let Some(sequence) = sequence {
        feeder.rows = Rows::Count(sequence.whole(i64::MIN, i64::MAX)?);
    }
    if let Some(values) = values {
        let list = values.list()?;
        if list.is_empty() {
            return Err(values.refuse("must have a value"));
        }
        let rows = list.iter().map(|value| Ok(vec![value.json()?]));
        feeder.rows = Rows::Given(rows.collect::<Result<_>>()?);
    }
    read_order(&mut fields, &mut feeder)?;
    fields.end()?;
    if let Rows::Given(_) | Rows::Grid(_) = feeder.rows {
        let is_own = feeder.per != Per::All;
        let most = if is_own { OWN_ROWS_MAX } else { ROWS_MAX };
        let len = match &feeder.rows {
            Rows::Grid(ranges) => grid_len(ranges),
            _ => feeder.len(),
        };
        if len.is_none_or(|len| len > most) {
            let own = if is_own {
                " that each user goes through alone"
            } else {
                ""
            };
            return Err(item.refuse(format!("must have {most} rows at most{own}")));
        }
    }
    Ok(feeder)
}

fn read_order(fields: &mut Fields<'_>, feeder: &mut Feeder) -> Result<()> {
    let is_endless = matches!(feeder.rows, Rows::Count(_) | Rows::Uuid);
    if let Some(order) = fields.optional("order") {
        feeder.order = match order.text()? {
            _ if is_endless => {
                return Err(order.refuse("is for csv, range, ranges and values alone"));
            }
            "sequence" => Order::Sequence,
            "shuffle" => Order::Shuffle,
            "random" => Order::Random,
            other => {
                return Err(order.refuse(format!(
                    "must be sequence, shuffle or random, not {other:?}"
                )));
            }
        };
    }
    if let Some(each) = fields.optional("each") {
        feeder.each = match each.text()? {
            "pass" => Each::Pass,
            "request" => Each::Request,
            other => return Err(each.refuse(format!("must be pass or request, not {other:?}"))),
        };
    }
    if let Some(per) = fields.optional("per") {
        feeder.per = match per.text()? {
            "all" => Per::All,
            "user" => Per::User,
            "pass" => Per::Pass,
            other => return Err(per.refuse(format!("must be all, user or pass, not {other:?}"))),
        };
    }
    Ok(())
}

fn read_range(item: &Item<'_>) -> Result<(i64, i64)> {
    let ends: Vec<i64> = item
        .list()?
        .iter()
        .map(|end| end.whole(i64::MIN, i64::MAX))
        .collect::<Result<_>>()?;
    match *ends {
        [first, last] if first <= last => Ok((first, last)),
        _ => Err(item.refuse("must be the first and the last number, such as [1, 100]")),
    }
}

fn read_csv(item: &Item<'_>, folder: &Path) -> Result<(Vec<String>, Rows)> {
    let path = folder.join(item.text()?);
    let bytes = file::read(&path, CSV_BYTES_MAX);
    let bytes = bytes.map_err(|why| item.wrong(format!("{}: {why}", path.display())))?;
    let text = file::text(bytes).map_err(|why| refused(&path, why))?;
    let csv = csv::parse(&text, ROWS_MAX).map_err(|why| refused(&path, why))?;
    let rows = csv.rows.into_iter();
    let rows = rows.map(|row| row.into_iter().map(Value::String).collect());
    Ok((csv.columns, Rows::Given(rows.collect())))
}
