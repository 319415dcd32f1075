//! Finding the command before the lock is taken, and replacing the shim by it after.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};

/// What `execvp` searches when `PATH` is unset.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Why a command can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// There is no such file. Exit code 127, as in a shell.
    #[error("command {0:?} was not found; give its path or put its folder on PATH")]
    NotFound(OsString),
    /// There is one, but it can't be run. Exit code 126, as in a shell.
    #[error("command {0:?} can't be run: {1}")]
    NotExecutable(OsString, &'static str),
}

impl ResolveError {
    /// The exit code that shells use for this.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => EXIT_NOT_FOUND,
            Self::NotExecutable(..) => EXIT_NOT_EXECUTABLE,
        }
    }
}

/// Finds the file that `name` stands for, as `execvp` would: a name with a slash is a path, any other is looked up in
/// `path` (the value of `PATH`, if set). Nothing is run.
pub fn resolve_command(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ResolveError> {
    if name.is_empty() {
        return Err(ResolveError::NotFound(name.to_owned()));
    }
    if name.as_bytes().contains(&b'/') {
        return match obstacle(Path::new(name)) {
            Ok(None) => Ok(PathBuf::from(name)),
            Ok(Some(reason)) => Err(ResolveError::NotExecutable(name.to_owned(), reason)),
            Err(_) => Err(ResolveError::NotFound(name.to_owned())),
        };
    }
    let mut refused = None;
    for folder in env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))) {
        // An empty entry is the current folder. The slash keeps the result from being looked up again.
        let folder = if folder.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            folder
        };
        let candidate = folder.join(name);
        match obstacle(&candidate) {
            Ok(None) => return Ok(candidate),
            Ok(Some(reason)) => refused = refused.or(Some((candidate, reason))),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some((file, reason)) => ResolveError::NotExecutable(file.into_os_string(), reason),
        None => ResolveError::NotFound(name.to_owned()),
    })
}

/// Why this file can't be executed; an error if it is not there.
fn obstacle(file: &Path) -> io::Result<Option<&'static str>> {
    if fs::metadata(file)?.is_dir() {
        return Ok(Some("it is a folder"));
    }
    if accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return Ok(Some("it is not executable; set its mode with chmod +x"));
    }
    Ok(None)
}

/// The shim between guardian and command: `__exec GUARDIAN_PID PROGRAM ARGV0 ARGS…`.
///
/// It binds its own life to the guardian's, then becomes the command, which keeps the binding (unless it is a
/// set-user-ID program: the kernel clears it there). The standard library's `exec` gives the command an empty signal
/// mask and the default action for SIGPIPE; handlers end with the exec.
pub(super) fn exec_main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let guardian = args
        .next()
        .and_then(|pid| pid.to_str()?.parse().ok())
        .and_then(Pid::from_raw);
    let (Some(guardian), Some(program), Some(argv0)) = (guardian, args.next(), args.next()) else {
        eprintln!("leasehold: __exec is internal to `leasehold run`");
        return ExitCode::from(2);
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("leasehold: can't bind the command's life to its guardian: {error}");
        return ExitCode::from(EXIT_NOT_EXECUTABLE);
    }
    // The guardian may have ended before the binding was made; then nobody would end the command in time.
    if getppid() != Some(guardian) {
        return ExitCode::from(EXIT_NOT_EXECUTABLE);
    }
    let error = Command::new(&program).arg0(argv0).args(args).exec();
    // The exit code says it too, if nobody reads this.
    let _ = writeln!(
        io::stderr(),
        "leasehold: can't run {}: {error}",
        Path::new(&program).display()
    );
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        EXIT_NOT_FOUND
    } else {
        EXIT_NOT_EXECUTABLE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str, path: Option<&str>) -> Result<PathBuf, ResolveError> {
        resolve_command(OsStr::new(name), path.map(OsStr::new))
    }

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        assert_eq!(
            resolve("sh", Some("/nowhere:/bin")).unwrap(),
            Path::new("/bin/sh")
        );
        assert_eq!(resolve("/bin/sh", None).unwrap(), Path::new("/bin/sh"));
        assert!(resolve("sh", None).unwrap().is_absolute());
        for missing in [
            "",
            "leasehold-no-such-command",
            "/bin/leasehold-no-such-command",
            "/bin/sh/x",
        ] {
            assert_eq!(
                resolve(missing, Some("/bin")).unwrap_err().exit_code(),
                127,
                "{missing}"
            );
        }
        for refused in ["/etc/passwd", "/bin"] {
            assert_eq!(
                resolve(refused, Some("/bin")).unwrap_err().exit_code(),
                126,
                "{refused}"
            );
        }
        assert_eq!(
            resolve("passwd", Some("/etc:/nowhere"))
                .unwrap_err()
                .exit_code(),
            126
        );
    }
}
