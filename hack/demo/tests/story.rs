//! The story at a small scale, from end to end: real servers, real processes, few customers.
//!
//! The program `leasehold` must be built: `cargo test --workspace --all-features` does that.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::story;

const CUSTOMERS: u64 = 500;

/// Tells two of it.
fn tell(speed: &str, tellings: [&str; 2]) -> Value {
    support::tell(&["--speed", speed], CUSTOMERS, &tellings)
}

#[test]
fn without_a_gate_the_thawed_holder_charges_twice_and_with_one_it_is_refused() {
    let numbers = tell("15", ["naive", "fenced"]);
    let (naive, fenced) = (&numbers["naive"], &numbers["fenced"]);
    let duplicates = naive["duplicates"].as_u64().expect("a count");
    assert!((130..=170).contains(&duplicates), "{duplicates}");
    assert_eq!(naive["charges"], CUSTOMERS + duplicates);
    assert_eq!(
        (naive["refused"].as_u64(), fenced["duplicates"].as_u64()),
        (Some(0), Some(0))
    );
    assert_eq!(fenced["charges"], CUSTOMERS);
    assert!(fenced["refused"].as_u64().expect("a count") > 0);
}

#[test]
fn with_leasehold_the_next_one_starts_soon_and_nobody_is_charged_twice() {
    let numbers = tell("5", ["leasehold", "crash"]);
    for telling in ["leasehold", "crash"] {
        let numbers = &numbers[telling];
        assert_eq!(
            (numbers["charges"].as_u64(), numbers["duplicates"].as_u64()),
            (Some(CUSTOMERS), Some(0))
        );
        assert!(
            numbers["takeover_s"].as_f64().expect("a time") <= 120.0,
            "{numbers}"
        );
    }
}

#[test]
fn a_driver_that_is_killed_leaves_no_process_behind() {
    let mut driver = story()
        .args(["--speed", "15", "--customers", "500", "--telling", "naive"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the story can be run");
    let mark = format!("NIGHTLY_BILLING_POD=run-{}/", driver.id());
    let mut lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
    let began = lines.any(|line| line.expect("words").contains("has the lock"));
    assert!(began, "nobody took the lock");
    assert!(
        count_marked(&mark) > 10,
        "ten contenders, one at work, and an operator"
    );
    kill_process(Pid::from_child(&driver), Signal::KILL).expect("it runs");
    driver.wait().expect("it ended");

    let start = Instant::now();
    while count_marked(&mark) > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "processes were left behind"
        );
        sleep(Duration::from_millis(10));
    }
}

fn count_marked(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
    let marked = |environment: Vec<u8>| {
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable.starts_with(mark.as_bytes()))
    };
    processes
        .filter(|entry| fs::read(entry.path().join("environ")).is_ok_and(marked))
        .count()
}
