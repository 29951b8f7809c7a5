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

fn at(n: u32) -> Holder {
    Holder::Address(IpAddr::V4(n.into()))
}

/// The shares that have not given way.
fn kept(shares: &[Share]) -> usize {
    let gone = shares
        .iter()
        .filter(|share| share.gave_way().now_or_never().is_some());
    shares.len() - gone.count()
}

/// Goal: one who takes everything gets half of it, and each who comes later finds something free.
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
    // Whoever holds less than the largest need not leave anything free.
    assert_eq!((second.len(), kept(&first)), (29, 30));
    assert_eq!(
        shares.load(),
        Load {
            max: 60,
            taken: 59,
            largest: 30,
            holders: 2,
            waiting: 0,
            refused_in_sum: 0,
            refused_of_one: 3,
            gave_way: 0,
        }
    );
}

/// Takes 1 for a caller, again and again, until that is refused. Whoever gives way gives it back at once.
fn fill_among(shares: &Arc<Shares>, held: &mut Vec<Vec<Share>>, holder: &Holder) {
    let mut own = Vec::new();
    while let Ok(share) = shares.take(holder, 1) {
        own.push(share);
        for of_one in held.iter_mut() {
            of_one.retain(|share| share.gave_way().now_or_never().is_none());
        }
    }
    held.push(own);
}

/// What happened: each caller could take half of the rest and keep it, so that a dozen of them filled everything for
/// ever, and nobody else got anything. Goal: nobody is kept out by others who hold more than they would; the one who
/// holds most gives up what they took last.
#[test]
fn whoever_holds_most_gives_way() {
    let shares = Shares::new(60);
    let names: Vec<_> = (0..12).map(|n| user(&format!("taker-{n}"))).collect();
    let mut held = Vec::new();
    fill_among(&shares, &mut held, &names[0]);
    let first: Vec<_> = held[0].iter().map(Share::gave_way).collect();
    for name in &names[1..] {
        fill_among(&shares, &mut held, name);
    }
    assert_eq!(held.iter().map(Vec::len).sum::<usize>(), 60);
    let told = first.into_iter().map(|told| told.now_or_never().is_some());
    let told: Vec<_> = told.collect();
    assert!(
        told.is_sorted(),
        "the newest of the first gave way: {told:?}"
    );
    fill_among(&shares, &mut held, &user("late"));
    let late = held.last().map(Vec::len);
    assert_eq!(late, Some(4), "as much as each other has, or one less");
    assert_eq!(held.iter().map(Vec::len).max(), Some(5));
    drop(held);
    assert_eq!((shares.taken(), shares.load().holders), (0, 0));
}

/// What happened: each small step of one who came made another whole share give way, though what had given way before
/// left more room than was needed. Goal: nobody gives way while there is room.
#[test]
fn small_steps_make_one_share_give_way() {
    let shares = Shares::new(100);
    let mut a: Vec<_> = (0..10)
        .map(|_| shares.take(&user("a"), 5).expect("half"))
        .collect();
    let b = shares.take(&user("b"), 49).expect("less than the other");
    let mut c = shares.empty(user("c"), 100);
    for _ in 0..6 {
        c.grow(1).expect("less than both");
    }
    assert_eq!((kept(&a), shares.load().gave_way), (9, 1));
    assert!(b.gave_way().now_or_never().is_none());
    let refused = c.grow(1).expect_err("too much would be pending");
    assert_eq!(refused, TooMuch::InSum);
    a.retain(|share| share.gave_way().now_or_never().is_none());
    c.grow(1).expect("one share may be large");
    assert!(b.gave_way().now_or_never().is_some());
    assert_eq!((kept(&a), shares.load().gave_way), (9, 2));
    drop((a, b, c));
    assert_eq!((shares.taken(), shares.load().holders), (0, 0));
}

/// The same of shares that are bounded below the maximum, beside others that fill what lies below their bound.
#[test]
fn small_steps_of_bounded_shares_make_one_give_way() {
    let shares = Shares::new(100);
    let bounded = |name: &str, amount| {
        let mut share = shares.empty(user(name), 50);
        share.grow(amount).expect("room");
        share
    };
    let a = [bounded("a", 10), bounded("a", 10)];
    let other = shares.take(&user("other"), 40).expect("half of the rest");
    let mut b = shares.empty(user("b"), 50);
    for _ in 0..9 {
        b.grow(1).expect("less than the other bounded ones");
    }
    assert_eq!((kept(&a), shares.load().gave_way), (1, 1));
    drop((a, b, other));
    assert_eq!(shares.taken(), 0);
}

/// What happened: one stranger who connected and closed again and again made one connection of a user after another
/// give way. Goal: at most as many give way as strangers hold at once.
#[test]
fn a_stranger_who_comes_and_goes_displaces_one() {
    let shares = Shares::new(16);
    let mut known = fill(&shares, &at(1));
    known.append(&mut fill(&shares, &at(2)));
    for share in &mut known {
        share.prove();
    }
    known.extend(shares.take(&user("last"), 1));
    assert_eq!(shares.taken(), 16);
    for _ in 0..100 {
        drop(shares.take(&at(3), 1).expect("an eighth is two"));
    }
    assert_eq!((kept(&known), shares.load().gave_way), (15, 1));
    // It is so too when what gave way was given back.
    known.retain(|share| share.gave_way().now_or_never().is_none());
    for _ in 0..100 {
        drop(shares.take(&at(3), 1).expect("there is room"));
    }
    assert_eq!(kept(&known), 15);
}

/// What happened: callers who gave nothing back of what they had given up made the sum larger and larger, one after the
/// other. Goal: it is at most a quarter above the maximum.
#[test]
fn what_is_not_given_back_is_bounded() {
    let shares = Shares::new(80);
    let held: Vec<_> = (0..50)
        .flat_map(|n| fill(&shares, &user(&format!("colluder-{n}"))))
        .collect();
    assert_eq!((shares.taken(), held.len()), (100, 100));
    assert_eq!(kept(&held), 80);
    let refused = shares
        .take(&user("late"), 1)
        .expect_err("too much is pending");
    assert_eq!(refused, TooMuch::InSum);
    drop(held);
    assert_eq!((shares.taken(), shares.load().holders), (0, 0));
}

/// Goal: a share that has given way does not grow, and what it gives back is free again.
#[test]
fn what_has_given_way_does_not_grow() {
    let shares = Shares::new(100);
    let mut large = shares.take(&user("a"), 50).expect("half");
    let mut other = shares.take(&user("b"), 49).expect("less than the other");
    let mut told = Box::pin(large.gave_way());
    assert!(told.as_mut().now_or_never().is_none());
    let small = shares.take(&user("c"), 10).expect("less than both");
    assert!(told.as_mut().now_or_never().is_some());
    assert_eq!(large.grow(1), Err(TooMuch::GaveWay));
    assert_eq!(
        (shares.taken(), large.held(), shares.load().gave_way),
        (109, 50, 1)
    );
    assert!(
        shares.take(&user("a"), 1).is_err(),
        "it keeps what it gave up"
    );
    assert_eq!(other.grow(50), Err(TooMuch::InSum));
    drop(small);
    large.shrink_to(0);
    assert!(
        large.gave_way().now_or_never().is_none(),
        "it holds nothing"
    );
    large.grow(1).expect("it has given everything back");
    drop((large, other));
    assert_eq!((shares.taken(), shares.load().holders), (0, 0));
}

/// Goal: callers of whom only the address is known, however many addresses they have, take an eighth at most of what
/// those hold who have proved who they are.
#[test]
fn strangers_displace_few_of_those_who_are_known() {
    let shares = Shares::new(80);
    let mut known = fill(&shares, &at(1));
    known.append(&mut fill(&shares, &at(2)));
    for share in &mut known {
        share.prove();
    }
    let strangers: Vec<_> = (10..60).flat_map(|n| shares.take(&at(n), 1).ok()).collect();
    let room = 80 - known.len();
    assert!(
        strangers.len() <= room + 10,
        "{} strangers",
        strangers.len()
    );
    assert_eq!(kept(&known), known.len() + room - strangers.len());
    // Of strangers, whoever holds most gives way.
    drop(strangers);
    let many = fill(&shares, &at(3));
    assert_eq!(many.len(), 10);
    let known_before = kept(&known);
    let few = fill(&shares, &at(4));
    assert_eq!((kept(&many), kept(&few)), (5, 5));
    assert_eq!(kept(&known), known_before);
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
    assert!(bytes.take(&user("a"), 200_000).is_err());
    assert!(bytes.take(&user("a"), 24_000).is_ok());
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
    // What is bounded so displaces nothing but its like.
    let mut of_other = shares.empty(user("b"), 40);
    of_other.grow(15).expect("less than the other has of it");
    assert_eq!(small.grow(1), Err(TooMuch::GaveWay));
    assert_eq!((same.held(), small.held()), (30, 20));
    drop(of_other);
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

/// What happened: what the server reads to go on, as changes of its accounts, stood in the line of its callers, who can
/// hold all places for long. Goal: a place is kept for it, which it gets whoever waits, and of which callers get
/// nothing.
#[test]
fn the_server_waits_behind_no_caller() {
    let shares = Shares::of_few(2);
    let mut held: Vec<_> = ["a", "b"]
        .map(|name| turn(&shares, name).now_or_never().expect("free"))
        .into();
    let mut others: Vec<_> = ["a", "b", "c", "d"].map(|name| turn(&shares, name)).into();
    for other in &mut others {
        assert!(other.as_mut().now_or_never().is_none());
    }
    let server = || Box::pin(shares.turn(&Holder::Server));
    let own = server().now_or_never().expect("its place");
    let mut next = server();
    assert!(
        next.as_mut().now_or_never().is_none(),
        "the server waits behind itself only"
    );
    drop(own);
    let own = next.as_mut().now_or_never().expect("before all others");
    assert!(
        others
            .iter_mut()
            .all(|other| other.as_mut().now_or_never().is_none())
    );
    drop(next);
    drop(own);
    assert!(
        others
            .iter_mut()
            .all(|other| other.as_mut().now_or_never().is_none())
    );
    assert_eq!((shares.taken(), shares.load().waiting), (2, 4));
    drop(held.pop());
    let got = others
        .iter_mut()
        .filter_map(|other| other.as_mut().now_or_never());
    let got: Vec<_> = got.collect();
    assert_eq!((got.len(), shares.taken()), (1, 2));
    assert!(server().now_or_never().is_some());
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
        async move { shares.turn_for(&holder, amount, future::pending()).await }.boxed()
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

/// What happened: who asked for much waited for ever beside callers who asked for little again and again, for whom
/// there was always room. Goal: a caller who holds nothing, and whose turn has come, gets the next that there is.
#[test]
fn large_turns_do_not_starve_beside_small_ones() {
    let shares = Shares::new(16);
    let ask = |name: &str, amount| {
        let (shares, holder) = (Arc::clone(&shares), user(name));
        async move { shares.turn_for(&holder, amount, future::pending()).await }.boxed()
    };
    let names = ["a", "b", "c", "d"];
    let mut held: std::collections::VecDeque<_> = names
        .iter()
        .flat_map(|name| [(name, ask(name, 3).now_or_never().expect("free"))])
        .collect();
    let mut large = ask("large", 8);
    assert!(large.as_mut().now_or_never().is_none());
    // Each of the others gives back a little, and asks for it at once.
    let mut asked = Vec::new();
    let mut tries = 0;
    let got = loop {
        let (name, given_back) = held
            .pop_front()
            .expect("the large one comes before all were given back");
        drop(given_back);
        asked.push(ask(name, 3));
        asked.retain_mut(|small| match small.as_mut().now_or_never() {
            Some(share) => {
                held.push_back((&"again", share));
                false
            }
            None => true,
        });
        tries += 1;
        assert!(tries < 100, "it starves");
        if let Some(got) = large.as_mut().now_or_never() {
            break got;
        }
    };
    assert_eq!((got.held(), tries), (8, 4));
    assert!(
        asked
            .iter_mut()
            .all(|small| small.as_mut().now_or_never().is_none())
    );
    drop(got);
    for small in &mut asked {
        assert!(small.as_mut().now_or_never().is_some());
    }
}

/// What happened: one who waited at the front of its caller's line and was given up held up all behind it until
/// somebody gave something back. Goal: who gives up lets the next go at once.
#[test]
fn who_gives_up_a_turn_holds_up_nobody() {
    let shares = Shares::new(8);
    let ask = |name: &str, amount| {
        let (shares, holder) = (Arc::clone(&shares), user(name));
        async move { shares.turn_for(&holder, amount, future::pending()).await }.boxed()
    };
    let _held = ask("a", 3).now_or_never().expect("free");
    let (mut large, mut small, mut other) = (ask("b", 4), ask("b", 1), ask("c", 1));
    for waits in [&mut large, &mut small, &mut other] {
        assert!(waits.as_mut().now_or_never().is_none());
    }
    drop(large);
    let both = [&mut small, &mut other].map(|turn| turn.as_mut().now_or_never());
    assert!(both.iter().all(Option::is_some));
    assert_eq!((shares.taken(), shares.load().waiting), (5, 0));
}

/// What happened: a caller who held nothing waited as if they held most, and all others behind them, though there was
/// room. Goal: who comes, and wants less than the largest holds, needs no more than room.
#[test]
fn who_comes_for_little_gets_what_is_left() {
    let shares = Shares::new(8);
    let ask = |name: &str, amount| {
        let (shares, holder) = (Arc::clone(&shares), user(name));
        async move { shares.turn_for(&holder, amount, future::pending()).await }.boxed()
    };
    let _a = ask("a", 4).now_or_never().expect("free");
    let _b = ask("b", 2).now_or_never().expect("free");
    let c = ask("c", 2).now_or_never().expect("it fits, and a has more");
    let mut d = ask("d", 1);
    assert!(d.as_mut().now_or_never().is_none(), "all is taken");
    drop(c);
    assert!(d.as_mut().now_or_never().is_some());
    let _d = ask("d", 1).now_or_never().expect("it fits");
    let _e = ask("e", 1).now_or_never().expect("it fits");
    assert_eq!(shares.taken(), 8);
}

/// What happened: while work hung, one large request after the other that waited behind it kept all small ones from the
/// room that there was. Goal: they are stopped once, for as long as the large one says, until the work that hung ends.
#[test]
fn work_that_hangs_stops_others_once() {
    let shares = Shares::new(16);
    let ask = |name: &str, amount, stops: future::BoxFuture<'static, ()>| {
        let (shares, holder) = (Arc::clone(&shares), user(name));
        async move { shares.turn_for(&holder, amount, stops).await }.boxed()
    };
    let small = |name| turn(&shares, name).now_or_never();
    let never = || future::pending().boxed();
    let a = ask("a", 8, never()).now_or_never().expect("free");
    let b = ask("b", 4, never())
        .now_or_never()
        .expect("less than a has");
    let (long_enough, stops) = oneshot::channel();
    let mut large = ask("large", 8, stops.map(|_| ()).boxed());
    assert!(large.as_mut().now_or_never().is_none());
    let mut waits = turn(&shares, "c");
    assert!(waits.as_mut().now_or_never().is_none(), "large comes first");
    long_enough.send(()).expect("it waits");
    assert!(large.as_mut().now_or_never().is_none());
    let waited = waits.as_mut().now_or_never().expect("it passes");
    let mut next = ask("next", 8, never());
    assert!(next.as_mut().now_or_never().is_none());
    drop(small("d").expect("nobody is waited for again"));
    // What held it up was given back, but for what came later.
    drop(waited);
    let waited = small("e").expect("room");
    drop(b);
    drop(small("f").expect("a still hangs"));
    drop((waited, a));
    let first = large.as_mut().now_or_never().expect("its turn");
    assert!(next.as_mut().now_or_never().is_none());
    assert!(small("g").is_none(), "it comes after next");
    drop(first);
    assert!(next.as_mut().now_or_never().is_some());
}

proptest! {
    /// Goal: whatever is taken, given up and given back, the sum is right, and nobody is refused who would hold less
    /// than another.
    #[test]
    fn shares_add_up(steps in prop::collection::vec((0_u8..4, 0_usize..60, any::<bool>()), 1..200)) {
        let shares = Shares::new(100);
        let mut held: Vec<Share> = Vec::new();
        for (who, amount, gives_back) in steps {
            let holder = user(&who.to_string());
            let own = |held: &[Share], whose: &Holder| -> usize {
                let of_one = held.iter().filter(|share| share.holder() == whose);
                of_one.map(Share::held).sum()
            };
            let lives = |share: &&Share| share.gave_way().now_or_never().is_none();
            if gives_back && !held.is_empty() {
                let at = amount % held.len();
                held[at].shrink_to(amount / 2);
            } else {
                let live = |held: &[Share], whose: &Holder| -> usize {
                    let of_one = held.iter().filter(|share| share.holder() == whose);
                    of_one.filter(lives).map(Share::held).sum()
                };
                let most = (0..4_u8).map(|n| live(&held, &user(&n.to_string()))).max();
                let before = own(&held, &holder);
                let live: usize = held.iter().filter(lives).map(Share::held).sum();
                let (taken, gave_way) = (shares.taken(), shares.load().gave_way);
                match shares.take(&holder, amount) {
                    Ok(share) => held.push(share),
                    // What is pending is bounded.
                    Err(_) => prop_assert!(
                        Some(before + amount) >= most
                            || taken + amount > 125
                            || taken > live && live + amount > 100
                    ),
                }
                if live + amount <= 100 {
                    prop_assert_eq!(shares.load().gave_way, gave_way, "there was room");
                }
            }
            let sum: usize = held.iter().map(Share::held).sum();
            prop_assert_eq!(sum, shares.taken());
            let live: usize = held.iter().filter(lives).map(Share::held).sum();
            prop_assert!(live <= 100, "{} live", live);
            prop_assert!(sum <= 125, "{} in sum", sum);
        }
        drop(held);
        prop_assert_eq!((shares.taken(), shares.load().holders), (0, 0));
    }
}
