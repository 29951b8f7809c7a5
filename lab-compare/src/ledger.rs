//! What a driver says was acknowledged, against what its store holds.
//!
//! A driver's events carry a mark, `stream/revision`, so a row tells which event it must be. The store keeps the
//! events of earlier cells too; they were compared then, and are known.

use std::collections::HashMap;

use gesta_report::read_back::ReadBack;

/// Most findings that are told in words.
const FINDINGS_MAX: usize = 10;

/// One stream of a driver: name, events acknowledged, events sent.
pub(crate) type Claim = (String, u64, u64);

/// The streams of all cells of a peer.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    known: HashMap<String, Known>,
    cell: u32,
}

#[derive(Debug)]
struct Known {
    cell: u32,
    acknowledged: u64,
    sent: u64,
}

impl Ledger {
    /// Adds what a new cell claims, and begins to look at what is stored.
    pub(crate) fn look(&mut self, claims: Vec<Claim>) -> Look<'_> {
        self.cell += 1;
        let cell = self.cell;
        for (stream, acknowledged, sent) in claims {
            let known = Known {
                cell,
                acknowledged,
                sent,
            };
            self.known.insert(stream, known);
        }
        Look {
            ledger: self,
            seen: HashMap::new(),
            result: ReadBack::default(),
        }
    }
}

/// A comparison under way.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    ledger: &'a Ledger,
    seen: HashMap<String, Vec<bool>>,
    result: ReadBack,
}

impl Look<'_> {
    /// A stored event: its stream, its number in it from 0, its mark.
    pub(crate) fn see(&mut self, stream: &str, revision: i64, mark: &str) {
        let known = self.ledger.known.get(stream);
        if known.is_some_and(|known| known.cell != self.ledger.cell) {
            return;
        }
        self.result.found += 1;
        let sent = known.map_or(0, |known| known.sent);
        let index = match u64::try_from(revision) {
            Ok(number) if number < sent => usize::try_from(number).unwrap_or(usize::MAX),
            _ => {
                self.result.uninvited += 1;
                self.finding(format!("revision {revision} of {stream} was not sent"));
                return;
            }
        };
        if mark != format!("{stream}/{revision}") {
            self.result.misplaced += 1;
            self.finding(format!("revision {revision} of {stream} holds {mark:?}"));
        }
        let seen = self.seen.entry(stream.to_owned()).or_default();
        if index >= seen.len() {
            seen.resize(index + 1, false);
        }
        if std::mem::replace(&mut seen[index], true) {
            self.result.doubled += 1;
            self.finding(format!("revision {revision} of {stream} is stored twice"));
        }
    }

    /// What came out.
    pub(crate) fn end(mut self) -> ReadBack {
        let ledger = self.ledger;
        for (stream, known) in ledger
            .known
            .iter()
            .filter(|(_, known)| known.cell == ledger.cell)
        {
            self.result.acknowledged += known.acknowledged;
            let seen = self.seen.get(stream).map_or(&[][..], Vec::as_slice);
            let acknowledged = usize::try_from(known.acknowledged).unwrap_or(usize::MAX);
            let there = seen.iter().take(acknowledged).filter(|seen| **seen).count();
            let missing = known.acknowledged - there as u64;
            if missing > 0 {
                self.result.lost += missing;
                self.finding(format!(
                    "{missing} acknowledged events of {stream} are not stored"
                ));
            }
        }
        self.result
    }

    fn finding(&mut self, text: String) {
        if self.result.findings.len() < FINDINGS_MAX {
            self.result.findings.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(stream: &str, acknowledged: u64, sent: u64) -> Claim {
        (stream.into(), acknowledged, sent)
    }

    #[test]
    fn what_is_stored_as_acknowledged_is_clean() {
        let mut ledger = Ledger::default();
        let mut look = ledger.look(vec![claim("a", 2, 3), claim("b", 0, 1)]);
        for revision in 0..3 {
            look.see("a", revision, &format!("a/{revision}"));
        }
        let result = look.end();
        assert!(result.is_clean(), "{result:?}");
        assert_eq!((result.acknowledged, result.found), (2, 3));
        // The next cell passes over the streams of the first.
        let mut look = ledger.look(vec![claim("c", 1, 1)]);
        look.see("a", 0, "a/0");
        look.see("c", 0, "c/0");
        let result = look.end();
        assert!(result.is_clean(), "{result:?}");
        assert_eq!((result.acknowledged, result.found), (1, 1));
    }

    #[test]
    fn every_kind_of_mistake_is_found() {
        let mut ledger = Ledger::default();
        let mut look = ledger.look(vec![claim("a", 3, 3), claim("b", 1, 1)]);
        look.see("a", 0, "a/0");
        look.see("a", 0, "a/0");
        look.see("a", 1, "b/0");
        look.see("a", 3, "a/3");
        look.see("a", -1, "a/-1");
        look.see("z", 0, "z/0");
        let result = look.end();
        assert_eq!(result.doubled, 1);
        assert_eq!(result.misplaced, 1);
        assert_eq!(result.uninvited, 3);
        assert_eq!(result.lost, 2, "revision 2 of a, revision 0 of b");
        assert!(!result.findings.is_empty());
    }
}
