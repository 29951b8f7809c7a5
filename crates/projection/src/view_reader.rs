//! Reads the rows of a view as readers see them, in the order of their keys, without SQL.
//!
//! Why: a page of rows with their types is what most callers want of a view, on every target alike. Whoever wants more
//! sends SQL of their own to the database.

use std::marker::PhantomData;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::definition::Table;
use crate::error::{ApplyError, Error, TargetError, TargetErrorKind};
use crate::row::{Key, Row};
use crate::target::Target;
use crate::value::OwnedValue;
use crate::view::View;

/// Largest number of rows of a page.
pub const VIEW_PAGE_MAX: usize = 10_000;

type Page = Result<Vec<OwnedValue>, TargetError>;

/// A target, whatever its type, as far as it is read.
trait Pages: Send + Sync {
    fn page<'a>(
        &'a self,
        table: &'a Table,
        after: Option<Vec<OwnedValue>>,
        limit: usize,
    ) -> BoxFuture<'a, Page>;
}

impl<T: Target> Pages for T {
    fn page<'a>(
        &'a self,
        table: &'a Table,
        after: Option<Vec<OwnedValue>>,
        limit: usize,
    ) -> BoxFuture<'a, Page> {
        Box::pin(Target::page(self, table, after, limit))
    }
}

/// Reads the rows of a view, whichever process keeps them. A handle is cheap to clone.
///
/// It reads what readers see: the rows of the active version. They are read as the columns of `V`, so of another active
/// version the columns of `V` must be there.
pub struct ViewReader<V> {
    pages: Arc<dyn Pages>,
    /// With the name that readers use in the place of that of a version.
    table: Arc<Table>,
    view: PhantomData<fn() -> V>,
}

impl<V> Clone for ViewReader<V> {
    fn clone(&self) -> Self {
        Self {
            pages: Arc::clone(&self.pages),
            table: Arc::clone(&self.table),
            view: PhantomData,
        }
    }
}

impl<V> std::fmt::Debug for ViewReader<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ViewReader").field(&self.table.name).finish()
    }
}

impl<V: View> ViewReader<V> {
    /// Makes a reader of a view in a target.
    ///
    /// # Errors
    /// `Invalid` if a name of the view breaks a rule.
    pub fn of(target: impl Target) -> Result<Self, Error> {
        Self::named(V::NAME, target)
    }

    /// Makes a reader of a view that was added under another name than its own.
    ///
    /// # Errors
    /// `Invalid` if a name breaks a rule.
    pub fn named(name: &str, target: impl Target) -> Result<Self, Error> {
        let table = Table::named::<V>(name)?;
        let table = Table {
            stored: table.name.clone(),
            ..table
        };
        Ok(Self {
            pages: Arc::new(target),
            table: Arc::new(table),
            view: PhantomData,
        })
    }

    /// Returns the rows after a key, or the first ones, at most `limit` (1 to 10,000), in the order that the database
    /// gives to keys. Those of two calls are of two moments.
    ///
    /// # Errors
    /// `Invalid` if the limit is out of range; `Target` if the target does not answer, has no such view yet, or the
    /// active version has not the columns of `V`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn page(
        &self,
        after: Option<&V::Key>,
        limit: usize,
    ) -> Result<Vec<(V::Key, V::Row)>, Error> {
        if !(1..=VIEW_PAGE_MAX).contains(&limit) {
            return Err(Error::Invalid(format!(
                "the limit of a page must be 1 to {VIEW_PAGE_MAX}, found {limit}"
            )));
        }
        let columns = 0..self.table.key.len();
        let values = |key: &V::Key| -> Vec<OwnedValue> {
            columns.map(|column| key.value(column).into()).collect()
        };
        let after = after.map(values);
        let page = self.pages.page(&self.table, after, limit).await?;
        let mut values = page.into_iter().peekable();
        let mut rows = Vec::new();
        while values.peek().is_some() {
            rows.push(read::<V>(&mut values).map_err(|error| {
                let text = format!("a row of {}: {error}", self.table.name);
                TargetError::new(TargetErrorKind::Unusable, text)
            })?);
        }
        Ok(rows)
    }
}

fn read<V: View>(
    values: &mut dyn Iterator<Item = OwnedValue>,
) -> Result<(V::Key, V::Row), ApplyError> {
    Ok((V::Key::read(values)?, V::Row::read(values)?))
}
