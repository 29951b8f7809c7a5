//! What a disk may hold after a power loss.
//!
//! Each file has the content that is surely there and the changes since its last sync, in order; each name likewise. A
//! power loss keeps the former and any part of the latter: changes of names are journalled and so survive up to some
//! moment, writes survive in any combination, and a write may be torn at the borders of sectors.

use std::collections::HashMap;
use std::path::Path;

use crate::trace::Call;
use gesta_kit::faulty::Random;

/// The smallest part of a write that survives as a whole.
const SECTOR_BYTES: usize = 512;

/// Which of the changes that were not synced survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survivors {
    Synced,
    All,
    Random,
}

#[derive(Debug, Clone)]
enum Change {
    Write { at: usize, data: Vec<u8> },
    Truncate { length: usize },
}

#[derive(Debug, Default)]
struct File {
    synced: Vec<u8>,
    /// Changes since, each with the number of its call.
    changes: Vec<(u64, Change)>,
}

#[derive(Debug)]
enum NameChange {
    Create(String, usize),
    Remove(String),
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    files: Vec<File>,
    /// Names as the running process sees them.
    names: HashMap<String, usize>,
    names_synced: HashMap<String, usize>,
    name_changes: Vec<(u64, NameChange)>,
    calls: u64,
}

impl Disk {
    pub(crate) fn apply(&mut self, call: &Call) {
        self.calls += 1;
        let now = self.calls;
        match call {
            Call::Create { file } => {
                if !self.names.contains_key(file) {
                    self.files.push(File::default());
                    let id = self.files.len() - 1;
                    self.names.insert(file.clone(), id);
                    self.name_changes
                        .push((now, NameChange::Create(file.clone(), id)));
                }
            }
            Call::Remove { file } => {
                self.names.remove(file);
                self.name_changes
                    .push((now, NameChange::Remove(file.clone())));
            }
            Call::Write { file, at, data } => {
                let at = usize::try_from(*at).expect("fits");
                self.change(
                    file,
                    now,
                    Change::Write {
                        at,
                        data: data.clone(),
                    },
                );
            }
            Call::Truncate { file, length } => {
                let length = usize::try_from(*length).expect("fits");
                self.change(file, now, Change::Truncate { length });
            }
            Call::Sync { file, began } => {
                let file = &mut self.files[self.names[file]];
                let later = file
                    .changes
                    .split_off(file.changes.partition_point(|(call, _)| call <= began));
                for (_, change) in std::mem::replace(&mut file.changes, later) {
                    change.apply(&mut file.synced);
                }
            }
            Call::SyncDirectory { began } => {
                let changes = &mut self.name_changes;
                let later = changes.split_off(changes.partition_point(|(call, _)| call <= began));
                for (_, change) in std::mem::replace(changes, later) {
                    change.apply(&mut self.names_synced);
                }
            }
        }
    }

    fn change(&mut self, file: &str, now: u64, change: Change) {
        self.files[self.names[file]].changes.push((now, change));
    }

    /// Writes what survives into a directory.
    pub(crate) fn write_image(&self, directory: &Path, survivors: Survivors, random: &mut Random) {
        let mut names = self.names_synced.clone();
        let kept = match survivors {
            Survivors::Synced => 0,
            Survivors::All => self.name_changes.len(),
            Survivors::Random => random.below(self.name_changes.len() + 1),
        };
        for (_, change) in &self.name_changes[..kept] {
            change.apply(&mut names);
        }
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        for (name, id) in names {
            let file = &self.files[id];
            let mut content = file.synced.clone();
            for (_, change) in &file.changes {
                match survivors {
                    Survivors::Synced => {}
                    Survivors::All => change.apply(&mut content),
                    Survivors::Random => change.apply_in_part(&mut content, random),
                }
            }
            std::fs::write(directory.join(name), content).expect("writes");
        }
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Change::Truncate { length } => content.resize(*length, 0),
            Change::Write { at, data } => {
                content.resize(content.len().max(at + data.len()), 0);
                content[*at..at + data.len()].copy_from_slice(data);
            }
        }
    }

    /// Wholly, not at all, or some of its sectors.
    fn apply_in_part(&self, content: &mut Vec<u8>, random: &mut Random) {
        match (self, random.below(5)) {
            (_, 0 | 1) => {}
            (Change::Write { at, data }, 2) => {
                let mut begin = 0;
                while begin < data.len() {
                    let border = (at + begin) / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES - at;
                    let end = border.min(data.len());
                    if random.below(2) == 0 {
                        let part = Change::Write {
                            at: at + begin,
                            data: data[begin..end].to_vec(),
                        };
                        part.apply(content);
                    }
                    begin = end;
                }
            }
            _ => self.apply(content),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut HashMap<String, usize>) {
        match self {
            NameChange::Create(name, id) => {
                names.insert(name.clone(), *id);
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}
