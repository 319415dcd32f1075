//! docs/cases.md has a row for each case that people reported, with tests that exist.

use super::docs::{expect_none, is_kind, is_test, read, root, tests_named_in};

/// The first name of each report, in the page's order.
const REPORTS: [&str; 44] = [
    "akkadotnet/Akka.Management#3418",
    "kubernetes/kubernetes#65094",
    "kubernetes/kubernetes#131867",
    "fabric8io/kubernetes-client#7160",
    "spring-cloud/spring-cloud-kubernetes#210",
    "fabric8io/kubernetes-client#7350",
    "kubernetes/kubernetes#41956",
    "kubernetes/kubernetes#125761",
    "hashicorp/consul#2022",
    "hashicorp/consul#4439",
    "kubernetes/kubernetes#139991",
    "kubereboot/kured#143",
    "openconfig/gnmic#983",
    "kubernetes-client/java#4913",
    "kubernetes/kubernetes#107457",
    "constructorfabric/gears-rust#4705",
    "kubernetes/client-go#754",
    "flux-iac/tofu-controller#250",
    "lukas-krecan/ShedLock#6",
    "lukas-krecan/ShedLock#132",
    "kubernetes/kubernetes#130683",
    "cilium/cilium#42920",
    "relizaio/rearm#269",
    "argoproj/argo-workflows#8684",
    "kube-rs/kube#1615",
    "kubernetes-sigs/kueue#15537",
    "agentconnect-md/agentconnect#873",
    "kubernetes-sigs/controller-runtime#2719",
    "ovn-kubernetes/ovn-kubernetes#3959",
    "kubeflow/notebooks#1343",
    "openconfig/gnmic#981",
    "apache/rocketmq-operator#113",
    "slauger/openvox-operator#555",
    "etcd-io/etcd#10811",
    "etcd-io/etcd#15247",
    "kubernetes/kubernetes#23731",
    "home-operations/kopiur#319",
    "hashicorp/consul#1006",
    "hashicorp/consul#9469",
    "hashicorp/consul#1210",
    "hashicorp/consul#947",
    "argoproj/argo-workflows#6340",
    "coreos/airlock#81",
    "kubeflow/kubeflow",
];
/// The cases that were found while attacking the design: D1, D2, …
const FOUND: usize = 30;
/// What the remark on a case without a test begins with.
const POSTPONED: [&str; 2] = ["Later:", "With issue "];

/// What is behind the header of each table, by cells.
fn rows() -> Vec<[String; 3]> {
    let text = read("docs/cases.md");
    text.lines()
        .filter(|line| line.starts_with("| "))
        .filter(|line| !line.starts_with("| ---") && !line.contains("| Tests |"))
        .map(|line| {
            let line = line.trim_start_matches("| ").trim_end_matches('|');
            let cells: Vec<_> = line
                .split(" |")
                .map(|cell| cell.trim().to_owned())
                .collect();
            cells
                .try_into()
                .unwrap_or_else(|cells| panic!("three cells: {cells:?}"))
        })
        .collect()
}

/// The name of a case: what its row begins with.
fn id(case: &str) -> &str {
    case.split([',', ':']).next().unwrap_or_default()
}

#[test]
fn every_case_has_its_row() {
    let rows = rows();
    let ids: Vec<_> = rows.iter().map(|[case, ..]| id(case)).collect();
    let found = (1..=FOUND).map(|number| format!("D{number}"));
    let expected: Vec<_> = REPORTS
        .map(str::to_owned)
        .into_iter()
        .chain(found)
        .collect();
    assert_eq!(ids, expected);
}

#[test]
fn every_case_names_tests_that_exist_or_says_what_it_waits_for() {
    let mut wrong = Vec::new();
    for [case, tests, remark] in rows() {
        let id = id(&case);
        let named = tests_named_in(&tests);
        let transcripts = transcripts_named_in(&tests);
        if named.len() + transcripts.len() != tests.split_whitespace().count() {
            wrong.push(format!("{id}: something else than names of tests: {tests}"));
        }
        if tests.is_empty() && !POSTPONED.iter().any(|word| remark.starts_with(word)) {
            wrong.push(format!("{id}: no test, and no word on what it waits for"));
        }
        for (file, name) in named {
            if !is_test(&file, &name) {
                wrong.push(format!("{id}: {file} has no test {name}"));
            }
        }
        for transcript in transcripts {
            if !root().join(&transcript).exists() {
                wrong.push(format!("{id}: there is no {transcript}"));
            }
        }
    }
    expect_none(&wrong);
}

/// Transcripts in backticks.
fn transcripts_named_in(text: &str) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    words
        .filter(|word| word.starts_with("tests/engine/") && is_kind(word, "txt"))
        .map(str::to_owned)
        .collect()
}
