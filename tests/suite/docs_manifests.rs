//! Every manifest in the documents and among the examples is taken by the server as it is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::Value;

use super::docs::{documents, examples, is_kind, read};
use super::server;

/// All objects in a text: between the fences of a page, or in shell's here-documents, or the whole file.
fn all_objects(path: &str) -> Vec<Value> {
    let text = read(path);
    let blocks: Vec<&str> = if is_kind(path, "yaml") {
        vec![&text]
    } else {
        let fenced = text.split("```yaml\n").skip(1);
        let fenced = fenced.filter_map(|rest| rest.split("```").next());
        let here = text.split("<<'YAML'\n").skip(1);
        let here = here.filter_map(|rest| rest.split("\nYAML").next());
        fenced.chain(here).collect()
    };
    blocks
        .iter()
        .flat_map(|block| block.split("---\n"))
        .map(|one| {
            serde_norway::from_str::<Value>(one).unwrap_or_else(|error| panic!("{path}: {error}"))
        })
        .collect()
}

/// Those of our group.
fn objects(path: &str) -> Vec<Value> {
    let mut objects = all_objects(path);
    objects.retain(|object| {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        version.starts_with("leasehold.dev/")
    });
    objects
}

#[tokio::test]
async fn every_manifest_that_is_printed_is_taken_by_the_server() {
    let client = server::client().await;
    server::install_crds(&client).await;
    let mut taken = 0;
    server::with_namespace(&client, async |namespace| {
        for path in documents().into_iter().chain(examples()) {
            for object in objects(&path) {
                let kind = object["kind"].as_str().expect("a kind").to_owned();
                let gvk = GroupVersionKind::gvk("leasehold.dev", "v1alpha1", &kind);
                let resource = ApiResource::from_gvk(&gvk);
                let api =
                    Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource);
                let mut object: DynamicObject = serde_json::from_value(object).expect("an object");
                object.metadata.namespace = None;
                let dry = PostParams {
                    dry_run: true,
                    field_manager: None,
                };
                if let Err(error) = api.create(&dry, &object).await {
                    panic!("{path}: {kind} {:?}: {error}", object.metadata.name);
                }
                taken += 1;
            }
        }
    })
    .await;
    assert!(taken > 5, "only {taken} manifests were found");
}

/// Who applies two examples sees each as it is told: none makes what another makes, none waits for another's lock.
#[test]
fn no_two_examples_share_a_lock_or_another_object() {
    let mut owners = BTreeMap::new();
    for path in examples() {
        // The administrator's half and the pipeline's are one example; so is a folder.
        let example = match path.as_str() {
            "examples/deploy-claim.yaml" => "examples/deploy-lock.yaml",
            path => match Path::new(path).parent().and_then(Path::to_str) {
                Some("examples") | None => path,
                Some(folder) => folder,
            },
        };
        let objects = all_objects(&path);
        let made = objects.iter().map(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            format!("{} {name}", object["kind"].as_str().unwrap_or_default())
        });
        let claimed = objects
            .iter()
            .filter_map(|object| object["spec"]["lockName"].as_str());
        let text = read(&path);
        let run = text.split("--lock").skip(1).filter_map(|rest| {
            let name = rest.strip_prefix(['=', ' '])?;
            name.split([' ', ',', ']', '\n']).next()
        });
        let used = claimed
            .chain(run)
            .map(|name| format!("DistributedLock {name}"));
        for thing in made.chain(used).collect::<BTreeSet<_>>() {
            let owner = owners.entry(thing.clone()).or_insert(example.to_owned());
            assert_eq!(owner, example, "{thing} is in both");
        }
    }
    for lock in ["mailer", "importer", "indexer", "production", "reports"] {
        assert!(
            owners.contains_key(&format!("DistributedLock {lock}")),
            "{owners:#?}"
        );
    }
}

/// Under the chart's policies who takes a lock needs the verb `use` on it, whatever else RBAC allows.
#[test]
fn every_role_for_holders_that_is_printed_may_use_the_lock() {
    let has = |list: &Value, word: &str| {
        let mut words = list.as_array().into_iter().flatten();
        words.any(|one| one == word)
    };
    let mut seen = 0;
    for path in documents().into_iter().chain(examples()) {
        for object in all_objects(&path) {
            let rules = object["rules"].as_array().cloned().unwrap_or_default();
            let allows = |resource: &str, verb: &str| {
                let mut rules = rules.iter();
                rules.any(|rule| has(&rule["resources"], resource) && has(&rule["verbs"], verb))
            };
            // Status is the operator's, which the policies know by its name.
            if allows("leases", "update") && !allows("distributedlocks/status", "update") {
                let name = &object["metadata"]["name"];
                assert!(allows("distributedlocks", "use"), "{path}: {name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 3, "only {seen} roles were found");
}
