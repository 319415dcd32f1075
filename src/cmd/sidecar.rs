//! `leasehold sidecar`: hold a lock for the other containers of a Pod.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::client::identity::own_pod;
use leasehold::clock::BootInstant;
use leasehold::supervise::Neighbours;

use self::begin::Here;
use self::life::Life;
use self::stop::Stop;
use self::told::Told;
use self::volume::{Folder, Volume};
use super::request::Request;
use super::run::{EXIT_UNAVAILABLE, EXIT_USAGE, End, leave_last_words};
use super::{init_tracing, parse_address, parse_namespace, say};

mod begin;
mod life;
mod lost;
mod stop;
mod told;
mod volume;

const EXIT_CODES: &str = "\
Exit codes:
    0  stopped by TERM or INT, after the lock was given back
    1  the folder can't be cleared (--new-work)
    2  the command line is wrong, --kill-grace does not fit the lock's lease duration, an address
       can't be listened on, the folder can't be written to, or --end-app or --on-loss delete-pod
       can't work here
   69  the API server is unreachable or refuses, there is no such lock, or the release was not
       confirmed in time
   75  too many wait already
   76  the lock was lost (--on-loss exit), or processes of the app could not be ended";

/// Hold a lock for the other containers of a Pod, as a native sidecar.
///
/// Takes the lock, waiting for as long as it takes; answers /heldz with 200 once it is held, so that a startup probe
/// holds the app back until then; renews it, shows the grant at /v1/grant and in a file until it is lost, and gives it
/// back on TERM. Restarted, it resumes its own grant or loses it. After a loss it takes no other for this Pod, unless
/// --new-work ran before.
#[derive(Clone, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct Args {
    /// The `DistributedLock` to hold
    #[arg(long, value_name = "LOCK", required_unless_present = "new_work")]
    lock: Option<String>,
    /// The lock's namespace; by default the Pod's own, or the kubeconfig's
    #[arg(long, short, value_name = "NS", value_parser = parse_namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    request: Request,
    /// The folder on a volume of the Pod for grant.json, which the app reads, and the sidecar's own state.json
    #[arg(long, value_name = "DIR", default_value = "/var/run/leasehold")]
    dir: PathBuf,
    /// Where the app asks: /v1/grant, /livez, /heldz, /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7117", value_parser = parse_address)]
    http_addr: SocketAddr,
    /// Where the kubelet asks: /livez, /heldz, /metrics
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:7118", value_parser = parse_address)]
    probe_addr: SocketAddr,
    /// On loss, end the processes of the containers that were started after this one: TERM, then KILL, before anybody
    /// else can take the lock. Needs shareProcessNamespace, and the app's user
    #[arg(long)]
    end_app: bool,
    /// What to do on loss, after the grant is withdrawn and the app ended
    #[arg(long, value_enum, default_value_t = OnLoss::Stay)]
    on_loss: OnLoss,
    /// Run as an init container before the sidecar: the work of an earlier grant has ended, so a new one may be taken;
    /// then exit
    #[arg(long, conflicts_with_all = ["lock", "end_app", "on_loss", "wait_for_lock"])]
    new_work: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnLoss {
    /// Stay, say 503 and why: probes and people do the rest.
    Stay,
    /// Exit with 76, for a restart rule of the container.
    Exit,
    /// Delete the own Pod, so that its controller makes another.
    DeletePod,
}

pub fn run(args: Args) -> ExitCode {
    // What fails again and again is said once, by us.
    init_tracing("error,kube_client=off");
    let here = look_around();
    if args.new_work {
        return begin_new_work(&args, &here);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let lock = args.lock.clone().unwrap_or_default();
    let end = match runtime {
        Err(error) => {
            say(&format!("cannot start: {error}"));
            End::new(EXIT_UNAVAILABLE, "NoRuntime")
        }
        Ok(runtime) => {
            let end = runtime.block_on(live(args, here, &lock));
            runtime.shutdown_timeout(Duration::from_millis(100));
            end
        }
    };
    leave_last_words(&lock, &end);
    ExitCode::from(end.code)
}

fn look_around() -> Here {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Here {
        pod: own_pod().map(|pod| pod.uid),
        boot: boot.ok().map(|boot| boot.trim().to_owned()),
        now: BootInstant::now(),
    }
}

/// Everything that can be wrong from the start is said before anything is taken.
async fn live(args: Args, here: Here, lock: &str) -> End {
    let usage = |words: &str, reason: &str| {
        say(words);
        End::new(EXIT_USAGE, reason)
    };
    let stop = match Stop::install() {
        Ok(stop) => stop,
        Err(error) => {
            say(&format!("cannot install signal handlers: {error}"));
            return End::new(EXIT_UNAVAILABLE, "NoSignals");
        }
    };
    let neighbours = match args.end_app.then(Neighbours::find).transpose() {
        Ok(neighbours) => neighbours,
        Err(error) => return usage(&format!("--end-app: {error}"), "NotShared"),
    };
    if args.on_loss == OnLoss::DeletePod && here.pod.is_none() {
        return usage(
            "--on-loss delete-pod: there is no service account token of a Pod: set automountServiceAccountToken",
            "NoPod",
        );
    }
    let folder = match Folder::open(&args.dir) {
        Ok(folder) => folder,
        Err(words) => return usage(&words, "Folder"),
    };
    let state = folder.state();
    let volume = match Volume::start(folder) {
        Ok(volume) => volume,
        Err(error) => {
            say(&format!("cannot start a thread: {error}"));
            return End::new(EXIT_UNAVAILABLE, "NoThread");
        }
    };
    let told = Told::new(lock);
    if let Err(words) = told.serve(args.http_addr, args.probe_addr).await {
        return usage(&words, "Address");
    }
    let beginning = begin::decide(state.as_deref(), &here, lock);
    let life = Life {
        lock: lock.to_owned(),
        args,
        here,
        stop,
        neighbours,
        volume,
        told,
    };
    life.live(beginning).await
}

/// Clears the folder, unless it has a grant that a sidecar, ended together with the work, may still resume.
fn begin_new_work(args: &Args, here: &Here) -> ExitCode {
    let folder = match Folder::open(&args.dir) {
        Ok(folder) => folder,
        Err(words) => {
            say(&words);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if begin::outlasts_the_work(folder.state().as_deref(), here) {
        return ExitCode::SUCCESS;
    }
    match folder.clear() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("cannot clear {}: {error}", args.dir.display()));
            ExitCode::FAILURE
        }
    }
}
