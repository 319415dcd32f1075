//! The folder that the sidecar shares with the app: the grant for the app, and what the sidecar itself needs after a
//! restart. Each file is written whole under another name, then renamed.
//!
//! A thread of its own writes and removes, so that the grant goes in time whatever the rest of the process does.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use leasehold::clock::BootInstant;
use tokio::sync::oneshot;

use super::begin::State;
use crate::cmd::say;

/// What the app reads.
const GRANT: &str = "grant.json";
/// What the sidecar reads after a restart.
const STATE: &str = "state.json";
/// So much before its deadline the grant is removed, since nobody is to read it after: an eighth of the time left, but
/// no less and no more than this. A renewal that is answered so late brings the file back.
const LEAD: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// A thread's timers do not run through a suspend, so it looks up that often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The files of one folder.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Checks that files can be written and removed there; or says what to do.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let folder = Self(path.to_owned());
        let tried = folder
            .replace("probe", "", 0o600)
            .and_then(|()| folder.remove("probe"));
        tried.map_err(|error| {
            format!(
                "cannot write to {}: {error}; mount an emptyDir volume there, or name another folder by --dir",
                path.display()
            )
        })?;
        Ok(folder)
    }

    /// What an earlier process of this sidecar left; what can't be read is an unreadable text.
    pub(super) fn state(&self) -> Option<String> {
        match fs::read_to_string(self.0.join(STATE)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("unreadable: {error}")),
        }
    }

    /// Removes both files: the grant first.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.remove(GRANT)?;
        self.remove(STATE)
    }

    fn hold(&self, state: &State, grant: &str, until: BootInstant) -> io::Result<()> {
        self.keep(state)?;
        if BootInstant::now() >= before(until) {
            return self.remove(GRANT);
        }
        self.replace(GRANT, grant, 0o644)
    }

    fn keep(&self, state: &State) -> io::Result<()> {
        self.replace(STATE, &serde_json::to_string(state)?, 0o600)
    }

    fn replace(&self, name: &str, text: &str, mode: u32) -> io::Result<()> {
        let new = self.0.join(format!(".{name}.new"));
        // Its mode is that of the first who makes it.
        self.remove(&format!(".{name}.new"))?;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        // On a disk the name could be there after a crash of the machine, and the text not.
        file.sync_all()?;
        fs::rename(&new, self.0.join(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

type Done = oneshot::Sender<io::Result<()>>;

enum Order {
    Hold {
        state: Box<State>,
        grant: String,
        until: BootInstant,
        done: Done,
    },
    RemoveAt(BootInstant),
    Over {
        state: Box<State>,
        done: Done,
    },
}

/// The thread that keeps the folder.
#[derive(Debug)]
pub(super) struct Volume(Sender<Order>);

impl Volume {
    /// Starts it.
    pub(super) fn start(folder: Folder) -> io::Result<Self> {
        let (orders, ordered) = mpsc::channel();
        std::thread::Builder::new()
            .name("volume".to_owned())
            .spawn(move || keep(&folder, &ordered))?;
        Ok(Self(orders))
    }

    /// Shows the grant, until its deadline; resolves once both files are written.
    pub(super) fn hold(
        &self,
        state: State,
        grant: String,
        until: BootInstant,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let (done, answer) = oneshot::channel();
        self.order(
            Order::Hold {
                state: Box::new(state),
                grant,
                until,
                done,
            },
            answer,
        )
    }

    /// The grant that an earlier process left is shown until then.
    pub(super) fn remove_at(&self, until: BootInstant) {
        let _ = self.0.send(Order::RemoveAt(until));
    }

    /// Removes the grant, then keeps what became of it.
    pub(super) async fn over(&self, state: State) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        self.order(
            Order::Over {
                state: Box::new(state),
                done,
            },
            answer,
        )
        .await
    }

    /// What is ordered is done also when nobody waits for the answer.
    fn order(
        &self,
        order: Order,
        answer: oneshot::Receiver<io::Result<()>>,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let sent = self.0.send(order).is_ok();
        async move {
            let gone = || io::Error::other("the thread that keeps the folder has ended");
            if !sent {
                return Err(gone());
            }
            answer.await.unwrap_or_else(|_| Err(gone()))
        }
    }
}

fn keep(folder: &Folder, orders: &Receiver<Order>) {
    let mut remove_at: Option<BootInstant> = None;
    loop {
        let wait = remove_at.map_or(LOOK_EVERY, |at| {
            at.saturating_duration_since(BootInstant::now())
                .min(LOOK_EVERY)
        });
        match orders.recv_timeout(wait) {
            Ok(Order::Hold {
                state,
                grant,
                until,
                done,
            }) => {
                let written = folder.hold(&state, &grant, until);
                // The file that is there otherwise still has its earlier deadline.
                if written.is_ok() {
                    remove_at = Some(before(until));
                }
                let _ = done.send(written);
            }
            Ok(Order::RemoveAt(until)) => remove_at = Some(before(until)),
            Ok(Order::Over { state, done }) => {
                let removed = folder.remove(GRANT);
                remove_at = removed.is_err().then(BootInstant::now);
                let _ = done.send(removed.and(folder.keep(&state)));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if remove_at.is_some_and(|at| BootInstant::now() >= at) {
            match folder.remove(GRANT) {
                Ok(()) => remove_at = None,
                Err(error) => {
                    say(&format!("cannot remove the grant from the folder: {error}"));
                    remove_at = Some(BootInstant::now() + LOOK_EVERY);
                }
            }
        }
    }
}

/// When a grant that is shown from now on is removed.
fn before(until: BootInstant) -> BootInstant {
    let left = until.saturating_duration_since(BootInstant::now());
    until.saturating_sub((left / 8).clamp(LEAD[0], LEAD[1]))
}
