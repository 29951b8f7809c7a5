//! A read model: the free seats of each show, in an SQLite file beside the store.
use gesta::projection::{ApplyError, Projections, View, category, columns};
use gesta::projection_sqlite::SqliteTarget;
use gesta::{EventData, ExpectedRevision::Any, Filter, RecordedEvent};

columns! { #[derive(serde::Deserialize)] pub(crate) struct SeatsRow { pub(crate) title: String, pub(crate) free: i64 } }
pub(crate) struct Seats;
impl View for Seats {
    const NAME: &'static str = "seats";
    const VERSION: u32 = 1;
    const KEY: &'static [&'static str] = &["show"];
    type Key = String;
    type Row = SeatsRow;

    fn filter(&self) -> Filter {
        category("show")
    }
    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.stream.as_str().to_owned())
    }
    fn evolve(&self, row: &mut Option<SeatsRow>, event: &RecordedEvent) -> Result<(), ApplyError> {
        match (event.event_type.as_str(), row.as_mut()) {
            ("created", _) => *row = Some(serde_json::from_slice(&event.data)?),
            ("reserved", Some(row)) => row.free -= 1,
            ("cancelled", Some(row)) => row.free += 1,
            ("closed", _) => *row = None, // deletes the row
            _ => {}
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = gesta::open("sqlite:events.db").create().await?;
    let show = serde_json::json!({"title": "Metropolis", "free": 100});
    let created = EventData::new("created", &show)?;
    let reserved = EventData::new("reserved", &())?;
    store.append_to("show-7", Any, [created, reserved]).await?;
    let target = SqliteTarget::at("read.db");
    let projections = Projections::on(&store.event_store(), target);
    let running = projections.view(Seats).start().await?;
    tokio::signal::ctrl_c().await?;
    running.shutdown().await;
    Ok(())
}
