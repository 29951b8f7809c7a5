//! `bound` on PostgreSQL: arrays through `unnest`, or one row at a time, each statement its own transaction.

use std::time::Instant;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Bound, Clocked, Form, Places, Plan};
use crate::endpoint;
use crate::failure::{Context, Result};
use crate::postgres;
use crate::store;

/// The schema that holds the table; dropped before and after.
const SCHEMA: &str = "gesta_lab_bound";

pub(super) async fn measure(plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bound> {
    let client = postgres::connect(plan.url).await?;
    let drop = format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE");
    client
        .batch_execute(&drop)
        .await
        .context("dropping the table of an earlier run")?;
    let made = store::open_store(&endpoint::with_parameter(plan.url, "schema", SCHEMA), 1).await?;
    made.shutdown().await?;
    let ready = format!("SET search_path = {SCHEMA}; CHECKPOINT");
    if client.batch_execute(&ready).await.is_err() {
        // Only superusers and pg_checkpoint may.
        client
            .batch_execute(&format!("SET search_path = {SCHEMA}"))
            .await?;
    }
    let bound = fill(&client, plan, stop).await;
    client
        .batch_execute(&drop)
        .await
        .context("dropping the table")?;
    bound
}

async fn fill(client: &Client, plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bound> {
    let mut places = Places::new(plan.workload);
    let batch = client
        .prepare(include_str!("../../sql/insert_batch.sql"))
        .await?;
    let one = client
        .prepare(include_str!("../../sql/insert_one.sql"))
        .await?;
    let mut clocked = Clocked::start(plan);
    let mut columns = Columns::default();
    while !clocked.is_over(stop) {
        let before = places.position;
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
                            &before,
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
    streams: Vec<i64>,
    revisions: Vec<i64>,
    checksums: Vec<i64>,
    ids: Vec<Uuid>,
    data: Vec<&'a [u8]>,
    metadata: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn fill(&mut self, places: &mut Places, plan: &Plan<'a>) {
        self.streams.clear();
        self.revisions.clear();
        self.checksums.clear();
        self.ids.clear();
        self.data.clear();
        self.metadata.clear();
        for _ in 0..plan.form.events() {
            let place = places.next();
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
