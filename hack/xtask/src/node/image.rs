//! The product's image, built from the repository's `Dockerfile` by Docker or buildah.
//!
//! By default the Dockerfile's first stage is replaced with a folder that holds the program, linked statically by the
//! cargo at hand: nothing is fetched, and what is built already is not built again.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::apt;
use crate::cargo::cargo;
use crate::folder;
use crate::progress::Progress;

/// The name that [`product`] gives the image.
pub const PRODUCT: &str = "localhost/leasehold:dev";
/// The features of the program in it.
pub const FEATURES: &str = "cli";
/// The stage of the Dockerfile that makes the program.
const STAGE: &str = "build";
const PROGRAM: &str = "leasehold";
/// The Debian package that builds images where there is no Docker.
const PACKAGE: &str = "buildah";

/// Where the program of the image comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The cargo that is installed here.
    Replaced,
    /// The Dockerfile's first stage, which fetches a toolchain.
    Own,
}

/// Builds the image, and returns its archive, for [`crate::cluster::Cluster::load`].
pub fn product(stage: Stage) -> Result<PathBuf> {
    let dir = target_dir().join("image");
    fs::create_dir_all(&dir)?;
    let _one_at_a_time = folder::lock(&dir.join("lock"))?;
    let builder = Builder::find(&dir)?;
    let (context, replaced) = match stage {
        Stage::Own => (crate::repository(), None),
        Stage::Replaced => {
            let (context, files) = (dir.join("context"), dir.join("files"));
            for dir in [&context, &files] {
                fs::create_dir_all(dir)?;
            }
            fs::copy(program()?, files.join(PROGRAM))?;
            (context, Some(files))
        }
    };
    let archive = dir.join("leasehold.tar");
    builder.build(&context, replaced.as_deref(), &archive)?;
    Ok(archive)
}

/// The program, optimized and linked statically: it runs in an image with nothing else in it.
pub fn program() -> Result<PathBuf> {
    let triple = host()?;
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" -C target-feature=+crt-static");
    let progress = Progress::start("Building the program for its image (minutes, the first time)");
    let output = cargo(&["build", "--locked", "--release", "--quiet"])
        .args([
            "--features",
            FEATURES,
            "--bin",
            PROGRAM,
            "--target",
            &triple,
        ])
        .env("RUSTFLAGS", flags.trim())
        .stdin(Stdio::null())
        .output()
        .context("can't run cargo")?;
    if !output.status.success() {
        progress.give_up();
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("`cargo build --release` failed:\n{}", words.trim());
    }
    progress.done("");
    Ok(target_dir().join(triple).join("release").join(PROGRAM))
}

fn target_dir() -> PathBuf {
    let usual = || crate::repository().join("target");
    env::var_os("CARGO_TARGET_DIR").map_or_else(usual, PathBuf::from)
}

/// The triple that `rustc` builds for without being told.
pub(crate) fn host() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .context("can't run rustc")?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(ToOwned::to_owned)
        .context("rustc does not say what it builds for")
}

enum Builder {
    Docker(PathBuf),
    /// With storage of its own, so that nothing of it is left on the machine.
    Buildah(PathBuf, PathBuf),
}

impl Builder {
    /// The Docker that answers, else buildah, which is installed if need be.
    fn find(dir: &Path) -> Result<Self> {
        if let Some(docker) = apt::find("docker") {
            let answer = Command::new(&docker)
                .args(["version", "--format", "{{.Server.Version}}"])
                .stdin(Stdio::null())
                .output();
            if answer.is_ok_and(|output| output.status.success()) {
                return Ok(Self::Docker(docker));
            }
        }
        if apt::find(PACKAGE).is_none() {
            let what = "buildah (there is no Docker that answers)";
            apt::install(what, &[PACKAGE], || apt::find(PACKAGE).is_some())?;
        }
        let buildah = apt::find(PACKAGE).context("the package buildah brought no program")?;
        Ok(Self::Buildah(buildah, dir.join("storage")))
    }

    fn build(&self, context: &Path, replaced: Option<&Path>, archive: &Path) -> Result<()> {
        let mut build = self.command();
        match self {
            Self::Docker(_) => build.arg("build"),
            Self::Buildah(..) => build.args(["build", "--isolation=chroot"]),
        };
        if let Some(files) = replaced {
            build.arg("--build-context");
            build.arg(format!("{STAGE}={}", files.display()));
        }
        build
            .arg("--file")
            .arg(crate::repository().join("Dockerfile"));
        build.args(["--tag", PRODUCT]).arg(context);
        run(build)?;
        // Others may be reading the one before.
        let new = archive.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut save = self.command();
        match self {
            Self::Docker(_) => save.args(["save", "--output"]).arg(&new).arg(PRODUCT),
            Self::Buildah(..) => save
                .args(["push", PRODUCT])
                .arg(format!("oci-archive:{}:{PRODUCT}", new.display())),
        };
        run(save)?;
        fs::rename(&new, archive)?;
        if let Self::Buildah(_, storage) = self {
            fs::remove_dir_all(storage).context("can't remove buildah's storage")?;
        }
        Ok(())
    }

    fn command(&self) -> Command {
        match self {
            Self::Docker(program) => {
                let mut command = Command::new(program);
                // Named contexts are BuildKit's.
                command.env("DOCKER_BUILDKIT", "1");
                command
            }
            Self::Buildah(program, storage) => {
                let mut command = Command::new(program);
                command.args(["--storage-driver=vfs", "--root"]);
                command.arg(storage.join("root"));
                command.arg("--runroot").arg(storage.join("run"));
                command
            }
        }
    }
}

fn run(mut command: Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("can't run {}", command.get_program().display()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed:\n{}", words.trim());
    }
    Ok(())
}
