//! Single rules of the sending core; the simulation has the schedules.

use gesta_core::Incarnation;
use uuid::Uuid;

use super::*;
use crate::route::Epoch;

const PATIENT: Patience = Patience::UntilUnreachable;
const LINK: LinkState = LinkState::Up(Credit {
    calls: 100,
    bytes: 1_000,
});

fn epoch(number: u64) -> Epoch {
    Epoch {
        incarnation: Incarnation(Uuid::nil()),
        number,
    }
}

fn route(node: &str, number: u64) -> Route {
    Route {
        owner: RouteOwner::Node(Address::new(node)),
        epoch: epoch(number),
    }
}

fn local(number: u64) -> Route {
    Route {
        owner: RouteOwner::Local,
        epoch: epoch(number),
    }
}

fn hint(node: &str, number: u64) -> Hint {
    Hint {
        owner: Some(Address::new(node)),
        epoch: epoch(number),
    }
}

/// A log owned by `a` at epoch 1, its link up, with this many calls.
fn sender(now: Moment, calls: u32) -> Sender<u32, ()> {
    let mut sender = Sender::new(
        Address::new("own"),
        Duration::from_secs(1),
        route("a", 1),
        now,
    );
    sender.link(&Address::new("a"), LINK);
    for call in 0..calls {
        sender.call(call, 1, now + Duration::from_secs(10), PATIENT);
    }
    sender.work(now);
    sender
}

fn written(sender: &mut Sender<u32, ()>, now: Moment) -> Vec<u32> {
    std::iter::from_fn(|| sender.next_write(now).map(|write| *write.ticket)).collect()
}

fn returned(sender: &mut Sender<u32, ()>) -> Vec<(u32, ReturnReason, bool)> {
    let outputs = sender.take_outputs().into_iter();
    outputs
        .filter_map(|output| match output {
            Output::Return {
                ticket,
                reason,
                was_written,
            } => Some((ticket, reason, was_written)),
            _ => None,
        })
        .collect()
}

/// Takes a reply. Returns the call that it is for, and whether that is in doubt.
fn reply(
    sender: &mut Sender<u32, ()>,
    lane: u64,
    seq: u64,
) -> Result<Option<(u32, bool)>, Violation> {
    sender.replied(lane, seq, ())?;
    let mut replies = sender
        .outputs
        .extract_if(.., |output| matches!(output, Output::Reply { .. }));
    Ok(replies.next().and_then(|output| match output {
        Output::Reply {
            ticket,
            is_in_doubt,
            ..
        } => Some((ticket, is_in_doubt)),
        _ => None,
    }))
}

/// Goal: three calls, *not here* for the second; the second and the third reach the new owner in order, once the first
/// is answered.
#[test]
fn calls_that_are_refused_follow_the_hint_in_order() {
    let now = Moment::START;
    let mut sender = sender(now, 3);
    assert_eq!(written(&mut sender, now), [0, 1, 2]);
    sender.not_here(now, 1, 1, 1, hint("b", 2)).expect("valid");
    sender.link(&Address::new("b"), LINK);
    sender.work(now);
    assert!(written(&mut sender, now).is_empty(), "call 0 is unanswered");
    assert_eq!(reply(&mut sender, 1, 0), Ok(Some((0, false))));
    sender.work(now);
    assert_eq!(written(&mut sender, now), [1], "one until it succeeds");
    assert_eq!(reply(&mut sender, 2, 0), Ok(Some((1, false))));
    sender.work(now);
    assert_eq!(written(&mut sender, now), [2]);
}

/// Goal: an owner that stops refuses what it has not read, whether that was written or not, and nothing of it is in
/// doubt. What happened: a call was on its way to a node when its process ended after it had handed its logs over. The
/// call was in doubt, and its refusal by the next owner became *outcome unknown* in a rolling restart.
#[test]
fn what_an_owner_that_stops_has_not_read_is_not_in_doubt() {
    let now = Moment::START;
    for written_count in [1, 2] {
        let mut sender = sender(now, written_count);
        assert_eq!(written(&mut sender, now).len(), written_count as usize);
        assert_eq!(reply(&mut sender, 1, 0), Ok(Some((0, false))));
        sender.not_here(now, 1, 1, 1, hint("a", 1)).expect("valid");
        if written_count == 1 {
            sender.call(1, 1, now + Duration::from_secs(10), PATIENT);
        }
        sender.work(now);
        assert!(written(&mut sender, now).is_empty(), "a pause first");
        sender.set_route(now, route("b", 2));
        sender.link(&Address::new("b"), LINK);
        sender.work(now);
        let write = sender.next_write(now).expect("written again");
        assert_eq!((*write.ticket, write.is_in_doubt), (1, false));
    }
}

#[test]
fn an_old_hint_is_not_followed_but_paused_for() {
    let now = Moment::START;
    let mut sender = sender(now, 1);
    let (mut at, mut pauses) = (now, Vec::new());
    for lane in 1..=8 {
        assert_eq!(written(&mut sender, at), [0]);
        sender
            .not_here(at, lane, 0, 0, hint("b", 1))
            .expect("valid");
        assert_eq!(sender.node(), Some(&Address::new("a")));
        sender.work(at);
        assert!(written(&mut sender, at).is_empty());
        let next = sender.wake_at().expect("a pause");
        pauses.push(next.since(at).as_millis());
        at = next;
        sender.work(at);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 200, 200]);
}

/// Goal: pauses begin anew with each owner. An owner that hands its log over may refuse a call some times, and the next
/// one once, because it looks a moment later than the forwarder. That must not be the longest pause of all.
#[test]
fn the_next_owner_is_asked_again_soon() {
    let now = Moment::START;
    let mut sender = sender(now, 1);
    let mut at = now;
    for lane in 1..=4 {
        assert_eq!(written(&mut sender, at), [0]);
        sender
            .not_here(at, lane, 0, 0, hint("b", 1))
            .expect("valid");
        sender.work(at);
        at = sender.wake_at().expect("a pause");
        sender.work(at);
    }
    sender.set_route(at, route("b", 2));
    sender.link(&Address::new("b"), LINK);
    sender.work(at);
    assert_eq!(written(&mut sender, at), [0], "at once");
    sender.not_here(at, 6, 0, 0, hint("a", 1)).expect("valid");
    sender.work(at);
    let pause = sender.wake_at().map(|next| next.since(at));
    assert_eq!(pause, Some(Duration::from_millis(5)));
}

#[test]
fn a_hint_that_names_this_node_is_told_but_not_followed() {
    let now = Moment::START;
    let mut sender = sender(now, 1);
    assert_eq!(written(&mut sender, now), [0]);
    sender
        .not_here(now, 1, 0, 0, hint("own", 2))
        .expect("valid");
    assert_eq!(sender.node(), Some(&Address::new("a")));
    let mut outputs = sender.take_outputs().into_iter();
    let told = outputs.any(|output| matches!(output, Output::Hint(_)));
    assert!(told);
}

#[test]
fn a_route_of_an_older_epoch_is_ignored_and_another_incarnation_believed() {
    let now = Moment::START;
    let mut sender = sender(now, 0);
    sender.set_route(now, route("b", 0));
    assert_eq!(sender.node(), Some(&Address::new("a")));
    let mut other = route("c", 0);
    other.epoch.incarnation = Incarnation(Uuid::max());
    sender.set_route(now, other);
    assert_eq!(sender.node(), Some(&Address::new("c")));
    sender.set_route(now, route("a", 9));
    assert_eq!(sender.node(), Some(&Address::new("a")));
}

/// Goal: a hand-over that the database tells of before the answers of the old owner have come leaves nothing in doubt.
/// What happened: the calls in flight were sent again at once, in doubt, so that a refusal of one of them was told as
/// *outcome unknown* in a rolling restart.
#[test]
fn the_answers_of_an_owner_that_was_replaced_are_awaited() {
    let now = Moment::START;
    for next in [route("b", 2), local(2)] {
        let mut sender = sender(now, 3);
        assert_eq!(written(&mut sender, now), [0, 1, 2]);
        sender.set_route(now, next.clone());
        sender.link(&Address::new("b"), LINK);
        sender.call(3, 1, now + Duration::from_secs(10), PATIENT);
        sender.work(now);
        assert!(written(&mut sender, now).is_empty(), "nothing overtakes");
        assert_eq!(reply(&mut sender, 1, 0), Ok(Some((0, false))));
        sender.not_here(now, 1, 1, 1, hint("b", 2)).expect("valid");
        sender.work(now);
        if next.owner == RouteOwner::Local {
            let certain = [1, 2, 3].map(|call| (call, ReturnReason::Local, false));
            assert_eq!(returned(&mut sender), certain);
        } else {
            assert_eq!(written(&mut sender, now), [1, 2, 3], "at once and together");
            assert_eq!(
                reply(&mut sender, 2, 0),
                Ok(Some((1, false))),
                "without doubt"
            );
        }
    }
}

/// Goal: an owner that was replaced and does not answer holds nothing up for long, also if its link breaks.
#[test]
fn an_owner_that_was_replaced_is_not_awaited_for_long() {
    let now = Moment::START;
    let replaced = || {
        let mut sender = sender(now, 2);
        assert_eq!(written(&mut sender, now), [0, 1]);
        sender.set_route(now, route("b", 2));
        sender.link(&Address::new("b"), LINK);
        sender.work(now);
        sender
    };
    let mut is_silent = replaced();
    let late = now + LEAVE_WITHIN;
    assert_eq!(is_silent.wake_at(), Some(late));
    is_silent.work(late);
    assert_eq!(written(&mut is_silent, late), [0], "one until it succeeds");
    assert_eq!(reply(&mut is_silent, 2, 0), Ok(Some((0, true))));
    let mut is_gone = replaced();
    is_gone.lane_lost(now, 1);
    is_gone.work(now);
    assert_eq!(written(&mut is_gone, now), [0], "without a pause");
    assert_eq!(reply(&mut is_gone, 2, 0), Ok(Some((0, true))));
}

/// Goal: nobody awaits an owner that is not heard.
#[test]
fn an_owner_that_was_not_heard_is_left_at_once() {
    let now = Moment::START;
    let mut sender = sender(now, 1);
    assert_eq!(written(&mut sender, now), [0]);
    sender.link(&Address::new("a"), LinkState::Silent);
    sender.set_route(now, local(2));
    sender.work(now);
    assert_eq!(returned(&mut sender), [(0, ReturnReason::Local, true)]);
}

/// Goal: calls that come back keep their order even if earlier ones are still in flight with an owner that drains.
#[test]
fn calls_come_back_after_those_in_flight_before_them() {
    let now = Moment::START;
    let mut sender = sender(now, 3);
    assert_eq!(written(&mut sender, now), [0, 1, 2]);
    sender.not_here(now, 1, 1, 1, hint("b", 2)).expect("valid");
    sender.link(&Address::new("b"), LinkState::Unreachable);
    sender.work(now);
    assert_eq!(returned(&mut sender), []);
    sender.lane_lost(now, 1);
    sender.work(now);
    let unreachable = ReturnReason::Unreachable;
    let expected = [
        (0, unreachable, true),
        (1, unreachable, false),
        (2, unreachable, false),
    ];
    assert_eq!(returned(&mut sender), expected);
}

#[test]
fn a_log_without_an_owner_gives_its_calls_back_after_a_second() {
    let now = Moment::START;
    let mut sender = sender(now, 2);
    assert_eq!(written(&mut sender, now), [0, 1]);
    sender.set_route(
        now,
        Route {
            owner: RouteOwner::Nobody,
            epoch: epoch(1),
        },
    );
    sender.work(now);
    let given_up = sender.wake_at().expect("the answers are awaited");
    assert_eq!(given_up.since(now), LEAVE_WITHIN);
    sender.work(given_up);
    assert_eq!(returned(&mut sender), []);
    let later = sender.wake_at().expect("a time");
    assert_eq!(later.since(now), Duration::from_secs(1));
    sender.work(later);
    let reason = ReturnReason::NoOwner;
    assert_eq!(
        returned(&mut sender),
        [(0, reason, true), (1, reason, true)]
    );
    sender.call(2, 1, later + Duration::from_secs(9), PATIENT);
    sender.work(later);
    assert_eq!(returned(&mut sender), [(2, reason, false)], "at once");
}

#[test]
fn answers_that_break_the_rules_are_violations() {
    let now = Moment::START;
    let mut sender = sender(now, 2);
    assert_eq!(written(&mut sender, now), [0, 1]);
    assert!(reply(&mut sender, 1, 2).is_err(), "not written");
    assert_eq!(reply(&mut sender, 1, 1), Ok(Some((1, false))));
    assert!(reply(&mut sender, 1, 1).is_err(), "twice");
    assert!(sender.not_here(now, 1, 1, 1, hint("b", 2)).is_err());
    assert!(sender.not_here(now, 1, u64::MAX, 1, hint("b", 2)).is_err());
    assert_eq!(reply(&mut sender, 9, 0), Ok(None), "a lane of long ago");
}

/// Goal: a lane on which the rules were broken is given up, and what was in flight on it is in doubt.
#[test]
fn a_lane_whose_owner_breaks_the_rules_is_given_up() {
    let now = Moment::START;
    let mut sender = sender(now, 2);
    assert_eq!(written(&mut sender, now), [0, 1]);
    sender.take_outputs();
    let twice = |seq| Input::Dropped { lane: 1, seq };
    sender.on(twice(1), now);
    sender.on(twice(1), now);
    let outputs = sender.take_outputs();
    let broken = "a second answer to a call";
    assert!(
        matches!(
            outputs.as_slice(),
            [
                Output::Return { ticket: 1, .. },
                Output::Broken { lane: 1, rule },
                Output::CloseLane { lane: 1 },
            ] if *rule == broken
        ),
        "{outputs:?}"
    );
    sender.on(twice(0), now);
    assert!(sender.take_outputs().is_empty(), "a lane of long ago");
    let again = sender.wake_at().expect("a pause");
    sender.work(again);
    let write = sender.next_write(again).expect("written again");
    assert_eq!((*write.ticket, write.is_in_doubt), (0, true));
}

#[test]
fn credit_bounds_calls_and_bytes_but_lets_a_large_body_go_alone() {
    let now = Moment::START;
    let mut sender = sender(now, 0);
    for bytes in [5_000, 600, 300, 200] {
        sender.call(
            u32::try_from(bytes).expect("small"),
            bytes,
            now + Duration::from_secs(9),
            PATIENT,
        );
    }
    sender.work(now);
    assert_eq!(written(&mut sender, now), [5_000]);
    assert_eq!(reply(&mut sender, 1, 0), Ok(Some((5_000, false))));
    assert_eq!(written(&mut sender, now), [600, 300]);
    assert_eq!(reply(&mut sender, 1, 2), Ok(Some((300, false))));
    assert_eq!(written(&mut sender, now), [200]);
}

/// Goal: a hand-over is announced by a hint and fails. The hint was newer than the truth, and is put right by the next
/// look; a look that is older than another look is not believed.
#[test]
fn a_hint_that_promised_too_much_is_put_right() {
    let now = Moment::START;
    let mut sender = sender(now, 1);
    assert_eq!(written(&mut sender, now), [0]);
    sender.not_here(now, 1, 0, 0, hint("b", 2)).expect("valid");
    assert_eq!(sender.node(), Some(&Address::new("b")));
    sender.set_route(now, route("a", 0));
    assert_eq!(sender.node(), Some(&Address::new("b")));
    sender.set_route(now, route("a", 1));
    assert_eq!(sender.node(), Some(&Address::new("a")));
}

/// Goal: an owner that has lost a call, though its link is alive, does not keep a lane for ever.
#[test]
fn a_silent_lane_is_given_up_after_a_call_was() {
    let now = Moment::START;
    let mut sender = sender(now, 1);
    assert_eq!(written(&mut sender, now), [0]);
    let over = now + Duration::from_secs(10);
    sender.work(over);
    assert_eq!(
        returned(&mut sender),
        [(0, ReturnReason::DeadlineOver, true)]
    );
    sender.call(1, 1, over + Duration::from_secs(60), PATIENT);
    sender.work(over);
    assert_eq!(written(&mut sender, over), [1]);
    let stuck = over + STUCK_AFTER;
    assert_eq!(sender.wake_at(), Some(stuck));
    sender.work(stuck);
    let opens = sender.wake_at().expect("a pause");
    sender.work(opens);
    assert_eq!(written(&mut sender, opens), [1], "on a new lane");
    assert_eq!(reply(&mut sender, 2, 0), Ok(Some((1, true))));
}

#[test]
fn a_call_without_time_left_is_not_written() {
    let now = Moment::START;
    let mut sender = sender(now, 0);
    sender.call(0, 1, now + Duration::from_micros(900), PATIENT);
    sender.call(1, 1, now + Duration::from_secs(1), PATIENT);
    sender.work(now);
    assert_eq!(written(&mut sender, now), [1]);
    assert_eq!(
        returned(&mut sender),
        [(0, ReturnReason::DeadlineOver, false)]
    );
}

/// Goal: an owner that is silent for a moment costs appends nothing but a way around it, and commands nothing at all.
#[test]
fn only_impatient_calls_do_not_wait_for_a_silent_owner() {
    let now = Moment::START;
    let mut sender = sender(now, 0);
    let call = |sender: &mut Sender<u32, ()>, call, patience| {
        sender.call(call, 1, now + Duration::from_secs(10), patience);
    };
    for number in [0, 2] {
        call(&mut sender, number, Patience::UntilSilent);
        call(&mut sender, number + 1, PATIENT);
    }
    sender.work(now);
    let first: Vec<_> = (0..3)
        .filter_map(|_| Some(*sender.next_write(now)?.ticket))
        .collect();
    assert_eq!(first, [0, 1, 2]);
    sender.link(&Address::new("a"), LinkState::Silent);
    sender.work(now);
    let silent = |call, was_written| (call, ReturnReason::Silent, was_written);
    assert_eq!(returned(&mut sender), [silent(0, true), silent(2, true)]);
    call(&mut sender, 4, Patience::UntilSilent);
    call(&mut sender, 5, PATIENT);
    sender.work(now);
    assert_eq!(returned(&mut sender), [silent(4, false)]);
    assert!(written(&mut sender, now).is_empty(), "nothing more");
    assert!(sender.has_calls());
    // A false alarm: the lane goes on.
    sender.link(&Address::new("a"), LINK);
    sender.work(now);
    assert_eq!(reply(&mut sender, 1, 0), Ok(None), "given up");
    assert_eq!(reply(&mut sender, 1, 1), Ok(Some((1, false))));
    assert_eq!(written(&mut sender, now), [3, 5]);
    assert_eq!(reply(&mut sender, 1, 3), Ok(Some((3, false))));
}
