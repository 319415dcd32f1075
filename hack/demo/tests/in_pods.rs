//! The story in Pods at a small scale, from end to end: a real node, the chart installed by Helm, few contenders.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "shared with the story on processes")]
mod support;

const CUSTOMERS: u64 = 1_000;
const TELLINGS: [&str; 5] = ["frozen", "kubelet", "deleted", "oom", "forced"];
/// As many as make a queue: each costs its container's start, and a hand-over.
const CONTENDERS: &str = "3";

#[test]
fn whatever_happens_to_the_holders_pod_nobody_is_charged_twice_and_the_next_one_starts_in_time() {
    let scale = ["--node", "--lease=5", "--contenders", CONTENDERS];
    let numbers = support::tell(&scale, CUSTOMERS, &TELLINGS);
    for telling in TELLINGS {
        let numbers = &numbers[telling];
        assert_eq!(
            (numbers["charges"].as_u64(), numbers["duplicates"].as_u64()),
            (Some(CUSTOMERS), Some(0)),
            "{telling}: {numbers}"
        );
    }
    let number = |telling: &str, name: &str| {
        let number = numbers[telling][name].as_f64();
        number.unwrap_or_else(|| panic!("{telling} has no {name}: {numbers}"))
    };
    // What a thawed holder sends late is refused.
    assert!(number("frozen", "refused") > 0.0, "{numbers}");
    // Given back: within 2 s of the end of the work. The deletion itself goes through the kubelet, at the machine's pace.
    for telling in ["kubelet", "deleted"] {
        assert!(number(telling, "after_end_s") < 2.0, "{telling}: {numbers}");
    }
    // Freed by the kubelet's word, or given back: no lease ran out.
    for telling in ["deleted", "oom"] {
        let half = number(telling, "lease_s") / 2.0;
        assert!(number(telling, "takeover_s") < half, "{telling}: {numbers}");
    }
}
