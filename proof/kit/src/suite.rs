//! Lists all cases, and runs one of them.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::factory::StoreFactory;

/// How long one case may take.
const CASE_DEADLINE: Duration = Duration::from_secs(300);

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// The theme of the case, which is the module that it is in.
    pub theme: &'static str,
    /// The name of the function.
    pub name: &'static str,
    /// The function. It panics if the store breaks the promise.
    pub run: for<'a> fn(&'a dyn StoreFactory) -> BoxFuture<'a, ()>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}::{}", self.theme, self.name)
    }
}

/// Returns every case of the suite.
#[must_use]
pub fn all_cases() -> Vec<Case> {
    crate::conformance_tests!(@each table ())
}

/// Returns the case of this name, for example `append::ids_are_made_where_missing`.
///
/// # Panics
/// If there is no such case.
#[must_use]
pub fn case(name: &str) -> Case {
    all_cases()
        .into_iter()
        .find(|case| format!("{case:?}") == name)
        .unwrap_or_else(|| panic!("no case is named {name}"))
}

/// Runs one case within a deadline.
///
/// # Panics
/// If the store fails the case, or the deadline passes.
pub async fn run(factory: &dyn StoreFactory, case: BoxFuture<'_, ()>) {
    if tokio::time::timeout(CASE_DEADLINE, case).await.is_err() {
        panic!(
            "{}: the case did not end within {CASE_DEADLINE:?}",
            factory.name()
        );
    }
}

/// Runs one case and catches its panic. The error is the message of the panic, if the store fails the case.
pub async fn outcome_of(factory: &dyn StoreFactory, case: Case) -> Result<(), String> {
    let run = AssertUnwindSafe(run(factory, (case.run)(factory))).catch_unwind();
    run.await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("panicked").to_owned()
    })
}

/// Makes one test for each case of the suite, for the stores of a factory.
///
/// The expression is evaluated once per test. Wrap several uses in modules:
///
/// ```
/// mod four_logs {
///     gesta_kit::conformance_tests!(gesta_kit::MemoryFactory::new(4));
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_tests {
    (@tests ($factory:expr) $($theme:ident { $($case:ident)* })*) => {
        $(
            mod $theme {
                #[allow(unused_imports, reason = "the factory may be named by a full path")]
                use super::*;
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let factory = $factory;
                        let case = Box::pin($crate::cases::$theme::$case(&factory));
                        $crate::run(&factory, case).await;
                    }
                )*
            }
        )*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn random_operations_give_the_answers_of_the_model() {
            $crate::model::properties(&$factory).await;
        }
    };
    (@table () $($theme:ident { $($case:ident)* })*) => {
        vec![$($(
            $crate::Case {
                theme: stringify!($theme),
                name: stringify!($case),
                run: |factory| Box::pin($crate::cases::$theme::$case(factory)),
            },
        )*)*]
    };
    (@each $mode:ident ($($argument:tt)*)) => {
        $crate::conformance_tests! { @$mode ($($argument)*)
            append {
                the_answer_tells_where_the_events_are
                events_come_back_as_they_were_given
                positions_begin_at_one_and_grow
                ids_are_made_where_missing
                the_same_id_may_stand_in_two_streams
                empty_payloads_are_stored
                info_tells_the_heads
                created_never_decreases
                a_dropped_append_is_whole_or_absent
                a_closed_store_is_unavailable
            }
            expected {
                a_stream_never_written
                a_stream_that_exists
                a_stream_that_was_deleted
                a_stream_with_a_tombstone
                huge_revisions_are_only_wrong
            }
            retries {
                with_an_exact_revision
                with_no_stream
                with_any_revision
                with_an_existing_stream
                other_ids_at_the_same_place_are_refused
                content_is_not_compared
                a_claim_that_holds_is_no_retry
                events_without_ids_are_never_retries
                attempts_in_flight_are_joined
                over_several_streams
                of_what_was_appended_after_a_delete
                of_what_was_stored_before_a_delete_are_refused
                over_streams_one_of_which_was_deleted
            }
            several_streams {
                are_stored_in_the_order_of_the_request
                one_failing_check_stores_nothing
                a_tombstone_among_them_refuses_all
                malformed_appends_are_refused
                a_stream_and_its_metadata_go_together
                opposite_orders_have_one_winner
                readers_see_no_half_of_an_append
                conditions_of_other_streams_must_hold
                conditions_do_not_refuse_a_retry
                racing_appends_that_exclude_each_other_are_not_both_stored
                wrong_conditions_are_refused
            }
            no_match {
                what_passes_refuses
                which_events_count
                a_retry_gets_the_first_answer
                of_racers_one_is_stored
                unrelated_appends_do_not_conflict
                checkpoints_of_elsewhere_are_refused
                a_history_can_be_required
                wrong_filters_are_refused
            }
            limits {
                events_of_one_append_and_one_page
                streams_of_one_append
                too_many_bytes_are_refused
                sizes_of_pages
                tags_of_one_event
                sizes_of_filters
            }
            names {
                of_streams_are_kept_apart
                of_types_are_kept_apart
                of_tags_are_kept_apart
                in_prefixes_and_categories_are_literal
            }
            payloads {
                json_comes_back_byte_for_byte
                binary_holds_any_byte
                large_data_come_back
                the_largest_events_end_pages_early
            }
            read_stream {
                begins_where_it_is_told
                pages_join_without_gap_or_double
                of_a_missing_stream_is_an_error
                of_one_event
                sees_what_was_acknowledged
            }
            read_all {
                forwards_is_the_order_of_each_log
                backwards_is_the_reverse
                a_checkpoint_divides_the_log
                nothing_ahead_is_an_empty_last_page
                the_end_can_be_resumed
                checkpoints_travel_as_text
                unusable_checkpoints_are_refused
                a_rare_event_is_found_after_many_others
            }
            filters {
                by_any_of_the_types
                by_all_of_the_tags
                by_any_of_the_prefixes
                by_any_of_the_categories
                by_all_conditions_of_a_query
                by_any_of_the_queries
                without_conditions_lets_everything_through
            }
            lifecycle {
                a_deleted_stream_begins_again
                deleted_events_stay_among_all
                a_delete_is_an_event
                deletes_check_their_expectation
                metadata_alone_are_deleted_by_who_expects_no_stream
                a_tombstone_is_final
                a_tombstone_needs_no_stream
                other_streams_are_left_alone
            }
            metadata {
                come_back_as_they_were_set
                the_mark_of_a_deleted_stream_deletes
                are_readable_as_a_stream
                can_be_appended
                refuse_anything_else
                hide_events_from_the_front
                may_hide_every_event
                hide_old_events
                are_reset_by_a_delete
            }
            list {
                is_in_binary_order
                obeys_prefix_and_after
                shows_names_of_the_system_if_asked
                leaves_deleted_streams_out
            }
            subscribe {
                catches_up_then_goes_live
                of_an_empty_store_waits_for_the_first_event
                from_the_end_sees_only_what_is_new
                every_checkpoint_resumes_exactly
                reads_and_subscriptions_share_checkpoints
                filters_hold_in_both_phases
                a_rare_filter_gets_checkpoints
                among_concurrent_writers_nothing_is_missed_or_doubled
                a_slow_consumer_loses_nothing
                many_subscribers_are_served
                from_unusable_checkpoints_is_refused
                ends_when_the_store_closes
                delivers_large_events
            }
            subscribe_stream {
                catches_up_then_goes_live
                begins_where_it_is_told
                waits_for_a_stream_that_does_not_exist
                goes_on_after_a_soft_delete
                skips_hidden_events
                ends_at_a_tombstone
                from_unusable_places_is_refused
                follows_a_metadata_stream
            }
            loads {
                equal_reads_of_single_streams
                tell_what_was_deleted
                join_page_by_page
                of_large_events_end_early
                see_what_was_acknowledged
                leave_old_events_out
                of_wrong_size_are_refused
            }
            submissions {
                follow_each_other_without_waiting
                begin_a_stream
                of_nothing_ask_whether_the_owner_is_up_to_date
                fall_with_the_one_they_were_decided_upon
                are_refused_after_a_foreign_event
                know_the_last_event_after_reopening
                that_break_a_rule_are_refused
                are_each_told_once
                after_the_end_are_refused
            }
            racing {
                one_writer_wins
                writers_without_a_claim_all_win
                nothing_appears_below_a_passed_position
            }
            reopen {
                everything_acknowledged_is_there_again
                the_state_of_streams_is_kept
                appends_go_on
                retries_are_recognised
                checkpoints_stay_good
                several_lives_follow_each_other
            }
            shared {
                both_append_without_a_gap
                claims_are_judged_by_what_is_stored
                each_reads_what_the_other_acknowledged
                retries_through_the_other_are_recognised
                subscriptions_are_woken_across
                one_writer_wins
                nothing_appears_below_a_passed_position
                the_same_append_at_both_is_stored_once
                a_busy_store_lets_the_other_through
            }
            logs {
                streams_are_routed_by_name
                names_that_share_braces_go_together
                an_append_over_two_logs_is_refused
                checkpoints_hold_a_position_per_log
                a_busy_log_leaves_room_to_the_others
                the_checkpoint_of_an_append_skips_no_other_log
                subscriptions_follow_every_log
            }
            virtual_streams {
                of_a_category_hold_its_events
                of_a_type_hold_its_events
                of_all_streams_name_each_once
                leave_out_what_is_of_the_system
                hold_what_was_acknowledged
                are_read_in_pages
                keep_revisions_after_deletes
                links_lead_to_what_streams_show
                stored_links_are_followed
                are_not_to_be_changed
                without_entries_are_not_found
                are_followed_live
                are_waited_for
                are_resumed_exactly
                subscriptions_follow_links
                keep_revisions_after_reopening
                are_the_same_for_two_processes
                need_one_log_and_to_be_on
            }
            capabilities {
                are_declared
                readiness_is_that_of_appends
            }
        }
    };
    ($factory:expr) => {
        $crate::conformance_tests! { @each tests ($factory) }
    };
}
