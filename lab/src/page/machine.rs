//! The machine and the settings behind the figures, and the method in a few plain sentences.

use super::html::{Html, el};
use super::lines::{Line, Lines};
use super::numbers::{count, gibibytes, millis};
use super::section::{Section, bullets, heading, started};
use super::table::{Cell, Emphasis, Table, details, figure, words};

const METHOD: [&str; 6] = [
    "Closed loop: a fixed number of callers, each of which sends the next request when the last is answered; it shows the most that can be carried, \
     and hides what happens when requests come anyway.",
    "Open loop: requests come by a schedule, whether those before are answered or not, as users do; a request that had to wait to be sent counts \
     from its intended start, so a stall is charged to all that it delayed.",
    "p99 of 5 ms means: 99 of 100 requests took 5 ms or less; whoever makes a hundred requests meets the slowest of them too.",
    "Read back: after the load everything stored is read and compared with what was acknowledged; a run that lost, doubled, moved or changed one \
     event is no result.",
    "Noise: the same is measured in several rounds, and ± is half of the range of the rounds; a difference smaller than the noise says nothing.",
    "The load generator runs on a machine too: its processor time and how late its own timers are is recorded, and a figure that it limited is marked.",
];

pub(super) fn section(lines: &Lines) -> Section {
    let mut body = heading("Method");
    body.push(bullets(METHOD.map(str::to_owned)));
    body.push(machines(lines));
    body.push(databases(lines));
    body.push(details("Every run", runs(lines)));
    Section {
        lead: None,
        id: "machine",
        title: "Machine, settings and method",
        finding: finding(lines),
        is_result: true,
        body,
    }
}

fn machine(line: &Line) -> [String; 4] {
    let host = line.get("host");
    let memory = host
        .get("memory_bytes")
        .number()
        .filter(|memory| *memory > 0.0);
    [
        host.get("cpu").told(),
        host.get("cores").told(),
        memory.map_or_else(|| "–".into(), gibibytes),
        host.get("system").told(),
    ]
}

/// Groups of runs with the same facts, and how many they are.
fn grouped<const N: usize>(
    lines: &Lines,
    of: impl Fn(&Line) -> Option<[String; N]>,
) -> Vec<([String; N], usize)> {
    let mut all: Vec<([String; N], usize)> = Vec::new();
    for facts in lines.all.iter().filter_map(of) {
        match all.iter_mut().find(|(known, _)| *known == facts) {
            Some((_, times)) => *times += 1,
            None => all.push((facts, 1)),
        }
    }
    all
}

fn finding(lines: &Lines) -> String {
    let machines = grouped(lines, |line| Some(machine(line)));
    let first = match machines.first() {
        Some(([cpu, cores, memory, _], _)) if machines.len() == 1 => {
            format!("All was measured on one machine: {cpu}, {cores} cores, {memory}")
        }
        _ => format!(
            "These runs come from {} machines: compare within one only",
            machines.len()
        ),
    };
    let weak: Vec<&Line> = lines
        .all
        .iter()
        .filter(|line| durability(line).is_some_and(|word| word != "full"))
        .collect();
    let known = lines.all.iter().any(|line| durability(line).is_some());
    let durable = match (known, weak.is_empty()) {
        (false, _) => "",
        (true, true) => "; every acknowledgement meant that the event was safe on disk",
        (true, false) => "; not every acknowledgement meant that the event was safe on disk",
    };
    format!("{first}{durable}.")
}

/// What an acknowledgement meant: the weakest of the run's targets.
pub(super) fn durability(line: &Line) -> Option<&str> {
    let own = line.get("store.durability").text();
    let targets = line.result().get("targets");
    let peers = line.result().get("peers");
    let of_targets = targets
        .items()
        .filter_map(|one| one.get("facts.durability").text());
    // A peer whose acknowledgements mean something else is told apart in its table.
    let of_peers = peers
        .items()
        .filter(|one| one.get("comparable").flag() != Some(false))
        .filter_map(|one| one.get("durability").text())
        .filter(|word| !word.is_empty());
    let mut all: Vec<&str> = own.into_iter().chain(of_targets).chain(of_peers).collect();
    all.sort_by_key(|word| match *word {
        "none" => 0,
        "full" => 2,
        _ => 1,
    });
    all.first().copied()
}

fn machines(lines: &Lines) -> Html {
    let mut table = Table::new(
        "Machines",
        &["processor", "cores", "memory", "system", "runs"],
    );
    for ([cpu, cores, memory, system], times) in grouped(lines, |line| Some(machine(line))) {
        table.row(vec![
            words(cpu),
            figure(cores),
            figure(memory),
            words(system),
            figure(times.to_string()),
        ]);
    }
    table.draw()
}

fn databases(lines: &Lines) -> Html {
    let facts = grouped(lines, |line| {
        let store = line.get("store");
        store.is_there().then(|| {
            ["engine", "durability", "durability_detail"].map(|member| store.get(member).told())
        })
    });
    let mut table = Table::new(
        "Databases",
        &["database", "durability", "by these settings", "runs"],
    );
    for ([engine, durability, detail], times) in facts {
        let emphasis = if durability == "full" {
            Emphasis::Plain
        } else {
            Emphasis::Bad
        };
        table.styled(
            emphasis,
            vec![
                words(engine),
                words(durability),
                words(detail),
                figure(times.to_string()),
            ],
        );
    }
    let of_targets = lines.all.iter().flat_map(|line| {
        line.result().get("targets").items().map(|target| {
            ["engine", "durability", "durability_detail"]
                .map(|member| target.get("facts").get(member).told())
        })
    });
    let mut known: Vec<[String; 3]> = Vec::new();
    for facts in of_targets {
        if !known.contains(&facts) {
            let [engine, durability, detail] = facts.clone();
            table.row(vec![
                words(engine),
                words(durability),
                words(detail),
                Cell::Unknown,
            ]);
            known.push(facts);
        }
    }
    let mut all = table.draw();
    all.push(settings(lines));
    all
}

/// Settings by name, and the runs that had them.
type Settings<'a> = (Vec<(&'a str, String)>, Vec<String>);

/// Each set of settings once, with the runs that had it.
fn settings(lines: &Lines) -> Html {
    let mut sets: Vec<Settings<'_>> = Vec::new();
    for line in &lines.all {
        let set: Vec<(&str, String)> = line
            .get("store.settings")
            .members()
            .map(|(name, value)| (name, value.told()))
            .collect();
        if set.is_empty() {
            continue;
        }
        match sets.iter_mut().find(|(known, _)| *known == set) {
            Some((_, runs)) => runs.push(line.name()),
            None => sets.push((set, vec![line.name()])),
        }
    }
    let several = sets.len() > 1;
    let tables = sets.into_iter().map(|(set, runs)| {
        let mut table = Table::new("Settings of the database", &["setting", "value"]);
        for (name, value) in set {
            table.row(vec![words(name), words(value)]);
        }
        let of = match runs.as_slice() {
            _ if !several => "Settings of the database".into(),
            [first, _, _, _, ..] => {
                let more = runs.len() - 1;
                format!("Settings of the database in {first} and {more} others")
            }
            few => format!("Settings of the database in {}", few.join(", ")),
        };
        details(&of, table.draw())
    });
    tables.collect()
}

fn runs(lines: &Lines) -> Html {
    let mut table = Table::new(
        "Runs",
        &[
            "kind",
            "began (UTC)",
            "commit",
            "build",
            "database",
            "address",
            "durability",
            "round trip added",
            "seed",
            "finished",
            "result",
        ],
    );
    for line in &lines.all {
        let away = line.get("store.round_trip_ms").number();
        let is_valid = line.is_valid();
        let yes = |yes: bool| words(if yes { "yes" } else { "no" });
        table.styled(
            if is_valid {
                Emphasis::Plain
            } else {
                Emphasis::Bad
            },
            vec![
                words(line.kind.as_str()),
                words(started(line)),
                words(line.get("commit").told()),
                words(line.get("build").told()),
                words(line.engine().unwrap_or_default()),
                words(line.get("store").text_or_empty("url")),
                words(durability(line).unwrap_or_default()),
                away.map_or(Cell::Unknown, |away| figure(millis(away))),
                line.get("seed")
                    .number()
                    .map_or(Cell::Unknown, |seed| figure(seed_told(seed))),
                yes(line.get("complete").flag() == Some(true)),
                yes(is_valid),
            ],
        );
    }
    table.draw()
}

/// A seed is a name, not a quantity.
fn seed_told(seed: f64) -> String {
    if seed.fract() == 0.0 {
        format!("{seed:.0}")
    } else {
        count(seed)
    }
}

/// The words of the page.
pub(super) fn glossary() -> Html {
    const WORDS: [(&str, &str); 6] = [
        (
            "event",
            "a fact that is stored once and never changed, such as “seat 7 was reserved”",
        ),
        (
            "append",
            "one request that stores one or more events of one stream; answered when they are safe",
        ),
        (
            "stream",
            "the events of one thing, such as one order, in their order",
        ),
        (
            "p50, p99, p99.9",
            "half, 99 % and 99.9 % of the requests took this long or less",
        ),
        (
            "connection, caller, worker",
            "someone who has one request under way at a time",
        ),
        ("1 ms", "a thousandth of a second"),
    ];
    let items = WORDS.iter().map(|(word, meaning)| {
        el("div")
            .with(el("dt").with(*word))
            .with(el("dd").with(*meaning))
    });
    el("dl").class("words").all(items).into()
}
