//! The bare statement on PostgreSQL: arrays through `unnest`, or one row at a time, each statement its own transaction.

use std::time::Instant;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Bare, Clocked, Form, Places, Plan};
use crate::failure::{Context, Result};
use crate::postgres;

pub(super) async fn measure(plan: &Plan<'_>, url: &str, stop: &CancellationToken) -> Result<Bare> {
    let client = postgres::connect(url).await?;
    let (_, schema) = url.rsplit_once("schema=").unwrap_or_default();
    client
        .batch_execute(&format!("SET search_path = {schema}"))
        .await
        .context("choosing the schema")?;
    fill(&client, plan, stop).await
}

async fn fill(client: &Client, plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bare> {
    let mut places = Places::new(plan.workload);
    let batch = client
        .prepare(include_str!("../../../sql/insert_batch.sql"))
        .await?;
    let one = client
        .prepare(include_str!("../../../sql/insert_one.sql"))
        .await?;
    let mut clocked = Clocked::start(plan);
    let mut columns = Columns::default();
    while !clocked.is_over(stop) {
        columns.fill(&mut places, plan);
        let begun = Instant::now();
        let metadata: &[u8] = plan.workload.metadata();
        match plan.form {
            Form::BareInsert => {
                client
                    .execute(
                        &one,
                        &[
                            &places.position,
                            &columns.streams[0],
                            &columns.revisions[0],
                            &columns.checksums[0],
                            &columns.ids[0],
                            &columns.data[0],
                            &metadata,
                        ],
                    )
                    .await
            }
            Form::Batch(_) => {
                client
                    .execute(
                        &batch,
                        &[
                            &columns.positions,
                            &columns.streams,
                            &columns.revisions,
                            &columns.checksums,
                            &columns.ids,
                            &columns.data,
                            &columns.metadata,
                        ],
                    )
                    .await
            }
        }
        .context("inserting")?;
        clocked.add(begun, plan.form.events());
    }
    let stored: i64 = client
        .query_one("SELECT count(*) FROM events", &[])
        .await?
        .get(0);
    Ok(clocked.finish(u64::try_from(stored).unwrap_or(0), places.number))
}

/// One vector per column, used again for each batch.
#[derive(Default)]
struct Columns<'a> {
    positions: Vec<i64>,
    streams: Vec<i64>,
    revisions: Vec<i64>,
    checksums: Vec<i64>,
    ids: Vec<Uuid>,
    data: Vec<&'a [u8]>,
    metadata: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn fill(&mut self, places: &mut Places, plan: &Plan<'a>) {
        self.positions.clear();
        self.streams.clear();
        self.revisions.clear();
        self.checksums.clear();
        self.ids.clear();
        self.data.clear();
        self.metadata.clear();
        for _ in 0..plan.form.events() {
            let place = places.next();
            self.positions.push(places.position);
            self.streams.push(place.stream);
            self.revisions.push(place.revision);
            // As wide and as random as a real one.
            self.checksums.push(places.random.next().cast_signed());
            self.ids.push(plan.workload.run.event_id(place.number).0);
            self.data.push(plan.workload.payload(place.number));
            self.metadata.push(plan.workload.metadata());
        }
    }
}
