//! `cargo xtask gen`: the files that are made from the code and kept in the repository.

use std::fs;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Where the custom resource definitions are kept, plain and as templates of the chart.
const CRDS: &str = "crds";
const CHART_CRDS: &str = "charts/leasehold/templates/crds";
const HEADER: &str = "# Made from src/api by `cargo xtask gen`: change the types there.\n";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail if a file is not as it would be made
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    make(args.check)?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if a file is not as it would be made.
pub(crate) fn check() -> Result<()> {
    make(true)
}

fn make(check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for (name, text) in generated()? {
        let path = xtask::repository().join(&name);
        if fs::read_to_string(&path).is_ok_and(|kept| kept == text) {
            continue;
        }
        if !check {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&path, text).with_context(|| format!("can't write {name}"))?;
            eprintln!("Wrote {name}.");
        }
        stale.push(name);
    }
    if check && !stale.is_empty() {
        bail!(
            "not as the code says: {}; run `cargo xtask gen`, look at the difference and commit it",
            stale.join(", ")
        );
    }
    if stale.is_empty() {
        eprintln!("All generated files are as the code says.");
    }
    Ok(())
}

/// The files with their paths from the root.
fn generated() -> Result<Vec<(String, String)>> {
    let mut command = super::cargo(&[
        "run",
        "--quiet",
        "--all-features",
        "--bin",
        "leasehold",
        "--",
        "crd",
    ]);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("can't run cargo")?;
    ensure!(
        output.status.success(),
        "`leasehold crd` failed ({})",
        output.status
    );
    let text = String::from_utf8(output.stdout)
        .context("`leasehold crd` printed something other than UTF-8")?;
    let definitions = split(&text)?;
    ensure!(!definitions.is_empty(), "`leasehold crd` printed nothing");
    let mut files = Vec::new();
    for (name, text) in definitions {
        files.push((format!("{CHART_CRDS}/{name}"), template(&text)?));
        files.push((format!("{CRDS}/{name}"), text));
    }
    Ok(files)
}

/// A definition as a template of the chart. Helm's own folder for them would never upgrade them; and they outlive the
/// release, since every lock would go with them.
fn template(definition: &str) -> Result<String> {
    ensure!(
        !definition.contains("{{"),
        "Helm would take a part of the definition for its own: avoid {{{{ in src/api"
    );
    let (before, after) = definition
        .split_once("\nmetadata:\n")
        .context("a definition without metadata")?;
    ensure!(
        !after.starts_with("  annotations:") && !after.starts_with("  labels:"),
        "a definition with metadata of its own"
    );
    Ok(format!(
        "{{{{- if .Values.crds.install }}}}\n{before}\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n  labels:\n    \
         {{{{- include \"leasehold.labels\" . | nindent 4 }}}}\n{after}{{{{- end }}}}\n"
    ))
}

/// Splits a stream of definitions into one file each, named by the resource's plural.
fn split(stream: &str) -> Result<Vec<(String, String)>> {
    let mut documents: Vec<String> = vec![String::new()];
    for line in stream.lines() {
        if line.trim_end() == "---" {
            documents.push(String::new());
        } else if let Some(document) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents
        .into_iter()
        .filter(|document| !document.trim().is_empty())
        .map(|document| {
            let plural = plural(&document).context("a definition without a metadata.name")?;
            Ok((format!("{plural}.yaml"), format!("{HEADER}{document}")))
        })
        .collect()
}

/// From `metadata.name`, which is `PLURAL.GROUP`.
fn plural(document: &str) -> Option<&str> {
    let metadata = document
        .lines()
        .skip_while(|line| *line != "metadata:")
        .skip(1);
    let name = metadata
        .take_while(|line| line.starts_with(' '))
        .find_map(|line| line.strip_prefix("  name: "))?;
    name.split('.')
        .next()
        .filter(|plural| !plural.is_empty() && plural.bytes().all(|byte| byte.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_split_by_name() {
        let stream = "---\nkind: X\nmetadata:\n  labels: {}\n  name: locks.example.com\nspec: {}\n---\nkind: Y\nmetadata:\n  name: claims.example.com\n";
        let files = split(stream).unwrap();
        assert_eq!(files[0].0, "locks.yaml");
        assert_eq!(
            files[0].1,
            format!(
                "{HEADER}kind: X\nmetadata:\n  labels: {{}}\n  name: locks.example.com\nspec: {{}}\n"
            )
        );
        assert_eq!(files[1].0, "claims.yaml");
        let template = template(&files[1].1).unwrap();
        assert!(template.starts_with("{{- if .Values.crds.install }}\n# Made"));
        assert!(template.ends_with("\n  name: claims.example.com\n{{- end }}\n"));
        assert!(template.contains("\n    helm.sh/resource-policy: keep\n"));
        assert!(super::template("metadata:\n  name: {{x}}\n").is_err());
        assert!(split("---\nspec:\n  name: x.y\n").is_err());
        assert!(split("---\nmetadata:\n  name: ../x\n").is_err());
    }
}
