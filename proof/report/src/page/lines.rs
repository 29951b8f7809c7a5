//! Reads files of JSON lines. What cannot be read is left out and told; only an empty rest is a failure.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::file::up_to;
use serde_json::Value;

use crate::failure::{Context, Failure, Result, fail};
use crate::report::{FORMAT, Part, Report};

/// Largest file; also a pipe is read so far.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// All that was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    /// Runs, in the order of the files.
    pub(super) all: Vec<Report>,
    /// What was left out, and why.
    pub(super) notes: Vec<String>,
}

/// Reads the files.
///
/// # Errors
/// A file cannot be read, or no line of them is a run.
pub(super) fn read(files: &[PathBuf]) -> Result<Lines> {
    let mut lines = Lines::default();
    for file in files {
        let opened = File::open(file).context(file.display())?;
        let bytes = up_to(opened, FILE_BYTES_MAX).map_err(Failure);
        let bytes = bytes.context(file.display())?;
        lines.add(file, &bytes);
    }
    lines.fold_pieces();
    lines.notes.iter().for_each(|note| eprintln!("{note}"));
    if lines.all.is_empty() {
        let notes = lines.notes.join("; ");
        return fail(format!("no run in {files:?}; {notes}"));
    }
    Ok(lines)
}

impl Lines {
    fn add(&mut self, file: &Path, bytes: &[u8]) {
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
                Ok(report) => self.all.push(report),
                Err(why) => {
                    let is_cut = why == BROKEN && index == last && !is_whole;
                    let why = if is_cut {
                        "cut off in the middle, as by a crash"
                    } else {
                        &why
                    };
                    self.notes
                        .push(format!("{file}, line {}: {why}; left out", index + 1));
                }
            }
        }
    }

    /// Pieces of a run that wrote its last line are in that line; the others make a run that did not end.
    fn fold_pieces(&mut self) {
        let all = std::mem::take(&mut self.all);
        let (pieces, mut others): (Vec<Report>, Vec<Report>) =
            all.into_iter().partition(|report| report.piece);
        for piece in pieces {
            let is_same = |other: &&mut Report| {
                (&other.kind, &other.started) == (&piece.kind, &piece.started)
            };
            match others.iter_mut().find(is_same) {
                Some(other) if other.piece => other.join(piece),
                Some(_) => {}
                None => others.push(piece),
            }
        }
        for report in others.iter_mut().filter(|report| report.piece) {
            report.complete = false;
            report.caution("the run did not come to its end, so nothing was read back");
        }
        self.all = others;
    }
}

impl Report {
    /// Adds the rows of the next piece.
    fn join(&mut self, piece: Report) {
        for part in &mut self.parts {
            if let Part::Table(table) = part {
                let more = piece.tables().find(|more| more.title == table.title);
                table
                    .rows
                    .extend(more.into_iter().flat_map(|more| more.rows.clone()));
            }
        }
        self.valid &= piece.valid;
        self.problems.extend(piece.problems);
        self.finding = piece.finding;
    }
}

const BROKEN: &str = "not a JSON line";

fn parse(text: &[u8]) -> std::result::Result<Report, String> {
    let value: Value = serde_json::from_slice(text).map_err(|_| BROKEN)?;
    if !value.is_object() {
        return Err(BROKEN.into());
    }
    if value["format"] != FORMAT {
        let found = match &value["format"] {
            Value::Null => "missing".into(),
            found => found.to_string(),
        };
        return Err(format!(
            "its format is {found}, this program draws format {FORMAT}"
        ));
    }
    // The text again and not the value: of two members with the same name the reader would take the last one silently.
    let report: Report = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if report.kind.is_empty() {
        return Err("it does not name its kind".into());
    }
    Ok(report)
}
