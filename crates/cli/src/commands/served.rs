//! What a server does with its own store for administrators: copies, checks, scavenges, virtual streams.
//!
//! Not here: who may ask for it, and over what (`gesta_server`); the commands that ask (`maintenance`, `backup`).

use std::fs::File;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta::verify::AuditReport;
use gesta::{
    Database, DatabaseStore, LeftVirtualStreams, RunMode, ScavengeReport, VirtualStreamsStatus,
};
use gesta_core::Result;
use gesta_server::{BackupSource, Maintenance, OnProgress, VirtualStreamsCall};
use gesta_wire::maintenance::{Finding, Progress, Scavenged, Verified, VirtualStreams};

/// The store that is served, and its database.
pub(super) struct Served {
    pub(super) database: Database,
    pub(super) store: Arc<DatabaseStore>,
}

impl BackupSource for Served {
    fn copy(&self) -> BoxFuture<'_, Result<File>> {
        self.database.backup_file().boxed()
    }
}

impl Maintenance for Served {
    fn verify(&self, told: OnProgress) -> BoxFuture<'static, Result<Verified>> {
        let database = self.database.clone();
        async move { verify(&database, told).await }.boxed()
    }

    fn scavenge(&self, mode: RunMode, told: OnProgress) -> BoxFuture<'static, Result<Scavenged>> {
        let store = Arc::clone(&self.store);
        async move { scavenge(&store, mode, told).await }.boxed()
    }

    fn virtual_streams(
        &self,
        call: VirtualStreamsCall,
    ) -> BoxFuture<'static, Result<VirtualStreams>> {
        let (database, store) = (self.database.clone(), Arc::clone(&self.store));
        async move {
            if let Some(left) = left(&database, call).await? {
                return Ok(left);
            }
            let status = match call {
                VirtualStreamsCall::Look => store.virtual_streams_status().await,
                VirtualStreamsCall::SwitchOn => switch_on(&store).await,
                VirtualStreamsCall::SwitchOff => store.switch_virtual_streams(false).await,
            };
            Ok(virtual_streams(status?))
        }
        .boxed()
    }
}

/// Switches virtual streams on, and begins to write the entries of what is stored, for which nobody waits here.
async fn switch_on(store: &Arc<DatabaseStore>) -> Result<VirtualStreamsStatus> {
    let status = store.switch_virtual_streams(true).await?;
    let store = Arc::clone(store);
    tokio::spawn(async move {
        if let Err(error) = store.index_virtual_streams(|_| {}).await {
            tracing::warn!(%error, "entries of virtual streams are not written; they are when somebody reads them");
        }
    });
    Ok(status)
}

/// Checks a whole database.
pub(super) async fn verify(
    database: &Database,
    mut told: impl FnMut(Progress) + Send,
) -> Result<Verified> {
    let report = database.verify(|now| {
        told(Progress {
            events: now.events,
            streams: 0,
        });
    });
    Ok(verified(&report.await?))
}

/// Removes what is hidden in a store, or counts it.
pub(super) async fn scavenge(
    store: &DatabaseStore,
    mode: RunMode,
    mut told: impl FnMut(Progress) + Send,
) -> Result<Scavenged> {
    let report = store.scavenge(mode, |now| {
        told(Progress {
            events: now.removed.events,
            streams: now.streams,
        });
    });
    Ok(scavenged(&report.await?))
}

/// Looks at the virtual streams of a store in several databases, which keeps none but may have kept them before it got
/// its second database. Returns `None` for a store in one database.
pub(super) async fn left(
    database: &Database,
    call: VirtualStreamsCall,
) -> Result<Option<VirtualStreams>> {
    let left = match call {
        VirtualStreamsCall::SwitchOn => return Ok(None),
        VirtualStreamsCall::SwitchOff => LeftVirtualStreams::SwitchOff,
        VirtualStreamsCall::Look => LeftVirtualStreams::Look,
    };
    let status = database.left_virtual_streams(left).await?;
    Ok(status.map(virtual_streams))
}

/// Returns what a check has found as the document that a server answers with.
pub(super) fn verified(report: &AuditReport) -> Verified {
    let findings = report.findings.iter().map(|finding| Finding {
        kind: finding.kind.as_str().to_owned(),
        log: finding.log.0,
        position: finding.position,
        stream: finding.stream.clone(),
        stream_row: finding.stream_row,
        revision: finding.revision,
        text: finding.text.clone(),
    });
    Verified {
        healthy: report.is_healthy(),
        events: report.logs.iter().map(|log| log.events).sum(),
        findings_total: report.findings_total,
        findings: findings.collect(),
    }
}

fn scavenged(report: &ScavengeReport) -> Scavenged {
    Scavenged {
        dry_run: report.mode == RunMode::Dry,
        streams: report.streams,
        streams_changed: report.streams_changed,
        streams_unreadable: report.streams_unreadable,
        events: report.removed.events,
        payload_bytes: report.removed.payload_bytes,
    }
}

/// Returns the state of virtual streams as the document that a server answers with.
pub(super) fn virtual_streams(status: VirtualStreamsStatus) -> VirtualStreams {
    VirtualStreams {
        on: status.on,
        position: status.position.0,
        end: status.end.0,
    }
}
