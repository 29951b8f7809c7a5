//! A rule over all events: a user name is taken once. Run it twice.

use gesta::entity::{DecisionError, DecisionModel, decide};
use gesta::{Append, EventData, EventType, ExpectedRevision, Options, Query, RecordedEvent};
use gesta::{StreamId, Tag, Tags};

struct NameTaken(Tag);

impl DecisionModel for NameTaken {
    type State = bool;

    fn queries(&self) -> Vec<Query> {
        let tags = vec![self.0.clone()];
        vec![Query {
            tags,
            ..Query::default()
        }]
    }

    fn evolve(
        &self,
        taken: &mut bool,
        _: &RecordedEvent,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        *taken = true;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Options::creating().open("sqlite:users.db").await?;
    let name = Tag::new("name:ada")?;
    let registered = EventData::json(EventType::new("registered")?, r#"{"name":"ada"}"#)
        .with_tags(Tags::new(vec![name.clone()])?);
    let user = StreamId::new("user-1")?;
    let stored = decide(&*store, &(NameTaken(name),), |(taken,)| match taken {
        true => Err("the name is taken"),
        false => Ok(Append::to(
            user.clone(),
            ExpectedRevision::Any,
            vec![registered.clone()],
        )
        .streams),
    });
    match stored.await {
        Err(DecisionError::Rejected(why)) => println!("rejected: {why}"),
        stored => println!(
            "registered at {:?}",
            stored?.map(|appended| appended.position)
        ),
    }
    Ok(store.shutdown().await?)
}
