//! The information about a store that is put together from that of its databases.

use std::sync::{Arc, PoisonError, RwLock};

use gesta_core::backend::BackendInfo;
use gesta_core::{Capabilities, Durability};

/// The information of all parts put together. Every append asks for it, so it is made again only when a part has
/// changed.
#[derive(Debug)]
pub(crate) struct Joined(RwLock<(Vec<Arc<BackendInfo>>, Arc<BackendInfo>)>);

impl Joined {
    pub(crate) fn new(parts: Vec<Arc<BackendInfo>>) -> Self {
        let joined = Arc::new(join(&parts));
        Self(RwLock::new((parts, joined)))
    }

    pub(crate) fn get<'a>(
        &self,
        parts: impl Iterator<Item = Arc<BackendInfo>> + 'a,
    ) -> Arc<BackendInfo> {
        let now: Vec<_> = parts.collect();
        {
            let (then, joined) = &*self.0.read().unwrap_or_else(PoisonError::into_inner);
            let is_same = |(a, b): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(a, b);
            if then.len() == now.len() && then.iter().zip(&now).all(is_same) {
                return Arc::clone(joined);
            }
        }
        let joined = Arc::new(join(&now));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = (now, Arc::clone(&joined));
        joined
    }
}

/// Puts the information of the parts together. All parts have the same number of logs, which is that of the store.
fn join(parts: &[Arc<BackendInfo>]) -> BackendInfo {
    let all = |can: fn(&Capabilities) -> bool| parts.iter().all(|part| can(&part.capabilities));
    let in_flight = parts
        .iter()
        .map(|part| part.capabilities.batches_in_flight_max);
    BackendInfo {
        backend: parts.first().map_or("none", |part| part.backend),
        engine: counted(parts.iter().map(|part| part.engine.clone())),
        logs: parts.first().map_or(0, |part| part.logs),
        durability: weakest(parts),
        capabilities: Capabilities {
            persistent: all(|can| can.persistent),
            shared: all(|can| can.shared),
            several_logs: true,
            batches_in_flight_max: in_flight.min().unwrap_or(1),
        },
    }
}

/// Returns the durability of the weakest database, and names the settings of each database.
fn weakest(parts: &[Arc<BackendInfo>]) -> Durability {
    let weakened = |part: &&Arc<BackendInfo>| matches!(part.durability, Durability::Weakened(_));
    if parts.iter().any(|part| part.durability == Durability::None) {
        return Durability::None;
    }
    let details = counted(parts.iter().map(|part| {
        let durability = &part.durability;
        format!("{}: {}", durability.name(), durability.detail())
    }));
    if parts.iter().any(|part| weakened(&part)) {
        return Durability::Weakened(details);
    }
    Durability::Full(counted(
        parts.iter().map(|part| part.durability.detail().to_owned()),
    ))
}

/// Lists each text once, with how often it occurs, in the order of the first occurrence: `2 × PostgreSQL 15.1,
/// PostgreSQL 16.2`.
fn counted(texts: impl Iterator<Item = String>) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for text in texts {
        match counts.iter_mut().find(|(known, _)| *known == text) {
            Some((_, count)) => *count += 1,
            None => counts.push((text, 1)),
        }
    }
    let named = counts.into_iter().map(|(text, count)| match count {
        1 => text,
        count => format!("{count} × {text}"),
    });
    named.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(engine: &str, durability: Durability) -> Arc<BackendInfo> {
        Arc::new(BackendInfo {
            backend: "postgres",
            engine: engine.to_owned(),
            logs: 4,
            durability,
            capabilities: Capabilities {
                persistent: true,
                shared: true,
                several_logs: true,
                batches_in_flight_max: 64,
            },
        })
    }

    #[test]
    fn together_they_are_as_safe_as_the_weakest() {
        let full = || Durability::Full("fsync=on".to_owned());
        let parts = [
            part("P 15", full()),
            part("P 16", full()),
            part("P 15", full()),
        ];
        let info = join(&parts);
        assert_eq!(info.engine, "2 × P 15, P 16");
        assert_eq!(info.durability, Durability::Full("3 × fsync=on".to_owned()));
        let weak = part("P 15", Durability::Weakened("fsync=off".to_owned()));
        let mixed = join(&[part("P 15", full()), weak]).durability;
        assert_eq!(
            mixed,
            Durability::Weakened("full: fsync=on, weakened: fsync=off".to_owned())
        );
        assert_eq!(
            join(&[part("P", full()), part("P", Durability::None)]).durability,
            Durability::None
        );
    }

    #[test]
    fn it_is_joined_again_only_after_a_change() {
        let full = || Durability::Full("fsync=on".to_owned());
        let (a, b) = (part("P", full()), part("P", full()));
        let joined = Joined::new(vec![Arc::clone(&a), Arc::clone(&b)]);
        let first = joined.get([Arc::clone(&a), Arc::clone(&b)].into_iter());
        assert!(Arc::ptr_eq(
            &first,
            &joined.get([Arc::clone(&a), b].into_iter())
        ));
        let later = joined.get([a, part("P 17", full())].into_iter());
        assert_eq!(later.engine, "P, P 17");
    }
}
