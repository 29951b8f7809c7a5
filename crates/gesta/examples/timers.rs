//! An order that is not paid in time is cancelled: a timer wakes somebody, whatever dies meanwhile.

use gesta::timers::{NewTimer, Timers};
use gesta::{Clock, SystemClock, Timestamp};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = gesta::open("sqlite:orders.db").create().await?;
    let timers = Timers::on(&store.event_store(), "unpaid_orders")?;

    // Anywhere: once this returns, the timer fires, or is replaced or cancelled by its key.
    let soon = Timestamp(SystemClock.now().0 + 1_000_000);
    let timer = NewTimer::new("order-7", soon).with_data(&"seven books")?;
    timers.set(&timer).await?;
    timers.set(&NewTimer::new("order-8", soon)).await?;
    timers.cancel("order-8").await?;

    // In each process that may fire: one does at a time, the others stand by.
    let (fired, mut all_fired) = mpsc::channel(1);
    let running = timers.run(move |timer| {
        let fired = fired.clone();
        async move {
            let what: String = timer.json()?;
            println!("{} is cancelled: {what}", timer.key);
            fired.send(()).await?;
            Ok(())
        }
    })?;
    // A program that goes on serves its callers. This one ends.
    all_fired.recv().await;
    running.shutdown().await;
    Ok(store.shutdown().await?)
}
