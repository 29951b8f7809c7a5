//! A rule over all events: a user name is taken once. Run it twice.

use gesta::decision::{DecisionError, DecisionModel, decide};
use gesta::{Append, EventData, ExpectedRevision::Any, Query, RecordedEvent, StreamId, Tags};

struct NameTaken(Query);

impl DecisionModel for NameTaken {
    type State = bool;

    fn queries(&self) -> Vec<Query> {
        vec![self.0.clone()]
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
    let store = gesta::open("sqlite:users.db").create().await?;
    let models = (NameTaken(Query::tag("name:ada")?),);
    let tags = Tags::new(vec!["name:ada".try_into()?])?;
    let registered = EventData::new("registered", "ada")?.with_tags(tags);
    let user = Append::to(StreamId::new("user-1")?, Any, vec![registered]).streams;
    let decided = decide(&*store, &models, |(taken,)| match taken {
        true => Err("the name is taken"),
        false => Ok(user.clone()),
    });
    match decided.await {
        Err(DecisionError::Rejected(why)) => println!("rejected: {why}"),
        decided => println!("registered: {}", decided?.is_some()),
    }
    Ok(store.shutdown().await?)
}
