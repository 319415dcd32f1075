//! What the program is made of, as a `CycloneDX` document: the crates that are linked into it, no others.
//!
//! It holds no time and no random number: the same `Cargo.lock` gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cargo::cargo;
use crate::node::image;

/// The package whose program it is about.
const PACKAGE: &str = "leasehold";

/// The document for the program that is built with `features` for a machine like this one.
pub fn document(features: &str) -> Result<Value> {
    let output = cargo(&["metadata", "--locked", "--format-version=1", "--features"])
        .args([features, "--filter-platform", &image::host()?])
        .output()
        .context("can't run cargo")?;
    if !output.status.success() {
        bail!(
            "`cargo metadata` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let lock = fs::read_to_string(crate::repository().join("Cargo.lock"))?;
    compose(&metadata, &checksums(&lock)).context("`cargo metadata` answers in an unknown form")
}

fn compose(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let needs: BTreeMap<&str, BTreeSet<&str>> = metadata["resolve"]["nodes"]
        .as_array()?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, linked(node)?)))
        .collect();
    let root = *packages
        .iter()
        .find(|(_, package)| package["name"] == PACKAGE)?
        .0;
    let (mut found, mut next) = (BTreeSet::from([root]), vec![root]);
    while let Some(id) = next.pop() {
        next.extend(needs.get(id)?.iter().filter(|id| found.insert(id)));
    }

    let purl = |id: &str| {
        let package = packages.get(id)?;
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        Some(format!("pkg:cargo/{name}@{version}"))
    };
    let component = |id: &str| {
        let package = packages.get(id)?;
        let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
        let mut component = json!({
            "type": if id == root { "application" } else { "library" },
            "bom-ref": purl(id)?,
            "name": name,
            "version": version,
            "purl": purl(id)?,
        });
        if let Some(license) = package["license"].as_str() {
            // Old crates write a slash.
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        Some(component)
    };
    let mut dependencies = Vec::new();
    for id in &found {
        let refs: BTreeSet<_> = needs.get(id)?.iter().filter_map(|id| purl(id)).collect();
        dependencies.push(json!({ "ref": purl(id)?, "dependsOn": refs }));
    }
    let libraries: Vec<_> = found
        .iter()
        .filter(|id| **id != root)
        .filter_map(|id| component(id))
        .collect();
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(root)? },
        "components": libraries,
        "dependencies": dependencies,
    }))
}

/// What a package links: not what only its tests or its build script need.
fn linked(node: &Value) -> Option<BTreeSet<&str>> {
    let deps = node["deps"].as_array()?.iter().filter(|dep| {
        let kinds = dep["dep_kinds"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    });
    Some(deps.filter_map(|dep| dep["pkg"].as_str()).collect())
}

/// The sums of the crates' archives, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(" = ").trim_matches('"').to_owned())
    };
    lock.split("[[package]]")
        .filter_map(|package| {
            let (name, version) = (field(package, "name")?, field(package, "version")?);
            Some(((name, version), field(package, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_what_is_linked_with_its_sum_and_nothing_of_the_tests() {
        let document = document("cli").unwrap();
        let components = document["components"].as_array().unwrap();
        let named = |name: &str| {
            components
                .iter()
                .find(|component| component["name"] == name)
        };
        let kube = named("kube").unwrap();
        assert_eq!(kube["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(kube["licenses"][0]["expression"].is_string());
        assert!(named("clap").is_some() && named("tokio").is_some());
        for absent in ["proptest", "stateright", "xtask", PACKAGE] {
            assert!(named(absent).is_none(), "{absent}");
        }
        let refs: BTreeSet<_> = components
            .iter()
            .map(|component| &component["bom-ref"])
            .map(Value::to_string)
            .collect();
        assert_eq!(refs.len(), components.len());
        assert_eq!(document, super::document("cli").unwrap());
    }
}
