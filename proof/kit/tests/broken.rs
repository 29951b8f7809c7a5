//! Every broken store fails the suite, in the case that is there for it; the wrapper alone passes.
//!
//! Time is paused: where a case waits for something that never comes, its deadline passes at once.

#![allow(clippy::expect_used, reason = "tests")]

use gesta_kit::broken::{BrokenFactory, Fault};
use gesta_kit::{all_cases, case, outcome_of};

/// The case that is there for a fault must fail, with one log and with four.
async fn fails(fault: Fault, name: &str) {
    for logs in [1, 4] {
        let factory = BrokenFactory::new(fault, logs);
        let outcome = outcome_of(&factory, case(name)).await;
        let message = outcome.expect_err("the case must notice the fault");
        println!("{fault:?} with {logs} logs fails {name}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_fault_every_case_passes() {
    for logs in [1, 4] {
        let factory = BrokenFactory::new(Fault::None, logs);
        for case in all_cases() {
            let outcome = outcome_of(&factory, case).await;
            assert_eq!(outcome, Ok(()), "{case:?} with {logs} logs");
        }
    }
}

/// Goal: late visibility is recognised as what it is, not only by its consequences.
#[tokio::test(start_paused = true)]
async fn late_visibility_is_called_by_its_name() {
    let factory = BrokenFactory::new(Fault::LateVisibility, 1);
    let racing = case("racing::nothing_appears_below_a_passed_position");
    let message = outcome_of(&factory, racing).await.expect_err("noticed");
    assert!(message.contains("who never got it"), "{message}");
    assert!(
        !message.contains("lost"),
        "everything is visible in the end: {message}"
    );
}

macro_rules! broken {
    ($($name:ident: $fault:ident fails $($case:literal),+;)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                $(fails(Fault::$fault, $case).await;)+
            }
        )*

        /// Goal: no fault is without its case.
        #[test]
        fn every_fault_is_named() {
            let named = [$(Fault::$fault),*];
            // A new fault does not compile here until it is named above or excused.
            for fault in named {
                match fault {
                    Fault::None => panic!("no fault"),
                    $(Fault::$fault => {})*
                }
            }
        }
    };
}

broken! {
    late_visibility: LateVisibility fails "racing::nothing_appears_below_a_passed_position",
        "shared::nothing_appears_below_a_passed_position";
    refusal_from_a_stale_cache: StaleRefusal fails "shared::claims_are_judged_by_what_is_stored";
    partial_batch: PartialBatch fails "several_streams::one_failing_check_stores_nothing";
    one_by_one: OneByOne fails "append::a_dropped_append_is_whole_or_absent";
    lost_append: LostAppend fails "reopen::everything_acknowledged_is_there_again",
        "reopen::several_lives_follow_each_other";
    duplicate_on_retry: DuplicateOnRetry fails "retries::with_any_revision",
        "retries::attempts_in_flight_are_joined";
    answer_of_now: AnswerOfNow fails "retries::with_an_exact_revision";
    check_then_act: CheckThenAct fails "racing::one_writer_wins", "shared::one_writer_wins";
    no_actual_revision: NoActualRevision fails "expected::a_stream_that_exists";
    subscription_drops: SubscriptionDrops fails "subscribe::catches_up_then_goes_live",
        "subscribe::among_concurrent_writers_nothing_is_missed_or_doubled";
    subscription_doubles: SubscriptionDoubles fails "subscribe::catches_up_then_goes_live",
        "subscribe_stream::catches_up_then_goes_live";
    gap_before_live: GapBeforeLive fails "subscribe::catches_up_then_goes_live",
        "subscribe_stream::catches_up_then_goes_live";
    never_woken: NeverWoken fails "subscribe::catches_up_then_goes_live",
        "shared::subscriptions_are_woken_across";
    checkpoint_too_far: CheckpointTooFar fails "subscribe::every_checkpoint_resumes_exactly";
    reordered_revisions: ReorderedRevisions fails "read_stream::begins_where_it_is_told";
    end_too_early: EndTooEarly fails "read_all::forwards_is_the_order_of_each_log";
    any_tag: AnyTag fails "filters::by_all_of_the_tags";
    any_checkpoint: AnyCheckpoint fails "read_all::unusable_checkpoints_are_refused";
    folded_names: FoldedNames fails "names::of_streams_are_kept_apart";
    trimmed_payloads: TrimmedPayloads fails "payloads::json_comes_back_byte_for_byte";
    created_decreases: CreatedDecreases fails "append::created_never_decreases";
    lists_deleted: ListsDeleted fails "list::leaves_deleted_streams_out";
}
