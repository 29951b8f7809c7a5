//! What a run says: which form costs the database how much, with few and many readers and older events.

use super::{Form, FormResult};
use crate::cells;
use crate::report::numbers::{count, several};
use crate::report::{Chart, Report, Scale, Table, Unit, Whose};

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
    if forms
        .iter()
        .any(|form| form.plan.older != forms[0].plan.older)
    {
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
    let ours = || sweep.iter().filter(|one| one.form == Form::Gesta);
    let ends = (
        ours().min_by_key(|one| one.plan.readers),
        ours().max_by_key(|one| one.plan.readers),
    );
    if let (Some(few), Some(many)) = ends {
        let (from, to) = (
            (few.burst.spent.queries as f64),
            (many.burst.spent.queries as f64),
        );
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
    match right.min_by(|a, b| {
        a.burst
            .spent
            .database_ms
            .total_cmp(&b.burst.spent.database_ms)
    }) {
        Some(form) => format!(
            "{} took the least of the database's time: {} until {} had everything.",
            form.form.title(),
            Unit::Millis.told(form.burst.spent.database_ms),
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
    let columns = [
        ("form", Unit::Words),
        ("readers", Unit::Count),
        ("older events", Unit::Count),
        ("until the last reader has all", Unit::Seconds),
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
        let whose = match (form.is_right(), form.form) {
            (false, _) => Whose::Bad,
            (true, Form::Gesta) => Whose::Ours,
            (true, _) => Whose::Other,
        };
        let (burst, start) = (&form.burst, form.from_start.as_ref());
        let burst_cells = cells![
            form.form.title(),
            form.plan.readers,
            form.plan.older,
            burst.seconds_to_last,
            burst.spent.queries,
            burst.spent.appends,
            burst.spent.database_ms,
            form.idle_queries_per_second
        ];
        let start_cells = cells![
            start.and_then(|start| start.seconds_to_last),
            start.map(|start| start.spent.queries),
            start.map(|start| start.spent.database_ms),
            format!("{} of {}", burst.complete_readers, form.plan.readers),
            form.faults().join("; "),
        ];
        table.row_of(whose, [burst_cells, start_cells].concat());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Spent;
    use crate::tags::Reading;
    use crate::tags::plan::Plan;

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
                missed(Form::LikeUnbounded),
            ],
            &[],
        );
        assert!(report.valid, "{report}");
        assert!(
            report.cautions[0].ends_with("reader 3 missed 1"),
            "{report}"
        );
        let row = &report.tables().next().unwrap().rows[1];
        let unknown = crate::report::Cell::Unknown;
        assert_eq!((row.whose, &row.cells[3]), (Whose::Bad, &unknown));
        let other = result(Form::LikeBounded, 35, 9, None);
        assert!(!told(&[missed(Form::Gesta), other], &[]).valid);
    }
}
