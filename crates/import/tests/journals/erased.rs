//! Streams that were deleted and scavenged in the target.

use std::sync::Arc;

use gesta_core::backend::RunMode;
use gesta_core::{
    DeleteKind, DeleteStream, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    Result, StreamId,
};
use gesta_import::{Import, Kind, Options, Report};

use crate::message_db::TABLES;
use crate::support::Journal;

async fn import(options: &Options, store: Arc<dyn EventStore>) -> Result<Report> {
    let mut import = Import::open(options.clone(), store).await?;
    import.run(|_| ()).await?;
    Ok(import.report())
}

/// What happened: nothing told any more what was imported of a stream that was deleted and scavenged in the target, so
/// with its next event all of them came again, and could be read. Goal: what was deleted stays so; what comes later is
/// stored, if a checkpoint tells what is later.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_scavenged_in_the_target_does_not_come_back() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    let write = async |stream: &str, position: u64| {
        let sql = format!(
            "INSERT INTO message_store.messages (position, stream_name, type, data) VALUES ({position}, '{stream}', 't', '{{}}')"
        );
        journal.run(&sql).await;
    };
    for position in 0..2 {
        write("m-1", position).await;
        write("n-1", position).await;
    }
    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("target.db").display());
    let store = gesta::Options::creating()
        .open_database(&url)
        .await
        .unwrap();
    let options = journal.options(Kind::MessageDb);
    let as_store = || Arc::clone(&store) as Arc<dyn EventStore>;
    assert_eq!(import(&options, as_store()).await.unwrap().stored, 4);
    for stream in ["m-1", "n-1"] {
        let delete = DeleteStream {
            stream: StreamId::new(stream).unwrap(),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        };
        store.delete_stream(delete).await.unwrap();
    }
    let newest = EventData::json(EventType::new("t").unwrap(), "{}");
    let any = ExpectedRevision::Any;
    store.append_to("other-1", any, vec![newest]).await.unwrap();
    store.scavenge(RunMode::Real, |_| ()).await.unwrap();

    write("m-1", 2).await;
    let report = import(&options, as_store()).await.unwrap();
    assert_eq!((report.stored, report.late), (1, 0), "{report:?}");
    let shown = store.read_whole_stream("m-1").await.unwrap();
    let revisions: Vec<u64> = shown.iter().map(|event| event.revision.0).collect();
    assert_eq!(revisions, [2]);
    // Without a checkpoint nothing tells what of `n-1` was there: by another name, or of lines, which have none.
    let other = Options {
        name: "other".into(),
        ..options
    };
    let file = home.path().join("lines.jsonl");
    std::fs::write(&file, "{\"stream\":\"n-1\",\"type\":\"t\",\"data\":{}}\n").unwrap();
    let lines = Options::new(Kind::Lines, file.to_str().unwrap()).unwrap();
    for (options, said) in [(other, "\"n-1\" number 0"), (lines, "\"n-1\" number 1")] {
        let error = import(&options, as_store()).await.expect_err("scavenged");
        let error = error.to_string();
        assert!(
            error.contains(said) && error.contains("deleted and scavenged"),
            "{error}"
        );
    }
    let all = store.read_everything().await.unwrap();
    assert!(all.iter().all(|event| event.stream.as_str() != "n-1"));
    store.shutdown().await.unwrap();
}
