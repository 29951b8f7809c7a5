//! Upcasting: events that are stored in an old form are turned into a newer form before they are decoded.
//!
//! Invariants: the stored event is never changed; every chain of steps ends at an event that the codec knows, which is
//! checked when the codec is built, so reading always ends.
//! Not here: how the two forms are read and written (`json`, `cbor`, `proto`).

use std::collections::HashMap;
use std::fmt;

use gesta_core::{Error, EventType, Result};

use super::CodecError;

/// Turns the data of the old form into the data of the new form.
pub(super) type Convert = Box<dyn Fn(&[u8]) -> std::result::Result<Vec<u8>, String> + Send + Sync>;

/// One declared step.
pub(super) struct UpcastStep {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) convert: Convert,
}

struct Target {
    to: String,
    convert: Convert,
}

/// All steps, by the type at which they begin.
#[derive(Default)]
pub(super) struct Upcasts(HashMap<String, Target>);

impl fmt::Debug for Upcasts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(from, target)| (from, &target.to)))
            .finish()
    }
}

impl Upcasts {
    /// Checks the steps and takes them.
    ///
    /// # Errors
    /// `InvalidArgument` if `from` of a step is no event type, or if the step begins at an event of the codec or at the
    /// same type as another step. The error is also returned if a step leads in a circle or to a type that the codec
    /// does not know.
    pub(super) fn new(steps: Vec<UpcastStep>, is_event: impl Fn(&str) -> bool) -> Result<Self> {
        let mut targets = HashMap::with_capacity(steps.len());
        for UpcastStep { from, to, convert } in steps {
            let name = EventType::new(from.as_str()).map_err(|error| refused(&from, error))?;
            if is_event(name.as_str()) {
                return Err(refused(
                    &from,
                    "begins at the type of a current event, which it would hide",
                ));
            }
            if targets
                .insert(from.clone(), Target { to, convert })
                .is_some()
            {
                return Err(refused(&from, "is declared twice"));
            }
        }
        let upcasts = Self(targets);
        for from in upcasts.0.keys() {
            upcasts.check_end(from, &is_event)?;
        }
        Ok(upcasts)
    }

    fn check_end(&self, from: &str, is_event: &impl Fn(&str) -> bool) -> Result<()> {
        let mut at = from;
        for _ in 0..=self.0.len() {
            match self.0.get(at) {
                Some(target) => at = &target.to,
                None if is_event(at) => return Ok(()),
                None => {
                    return Err(refused(
                        from,
                        format!("leads to {at:?}, which the codec does not know"),
                    ));
                }
            }
        }
        Err(refused(from, "leads in a circle"))
    }

    /// Returns the type and the data that must be decoded in place of the stored ones; `None` if the stored ones are
    /// current.
    pub(super) fn apply(
        &self,
        stored_type: &str,
        data: &[u8],
    ) -> std::result::Result<Option<(&str, Vec<u8>)>, CodecError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut current: Option<(&str, Vec<u8>)> = None;
        while let Some(target) = self
            .0
            .get(current.as_ref().map_or(stored_type, |(name, _)| name))
        {
            let old = current.as_ref().map_or(data, |(_, data)| data);
            let new = (target.convert)(old).map_err(|detail| CodecError::Malformed {
                event_type: stored_type.to_owned(),
                detail: format!("on the way to {:?}: {detail}", target.to),
            })?;
            current = Some((&target.to, new));
        }
        Ok(current)
    }
}

fn refused(from: &str, rule: impl fmt::Display) -> Error {
    Error::invalid("codec", format!("upcast from {from:?}: {rule}"))
}
