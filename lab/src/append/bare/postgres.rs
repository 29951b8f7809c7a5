//! The bare statement on PostgreSQL: arrays through `unnest`, or one row at a time, each statement its own transaction.

use std::time::Instant;

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use super::{Bare, Clocked, Form, Places, Plan, Row};
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
    let mut places = Places::new(plan.contents);
    let batch = include_str!("../../../sql/insert_batch.sql");
    let one = include_str!("../../../sql/insert_one.sql");
    let (batch, one) = (client.prepare(batch).await?, client.prepare(one).await?);
    let metadata: &[u8] = &plan.contents.metadata;
    let mut clocked = Clocked::start(plan);
    while !clocked.is_over(stop) {
        let rows: Vec<Row<'_>> = (0..plan.form.events()).map(|_| places.next()).collect();
        let (mut positions, mut streams, mut revisions) = (Vec::new(), Vec::new(), Vec::new());
        let (mut checksums, mut ids, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            positions.push(row.position);
            streams.push(row.stream);
            revisions.push(row.revision);
            checksums.push(row.checksum);
            ids.push(row.id);
            data.push(row.data);
        }
        let all_metadata = vec![metadata; rows.len()];
        let many: [&(dyn ToSql + Sync); 7] = [
            &positions,
            &streams,
            &revisions,
            &checksums,
            &ids,
            &data,
            &all_metadata,
        ];
        let row = &rows[0];
        let single: [&(dyn ToSql + Sync); 7] = [
            &row.position,
            &row.stream,
            &row.revision,
            &row.checksum,
            &row.id,
            &row.data,
            &metadata,
        ];
        let begun = Instant::now();
        let inserted = match plan.form {
            Form::BareInsert => client.execute(&one, &single).await,
            Form::Batch(_) => client.execute(&batch, &many).await,
        };
        inserted.context("inserting")?;
        clocked.add(begun, plan.form.events());
    }
    let counted = client.query_one("SELECT count(*) FROM events", &[]).await?;
    Ok(clocked.finish(counted.get(0), places.position))
}
