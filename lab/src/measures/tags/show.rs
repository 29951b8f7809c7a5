//! What a run says: which form costs the database how much, with few and many readers and older events.

use gesta_report::numbers::{count, several};
use gesta_report::{Chart, Report, Scale, Table, Unit, Whose};

use super::{Form, FormResult};

const FORMS: &str = "A burst of events for many readers by tag";
const SWEEP: &str = "The same burst for other numbers of readers, without older events";
const LAST: &str = "until the last reader has all";
const TIME: &str = "database time";
/// Queries may differ by this factor between few and many readers and still not depend on them.
const SAME: f64 = 1.5;

/// The report of these forms, and of the same for other numbers of readers.
pub(super) fn tell(
    report: &mut Report,
    forms: &[FormResult],
    sweep: &[FormResult],
    counted_by: &str,
) {
    report.finding = finding(forms, sweep);
    object(report, forms, sweep);
    let over_older = "Database time until every reader has everything";
    let differ = |form: &FormResult| form.plan.older != forms[0].plan.older;
    if forms.iter().any(differ) {
        let (x, y) = (("older events", Scale::Steps), (&[TIME][..], Scale::Log));
        report.chart(Chart::lines(over_older, FORMS, x, y).by("form"));
    } else if !forms.is_empty() {
        report.chart(Chart::bars(over_older, FORMS, "form", TIME));
    }
    if !sweep.is_empty() {
        let (x, y) = (("readers", Scale::Log), (&["queries"][..], Scale::Log));
        report.chart(Chart::lines("Queries over readers", SWEEP, x, y).by("form"));
    }
    report.table(table(FORMS, forms));
    report.table(table(SWEEP, sweep).folded());
    report.text(counted_by);
    report.text(
        "[D], akkadotnet, Akka.Persistence.Sql, issue 420, 2024: 2,000 events in seconds, 35 readers by tag; 4 hours of query time before a \
         change, 42 s after; tags as text took 1.9 to 2.2 s and a tag table 3.8 ms with 3,000,000 events. It was another database product: what \
         can be compared is that text tags grow with the table and bounded queries do not.",
    );
}

fn finding(forms: &[FormResult], sweep: &[FormResult]) -> String {
    let ours = || sweep.iter().filter(|one| one.form == Form::Gesta);
    let few = ours().min_by_key(|one| one.plan.readers);
    let many = ours().max_by_key(|one| one.plan.readers);
    if let (Some(few), Some(many)) = (few, many) {
        let [from, to] = [few, many].map(|one| one.burst.spent.queries as f64);
        let grow = match to <= from.max(1.0) * SAME {
            true => "do not grow",
            false => "grow",
        };
        return format!(
            "Gesta's queries {grow} with the readers: {} with {} and {} with {}; idle, {} queries a second.",
            count(from),
            readers(few),
            count(to),
            readers(many),
            count(many.idle_queries_per_second)
        );
    }
    let time = |form: &FormResult| form.burst.spent.database_ms;
    let right = forms.iter().filter(|form| form.is_right());
    match right.min_by(|a, b| time(a).total_cmp(&time(b))) {
        Some(form) => format!(
            "{} took the least of the database's time: {} until {} had everything.",
            form.form.title(),
            Unit::Millis.told(time(form)),
            readers(form)
        ),
        None => "The run has no figures to compare.".into(),
    }
}

fn readers(form: &FormResult) -> String {
    several(form.plan.readers as f64, "reader")
}

/// Polled forms may miss events, and then have no result; Gesta may not.
fn object(report: &mut Report, forms: &[FormResult], sweep: &[FormResult]) {
    let mut told: Vec<String> = Vec::new();
    for form in forms.iter().chain(sweep).filter(|form| !form.is_right()) {
        let (who, older) = (readers(form), count(form.plan.older as f64));
        let problem = format!(
            "{} with {who} and {older} older events: {}",
            form.form.title(),
            form.faults().join("; ")
        );
        if told.contains(&problem) {
            continue;
        }
        told.push(problem.clone());
        if form.form == Form::Gesta {
            report.problem(problem);
        } else {
            report.caution(problem);
        }
    }
    if !forms.iter().chain(sweep).any(FormResult::is_right) {
        report.problem("no form has a result");
    }
}

fn table(title: &str, results: &[FormResult]) -> Table {
    let start = |form: &FormResult| form.from_start.clone();
    let start_queries = |form: &FormResult| start(form).map(|start| start.spent.queries);
    let start_ms = |form: &FormResult| start(form).map(|start| start.spent.database_ms);
    let all =
        |form: &FormResult| format!("{} of {}", form.burst.complete_readers, form.plan.readers);
    let idle = |form: &FormResult| form.idle_queries_per_second;
    Table::of(title, results)
        .column("form", Unit::Words, |form| form.form.title())
        .column("readers", Unit::Count, |form| form.plan.readers)
        .column("older events", Unit::Count, |form| form.plan.older)
        .column(LAST, Unit::Seconds, |form| form.burst.seconds_to_last)
        .column("queries", Unit::Count, |form| form.burst.spent.queries)
        .column("queries that append", Unit::Count, |form| {
            form.burst.spent.appends
        })
        .column(TIME, Unit::Millis, |form| form.burst.spent.database_ms)
        .column("idle queries/s", Unit::Count, idle)
        .column("reading all from the start", Unit::Seconds, |form| {
            start(form)?.seconds_to_last
        })
        .column("its queries", Unit::Count, start_queries)
        .column("its database time", Unit::Millis, start_ms)
        .column("readers that have all", Unit::Words, all)
        .column("faults", Unit::Words, |form| form.faults().join("; "))
        .whose(|form| match (form.is_right(), form.form) {
            (false, _) => Whose::Bad,
            (true, Form::Gesta) => Whose::Ours,
            (true, _) => Whose::Other,
        })
        .table()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measures::tags::Reading;
    use crate::measures::tags::plan::Plan;
    use gesta_load::counters::Spent;

    fn result(form: Form, readers: u64, queries: u64, fault: Option<&str>) -> FormResult {
        let spent = Spent {
            queries,
            appends: Some(20),
            database_ms: 12.25,
        };
        FormResult {
            form,
            plan: Plan {
                readers,
                events: 2_000,
                older: 3_000_000,
                tagged: 0,
                everything: false,
            },
            idle_queries_per_second: 0.2,
            burst: Reading {
                seconds_to_last: fault.is_none().then_some(1.5),
                spent,
                complete_readers: 1,
                faults: fault.map(str::to_owned).into_iter().collect(),
            },
            from_start: None,
        }
    }

    fn told(forms: &[FormResult], sweep: &[FormResult]) -> Report {
        let mut report = Report::begin("tags", "Tags", 7);
        tell(&mut report, forms, sweep, "transactions");
        report.end(true);
        report
    }

    #[test]
    fn the_finding_tells_what_grows() {
        let sweep = |few, many| {
            let ours = |readers, queries| result(Form::Gesta, readers, queries, None);
            [ours(1, few), ours(350, many)]
        };
        let report = told(&[result(Form::Gesta, 35, 41, None)], &sweep(40, 43));
        assert!(report.valid, "{report}");
        assert_eq!(
            report.finding.replace('\u{a0}', " "),
            "Gesta's queries do not grow with the readers: 40 with 1 reader and 43 with 350 readers; idle, 0.2 queries a second."
        );
        let grown = told(&[], &sweep(40, 90)).finding;
        assert!(grown.starts_with("Gesta's queries grow with the readers"));
        assert!(!told(&[], &[]).valid);
    }

    /// Goal: a polled form that misses events has no result, and spoils nobody else's; Gesta's would.
    #[test]
    fn a_form_that_misses_events_is_told() {
        let missed = |form| result(form, 35, 90, Some("reader 3 missed 1"));
        let report = told(
            &[
                result(Form::Gesta, 35, 41, None),
                missed(Form::TagTableUnbounded),
            ],
            &[],
        );
        assert!(report.valid, "{report}");
        assert!(
            report.cautions[0].ends_with("reader 3 missed 1"),
            "{report}"
        );
        let row = &report.tables().next().unwrap().rows[1];
        let unknown = gesta_report::Cell::Unknown;
        assert_eq!((row.whose, &row.cells[3]), (Whose::Bad, &unknown));
        let other = result(Form::LikeBounded, 35, 9, None);
        assert!(!told(&[missed(Form::Gesta), other], &[]).valid);
    }
}
