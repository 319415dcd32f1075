//! The ledger: one schema a telling, in a private `PostgreSQL`.
//!
//! `charges` has no unique constraint, so that what is charged twice can be counted. With a gate, each charge is one
//! statement that looks at the gate, charges or writes down its refusal, and commits: a client that freezes holds
//! nothing open.

use anyhow::{Context, Result};
use leasehold::fence::postgres::{self, CHECK};
use leasehold::fence::{Pass, Place};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

/// The variable with the password of the ledger.
pub(crate) const PASSWORD: &str = "LEDGER_PASSWORD";

/// Where the ledger is; travels to the workers as arguments, but for the password.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Address {
    /// The server's address, or the folder of its socket
    #[arg(long)]
    pub(crate) ledger_host: String,
    /// Its port, which is in the socket's name too
    #[arg(long)]
    pub(crate) ledger_port: u16,
    /// What it asks for where one comes by an address
    #[arg(long, env = PASSWORD, hide_env_values = true)]
    pub(crate) ledger_password: Option<String>,
    /// The schema: one a telling
    #[arg(long)]
    pub(crate) schema: String,
}

impl Address {
    /// Connects; the connection ends with the runtime.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let mut config = tokio_postgres::Config::new();
        config
            .host(&self.ledger_host)
            .port(self.ledger_port)
            .user(xtask::postgres::Postgres::USER)
            .dbname(xtask::postgres::Postgres::DATABASE)
            .options(format!("-c search_path={}", self.schema))
            .application_name("nightly-billing");
        if let Some(password) = &self.ledger_password {
            config.password(password);
        }
        let (client, connection) = config
            .connect(NoTls)
            .await
            .context("can't reach the ledger")?;
        tokio::spawn(connection);
        Ok(client)
    }
}

/// Makes an empty ledger with so many customers to charge.
pub(crate) async fn open(address: &Address, customers: u32) -> Result<Client> {
    let client = address.connect().await?;
    let schema = &address.schema;
    client
        .batch_execute(&format!(
            "CREATE SCHEMA {schema};
             CREATE TABLE customers (id integer PRIMARY KEY);
             INSERT INTO customers SELECT generate_series(1, {customers});
             ANALYZE customers;
             CREATE TABLE charges (customer integer NOT NULL, token bigint NOT NULL, holder text NOT NULL,
                 at timestamptz NOT NULL DEFAULT clock_timestamp());
             CREATE TABLE refusals (LIKE charges INCLUDING ALL);"
        ))
        .await
        .context("can't make the ledger")?;
    postgres::install(&client).await?;
    Ok(client)
}

/// A worker's way into the ledger.
pub(crate) struct Ledger {
    client: Client,
    charge: Statement,
    gate: Option<Place>,
    pass: Pass,
}

impl Ledger {
    /// Connects with what was granted. With a gate: raises it first, before anything is read.
    pub(crate) async fn enter(address: &Address, gate: Option<Place>, pass: Pass) -> Result<Self> {
        let client = address.connect().await?;
        if let Some(place) = &gate {
            postgres::raise(&client, place, &pass).await?;
        }
        let text = if gate.is_some() {
            gated_charge()
        } else {
            PLAIN_CHARGE.to_owned()
        };
        let charge = client.prepare(&text).await?;
        Ok(Self {
            client,
            charge,
            gate,
            pass,
        })
    }

    /// The customers not yet charged.
    pub(crate) async fn load(&self) -> Result<Vec<i32>> {
        let rows = self
            .client
            .query(UNCHARGED, &[])
            .await
            .context("can't load the customers")?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Charges one customer. `false`: the gate refused.
    pub(crate) async fn charge(&self, customer: i32) -> Result<bool> {
        let (token, holder) = (self.pass.token.get(), &self.pass.holder);
        let charged = match &self.gate {
            None => {
                self.client
                    .execute(&self.charge, &[&customer, &token, holder])
                    .await?
            }
            Some(Place {
                namespace,
                lock,
                slot,
            }) => {
                let values: [&(dyn ToSql + Sync); 6] =
                    [namespace, lock, slot, &token, holder, &customer];
                self.client.execute(&self.charge, &values).await?
            }
        };
        Ok(charged == 1)
    }
}

const UNCHARGED: &str = "SELECT id FROM customers \
     WHERE NOT EXISTS (SELECT FROM charges WHERE customer = id) ORDER BY id";
const PLAIN_CHARGE: &str = "INSERT INTO charges (customer, token, holder) VALUES ($1, $2, $3)";

/// One statement, hence one transaction: it charges, or notes that it was refused. It counts the rows charged.
fn gated_charge() -> String {
    format!(
        "WITH gate AS ({CHECK}), \
         refusal AS (INSERT INTO refusals (customer, token, holder) \
             SELECT $6, $4, $5 WHERE NOT EXISTS (SELECT FROM gate)) \
         INSERT INTO charges (customer, token, holder) SELECT $6, $4, $5 FROM gate"
    )
}

/// What the ledger says at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Rows in `charges`.
    pub(crate) charges: u64,
    /// Customers charged at least once.
    pub(crate) customers: u64,
    /// Rows in `refusals`.
    pub(crate) refused: u64,
}

/// How many charges there are by now.
pub(crate) async fn count(client: &Client) -> Result<u64> {
    let row = client
        .query_one("SELECT count(*) FROM charges", &[])
        .await?;
    Ok(unsigned(row.get(0)))
}

/// Counts everything.
pub(crate) async fn totals(client: &Client) -> Result<Totals> {
    let counts =
        "SELECT count(*), count(DISTINCT customer), (SELECT count(*) FROM refusals) FROM charges";
    let row = client.query_one(counts, &[]).await?;
    Ok(Totals {
        charges: unsigned(row.get(0)),
        customers: unsigned(row.get(1)),
        refused: unsigned(row.get(2)),
    })
}

/// When the last charge with this token was taken or refused, in microseconds of the wall clock.
pub(crate) async fn last_charge(client: &Client, token: i64) -> Result<Option<i64>> {
    let row = client
        .query_one(LAST_CHARGE, &[&token])
        .await
        .context("can't read the ledger")?;
    Ok(row.get(0))
}

const LAST_CHARGE: &str = "
    WITH work AS (SELECT token, at FROM charges UNION ALL SELECT token, at FROM refusals)
    SELECT (extract(epoch FROM max(at)) * 1000000)::bigint FROM work WHERE token = $1";

/// What one holder did in one slice of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The identity it charged with.
    pub(crate) holder: String,
    /// The number of the slice since the beginning.
    pub(crate) number: i64,
    /// First charges of a customer.
    pub(crate) charged: u64,
    /// Further charges of a customer.
    pub(crate) duplicates: u64,
    /// What the gate refused.
    pub(crate) refused: u64,
}

/// Who did what when, by slices of `length` microseconds since `begin`.
pub(crate) async fn slices(client: &Client, begin: i64, length: i64) -> Result<Vec<Slice>> {
    let rows = client
        .query(SLICES, &[&begin, &length])
        .await
        .context("can't read the ledger")?;
    Ok(rows
        .iter()
        .map(|row| Slice {
            holder: row.get(0),
            number: row.get(1),
            charged: unsigned(row.get(2)),
            duplicates: unsigned(row.get(3)),
            refused: unsigned(row.get(4)),
        })
        .collect())
}

const SLICES: &str = "
    WITH work AS (
        SELECT holder, at, row_number() OVER (PARTITION BY customer ORDER BY at) AS nth, false AS refused FROM charges
        UNION ALL SELECT holder, at, 1, true FROM refusals
    )
    SELECT holder,
        floor(((extract(epoch FROM at) * 1000000)::bigint - $1::bigint)::numeric / $2::bigint)::bigint AS slice,
        count(*) FILTER (WHERE NOT refused AND nth = 1),
        count(*) FILTER (WHERE NOT refused AND nth > 1),
        count(*) FILTER (WHERE refused)
    FROM work GROUP BY 1, 2 ORDER BY 2, 1";

fn unsigned(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}
