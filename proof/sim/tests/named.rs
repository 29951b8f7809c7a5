//! The named schedules of worlds, one test each. `GESTA_SEED` replays. The random ones are in `schedules.rs`; the
//! schedules themselves in the folders of the worlds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use gesta_kit::depth;
use gesta_sim::driver::{Found, World, check};

/// Runs a named schedule with several seeds.
fn each_seed(world: &World, name: &str) {
    let form = world.form(name).expect("a form of the world");
    let first = depth::seed();
    for seed in (0..depth::count(6, 300)).map(|n| first.wrapping_add(n)) {
        if let Err(finding) = check(world, form, seed, Found::AsItIs) {
            panic!("GESTA_SEED={seed}: {}", finding.what);
        }
    }
}

/// Makes a test of each named schedule of a world.
macro_rules! named {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                super::each_seed(&WORLD, stringify!($name));
            }
        )*

        /// Goal: no named schedule is forgotten here.
        #[test]
        fn every_named_schedule_has_a_test() {
            let tests = [$(stringify!($name)),*];
            let forms = WORLD.forms.iter().map(|form| form.name);
            let named: Vec<&str> = forms.filter(|form| *form != "random").collect();
            assert_eq!(named, tests);
        }
    };
}

/// Those that leases must survive (`docs/internals/schedules.md`).
mod membership {
    use gesta_sim::worlds::membership::WORLD;

    named! {
        logs_of_a_killed_node_are_claimed_within_the_lease_time
        refused_connections_find_a_killed_node_sooner
        a_node_that_beats_is_not_declared_dead_for_refused_connections
        a_node_that_restarts_claims_its_old_logs_at_once
        an_owner_that_sleeps_loses_its_logs_once_and_joins_again
        a_short_sleep_moves_nothing
        a_beat_that_comes_just_in_time_counts
        an_observer_that_slept_declares_nobody_dead
        an_observer_that_dozes_declares_nobody_dead
        when_all_sleep_and_wake_each_log_moves_at_most_once
        an_outage_of_the_database_moves_nothing
        a_database_that_comes_and_goes_moves_nothing
        a_node_that_dies_in_an_outage_is_found_a_lease_time_after_it
        clocks_have_no_effect
        a_node_that_is_cut_off_from_the_database_loses_its_logs
        a_node_that_finds_most_others_dead_waits_longer
        however_many_of_five_die_their_logs_are_claimed_within_ten_seconds
        a_node_declares_one_other_dead_in_a_beat
        of_two_claimers_each_log_gets_one
        beats_go_on_while_changes_hang
        a_fail_over_that_loses_leases_ends_with_one_owner_of_each_log
        a_node_whose_row_was_lost_is_not_replaced_by_who_got_its_number
        a_beat_after_a_fail_over_is_a_sign_of_life
        an_epoch_that_went_back_is_raised_above_the_known_one
        a_process_that_is_replaced_while_it_lives_stops
        a_node_alone_owns_everything_at_once
        a_node_that_others_cannot_call_gives_its_logs_away
        a_node_that_others_cannot_call_and_that_keeps_its_logs_is_declared_dead
        a_node_whose_links_heal_one_after_the_other_keeps_its_logs
        a_node_that_leaves_looks_once_more_for_takers
        a_node_that_nobody_can_take_logs_from_leaves_at_once
        a_rolling_restart_moves_at_most_26_logs
        a_node_that_joins_gets_its_share_one_log_at_a_time_after_settling
        a_drain_that_is_held_outlasts_restarts
        nothing_moves_for_balance_while_builds_differ
        a_log_whose_pipeline_is_stuck_goes_alone
        if_all_pipelines_are_stuck_all_logs_stay
        a_node_that_drains_keeps_nothing_and_receives_nothing
        requests_pins_and_freezing_are_followed
    }
}

/// Those of logs that move between databases, and are lost. Time is paused.
mod moves {
    use gesta_sim::worlds::moves::{RUNTIME, WORLD as IN_TIME};
    use std::sync::LazyLock;
    use tokio::runtime::{Builder, Runtime};

    static WORLD: LazyLock<&gesta_sim::driver::World> = LazyLock::new(|| {
        RUNTIME.get_or_init(|| paused);
        &IN_TIME
    });

    fn paused() -> Runtime {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        runtime.expect("starts")
    }

    named! {
        readers_with_an_old_map_find_what_came_after_a_move
        a_new_home_that_was_set_back_is_refused_and_the_log_comes_back
        a_home_that_was_set_back_to_an_earlier_stay_is_refused
        an_operator_chooses_between_copies_that_differ
        another_log_or_another_way_waits_its_turn
        a_log_that_a_fail_over_has_opened_again_is_closed
        a_copy_that_a_fail_over_has_left_open_is_not_the_log
        a_home_that_has_not_noted_the_log_is_refused_though_nothing_is_missing
        an_answer_counts_only_in_the_history_in_which_it_was_asked_for
        the_ends_of_logs_come_from_where_the_logs_lie
        a_log_is_refused_once_a_copy_has_rows_again_that_were_given_up
        a_writer_of_an_earlier_history_is_not_used
        a_writer_of_the_proof_of_before_is_not_used_once_the_log_is_lost
        while_a_database_is_away_the_proof_of_before_counts
        a_database_that_hangs_stops_no_log_of_another
        calls_to_a_lost_log_ask_once_together
        calls_that_follow_a_log_read_once_together
        maps_that_contradict_each_other_stop_every_process
        a_copy_that_is_open_is_told_of_once
        a_copy_of_a_history_that_was_given_up_gets_the_names_of_the_log
        a_closed_log_is_not_copied_behind_a_history_that_was_given_up
    }
}
