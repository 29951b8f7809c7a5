//! Remembered commands, oldest first, in pieces that copies share.
//!
//! Why: a snapshot is taken while a command is carried out and must not copy thousands of keys at that moment. A copy
//! costs one pointer for each full piece, and one for each command of the piece that is not full.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Remembered;

/// The number of commands in a full piece. This is about the square root of the number of keys that an entity
/// remembers, so that neither part of a copy is long.
const PIECE: usize = 128;

#[derive(Debug, Clone, Default)]
pub(crate) struct List {
    full: VecDeque<Arc<[Arc<Remembered>]>>,
    /// The number of commands of the first full piece that are forgotten.
    forgotten: usize,
    /// The piece that is being filled. Its commands are younger than those of the full pieces.
    newest: VecDeque<Arc<Remembered>>,
    len: usize,
}

impl List {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, remembered: Arc<Remembered>) {
        self.newest.push_back(remembered);
        self.len += 1;
        if self.newest.len() == PIECE {
            let full = std::mem::take(&mut self.newest);
            self.full.push_back(full.into_iter().collect());
        }
    }

    pub(super) fn oldest(&self) -> Option<&Arc<Remembered>> {
        match self.full.front() {
            Some(first) => first.get(self.forgotten),
            None => self.newest.front(),
        }
    }

    pub(super) fn pop_oldest(&mut self) -> Option<Arc<Remembered>> {
        let Some(first) = self.full.front() else {
            let oldest = self.newest.pop_front()?;
            self.len -= 1;
            return Some(oldest);
        };
        let oldest = first.get(self.forgotten).cloned();
        self.forgotten += 1;
        self.len -= 1;
        if self.forgotten == first.len() {
            self.full.pop_front();
            self.forgotten = 0;
        }
        oldest
    }

    /// Iterates over all commands, the youngest first.
    pub(crate) fn youngest_first(&self) -> impl Iterator<Item = &Remembered> {
        let full = self.full.iter().rev().flat_map(|piece| piece.iter().rev());
        let youngest_first = self.newest.iter().rev().chain(full);
        // What is forgotten of the first piece comes last.
        youngest_first.take(self.len).map(|one| &**one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn one(at: i64) -> Arc<Remembered> {
        let reply = RawValue::from_string("1".into()).expect("JSON");
        Arc::new(Remembered {
            key: "key".to_owned(),
            reply,
            revision: None,
            at,
            command: None,
            seen_ms: at,
        })
    }

    /// Goal: however full the pieces are, order and number are those of a plain queue, also in copies.
    #[test]
    fn it_is_a_queue() {
        let mut list = List::default();
        let mut model = VecDeque::new();
        let mut copies = Vec::new();
        for at in 0..2_000 {
            list.push(one(at));
            model.push_back(at);
            // Grows, stays, shrinks to nothing.
            let pops = match at {
                0..600 => 0,
                600..1_400 => 1,
                _ => 2,
            };
            for _ in 0..pops {
                assert_eq!(list.oldest().map(|one| one.at), model.front().copied());
                let popped = list.pop_oldest().map(|one| one.at);
                assert_eq!(popped, model.pop_front());
            }
            assert_eq!(list.len(), model.len());
            if at % 191 == 0 {
                copies.push((list.clone(), model.clone()));
            }
        }
        assert_eq!(list.len(), 0);
        for (copy, model) in copies {
            let found: Vec<i64> = copy.youngest_first().map(|one| one.at).collect();
            assert!(found.iter().eq(model.iter().rev()));
        }
    }

    /// Goal: a snapshot copies none of the commands, and of a long list little more than a pointer per piece.
    #[test]
    fn a_copy_shares_what_it_holds() {
        let mut list = List::default();
        for at in 0..10_000 {
            list.push(one(at));
        }
        let copy = list.clone();
        assert_eq!(copy.len(), 10_000);
        assert!(copy.full.len() + copy.newest.len() < 10_000 / PIECE + PIECE);
        let is_shared = |of: &VecDeque<Arc<[_]>>, with: &VecDeque<Arc<[_]>>| {
            of.iter()
                .zip(with)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        };
        assert!(is_shared(&copy.full, &list.full));
        assert!(
            copy.newest
                .iter()
                .zip(&list.newest)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
    }
}
