//! Reads a recording of `strace -f -y -xx`: which calls changed the files of one directory, in which order they ended.
//!
//! A call that was interrupted in the recording (`<unfinished ...>`) counts where it was resumed. Writes that end while
//! a sync is under way are not covered by that sync, so a sync remembers where it began.

use std::collections::HashMap;
use std::path::Path;

/// The calls that are recorded.
pub(crate) const CALLS: [&str; 22] = [
    "open",
    "openat",
    "creat",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "truncate",
    "ftruncate",
    "fallocate",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "copy_file_range",
];

/// One change of the directory.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    /// A file exists from now on, if it did not before.
    Create {
        file: String,
    },
    Write {
        file: String,
        at: u64,
        data: Vec<u8>,
    },
    Truncate {
        file: String,
        length: u64,
    },
    /// Everything that had ended when call number `began` ended is on disk.
    Sync {
        file: String,
        began: u64,
    },
    /// The same for the names in the directory.
    SyncDirectory {
        began: u64,
    },
    Remove {
        file: String,
    },
}

/// One step of the recording.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Call(Call),
    /// The next batch was acknowledged.
    Acknowledged,
}

/// Takes the steps that concern the files of `directory`, and the acknowledgements.
pub(crate) fn parse(text: &str, directory: &Path, acknowledged: &Path) -> Vec<Step> {
    let mut parser = Parser {
        directory: directory.to_str().expect("UTF-8"),
        acknowledged: acknowledged.to_str().expect("UTF-8"),
        steps: Vec::new(),
        calls: 0,
    };
    let mut unfinished: HashMap<&str, (String, u64)> = HashMap::new();
    for line in text.lines() {
        let Some((process, rest)) = line.split_once(' ') else {
            continue;
        };
        let rest = rest.trim_start();
        if let Some(begin) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(process, (begin.trim_end().to_owned(), parser.calls));
        } else if let Some(resumed) = rest.strip_prefix("<... ") {
            let Some((begin, began)) = unfinished.remove(process) else {
                continue;
            };
            let end = resumed.split_once("resumed>").map_or("", |(_, end)| end);
            parser.call(&format!("{begin}{end}"), began);
        } else {
            let began = parser.calls;
            parser.call(rest, began);
        }
    }
    parser.steps
}

struct Parser<'a> {
    directory: &'a str,
    acknowledged: &'a str,
    steps: Vec<Step>,
    /// Calls that have changed something so far.
    calls: u64,
}

impl Parser<'_> {
    fn call(&mut self, line: &str, began: u64) {
        let Some((name, rest)) = line.split_once('(') else {
            return;
        };
        let Some((arguments, result)) = rest.rsplit_once(" = ") else {
            return;
        };
        if result.starts_with('-') || result.starts_with('?') {
            return;
        }
        let arguments = split(arguments.trim_end().trim_end_matches(')'));
        let argument = |at: usize| arguments.get(at).copied().unwrap_or("");
        let number = |at: usize| argument(at).parse::<u64>().expect("a number");
        let call = match name {
            "openat" => self.opened(argument(1), argument(2)),
            "open" => self.opened(argument(0), argument(1)),
            "creat" => self.opened(argument(0), "O_CREAT"),
            "pwrite64" => self.written(argument(0), argument(1), result, Some(number(3))),
            "write" => self.written(argument(0), argument(1), result, None),
            "ftruncate" => self.file_of(argument(0)).map(|file| Call::Truncate {
                file,
                length: number(1),
            }),
            "fsync" | "fdatasync" => self.synced(argument(0), began),
            "unlink" => self
                .file_named(argument(0))
                .map(|file| Call::Remove { file }),
            "unlinkat" => self
                .file_named(argument(1))
                .map(|file| Call::Remove { file }),
            _ => {
                let path: Vec<String> = arguments.iter().map(|argument| text(argument)).collect();
                assert!(
                    !path.iter().any(|path| path.contains(self.directory)),
                    "{name} on the store is not understood by this test: {line:.300}"
                );
                None
            }
        };
        if let Some(call) = call {
            self.calls += 1;
            self.steps.push(Step::Call(call));
        }
    }

    fn opened(&self, path: &str, flags: &str) -> Option<Call> {
        let file = self.file_named(path)?;
        assert!(
            !flags.contains("O_TRUNC"),
            "opening with O_TRUNC is not understood by this test"
        );
        flags.contains("O_CREAT").then_some(Call::Create { file })
    }

    fn written(&mut self, file: &str, data: &str, result: &str, at: Option<u64>) -> Option<Call> {
        if path_of(file) == self.acknowledged {
            self.steps.push(Step::Acknowledged);
            return None;
        }
        let file = self.file_of(file)?;
        let at = at.expect("SQLite writes at a place");
        let mut data = bytes(data);
        let written: usize = result.split_whitespace().next()?.parse().expect("a number");
        data.truncate(written);
        Some(Call::Write { file, at, data })
    }

    fn synced(&self, file: &str, began: u64) -> Option<Call> {
        if path_of(file) == self.directory {
            return Some(Call::SyncDirectory { began });
        }
        self.file_of(file).map(|file| Call::Sync { file, began })
    }

    /// The name of a file of the directory, from a path in quotes.
    fn file_named(&self, path: &str) -> Option<String> {
        self.name_in_directory(&text(path))
    }

    /// The name of a file of the directory, from a descriptor: `12<path>`.
    fn file_of(&self, descriptor: &str) -> Option<String> {
        self.name_in_directory(&path_of(descriptor))
    }

    /// The shared memory and the lock file are not stored: a new process makes them anew.
    fn name_in_directory(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(self.directory)?.strip_prefix('/')?;
        (!name.ends_with("-shm") && !name.ends_with(".lock")).then(|| name.to_owned())
    }
}

/// Splits arguments at commas; strings are hexadecimal and hold none.
fn split(arguments: &str) -> Vec<&str> {
    arguments.split(", ").map(str::trim).collect()
}

fn path_of(descriptor: &str) -> String {
    let inside = descriptor.split_once('<').map_or("", |(_, rest)| rest);
    text(inside.trim_end_matches('>').trim_end_matches("(deleted)"))
}

fn text(escaped: &str) -> String {
    String::from_utf8_lossy(&bytes(escaped)).into_owned()
}

/// `"\x41\x42"` → `AB`.
fn bytes(escaped: &str) -> Vec<u8> {
    let inside = escaped.trim_matches('"');
    assert!(!escaped.ends_with("..."), "strace has cut a string");
    inside
        .split("\\x")
        .skip(1)
        .map(|digits| {
            u8::from_str_radix(digits.get(..2).expect("two digits"), 16).expect("hexadecimal")
        })
        .collect()
}
