//! The driver: sets the stage, tells the story, shows what came of it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use futures::future::try_join_all;

use crate::chronicle::Plot;
use crate::kind::Kind;
use crate::record::{self, Record};
use crate::speed::Speed;
use crate::stage::Stage;
use crate::words::Live;
use crate::{node, promises, svg, telling, words};

/// What the story is about: on processes ...
const CUSTOMERS: u32 = 50_000;
/// ... and in Pods, where seconds are real.
const CUSTOMERS_IN_PODS: u32 = 5_000;
/// How many seconds a slice of the picture has, where it is of Pods.
const SLICE_IN_PODS: f64 = 0.2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tell it in Pods on a node, with the chart installed: a frozen container, a dead kubelet, a Pod deleted, out of
    /// memory, deleted by force; about three minutes. Needs root
    #[arg(long, conflicts_with_all = ["speed", "real_time"])]
    node: bool,
    /// How many times faster than real time; lease durations stay whole seconds
    #[arg(long, value_enum, default_value = "5", conflicts_with = "real_time")]
    speed: Speed,
    /// The same as --speed 1
    #[arg(long)]
    real_time: bool,
    /// What goes to standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Where the picture goes [default: target/nightly-billing.svg, with --node target/nightly-billing-pods.svg]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Only this telling; may be repeated
    #[arg(long, value_enum)]
    telling: Vec<Kind>,
    /// How many customers there are [default: 50000, with --node 5000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    customers: Option<u32>,
    /// How many contend
    #[arg(long, value_name = "N", default_value = "10", value_parser = RangedU64ValueParser::<usize>::new().range(2..=20))]
    contenders: usize,
    /// With --node: the seconds of a lease, three times as many where it must not matter
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        requires = "node",
        value_parser = clap::value_parser!(u32).range(5..=60)
    )]
    lease: u32,
}

impl Args {
    /// What is to be told.
    fn plots(&self) -> Result<Vec<Plot>> {
        let mut kinds = match (self.telling.is_empty(), self.node) {
            (false, _) => self.telling.clone(),
            (true, false) => Kind::ON_PROCESSES.to_vec(),
            (true, true) => Kind::IN_PODS.to_vec(),
        };
        kinds.sort();
        kinds.dedup();
        let plot = |kind: Kind| {
            let (name, node) = (kind.name(), self.node);
            ensure!(
                kind.is_in_pods() == node,
                "the telling {name} is one {} --node",
                if node { "without" } else { "with" }
            );
            Ok(if node {
                self.plot_in_pods(kind)
            } else {
                self.plot_on_processes(kind)
            })
        };
        kinds.into_iter().map(plot).collect()
    }

    fn plot_on_processes(&self, kind: Kind) -> Plot {
        Plot {
            kind,
            speed: if self.real_time {
                Speed::Real
            } else {
                self.speed
            },
            lease: kind.lease(),
            contenders: self.contenders,
            customers: self.customers.unwrap_or(CUSTOMERS),
            slice: 1.0,
        }
    }

    fn plot_in_pods(&self, kind: Kind) -> Plot {
        // One that is given back, or whose holder's end is proven, is had long before any lease could run out.
        let longer = matches!(kind, Kind::Deleted | Kind::Oom);
        Plot {
            kind,
            speed: Speed::Real,
            lease: self.lease * if longer { 3 } else { 1 },
            contenders: self.contenders,
            customers: self.customers.unwrap_or(CUSTOMERS_IN_PODS),
            slice: SLICE_IN_PODS,
        }
    }

    fn picture(&self) -> PathBuf {
        let name = if self.node {
            "target/nightly-billing-pods.svg"
        } else {
            "target/nightly-billing.svg"
        };
        self.svg
            .clone()
            .unwrap_or_else(|| xtask::repository().join(name))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The timeline and a table
    Text,
    /// One object with the numbers of each telling; the timeline goes to standard error
    Json,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let plots = args.plots()?;
    let data = args.format == Format::Json;
    let live = Live::new(data);
    let records = crate::runtime()?.block_on(async {
        if args.node {
            tell_in_pods(&plots, &live).await
        } else {
            tell_on_processes(&plots, &live).await
        }
    })?;

    let picture = args.picture();
    fs::write(&picture, svg::draw(&records))
        .with_context(|| format!("can't write {}", picture.display()))?;
    if data {
        let customers = records.first().map_or(0, |record| record.customers);
        println!("{}", record::json(customers, &records)?);
    } else {
        println!("\n{}", words::table(&records));
    }
    eprintln!("The picture: {}", picture.display());
    let broken: Vec<_> = records.iter().flat_map(promises::broken).collect();
    for promise in &broken {
        eprintln!("not as promised: {promise}");
    }
    Ok(if broken.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn tell_on_processes(plots: &[Plot], live: &Live) -> Result<Vec<Record>> {
    let stage = Stage::set().await?;
    // In real time a machine of two cores keeps four ledgers busy; faster, the tellings would slow each other down.
    if plots.iter().all(|plot| plot.speed == Speed::Real) {
        let told = plots.iter().map(|plot| telling::tell(&stage, live, *plot));
        return try_join_all(told).await;
    }
    let mut records = Vec::new();
    for plot in plots {
        records.push(telling::tell(&stage, live, *plot).await?);
    }
    Ok(records)
}

/// One after the other: they share the node, and one is about its kubelet.
async fn tell_in_pods(plots: &[Plot], live: &Live) -> Result<Vec<Record>> {
    let stage = node::Stage::set().await?;
    let mut records = Vec::new();
    for plot in plots {
        records.push(node::tell(&stage, live, *plot).await?);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plots(words: &[&str]) -> Result<Vec<Plot>> {
        let words = [&["demo"], words].concat();
        Cli::try_parse_from(words)?.args.plots()
    }

    #[test]
    fn in_pods_there_are_other_tellings() {
        let kinds = |words| plots(words).unwrap().into_iter().map(|plot| plot.kind);
        assert!(kinds(&[]).eq(Kind::ON_PROCESSES));
        assert!(kinds(&["--node"]).eq(Kind::IN_PODS));
        assert!(kinds(&["--node", "--telling=oom"]).eq([Kind::Oom]));
        assert!(plots(&["--node", "--telling=crash"]).is_err());
        assert!(plots(&["--telling=oom"]).is_err());
        assert!(plots(&["--node", "--speed=3"]).is_err());
        assert!(plots(&["--lease=5"]).is_err());
    }

    #[test]
    fn a_lease_that_must_not_matter_is_longer() {
        let leases = plots(&["--node", "--lease=5"]).unwrap();
        let leases: Vec<_> = leases.iter().map(|plot| plot.lease).collect();
        assert_eq!(leases, [5, 5, 15, 15, 5]);
    }
}
