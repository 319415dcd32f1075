//! A private `PostgreSQL` from the system's packages, which ends with its owner.
//!
//! It keeps nothing: no fsync, no full page writes. Over TCP it wants a password; its socket is for us alone.

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::apt;
use crate::controlplane::Programs;
use crate::folder::OwnedFolder;
use crate::pki::write_private;
use crate::ports;
use crate::supervisor::{Probe, Program, Spec, Supervisor};

/// SIGQUIT: `PostgreSQL` ends at once, its children too, and leaves no shared memory behind.
const IMMEDIATE_SHUTDOWN: i32 = 3;
/// Who runs it when we are root, which it refuses; the first of these that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// The Debian package with the server.
pub const PACKAGE: &str = "postgresql";

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    // Before the folder: fields are dropped in order, and the supervisor uses the folder.
    _supervisor: Supervisor,
    _owned: OwnedFolder,
    socket_dir: PathBuf,
    port: u16,
    password: String,
}

impl Postgres {
    /// The name of its superuser.
    pub const USER: &str = "leasehold";
    /// The database that is there from the start.
    pub const DATABASE: &str = "postgres";

    /// Starts one that ends when it is dropped, or when this process ends.
    pub fn start() -> Result<Self> {
        let bin = find_programs().with_context(|| {
            format!(
                "PostgreSQL's server is not installed: {}",
                apt::hint(&[PACKAGE])
            )
        })?;
        let programs = Programs::ensure()?;
        let user = user_to_run_as()?;
        ports::until_bound(|| Self::start_once(&bin, &programs, user))
    }

    fn start_once(bin: &Path, programs: &Programs, user: Option<(u32, u32)>) -> Result<Self> {
        // The other user must be able to reach its folders, not to read ours.
        let folder = OwnedFolder::new(&base_for(user.is_some()), "postgres", 0o711)?;
        let (data, socket_dir) = (folder.path().join("data"), folder.path().join("socket"));
        let password_file = folder.path().join("password");
        let password = format!("{:016x}", RandomState::new().hash_one(0));
        write_private(&password_file, &password)?;
        for dir in [&data, &socket_dir] {
            fs::create_dir(dir)?;
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        }
        if let Some((uid, gid)) = user {
            for path in [&data, &socket_dir, &password_file] {
                chown(path, Some(uid), Some(gid))?;
            }
        }

        let mut initdb = Command::new(bin.join("initdb"));
        initdb
            .arg("--pgdata")
            .arg(&data)
            .arg("--pwfile")
            .arg(&password_file);
        initdb.args([
            "--username",
            Self::USER,
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
        ]);
        initdb.args([
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]);
        initdb.stdin(Stdio::null()).current_dir("/");
        if let Some((uid, gid)) = user {
            initdb.uid(uid).gid(gid);
        }
        let output = initdb.output().context("can't run initdb")?;
        if !output.status.success() {
            bail!(
                "initdb failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }

        let [port] = ports::pick()?;
        let program = Program {
            name: "postgres",
            path: bin.join("postgres"),
            args: arguments(&data, &socket_dir, port),
            user,
            end_signal: IMMEDIATE_SHUTDOWN,
            ..Program::default()
        };
        let spec = Spec {
            node: None,
            programs: vec![program],
            // The eighth line of that file says how it is, and others are paths and numbers.
            ready: vec![Probe::File(data.join("postmaster.pid"), "\nready")],
            tls: None,
            remove_folder: true,
        };
        let supervisor = Supervisor::start(programs, folder.path(), &spec)
            .context("PostgreSQL did not start")?;
        Ok(Self {
            _supervisor: supervisor,
            _owned: folder,
            socket_dir,
            port,
            password,
        })
    }

    /// The TCP port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The password of [`Postgres::USER`] over TCP.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The folder of its socket, for `host=`; no password is asked there.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    /// `postgres://…` over TCP.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "postgres://{}:{}@127.0.0.1:{}/{}",
            Self::USER,
            self.password,
            self.port,
            Self::DATABASE
        )
    }
}

/// Installs the server's package if it is missing and we may.
pub fn ensure_installed() -> Result<()> {
    if find_programs().is_some() {
        return Ok(());
    }
    apt::install("PostgreSQL's server", &[PACKAGE], || {
        find_programs().is_some()
    })?;
    find_programs()
        .map(drop)
        .with_context(|| format!("the package {PACKAGE} brought no server"))
}

/// The folder with `initdb` and `postgres`: that of the newest of Debian's versions, or one in PATH.
#[must_use]
pub fn find_programs() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .collect();
    versions.sort();
    let in_path = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    let candidates = versions
        .into_iter()
        .rev()
        .map(|(_, dir)| dir)
        .chain(in_path);
    candidates.into_iter().find(|dir| {
        ["initdb", "postgres"]
            .iter()
            .all(|program| dir.join(program).is_file())
    })
}

fn arguments(data: &Path, socket_dir: &Path, port: u16) -> Vec<String> {
    let mut args = vec!["-D".to_owned(), data.to_string_lossy().into_owned()];
    let settings = [
        format!("port={port}"),
        "listen_addresses=127.0.0.1".to_owned(),
        format!("unix_socket_directories={}", socket_dir.display()),
        "fsync=off".to_owned(),
        "synchronous_commit=off".to_owned(),
        "full_page_writes=off".to_owned(),
        "shared_buffers=64MB".to_owned(),
        "max_connections=100".to_owned(),
    ];
    args.extend(
        settings
            .into_iter()
            .flat_map(|setting| ["-c".to_owned(), setting]),
    );
    args
}

/// As root: the user and group to run it as.
fn user_to_run_as() -> Result<Option<(u32, u32)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").context("can't read /etc/passwd")?;
    match USERS.iter().find_map(|name| ids_of(&passwd, name)) {
        Some(ids) => Ok(Some(ids)),
        None => bail!(
            "PostgreSQL refuses to run as root, and there is no user {}",
            USERS.join(" or ")
        ),
    }
}

fn ids_of(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// A folder for temporary files; one that others can enter, if another user has to.
fn base_for(another_user: bool) -> PathBuf {
    let usual = env::temp_dir();
    let open = |dir: &Path| {
        dir.ancestors()
            .all(|dir| fs::metadata(dir).is_ok_and(|data| data.permissions().mode() & 0o001 != 0))
    };
    if !another_user || open(&usual) {
        return usual;
    }
    ["/tmp", "/var/tmp"]
        .into_iter()
        .map(PathBuf::from)
        .find(|dir| open(dir))
        .unwrap_or(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:102:x:/:/bin/bash\n";
        assert_eq!(ids_of(passwd, "postgres"), Some((101, 102)));
        assert_eq!(ids_of(passwd, "nobody"), None);
    }
}
