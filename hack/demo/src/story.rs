//! The driver: sets the stage, tells the story, shows what came of it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use futures::future::try_join_all;

use crate::record::{self, Kind, Record};
use crate::speed::Speed;
use crate::stage::Stage;
use crate::words::Live;
use crate::{svg, telling, words};

/// What the story is about.
const CUSTOMERS: u32 = 50_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many times faster than real time; lease durations stay whole seconds
    #[arg(long, value_enum, default_value = "5", conflicts_with = "real_time")]
    speed: Speed,
    /// The same as --speed 1
    #[arg(long)]
    real_time: bool,
    /// What goes to standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Where the picture goes [default: target/nightly-billing.svg]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only this telling; may be repeated
    #[arg(long, value_enum)]
    telling: Vec<Kind>,
    /// How many customers there are
    #[arg(long, default_value_t = CUSTOMERS, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    customers: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The timeline and a table
    Text,
    /// One object with the numbers of each telling; the timeline goes to standard error
    Json,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let speed = if args.real_time {
        Speed::Real
    } else {
        args.speed
    };
    let mut kinds = if args.telling.is_empty() {
        Kind::ALL.to_vec()
    } else {
        args.telling.clone()
    };
    kinds.sort();
    kinds.dedup();
    let data = args.format == Format::Json;
    let records =
        crate::runtime()?.block_on(tell(&kinds, speed, args.customers, &Live::new(data)))?;

    let picture = args
        .svg
        .clone()
        .unwrap_or_else(|| xtask::repository().join("target/nightly-billing.svg"));
    fs::write(&picture, svg::draw(&records))
        .with_context(|| format!("can't write {}", picture.display()))?;
    if data {
        println!("{}", record::json(u64::from(args.customers), &records)?);
    } else {
        println!("\n{}", words::table(&records));
    }
    eprintln!("The picture: {}", picture.display());
    let broken: Vec<_> = records.iter().flat_map(Record::broken_promises).collect();
    for promise in &broken {
        eprintln!("not as promised: {promise}");
    }
    Ok(if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn tell(kinds: &[Kind], speed: Speed, customers: u32, live: &Live) -> Result<Vec<Record>> {
    let stage = Stage::set().await?;
    // In real time a machine of two cores keeps four ledgers busy; faster, the tellings would slow each other down.
    if speed == Speed::Real {
        return try_join_all(
            kinds
                .iter()
                .map(|kind| telling::tell(&stage, live, *kind, speed, customers)),
        )
        .await;
    }
    let mut records = Vec::new();
    for kind in kinds {
        records.push(telling::tell(&stage, live, *kind, speed, customers).await?);
    }
    Ok(records)
}
