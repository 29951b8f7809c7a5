//! A command: its key is looked up, it is decided, its events are applied and submitted, and its answer is held back.
//!
//! Invariant: whatever fails before the state was changed fails one command; after that, the state must be discarded
//! and the entity starts over.
//! Not here: when answers leave (`flight`).

use gesta_core::{
    After, Error as StoreError, ErrorKind, EventData, RecordedEvent, Result, Revision, StreamId,
    way_point,
};

use super::Active;
use super::flight::{Pending, Work};
use crate::ask::{CommandAsk, CommandResult, Done, Origin};
use crate::decider::{Context, Decider};
use crate::env::Env;
use crate::error::Error;
use crate::guard::guarded;
use crate::keys::{self, Fingerprint, Keys, Remembered, RestoredKeys};
use crate::snapshot::Draft;

/// What the idempotency key of a command says about it.
enum Known<D: Decider> {
    /// The command has no key, or none that is remembered. The fingerprint is stored with the key.
    No(Option<Fingerprint>),
    /// The key is known: this is the answer, once everything of the entity is durable.
    Answer(CommandResult<D>),
}

/// Returns the error of a command that must not be decided any more. That is so if the node that has forwarded it no
/// longer waits for it, or if it was sent to another node so long ago that its key may be forgotten.
fn too_late<D: Decider>(ask: &CommandAsk<D>, env: &Env<D>) -> Option<StoreError> {
    let until = match ask.origin {
        Origin::Node { decided_until } => decided_until,
        Origin::Caller => ask.sent_until.filter(|_| ask.is_in_doubt)? + env.config.forward_within,
    };
    let text = "the time of the command was over before it was decided";
    (env.turn >= until).then(|| StoreError::unavailable(text))
}

/// Makes the error of a command that may have been carried out before its stream was deleted.
fn deleted_since() -> StoreError {
    let text = "the command was sent before, and the stream of the entity was deleted since, with all that tells whether it was carried out";
    ErrorKind::OutcomeUnknown(text.into()).into()
}

/// Makes the error of a command that may have been carried out, by an entity that no longer remembers whether it was.
fn forgotten() -> StoreError {
    let text = "the command was sent before, and the entity has carried out so many since that it has forgotten which";
    ErrorKind::OutcomeUnknown(text.into()).into()
}

impl<D: Decider> Active<D> {
    pub(super) fn command(&mut self, stream: &StreamId, mut ask: CommandAsk<D>, env: &mut Env<D>) {
        if let Some(error) = too_late(&ask, env) {
            return env.fail(ask, error);
        }
        way_point!(stream, "taken up");
        ask.attempts += 1;
        if ask.attempts > 1 {
            env.counters.decided_again.add(1);
        }
        let fingerprint = match self.look_up_key(&ask, env) {
            Ok(Known::No(fingerprint)) => fingerprint,
            Ok(Known::Answer(answer)) => {
                return self.wait_for_last(stream, Work::Answered { ask, answer }, env);
            }
            Err(error) => return env.fail(ask, error),
        };
        let context = Context::new(env.kind.id(stream), env.now);
        let decided = guarded("decide", || {
            self.state.decide(&ask.request.command, &context)
        });
        match decided {
            Ok(Ok(events)) if events.is_empty() => self.reply_only(stream, ask, env),
            Ok(Ok(events)) => self.store(stream, ask, &events, fingerprint, env),
            Ok(Err(rejection)) => {
                let answer = Err(Error::Rejected(rejection));
                self.wait_for_next(stream, Work::Answered { ask, answer }, env);
            }
            Err(panicked) => env.fail(ask, panicked.into()),
        }
    }

    /// Answers a command without events.
    fn reply_only(&mut self, stream: &StreamId, ask: CommandAsk<D>, env: &mut Env<D>) {
        match guarded("reply", || self.state.reply(&ask.request.command)) {
            Ok(reply) => {
                let answer = Ok(Done {
                    reply,
                    revision: None,
                    checkpoint: None,
                    repeated: false,
                });
                self.wait_for_next(stream, Work::Answered { ask, answer }, env);
            }
            Err(panicked) => env.fail(ask, panicked.into()),
        }
    }

    /// Applies and submits the events of a command.
    fn store(
        &mut self,
        stream: &StreamId,
        ask: CommandAsk<D>,
        events: &[D::Event],
        fingerprint: Option<Fingerprint>,
        env: &mut Env<D>,
    ) {
        let id = env.kind.id(stream);
        let encoded = guarded("the codec, or the tagging,", || {
            let encoded = events.iter().map(|event| env.kind.encode(id, event));
            encoded.collect::<Result<Vec<_>>>()
        });
        let mut encoded = match encoded.unwrap_or_else(|panicked| Err(panicked.into())) {
            Ok(encoded) => encoded,
            Err(error) => return env.fail(ask, error),
        };
        let evolved = guarded("evolve", || {
            events.iter().for_each(|event| self.state.evolve(event));
            self.state.reply(&ask.request.command)
        });
        let stored = evolved.map_err(StoreError::from).and_then(|reply| {
            self.remember(&ask, fingerprint, &reply, &mut encoded, env)?;
            Ok(reply)
        });
        let reply = match stored {
            Ok(reply) => reply,
            Err(error) => {
                self.flight().break_off();
                return env.fail(ask, error);
            }
        };
        let before = self.after;
        if let Some(id) = encoded.last().and_then(|event| event.id) {
            self.after = After::Event(id);
        }
        let snapshot = self.draft(stream, events.len(), env);
        way_point!(stream, "decided");
        let number = env.submit(stream, before, encoded);
        let flight = self.flight();
        flight.submit(number);
        flight.stored += 1;
        flight.pending.push_back(Pending {
            number,
            work: Work::Stored {
                ask,
                reply,
                snapshot,
            },
            failed: None,
        });
    }

    /// Makes a snapshot of the tip, if one is due. The snapshot is written once the tip is durable.
    fn draft(&mut self, stream: &StreamId, events: usize, env: &Env<D>) -> Option<Box<Draft<D>>> {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        self.events_since_snapshot = self.events_since_snapshot.saturating_add(events);
        let snapshots = env.kind.snapshots.as_ref()?;
        let After::Event(last) = self.after else {
            return None;
        };
        let due = || snapshots.is_due(&self.state, u64::from(self.events_since_snapshot));
        let state = guarded("the snapshot", || {
            due().then(|| snapshots.copy(&self.state))
        });
        let state = match state {
            Ok(state) => state?,
            Err(panicked) => {
                env.leave_out_snapshot(stream, &panicked);
                // Tried again as late as if it had been taken, not with each command.
                self.events_since_snapshot = 0;
                return None;
            }
        };
        self.events_since_snapshot = 0;
        self.forget_keys(env);
        let keys = self.keys.as_ref().map(|keys| keys.held(env.seen_ms()));
        Some(Box::new(Draft {
            state,
            last,
            keys: keys.unwrap_or_default(),
        }))
    }

    // ---- idempotency keys ----

    /// Returns the first answer to a command, if its key is known; a refusal, if the key was used for another command.
    fn look_up_key(&mut self, ask: &CommandAsk<D>, env: &Env<D>) -> Result<Known<D>> {
        let Some(key) = &ask.request.idempotency_key else {
            return Ok(Known::No(None));
        };
        keys::check(key)?;
        let Some(codec) = &env.kind.keys else {
            return Err(StoreError::invalid(
                "idempotency key",
                "needs an entity type with idempotent_replies",
            ));
        };
        let form = guarded("the form of a command", || {
            (codec.form)(&ask.request.command)
        })?;
        let form = form.map_err(|error| StoreError::invalid("command", error.to_string()))?;
        let fingerprint = Fingerprint::of(&form);
        self.forget_keys(env);
        let Some(known) = self.keys.as_ref().and_then(|keys| keys.get(key)) else {
            if ask.may_be_done_until(self.deleted_until) {
                return Err(deleted_since());
            }
            let keys = self.keys.as_ref().filter(|_| ask.may_be_done());
            return match keys.is_some_and(|keys| keys.may_have_known(key, env.key_bounds())) {
                true => Err(forgotten()),
                false => Ok(Known::No(Some(fingerprint))),
            };
        };
        // What the first versions stored has no fingerprint, and is taken for the same command as it was then.
        if known.command.is_some_and(|command| command != fingerprint) {
            return Ok(Known::Answer(Err(Error::KeyReused(key.clone()))));
        }
        let reply = guarded("the reading of a reply", || (codec.decode)(&known.reply))?
            .map_err(|error| StoreError::corrupt(format!("the reply of key {key:?}: {error}")))?;
        Ok(Known::Answer(Ok(Done {
            reply,
            revision: known.revision.map(Revision),
            checkpoint: None,
            repeated: true,
        })))
    }

    /// Puts the key, the reply and the fingerprint into the metadata of the last event, whose revision a retry is told.
    fn remember(
        &mut self,
        ask: &CommandAsk<D>,
        fingerprint: Option<Fingerprint>,
        reply: &D::Reply,
        events: &mut [EventData],
        env: &Env<D>,
    ) -> Result<()> {
        let (Some(key), Some(codec), Some(fingerprint)) =
            (&ask.request.idempotency_key, &env.kind.keys, fingerprint)
        else {
            return Ok(());
        };
        let reply = guarded("the writing of a reply", || (codec.encode)(reply))?
            .map_err(|error| StoreError::invalid("reply", error.to_string()))?;
        if let Some(last) = events.last_mut() {
            last.metadata = keys::metadata(key, fingerprint, &reply)?;
        }
        let remembered = Remembered {
            key: key.clone(),
            reply,
            revision: None,
            at: env.now.as_micros(),
            command: Some(fingerprint),
            seen_ms: env.seen_ms(),
        };
        self.keys(env).insert(remembered, env.key_bounds());
        Ok(())
    }

    /// Remembers the key of a stored event, if it has one.
    pub(super) fn learn_key(&mut self, event: &RecordedEvent, env: &Env<D>) {
        if env.kind.keys.is_some() && !event.metadata.is_empty() {
            self.keys(env).learn(event, env.seen_ms(), env.key_bounds());
        }
    }

    /// Remembers the keys of a snapshot.
    pub(super) fn restore_keys(&mut self, restored: RestoredKeys, env: &Env<D>) {
        if !restored.is_empty() {
            let (now, bounds) = (env.seen_ms(), env.key_bounds());
            self.keys(env).restore(restored, now, bounds);
        }
    }

    fn keys(&mut self, env: &Env<D>) -> &mut Keys {
        let new = || Box::new(Keys::new(std::sync::Arc::clone(&env.counters)));
        self.keys.get_or_insert_with(new)
    }

    /// Forgets the keys whose time is over.
    pub(crate) fn forget_keys(&mut self, env: &Env<D>) {
        if let Some(keys) = &mut self.keys {
            let bounds = env.key_bounds();
            keys.forget(bounds);
            if keys.is_empty(bounds) {
                self.keys = None;
            }
        }
    }
}
