//! `compare-peers`: other systems behind the same workload.

use super::chart::{Axis, LineChart, Point, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, count, list, millis, times};
use super::section::{
    Looks, Section, bullets, distinct, is_ours, newest_first, phase_tip, runs, side_by_side,
};
use super::table::{Cell, Emphasis, Table, details, figure, words};

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("compare-peers"));
    let newest = all.first()?;
    Some(Section {
        lead: None,
        id: "peers",
        title: "Beside other systems",
        finding: finding(newest),
        is_result: newest.is_valid() && lost(newest).is_empty(),
        body: runs(&all, draw),
    })
}

fn peers(line: &Line) -> Vec<Look<'_>> {
    line.result().get("peers").items().collect()
}

fn name<'a>(peer: Look<'a>) -> &'a str {
    peer.get("name").text().unwrap_or("unnamed")
}

/// Workers and events of a cell.
type At = (f64, f64);

fn at(cell: Look<'_>) -> At {
    (cell.number_or_0("workers"), cell.number_or_0("events"))
}

fn cell<'a>(peer: Look<'a>, place: At) -> Option<Look<'a>> {
    peer.get("cells").items().find(|cell| at(*cell) == place)
}

fn rate(peer: Look<'_>, place: At) -> Option<f64> {
    cell(peer, place)?.get("phase.events_per_second").number()
}

fn places(line: &Line) -> Vec<At> {
    let peers = peers(line);
    let cells: Vec<Look<'_>> = peers
        .iter()
        .flat_map(|peer| peer.get("cells").items())
        .collect();
    let mut all = Vec::new();
    for events in distinct(cells.iter().map(|cell| cell.number_or_0("events"))) {
        for workers in distinct(cells.iter().map(|cell| cell.number_or_0("workers"))) {
            if cells.iter().any(|cell| at(*cell) == (workers, events)) {
                all.push((workers, events));
            }
        }
    }
    all
}

fn place_told((workers, events): At) -> String {
    format!(
        "{} × {} event{}",
        count(workers),
        count(events),
        if events == 1.0 { "" } else { "s" }
    )
}

fn lost(line: &Line) -> Vec<String> {
    let mut told = Vec::new();
    for peer in peers(line) {
        for cell in peer.get("cells").items() {
            let lost = cell.number_or_0("read_back.lost");
            if lost > 0.0 {
                told.push(format!("{}: {} events lost", name(peer), count(lost)));
            }
        }
    }
    told
}

fn finding(line: &Line) -> String {
    let peers = peers(line);
    let ours = peers
        .iter()
        .find(|peer| is_ours(&name(**peer).to_lowercase()));
    let places = places(line);
    let mut ahead = 0;
    let mut behind = Vec::new();
    if let Some(ours) = ours {
        for place in &places {
            let Some(own) = rate(*ours, *place) else {
                continue;
            };
            let others = peers.iter().filter(|peer| name(**peer) != name(*ours));
            let best = others
                .filter_map(|peer| Some((rate(*peer, *place)?, name(*peer))))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            match best {
                Some((other, who)) if other > own => behind.push(format!(
                    "{who} at {} ({})",
                    place_told(*place),
                    times(other / own.max(1e-9))
                )),
                Some(_) => ahead += 1,
                None => {}
            }
        }
    }
    let systems = peers
        .iter()
        .filter(|peer| peer.get("cells").items().next().is_some())
        .count();
    match (ahead, behind.len()) {
        (0, 0) => format!("{systems} systems were measured."),
        (all, 0) => {
            format!("Of {systems} systems Gesta stored the most events at all {all} loads.")
        }
        (ahead, _) => format!(
            "Of {systems} systems Gesta stored the most events at {ahead} of {} loads; ahead of it: {}.",
            ahead + behind.len(),
            list(&behind)
        ),
    }
}

fn draw(line: &Line) -> Html {
    let peers = peers(line);
    let places = places(line);
    let looks = Looks::of(peers.iter().map(|peer| look_name(*peer)));
    let batches = distinct(places.iter().map(|place| place.1));
    let charts = batches
        .into_iter()
        .map(|events| chart(&peers, &places, events, &looks));
    let mut all = side_by_side(charts.collect::<Vec<_>>());
    all.push(table(&peers, &places));
    all.push(bullets(lost(line)));
    let notes = peers.iter().filter_map(|peer| {
        let note = peer.get("note").text().filter(|note| !note.is_empty())?;
        Some(format!("{}: {note}", name(*peer)))
    });
    all.push(details("How each is driven", bullets(notes)));
    all
}

/// Gesta is known by its look whatever its letters.
fn look_name<'a>(peer: Look<'a>) -> &'a str {
    if name(peer).eq_ignore_ascii_case("gesta") {
        "gesta"
    } else {
        name(peer)
    }
}

fn chart(peers: &[Look<'_>], places: &[At], events: f64, looks: &Looks) -> Html {
    let workers: Vec<f64> = places
        .iter()
        .filter(|place| place.1 == events)
        .map(|place| place.0)
        .collect();
    if workers.len() < 2 {
        return Html::default();
    }
    let mut told = Vec::new();
    let series = peers.iter().filter_map(|peer| {
        let points = workers.iter().filter_map(|workers| {
            let value = rate(*peer, (*workers, events))?;
            let phase = cell(*peer, (*workers, events))?.get("phase");
            told.push(format!(
                "{} with {} workers: {}",
                name(*peer),
                count(*workers),
                count(value)
            ));
            Some(Point::new(
                *workers,
                value,
                format!("{} workers: {}", count(*workers), phase_tip(phase)),
            ))
        });
        let points: Vec<Point> = points.collect();
        (!points.is_empty())
            .then(|| Series::new(name(*peer), looks.of_name(look_name(*peer)), points))
    });
    let series = series.collect();
    LineChart {
        title: format!(
            "{} event{} per append",
            count(events),
            if events == 1.0 { "" } else { "s" }
        ),
        description: told.join("; "),
        x: Axis::new(
            "workers, each with an append under way",
            Scale::Log,
            Unit::Count,
        ),
        y: Axis::new("events/s", Scale::Log, Unit::Count),
        series,
        limits: Vec::new(),
        marks: Vec::new(),
        note: None,
    }
    .draw()
}

fn table(peers: &[Look<'_>], places: &[At]) -> Html {
    let heads: Vec<String> = places.iter().map(|place| place_told(*place)).collect();
    let mut all = vec!["system", "version", "durability"];
    all.extend(heads.iter().map(String::as_str));
    all.push("left out");
    let mut table = Table::new(
        "Events/s (p99 of an append), by workers × events per append",
        &all,
    );
    for peer in peers {
        let mut cells = vec![
            words(name(*peer)),
            words(peer.text_or_empty("version")),
            words(peer.text_or_empty("durability")),
        ];
        cells.extend(places.iter().map(|place| match cell(*peer, *place) {
            Some(cell) => figure(format!(
                "{} ({})",
                count(cell.number_or_0("phase.events_per_second")),
                millis(cell.number_or_0("phase.latency_ms.p99"))
            )),
            None => Cell::Unknown,
        }));
        cells.push(words(peer.text_or_empty("skipped")));
        let ours = look_name(*peer) == "gesta";
        table.styled(
            if ours {
                Emphasis::Ours
            } else {
                Emphasis::Plain
            },
            cells,
        );
    }
    table.draw()
}
