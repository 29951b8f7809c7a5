//! The peers.

mod emmett;
mod eventsourcing;
mod gesta;
mod message_db;
mod pgbench;
#[cfg(feature = "umadb")]
mod umadb;

use gesta_report::failure::{Result, fail};

use crate::peer::Peer;

/// Everything that can be measured, in the order of the table.
pub(crate) fn all() -> Vec<Box<dyn Peer>> {
    vec![
        gesta::postgres("gesta-postgres"),
        gesta::postgres_tags(),
        gesta::sqlite(),
        gesta::sqlite_tags(),
        gesta::http(),
        gesta::http_tags(),
        gesta::http_sqlite_tags(),
        #[cfg(feature = "umadb")]
        umadb::conditional(),
        #[cfg(feature = "umadb")]
        umadb::unconditional(),
        message_db::one_category(),
        message_db::category_per_worker(),
        eventsourcing::plain(),
        eventsourcing::functions(),
        emmett::emmett(),
        pgbench::floor(),
    ]
}

/// Gesta again, at the end of a run.
pub(crate) fn last() -> Box<dyn Peer> {
    gesta::postgres("gesta-postgres-again")
}

/// Gesta between the peers.
pub(crate) fn control() -> Box<dyn Peer> {
    gesta::postgres("gesta-control")
}

/// The peers with these names, or whose names begin with them; all of them if none is named. Gesta on PostgreSQL is
/// always the first.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Box<dyn Peer>>> {
    let is_meant = |peer: &str, name: &str| {
        let rest = peer.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let mut peers = all();
    if let Some(name) = names
        .iter()
        .find(|name| !peers.iter().any(|peer| is_meant(peer.name(), name)))
    {
        let known: Vec<&str> = peers.iter().map(|peer| peer.name()).collect();
        return fail(format!(
            "no peer is called {name:?}; there are {}",
            known.join(", ")
        ));
    }
    let mut position = 0;
    peers.retain(|peer| {
        position += 1;
        position == 1 || names.is_empty() || names.iter().any(|name| is_meant(peer.name(), name))
    });
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: &[&str]) -> Vec<&'static str> {
        let chosen: Vec<String> = chosen.iter().map(|name| (*name).to_owned()).collect();
        super::chosen(&chosen)
            .unwrap()
            .iter()
            .map(|peer| peer.name())
            .collect()
    }

    #[test]
    fn a_name_means_all_ways_of_using_a_system() {
        assert_eq!(
            names(&["message-db"]),
            ["gesta-postgres", "message-db", "message-db-categories"]
        );
        assert_eq!(
            names(&["message-db-categories"]),
            ["gesta-postgres", "message-db-categories"]
        );
        assert_eq!(
            names(&["gesta"]),
            [
                "gesta-postgres",
                "gesta-postgres-tags",
                "gesta-sqlite",
                "gesta-sqlite-tags",
                "gesta-http",
                "gesta-http-tags",
                "gesta-http-sqlite-tags"
            ]
        );
        assert_eq!(names(&[]).len(), all().len());
        let wrong = ["message".to_owned(), "mess".to_owned()];
        assert!(super::chosen(&wrong).is_err_and(|failure| failure.0.contains("mess")));
    }
}
