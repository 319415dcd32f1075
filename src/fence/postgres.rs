//! A gate in `PostgreSQL`: the check is part of the transaction that does the work.
//!
//! One table keeps a row for each place. Admitted work holds that row by a shared lock until its transaction ends, a
//! higher token needs it for itself; so the database's own locks see to it that what was admitted commits first.
//!
//! * [`install`] makes the table; `SCHEMA` is its text, for those who keep migrations.
//! * [`raise`] is what a new holder does first, before it reads what it acts on. It commits on its own: a snapshot
//!   taken before it would not show what older work committed while it waited.
//! * [`admit`] lets a transaction in. It is to be rolled back if refused.
//! * [`CHECK`] does the same inside a statement of yours, in one round trip, once the gate was raised.
//!
//! **Limits.** A transaction that was admitted and then freezes keeps its lock, and the next holder waits in [`raise`]:
//! set `idle_in_transaction_session_timeout`, or use [`CHECK`] in single statements, which never wait for their client.
//! Isolation above `READ COMMITTED` is as safe, but a change of holder may show itself as error 40001 in place of a
//! refusal. There is no TLS here: the connection is yours.
//!
//! ```no_run
//! # use leasehold::fence::{Pass, Place, postgres};
//! # async fn doc(client: &mut tokio_postgres::Client, place: Place, pass: Pass)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! postgres::raise(&*client, &place, &pass).await?;
//! let due = client.query("SELECT id FROM invoices WHERE NOT sent", &[]).await?;
//! for row in due {
//!     let work = client.transaction().await?;
//!     postgres::admit(&work, &place, &pass).await?;
//!     let id: i64 = row.get(0);
//!     work.execute("UPDATE invoices SET sent = true WHERE id = $1", &[&id]).await?;
//!     work.commit().await?;
//! }
//! # Ok(()) }
//! ```

use tokio_postgres::{GenericClient, Transaction};

use super::{Pass, Place, Refused, Step, judge};
use crate::api::FencingToken;

/// The table.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS leasehold_gate (
    namespace text NOT NULL,
    lock text NOT NULL,
    slot integer NOT NULL,
    token bigint NOT NULL CHECK (token > 0),
    holder text NOT NULL,
    PRIMARY KEY (namespace, lock, slot)
)";

/// Finds one row if namespace, lock, slot, token and holder (`$1` to `$5`) are what the gate keeps, and locks it until
/// the transaction ends. For a statement of your own, whose effect must hang on that row:
///
/// `WITH gate AS (…CHECK…) INSERT INTO charges SELECT $6 FROM gate`
///
/// It waits for a raise under way, and then compares with what was raised.
pub const CHECK: &str = "SELECT 1 FROM leasehold_gate WHERE namespace = $1 AND lock = $2 AND slot = $3 \
     AND token = $4 AND holder = $5 FOR SHARE";

const KEPT: &str =
    "SELECT token, holder FROM leasehold_gate WHERE namespace = $1 AND lock = $2 AND slot = $3";

/// Locks the row also where it changes nothing, so it is sent only when there is something to change.
const RAISE: &str = "INSERT INTO leasehold_gate AS kept (namespace, lock, slot, token, holder) \
     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (namespace, lock, slot) \
     DO UPDATE SET token = excluded.token, holder = excluded.holder WHERE kept.token < excluded.token";

/// Why work was not let in.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The pass is too old.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The database did not do its part; nothing was let in.
    #[error("the gate's database failed: {0}")]
    Database(#[from] tokio_postgres::Error),
    /// The row holds no token, or went down: somebody edited it.
    #[error(
        "the row of {0} in leasehold_gate was edited by hand: put back the highest token granted"
    )]
    Damaged(Place),
}

/// Makes the table if it is not there.
pub async fn install(client: &impl GenericClient) -> Result<(), GateError> {
    Ok(client.batch_execute(SCHEMA).await?)
}

/// Keeps `pass` from now on, waiting until admitted work with a lower token has ended. Not for use inside a
/// transaction that goes on: see the module's page.
pub async fn raise(
    client: &impl GenericClient,
    place: &Place,
    pass: &Pass,
) -> Result<(), GateError> {
    if judge(kept(client, place).await?.as_ref(), pass)? == Step::Same {
        return Ok(());
    }
    if change(client, RAISE, place, pass).await? {
        return Ok(());
    }
    // Somebody else raised it in between.
    match judge(kept(client, place).await?.as_ref(), pass)? {
        Step::Same => Ok(()),
        Step::Up => Err(GateError::Damaged(place.clone())),
    }
}

/// Lets the work of `transaction` in. Until it ends, no higher token is let in.
///
/// A token that was not raised before is raised by it, which makes all others wait until it ends, equal ones too.
pub async fn admit(
    transaction: &Transaction<'_>,
    place: &Place,
    pass: &Pass,
) -> Result<(), GateError> {
    // The row's token never falls, so a second look settles what a raise in between left open.
    for _ in 0..2 {
        if change(transaction, CHECK, place, pass).await? {
            return Ok(());
        }
        // Judged without a lock, so that a refused transaction holds nobody up, and two that raise don't wait for
        // each other's shared locks.
        match judge(kept(transaction, place).await?.as_ref(), pass)? {
            Step::Same => {}
            Step::Up => {
                if change(transaction, RAISE, place, pass).await? {
                    return Ok(());
                }
            }
        }
    }
    match judge(kept(transaction, place).await?.as_ref(), pass)? {
        Step::Same if change(transaction, CHECK, place, pass).await? => Ok(()),
        _ => Err(GateError::Damaged(place.clone())),
    }
}

/// What is kept for a place.
pub async fn kept(client: &impl GenericClient, place: &Place) -> Result<Option<Pass>, GateError> {
    let Place {
        namespace,
        lock,
        slot,
    } = place;
    let Some(row) = client.query_opt(KEPT, &[namespace, lock, slot]).await? else {
        return Ok(None);
    };
    let token =
        FencingToken::new(row.try_get(0)?).map_err(|_| GateError::Damaged(place.clone()))?;
    Ok(Some(Pass::new(token, row.try_get::<_, String>(1)?)))
}

/// Whether the statement found or changed the row.
async fn change(
    client: &impl GenericClient,
    statement: &str,
    place: &Place,
    pass: &Pass,
) -> Result<bool, tokio_postgres::Error> {
    let Place {
        namespace,
        lock,
        slot,
    } = place;
    let Pass { token, holder } = pass;
    let rows = client
        .execute(statement, &[namespace, lock, slot, &token.get(), holder])
        .await?;
    Ok(rows == 1)
}
