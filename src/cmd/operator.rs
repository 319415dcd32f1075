//! `leasehold operator`: one replica of the operator.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::client::identity::{claimant_name, host_name};
use leasehold::controller::{self, Settings};
use leasehold::leader::LeaderTimes;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use super::{Words, log, parse_address, parse_duration, say};

/// Run one replica of the operator: it makes the Leases of locks, ends silent holders, keeps queues in order, revokes,
/// mirrors status, and tends claims. Several may run; one leads.
///
/// Exit codes: 0 stopped by SIGTERM or SIGINT, after giving the lead back; 2 usage, or settings that do not fit
/// together; 1 anything else. Losing the lead ends no process: the replica stops all writes and stands by.
#[derive(clap::Args)]
pub struct Args {
    /// The operator's own namespace, for the Lease of its election; by default the Pod's, or the kubeconfig's
    #[arg(short, long, env = "POD_NAMESPACE", value_name = "NS")]
    namespace: Option<String>,
    /// A namespace to look after; may be repeated, or separated by commas. By default all
    #[arg(
        long = "watch-namespace",
        env = "WATCH_NAMESPACE",
        value_name = "NS",
        value_delimiter = ','
    )]
    watch_namespaces: Vec<String>,
    /// The Lease of the election
    #[arg(long, default_value = "leasehold-operator", value_name = "NAME")]
    leader_election_id: String,
    /// How long a leader that died can keep others from leading; whole seconds
    #[arg(long, default_value = "15s", value_parser = parse_duration, value_name = "DURATION")]
    leader_lease_duration: Duration,
    /// A leader that could not renew for so long leads no more; three to four fifths of the lease duration
    #[arg(long, default_value = "10s", value_parser = parse_duration, value_name = "DURATION")]
    leader_renew_deadline: Duration,
    /// How often a standby looks, and a leader repeats a renewal that failed; at most half of the renew deadline
    #[arg(long, default_value = "2s", value_parser = parse_duration, value_name = "DURATION")]
    leader_retry_period: Duration,
    /// Who this replica is; by default the Pod's name, or the host's
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// Where /livez, /readyz and /metrics are served
    #[arg(long, default_value = "0.0.0.0:8080", value_parser = parse_address, value_name = "ADDRESS")]
    http_addr: SocketAddr,
    /// How the log is written, to stderr; `RUST_LOG` filters it
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Usage, and settings that do not fit together.
const USAGE: u8 = 2;

pub fn run(mut args: Args) -> ExitCode {
    // A variable that is set to nothing, as charts do, says nothing.
    args.watch_namespaces.retain(|name| !name.is_empty());
    args.namespace = args.namespace.filter(|name| !name.is_empty());
    args.identity = args.identity.filter(|name| !name.is_empty());
    let times = LeaderTimes::new(
        args.leader_lease_duration,
        args.leader_renew_deadline,
        args.leader_retry_period,
    );
    let times = match times {
        Ok(times) => times,
        Err(error) => return usage(&error.to_string()),
    };
    let names = args.namespace.iter().map(|name| ("--namespace", name, 63));
    let names = names
        .chain(
            args.watch_namespaces
                .iter()
                .map(|name| ("--watch-namespace", name, 63)),
        )
        .chain([("--leader-election-id", &args.leader_election_id, 253)]);
    for (flag, name, longest) in names {
        if !is_name(name, longest) {
            return usage(&format!(
                "{flag} {name:?} is no name that Kubernetes takes: lower case letters, digits and '-'"
            ));
        }
    }
    let identity = args
        .identity
        .clone()
        .unwrap_or_else(|| claimant_name(&host_name()));
    if identity.is_empty() || identity.len() > 200 || identity.contains(['/', ';']) {
        return usage("--identity must have 1 to 200 characters, without '/' and ';'");
    }
    log_to_stderr(args.log_format);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failure(&format!("cannot start: {error}")),
    };
    let outcome = runtime.block_on(operate(args, times, identity));
    // Nothing of this process is worth waiting for any more.
    runtime.shutdown_timeout(Duration::from_millis(100));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

async fn operate(args: Args, times: LeaderTimes, identity: String) -> Result<(), String> {
    // Before anything is under way: a signal must never find the default handler once something is.
    let stop = stop_on_signal().map_err(|error| format!("cannot handle signals: {error}"))?;
    let config = kube::Config::infer()
        .await
        .map_err(|error| format!("no API server is configured: {error}"))?;
    let settings = Settings {
        namespace: args
            .namespace
            .unwrap_or_else(|| config.default_namespace.clone()),
        watched: args.watch_namespaces,
        election: args.leader_election_id,
        times,
        identity,
        http_addr: args.http_addr,
    };
    controller::run(settings, config, stop)
        .await
        .map_err(|error| error.to_string())
}

/// Becomes true with the first SIGTERM or SIGINT; a second one ends the process at once.
fn stop_on_signal() -> std::io::Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stop.send_replace(true) {
                std::process::exit(1);
            }
            tracing::info!("stops: ends what is under way, then gives the lead back");
        }
    });
    Ok(stopped)
}

fn log_to_stderr(format: LogFormat) {
    let asked = log::asked();
    let filter = EnvFilter::try_new(log_filter(asked.clone().ok().flatten()))
        .unwrap_or_else(|_| EnvFilter::new(log_filter(None)));
    let layer = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Words)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => layer.with_ansi(false).init(),
        LogFormat::Json => layer.json().init(),
    }
    if let Err(wrong) = asked {
        tracing::warn!("RUST_LOG: {wrong}. It is not used: logs at info");
    }
}

/// What a watch is refused is said once, by us, unless somebody wants to hear it from below too.
fn log_filter(asked: Option<String>) -> String {
    const BELOW: &str = "kube_runtime";
    let asked = asked.unwrap_or_else(|| "info".to_owned());
    if asked.contains(BELOW) {
        asked
    } else {
        format!("{asked},{BELOW}=error")
    }
}

/// A DNS subdomain, as names of Leases and namespaces are.
fn is_name(name: &str, longest: usize) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !name.is_empty()
        && name.len() <= longest
        && name.split('.').all(|label| {
            label.starts_with(inner)
                && label.ends_with(inner)
                && label.chars().all(|c| inner(c) || c == '-')
        })
}

fn usage(words: &str) -> ExitCode {
    say(words);
    ExitCode::from(USAGE)
}

fn failure(words: &str) -> ExitCode {
    say(words);
    ExitCode::FAILURE
}
