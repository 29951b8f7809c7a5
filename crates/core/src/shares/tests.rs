use futures::FutureExt;
use proptest::prelude::*;

use super::*;

fn user(name: &str) -> Holder {
    Holder::User(name.into())
}

/// Takes 1 for a caller, again and again, until that is refused.
fn fill(shares: &Arc<Shares>, holder: &Holder) -> Vec<Share> {
    std::iter::from_fn(|| shares.take(holder, 1).ok()).collect()
}

/// Waits for a turn of a caller.
fn turn(shares: &Arc<Shares>, name: &str) -> futures::future::BoxFuture<'static, Share> {
    let (shares, holder) = (Arc::clone(shares), user(name));
    async move { shares.turn(&holder).await }.boxed()
}

/// Goal: one who takes everything gets half of it, and each who comes later finds as much as the others have.
#[test]
fn who_takes_everything_leaves_as_much_as_they_take() {
    let shares = Shares::new(60);
    let first = fill(&shares, &user("a"));
    assert_eq!(first.len(), 30);
    assert_eq!(
        shares.take(&user("a"), 1).expect_err("enough"),
        TooMuch::OfOne
    );
    let second = fill(&shares, &user("b"));
    assert_eq!(second.len(), 15);
    let third = fill(&shares, &user("c"));
    assert_eq!(third.len(), 7);
    // Who gives something back does not get it again while others have less.
    drop(first);
    assert_eq!(fill(&shares, &user("a")).len(), 19);
    assert_eq!(
        shares.load(),
        Load {
            max: 60,
            taken: 22,
            largest: 15,
            holders: 2,
            waiting: 0,
            refused_in_sum: 0,
            refused_of_one: 5,
        }
    );
}

#[test]
fn a_little_is_given_while_there_is_room() {
    let shares = Shares::new(3);
    let held: Vec<_> = ["a", "b", "c"]
        .iter()
        .flat_map(|name| fill(&shares, &user(name)))
        .collect();
    assert_eq!(held.len(), 3, "one each, though nothing is left free");
    let refused = shares.take(&user("d"), 1).expect_err("full");
    assert_eq!(refused, TooMuch::InSum);
    let bytes = Shares::new(1024 * 1024);
    let _most = bytes.take(&user("a"), 500_000).expect("not half");
    let _rest = bytes.take(&user("b"), 270_000).expect("not half of that");
    assert!(bytes.take(&user("c"), 200_000).is_err());
    assert!(bytes.take(&user("c"), 130_000).is_ok());
}

#[test]
fn a_share_grows_within_its_own_bound_and_shrinks() {
    let shares = Shares::new(100);
    let mut small = shares.empty(user("a"), 40);
    small.grow(20).expect("half of its bound");
    small
        .grow(1)
        .expect_err("more than is left below its bound");
    let mut same = shares.empty(user("a"), 100);
    same.grow(30).expect("half of all");
    assert_eq!(small.grow(1).expect_err("above its bound"), TooMuch::InSum);
    small.shrink_to(5);
    assert_eq!((small.held(), same.held(), shares.taken()), (5, 30, 35));
    drop((small, same));
    assert_eq!(shares.load().holders, 0);
}

#[test]
fn where_nobody_is_asked_only_the_sum_counts() {
    let shares = Shares::new(3);
    let all = fill(&shares, &Holder::Everybody);
    assert_eq!(all.len(), 3);
    assert_eq!(shares.load().refused_in_sum, 1);
}

#[test]
fn of_few_places_one_is_left() {
    let shares = Shares::of_few(3);
    let held = fill(&shares, &user("a"));
    assert_eq!(held.len(), 2);
    let next = shares.take(&user("b"), 1).expect("one is left");
    assert!(shares.take(&user("b"), 1).is_err(), "and no more");
    drop((held, next));
    assert_eq!(fill(&Shares::of_few(1), &user("a")).len(), 1);
}

#[test]
fn a_thread_works_for_whom_it_is_told() {
    assert_eq!(current(), Holder::Everybody);
    let holder = user("a");
    let seen = act(&holder, async {
        let inner = acting(&user("b"), current);
        (inner, current())
    });
    assert_eq!(
        seen.now_or_never().expect("it waits for nothing"),
        (user("b"), user("a"))
    );
    assert_eq!(current(), Holder::Everybody);
}

/// Addresses of one customer are one holder.
#[test]
fn a_network_is_one_holder() {
    let at = |text: &str| Holder::at(text.parse().expect("an address"));
    assert_eq!(at("2001:db8::1"), at("2001:db8::2"));
    assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
    assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
}

/// Goal: who asks a hundred times waits behind one request of each other caller, and nobody waits behind the hundred.
#[test]
fn turns_go_round_by_caller() {
    let shares = Shares::new(2);
    let mut greedy: Vec<_> = (0..100).map(|_| turn(&shares, "a")).collect();
    let mut held: Vec<_> = greedy
        .iter_mut()
        .filter_map(|turn| turn.as_mut().now_or_never())
        .collect();
    assert_eq!(held.len(), 1, "the other place is left free");
    let other = turn(&shares, "b").now_or_never().expect("at once");
    let mut third = turn(&shares, "c");
    assert!(third.as_mut().now_or_never().is_none());
    assert_eq!(shares.load().waiting, 100);
    // The place of one who has ended goes to the next caller, and not to the one with most requests.
    drop(other);
    let third = third.as_mut().now_or_never().expect("its turn");
    assert_eq!(shares.load().waiting, 99);
    drop(held.pop());
    let next = greedy.iter_mut().skip(1);
    let next: Vec<_> = next
        .filter_map(|turn| turn.as_mut().now_or_never())
        .collect();
    assert_eq!(next.len(), 1);
    drop((next, third));
    drop(greedy);
    let _all = ["d", "e"].map(|name| {
        let turn = turn(&shares, name).now_or_never();
        turn.expect("who gave up waits no more")
    });
    assert_eq!((shares.taken(), shares.load().waiting), (2, 0));
}

/// Goal: what one caller asks for comes in the order in which they asked, also if it is more and then less.
#[test]
fn larger_turns_keep_their_order() {
    let shares = Shares::new(8);
    let ask = |amount| {
        let (shares, holder) = (Arc::clone(&shares), user("a"));
        async move { shares.turn_for(&holder, amount).await }.boxed()
    };
    let first = ask(3).now_or_never().expect("free");
    let (mut large, mut small) = (ask(100), ask(1));
    assert!(large.as_mut().now_or_never().is_none());
    assert!(small.as_mut().now_or_never().is_none(), "it came later");
    drop(first);
    let large = large.as_mut().now_or_never().expect("its turn");
    assert_eq!(large.held(), 4, "half of all");
    assert!(small.as_mut().now_or_never().is_none());
    drop(large);
    assert!(small.as_mut().now_or_never().is_some());
}

/// Goal: a turn that was given to somebody who has gone is given to the next.
#[test]
fn turns_of_those_who_have_gone_pass_on() {
    let shares = Shares::new(1);
    let held = turn(&shares, "a").now_or_never().expect("free");
    let mut gone = turn(&shares, "b");
    let mut next = turn(&shares, "c");
    assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
    drop(held);
    // It was given to the first of the two, who drops it unseen.
    assert_eq!(shares.taken(), 1);
    drop(gone);
    assert!(next.as_mut().now_or_never().is_some());
    assert_eq!(shares.taken(), 0);
}

proptest! {
    /// Goal: whatever is taken and given back, the sum is right, and who holds more than a little left as much free.
    #[test]
    fn shares_add_up(steps in prop::collection::vec((0_u8..4, 0_usize..60, any::<bool>()), 1..200)) {
        let shares = Shares::new(100);
        let mut held: Vec<Share> = Vec::new();
        for (who, amount, gives_back) in steps {
            let holder = user(&who.to_string());
            if gives_back && !held.is_empty() {
                let at = amount % held.len();
                held[at].shrink_to(amount / 2);
            } else if let Ok(share) = shares.take(&holder, amount) {
                held.push(share);
                let own: usize = held.iter().filter(|s| *s.holder() == holder).map(Share::held).sum();
                prop_assert!(amount == 0 || own <= 100 - shares.taken() || own <= shares.least());
            }
            let sum: usize = held.iter().map(Share::held).sum();
            prop_assert_eq!(sum, shares.taken());
            prop_assert!(sum <= 100);
        }
        drop(held);
        prop_assert_eq!(shares.load().holders, 0);
    }
}
