//! Folders that belong to a running process, and locks that say whether it still runs.
//!
//! A process id alone proves nothing, since ids are used again; a file lock does: the kernel drops it with its owner.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// The supervisor holds a lock on this file of its folder.
pub const SUPERVISOR_LOCK: &str = "lock";
/// The owner of an [`OwnedFolder`] holds a lock on this one.
const OWNER_LOCK: &str = "owner";
/// What the names of folders begin with that go with their owner.
const OWNED_PREFIX: &str = "owned-";

/// A new folder that is removed with its owner: by the supervisor, or by the next process that makes one here.
#[derive(Debug)]
pub struct OwnedFolder {
    path: PathBuf,
    _lock: File,
}

impl OwnedFolder {
    /// Makes one in `base`, and removes those there whose owners are no more.
    pub fn new(base: &Path, kind: &str, mode: u32) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(base).with_context(|| format!("can't make {}", base.display()))?;
        // Nobody sweeps between the making of a folder and the lock in it.
        let guard = lock(&base.join(format!(".{kind}.sweep")))?;
        sweep(base, kind);
        let name = format!(
            "{OWNED_PREFIX}{kind}-{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = base.join(name);
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new()
            .mode(mode)
            .create(&path)
            .with_context(|| format!("can't make {}", path.display()))?;
        let own = lock(&path.join(OWNER_LOCK))?;
        drop(guard);
        Ok(Self { path, _lock: own })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what owners left behind who were killed together with their supervisor.
fn sweep(base: &Path, kind: &str) {
    let prefix = format!("{OWNED_PREFIX}{kind}-");
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(&prefix));
        if ours
            && !is_locked(&entry.path().join(OWNER_LOCK))
            && !is_locked(&entry.path().join(SUPERVISOR_LOCK))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Waits for the lock on a file, made if need be; it is held until the result is dropped.
pub fn lock(path: &Path) -> Result<File> {
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        let file = file.with_context(|| format!("can't open {}", path.display()))?;
        file.lock()
            .with_context(|| format!("can't lock {}", path.display()))?;
        // Whoever held it before may have removed the file: then this lock keeps nobody out.
        if file.metadata().is_ok_and(|data| data.nlink() > 0) {
            return Ok(file);
        }
    }
}

/// Whether a living process holds the lock on a file.
#[must_use]
pub fn is_locked(path: &Path) -> bool {
    File::options()
        .write(true)
        .open(path)
        .is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Copies a folder with all below it, permissions too; `to` must not be there.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let context = || format!("can't copy {} to {}", from.display(), to.display());
    fs::create_dir(to).with_context(context)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions()).with_context(context)?;
    for entry in fs::read_dir(from).with_context(context)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target).with_context(context)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_whose_owner_is_gone_is_removed_by_the_next() {
        let base = std::env::temp_dir().join(format!("xtask-folder-{}", process::id()));
        let left_behind = base.join(format!("{OWNED_PREFIX}test-1-0"));
        fs::create_dir_all(&left_behind).unwrap();
        fs::write(left_behind.join(OWNER_LOCK), "").unwrap();
        let first = OwnedFolder::new(&base, "test", 0o700).unwrap();
        let second = OwnedFolder::new(&base, "test", 0o700).unwrap();
        assert!(!left_behind.exists());
        assert!(first.path().exists() && second.path().exists());
        let path = first.path().to_path_buf();
        drop(first);
        assert!(!path.exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
