//! Reads the rows of a store in several databases for its audit, each log from the database in which it lies, and
//! compares the copies of logs in other databases with the logs themselves.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Error, LogId, Position, Result};
use gesta_sql::verify::{AuditFloor, AuditName, AuditRow, AuditSource, AuditTag};

use crate::audit::PostgresAudit;
use crate::log_map::{LogMap, Moving};

/// Reads the rows of each log from the database in which the log lies.
pub(super) struct SeveralAudit {
    /// The newest map among the snapshots.
    pub(super) map: Arc<LogMap>,
    /// A snapshot of each database, in the order of the map.
    pub(super) sources: Vec<PostgresAudit>,
}

impl SeveralAudit {
    fn of(&mut self, log: LogId) -> Result<&mut PostgresAudit> {
        let home = self.map.home(log);
        let source = home.and_then(|home| self.sources.get_mut(home));
        source.ok_or_else(|| Error::corrupt(format!("the store has no log {log}")))
    }

    /// Compares the copies of a log in other databases with the log itself, as far as they go.
    async fn compare_copies(&self, log: LogId) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        let Some(home) = self.map.home(log) else {
            return Ok(findings);
        };
        for (at, copy) in self.sources.iter().enumerate() {
            if at == home {
                continue;
            }
            // The snapshot of a copy that is being made may be newer than that of the log.
            let up_to = match self.map.moving() == Some(Moving { log, to: at }) {
                true => self.sources[home].last_position(log).await?,
                false => Position::MAX,
            };
            if let Some(differs) = self.sources[home].first_unknown(copy, log, up_to).await? {
                let (copy, home) = (self.map.describe(at), self.map.describe(home));
                findings.push(format!(
                    "log {log}: the copy in {copy} has an event at position {differs} that the log itself, in {home}, has \
                     never had: one of the databases was set back by a restore or a fail-over (`gesta cluster recover-log {log}`)"
                ));
            }
        }
        Ok(findings)
    }
}

#[async_trait]
impl AuditSource for SeveralAudit {
    fn logs(&self) -> u16 {
        self.map.logs()
    }

    async fn rows(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.of(log)?.rows(log, after, limit).await
    }

    async fn streams(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.of(log)?.streams(log, after, limit).await
    }

    async fn types(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.of(log)?.types(log, after, limit).await
    }

    async fn tags(
        &mut self,
        log: LogId,
        after: Option<&AuditTag>,
        limit: usize,
    ) -> Result<Vec<AuditTag>> {
        self.of(log)?.tags(log, after, limit).await
    }

    async fn floors(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditFloor>> {
        self.of(log)?.floors(log, after, limit).await
    }

    async fn stream_name(&mut self, log: LogId, row: i64) -> Result<Option<String>> {
        self.of(log)?.stream_name(log, row).await
    }

    async fn engine_findings(&mut self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        for source in &mut self.sources {
            findings.extend(source.engine_findings().await?);
        }
        for log in (0..self.map.logs()).map(LogId) {
            findings.extend(self.compare_copies(log).await?);
        }
        Ok(findings)
    }

    async fn schema_findings(&mut self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        for source in &mut self.sources {
            findings.extend(source.schema_findings().await?);
        }
        Ok(findings)
    }
}
