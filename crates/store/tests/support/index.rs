//! What the database of the tests keeps for virtual streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::backend::*;
use gesta_core::*;

use super::World;

#[derive(Default)]
pub struct Index {
    state: IndexState,
    /// The database is away for whoever writes entries.
    pub refuses: bool,
    /// The numbers that the streams got.
    numbers: BTreeMap<u64, StreamId>,
    streams: BTreeMap<StreamId, Vec<Position>>,
}

impl Index {
    /// Forgets what was written after the row at `end` was committed.
    pub fn lose_above(&mut self, end: Position) {
        self.state.position = self.state.position.min(end);
        for positions in self.streams.values_mut() {
            positions.retain(|position| *position <= end);
        }
        self.streams.retain(|_, positions| !positions.is_empty());
        let streams = &self.streams;
        self.numbers
            .retain(|_, stream| streams.contains_key(stream));
    }

    fn write(&mut self, page: &IndexPage, is_there: bool) -> IndexWrite {
        if !self.state.on || self.state.position != page.after || !is_there {
            return IndexWrite::Missed;
        }
        self.state.position = page.through;
        assert!(page.entries.is_sorted_by(|a, b| a.stream < b.stream));
        for new in &page.entries {
            assert!(!new.positions.is_empty());
            if !self.streams.contains_key(&new.stream) {
                let other = self.numbers.insert(new.number, new.stream.clone());
                assert_eq!(other, None, "the number of {} is taken", new.stream);
            }
            let positions = self.streams.entry(new.stream.clone()).or_default();
            positions.extend(&new.positions);
            assert!(positions.is_sorted_by(|a, b| a < b), "{}", new.stream);
        }
        IndexWrite::Written
    }

    fn read(&self, slice: &EntrySlice) -> Entries {
        let positions = self.streams.get(&slice.stream);
        let all = positions.into_iter().flatten();
        let all = (0..).map(Revision).zip(all);
        let mut entries: Vec<Entry> = all
            .map(|(revision, position)| Entry {
                revision,
                position: *position,
            })
            .collect();
        let last = entries.last().map(|entry| entry.revision);
        entries.retain(|entry| (slice.from..=slice.to).contains(&entry.revision));
        if slice.direction == Direction::Backwards {
            entries.reverse();
        }
        entries.truncate(slice.limit);
        Entries {
            state: self.state,
            last,
            entries,
        }
    }
}

/// The virtual streams of a world.
pub struct MemoryIndex(pub Arc<World>);

impl MemoryIndex {
    async fn with<T>(
        &self,
        work: impl FnOnce(&mut Index, &dyn Fn(Position, WriterEpoch) -> bool) -> T,
    ) -> Result<T> {
        // Others get their turn before and after, as with a database.
        tokio::task::yield_now().await;
        let done = self.0.with_index(work);
        tokio::task::yield_now().await;
        Ok(done)
    }
}

#[async_trait]
impl VirtualIndex for MemoryIndex {
    async fn state(&self) -> Result<IndexState> {
        self.with(|index, _| index.state).await
    }

    async fn switch(&self, on: bool) -> Result<IndexState> {
        self.with(|index, _| {
            index.state.on = on;
            index.state
        })
        .await
    }

    async fn write(&self, page: IndexPage) -> Result<IndexWrite> {
        // A write takes longer than a read, so more can happen meanwhile.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        let written = self.with(|index, is_there| match index.refuses {
            true => Err(Error::unavailable("away")),
            false => Ok(index.write(&page, is_there(page.through, page.writer))),
        });
        written.await?
    }

    async fn read(&self, slice: EntrySlice) -> Result<Entries> {
        self.with(|index, _| index.read(&slice)).await
    }
}
