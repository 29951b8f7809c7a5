//! Databases that are set back to a moment before, or copied, while a store moves between them and after that.

use gesta_copy::{MoveStep, Target, Undone};
use gesta_rig::fresh_schema;

use crate::support::{
    accepts, all, backup_of, database_of, fill, move_store, move_until, postgres, rename, session,
    sources, undo_move,
};

/// The steps that undo what shutting has done, which the rows of a closed source do not show.
const UNSHUT_STORE: &str = include_str!("../../../postgres/sql/unshut_store.sql");

/// Takes a database away from its place.
async fn destroy(url: &str) {
    rename(database_of(url), &fresh_schema()).await;
}

/// Puts a backup of a database in its place.
async fn restore(url: &str, backup: &str) {
    destroy(url).await;
    rename(database_of(backup), database_of(url)).await;
}

async fn is_refused(source: &str, target: &str, says: [&str; 3]) {
    let refused = [
        move_store(source, target).await.map(drop),
        undo_move(source, target, Target::There).await.map(drop),
        undo_move(source, target, Target::Gone).await.map(drop),
    ];
    for (refused, says) in refused.into_iter().zip(says) {
        let error = refused.expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(!accepts(source).await && !accepts(target).await);
}

/// What happened: the source did not know that the target was opened. A backup of the target from before that, restored
/// or beside it, was opened by the same move once more, or given up by an undo that opened the source: two stores. What
/// holds now: from the moment before the opening on, such a target decides nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_from_before_its_opening_is_not_opened_beside_it() {
    let home = tempfile::tempdir().unwrap();
    for source in sources(home.path()) {
        let is_file = source.starts_with("sqlite:");
        fill(&source, 40).await;
        let target = postgres().unwrap();
        // A file is shut when it is closed.
        let is_shut = |step: &MoveStep| match is_file {
            true => *step == MoveStep::Closed,
            false => *step == MoveStep::Shut,
        };
        move_until(&source, &target, is_shut).await;
        let (backup, second) = (backup_of(&target).await, backup_of(&target).await);
        // The mover dies before the target is opened, and after.
        for until in [MoveStep::Announced, MoveStep::Opened] {
            move_until(&source, &target, |step| *step == until).await;
            let says = ["was set back", "was set back", "name the target"];
            is_refused(&source, &backup, says).await;
        }
        move_store(&source, &target).await.unwrap();
        assert!(accepts(&target).await);
        let says = ["was set back", "cannot be undone", "name the target"];
        is_refused(&source, &backup, says).await;
        let expected = all(&target).await;
        move_store(&source, &target).await.unwrap();
        assert_eq!(all(&target).await, expected);

        // The target itself is set back.
        restore(&target, &second).await;
        let says = ["was set back", "cannot be undone", "cannot be undone"];
        is_refused(&source, &target, says).await;
        // It is destroyed.
        destroy(&target).await;
        let says = ["was set back", "cannot be undone", "cannot be undone"];
        for (says, refused) in says.into_iter().zip([
            move_store(&source, &target).await.map(drop),
            undo_move(&source, &target, Target::There).await.map(drop),
            undo_move(&source, &target, Target::Gone).await.map(drop),
        ]) {
            let error = refused.expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(!accepts(&source).await);
        if is_file {
            continue;
        }
        // What an operator does who gives up what was appended there.
        let given_up = "UPDATE moved SET opened = false";
        let client = session(&source, "administrator").await;
        client.batch_execute(given_up).await.unwrap();
        undo_move(&source, &target, Target::Gone).await.unwrap();
        assert!(accepts(&source).await);
    }
}

/// Goal: a target that was set back to a moment before it had the id of its opening, when nobody has opened it yet, is
/// given up if the operator says that it is gone; the source is used again.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_lost_its_opening_before_it_was_opened_is_given_up_by_hand() {
    let (Some(source), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 20).await;
    move_until(&source, &target, |step| *step == MoveStep::Shut).await;
    let backup = backup_of(&target).await;
    move_until(&source, &target, |step| *step == MoveStep::Announced).await;
    restore(&target, &backup).await;
    let error = move_store(&source, &target).await.expect_err("set back");
    assert!(error.to_string().contains("was set back"), "{error}");
    undo_move(&source, &target, Target::Gone).await.unwrap();
    assert!(accepts(&source).await && !accepts(&target).await);
}

/// What happened: a target that was given up was called that of another store once the source had another incarnation,
/// and an undo that was repeated was refused. Goal: nothing is to do there, and a move says that it was undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_was_given_up_stays_so_for_a_source_in_another_life() {
    let (Some(source), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 20).await;
    move_until(&source, &target, |step| *step == MoveStep::Begun).await;
    let there = Target::There;
    let undone = undo_move(&source, &target, there).await.unwrap();
    assert_eq!(undone, Undone::Undone);
    gesta::schema::new_incarnation(&source).await.unwrap();
    let undone = undo_move(&source, &target, there).await.unwrap();
    assert_eq!(undone, Undone::Nothing);
    let error = move_store(&source, &target).await.expect_err("given up");
    assert!(error.to_string().contains("was undone"), "{error}");
    assert!(accepts(&source).await && !accepts(&target).await);
}

/// What happened: a source that had lost its shutting and was still closed, by a fail-over after the target was opened,
/// was taken for one that is appended to. What holds now: it is shut again, and answers no reader any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_lost_its_shutting_is_shut_again() {
    let (Some(source), Some(target)) = (postgres(), postgres()) else {
        return;
    };
    fill(&source, 20).await;
    let report = move_store(&source, &target).await.unwrap();
    let client = session(&source, "administrator").await;
    let lost = format!(
        "{UNSHUT_STORE}; UPDATE store SET schema_version = schema_version - 2000000; \
         UPDATE moved SET is_shut = false, copied = NULL, opened = false, opening = NULL"
    );
    client.batch_execute(&lost).await.unwrap();
    let reads = "SELECT count(*) FROM events";
    client.query_one(reads, &[]).await.unwrap();
    assert_eq!(move_store(&source, &target).await.unwrap(), report);
    let error = client.query_one(reads, &[]).await.expect_err("moved");
    let error = error.as_db_error().expect("refused").message();
    assert!(error.contains("has moved to"), "{error}");
    assert!(!accepts(&source).await && accepts(&target).await);
}
