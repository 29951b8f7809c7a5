//! The journal of Akka.Persistence.Sql for .NET in both of its forms: tags in a table of their own, or as a list in a column.
//!
//! Like the real one: tables, indexes, columns written; untagged events are inserted the same way in both forms. Left
//! out: tags, the plugin's queue; an append is one statement where the plugin opens a transaction around it.

use std::sync::Arc;

use async_trait::async_trait;

use super::database::Database;
use super::jdbc::Inserter;
use super::journal::Design;
use crate::failure::Result;
use crate::target::Session;

pub(super) enum AkkaNet {
    /// A table of tags, the plugin's default.
    Tags,
    /// A column of tags.
    Csv,
}

#[async_trait]
impl Design for AkkaNet {
    fn name(&self) -> &'static str {
        match self {
            AkkaNet::Tags => "akka-net-tags",
            AkkaNet::Csv => "akka-net-csv",
        }
    }

    fn title(&self) -> &'static str {
        match self {
            AkkaNet::Tags => "Akka.Persistence.Sql, table of tags",
            AkkaNet::Csv => "Akka.Persistence.Sql, column of tags",
        }
    }

    fn note(&self) -> &'static str {
        "untagged events; each append is one INSERT and its own transaction, on the worker's own connection"
    }

    fn tables(&self) -> &'static str {
        match self {
            AkkaNet::Tags => include_str!("../../sql/journals/akka_net/create_tables.sql"),
            AkkaNet::Csv => include_str!("../../sql/journals/akka_net/create_tables_csv.sql"),
        }
    }

    fn payload(&self) -> (&'static str, &'static str) {
        ("journal", "message")
    }

    fn read_back(&self) -> &'static str {
        include_str!("../../sql/journals/akka_net/read_back.sql")
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let one = include_str!("../../sql/journals/akka_net/insert_event.sql");
        let several = include_str!("../../sql/journals/akka_net/insert_events.sql");
        Ok(Box::new(Inserter::open(database, one, several).await?))
    }
}
