//! What consumer groups promise to programs, by one trait: in this process and over the network.

use gesta::groups::{
    Action, Create, Error, GroupConsumer, GroupId, Refused, ResetTo, Settings, Source, Start,
    Strategy, Which,
};
use gesta::{EventData, EventType, ExpectedRevision::Any, Filter, Store};

use crate::{ItemAdded, added, everywhere, soon};

fn group(text: &str) -> GroupId {
    text.parse().expect("a group")
}

/// Settings with which what is finished is stored at once.
fn eager() -> Settings {
    Settings {
        checkpoint_after_ms: 0,
        min_checkpoint_count: 1,
        max_checkpoint_count: 1,
        ..Settings::default()
    }
}

async fn append(store: &Store, stream: &str, items: &[&str]) {
    let events = items.iter().map(|item| added(item));
    store.append_to(stream, Any, events).await.expect("stored");
}

async fn next(consumer: &mut GroupConsumer) -> gesta::groups::Delivery {
    let delivery = soon(consumer.next()).await.expect("goes on");
    delivery.expect("an event")
}

fn item(delivery: &gesta::groups::Delivery) -> String {
    let added: ItemAdded = delivery.event.json().expect("readable");
    added.item
}

/// The reason why a consumer is not in its group any more. After it nothing comes.
async fn why_it_left(consumer: &mut GroupConsumer) -> Error {
    let why = soon(consumer.next()).await.expect("a reason");
    let why = why.expect_err("no event");
    assert!(soon(consumer.next()).await.is_none());
    why
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_created_listed_changed_and_deleted() {
    everywhere(async |store| {
        let groups = store.groups();
        let mail = group("a/b?::mail #1/2");
        let settings = Settings::default()
            .with_start(Start::At(7))
            .with_strategy(Strategy::Pinned)
            .with_max_retry_count(3)
            .with_message_timeout(std::time::Duration::from_secs(5));
        let create = Create::new(mail.clone()).settings(settings.clone());
        let created = groups.create(&create).await.expect("created");
        assert_eq!((created.settings, &*created.status), (settings, "idle"));
        let again = groups.create(&create).await;
        assert!(matches!(again, Err(Error::Exists(found)) if found == mail));

        let all = group("$all::mail");
        let on_all = Create::new(all.clone()).filter(Filter::category("cart"));
        let created = groups.create(&on_all).await.expect("created");
        assert_eq!(created.filter[0].categories, ["cart"]);
        let on_stream = Create::new(group("s::g")).filter(Filter::category("cart"));
        assert!(groups.create(&on_stream).await.is_err());

        let listed = groups.list(None, None, 10).await.expect("listed");
        assert_eq!(listed, [all.clone(), mail.clone()]);
        let after = groups.list(None, Some(&all), 10).await.expect("listed");
        assert_eq!(after, std::slice::from_ref(&mail));
        let of_all = groups.list(Some(&Source::All), None, 10).await;
        assert_eq!(of_all.expect("listed"), std::slice::from_ref(&all));
        let of_stream = groups.list(Some(mail.source()), Some(&mail), 10).await;
        assert!(of_stream.expect("listed").is_empty());

        let changed = groups.update(&mail, &eager()).await.expect("changed");
        assert_eq!(changed.settings, eager());
        groups.delete(&mail).await.expect("deleted");
        for gone in [
            groups.info(&mail).await.map(drop),
            groups.update(&mail, &eager()).await.map(drop),
            groups.delete(&mail).await,
            groups.join(&mail, 1, "").await.map(drop),
            groups.replay_parked(&mail, None).await,
            groups.reset(&mail, ResetTo::Start).await.map(drop),
        ] {
            assert!(
                matches!(&gone, Err(Error::NotFound(found)) if *found == mail),
                "{gone:?}"
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_shared_out_answered_for_and_delivered_again() {
    everywhere(async |store| {
        let groups = store.groups();
        let mail = group("cart-1::mail");
        append(store, "cart-1", &["book", "pen", "lamp"]).await;
        let join = store.join("cart-1", "mail").settings(eager());
        let mut one = join.consumer("one").buffer(3).await.expect("joined");
        assert_eq!(one.group(), &mail);
        let deliveries = [
            next(&mut one).await,
            next(&mut one).await,
            next(&mut one).await,
        ];
        assert_eq!(deliveries.each_ref().map(item), ["book", "pen", "lamp"]);
        let info = groups.info(&mail).await.expect("known");
        let consumers = info.running.expect("it runs").consumers;
        assert_eq!((&*consumers[0].name, consumers[0].buffer), ("one", 3));
        assert_eq!(consumers[0].consumer, one.id().to_string());

        let [book, pen, lamp] = &deliveries;
        assert!(one.ack(book).await.expect("answered"));
        assert!(
            !one.ack(book).await.expect("answered"),
            "it is finished already"
        );
        assert!(one.nack(pen, Action::Park, "odd").await.expect("answered"));
        assert!(one.nack(lamp, Action::Retry, "").await.expect("answered"));
        let again = next(&mut one).await;
        assert_eq!((&*item(&again), again.retries), ("lamp", 1));
        // By the ids of events, as an answer that comes another way.
        let which = [Which::Event(again.event.id)];
        let answered = groups.ack(&mail, one.id(), &which).await;
        assert_eq!(answered.expect("answered"), 1);
        let settled = async {
            loop {
                let info = groups.info(&mail).await.expect("known");
                if (info.parked, info.checkpoint) == (1, Some(2)) {
                    break;
                }
            }
        };
        soon(settled).await;

        groups.replay_parked(&mail, None).await.expect("begun");
        let parked = next(&mut one).await;
        assert_eq!(item(&parked), "pen");
        assert_eq!(one.ack_all([&parked]).await.expect("answered"), 1);

        groups.reset(&mail, ResetTo::At(1)).await.expect("moved");
        let why = why_it_left(&mut one).await;
        assert!(matches!(why, Error::Dropped(_)), "{why}");
        let late = one.ack(&parked).await.expect_err("it has left");
        assert!(matches!(late, Error::NoConsumer { .. }), "{late}");
        let mut two = store.join("cart-1", "mail").await.expect("joined");
        assert_eq!(item(&next(&mut two).await), "pen");
    })
    .await;
}

/// Goal: what a consumer holds that leaves goes to others; a group that is full, or not there, says so.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_come_and_go() {
    everywhere(async |store| {
        append(store, "cart-1", &["book"]).await;
        let nowhere = store.join("cart-1", "mail").existing().await;
        assert!(matches!(nowhere, Err(Error::NotFound(_))));
        let settings = Settings {
            max_subscriber_count: 1,
            ..eager()
        };
        let join = || store.join("cart-1", "mail");
        let mut one = join().settings(settings).await.expect("joined");
        let held = next(&mut one).await;
        let full = join().await.expect_err("full");
        let max = Refused::Full { max: 1 };
        assert!(matches!(full, Error::Refused { refused, .. } if refused == max));
        drop(one);
        // A server needs a moment to see that a connection is gone.
        let two = async {
            loop {
                match join().existing().await {
                    Err(Error::Refused { .. }) => tokio::task::yield_now().await,
                    joined => break joined.expect("joined"),
                }
            }
        };
        let mut two = soon(two).await;
        assert_eq!(next(&mut two).await.event, held.event);
        let deleted = store.groups().delete(&group("cart-1::mail")).await;
        deleted.expect("deleted");
        let why = why_it_left(&mut two).await;
        assert!(matches!(why, Error::NotFound(_)), "{why}");
        let error = gesta::Error::from(why);
        assert!(error.to_string().contains("cart-1::mail"), "{error}");
    })
    .await;
}

/// Goal: a group that follows links delivers what they lead to, wherever it runs, and passes over those that lead
/// nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_delivers_what_links_lead_to() {
    everywhere(async |store| {
        append(store, "cart-1", &["book"]).await;
        let link = EventType::new("$>").expect("valid");
        let links = ["7@nowhere-1", "0@cart-1"];
        let links = links.map(|to| EventData::binary(link.clone(), to));
        store
            .append_to("links-1", Any, links)
            .await
            .expect("stored");
        let settings = eager().with_resolved_links();
        let mut one = store
            .join("links-1", "mail")
            .settings(settings)
            .await
            .expect("joined");
        let delivery = next(&mut one).await;
        assert_eq!(
            (&*item(&delivery), delivery.event.stream.as_str()),
            ("book", "cart-1")
        );
        assert!(one.ack(&delivery).await.expect("answered"));
        let finished = async {
            while store
                .groups()
                .info(one.group())
                .await
                .expect("known")
                .checkpoint
                != Some(1)
            {}
        };
        soon(finished).await;
    })
    .await;
}
