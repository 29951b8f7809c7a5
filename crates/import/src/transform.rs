//! Turns events by a command of the user's: one process, which gets a line for each event and answers each with a line.
//!
//! Why: payloads of Java serialization, Kryo or protobuf can be read only by the program that wrote them. A JVM takes a
//! second to start, so it is started once.
//!
//! The protocol: one JSON object per line, in UTF-8, in both directions; the answers come in the order of the events.
//! An event has `n` (its number, from 1), `key`, `sequence`, `place`, `data` (JSON) or `data_base64`, and if the source
//! knows them `type`, `manifest`, `adapter_manifest`, `serializer`, `metadata` or `metadata_base64`, `tags`, `time`,
//! `writer`, `tenant`. An answer has `n`, and any of `type`, `data` or `data_base64`, `metadata` or `metadata_base64`
//! and `tags`, each of which replaces what the source had; or `leave_out: true`; or `error`, a text, which stops the
//! import. What the command writes to its standard error is shown to the user.
//!
//! Invariants: a page of events is turned at a time, and a line has at most 32 MiB, so memory is bounded; whoever does
//! not answer in time, answers another number or ends is told by name.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::convert::is_json_document;
use crate::event::{Role, SourceEvent};

/// The longest line, in bytes.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;

#[derive(Serialize)]
struct Question<'a> {
    n: u64,
    key: &'a str,
    sequence: u64,
    place: String,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter_manifest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serializer: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_base64: Option<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    n: u64,
    #[serde(rename = "type")]
    event_type: Option<String>,
    data: Option<Box<RawValue>>,
    data_base64: Option<String>,
    metadata: Option<Box<RawValue>>,
    metadata_base64: Option<String>,
    tags: Option<Vec<String>>,
    #[serde(default)]
    leave_out: bool,
    error: Option<String>,
}

/// A running command.
#[derive(Debug)]
pub struct Transform {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The number of the last event that was answered.
    answered: u64,
    longest: Duration,
}

impl Transform {
    /// Starts the command by the shell. Each answer may take `longest`.
    ///
    /// # Errors
    /// `Unsupported` if it cannot be started.
    pub fn start(command: &str, longest: Duration) -> Result<Self> {
        let refuse = |why: String| Error::from(ErrorKind::Unsupported(format!("transform: {why}")));
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| refuse(format!("the command cannot be started: {error}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(refuse("the command has no standard input or output".into()));
        };
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
            answered: 0,
            longest,
        })
    }

    /// Turns events. Those that the command leaves out come back with that role.
    ///
    /// # Errors
    /// `Unsupported` if the command ends, does not answer in time, or answers what it may not.
    ///
    /// # Cancel safety
    /// None: the command must not be used any more.
    pub async fn turn(&mut self, events: Vec<SourceEvent>) -> Result<Vec<SourceEvent>> {
        let first = self.answered + 1;
        let numbered = || (first..).zip(&events);
        let (input, output, longest) = (&mut self.input, &mut self.output, self.longest);
        let ask = async {
            for (n, event) in numbered() {
                let line = line_of(n, event).map_err(Fault::Ours)?;
                if input.write_all(&line).await.is_err() {
                    // The command has ended, which the other side tells better.
                    return Ok(());
                }
            }
            input.flush().await.ok();
            Ok(())
        };
        let hear = async {
            let mut answers = Vec::with_capacity(events.len());
            for (n, event) in numbered() {
                let mut line = Vec::new();
                let mut limited = (&mut *output).take(LINE_BYTES_MAX);
                let read = limited.read_until(b'\n', &mut line);
                let Ok(read) = tokio::time::timeout(longest, read).await else {
                    let why = format!(
                        "has no answer after {longest:?}; does the command write out each answer at once?"
                    );
                    return Err(Fault::Answer(n, event, why));
                };
                let is_whole =
                    matches!(read, Ok(bytes) if bytes > 0) && line.last() == Some(&b'\n');
                if !is_whole {
                    return Err(match line.len() as u64 {
                        LINE_BYTES_MAX => {
                            let why = format!("its answer is longer than {LINE_BYTES_MAX} bytes");
                            Fault::Answer(n, event, why)
                        }
                        _ => Fault::Ended(n, event),
                    });
                }
                answers.push((n, event, line));
            }
            Ok(answers)
        };
        // The two sides go on at once, since a command may answer before it has read everything.
        let answers = match tokio::try_join!(ask, hear) {
            Ok(((), answers)) => answers,
            Err(Fault::Ours(error)) => return Err(error),
            Err(Fault::Ended(n, event)) => {
                let named = event.named();
                let ended = tokio::time::timeout(Duration::from_secs(5), self.child.wait()).await;
                let how = match ended {
                    Ok(Ok(status)) => format!("has ended ({status})"),
                    _ => "has closed its standard output".to_owned(),
                };
                return Err(failed(format!(
                    "the command {how} before it answered event {n}, {named}"
                )));
            }
            Err(Fault::Answer(n, event, why)) => {
                return Err(failed(format!("event {n}, {}: {why}", event.named())));
            }
        };
        let mut turned = Vec::with_capacity(events.len());
        for (n, event, line) in answers {
            turned.push(apply(n, event, &line)?);
        }
        self.answered += events.len() as u64;
        Ok(turned)
    }
}

/// Why events were not turned.
enum Fault<'a> {
    Ours(Error),
    /// The command has ended before it answered this event.
    Ended(u64, &'a SourceEvent),
    /// It did not answer this event as it must.
    Answer(u64, &'a SourceEvent, String),
}

fn failed(why: String) -> Error {
    ErrorKind::Unsupported(format!("transform: {why}")).into()
}

/// Makes the line that asks about an event.
fn line_of(n: u64, event: &SourceEvent) -> Result<Vec<u8>> {
    fn json(bytes: &[u8]) -> Option<&RawValue> {
        match is_json_document(bytes) {
            true => serde_json::from_slice(bytes).ok(),
            false => None,
        }
    }
    let data = match event.data_is_json {
        true => serde_json::from_slice(&event.data).ok(),
        false => json(&event.data),
    };
    let metadata = json(&event.metadata);
    let question = Question {
        n,
        key: &event.key,
        sequence: event.sequence,
        place: event.place.to_string(),
        event_type: event.event_type.as_deref(),
        manifest: event.manifest.as_deref(),
        adapter_manifest: event.adapter_manifest.as_deref(),
        serializer: event.serializer,
        data,
        data_base64: data.is_none().then(|| STANDARD.encode(&event.data)),
        metadata,
        metadata_base64: (metadata.is_none() && !event.metadata.is_empty())
            .then(|| STANDARD.encode(&event.metadata)),
        tags: &event.tags,
        time: event.time.map(|time| time.to_string()),
        writer: event.writer.as_deref(),
        tenant: event.tenant.as_deref(),
    };
    let mut line =
        serde_json::to_vec(&question).map_err(|error| failed(format!("event {n}: {error}")))?;
    // Within JSON a line break stands only between values, where a blank means the same.
    for byte in &mut line {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    line.push(b'\n');
    Ok(line)
}

/// Puts an answer in the place of what the source had.
fn apply(n: u64, event: &SourceEvent, line: &[u8]) -> Result<SourceEvent> {
    let wrong = |why: String| failed(format!("the answer to event {n}, {}, {why}", event.named()));
    let answer: Answer = serde_json::from_slice(line).map_err(|error| {
        let begin = String::from_utf8_lossy(&line[..line.len().min(80)]);
        wrong(format!(
            "cannot be read: {error}; it begins with {:?}",
            begin.trim_end()
        ))
    })?;
    if answer.n != n {
        return Err(wrong(format!("has the number {}", answer.n)));
    }
    if let Some(error) = answer.error {
        return Err(wrong(format!("is an error: {error}")));
    }
    let bytes =
        |json: Option<Box<RawValue>>, base64: Option<String>, what: &str| match (json, base64) {
            (Some(_), Some(_)) => Err(wrong(format!("has both {what} and {what}_base64"))),
            (Some(json), None) => Ok(Some(Bytes::copy_from_slice(json.get().as_bytes()))),
            (None, Some(text)) => match STANDARD.decode(text.as_bytes()) {
                Ok(bytes) => Ok(Some(Bytes::from(bytes))),
                Err(error) => Err(wrong(format!(
                    "has {what}_base64 that is no base64: {error}"
                ))),
            },
            (None, None) => Ok(None),
        };
    let mut turned = event.clone();
    let is_json = answer.data.is_some();
    if let Some(data) = bytes(answer.data, answer.data_base64, "data")? {
        turned.data = data;
        turned.data_is_json = is_json;
    }
    if let Some(metadata) = bytes(answer.metadata, answer.metadata_base64, "metadata")? {
        turned.metadata = metadata;
    }
    if let Some(event_type) = answer.event_type {
        turned.event_type = Some(event_type);
    }
    if let Some(tags) = answer.tags {
        turned.tags = tags;
    }
    if answer.leave_out {
        turned.role = Role::LeftOut("left out by the command");
    }
    Ok(turned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn events(count: u64) -> Vec<SourceEvent> {
        let event = |n: u64| SourceEvent {
            key: "a|1".into(),
            sequence: n,
            data: Bytes::from(format!("payload {n}")),
            tags: vec!["t".into()],
            ..SourceEvent::default()
        };
        (1..=count).map(event).collect()
    }

    /// Answers each line by what the shell prints for it; `$n` is its number.
    fn answering(print: &str) -> Transform {
        let command = format!("n=0; while read -r line; do n=$((n+1)); {print}; done");
        Transform::start(&command, LONG).unwrap()
    }

    #[tokio::test]
    async fn answers_replace_what_the_source_had() {
        let mut command = answering(
            r#"printf '{"n":%d,"type":"done","data":{"was":%d},"tags":["x","y"]}\n' $n $n"#,
        );
        // More than a pipe holds, and twice, by one process.
        for _ in 0..2 {
            let turned = command.turn(events(2_000)).await.unwrap();
            assert_eq!(turned.len(), 2_000);
            assert_eq!(turned[0].event_type.as_deref(), Some("done"));
            assert_eq!(turned[0].tags, ["x", "y"]);
            assert!(turned[1_999].data.starts_with(b"{\"was\":"));
        }
        let mut as_is = answering(r#"printf '{"n":%d}\n' $n"#);
        let turned = as_is.turn(events(1)).await.unwrap();
        assert_eq!(
            (&turned[0].data[..], turned[0].tags.len()),
            (&b"payload 1"[..], 1)
        );
        let mut less = answering(r#"printf '{"n":%d,"leave_out":true}\n' $n"#);
        let turned = less.turn(events(1)).await.unwrap();
        assert!(matches!(turned[0].role, Role::LeftOut(_)));
    }

    #[tokio::test]
    async fn a_command_that_dies_or_answers_wrongly_is_told() {
        for (command, count, why) in [
            (
                "exit 3",
                2,
                "has ended (exit status: 3) before it answered event 1",
            ),
            (
                "read line; echo '{\"n\":1}'; exit 4",
                2,
                "(exit status: 4) before it answered event 2",
            ),
            (
                "read line; echo nonsense; cat >/dev/null",
                1,
                "cannot be read",
            ),
            (
                "read line; echo '{\"n\":7}'; cat >/dev/null",
                1,
                "has the number 7",
            ),
            (
                "read line; echo '{\"n\":1,\"error\":\"no class X\"}'; cat >/dev/null",
                1,
                "no class X",
            ),
            (
                "read line; echo '{\"n\":1,\"data\":1,\"data_base64\":\"\"}'; cat >/dev/null",
                1,
                "both data",
            ),
            (
                "exec >&-; cat >/dev/null",
                1,
                "has closed its standard output",
            ),
        ] {
            let mut transform = Transform::start(command, LONG).unwrap();
            let error = transform
                .turn(events(count))
                .await
                .map(|_| ())
                .expect_err(command);
            let text = error.to_string();
            assert!(text.contains(why), "{command}: {text}");
        }
    }

    #[tokio::test]
    async fn a_command_that_is_silent_is_not_waited_for_for_ever() {
        let silent = |command| Transform::start(command, Duration::from_millis(20)).unwrap();
        // It is told also if there is more to ask than the pipe holds.
        for count in [3, 20_000] {
            let turned = silent("exec sleep 600").turn(events(count)).await;
            let error = turned.expect_err("silent").to_string();
            assert!(
                error.contains("event 1, ") && error.contains("no answer after 20ms"),
                "{error}"
            );
        }
    }

    /// What happened: all answers to a page together had ten times as long as one, so that a command which needs 0.13 s
    /// for an event failed at each page of 5,000. Goal: each answer has its own time.
    #[tokio::test]
    async fn each_answer_may_take_as_long_as_is_said() {
        let command =
            "n=0; while read -r line; do n=$((n+1)); sleep 0.3; printf '{\"n\":%d}\\n' $n; done";
        let mut slow = Transform::start(command, Duration::from_secs(2)).unwrap();
        // Ten times as long would be 20 s.
        let turned = slow.turn(events(70)).await.unwrap();
        assert_eq!(turned.len(), 70);
    }
}
