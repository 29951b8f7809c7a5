//! Projections with SQL of their own: a batch of events and a transaction.

use gesta_core::Filter;

use crate::batch::Batch;
use crate::error::ApplyError;
use crate::target::Target;

/// A read model that is written by any SQL, a batch at a time, within the transaction that stores the checkpoint.
///
/// The transaction is Gesta's: it begins and commits it. A statement that commits by itself (on some databases, one
/// that changes the schema) has no place in [`apply`](Self::apply).
pub trait Projection<T: Target>: Send + Sync + 'static {
    /// Name of the projection: a letter, then up to 39 lower-case letters, digits and `_`.
    const NAME: &'static str;
    /// Version of the code, as of a [`View`](crate::View).
    const VERSION: u32;
    /// Names of the tables that the projection fills, without version. [`create`](Self::create) makes each as
    /// `name_vVERSION`; readers use the SQL views of these names, which show the active version.
    const TABLES: &'static [&'static str] = &[];

    /// Returns which events the projection is made of.
    fn filter(&self) -> Filter;

    /// Makes the tables of this version, unless they exist (`CREATE TABLE IF NOT EXISTS`). It is called in a
    /// transaction of its own, as often as a process begins with the version while no event is applied: before the
    /// first one, and after a reset.
    fn create(
        &self,
        transaction: &mut T::Transaction,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;

    /// Empties the tables of this version, for a reset.
    fn clear(
        &self,
        transaction: &mut T::Transaction,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;

    /// Applies a batch. Fold it in memory first, then write with few statements: a statement for each event is a round
    /// trip for each event. Gesta moves the checkpoint and commits.
    ///
    /// # Errors
    /// An error of the database is recognised by its driver's type: what may succeed later is tried again. Any other
    /// error is of one event of the batch, which is searched by applying smaller batches.
    fn apply(
        &self,
        transaction: &mut T::Transaction,
        batch: &Batch,
    ) -> impl Future<Output = Result<(), ApplyError>> + Send;
}
