//! What a sidecar refuses at its start, and in which words.

use std::fs;
use std::net::TcpListener;

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::Value;

use super::docs::read;
use super::run_bench::Bench;
use super::run_health::free_address;
use super::run_process::RunBuilder;
use super::sidecar::{Pod, Sidecar};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_said_before_anything_is_taken() {
    let bench = Bench::new().await;
    bench.opened("a", 15).await;
    let pod = Pod::new(&bench);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let dir = |dir: &str| bench.sidecar("a").option("--dir", dir);
    let file = bench.file("no-folder");
    fs::write(&file, "").unwrap();
    let at = |app: &str, probes: &str| {
        dir(pod.dir.to_str().unwrap())
            .option("--http-addr", app)
            .option("--probe-addr", probes)
    };
    let free = free_address;
    let refused: [(RunBuilder, i32, &[&str]); 6] = [
        (
            dir(file.to_str().unwrap()),
            2,
            &["cannot write to", "emptyDir"],
        ),
        (at(&taken, &free()), 2, &["--http-addr chooses another"]),
        (at(&free(), &taken), 2, &["--probe-addr chooses another"]),
        (
            at(&free(), &free()).with(&["--end-app"]),
            2,
            &["--end-app", "not a Pod's"],
        ),
        (
            at(&free(), &free()).option("--on-loss", "delete-pod"),
            2,
            &["automountServiceAccountToken"],
        ),
        (
            at(&free(), &free()).option("--kill-grace", "4s"),
            2,
            &["use at most 3s"],
        ),
    ];
    for (sidecar, code, words) in refused {
        sidecar.ends().await.assert(code, words);
    }
    let missing = bench
        .sidecar("b")
        .option("--dir", pod.dir.to_str().unwrap());
    let missing = missing.option("--http-addr", &free());
    let missing = missing.option("--probe-addr", &free());
    missing.ends().await.assert(69, &["there is no lock \"b\""]);
    assert_eq!(bench.lease("a").await.last_token(), 0, "nothing was taken");
    bench.finish().await;
}

/// Two sidecars of one Pod need a folder each.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_one_locks() {
    let bench = Bench::new().await;
    for lock in ["a", "b"] {
        bench.opened(lock, 60).await;
    }
    let mut sidecar = Sidecar::held(&bench, "a").await;
    let other = bench.sidecar("b").option("--http-addr", &free_address());
    let other = other.option("--probe-addr", &free_address());
    let other = other.option("--dir", sidecar.pod.dir.to_str().unwrap());
    let words = ["is the folder of the sidecar of lock \"a\"", "--dir"];
    other.ends().await.assert(2, &words);
    assert!(sidecar.pod.file().is_some());
    sidecar.stops().await;
    bench.finish().await;
}

/// Every object, whole: a field that the server does not know would be dropped.
#[tokio::test]
async fn the_example_is_taken_by_the_server_as_it_is_printed() {
    let bench = Bench::new().await;
    let dry = PostParams {
        dry_run: true,
        field_manager: None,
    };
    for one in read("examples/sidecar.yaml").split("---\n") {
        let object: Value = serde_norway::from_str(one).expect("YAML");
        let text = |field: &str| object[field].as_str().unwrap().to_owned();
        let (group, version) = match text("apiVersion").split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), text("apiVersion")),
        };
        let gvk = GroupVersionKind::gvk(&group, &version, &text("kind"));
        let resource = ApiResource::from_gvk(&gvk);
        let api = Api::<DynamicObject>::namespaced_with(
            bench.client.clone(),
            &bench.namespace,
            &resource,
        );
        let asked: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        let made = api.create(&dry, &asked).await;
        let made = made.unwrap_or_else(|error| panic!("{gvk:?}: {error}"));
        for field in ["spec", "rules"] {
            assert_contains(&made.data[field], &object[field], field);
        }
    }
    bench.finish().await;
}

/// What the server made has everything that was asked for.
#[track_caller]
fn assert_contains(made: &Value, asked: &Value, at: &str) {
    match (made, asked) {
        (Value::Object(made), Value::Object(asked)) => {
            for (key, value) in asked {
                let at = format!("{at}.{key}");
                assert_contains(made.get(key).unwrap_or(&Value::Null), value, &at);
            }
        }
        (Value::Array(made), Value::Array(asked)) => {
            assert_eq!(made.len(), asked.len(), "{at}");
            for (made, asked) in made.iter().zip(asked) {
                assert_contains(made, asked, at);
            }
        }
        _ => assert_eq!(made, asked, "{at}"),
    }
}
