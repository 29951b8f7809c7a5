//! Reads files of JSON lines. What cannot be read is left out and told; only an empty rest is a failure.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::look::Look;
use super::numbers::moment;
use crate::failure::{Context, Result, fail};
use crate::report::FORMAT;

/// One run.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// The command.
    pub(super) kind: String,
    value: Value,
}

impl Line {
    /// Any member.
    pub(super) fn get(&self, path: &str) -> Look<'_> {
        Look::at(&self.value).get(path)
    }

    /// The figures.
    pub(super) fn result(&self) -> Look<'_> {
        self.get("result")
    }

    /// The parameters.
    pub(super) fn workload(&self) -> Look<'_> {
        self.get("workload")
    }

    /// When it began, to the minute.
    pub(super) fn started(&self) -> String {
        match self.get("started").text() {
            Some(started) => format!("{} UTC", moment(started)),
            None => "unknown time".into(),
        }
    }

    /// The run in a few words.
    pub(super) fn name(&self) -> String {
        format!("{} of {}", self.kind, self.started())
    }

    /// The database, or the first of the targets.
    pub(super) fn engine(&self) -> Option<&str> {
        let targets = self.result().get("targets");
        let of_targets = || targets.items().find_map(|t| t.get("facts.engine").text());
        self.get("store.engine").text().or_else(of_targets)
    }

    /// True if the line says that it is a result, and no check in it says otherwise.
    pub(super) fn is_valid(&self) -> bool {
        self.get("valid").flag() == Some(true) && self.complaints().is_empty()
    }

    /// What the run itself says against it, in words.
    pub(super) fn problems(&self) -> Vec<String> {
        self.get("problems").items().map(Look::told).collect()
    }

    /// What the checks after the load found wrong, in words.
    pub(super) fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut see = |object: Look<'_>| {
            if let Some(complaint) = complaint(object.get("read_back")) {
                complaints.push(complaint);
            }
        };
        if self.kind == "compare-peers" {
            // A peer that broke its word has no figures; that spoils nobody else's.
            let peers = self.result().get("peers").items();
            let ours = peers.filter(|peer| peer.text_or_empty("name").starts_with("gesta"));
            ours.for_each(|peer| peer.each_object(&mut see));
        } else {
            self.result().each_object(&mut see);
        }
        complaints.dedup();
        complaints
    }
}

/// What a read-back found wrong.
fn complaint(read_back: Look<'_>) -> Option<String> {
    let told: Vec<String> = ["lost", "doubled", "misplaced", "altered", "uninvited"]
        .iter()
        .filter_map(|what| {
            let count = read_back.get(what).number().filter(|count| *count > 0.0)?;
            Some(format!("{count} {what}"))
        })
        .collect();
    if told.is_empty() {
        return None;
    }
    let first = read_back.get("findings").items().next();
    let first = first
        .and_then(Look::text)
        .map(|text| format!("; first: {text}"));
    Some(format!(
        "of {} acknowledged events, reading back found {}{}",
        super::numbers::count(read_back.number_or_0("acknowledged")),
        told.join(", "),
        first.unwrap_or_default()
    ))
}

/// All that was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    /// Runs, in the order of the files.
    pub(super) all: Vec<Line>,
    /// What was left out, and why.
    pub(super) notes: Vec<String>,
}

impl Lines {
    /// Runs of one kind.
    pub(super) fn of<'a>(&'a self, kind: &str) -> Vec<&'a Line> {
        self.all.iter().filter(|line| line.kind == kind).collect()
    }

    /// True if there is a run of one of these kinds.
    pub(super) fn has(&self, kinds: &[&str]) -> bool {
        self.all
            .iter()
            .any(|line| kinds.contains(&line.kind.as_str()))
    }
}

/// The kind of the lines that a long run writes as it goes.
const SLICE: &str = "soak-slice";
/// The kind of the line at its end.
const WHOLE: &str = "soak";

impl Lines {
    /// Slices of a run that wrote its last line are in that line; the others make a run that did not end.
    fn fold_slices(&mut self) {
        let (slices, mut others): (Vec<Line>, Vec<Line>) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|line| line.kind == SLICE);
        let mut open: Vec<(String, Vec<Line>)> = Vec::new();
        for slice in slices {
            let began = slice.get("started").told();
            if others
                .iter()
                .any(|line| line.kind == WHOLE && line.get("started").told() == began)
            {
                continue;
            }
            match open.iter_mut().find(|(other, _)| *other == began) {
                Some((_, run)) => run.push(slice),
                None => open.push((began, vec![slice])),
            }
        }
        others.extend(open.into_iter().map(|(_, run)| unfinished(&run)));
        self.all = others;
    }
}

/// A run of these slices.
fn unfinished(run: &[Line]) -> Line {
    let mut value = run.last().map_or(Value::Null, |line| line.value.clone());
    let slices = run.iter().map(|line| line.value["result"]["slice"].clone());
    value["kind"] = WHOLE.into();
    value["result"] = serde_json::json!({ "slices": slices.collect::<Vec<_>>() });
    value["complete"] = false.into();
    value["valid"] = run.iter().all(Line::is_valid).into();
    value["problems"] =
        serde_json::json!(["the run did not come to its end, so nothing was read back"]);
    Line {
        kind: WHOLE.into(),
        value,
    }
}

/// Reads the files.
///
/// # Errors
/// A file cannot be read, or no line of them is a run.
pub(super) fn read(files: &[PathBuf]) -> Result<Lines> {
    let mut lines = Lines::default();
    for file in files {
        let bytes = std::fs::read(file).context(file.display())?;
        lines.add(file, &bytes);
    }
    lines.fold_slices();
    if lines.all.is_empty() {
        let names: Vec<String> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let mut sentence = format!("no run in {}", names.join(", "));
        for note in &lines.notes {
            sentence.push_str("; ");
            sentence.push_str(note);
        }
        return fail(sentence);
    }
    Ok(lines)
}

impl Lines {
    pub(super) fn add(&mut self, file: &Path, bytes: &[u8]) {
        let file = file
            .file_name()
            .unwrap_or(file.as_os_str())
            .to_string_lossy();
        let is_whole = bytes.last().is_none_or(|last| *last == b'\n');
        let texts: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let last = texts.len().saturating_sub(1);
        for (index, text) in texts.into_iter().enumerate() {
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match parse(text) {
                Ok(line) => self.all.push(line),
                Err(Unread::Broken) if index == last && !is_whole => self.notes.push(format!(
                    "{file}, line {}: cut off in the middle, as by a crash; left out",
                    index + 1
                )),
                Err(Unread::Broken) => self.notes.push(format!(
                    "{file}, line {}: not a JSON line; left out",
                    index + 1
                )),
                Err(Unread::Format(found)) => self.notes.push(format!(
                    "{file}, line {}: its format is {found}, this program reads format {FORMAT}; left out",
                    index + 1
                )),
            }
        }
    }
}

enum Unread {
    Broken,
    Format(String),
}

fn parse(text: &[u8]) -> std::result::Result<Line, Unread> {
    let value: Value = serde_json::from_slice(text).map_err(|_| Unread::Broken)?;
    let look = Look::at(&value);
    if !value.is_object() {
        return Err(Unread::Broken);
    }
    if look.get("format").number() != Some(f64::from(FORMAT)) {
        let found = look.get("format");
        return Err(Unread::Format(if found.is_there() {
            found.told()
        } else {
            "missing".into()
        }));
    }
    let kind = look
        .get("kind")
        .text()
        .unwrap_or("without a kind")
        .to_owned();
    Ok(Line { kind, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Lines {
        let mut lines = Lines::default();
        lines.add(Path::new("dir/a.jsonl"), text.as_bytes());
        lines
    }

    #[test]
    fn what_cannot_be_read_is_left_out_and_told() {
        let read = lines(concat!(
            "{\"format\":1,\"kind\":\"append\"}\n",
            "\n",
            "[]\n",
            "{\"format\":2,\"kind\":\"append\"}\n",
            "{\"kind\":\"append\"}\n",
            "{\"format\":1,\"kind\":\"rea"
        ));
        assert_eq!(read.all.len(), 1);
        assert_eq!(
            read.notes,
            [
                "a.jsonl, line 3: not a JSON line; left out",
                "a.jsonl, line 4: its format is 2, this program reads format 1; left out",
                "a.jsonl, line 5: its format is missing, this program reads format 1; left out",
                "a.jsonl, line 6: cut off in the middle, as by a crash; left out",
            ]
        );
        assert!(lines("\u{feff}").all.is_empty());
        assert!(lines("").notes.is_empty());
    }

    #[test]
    fn a_line_that_lost_an_event_is_no_result_whatever_it_says() {
        let clean = r#"{"format":1,"kind":"x","valid":true,"result":{"a":[{"read_back":{"acknowledged":5,"lost":0}}]}}"#;
        assert!(lines(clean).all[0].is_valid());
        let lost = clean.replace("\"lost\":0", "\"lost\":2,\"findings\":[\"revision 3\"]");
        let read = lines(&lost);
        assert!(!read.all[0].is_valid());
        assert_eq!(
            read.all[0].complaints(),
            ["of 5 acknowledged events, reading back found 2 lost; first: revision 3"]
        );
        let problem = clean.replace("\"valid\"", "\"problems\":[\"p\"],\"valid\"");
        assert!(
            lines(&problem).all[0].is_valid(),
            "the run says that it is one all the same"
        );
        let said = clean.replace("\"valid\":true", "\"valid\":false");
        assert!(!lines(&said).all[0].is_valid());
        assert!(!lines("{\"format\":1}").all[0].is_valid());
    }

    #[test]
    fn slices_of_a_run_that_did_not_end_make_a_run() {
        let slice = |started: &str, number: u32| {
            format!(
                r#"{{"format":1,"kind":"soak-slice","started":"{started}","valid":true,"result":{{"slice":{{"from_seconds":{number}}}}}}}"#
            )
        };
        let whole =
            r#"{"format":1,"kind":"soak","started":"a","valid":true,"result":{"slices":[]}}"#;
        let all = [slice("a", 0), slice("b", 0), whole.into(), slice("b", 60)];
        let mut read = lines(&all.join("\n"));
        read.fold_slices();
        assert_eq!(read.all.len(), 2);
        let open = &read.all[1];
        assert_eq!(
            (
                open.kind.as_str(),
                open.result().get("slices").items().count()
            ),
            ("soak", 2)
        );
        assert_eq!(open.get("complete").flag(), Some(false));
    }
}
