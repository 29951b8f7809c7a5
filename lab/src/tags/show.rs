//! The results for people: a table per number of older events, one of the readers, and sentences.

use super::cell::FormResult;
use super::form::Form;
use crate::record::Table;
use crate::units::grouped;

/// All forms at one number of older events.
pub(super) fn forms(results: &[&FormResult]) -> Table {
    let mut table = Table::new([
        "form",
        "all have it s",
        "median s",
        "queries",
        "of them appends",
        "database ms",
        "idle queries/s",
        "from start s",
        "its queries",
        "its database ms",
        "readers",
    ]);
    for result in results {
        let burst = &result.burst;
        let start = result.from_start.as_ref();
        table.row([
            result.name.to_owned(),
            seconds(burst.seconds_to_last),
            seconds(burst.seconds_to_median),
            count(burst.queries),
            burst.append_queries.map_or("?".into(), count),
            format!("{:.1}", burst.database_ms),
            format!("{:.2}", result.idle_queries_per_second),
            seconds(start.and_then(|start| start.seconds_to_last)),
            start.map_or("-".into(), |start| count(start.queries)),
            start.map_or("-".into(), |start| format!("{:.1}", start.database_ms)),
            format!("{}/{}", burst.complete_readers, result.readers),
        ]);
    }
    table
}

/// The same burst for different numbers of readers.
pub(super) fn sweep(results: &[FormResult]) -> Table {
    let mut table = Table::new([
        "form",
        "readers",
        "queries",
        "of them appends",
        "database ms",
        "idle queries/s",
        "all have it s",
    ]);
    for result in results {
        table.row([
            result.name.to_owned(),
            count(result.readers),
            count(result.burst.queries),
            result.burst.append_queries.map_or("?".into(), count),
            format!("{:.1}", result.burst.database_ms),
            format!("{:.2}", result.idle_queries_per_second),
            seconds(result.burst.seconds_to_last),
        ]);
    }
    table
}

/// What came out, in sentences.
pub(super) fn sentences(forms: &[FormResult], sweep: &[FormResult]) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(growth(sweep));
    all.extend(costs(forms));
    for result in forms.iter().filter(|result| !result.is_right()) {
        all.push(format!(
            "{} with {} older events is no result: {}.",
            title(result),
            count(result.older),
            result.faults().next().unwrap_or_default()
        ));
    }
    all
}

/// "Gesta: 41 queries for 35 readers and 43 for 350; tag table, bounded: 128 and 1,108."
fn growth(sweep: &[FormResult]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for result in sweep {
        if !names.contains(&result.name) {
            names.push(result.name);
        }
    }
    let parts: Vec<String> = names
        .iter()
        .map(|name| {
            let of_form: Vec<&FormResult> = sweep.iter().filter(|r| r.name == *name).collect();
            let queries: Vec<String> = of_form
                .iter()
                .map(|r| format!("{} for {}", count(r.burst.queries), readers(r.readers)))
                .collect();
            format!("{}: {}", title(of_form[0]), and(&queries))
        })
        .collect();
    (!parts.is_empty()).then(|| format!("Queries of the burst. {}.", parts.join("; ")))
}

/// What each form took with the most older events.
fn costs(forms: &[FormResult]) -> Option<String> {
    let older = forms.iter().map(|result| result.older).max()?;
    let parts: Vec<String> = forms
        .iter()
        .filter(|result| result.older == older && result.is_right())
        .map(|result| {
            format!(
                "{}: {} ms and {:.1} queries/s idle, {} ms from the start",
                title(result),
                grouped(result.burst.database_ms),
                result.idle_queries_per_second,
                grouped(result.from_start.as_ref().map_or(0.0, |s| s.database_ms))
            )
        })
        .collect();
    let of = format!(
        "Database time of the burst with {} older events.",
        count(older)
    );
    (!parts.is_empty()).then(|| format!("{of} {}.", parts.join("; ")))
}

fn title(result: &FormResult) -> &str {
    if result.name == Form::Gesta.name() {
        "Gesta"
    } else {
        result.name
    }
}

fn readers(number: u64) -> String {
    match number {
        1 => "1 reader".into(),
        _ => format!("{} readers", count(number)),
    }
}

fn and(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn count(number: u64) -> String {
    grouped(super::cell::float(number))
}

fn seconds(value: Option<f64>) -> String {
    value.map_or("-".into(), |seconds| format!("{seconds:.3}"))
}

#[cfg(test)]
mod tests {
    use super::super::cell::Reading;
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

    #[test]
    fn sentences_tell_what_grows_and_what_is_no_result() {
        let sweep = [
            result(Form::Gesta, 1, 40, None),
            result(Form::Gesta, 350, 43, None),
            result(Form::TagTableBounded, 1, 25, None),
            result(Form::TagTableBounded, 350, 1_108, None),
        ];
        let missed = "reader 3 missed 1 (the first: event 38)";
        let forms = [
            result(Form::Gesta, 35, 41, None),
            result(Form::LikeUnbounded, 35, 90, Some(missed)),
        ];
        assert_eq!(
            sentences(&forms, &sweep),
            [
                "Queries of the burst. Gesta: 40 for 1 reader and 43 for 350 readers; \
                 tag-table-bounded: 25 for 1 reader and 1,108 for 350 readers.",
                "Database time of the burst with 3,000,000 older events. \
                 Gesta: 12 ms and 0.2 queries/s idle, 12 ms from the start.",
                "like-unbounded with 3,000,000 older events is no result: \
                 reader 3 missed 1 (the first: event 38).",
            ]
        );
        assert!(sentences(&[], &[]).is_empty());
    }

    #[test]
    fn a_form_without_a_result_shows_no_time() {
        let missed = result(Form::LikeUnbounded, 35, 90, Some("reader 3 missed 1"));
        let table = forms(&[&missed]).to_string();
        let row = table.lines().nth(1).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..3], ["like-unbounded", "-", "0.500"]);
    }
}
