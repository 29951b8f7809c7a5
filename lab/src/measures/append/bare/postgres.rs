//! The bare statement on PostgreSQL: arrays through `unnest`, or one row at a time, each statement its own transaction.

use std::time::Instant;

use gesta_load::machine::postgres;
use gesta_load::target::PhaseRun;
use gesta_report::failure::{Context, Result};
use gesta_report::read_back::ReadBack;
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use super::{Clocked, Places, Plan, Row};

pub(super) async fn measure(
    plan: &Plan<'_>,
    url: &str,
    stop: &CancellationToken,
) -> Result<(PhaseRun, ReadBack)> {
    let client = postgres::connect(url).await?;
    let (_, schema) = url.rsplit_once("schema=").unwrap_or_default();
    let path = format!("SET search_path = {schema}");
    client.batch_execute(&path).await.context(path)?;
    let statement = match plan.events {
        1 => include_str!("../../../../sql/insert_one.sql"),
        _ => include_str!("../../../../sql/insert_batch.sql"),
    };
    let statement = client.prepare(statement).await?;
    let mut places = Places::new(plan.contents);
    let mut clocked = Clocked::start(plan);
    while !clocked.is_over(stop) {
        let rows: Vec<Row<'_>> = (0..plan.events).map(|_| places.next()).collect();
        let positions: Vec<i64> = rows.iter().map(|row| row.position).collect();
        let streams: Vec<i64> = rows.iter().map(|row| row.stream).collect();
        let revisions: Vec<i64> = rows.iter().map(|row| row.revision).collect();
        let sums: Vec<i64> = rows.iter().map(|row| row.checksum).collect();
        let ids: Vec<uuid::Uuid> = rows.iter().map(|row| row.id).collect();
        let data: Vec<&[u8]> = rows.iter().map(|row| row.data).collect();
        let metadata = vec![&plan.contents.metadata[..]; rows.len()];
        let one: [&(dyn ToSql + Sync); 7] = {
            let (position, stream, revision) = (&positions[0], &streams[0], &revisions[0]);
            let (sum, id, data) = (&sums[0], &ids[0], &data[0]);
            [position, stream, revision, sum, id, data, &metadata[0]]
        };
        let many: [&(dyn ToSql + Sync); 7] = [
            &positions, &streams, &revisions, &sums, &ids, &data, &metadata,
        ];
        let values = if plan.events == 1 { one } else { many };
        let begun = Instant::now();
        let inserted = client.execute(&statement, &values).await;
        inserted.context("inserting")?;
        clocked.add(begun, plan.events);
    }
    let counted = client.query_one("SELECT count(*) FROM events", &[]).await?;
    Ok(clocked.finish(counted.get(0), places.position))
}
