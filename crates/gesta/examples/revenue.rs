//! A second read model of the events of shows: what was paid for each title on each day. It is added later.
use gesta::projection::{ApplyError, Projections, View, ViewReader, columns};
use gesta::projection_sqlite::SqliteTarget;
use gesta::{EventData, EventType, ExpectedRevision::Any, Filter, Query, RecordedEvent};

#[derive(serde::Deserialize)]
struct Paid {
    title: String,
    cents: i64,
}

columns! { pub(crate) struct RevenueRow { pub(crate) seats: i64, pub(crate) cents: i64 } }
pub(crate) struct Revenue;
impl View for Revenue {
    const NAME: &'static str = "revenue";
    const VERSION: u32 = 1;
    const KEY: &'static [&'static str] = &["title", "day"];
    type Key = (String, String);
    type Row = RevenueRow;

    fn filter(&self) -> Filter {
        let mut paid = Query::category("show");
        paid.types = vec![EventType::from_stored("paid".into())];
        Filter::query(paid)
    }
    fn key(&self, event: &RecordedEvent) -> Option<(String, String)> {
        let paid: Paid = serde_json::from_slice(&event.data).ok()?;
        Some((paid.title, event.created.to_string()[..10].to_owned()))
    }
    fn evolve(
        &self,
        row: &mut Option<RevenueRow>,
        event: &RecordedEvent,
    ) -> Result<(), ApplyError> {
        let paid: Paid = serde_json::from_slice(&event.data)?;
        let row = row.get_or_insert(RevenueRow { seats: 0, cents: 0 });
        row.seats += 1;
        row.cents += paid.cents;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = gesta::open("sqlite:events.db").create().await?;
    let price = serde_json::json!({"title": "Metropolis", "cents": 1250});
    let paid = EventData::new("paid", &price)?;
    let appended = store.append_to("show-7", Any, [paid]).await?;
    let target = SqliteTarget::at("read.db");
    let projections = Projections::on(&store.event_store(), target.clone());
    let running = projections.view(Revenue).start().await?;
    let within = std::time::Duration::from_secs(60);
    running
        .wait_for("revenue", &appended.checkpoint, within)
        .await?;
    for ((title, day), row) in ViewReader::<Revenue>::of(target)?.page(None, 100).await? {
        println!("{title} on {day}: {} seats, {} cents", row.seats, row.cents);
    }
    running.shutdown().await;
    Ok(())
}
