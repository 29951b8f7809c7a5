//! What a run says: which form costs the database how much, with few and many readers and older events.

use super::cell::{FormResult, Reading};
use super::form::Form;
use crate::cells;
use crate::report::numbers::{count, several};
use crate::report::{Chart, Report, Scale, Table, Unit, Whose};
use crate::tags::cell::float;

const FORMS: &str = "A burst of events for many readers by tag";
const SWEEP: &str = "The same burst for other numbers of readers, without older events";
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
    let time = "database time";
    if forms.iter().any(|form| form.older != forms[0].older) {
        let chart = Chart::lines(
            over_older,
            FORMS,
            ("older events", Scale::Steps),
            (&[time], Scale::Log),
        );
        report.chart(chart.by("form"));
    } else if !forms.is_empty() {
        report.chart(Chart::bars(over_older, FORMS, "form", time));
    }
    if !sweep.is_empty() {
        let chart = Chart::lines(
            "Queries over readers",
            SWEEP,
            ("readers", Scale::Log),
            (&["queries"], Scale::Log),
        );
        report.chart(chart.by("form"));
    }
    report.table(table(FORMS, forms));
    report.table(table(SWEEP, sweep).folded());
    report.text(format!("Queries are counted by {counted_by}."));
    report.text(
        "[D], akkadotnet, Akka.Persistence.Sql, issue 420, 2024: 2,000 events in seconds, 35 readers by tag; 4 hours of query time before a \
         change, 42 s after; tags as text took 1.9 to 2.2 s and a tag table 3.8 ms with 3,000,000 events. It was another database product: what \
         can be compared is that text tags grow with the table and bounded queries do not.",
    );
}

fn finding(forms: &[FormResult], sweep: &[FormResult]) -> String {
    let ours = || sweep.iter().filter(|one| one.name == Form::Gesta.name());
    let ends = (
        ours().min_by_key(|one| one.readers),
        ours().max_by_key(|one| one.readers),
    );
    if let (Some(few), Some(many)) = ends {
        let (from, to) = (float(few.burst.queries), float(many.burst.queries));
        let grow = if to <= from.max(1.0) * SAME {
            "do not grow"
        } else {
            "grow"
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
    let right = forms.iter().filter(|form| form.is_right());
    match right.min_by(|a, b| a.burst.database_ms.total_cmp(&b.burst.database_ms)) {
        Some(form) => format!(
            "{} took the least of the database's time: {} until {} had everything.",
            form.title,
            Unit::Millis.told(form.burst.database_ms),
            readers(form)
        ),
        None => "The run has no figures to compare.".into(),
    }
}

fn readers(form: &FormResult) -> String {
    several(float(form.readers), "reader")
}

/// Polled forms may miss events, and then have no result; Gesta may not.
fn object(report: &mut Report, forms: &[FormResult], sweep: &[FormResult]) {
    let mut told: Vec<String> = Vec::new();
    for form in forms.iter().chain(sweep).filter(|form| !form.is_right()) {
        let faults: Vec<String> = form.faults().collect();
        let (who, older) = (readers(form), count(float(form.older)));
        let problem = format!(
            "{} with {who} and {older} older events: {}",
            form.name,
            faults.join("; ")
        );
        if told.contains(&problem) {
            continue;
        }
        told.push(problem.clone());
        if form.name == Form::Gesta.name() {
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
    let columns = [
        ("form", Unit::Words),
        ("readers", Unit::Count),
        ("older events", Unit::Count),
        ("until the last reader has all", Unit::Seconds),
        ("until half of them have", Unit::Seconds),
        ("queries", Unit::Count),
        ("queries that append", Unit::Count),
        ("database time", Unit::Millis),
        ("idle queries/s", Unit::Count),
        ("reading all from the start", Unit::Seconds),
        ("its queries", Unit::Count),
        ("its database time", Unit::Millis),
        ("readers that have all", Unit::Words),
        ("faults", Unit::Words),
    ];
    let mut table = Table::new(title, columns);
    for form in results {
        let whose = if form.is_right() {
            Whose::named(form.name)
        } else {
            Whose::Bad
        };
        let burst = &form.burst;
        let start = form.from_start.as_ref();
        let of_start = |what: fn(&Reading) -> f64| start.map(what);
        table.row_of(
            whose,
            cells![
                form.title,
                form.readers,
                form.older,
                burst.seconds_to_last,
                burst.seconds_to_median,
                burst.queries,
                burst.append_queries,
                burst.database_ms,
                form.idle_queries_per_second,
                start.and_then(|start| start.seconds_to_last),
                start.map(|start| start.queries),
                of_start(|start| start.database_ms),
                format!("{} of {}", burst.complete_readers, form.readers),
                form.faults().collect::<Vec<_>>().join("; "),
            ],
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::CpuUse;

    fn result(form: Form, readers: u64, queries: u64, fault: Option<&str>) -> FormResult {
        let reading = Reading {
            seconds_to_last: fault.is_none().then_some(1.5),
            seconds_to_median: Some(0.5),
            queries,
            append_queries: Some(20),
            database_ms: 12.25,
            complete_readers: 1,
            faults: fault.map(str::to_owned).into_iter().collect(),
        };
        FormResult {
            name: form.name(),
            title: form.title(),
            older: 3_000_000,
            readers,
            fill_seconds: 1.0,
            idle_queries_per_second: 0.2,
            idle_database_ms_per_second: 0.1,
            write_seconds: 0.1,
            burst: reading.clone(),
            cpu: CpuUse::default(),
            from_start: Some(Reading {
                faults: Vec::new(),
                ..reading
            }),
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
        let sweep = [
            result(Form::Gesta, 1, 40, None),
            result(Form::Gesta, 350, 43, None),
            result(Form::TagTableBounded, 350, 1_108, None),
        ];
        let report = told(&[result(Form::Gesta, 35, 41, None)], &sweep);
        assert!(report.valid, "{report}");
        assert_eq!(
            report.finding.replace('\u{a0}', " "),
            "Gesta's queries do not grow with the readers: 40 with 1 reader and 43 with 350 readers; idle, 0.2 queries a second."
        );
        let grown = [
            result(Form::Gesta, 1, 40, None),
            result(Form::Gesta, 350, 90, None),
        ];
        assert!(
            told(&[], &grown)
                .finding
                .starts_with("Gesta's queries grow with the readers")
        );
        let alone = told(&[result(Form::LikeBounded, 35, 41, None)], &[]);
        assert!(
            alone
                .finding
                .starts_with("tags as text, LIKE, bounded took the least"),
            "{alone}"
        );
        assert!(!told(&[], &[]).valid);
    }

    /// Goal: a polled form that misses events has no result, and spoils nobody else's; Gesta's would.
    #[test]
    fn a_form_that_misses_events_is_told() {
        let missed = |form| {
            result(
                form,
                35,
                90,
                Some("reader 3 missed 1 (the first: event 38)"),
            )
        };
        let report = told(
            &[
                result(Form::Gesta, 35, 41, None),
                missed(Form::LikeUnbounded),
            ],
            &[],
        );
        assert!(report.valid, "{report}");
        let caution = "like-unbounded with 35 readers and 3,000,000 older events: reader 3 missed 1 (the first: event 38)";
        assert_eq!(report.cautions[0].replace('\u{a0}', " "), caution);
        let row = &report.tables().next().unwrap().rows[1];
        assert_eq!(
            (row.whose, &row.cells[3]),
            (Whose::Bad, &crate::report::Cell::Unknown)
        );
        assert!(
            !told(
                &[missed(Form::Gesta), result(Form::LikeBounded, 35, 9, None)],
                &[]
            )
            .valid
        );
    }
}
